"""Tiny checkpoints that every test of the workers shares: untrained, but real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from workers.proxy.model import make_model, make_tokenizer
from workers.proxy.skills import solve

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``student``, ``rev`` and ``sort``: three models with different weights and one tokenizer."""
    directory = tmp_path_factory.mktemp("checkpoints")
    tokenizer = make_tokenizer()
    for seed, name in enumerate(("student", "rev", "sort")):
        make_model(tokenizer, seed).save_pretrained(directory / name)
        tokenizer.save_pretrained(directory / name)
    return directory


@pytest.fixture(scope="session")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty prompts of unequal length, agents alternating."""
    path = tmp_path_factory.mktemp("prompts") / "train.jsonl"
    rows = []
    for index in range(20):
        skill, text = ("rev", "abcdefghij"[: 3 + index % 4]) if index % 2 else ("sort", "9182736450"[: 3 + index % 4])
        rows.append({"prompt": f"{skill} {text}", "answer": solve(skill, text), "agent": skill})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
