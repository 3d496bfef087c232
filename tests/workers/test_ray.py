"""The same runs with every role in a process of its own, some of which die, hang or raise."""

from __future__ import annotations

import os
import re
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


def before_stage(role, act) -> None:
    """Have ``act(batch)`` done before the stage of a role's claims on training rows."""
    stage = [*role.workers, *role.called][2 if role.name in ("generator", "trainer") else -1].stage
    inner = type(stage).__call__

    def acting(self, batch):
        act(batch)
        return inner(self, batch)

    stage.__class__ = type(type(stage).__name__, (type(stage),), {"__call__": acting})


class DiesOnce:
    """Kills its process in the middle of a claim, the first time."""

    def __init__(self, flag: Path, after: int = 1) -> None:
        self.flag = flag
        self.after = after

    def __call__(self, role) -> None:
        calls, flag, after = [0], self.flag, self.after

        def die(batch) -> None:
            calls[0] += 1
            if calls[0] > after and once(flag):
                os.kill(os.getpid(), signal.SIGKILL)

        before_stage(role, die)


class HangsOn:
    """Never returns from a batch that holds one sample, and leaves its process id where the clock looks.

    A *stopped* process says nothing any more either, and it stops only once.
    """

    def __init__(self, sample_id: str, folder: Path, stopped: bool = False) -> None:
        self.sample_id = sample_id
        self.folder = folder
        self.stopped = stopped

    def __call__(self, role) -> None:
        sample_id, folder, stopped = self.sample_id, self.folder, self.stopped

        def hang(batch) -> None:
            if sample_id in batch.sample_ids and not (stopped and folder.exists()):
                folder.mkdir(exist_ok=True)
                (folder / str(os.getpid())).touch()
                os.kill(os.getpid(), signal.SIGSTOP) if stopped else time.sleep(3600)

        before_stage(role, hang)


class StopsIdle:
    """Stops its process for ever between two claims, the first time, and leaves its id where the clock looks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, role) -> None:
        folder, turn = self.folder, role.turn

        def turning(ready=None):
            done = turn(ready)
            if role.workers[-1].samples and not folder.exists():
                folder.mkdir()
                (folder / str(os.getpid())).touch()
                os.kill(os.getpid(), signal.SIGSTOP)
            return done

        role.turn = turning


class Meet:
    """Step 2 is trained once the rows of step 3 are scored, and these are sampled only while it is being trained."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __call__(self, role) -> None:
        def train(batch) -> None:
            if batch.sample_ids[0] == "0000004-0":
                self.flag.touch()
                until(lambda: len(role.plane.rows("train", have=["teacher_logprobs"], sealed=False)) == 4)

        def generate(batch) -> None:
            if batch.sample_ids[0] == "0000008-0":
                until(self.flag.exists)

        before_stage(role, train if role.name == "trainer" else generate)


def until(holds) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, "nobody else works meanwhile"
        time.sleep(0.02)


class Raises:
    """Raises whenever it runs its stage."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self, role) -> None:
        reason = self.reason

        def fail(batch) -> None:
            raise RuntimeError(reason)

        before_stage(role, fail)


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


def test_generation_and_scoring_go_on_while_a_step_is_trained_and_the_events_show_it(
    checkpoints, prompt_file, tmp_path
):
    config, meet = small_config(checkpoints, prompt_file, generator__batch_size=4), Meet(tmp_path / "training")
    run_dir = run_on_ray(config, tmp_path / "run", {"generator": meet, "trainer": meet})
    page = Path(__file__).parents[2] / "docs" / "running.md"
    [shown] = re.findall(r'opd sql RUN "(with work .*)"', page.read_text())
    assert [(task, seconds > 0) for task, _, seconds in sorted(query(run_dir, shown))] == [
        ("generate", True),
        ("teacher", True),
    ]
    assert query(run_dir, "select count(*) from samples where status = 'trained'") == [(12,)]


def test_every_prompt_is_trained_once_within_the_window(checkpoints, prompt_file, tmp_path):
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


@pytest.mark.parametrize(("roles", "task"), [(["generator"], "generate"), (["teacher:rev", "teacher:sort"], "teacher")])
def test_a_sample_that_hangs_its_worker_times_out_alone_and_the_run_goes_on(
    checkpoints, prompt_file, tmp_path, roles, task
):
    config = small_config(checkpoints, prompt_file, failures__max_failed_share=0.25)
    hangs = HangsOn("0000002-0", tmp_path / "hanging")
    run_dir = run_on_ray(config, tmp_path / "run", dict.fromkeys(roles, hangs), clock=Impatient(hangs.folder))
    [(status, error)] = query(run_dir, "select status, error from samples where sample_id = '0000002-0'")
    said = rf"timed_out: ({'|'.join(roles)}) runs {task} on 1 samples \(0000002-0 …\) for \d+\.\d s"
    assert status == "failed" and re.fullmatch(said, error)
    assert query(run_dir, "select count(*) from samples where status = 'trained'") == [(12,)]


def test_a_generator_that_never_returns_ends_the_job_naming_it(checkpoints, prompt_file, tmp_path):
    config, hangs = small_config(checkpoints, prompt_file), HangsOn("0000000-0", tmp_path / "hanging")
    said = r"generator: lost 2 times, last: timed_out: generator runs generate on \d samples \(0000000-0 …\) for \d+"
    with pytest.raises(JobFailed, match=said):
        run_on_ray(config, tmp_path / "run", {"generator": hangs}, restarts=1, clock=Impatient(hangs.folder))


def test_a_process_that_says_nothing_any_more_is_replaced_and_its_rows_go_on(checkpoints, prompt_file, tmp_path):
    stops = HangsOn("0000002-0", tmp_path / "hanging", stopped=True)
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=5)
    run_dir = run_on_ray(config, tmp_path / "run", {"generator": stops}, clock=Impatient(stops.folder))
    lost = "select detail from events where kind = 'worker_lost' and worker = 'generator'"
    assert "timed_out: no sign of life from generator for " in query(run_dir, lost)[0][0] and trained_once(run_dir)


@pytest.mark.parametrize("role", ["generator", "teacher:sort"])
def test_a_process_that_stops_between_two_claims_costs_no_trained_step(checkpoints, prompt_file, tmp_path, role):
    config, stops = small_config(checkpoints, prompt_file, grpo__max_num_steps=5), StopsIdle(tmp_path / "idle")
    run_dir = run_on_ray(config, tmp_path / "run", {role: stops}, clock=Impatient(stops.folder))
    assert trained_once(run_dir) and query(run_dir, "select max(epoch) from events") == [(0,)]
    lost = query(run_dir, "select worker, detail from events where kind = 'worker_lost'")
    assert [worker for worker, _ in lost] == [role] and f"no sign of life from {role}" in lost[0][1]


def test_a_worker_says_in_its_log_when_it_is_ready_and_what_it_raised(checkpoints, prompt_file, tmp_path):
    config = small_config(checkpoints, prompt_file)
    with pytest.raises(JobFailed, match="no room for a trainer"):
        run_on_ray(config, tmp_path / "run", {"trainer": Raises("no room for a trainer")})
    logs = {log.stem: log.read_text() for log in (tmp_path / "run" / "logs").iterdir()}
    assert set(logs) == {"generator", "teacher-rev", "teacher-sort", "trainer"}
    assert all("is ready (process " in log for log in logs.values())
    assert "Traceback" in logs["trainer"] and "RuntimeError: no room for a trainer" in logs["trainer"]


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
