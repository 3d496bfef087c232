"""Weight syncs that did nothing are caught at the first."""

from __future__ import annotations

import pytest
import torch

from schemas.errors import JobFailed
from tests.stages.fakes import PosLM
from tests.workers.runs import query, run, small_config
from workers.probe import fixed_sequences, same, scores
from workers.rundir import RunDir


def test_the_fixed_sequences_are_the_same_for_everybody_and_inside_the_vocabulary():
    assert [len(ids) for ids in fixed_sequences(11)] == [3, 5, 8, 13]
    assert fixed_sequences(11) == fixed_sequences(11) and max(map(max, fixed_sequences(11))) < 11


def test_other_weights_are_told_apart():
    assert same(scores(PosLM()), scores(PosLM()) + 5e-4)
    assert not same(scores(PosLM()), scores(PosLM(factor=1.01)))
    assert scores(PosLM()).shape == torch.Size([29])


def test_a_generator_that_ignores_the_update_stops_the_job_at_the_first_new_version(checkpoints, prompt_file, tmp_path):
    def break_roles(roles):
        engine = roles["generator"].engine

        def ignore(tensors, version):
            engine.version = version

        engine.load_weights = ignore

    config = small_config(checkpoints, prompt_file, trainer__optimizer__lr=0.05)
    with pytest.raises(JobFailed, match=r"generator: after loading version \d twice its scores of four fixed"):
        run(config, tmp_path / "run", break_roles=break_roles)
    failed = query(
        RunDir(tmp_path / "run"), "select worker, count(*) from events where kind = 'sync_failed' group by 1"
    )
    assert failed == [("generator", 2)]
