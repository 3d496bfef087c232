"""Outcome rewards beside a teacher, through the whole pipeline."""

from __future__ import annotations

import math

import pytest
import torch

from tests.workers.runs import query, run, small_config


def orm_config(checkpoints, prompt_file, **changes):
    return small_config(
        checkpoints,
        prompt_file,
        **{
            "data__train": [{"path": str(prompt_file), "checker": "tests.workers.rewards:stopped"}],
            "on_policy_distillation__use_orm_advantage": True,
            "on_policy_distillation__orm_advantage_weight": 0.5,
            "grpo__num_generations_per_prompt": 4,
            "grpo__adv_estimator": {"name": "opd", "normalize_rewards": False},
            "grpo__max_num_steps": 1,
            **changes,
        },
    )


def parts(run_dir):
    """(reward part of the advantage, whole advantages, gaps) of each row, at generated tokens."""
    rows = query(
        run_dir,
        "select 0.5 * (reward - (sum(reward) over (partition by group_id) - reward) / 3), token_mask, advantages, "
        "teacher_logprobs, student_logprobs from samples where step = 1 order by sample_id",
    )
    for reward, mask, advantages, teacher, student in rows:
        advantages, teacher, student = (torch.tensor(x)[torch.tensor(mask)] for x in (advantages, teacher, student))
        yield reward, advantages, teacher - student


def test_the_advantage_is_the_gap_plus_the_weighted_group_advantage(checkpoints, prompt_file, tmp_path):
    found = list(parts(run(orm_config(checkpoints, prompt_file), tmp_path / "run")))
    assert len(found) == 16 and len({round(reward, 6) for reward, _, _ in found}) > 1
    for reward, advantages, gap in found:
        torch.testing.assert_close(advantages, gap + reward, atol=1e-6, rtol=0)


def holed(roles):
    """The first row that the teacher of ``rev`` scores comes back without numbers."""
    engine = roles["teacher:rev"].engine
    scored, first = engine.logprobs, iter([True])

    def broken(sequences, temperature):
        out = scored(sequences, temperature)
        if next(first, False):
            out[0][:] = math.nan
        return out

    engine.logprobs = broken


@pytest.mark.parametrize("keeps", [True, False])
def test_a_row_without_teacher_scores_trains_on_its_reward_only_if_asked(checkpoints, prompt_file, tmp_path, keeps):
    config = orm_config(
        checkpoints,
        prompt_file,
        on_policy_distillation__nonfinite_teacher_keeps_reward=keeps,
        failures__max_quarantined_share=0.5,
        failures__stop_on_invariant=False,
    )
    run_dir = run(config, tmp_path / "run", break_roles=holed)
    [counts] = query(run_dir, "select samples, trained_samples, rows_quarantined from steps")
    assert counts == ((16, 16, 0) if keeps else (15, 15, 1))
    if keeps:
        [(reward, advantages, _)] = [row for row in parts(run_dir) if row[2].isnan().all()]
        assert advantages.tolist() == pytest.approx([reward] * len(advantages), abs=1e-6)
