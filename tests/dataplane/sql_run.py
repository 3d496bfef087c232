"""A small run in a store, for the tests of SQL: one trained step, failures, work in flight, a vocabulary."""

from __future__ import annotations

import math

from dataplane import DataPlane

#: What the run's two tasks read; the last columns of a row come from the baseline.
PROMPT, GENERATED = ["prompt", "agent"], ["input_ids", "token_mask", "student_logprobs", "teacher_logprobs"]
COLUMNS = [*PROMPT, *GENERATED, "teacher", "sampling", "reward", "advantages", "sample_mask", "weight_version"]

#: rev: a prompt of one token, then two generated ones around a tool token. sort: a prompt of two, one generated.
TOKENS = {"rev": [5, 1, 9, 2], "sort": [5, 6, 3]}
MASKS = {"rev": [False, True, False, True], "sort": [False, False, True]}
STUDENT = {"rev": [0.0, -1.0, math.nan, -3.0], "sort": [0.0, 1e9, -0.5]}
TEACHER = {"rev": [0.0, -0.5, math.inf, -1.0], "sort": [0.0, 7.0, -1.0]}


def fill(plane: DataPlane) -> None:
    """Rows r1, r2 (rev) and s1, s2 (sort) in step 1, s2 masked; late waits, busy is claimed, bad and slow failed."""
    plane.create_partition("train", COLUMNS)
    plane.declare_task("train", "generate", reads=PROMPT, writes=GENERATED)
    plane.declare_task("train", "train", reads=[*GENERATED, "sample_mask"])
    ids = ["r1", "s1", "r2", "s2", "bad", "slow", "busy", "late"]
    agents = ["rev", "sort", "rev", "sort", "rev", "sort", "sort", "rev"]
    sampling = [{"temperature": 0.5, "top_k": k} for k in range(8)]
    plane.put("train", ids, {"prompt": ids, "agent": agents, "teacher": agents, "sampling": sampling})
    _generate(plane, ids[:4], agents[:4])
    _fail(plane)
    plane.seal(1, ["s1", "r1", "r2", "s2"])
    plane.put("train", ids[:4], {"sample_mask": [True, True, True, False]})
    plane.record_trained(1, {"trained_tokens": 5.0, "loss": 0.25, "gap_mean": 0.9, "tokens_per_s": 80.0})
    assert plane.claim("train", "generate", limit=1, worker="w7") is not None  # the first that waits: busy


def _generate(plane: DataPlane, ids: list[str], agents: list[str]) -> None:
    claim = plane.claim("train", "generate", limit=len(ids))
    assert claim is not None and claim.sample_ids == ids
    per_token = (TOKENS, MASKS, STUDENT, TEACHER)
    claim.commit({name: [of[agent] for agent in agents] for name, of in zip(GENERATED, per_token, strict=True)})
    plane.put("train", ids, {"reward": [1.0, 0.0, 1.0, 0.5], "advantages": [TEACHER[agent] for agent in agents]})


def _fail(plane: DataPlane) -> None:
    claim = plane.claim("train", "generate", limit=2)
    assert claim is not None
    claim.fail({"bad": "bad_logprob: NaN at position 3", "slow": "timed_out: no answer in 2 s"})


def validate(plane: DataPlane) -> None:
    """Two held-out rows, complete, in a partition with columns of its own."""
    plane.create_partition("validation", ["agent", "reward", "weight_version"])
    plane.declare_task("validation", "score", reads=["agent"])
    plane.put("validation", ["v1", "v2"], {"agent": ["rev", "sort"], "reward": [1.0, 0.0], "weight_version": [3, 3]})
    claim = plane.claim("validation", "score")
    assert claim is not None
    claim.commit({})
