"""Weight syncs that did nothing are caught at the first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from schemas.errors import JobFailed
from tests.stages.fakes import PosLM
from tests.workers.runs import query, run, small_config
from workers.doctor.probe import fixed_sequences, same, scores
from workers.rundir import RunDir


def test_the_fixed_sequences_are_the_same_for_everybody_and_inside_the_vocabulary():
    assert [len(ids) for ids in fixed_sequences(11, 32)] == [3, 5, 8, 13]
    assert fixed_sequences(11, 32) == fixed_sequences(11, 130) and max(map(max, fixed_sequences(11, 32))) < 11


def test_one_of_them_is_longer_than_a_block_of_a_prefix_cache_where_that_fits():
    assert [len(ids) for ids in fixed_sequences(11, 131)] == [3, 5, 8, 13, 131]


def test_other_weights_are_told_apart():
    assert same(scores(PosLM(), 32), scores(PosLM(), 32) + 5e-4)
    assert not same(scores(PosLM(), 32), scores(PosLM(factor=1.01), 32))
    assert scores(PosLM(), 32).shape == torch.Size([29])


def test_half_precision_is_allowed_what_its_rounding_explains():
    assert same(torch.zeros(3), torch.full((3,), 0.1), "bfloat16") and not same(torch.zeros(3), torch.full((3,), 0.1))


def test_a_generator_that_ignores_the_update_stops_the_job_at_the_first_new_version(checkpoints, prompt_file, tmp_path):
    def break_roles(roles):
        engine = roles["generator"].engine

        def ignore(tensors, version):
            engine.version = version

        engine.load_weights = ignore

    config = small_config(checkpoints, prompt_file, trainer__optimizer__lr=0.05, grpo__async_grpo={"enabled": False})
    with pytest.raises(JobFailed, match=r"generator: after loading version 1 twice its scores of the fixed"):
        run(config, tmp_path / "run", break_roles=break_roles)
    failed = query(
        RunDir(tmp_path / "run"), "select worker, count(*) from events where kind = 'sync_failed' group by 1"
    )
    assert failed == [("generator", 2)]
    assert query(RunDir(tmp_path / "run"), "select * from events where kind = 'sync_verified'") == []


def test_a_sync_that_did_nothing_once_is_an_event_and_is_done_again(checkpoints, prompt_file, tmp_path):
    def break_roles(roles):
        engine = roles["generator"].engine
        load, calls = engine.load_weights, iter(range(100))
        engine.load_weights = lambda tensors, version: load({} if next(calls) == 1 else tensors, version)

    config = small_config(checkpoints, prompt_file, trainer__optimizer__lr=0.05, grpo__async_grpo={"enabled": False})
    run_dir = run(config, tmp_path / "run", break_roles=break_roles)
    assert query(run_dir, "select worker, version from events where kind = 'sync_failed'") == [("generator", 2)]
    events = query(run_dir, "select kind from events where version = 2 order by seq limit 4")
    assert [kind for (kind,) in events] == ["published", "sync_failed", "sync_verified", "committed"]
    assert query(run_dir, "select max(abs(generation_logprob - student_logprob)) < 1e-4 from tokens") == [(True,)]


def test_the_events_follow_a_version_until_every_generator_proved_it(checkpoints, prompt_file, tmp_path):
    run_dir = run(small_config(checkpoints, prompt_file, grpo__async_grpo={"enabled": False}), tmp_path / "run")
    page = Path(__file__).parents[2] / "docs" / "running.md"
    [shown] = re.findall(r'opd sql RUN "(select .*sync_verified.*)"', page.read_text())
    assert [(kind, version, worker) for _, kind, version, worker in query(run_dir, shown)] == [
        ("published", 0, None),
        ("published", 1, None),
        ("sync_verified", 1, "generator"),
        ("published", 2, None),
        ("sync_verified", 2, "generator"),
        ("published", 3, None),
    ]
