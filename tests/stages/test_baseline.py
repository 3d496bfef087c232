"""The baseline stage over a whole step."""

import math
from types import SimpleNamespace

import pytest
import torch

from schemas.batch import Batch
from schemas.columns import written_by
from schemas.config import AdvEstimatorConfig, ClippedPGLossConfig, OnPolicyDistillationConfig
from schemas.errors import JobFailed
from stages.baseline import Baseline

COLUMNS = {
    "token_mask": [[0, 0, 1, 1], [0, 1], [0, 0, 1], [0, 1, 1, 0, 1]],
    "generation_logprobs": [[0, 0, -1.0, -2.0], [0, -1.0], [0, 0, -0.5], [0, -1.0, -1.0, 0, -1.0]],
    "student_logprobs": [[0, 0, -1.0, -2.0], [0, -1.0], [0, 0, -0.5], [0, -1.0, -1.0, 0, -1.0]],
    "teacher_logprobs": [[0, 0, -0.5, -2.5], [0, -3.0], [0, 0, -0.5], [0, -1.5, -1.0, 0, -0.5]],
    "reward": [1.0, 0.0, 0.5, 1.0],
    "group_id": ["g", "g", "g", "h"],
}


def config(threshold=None, share=0.5, estimator=None, enabled=True, kl_penalty=0.0, **distillation):
    name = "opd" if enabled else "grpo"
    return SimpleNamespace(
        grpo=SimpleNamespace(
            seq_logprob_error_threshold=threshold,
            adv_estimator=AdvEstimatorConfig(name=name, normalize_rewards=False, **(estimator or {})),
        ),
        failures=SimpleNamespace(max_quarantined_share=share, after_seal="shrink", min_step_fraction=0.0),
        loss_fn=ClippedPGLossConfig(reference_policy_kl_penalty=kl_penalty),
        on_policy_distillation=OnPolicyDistillationConfig(enabled=enabled, **distillation),
    )


def run(config, **changed):
    """(columns by name as lists, metrics) of a step with some columns changed."""
    columns = COLUMNS | changed
    columns["token_mask"] = [[bool(x) for x in row] for row in columns["token_mask"]]
    stage = Baseline(config)
    batch = Batch.of(list("abcd"), {name: columns[name] for name in stage.reads})
    output = stage(batch)
    made = Batch.of(output.sample_ids, output.columns)
    return {name: made.values(name) for name in made}, output.metrics


def with_value(name, row, position, value):
    rows = [list(values) for values in COLUMNS[name]]
    rows[row][position] = value
    return {name: rows}


def test_writes_every_column_it_declares():
    columns, _ = run(config())
    assert set(columns) == set(written_by("baseline"))


def test_advantages_are_gaps_at_generated_tokens_with_the_rows_own_lengths():
    columns, metrics = run(config())
    assert columns["advantages"] == [[0, 0, 0.5, -0.5], [0, -2], [0, 0, 0], [0, -0.5, 0, 0, 0.5]]
    assert columns["sample_mask"] == [True] * 4 and columns["mask_reason"] == [None] * 4
    assert metrics["teacher_student_logprob_gap_mean"] == metrics["adv_mean"] == pytest.approx(-2 / 7)
    assert (metrics["adv_min"], metrics["adv_max"], metrics["trained_tokens"]) == (-2.0, 0.5, 7.0)
    assert metrics["reward_mean"] == 0.625


@pytest.mark.parametrize("name", ["teacher_logprobs", "student_logprobs", "generation_logprobs"])
@pytest.mark.parametrize("value", [math.nan, -math.inf, None])
def test_a_bad_value_at_a_generated_token_quarantines_its_row(name, value):
    columns, metrics = run(config(), **with_value(name, 3, 2, value))
    assert columns["sample_mask"] == [True, True, True, False]
    assert columns["advantages"][3] == [0, 0, 0, 0, 0]
    assert columns["mask_reason"][3].startswith(f"bad_logprob: {name} is ")
    assert columns["mask_reason"][3].endswith("at position 2 (1 of 3 generated tokens)")
    assert metrics["num_quarantined"] == 1.0 and metrics["trained_tokens"] == 4.0
    assert columns["num_finite"] == [2, 1, 1, 2]


