"""Replay of runs that distil whole distributions, where payloads may be gone, and of top-k statistics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.runs import run, small_config
from workers.replay import replay

OPD = "on_policy_distillation__"
FULL = {
    "loss_fn": {},
    "grpo__max_num_steps": 2,
    "grpo__async_grpo": {"enabled": False},
    OPD + "full": {"enabled": True, "payload_dtype": "float32"},
}


@pytest.mark.parametrize("retention", ["never", 0])
def test_a_full_vocabulary_run(checkpoints: Path, prompt_file: Path, tmp_path: Path, retention) -> None:
    config = small_config(checkpoints, prompt_file, **FULL, store__payload_retention=retention)
    finished = run(config, tmp_path / "run")
    with replay(finished.path, 2) as again:
        teacher, student, baseline, train = again.run().stages
    kept = 4 if retention == "never" else 0
    assert teacher.columns["payload_hidden_states"].rows == kept
    assert teacher.verdict in ("identical", "within_tolerance")
    assert (student.verdict, baseline.verdict) == ("identical", "identical")
    assert train.verdict == ("identical" if kept else "not_run")
    assert kept or "payload_hidden_states" in str(train.reason)


def test_what_if_a_loss_over_distributions_had_been_another_needs_its_model(
    checkpoints: Path, prompt_file: Path, tmp_path: Path
) -> None:
    finished = run(small_config(checkpoints, prompt_file, **FULL, store__payload_retention="never"), tmp_path / "run")
    with replay(finished.path, 2) as again:
        [train] = again.run("train", overrides={"on_policy_distillation.full.divergence": "forward_kl"}).stages
    assert str(train.weights).startswith("version 1") and train.verdict == "different"


def test_top_k_statistics_are_stages_too(checkpoints: Path, prompt_file: Path, tmp_path: Path) -> None:
    changes = {"log_topk_stats": True, "topk_stats_k": 3, "topk_stats_log_period": 1}
    topk = {OPD + name: value for name, value in changes.items()}
    finished = run(small_config(checkpoints, prompt_file, grpo__max_num_steps=1, **topk), tmp_path / "run")
    with replay(finished.path, 1) as again:
        [stage] = again.run("topk_student").stages
    assert stage.verdict == "identical" and stage.columns["topk_stats_student_ids"].rows == 4
