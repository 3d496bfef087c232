"""A small run with vLLM as generator and as teachers; the trainer is transformers'."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.workers.runs import query, run, small_config
from workers.engines.hf.scorer import HFScorer

#: Roles of ended runs: the first engine to go would take vLLM's process groups along.
KEPT: list[Any] = []
TEACHERS = {"engine": "vllm", "gpus_per_node": 0, "precision": "fp32"}


@pytest.mark.parametrize("weight_update", ["drain", "abort"])
def test_every_prompt_is_sampled_scored_and_trained_and_every_sync_is_proved(
    checkpoints, prompt_file, tmp_path, weight_update
):
    config = small_config(
        checkpoints,
        prompt_file,
        policy__max_total_sequence_length=140,
        generator__engine="vllm",
        generator__weight_update=weight_update,
        on_policy_distillation__non_colocated_teachers={"enabled": True, "default_teacher_cfg": TEACHERS},
        grpo__max_num_steps=5,
        grpo__async_grpo={"enabled": False},
    )
    run_dir = run(config, tmp_path / "run", break_roles=lambda roles: KEPT.extend(roles.values()))
    assert query(run_dir, "select count(*) from samples where status = 'trained'") == [(20,)]
    assert query(run_dir, "select max(abs(generation_logprob - student_logprob)) < 1e-4 from tokens") == [(True,)]
    assert query(run_dir, "select distinct step - 1 - weight_version from samples") == [(0,)]
    assert query(run_dir, "select count(*) from events where kind = 'sync_failed'") == [(0,)]
    for teacher in ("rev", "sort"):
        rows = query(run_dir, f"select input_ids, teacher_logprobs from samples where teacher = '{teacher}'")
        scored = HFScorer.load(checkpoints / teacher).logprobs([ids for ids, _ in rows], 1.0)
        apart = [(torch.tensor(given) - truth).abs().max() for (_, given), truth in zip(rows, scored, strict=True)]
        assert len(apart) == 10 and max(apart) < 1e-4
