"""The policy-gradient loss: against a token-by-token reference, and what it must not depend on."""

import math
from dataclasses import replace

import pytest
import torch

from schemas.config import ClippedPGLossConfig
from stages.losses.counts import Counts
from stages.losses.metrics import combine_metrics
from stages.losses.policy_gradient import LossBatch, policy_gradient_loss
from stages.masking import trained
from tests.stages.ragged import CONFIGS, JUNK, columns_of, ragged_batch, rows_of


def run(batch, current, config, counts=None):
    """(loss, gradient, metrics) of one micro-batch."""
    current = current.detach().clone().requires_grad_()
    result = policy_gradient_loss(current, batch, counts or Counts.of(batch.token_mask, batch.sample_mask), config)
    result.loss.backward()
    return result.loss.detach(), current.grad, result.metrics


def reference_loss(batch, current, c):
    """The same loss, a Python float at a time."""
    mask = trained(batch.token_mask, batch.sample_mask)
    columns = {name: column.tolist() for name, column in columns_of(batch).items()}
    rows = []
    for row in range(len(mask)):
        at = [t for t in range(mask.shape[1]) if mask[row, t]]
        lp = {t: float(current[row, t]) for t in at}
        gen, student, adv, ref = ({t: columns[name][row][t] for t in at} for name in columns)
        student = lp if c.force_on_policy_ratio else student
        mean = lambda values: sum(values) / len(values) if values else 0.0  # noqa: E731
        log_r = {t: lp[t] - student[t] for t in at}
        log_w = {t: student[t] - gen[t] for t in at}
        if c.sequence_level_importance_ratios:
            log_r = dict.fromkeys(at, mean(list(log_r.values())))
            log_w = dict.fromkeys(at, sum(log_w.values()))
        low, high = c.truncated_importance_sampling_ratio_min or 0.0, c.truncated_importance_sampling_ratio
        kept_row = (
            c.truncated_importance_sampling_type != "seq-mask-tis"
            or low <= math.exp(mean(list(log_w.values()))) <= high
        )
        losses = []
        for t in at:
            r, w, a = math.exp(log_r[t]), math.exp(log_w[t]), adv[t]
            clipped = min(max(r, 1 - c.ratio_clip_min), 1 + c.ratio_clip_max)
            loss = max(-a * r, -a * (r if c.force_on_policy_ratio else clipped))
            if c.ratio_clip_c and a < 0:
                loss = min(loss, -c.ratio_clip_c * a)
            loss = -a * clipped * lp[t] if c.use_cispo else -a * lp[t] if c.disable_ppo_ratio else loss
            if c.truncated_importance_sampling_type == "tis":
                w = min(max(w, low), high)
            if c.truncated_importance_sampling_type == "icepop" and not low <= w <= high:
                w = 0.0
            loss *= w * kept_row if c.use_importance_sampling_correction else 1.0
            x = ref[t] - lp[t]
            kl = {"k1": -x, "k2": x * x / 2, "k3": math.exp(x) - 1 - x}[c.reference_policy_kl_type]
            losses.append(loss + c.reference_policy_kl_penalty * kl)
        rows.append(sum(losses) if c.token_level_loss else mean(losses))
    return sum(rows) / (int(mask.sum()) if c.token_level_loss else int(batch.sample_mask.sum()))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_equals_a_token_by_token_reference(config, seed):
    batch, current = ragged_batch(seed)
    assert float(run(batch, current, config)[0]) == pytest.approx(reference_loss(batch, current, config), abs=1e-8)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_junk_at_masked_positions_changes_no_bit(config, junk):
    batch, current = ragged_batch(dtype=torch.float32)
    mask = trained(batch.token_mask, batch.sample_mask)
    spoilt = {name: column.where(mask, junk) for name, column in columns_of(batch).items()}
    clean = run(batch, current, config)
    found = run(replace(batch, **spoilt), current.where(mask, junk), config)
    assert torch.equal(found[0], clean[0]) and torch.equal(found[1], clean[1])
    assert found[2] == clean[2]


