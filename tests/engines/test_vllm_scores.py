"""Scores of given tokens."""

from __future__ import annotations

import pytest
import torch

from schemas.errors import InputError
from stages.protocols import Ask
from tests.engines.conftest import VOCABULARY
from workers.engines.hf.scorer import HFScorer
from workers.engines.vllm.scorer import VLLMScorer

SEQUENCES = [[(7 * at + 3 * length) % VOCABULARY for at in range(length)] for length in (2, 150, 9, 31)]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_scores_equal_transformers_without_the_padding_of_the_head(generator, checkpoints, temperature):
    expected = HFScorer.load(checkpoints / "student", vocabulary_size=VOCABULARY).logprobs(SEQUENCES, temperature)
    found = VLLMScorer(generator.engine).logprobs(SEQUENCES, temperature)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine[0] == 0 and mine.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)


def test_the_longest_sequence_is_scored_whole_and_one_token_has_nothing_to_score(generator):
    longest = [at % VOCABULARY for at in range(generator.max_length)]
    found = VLLMScorer(generator.engine).logprobs([longest, [5]], 1.0)
    assert [len(row) for row in found] == [200, 1] and (found[0][1:] < 0).all() and found[1].tolist() == [0.0]


def test_what_vllm_cannot_ship_is_refused_by_name(generator):
    scorer, masks = VLLMScorer(generator.engine), [[True] * len(ids) for ids in SEQUENCES]
    with pytest.raises(InputError, match="does not give logits"):
        scorer.logits(SEQUENCES)
    with pytest.raises(InputError, match="does not give hidden states"):
        scorer.score(SEQUENCES, masks, 1.0, Ask("hidden_states"))
    with pytest.raises(InputError, match="logsumexp"):
        scorer.top_k(SEQUENCES, masks, 3, 1.0)
