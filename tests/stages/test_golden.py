"""Loss, gradient, sequence error and group baseline against numbers that another implementation gave."""

import json
import math
from pathlib import Path

import pytest
import torch

from schemas.config import ClippedPGLossConfig
from stages.group_baseline import group_baseline
from stages.losses.counts import Counts
from stages.losses.policy_gradient import LossBatch, policy_gradient_loss
from stages.sequence_error import mask_sequence_error

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
LOSSES = json.loads((GOLDEN / "loss.json").read_text())
ERRORS = json.loads((GOLDEN / "sequence_logprob_error.json").read_text())
BASELINES = json.loads((GOLDEN / "group_baseline.json").read_text())

#: Their name of a metric → ours.
RENAMED = {"gen_kl_error": "generation_kl_error"}
#: The weight of a loss that this package does not have; always 0.
FOREIGN = {"positive_nll_loss"}


def tensors(case, *names):
    return {name: torch.tensor(case[name]) for name in names if name in case}


@pytest.fixture(params=LOSSES, ids=lambda case: case["name"])
def golden_loss(request):
    """(case, current log-probs with a gradient, their loss)"""
    case = request.param
    columns = ("token_mask", "sample_mask", "generation_logprobs", "student_logprobs", "advantages")
    batch = LossBatch(**tensors(case, *columns, "reference_logprobs"))
    current = torch.tensor(case["current_logprobs"], requires_grad=True)
    counts = Counts.of(batch.token_mask, batch.sample_mask)
    return case, current, policy_gradient_loss(current, batch, counts, ClippedPGLossConfig(**case["config"]))


def test_loss_and_gradient_are_golden(golden_loss):
    case, current, result = golden_loss
    result.loss.backward()
    assert result.loss.item() == pytest.approx(case["expect"]["loss"], abs=1e-6)
    assert torch.allclose(current.grad, torch.tensor(case["expect"]["grad_current_logprobs"]), rtol=0, atol=1e-6)


def test_metrics_are_golden(golden_loss):
    case, _, result = golden_loss
    for name, expected in case["expect"]["metrics"].items():
        if name in FOREIGN or (case["config"].get("disable_ppo_ratio") and name.startswith("probs_ratio")):
            continue
        assert result.metrics[RENAMED.get(name, name)] == pytest.approx(expected, abs=1e-6), name


def test_row_losses_sum_to_the_loss(golden_loss):
    case, _, result = golden_loss
    assert math.isclose(float(result.row_losses_B.sum()), case["expect"]["loss"], abs_tol=1e-6)


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: f"threshold {case['threshold']}")
def test_sequence_error_is_golden(case):
    columns = tensors(case, "generation_logprobs", "student_logprobs", "token_mask", "sample_mask", "reward")
    result = mask_sequence_error(*columns.values(), threshold=case["threshold"])
    expected = dict(case["expect"])
    assert result.sample_mask_B.float().tolist() == expected.pop("sample_mask")
    assert result.metrics == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("case", BASELINES, ids=lambda case: f"leave one out {case['leave_one_out']}")
def test_group_baseline_is_golden_for_valid_rows(case):
    columns = tensors(case, "reward", "prompt", "valid")
    found = group_baseline(*columns.values(), leave_one_out=case["leave_one_out"])
    valid = columns["valid"].bool()
    baseline, std = (torch.tensor(case["expect"][name])[valid] for name in ("baseline", "std"))
    assert torch.allclose(found[0][valid], baseline, rtol=0, atol=1e-6)
    # Their std is a difference of float32 squares and is itself wrong by 4e-6: of {1.52, 1.47} it is 0.0353553.
    assert torch.allclose(found[1][valid], std, rtol=0, atol=1e-5)