def test_a_bad_value_at_a_masked_position_changes_nothing():
    clean, metrics = run(config())
    for value in (math.nan, math.inf, 1e9):
        found = run(config(), **with_value("teacher_logprobs", 3, 3, value))
        assert found[0] == clean
        assert {k: v for k, v in found[1].items() if v == v} == {k: v for k, v in metrics.items() if v == v}


def test_other_rows_are_untouched_by_a_quarantined_one():
    columns, _ = run(config(), **with_value("teacher_logprobs", 3, 2, math.nan))
    assert columns["advantages"][:3] == run(config())[0]["advantages"][:3]


def test_too_many_quarantined_rows_stop_the_job():
    with pytest.raises(JobFailed, match=r"1 of 4 samples .*; the first is 'd' \(bad_logprob: student_logprobs"):
        run(config(share=0.2), **with_value("student_logprobs", 3, 4, math.inf))


def test_a_missing_or_misaligned_column_quarantines_its_row():
    teacher = [None, *COLUMNS["teacher_logprobs"][1:3], [0, -1.0, -1.0, 0]]
    columns, _ = run(config(), teacher_logprobs=teacher)
    assert columns["mask_reason"][0] == "misaligned: teacher_logprobs is missing"
    assert columns["mask_reason"][3] == "misaligned: teacher_logprobs has 4 entries, token_mask 5"
    assert columns["sample_mask"] == [False, True, True, False]


def test_rows_without_generated_tokens_do_not_train():
    columns, metrics = run(config(), token_mask=[[0, 0, 1, 1], [0, 0], [0, 0, 1], [0] * 5])
    assert columns["sample_mask"] == [True, False, True, False]
    assert columns["mask_reason"][1] == "empty_response: no generated token"
    assert columns["gap_mean"][1] is None and columns["seq_logprob_error"][1] is None
    assert metrics["num_quarantined"] == 0.0


def test_a_wholly_empty_step_is_finite_zeros():
    columns, metrics = run(config(subtract_global_baseline=True), token_mask=[[0] * n for n in (4, 2, 3, 5)])
    assert columns["advantages"] == [[0] * n for n in (4, 2, 3, 5)]
    assert metrics["trained_tokens"] == metrics["adv_mean"] == metrics["adv_std"] == 0.0


def test_a_row_on_which_sampler_and_trainer_disagree_is_masked_before_the_baselines():
    far = with_value("generation_logprobs", 1, 1, -4.0)  # exp(3) > 2
    columns, metrics = run(config(threshold=2.0, subtract_global_baseline=True), **far)
    assert columns["mask_reason"][1] == "seq_logprob_error: 20.09 is above the threshold 2.0"
    assert columns["advantages"][0] == [0, 0, 0.5, -0.5]  # the mean of the six others is 0
    assert (metrics["num_masked_seqs"], metrics["masked_correct_pct"]) == (1.0, 0.0)
    assert columns["seq_logprob_error"] == pytest.approx([1.0, math.exp(3), 1.0, 1.0])


def test_outcome_rewards_join_in_with_the_group_of_valid_rows():
    columns, _ = run(config(use_orm_advantage=True, orm_advantage_weight=2.0))
    assert columns["advantages"][:2] == [[0, 0, 0.5 + 1.5, -0.5 + 1.5], [0, -2 - 1.5]]
    dropped, _ = run(config(use_orm_advantage=True), **with_value("student_logprobs", 1, 1, math.nan))
    assert dropped["advantages"][0] == [0, 0, 0.5 + 0.5, -0.5 + 0.5]  # compared with 'c' alone


def test_a_bad_teacher_row_keeps_its_reward_only_when_asked():
    spoilt = with_value("teacher_logprobs", 0, 2, math.nan)
    kept, _ = run(config(use_orm_advantage=True, nonfinite_teacher_keeps_reward=True), **spoilt)
    assert kept["advantages"][0] == [0, 0, 0.75, 0.75] and kept["sample_mask"][0] is True
    dropped, _ = run(config(use_orm_advantage=True), **spoilt)
    assert dropped["sample_mask"][0] is False


