"""Admission, samplers, staleness and back-pressure over a real store, whatever finishes first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane import open_plane
from schemas.columns import TRAIN
from schemas.config.recipe import validate
from stages.checkers import reward
from stages.generate import Generate
from stages.protocols import Completion, Sampling
from tests.stages.fakes import Letters
from workers.control.admission import admit, group_of
from workers.control.measures import Measures
from workers.control.samplers import overtaking_window
from workers.control.waiting import Waiting
from workers.control.window import Window
from workers.data import Prompt, PromptSet
from workers.executors.inline import InlineExecutor
from workers.loop import Worker
from workers.partitions import create_partitions
from workers.reports.report import Reporter

PROMPTS, GENERATIONS, STEPS = 4, 2, 6


def make_config(store=None, failures=None, **how):
    return validate(
        {
            "data": {"train": [{"path": "prompts.jsonl"}]},
            "policy": {"model": "student"},
            "store": store or {},
            "failures": {"max_failed_share": 1.0, "min_step_fraction": 0.01, **(failures or {})},
            "grpo": {
                "num_prompts_per_step": PROMPTS,
                "num_generations_per_prompt": GENERATIONS,
                "async_grpo": {"enabled": True, "max_staleness": 1, **how},
            },
        }
    )


class World:
    """A store in memory whose generator finishes what *draw* says."""

    def __init__(self, plane, config) -> None:
        create_partitions(plane, config, 32)
        self.plane, self.config = plane, config
        self.window = Window(plane, config, ("input_ids",))
        self.sealed: list[list[str]] = []
        self.most_open = 0

    def admit(self) -> None:
        published, first = len(self.sealed), self.window.admitted
        room = self.window.room(len(self.sealed) + 1, published)
        found = [Prompt(f"p{n}", "text", None, "", "rev", "exact") for n in range(first, first + room)]
        prompts = PromptSet.of(found).routed(lambda agent: None)
        groups = {f"{first + row:07d}": row for row in range(room)}
        if groups:
            how = dict(sampling=Sampling(), generations=GENERATIONS)
            self.window.add(admit(self.plane, TRAIN, groups, prompts.table, **how))
        self.most_open = max(self.most_open, len(self.window.open))

    def finish(self, choose, broken=()) -> None:
        """Generate the rows that *choose* picks of those that wait, with the newest weights."""
        claim = self.plane.claim(TRAIN, "generate", lease_s=1000)
        if claim is None:
            return
        rows = choose(claim.sample_ids)
        failed = {row: "empty_response: nothing" for row in rows if row in broken}
        good = [row for row in rows if row not in failed]
        version, size = len(self.sealed), len(good)
        claim.commit(
            {
                "input_ids": [[1, 2]] * size,
                "token_mask": [[False, True]] * size,
                "generation_logprobs": [[0.0, -1.0]] * size,
                "weight_version": [version] * size,
                "weight_version_max": [version] * size,
            },
            sample_ids=good,
            failed=failed,
        )
        claim.release()

    def seal(self) -> bool:
        self.window.settle()
        members = self.window.next_members(len(self.sealed) + 1)
        if members:
            self.plane.seal(len(self.sealed) + 1, members)
            self.sealed.append(members)
        return bool(members)

    def ages(self) -> list[int]:
        """Of every sealed row."""
        return [
            step - version
            for step, members in enumerate(self.sealed)
            for version in self.plane.get(TRAIN, members, ["weight_version"]).values("weight_version")
        ]


@pytest.fixture
def plane():
    with open_plane("memory://") as plane:
        yield plane


@pytest.mark.parametrize("sampler", ["in_order", "windowed", "first_ready"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_is_finished_first_every_step_is_whole_fresh_and_nobody_starves(sampler, data):
    config = make_config(sampler=sampler)
    broken = data.draw(st.sets(st.sampled_from([f"{g:07d}-{i}" for g in range(24) for i in range(2)]), max_size=4))
    with open_plane("memory://") as plane:
        world = World(plane, config)
        while len(world.sealed) < STEPS:
            world.admit()
            world.finish(lambda rows: data.draw(st.sets(st.sampled_from(rows), min_size=1).map(sorted)), broken)
            world.seal()
        trained = [row for members in world.sealed for row in members]
        assert len(trained) == len(set(trained)) and not set(trained) & broken
        assert all(len({group_of(row) for row in members}) == PROMPTS for members in world.sealed)
        assert min(world.ages()) >= 0 and max(world.ages()) <= 1 and world.most_open <= 2 * PROMPTS
        order = [int(group) for members in world.sealed for group in dict.fromkeys(map(group_of, members))]
        reach = overtaking_window(config.grpo)
        assert all(sum(other > place for other in order[:at]) < reach for at, place in enumerate(order))


def late(place):
    """Everything but the rows of one group."""
    return lambda rows: [row for row in rows if int(group_of(row)) != place]


def test_a_late_group_holds_up_only_a_run_in_order(plane):
    world = World(plane, make_config())
    world.admit()
    world.finish(late(1))
    assert not world.seal()
    world.finish(lambda rows: rows)
    assert world.seal() and [group_of(row)[-1] for row in world.sealed[0][::2]] == ["0", "1", "2", "3"]


def test_a_late_group_that_was_overtaken_is_sampled_anew_by_weights_fresh_enough(plane):
    world = World(plane, make_config(sampler="first_ready"))
    world.admit()
    world.finish(late(1))
    assert world.seal() and [group_of(row)[-1] for row in world.sealed[0][::2]] == ["0", "2", "3", "4"]
    world.finish(lambda rows: [row for row in rows if int(group_of(row)) == 1])
    for _ in range(2):
        world.admit()
        world.finish(lambda rows: rows)
        assert world.seal()
    assert "0000001-0" in world.sealed[1] and max(world.ages()) <= 1


def test_a_row_too_old_for_the_step_is_generated_again_and_others_take_its_groups_place(plane):
    world = World(plane, make_config(sampler="first_ready"))
    world.admit()
    world.finish(lambda rows: [row for row in rows if row != "0000001-1"])
    for choose in (late(1), late(1), lambda rows: rows):
        assert world.seal()
        world.admit()
        world.finish(choose)
    assert plane.rows(TRAIN, lack=["input_ids"]) == []
    assert world.seal() and [group_of(row)[-2:] for row in world.sealed[3][::2]] == ["13", "14", "15", "16"]
    assert plane.rows(TRAIN, lack=["input_ids"]) == ["0000001-0"]


class Changes:
    """A generator that takes version 8 after the third of five tokens of group 0; everybody else is sampled by 8."""

    max_length = 32

    def generate(self, sample_ids, prompts, sampling):
        by_token = [[7, 7, 7, 8, 8] if group_of(sample_id) == "0000000" else [8] * 5 for sample_id in sample_ids]
        return [Completion([1, 2, 3, 4, 5], [-1.0] * 5, "stop", min(seen), max(seen)) for seen in by_token]


@pytest.fixture
def mixed(plane):
    """Everything admitted is sampled, the rows of group 0 by two versions."""
    world = World(plane, make_config())
    world.admit()
    assert len(Worker(plane, TRAIN, Generate(Changes(), Letters(), reward)).run_once().sample_ids) == 16
    return world


def test_a_sample_of_two_versions_is_stored_with_both_and_as_old_as_the_first(plane, mixed):
    versions = plane.get(TRAIN, ["0000000-1", "0000001-0"], ["weight_version", "weight_version_max"])
    assert [versions.values(name) for name in versions] == [[7, 8], [8, 8]]
    plane.seal(9, mixed.window.next_members(9))
    waiting = Waiting(plane, InlineExecutor(), Reporter(), lambda: False, 1.0)
    age = Measures(mixed.config, plane, waiting).samples(9)
    assert (age["staleness_max"], age["staleness_mean"]) == (1.0, 2 / 8)


def test_a_sample_of_two_versions_is_too_old_when_the_first_is(plane, mixed):
    assert mixed.window.next_members(10) is None  # it trains version 9, and 7 is two behind
    assert plane.rows(TRAIN, lack=["input_ids"]) == ["0000000-0", "0000000-1"]


def test_no_more_rows_are_admitted_than_may_be_buffered(plane):
    world = World(plane, make_config(max_buffered_rows=13))
    world.admit()
    assert len(world.window.open) == 6 and world.window.pressure.held == "grpo.async_grpo.max_buffered_rows (13)"
    world.finish(lambda rows: rows)
    assert world.seal()
    world.admit()
    assert len(world.window.open) == 6


def test_bytes_hold_admission_back_to_one_step_and_the_events_say_so(plane):
    world = World(plane, make_config(store={"max_buffered_bytes": 1}))
    world.admit()
    assert len(world.window.open) == 2 * PROMPTS  # nothing was there when it looked
    world.finish(lambda rows: rows)
    assert world.seal()
    world.admit()
    assert len(world.window.open) == PROMPTS and world.window.pressure.held == "store.max_buffered_bytes (1)"
    kinds = [e["kind"] for e in plane.events().to_pylist() if e["kind"].startswith("admission")]
    assert kinds == ["admission_held"]
    world.finish(lambda rows: rows)
    assert world.seal()


def test_bytes_of_sealed_rows_do_not_count(plane):
    world = World(plane, make_config())
    world.admit()
    before = plane.buffered(TRAIN)
    world.finish(lambda rows: rows)
    full = plane.buffered(TRAIN)
    assert world.seal()
    half = plane.buffered(TRAIN)
    assert (before.rows, full.rows, half.rows) == (16, 16, 8)
    assert full.size_bytes > before.size_bytes > 0 and abs(2 * half.size_bytes - full.size_bytes) <= 4
