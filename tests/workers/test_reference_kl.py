"""The KL penalty to the student that the run started from."""

from __future__ import annotations

import pytest
import torch

from tests.workers.runs import query, run, small_config
from workers.engines.hf.scorer import HFScorer

PENALTY = {"loss_fn__reference_policy_kl_penalty": 0.5, "loss_fn__reference_policy_kl_type": "k3"}


def test_reference_logprobs_are_the_initial_students_however_far_training_went(checkpoints, prompt_file, tmp_path):
    config = small_config(checkpoints, prompt_file, **PENALTY, trainer={"optimizer": {"lr": 1e-2}})
    run_dir = run(config, tmp_path / "run")
    rows = query(run_dir, "select input_ids, reference_logprobs, student_logprobs from samples where step = 3")
    again = HFScorer.load(checkpoints / "student").logprobs([ids for ids, _, _ in rows], 1.0)
    for (_, reference, student), expected in zip(rows, again, strict=True):
        torch.testing.assert_close(torch.tensor(reference), expected, atol=1e-4, rtol=0)
        assert (torch.tensor(student) - expected).abs().max() > 1e-3


def test_the_penalty_is_zero_at_first_and_reported_later(checkpoints, prompt_file, tmp_path):
    config = small_config(checkpoints, prompt_file, **PENALTY, trainer={"optimizer": {"lr": 1e-2}})
    run_dir = run(config, tmp_path / "run")
    penalties = [value for (value,) in query(run_dir, "select kl_penalty from steps order by step")]
    assert penalties[0] == pytest.approx(0.0, abs=1e-9) and penalties[2] > 1e-4


def test_the_penalty_changes_what_is_learnt(checkpoints, prompt_file, tmp_path):
    changes = {"trainer": {"optimizer": {"lr": 1e-2}}}
    losses = [
        query(run(small_config(checkpoints, prompt_file, **changes, **more), tmp_path / name), "select loss from steps")
        for name, more in (("free", {}), ("held", PENALTY))
    ]
    assert losses[0] != losses[1]


def test_without_a_penalty_nothing_is_scored_for_it(checkpoints, prompt_file, tmp_path):
    run_dir = run(small_config(checkpoints, prompt_file, grpo__max_num_steps=1), tmp_path / "run")
    assert query(run_dir, "select count(reference_logprobs) from samples") == [(0,)]