@pytest.mark.parametrize("name", ["reinforce icepop", "ppo tis", "seq mask", "sequence level", "ppo"])
def test_gradient_is_that_of_the_loss(name):
    batch, current = ragged_batch()
    counts = Counts.of(batch.token_mask, batch.sample_mask)
    inputs = current.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda lp: policy_gradient_loss(lp, batch, counts, CONFIGS[name]).loss, inputs)


@pytest.mark.parametrize("split", [[[0, 1, 2, 3, 4]], [[4, 0], [3, 1, 2]], [[2], [1], [4], [0], [3]]])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_any_split_into_micro_batches_sums_to_the_same(config, split):
    batch, current = ragged_batch()
    counts = Counts.of(batch.token_mask, batch.sample_mask)
    loss, gradient, metrics = run(batch, current, config)
    parts = [run(rows_of(batch, rows), current[rows], config, counts) for rows in split]
    assert float(sum(part[0] for part in parts)) == pytest.approx(float(loss), abs=1e-12)
    assert torch.allclose(
        torch.cat([part[1] for part in parts]), gradient[[row for rows in split for row in rows]], atol=1e-12
    )
    assert combine_metrics(part[2] for part in parts) == pytest.approx(metrics, abs=1e-12)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_longer_neighbour_and_more_padding_change_no_gradient(config):
    batch, current = ragged_batch()
    wider = {name: torch.nn.functional.pad(column, (0, 5), value=1e9) for name, column in columns_of(batch).items()}
    mask = torch.nn.functional.pad(batch.token_mask, (0, 5))
    found = run(replace(batch, token_mask=mask, **wider), torch.nn.functional.pad(current, (0, 5)), config)
    assert torch.allclose(found[1][:, :-5], run(batch, current, config)[1], atol=1e-12)


def test_two_rows_of_two_and_eight_tokens_average_over_tokens():
    token_mask = torch.tensor([[0] + [1] * 2 + [0] * 6, [0] + [1] * 8]).bool()
    losses = torch.tensor([1.0, 3.0])[:, None].expand(2, 9)
    zero = torch.zeros(2, 9)
    batch = LossBatch(token_mask, torch.ones(2), zero, zero, losses)
    config = ClippedPGLossConfig(disable_ppo_ratio=True)
    whole = run(batch, -torch.ones(2, 9), config)[0]
    parts = [run(rows_of(batch, [row]), -torch.ones(1, 9), config, Counts(10, 2))[0] for row in (0, 1)]
    assert float(whole) == pytest.approx(2.6)
    assert float(sum(parts)) == pytest.approx(2.6)


def test_tool_tokens_are_not_the_students():
    token_mask = torch.tensor([[0, 0, 1, 1, 0, 0, 1]]).bool()
    advantages = torch.tensor([[9.0, 9.0, 1.0, 2.0, 9.0, 9.0, 4.0]])
    lp = torch.zeros(1, 7)
    batch = LossBatch(token_mask, torch.ones(1), lp, lp, advantages)
    _, gradient, _ = run(batch, lp, ClippedPGLossConfig(disable_ppo_ratio=True))
    assert torch.allclose(3 * gradient, torch.tensor([[0.0, 0, -1, -2, 0, 0, -4]]))


def test_rows_share_the_loss():
    batch, current = ragged_batch()
    counts = Counts.of(batch.token_mask, batch.sample_mask)
    result = policy_gradient_loss(current, batch, counts, CONFIGS["ppo"])
    assert float(result.row_losses_B.sum()) == pytest.approx(float(result.loss), abs=1e-12)
    assert result.row_losses_B[1] == result.row_losses_B[2] == 0


def test_a_batch_without_rows_is_a_finite_nothing():
    empty = torch.zeros(0, 4)
    batch = LossBatch(empty.bool(), torch.zeros(0), empty, empty, empty)
    loss, _, metrics = run(batch, empty, CONFIGS["ppo"], Counts(5, 2))
    assert float(loss) == 0.0
    assert metrics["probs_ratio_min"] == math.inf and metrics["probs_ratio_max"] == -math.inf


