"""Sampling: what is drawn, when it ends, and which log-probs are recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from schemas.errors import InputError
from stages.protocols import Sampling
from tests.engines.conftest import VOCABULARY
from workers.doctor.probe import same, scores
from workers.engines.hf.generator import HFGenerator
from workers.engines.hf.scorer import HFScorer
from workers.engines.vllm.engine import read_checkpoint
from workers.engines.vllm.generator import VLLMGenerator
from workers.engines.vllm.scorer import VLLMScorer

IDS = ["a", "b", "c"]
PROMPTS = [[2, 10, 11, 1, 3], [2, 12, 1, 3], [2, 10, 13, 14, 15, 1, 3]]
SAMPLING = Sampling(max_new_tokens=20, seed=3)


def assert_scored_by(path, completions, temperature=1.0):
    """Log-probs are those that transformers gives to the same tokens under the weights at *path*."""
    sequences = [prompt + list(c.token_ids) for prompt, c in zip(PROMPTS, completions, strict=True)]
    scored = HFScorer.load(path, vocabulary_size=VOCABULARY).logprobs(sequences, temperature)
    for prompt, completion, values in zip(PROMPTS, completions, scored, strict=True):
        torch.testing.assert_close(torch.tensor(completion.logprobs), values[len(prompt) :], atol=1e-4, rtol=0)


def test_greedy_equals_transformers(generator, checkpoints):
    reference = HFGenerator.load(checkpoints / "student", [1], max_length=200, vocabulary_size=VOCABULARY)
    greedy = [replace(SAMPLING, temperature=0.0)] * 3
    expected, found = (engine.generate(IDS, PROMPTS, greedy) for engine in (reference, generator))
    assert [list(c.token_ids) for c in found] == [list(c.token_ids) for c in expected]
    assert_scored_by(checkpoints / "student", found)


@pytest.mark.parametrize("cut", [{}, {"top_p": 0.5}, {"top_k": 4}])
def test_raw_logprobs_are_the_whole_vocabularys_at_the_temperature_whatever_may_be_drawn(generator, checkpoints, cut):
    done = generator.generate(IDS, PROMPTS, [replace(SAMPLING, temperature=0.5, **cut)] * 3)
    assert_scored_by(checkpoints / "student", done, temperature=0.5)


def test_rows_of_several_temperatures_are_each_sampled_at_their_own(generator):
    how = [replace(SAMPLING, temperature=temperature) for temperature in (0.0, 0.5, 1.0)]
    mixed = generator.generate(IDS, PROMPTS, how)
    alone = [generator.generate([i], [p], [h])[0] for i, p, h in zip(IDS, PROMPTS, how, strict=True)]
    assert [c.token_ids for c in mixed] == [c.token_ids for c in alone]


def test_a_sample_is_the_same_alone_and_in_company_and_another_with_another_seed(generator):
    batch = generator.generate(IDS, PROMPTS, [SAMPLING] * 3)
    assert generator.generate(["b"], PROMPTS[1:2], [SAMPLING])[0] == batch[1]
    assert generator.generate(["b"], PROMPTS[1:2], [replace(SAMPLING, seed=4)])[0].token_ids != batch[1].token_ids
    assert generator.generate(["x"], PROMPTS[1:2], [SAMPLING])[0].token_ids != batch[1].token_ids


def test_a_response_keeps_its_end_token_and_stops_at_its_budget(generator):
    [free] = generator.generate(["a"], PROMPTS[:1], [SAMPLING])
    end = free.token_ids[3]
    [ended] = VLLMGenerator(generator.engine, [end]).generate(["a"], PROMPTS[:1], [SAMPLING])
    first = list(free.token_ids).index(end)
    assert (ended.token_ids, ended.finish_reason) == (free.token_ids[: first + 1], "stop")
    [cut] = VLLMGenerator(generator.engine, []).generate(["a"], PROMPTS[:1], [replace(SAMPLING, max_new_tokens=2)])
    assert (cut.token_ids, cut.finish_reason) == (free.token_ids[:2], "length")


def test_processed_logprobs_are_at_the_temperature_and_refuse_a_cut_vocabulary(processed, checkpoints):
    generator = VLLMGenerator(processed, [1], logprobs_mode="processed")
    done = generator.generate(IDS, PROMPTS, [replace(SAMPLING, temperature=0.5)] * 3)
    assert_scored_by(checkpoints / "student", done, temperature=0.5)
    greedy = generator.generate(IDS, PROMPTS, [replace(SAMPLING, temperature=0.0)] * 3)
    assert_scored_by(checkpoints / "student", greedy)
    assert same(scores(generator.scorer(), 200), scores(VLLMScorer(processed), 200))
    with pytest.raises(InputError, match=r"processed log-probs .* top_p 0\.5"):
        generator.generate(IDS, PROMPTS, [replace(SAMPLING, top_p=0.5)] * 3)


def test_requests_that_run_when_weights_are_published_begin_again_under_the_new_ones(generator, checkpoints):
    published, budgets = iter([0, 7]), [3, 20, 20]  # looked at after 8 and after 16 steps

    def load():
        generator.load_weights(read_checkpoint(checkpoints / "rev"), 7)

    endless = VLLMGenerator(generator.engine, [])
    endless.follow(lambda: next(published, 7), lambda: (load(), setattr(endless, "version", 7)))
    done = endless.generate(IDS, PROMPTS, [replace(SAMPLING, max_new_tokens=budget) for budget in budgets])
    versions = [(c.weight_version, c.weight_version_max, len(c.token_ids)) for c in done]
    assert versions == [(0, 0, 3), (7, 7, 20), (7, 7, 20)]
    assert_scored_by(checkpoints / "rev", [replace(done[0], token_ids=[], logprobs=[]), *done[1:]])


def test_requests_that_are_not_told_of_new_weights_finish_under_the_old_ones(generator):
    done = generator.generate(IDS, PROMPTS, [SAMPLING] * 3)
    assert {(c.weight_version, c.weight_version_max) for c in done} == {(0, 0)}
    assert generator.engine.llm.llm_engine.get_num_unfinished_requests() == 0
