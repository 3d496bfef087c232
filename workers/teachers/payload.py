"""Full-vocabulary distillation in a run: how wide its payload is, and whether it fits, known before anything starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from schemas.config import RunConfig, get_opd_full_config
from stages.losses.memory import HeadShape, assert_full_fits, estimate_full_bytes
from stages.routing import teacher_configs
from workers.engines.hf.head import head_shape


def payload_width(config: RunConfig, vocabulary: int) -> int:
    """Numbers in a payload's vectors: the widest teacher's hidden size, or the vocabulary; 0 without a payload."""
    full = get_opd_full_config(config)
    if full is None:
        return 0
    return vocabulary if full.teacher_payload == "logits" else max(head.hidden for head in _heads(config))


def assert_payload_fits(config: RunConfig, vocabulary: int, store: Path) -> None:
    """Raise InputError when payload, heads or chunks of full-vocabulary distillation exceed what is free."""
    full = get_opd_full_config(config)
    if full is None:
        return
    heads = _heads(config) if full.teacher_payload == "hidden_states" else []
    tokens = config.grpo.num_samples_per_step * config.policy.max_total_sequence_length
    needed = estimate_full_bytes(full, tokens, vocabulary, heads, steps=_steps_kept(config))
    in_files = "://" not in (config.store.url or "")
    assert_full_fits(needed, _free_disk(store) if in_files else None, _free_device())


def _heads(config: RunConfig) -> list[HeadShape]:
    models = {teacher.model_name for teacher in teacher_configs(config.on_policy_distillation)}
    return [head_shape(model) for model in sorted(models)]


def _steps_kept(config: RunConfig) -> int:
    """Steps whose payload lies in the store at once."""
    steps, retention = config.grpo.max_num_steps, config.store.payload_retention
    if retention == "never":
        return steps
    return min(steps, retention + config.checkpointing.period + config.grpo.async_grpo.window)


def _free_disk(path: Path) -> int:
    there = next(parent for parent in (path, *path.resolve().parents) if parent.exists())
    return shutil.disk_usage(there).free


def _free_device() -> int | None:
    """Bytes free on the GPU, or in memory; None where nobody tells."""
    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