def test_gates_drop_weight_and_not_count():
    zero = torch.zeros(1, 4)
    generation = torch.tensor([[0.0, -3.0, 0.0, 0.0]])  # weight e^3 > 5 at the first trained token
    batch = LossBatch(torch.tensor([[0, 1, 1, 1]]), torch.ones(1), generation, zero, torch.ones(1, 4))
    loss, gradient, metrics = run(batch, zero - 1, CONFIGS["reinforce icepop"])
    assert float(loss) == pytest.approx(2 / 3)
    assert gradient.tolist() == [[0.0, 0.0, pytest.approx(-1 / 3), pytest.approx(-1 / 3)]]
    assert metrics["is_oob_ratio"] == pytest.approx(1 / 3)


def test_icepop_bounds_are_inclusive():
    ratios = torch.tensor([[1.0, 0.2, 5.0, 0.19, 5.01]], dtype=torch.float64)
    zero = torch.zeros_like(ratios)
    batch = LossBatch(torch.tensor([[0, 1, 1, 1, 1]]), torch.ones(1), -ratios.log(), zero, zero + 1)
    config = ClippedPGLossConfig(
        disable_ppo_ratio=True,
        use_importance_sampling_correction=True,
        truncated_importance_sampling_type="icepop",
        truncated_importance_sampling_ratio=5.0 + 1e-9,
        truncated_importance_sampling_ratio_min=0.2 - 1e-9,
    )
    assert run(batch, zero, config)[2]["is_oob_ratio"] == pytest.approx(0.5)


def test_an_infinite_weight_counts_as_zero():
    zero = torch.zeros(1, 3)
    generation = torch.tensor([[0.0, -200.0, 0.0]])
    batch = LossBatch(torch.tensor([[0, 1, 1]]), torch.ones(1), generation, zero, torch.ones(1, 3))
    config = ClippedPGLossConfig(disable_ppo_ratio=True, use_importance_sampling_correction=True)
    _, gradient, _ = run(batch, zero, config)
    assert gradient.tolist() == [[0.0, 0.0, -0.5]]


@pytest.mark.parametrize(("kind", "slope"), [("k1", 1 - 0.5), ("k2", -0.5 + 0.125), ("k3", None)])
def test_reference_kl_has_the_score_function_part(kind, slope):
    """d/dlp of exp(lp - sg lp)·k at reference - lp = 0.5 is dk/dlp + k."""
    if slope is None:
        slope = (1 - math.exp(0.5)) + (math.exp(0.5) - 1.5)
    token = torch.tensor([[0.0, -1.0]], dtype=torch.float64)
    batch = LossBatch(torch.tensor([[0, 1]]), torch.ones(1), token, token, 0 * token, token + 0.5)
    config = ClippedPGLossConfig(reference_policy_kl_penalty=2.0, reference_policy_kl_type=kind)
    assert float(run(batch, token, config)[1][0, 1]) == pytest.approx(2 * slope)


def test_no_gradient_where_the_kl_input_clamp_acts():
    token = torch.tensor([[0.0, -1.0, -1.0]], dtype=torch.float64)
    reference = torch.tensor([[0.0, -26.0, -2.0]], dtype=torch.float64)
    batch = LossBatch(torch.tensor([[0, 1, 1]]), torch.ones(1), token, token, 0 * token, reference)
    config = ClippedPGLossConfig(reference_policy_kl_penalty=1.0, kl_output_clamp_value=None)
    gradient = run(batch, token, config)[1][0]
    assert float(gradient[1]) == 0.0 and abs(float(gradient[2])) > 0.01


def test_a_missing_reference_is_said():
    batch, current = ragged_batch()
    with pytest.raises(ValueError, match="needs reference_logprobs"):
        run(replace(batch, reference_logprobs=None), current, CONFIGS["k3"])
