"""The same runs with every role in a process of its own, some of which die, hang or raise."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from schemas.errors import InputError, JobFailed
from tests.workers.ray_runs import Impatient, run_on_ray
from tests.workers.runs import query, small_config

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:ray", "ignore::ResourceWarning")


def once(flag: Path) -> bool:
    """True the first time, in whichever process."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class DiesOnce:
    """Kills its process in the middle of a claim, the first time."""

    def __init__(self, flag: Path, after: int = 1) -> None:
        self.flag = flag
        self.after = after

    def __call__(self, role) -> None:
        stage = [*role.workers, *role.called][2 if role.name in ("generator", "trainer") else -1].stage
        inner, calls, flag, after = type(stage).__call__, [0], self.flag, self.after

        def dying(self, batch):
            calls[0] += 1
            if calls[0] > after and once(flag):
                os.kill(os.getpid(), signal.SIGKILL)
            return inner(self, batch)

        stage.__class__ = type(type(stage).__name__, (type(stage),), {"__call__": dying})


class HangsOn:
    """Never returns from a batch that holds one sample, and leaves its process id where the clock looks."""

    def __init__(self, sample_id: str, folder: Path) -> None:
        self.sample_id = sample_id
        self.folder = folder

    def __call__(self, role) -> None:
        generate, sample_id, folder = role.engine.generate, self.sample_id, self.folder

        def hanging(sample_ids, prompts, sampling):
            if sample_id in sample_ids:
                folder.mkdir(exist_ok=True)
                (folder / str(os.getpid())).touch()
                time.sleep(3600)
            return generate(sample_ids, prompts, sampling)

        role.engine.generate = hanging


class RaisesOn:
    """A teacher that cannot score rows of one length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, role) -> None:
        engine, length = role.workers[-1].stage.engine, self.length
        score = engine.logprobs

        def broken(sequences, temperature):
            if any(len(ids) == length for ids in sequences):
                raise MemoryError("no room")
            return score(sequences, temperature)

        engine.logprobs = broken


def trained_once(run_dir) -> bool:
    return query(run_dir, "select count(*), count(distinct prompt_id) from samples where status = 'trained'") == [
        (20, 20)
    ]


def test_every_prompt_is_trained_once_within_the_window_and_generation_overlaps_training(
    checkpoints, prompt_file, tmp_path
):
    run_dir = run_on_ray(small_config(checkpoints, prompt_file, grpo__max_num_steps=5), tmp_path / "run")
    assert trained_once(run_dir)
    assert query(run_dir, "select max(step - 1 - weight_version) from samples where step is not null") == [(1,)]
    workers = query(run_dir, "select distinct worker from events where kind = 'committed' order by worker")
    assert workers == [("generator",), ("teacher:rev",), ("teacher:sort",), ("trainer",)]
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("role", ["generator", "teacher:sort", "trainer"])
def test_a_process_killed_while_it_holds_a_claim_is_replaced_and_nothing_is_lost(
    checkpoints, prompt_file, tmp_path, capfd, role
):
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=5, checkpointing__period=2)
    run_dir = run_on_ray(config, tmp_path / "run", {role: DiesOnce(tmp_path / "died")})
    assert (tmp_path / "died").exists() and trained_once(run_dir)
    assert query(run_dir, "select worker, count(*) from events where kind = 'worker_lost' group by worker") == [
        (role, 1)
    ]
    assert "raylet" not in "".join(capfd.readouterr())


def test_a_sample_that_hangs_the_generator_times_out_alone_and_the_run_goes_on(checkpoints, prompt_file, tmp_path):
    config = small_config(checkpoints, prompt_file, failures__max_failed_share=0.25)
    hangs = HangsOn("0000002-0", tmp_path / "hanging")
    run_dir = run_on_ray(config, tmp_path / "run", {"generator": hangs}, clock=Impatient(hangs.folder))
    [(status, error)] = query(run_dir, "select status, error from samples where sample_id = '0000002-0'")
    assert status == "failed" and error.startswith("timed_out: generator runs generate on 1 samples (0000002-0 …) for")
    assert query(run_dir, "select count(*) from samples where status = 'trained'") == [(12,)]


def test_a_generator_that_never_returns_ends_the_job_naming_it(checkpoints, prompt_file, tmp_path):
    config, hangs = small_config(checkpoints, prompt_file), HangsOn("0000000-0", tmp_path / "hanging")
    with pytest.raises(JobFailed, match=r"generator: lost 2 times, last: timed_out: generator runs generate on"):
        run_on_ray(config, tmp_path / "run", {"generator": hangs}, restarts=1, clock=Impatient(hangs.folder))


def test_a_teacher_that_raises_for_a_row_fails_that_row_alone(checkpoints, prompt_file, tmp_path):
    config = small_config(
        checkpoints, prompt_file, failures__max_failed_share=1.0, failures__attempts=1, failures__min_step_fraction=0.1
    )
    run_dir = run_on_ray(config, tmp_path / "run", {"teacher:rev": RaisesOn(16)})
    failed = query(run_dir, "select distinct len(input_ids), error from samples where status = 'failed'")
    assert failed == [(16, "engine_error: MemoryError: no room")]


def test_gpus_that_are_not_there_are_refused_at_once(checkpoints, prompt_file, tmp_path):
    with pytest.raises(InputError, match=r"1 GPUs are asked for \(generator 1\), it has 0"):
        run_on_ray(small_config(checkpoints, prompt_file, generator__gpus=1), tmp_path / "run")


def test_an_interpreter_that_is_not_there_is_refused_at_once(checkpoints, prompt_file, tmp_path):
    config = small_config(checkpoints, prompt_file, generator__python=str(tmp_path / ".venv-engines" / "python"))
    with pytest.raises(InputError, match=r"generator: no interpreter at .*; `make test-engines` makes it"):
        run_on_ray(config, tmp_path / "run")
