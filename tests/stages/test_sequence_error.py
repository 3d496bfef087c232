"""The sequence log-prob error mask beyond its golden numbers."""

import math

import pytest
import torch

from stages.sequence_error import mask_sequence_error, sequence_logprob_error
from tests.stages.ragged import JUNK

MASK = torch.tensor([[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]).bool()
STUDENT = torch.zeros(3, 4)
GENERATION = torch.tensor([[0, math.log(2), -math.log(4), 0], [0, math.log(1.5), 0, 0], [0, 0, 0, 0]])


def mask_at(threshold, generation=GENERATION, sample_mask=(1, 1, 1)):
    rewards = torch.tensor([1.0, 0.0, 1.0])
    return mask_sequence_error(generation, STUDENT, MASK, torch.tensor(sample_mask), rewards, threshold)


def test_error_is_the_mean_factor_between_the_engines():
    assert sequence_logprob_error(GENERATION, STUDENT, MASK).tolist() == pytest.approx([3.0, 1.5, 0.0])


@pytest.mark.parametrize(
    ("threshold", "kept"), [(2.0, [False, True, True]), (1.2, [False, False, True]), (None, [True] * 3)]
)
def test_rows_above_the_threshold_are_dropped(threshold, kept):
    assert mask_at(threshold).sample_mask_B.tolist() == kept


def test_statistics_leave_out_rows_without_tokens():
    metrics = mask_at(2.0).metrics
    assert metrics["min_seq_mult_prob_error"] == pytest.approx(1.5)
    assert metrics["mean_seq_mult_prob_error"] == pytest.approx(2.25)
    assert metrics["max_seq_mult_prob_error_after_mask"] == pytest.approx(1.5)
    assert (metrics["num_masked_seqs"], metrics["masked_correct_pct"]) == (1.0, 1.0)


def test_a_row_that_is_already_out_is_not_counted():
    result = mask_at(2.0, sample_mask=(0, 1, 1))
    assert result.metrics["num_masked_seqs"] == 0.0
    assert result.metrics["max_seq_mult_prob_error"] == pytest.approx(1.5)


@pytest.mark.parametrize("junk", JUNK)
def test_junk_at_masked_positions_changes_no_bit(junk):
    found, clean = mask_at(2.0, GENERATION.where(MASK, junk)), mask_at(2.0)
    assert torch.equal(found.error_B, clean.error_B) and found.metrics == clean.metrics
