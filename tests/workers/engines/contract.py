"""What every engine must do, whatever runs it: plain functions that take an engine and the checkpoint it is of.

Another engine joins with a test module that makes it and runs ``SCORER``, ``GENERATOR``, or ``TRAINER`` of
training.py (see test_contract_hf.py); engines over several ranks run them in every rank. The truth is plain
transformers, one sequence at a time, in float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from schemas.errors import InputError
from stages.protocols import Ask, Sampling
from tests.workers.engines.models import Model

#: Nats, logits and shares by which an engine may differ in float32.
TOLERANCE = 1e-4

#: Without the pad id: transformers takes no gradient of its embedding.
SEQUENCES = [
    [2, 33, 29, 57, 96, 1],
    [3, 44],
    [5, 33, 29, 32, 34, 67, 1, 90, 11],
    [7],
    [2, 44, 9, 95, 50, 51, 52, 53, 54, 55, 56, 57, 58, 60, 59],
]
MASKS = [
    [False, False, True, True, False, True],
    [False, True],
    [False] * 9,
    [False],
    [False] * 3 + [True] * 10 + [False, True],
]


def near(found: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


# -- scorers: ``load(path)`` gave *engine* ---------------------------------------------------------


@torch.no_grad()
def logprobs_are_those_of_transformers(engine: Any, model: Model) -> None:
    for temperature in (1.0, 0.6):
        scored = engine.logprobs(SEQUENCES, temperature)
        for ids, values in zip(SEQUENCES, scored, strict=True):
            assert values.dtype == torch.float32 and values.device.type == "cpu" and values[0] == 0
            near(values, model.logprobs(ids, temperature))


@torch.no_grad()
def logits_are_those_each_token_was_drawn_from(engine: Any, model: Model) -> None:
    for ids, logits in zip(SEQUENCES, engine.logits(SEQUENCES), strict=True):
        assert not logits[0].any()
        near(logits, model.logits(ids))


@torch.no_grad()
def the_top_k_is_exact_and_of_masked_tokens_alone(engine: Any, model: Model) -> None:
    for ids, mask, top in zip(SEQUENCES, MASKS, engine.top_k(SEQUENCES, MASKS, 5, 0.6), strict=True):
        logits = model.logits(ids)[torch.tensor(mask)] / 0.6
        assert top.ids.shape == top.logprobs.shape == (sum(mask), 5) and top.logsumexp.shape == (sum(mask),)
        assert top.ids.tolist() == logits.topk(5).indices.tolist()
        near(top.logprobs, logits.log_softmax(-1).topk(5).values)
        near(top.logsumexp, logits.logsumexp(-1))


@torch.no_grad()
def a_payload_of_states_goes_through_the_head(engine: Any, model: Model) -> None:
    scores = engine.score(SEQUENCES, MASKS, 0.6, Ask("hidden_states", top_k=3))
    for ids, mask, score in zip(SEQUENCES, MASKS, scores, strict=True):
        near(score.logprobs, model.logprobs(ids, 0.6))
        assert not score.payload[0].any()
        near(score.payload[1:], model.states(ids)[:-1])
        assert score.top.ids.tolist() == model.logits(ids)[torch.tensor(mask)].topk(3).indices.tolist()


@torch.no_grad()
def a_payload_of_logits_has_the_asked_type(engine: Any, model: Model) -> None:
    for ids, score in zip(SEQUENCES, engine.score(SEQUENCES, MASKS, 1.0, Ask("logits", "float16")), strict=True):
        assert score.payload.dtype == torch.float16 and score.top is None
        near(score.payload.float(), model.logits(ids), 5e-3)


def the_head_makes_the_logits(engine: Any, model: Model) -> None:
    assert engine.head_error(SEQUENCES) < TOLERANCE


def a_row_scores_the_same_alone_and_no_rows_score_nothing(engine: Any, model: Model) -> None:
    together = engine.logprobs(SEQUENCES, 1.0)
    near(engine.logprobs(SEQUENCES[2:3], 1.0)[0], together[2])
    assert engine.logprobs([], 1.0) == []


def limits_are_the_models(engine: Any, model: Model) -> None:
    assert (engine.max_length, engine.vocabulary_size) == (256, model.vocabulary)


#: Of scorers that give log-probs alone.
LOGPROBS = (
    logprobs_are_those_of_transformers,
    a_row_scores_the_same_alone_and_no_rows_score_nothing,
    limits_are_the_models,
)
#: Of a PayloadScorer.
SCORER = (
    *LOGPROBS,
    logits_are_those_each_token_was_drawn_from,
    the_top_k_is_exact_and_of_masked_tokens_alone,
    a_payload_of_states_goes_through_the_head,
    a_payload_of_logits_has_the_asked_type,
    the_head_makes_the_logits,
)


def what_cannot_be_loaded_is_named(load: Callable[[Path], Any], model: Model) -> None:
    """The refusals of every engine that loads checkpoints."""
    for prepare, said in ((_nothing, "no config.json there"), (_capped, "final_logit_softcapping is 30")):
        with tempfile.TemporaryDirectory() as folder:
            prepare(model.path, Path(folder))
            try:
                load(Path(folder))
            except InputError as error:
                assert said in str(error), error
            else:
                raise AssertionError(f"expected a refusal that says {said!r}")


def _nothing(source: Path, directory: Path) -> None:
    """An empty directory."""


def _capped(source: Path, directory: Path) -> None:
    for file in source.iterdir():
        content = file.read_bytes()
        if file.name == "config.json":
            content = content.replace(b"{", b'{"final_logit_softcapping": 30,', 1)
        (directory / file.name).write_bytes(content)


# -- generators: ``make(stop_ids)`` gives one whose longest sequence is 40 tokens -------------------------------

PROMPTS = [[2, 10, 11, 3], [2, 12], [2, 10, 13, 14, 15, 9, 3]]


def _generated(engine: Any, *budgets: int, ids: str = "abc", **how: Any) -> list[Any]:
    return list(engine.generate(list(ids), PROMPTS, [Sampling(max_new_tokens=n, **how) for n in budgets]))


@torch.no_grad()
def greedy_tokens_are_those_of_transformers(engine: Any, model: Model) -> None:
    for prompt, completion in zip(PROMPTS, _generated(engine, 4, 9, 6, temperature=0.0), strict=True):
        ids = list(prompt)
        for _ in completion.token_ids:
            ids.append(int(model.head(model.states(ids))[-1, : model.vocabulary].argmax()))
        assert list(completion.token_ids) == ids[len(prompt) :]
        near(torch.tensor(completion.logprobs), model.logprobs(ids, 1.0)[len(prompt) :])


@torch.no_grad()
def sampled_logprobs_are_of_the_whole_vocabulary_at_the_temperature(engine: Any, model: Model) -> None:
    for prompt, completion in zip(PROMPTS, _generated(engine, 8, 8, 8, temperature=0.6, top_k=3), strict=True):
        ids = [*prompt, *completion.token_ids]
        near(torch.tensor(completion.logprobs), model.logprobs(ids, 0.6)[len(prompt) :])
        shown = [model.logits(ids)[at].topk(3).indices.tolist() for at in range(len(prompt), len(ids))]
        assert all(token in some for token, some in zip(completion.token_ids, shown, strict=True))
        assert (completion.weight_version, completion.weight_version_max) == (engine.version, engine.version)


def the_seed_and_the_sample_say_what_is_drawn(engine: Any, model: Model) -> None:
    first, again, other = (_generated(engine, 9, 9, 9, seed=seed) for seed in (3, 3, 4))
    assert [c.token_ids for c in first] == [c.token_ids for c in again] != [c.token_ids for c in other]
    [alone] = engine.generate(["b"], PROMPTS[1:2], [Sampling(max_new_tokens=9, seed=3)])
    assert alone.token_ids == first[1].token_ids


def a_row_ends_at_its_budget(engine: Any, model: Model) -> None:
    done = _generated(engine, 1, 7, 3)
    assert [len(c.token_ids) for c in done] == [len(c.logprobs) for c in done] == [1, 7, 3]
    assert {c.finish_reason for c in done} == {"length"}


#: Of a generator without stop ids.
GENERATOR = (
    greedy_tokens_are_those_of_transformers,
    sampled_logprobs_are_of_the_whole_vocabulary_at_the_temperature,
    the_seed_and_the_sample_say_what_is_drawn,
    a_row_ends_at_its_budget,
)


def an_end_token_ends_the_row_and_is_kept(make: Callable[[list[int]], Any], model: Model) -> None:
    """*make* takes the stop ids."""
    free = _generated(make([]), 9, 9, 9, temperature=0.0)
    stop = list(free[0].token_ids)[2]
    for before, after in zip(free, _generated(make([stop]), 9, 9, 9, temperature=0.0), strict=True):
        tokens = list(before.token_ids)
        ends = tokens.index(stop) + 1 if stop in tokens else len(tokens)
        assert list(after.token_ids) == tokens[:ends]
        assert after.finish_reason == ("stop" if stop in tokens else "length")
