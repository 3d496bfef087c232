"""What the job waits for, and since when: in the events, on the screen, and in the error that ends it."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from dataplane import open_plane
from schemas.errors import DeadlinePassed
from tests.workers.runs import query, run, small_config
from workers.control.waiting import Waiting
from workers.executors import CallLost, Status
from workers.reports.report import Reporter


class Slow:
    """An executor whose every look takes *seconds*, on a clock of its own."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now = seconds, 0.0
        self.news: list[str] = []
        self.statuses = {"generator": Status("generate", "train", ["a", "b"], 1.0, 12.5), "trainer": Status(seconds=3)}

    def wait(self, until, what, *, deadline_s, meanwhile) -> None:
        while not until():
            meanwhile()
            self.now += self.seconds
            if self.now > deadline_s:
                raise DeadlinePassed(what)


    def take_news(self) -> list[str]:
        taken, self.news = self.news, []
        return taken


class Loses(Slow):
    """An executor that loses each role's process the first time it runs a call."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.calls: list[str] = []

    def names(self) -> list[str]:
        return ["generator", "trainer"]

    def submit(self, role, method, *arguments):
        self.calls.append(role)
        lost = self.calls.count(role) == 1
        self.news += [f"{role} was lost"] * lost
        return SimpleNamespace(done=lambda: self.now > 2, result=partial(self._result, lost))

    def _result(self, lost: bool) -> str:
        if lost:
            raise CallLost
        return "done"


class Heard(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def news(self, line) -> None:
        self.said.append(line)

    def waits_long(self, what, seconds, workers) -> None:
        self.said.append(f"{what} {seconds:.0f} {workers}")


@pytest.fixture
def plane():
    with open_plane("memory://") as plane:
        yield plane


def waits(plane) -> list[str]:
    return [e["detail"] for e in plane.events().to_pylist() if e["kind"] in ("waiting", "waited")]


def test_a_long_wait_is_told_once_with_what_everybody_does(plane):
    executor, heard, looks = Slow(6.0), Heard(), iter(range(6))
    waiting = Waiting(plane, executor, heard, lambda: False, 100.0, clock=lambda: executor.now)
    waiting.until(lambda: next(looks) == 5, "four samples")
    assert heard.said == [
        "four samples 12 generator runs generate on 2 samples (a …) for 12.5 s; trainer waits for rows for 3.0 s"
    ]
    begun, ended = waits(plane)
    assert '"what":"four samples"' in begun.replace('": ', '":') and "30.0" in ended


def test_a_short_wait_is_no_event(plane):
    executor, looks = Slow(1.0), iter(range(6))
    Waiting(plane, executor, Reporter(), lambda: False, 100.0, clock=lambda: executor.now).until(
        lambda: next(looks) == 5, "four samples"
    )
    assert waits(plane) == []


def test_what_goes_on_meanwhile_is_asked_only_when_the_store_has_changed(plane):
    asked, looks = [], iter(range(9))

    def admit() -> bool:
        asked.append(plane.position())
        return False

    def holds() -> bool:
        look = next(looks)
        if look == 4:
            plane.event("something")
        return look == 8

    Waiting(plane, Slow(1.0), Reporter(), admit, 100.0, clock=lambda: 0.0).until(holds, "something")
    assert len(asked) == 2 and asked[0] < asked[1]


def test_what_ends_a_run_is_an_event_and_says_what_was_waited_for(checkpoints, prompt_file, tmp_path):
    def break_roles(roles):
        roles["teacher:sort"].turn = lambda: False

    with pytest.raises(DeadlinePassed, match="step 1: 4 generated and scored samples: nothing is left"):
        run(small_config(checkpoints, prompt_file), tmp_path / "run", break_roles=break_roles)
    [(detail,)] = query(run_dir_of(tmp_path), "select detail from events where kind = 'run_failed'")
    assert "step 1: 4 generated and scored samples" in detail


def run_dir_of(tmp_path):
    from workers.rundir import RunDir

    return RunDir(tmp_path / "run")


def test_a_call_that_was_lost_with_its_process_is_made_again_and_the_loss_is_told(plane):
    executor, heard = Loses(), Heard()
    waiting = Waiting(plane, executor, heard, lambda: False, 100.0, clock=lambda: executor.now)
    assert waiting.call("generator", "examine", what="its invariants") == "done"
    assert executor.calls == ["generator", "generator"] and heard.said == ["generator was lost"]


def test_of_a_call_to_all_only_those_that_were_lost_are_missing(plane):
    executor = Loses()
    waiting = Waiting(plane, executor, Reporter(), lambda: False, 100.0, clock=lambda: executor.now)
    executor.calls = ["trainer"]
    assert waiting.call_all("take_work", what="their work") == {"trainer": "done"}
