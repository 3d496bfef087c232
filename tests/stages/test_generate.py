"""generate: what becomes of a prompt, and of every way in which sampling goes wrong."""

from __future__ import annotations

import math

from schemas.batch import Batch
from stages.checkers import reward
from stages.generate import Generate
from tests.stages.fakes import Echo, Letters, completion

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 4, "seed": 0}


def prompts(**texts: str) -> Batch:
    ids = list(texts)
    return Batch.of(
        ids,
        {
            "prompt": list(texts.values()),
            "messages": [None] * len(ids),
            "answer": ["de"] * len(ids),
            "checker": ["exact"] * len(ids),
            "sampling": [SAMPLING] * len(ids),
        },
    )


def test_response_tokens_follow_the_prompt_and_carry_mask_and_logprobs():
    engine = Echo({"s": completion([4, 5], [-0.5, -0.25])})
    out = Generate(engine, Letters(), reward)(prompts(s="abc"))
    assert out.columns["input_ids"] == [[1, 2, 3, 4, 5]]
    assert out.columns["token_mask"] == [[False, False, False, True, True]]
    assert out.columns["generation_logprobs"] == [[0.0, 0.0, 0.0, -0.5, -0.25]]
    assert out.columns["reward"] == [1.0]


def test_one_generation_that_raises_fails_alone_and_writes_nothing():
    answers = {name: completion([4], [-1.0]) for name in ("g-0", "g-1", "g-3")}
    out = Generate(Echo(answers, broken=["g-2"]), Letters(), reward)(
        prompts(**dict.fromkeys(("g-0", "g-1", "g-2", "g-3"), "ab"))
    )
    assert list(out.sample_ids) == ["g-0", "g-1", "g-3"]
    assert out.failed == {"g-2": "engine_error: RuntimeError: out of memory"}
    assert len(out.columns["input_ids"]) == 3


def test_a_response_without_tokens_fails_as_empty():
    out = Generate(Echo({"a": completion([], []), "b": completion([4], [-1.0])}), Letters(), reward)(
        prompts(a="x", b="xy")
    )
    assert list(out.sample_ids) == ["b"]
    assert out.failed["a"].startswith("empty_response:")


def test_missing_and_non_finite_logprobs_of_the_sampler_are_refused_by_position():
    answers = {
        "nan": completion([4, 5, 6], [-0.1, math.nan, -2.0]),
        "inf": completion([4], [-math.inf]),
        "none": completion([4, 5], [-0.1, None]),
    }
    out = Generate(Echo(answers), Letters(), reward)(prompts(**{"nan": "a", "inf": "ab", "none": "abc"}))
    assert not out.sample_ids
    assert out.failed["nan"] == "bad_logprob: nan at response position 1"
    assert out.failed["inf"] == "bad_logprob: -inf at response position 0"
    assert out.failed["none"] == "bad_logprob: None at response position 1"


def test_a_prompt_without_room_for_its_answer_is_never_clipped():
    out = Generate(Echo({"short": completion([4], [-1.0])}, max_length=8), Letters(), reward)(
        prompts(short="ab", long="abcdefg")
    )
    assert list(out.sample_ids) == ["short"]
    assert out.failed["long"].startswith("prompt_too_long: 7 prompt tokens and 4 new ones exceed")


def test_a_truncated_right_answer_earns_nothing_and_no_answer_means_no_reward():
    batch = prompts(cut="ab", free="abc").with_columns({"answer": ["de", None]})
    answers = {"cut": completion([4, 5], [-1.0, -1.0], finish="length"), "free": completion([4], [-1.0])}
    assert Generate(Echo(answers), Letters(), reward)(batch).columns["reward"] == [0.0, None]


def test_a_checker_that_raises_fails_its_row_only():
    batch = prompts(bad="ab", good="abc").with_columns({"checker": ["numeric", "exact"]})
    answers = {name: completion([4, 5], [-1.0, -1.0]) for name in ("bad", "good")}
    out = Generate(Echo(answers), Letters(), reward)(batch)
    assert list(out.sample_ids) == ["good"]
    assert out.failed["bad"].startswith("reward_error: InputError: checker 'numeric'")


def test_generated_ids_are_carried_not_tokenised_again():
    class Merging(Letters):
        """Text 'hello' would encode as one token, but the generator emitted two."""

        def encode_chat(self, messages):
            return [{"hello": 3}.get(messages[0]["content"], 9)]

        def decode(self, token_ids):
            return "".join({1: "he", 2: "llo", 3: "hello"}[token] for token in token_ids)

    out = Generate(Echo({"s": completion([1, 2], [-1.0, -1.0])}), Merging(), reward)(prompts(s="x"))
    assert out.columns["input_ids"] == [[9, 1, 2]]
    assert out.columns["response_text"] == ["hello"]
