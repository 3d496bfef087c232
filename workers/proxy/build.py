"""Builds the proxy directory: ``teachers/{rev,sort}``, ``student``, ``prompts/{train,validation}.jsonl``.

Everything depends on the seed alone, on one machine bit for bit. The teachers are fluent; the student was
taught sloppily (see :func:`workers.proxy.skills.sloppy`), so that it holds both skills latently.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
import transformers

from schemas.errors import InputError
from workers.proxy.model import make_model, make_tokenizer
from workers.proxy.sft import NextBatch, fine_tune
from workers.proxy.skills import SKILLS, Problem, problems, sloppy

BATCH = 64
TEACHER_STEPS = {"rev": 150, "sort": 300}
STUDENT_STEPS = 500
TRAIN_PROMPTS, VALIDATION_PROMPTS = 20_480, 200

#: ``report(what, total_steps)`` opens a progress line and returns what each step calls with its loss.
Report = Callable[[str, int], Callable[[float], None]]


def build_proxy(directory: Path, *, seed: int = 0, report: Report = lambda what, total: lambda loss: None) -> None:
    """Write the whole proxy to *directory*, which must not exist; complete or absent. Raises InputError."""
    if directory.exists():
        raise InputError(f"{directory}: exists already; remove it or name another directory")
    transformers.utils.logging.disable_progress_bar()
    partial = directory.with_name(f".{directory.name}.{os.getpid()}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for skill in SKILLS:
            _train(partial / "teachers" / skill, seed + 1, TEACHER_STEPS[skill], _fluent(skill, seed), report)
        _train(partial / "student", seed + 6, STUDENT_STEPS, _sloppy(seed), report)
        _prompts(partial / "prompts" / "train.jsonl", TRAIN_PROMPTS, random.Random(seed + 11), held_out=False)
        _prompts(partial / "prompts" / "validation.jsonl", VALIDATION_PROMPTS, random.Random(seed + 99), held_out=True)
        partial.rename(directory)
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(partial, ignore_errors=True)


def _train(directory: Path, seed: int, steps: int, next_batch: NextBatch, report: Report) -> None:
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed)
    fine_tune(model, tokenizer, next_batch, steps, report(directory.name, steps))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _fluent(skill: str, seed: int) -> NextBatch:
    stream = problems(skill, random.Random(seed + 7), held_out=False)
    return lambda: [(p.prompt, p.answer) for p in islice(stream, BATCH)]


def _sloppy(seed: int) -> NextBatch:
    rng = random.Random(seed + 10)
    streams = [problems(skill, rng, held_out=False) for skill in SKILLS]
    share = BATCH // len(SKILLS)
    return lambda: [(p.prompt, sloppy(p, rng)) for stream in streams for p in islice(stream, share)]


def _prompts(path: Path, count: int, rng: random.Random, *, held_out: bool) -> None:
    """*count* prompts, agents alternating; validation prompts are distinct."""
    streams = [problems(skill, rng, held_out=held_out) for skill in SKILLS]
    picked = [_pick(stream, count // len(SKILLS), distinct=held_out) for stream in streams]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for row in zip(*picked, strict=True):
            file.writelines(json.dumps({"prompt": p.prompt, "answer": p.answer, "agent": p.skill}) + "\n" for p in row)


def _pick(stream: Iterator[Problem], count: int, *, distinct: bool) -> list[Problem]:
    if not distinct:
        return list(islice(stream, count))
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = next(stream)
        found.setdefault(problem.prompt, problem)
    return list(found.values())
