"""A trainer of two ranks, one of which dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from schemas.errors import InputError
from tests.workers.ray_runs import run_on_ray
from tests.workers.runs import query, run, small_config

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:ray", "ignore::ResourceWarning")


class FollowerDies:
    """Kills the second rank in the middle of the third update."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __call__(self, role) -> None:
        update, calls, flag = role.engine.update, [0], self.flag
        if role.ranks.leader or flag.exists():
            return

        def dying():
            calls[0] += 1
            if calls[0] == 3:
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return update()

        role.engine.update = dying


def test_a_lost_rank_takes_its_trainer_back_to_the_checkpoint_and_every_prompt_is_trained_once(
    checkpoints, prompt_file, tmp_path
):
    config = small_config(
        checkpoints, prompt_file, grpo__max_num_steps=5, checkpointing__period=2, trainer__data_parallel_size=2
    )
    run_dir = run_on_ray(config, tmp_path / "run", {"trainer": FollowerDies(tmp_path / "died")})
    assert (tmp_path / "died").exists()
    assert query(run_dir, "select worker, count(*) from events where kind = 'worker_lost' group by worker") == [
        ("trainer", 1)
    ]
    assert query(run_dir, "select count(*), count(distinct prompt_id) from samples where status = 'trained'") == [
        (20, 20)
    ]
    assert {path.name for path in run_dir.logs.glob("trainer*.log")} == {"trainer.log", "trainer.1.log"}
    inline = run(small_config(checkpoints, prompt_file, grpo__max_num_steps=1), tmp_path / "inline")
    first = "select loss, grad_norm from steps where step = 1"
    assert query(run_dir, first)[0] == pytest.approx(query(inline, first)[0], rel=1e-4)


def test_several_ranks_in_one_process_are_refused(checkpoints, prompt_file, tmp_path):
    with pytest.raises(InputError, match=r"trainer: 2 ranks need processes of their own; use --executor ray"):
        run(small_config(checkpoints, prompt_file, trainer__data_parallel_size=2), tmp_path / "run")


def test_another_interpreter_in_this_process_is_refused(checkpoints, prompt_file, tmp_path):
    with pytest.raises(InputError, match=r"generator: asks for the interpreter /opt/python; use --executor ray"):
        run(small_config(checkpoints, prompt_file, generator__python="/opt/python"), tmp_path / "run")
