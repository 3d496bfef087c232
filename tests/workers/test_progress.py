"""What a person sees of a run: live, in lines, and in the table that closes it."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.workers.runs import query, run, small_config
from workers.executors import Status
from workers.reports.progress import Progress
from workers.reports.report import Reporter
from workers.rundir import RunDir


@pytest.fixture
def progress(checkpoints, prompt_file, tmp_path):
    console = Console(file=io.StringIO(), width=160)
    return Progress(small_config(checkpoints, prompt_file), RunDir(tmp_path / "run"), console=console)


def drawn(progress) -> str:
    progress.console.print(progress)
    return progress.console.file.getvalue()


def now(**changes):
    fields = {
        "waits_for": "step 3: training",
        "waits_s": 7.2,
        "open_rows": 1536,
        "held": "",
        "statuses": lambda: {"generator": Status("generate", "train", ["a7", "b"], 1.0, 4.6), "trainer": Status()},
    }
    return SimpleNamespace(**{**fields, **changes})


def test_the_screen_shows_what_is_waited_for_and_what_every_worker_does(progress):
    progress.watch(now())
    seen = drawn(progress)
    assert "waits for step 3: training, 7 s; 1,536 rows are in no step yet" in seen and "held" not in seen
    assert [line.split() for line in seen.splitlines() if line.startswith(("generator", "trainer"))] == [
        ["generator", "runs", "generate", "on", "2", "samples", "(a7", "…)", "5", "s"],
        ["trainer", "waits", "for", "rows", "0", "s"],
    ]


def test_the_screen_names_the_bound_that_holds_admission_back(progress):
    progress.watch(now(held="store.max_buffered_bytes (1,000)"))
    assert "; admission held by store.max_buffered_bytes (1,000)" in drawn(progress)


def test_in_a_pipe_a_long_wait_is_a_line(progress):
    progress.waits_long("step 3: training", 10.4, "trainer runs train on 4 samples (a …) for 10.1 s")
    said = progress.console.file.getvalue()
    assert said == "waiting for step 3: training since 10 s: trainer runs train on 4 samples (a …) for 10.1 s\n"


def test_the_closing_table_of_a_resumed_run_begins_where_the_run_began(progress, capsys):
    progress.resumed({0: {"accuracy": 0.25, "exact_kl": 2.5}, 2: {"accuracy": 0.5, "exact_kl": 1.5}})
    progress.validated(3, {"accuracy": 0.75, "exact_kl": 0.5})
    progress._close()
    seen = capsys.readouterr().out
    assert "version 0" in seen and "2.500" in seen and "version 3" in seen and "1.500" not in seen


class Remembers(Reporter):
    def __init__(self) -> None:
        self.before = {}
        self.now = {}

    def resumed(self, validations) -> None:
        self.before = dict(validations)

    def validated(self, version, metrics) -> None:
        self.now[version] = dict(metrics)


def test_a_resumed_run_knows_what_was_measured_before_and_measures_no_version_twice(
    checkpoints, prompt_file, tmp_path
):
    held_out = dict(data__validation=[{"path": str(prompt_file)}], validation__period=2)
    first, second = Remembers(), Remembers()
    run(small_config(checkpoints, prompt_file, grpo__max_num_steps=1, **held_out), tmp_path / "run", report=first)
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=3, **held_out)
    run_dir = run(config, tmp_path / "run", resume=True, report=second)
    assert first.before == {} and sorted(first.now) == [0, 1]
    assert second.before == first.now and second.before[0]["exact_kl"] > 0 and sorted(second.now) == [2, 3]
    assert query(run_dir, "select count(*) from events where kind = 'validated'") == [(4,)]


def test_steps_tell_age_buffers_and_the_speed_of_every_stage(checkpoints, prompt_file, tmp_path):
    config = small_config(checkpoints, prompt_file, generator__batch_size=12, grpo__max_num_steps=4)
    run_dir = run(config, tmp_path / "run")
    ages = query(run_dir, "select step, staleness_mean, staleness_max, buffered_rows from steps order by step")
    assert ages[0][1:3] == (0.0, 0.0) and ages[1][1:3] == (1.0, 1.0) and ages[0][3] in (4.0, 8.0)
    assert query(
        run_dir,
        "select count(*) from steps where generate_tokens_per_s > 0 and teacher_tokens_per_s > 0 "
        "and train_tokens_per_s > 0 and buffered_bytes > 0",
    ) == [(2,)]