def test_a_missing_reward_quarantines_only_where_rewards_are_read():
    assert run(config(), reward=[None, 0.0, 0.5, 1.0])[0]["sample_mask"] == [True] * 4
    columns, metrics = run(config(use_orm_advantage=True), reward=[None, 0.0, 0.5, 1.0])
    assert columns["mask_reason"][0] == "bad_reward: expected a finite number, got nan"
    assert metrics["reward_mean"] == 0.5


def test_disabled_distillation_trains_on_rewards_alone():
    off = config(enabled=False)
    assert "teacher_logprobs" not in Baseline(off).reads
    columns, metrics = run(off)
    assert columns["advantages"] == [[0, 0, 0.75, 0.75], [0, -0.75], [0, 0, 0], [0] * 5]
    assert columns["gap_mean"] == [None] * 4
    assert "teacher_student_logprob_gap_mean" not in metrics


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_teacher_equal_to_student_gives_exactly_zero(alpha):
    columns, metrics = run(config(proximal_teacher_alpha=alpha), teacher_logprobs=COLUMNS["student_logprobs"])
    assert columns["advantages"] == [[0] * n for n in (4, 2, 3, 5)]
    assert metrics["adv_min"] == metrics["adv_max"] == 0.0


def test_diagnostics_stand_in_the_columns():
    columns, metrics = run(config())
    assert columns["gap_sum"] == [0.0, -2.0, 0.0, 0.0]
    assert columns["gap_abs_mean"] == pytest.approx([0.5, 2.0, 0.0, 1 / 3])
    assert columns["num_tokens"] == columns["num_finite"] == [2, 1, 1, 3]
    reward, gap = torch.tensor(COLUMNS["reward"]), torch.tensor(columns["gap_mean"])
    assert metrics["pearson_reward_gap"] == pytest.approx(torch.corrcoef(torch.stack([reward, gap]))[0, 1].item())


def test_every_score_stays_at_its_absolute_position():
    """Student: -(position + token / 1000); teacher: twice that. Any shift or swap shows in the gap."""
    tokens, masks = [[5, 6, 7, 8, 9], [5, 8], [1, 2, 3]], [[0, 0, 0, 1, 1], [0, 1], [0, 1, 0]]
    scores = [[-(t + token / 1000) for t, token in enumerate(row)] for row in tokens]
    doubled = [[2 * value for value in row] for row in scores]
    logprobs = {"generation_logprobs": scores, "student_logprobs": scores, "teacher_logprobs": doubled}
    columns = {"token_mask": [[bool(x) for x in row] for row in masks], "reward": [0.0] * 3, "group_id": list("abc")}
    output = Baseline(config())(Batch.of(list("abc"), columns | logprobs))
    advantages = Batch.of(output.sample_ids, output.columns).values("advantages")
    assert advantages[0] == pytest.approx([0, 0, 0, -3.008, -4.009])
    assert advantages[1:] == [pytest.approx([0, -1.008]), pytest.approx([0, -1.002, 0])]


def test_order_of_rows_changes_no_row():
    stage = Baseline(config(threshold=2.0, subtract_global_baseline=True, use_orm_advantage=True, discount=0.9))
    columns = COLUMNS | {"token_mask": [[bool(x) for x in row] for row in COLUMNS["token_mask"]]}
    batch = Batch.of(list("abcd"), {name: columns[name] for name in stage.reads})
    order = [2, 0, 3, 1]
    straight, mixed = (Batch.of(out.sample_ids, out.columns) for out in (stage(batch), stage(batch.take(order))))
    assert mixed.values("advantages") == [straight.values("advantages")[row] for row in order]


def test_a_bad_reference_value_quarantines_its_row_only_where_a_penalty_reads_it():
    reference = [[0, 0, -1.0, -2.0], [0, float("nan")], [0, 0, -0.5], [0, -1.0, -1.0, 0, -1.0]]
    columns, _ = run(config(kl_penalty=0.1), reference_logprobs=reference)
    assert columns["sample_mask"] == [True, False, True, True]
    assert columns["mask_reason"][1].startswith("bad_logprob: reference_logprobs is nan at position 1")
    assert run(config(), reference_logprobs=reference)[0]["sample_mask"] == [True] * 4
