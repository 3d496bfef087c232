"""Contract of the controller's verbs: steps, weights, checkpoints, epochs, retention."""

from __future__ import annotations

import pytest

from dataplane import DataPlane
from schemas.errors import InputError
from tests.dataplane.stores import Store
from tests.dataplane.test_claims import admit, claimed, generated


def train_step(plane: DataPlane, step: int, ids: list[str]) -> None:
    """Seal *ids* as a step and take every task to its end."""
    claimed(plane, "generate").commit(generated(len(ids)))
    claimed(plane, "teacher").commit({"teacher_logprobs": [[0.0, -1.0]] * len(ids)})
    plane.seal(step, ids)
    claimed(plane, "train", step=step).commit({"reward": [float(step)] * len(ids)})
    plane.record_trained(step, {"loss": 1.0 / step})


def test_a_step_keeps_its_members_in_order(plane: DataPlane) -> None:
    admit(plane, 4)
    plane.seal(1, ["s2", "s0", "s3"])
    assert plane.members(1) == ["s2", "s0", "s3"]
    assert plane.row_state("train").column("step").to_pylist() == [1, None, 1, 1]
    assert plane.rows("train", sealed=False) == ["s1"]


def test_a_sealed_step_never_changes(plane: DataPlane) -> None:
    admit(plane, 3)
    plane.seal(1, ["s1", "s0"])
    plane.seal(1, ["s1", "s0"])
    with pytest.raises(InputError, match="sealed already"):
        plane.seal(1, ["s0", "s1"])
    with pytest.raises(InputError, match="'s0' is in another step"):
        plane.seal(2, ["s2", "s0"])


@pytest.mark.parametrize(("step", "ids"), [(0, ["s0"]), (1, ["s0", "s0"]), (1, []), (1, ["s0", "nobody"])])
def test_bad_seals_are_refused(plane: DataPlane, step: int, ids: list[str]) -> None:
    admit(plane, 2)
    with pytest.raises(InputError):
        plane.seal(step, ids)
    assert plane.steps() == []


def test_a_step_is_trained_once_with_its_metrics(plane: DataPlane) -> None:
    admit(plane, 1)
    with pytest.raises(InputError, match="not sealed"):
        plane.record_trained(1, {"loss": 0.5})
    plane.seal(1, ["s0"])
    plane.record_trained(1, {"loss": 0.5})
    assert [(s.step, s.num_samples, s.metrics) for s in plane.steps()] == [(1, 1, {"loss": 0.5})]
    assert plane.row_state("train").column("trained").to_pylist() == [True]
    with pytest.raises(InputError, match="trained already"):
        plane.record_trained(1, {"loss": 0.5})


def test_weights_and_checkpoints_are_listed_oldest_first(plane: DataPlane) -> None:
    plane.record_published(0, "w/0")
    plane.record_published(1, "w/1")
    plane.record_checkpoint(1, "c/1")
    assert [(w.version, w.path) for w in plane.published()] == [(0, "w/0"), (1, "w/1")]
    assert [(c.step, c.path) for c in plane.checkpoints()] == [(1, "c/1")]


def test_rows_of_a_step_are_cleared_only_under_a_checkpoint(plane: DataPlane) -> None:
    admit(plane, 3)
    plane.seal(1, ["s0"])
    plane.seal(2, ["s1"])
    plane.record_checkpoint(1, "c/1")
    with pytest.raises(InputError, match="'s1' belongs to step 2, which no checkpoint covers .the last is of step 1"):
        plane.clear("train", ["s0", "s1", "s2"])
    assert plane.clear("train", ["s2", "s0"]) == 2
    assert (plane.members(1), plane.steps()[0].num_samples) == ([], 1)


def test_a_new_epoch_repeats_later_steps_from_their_stored_generation(plane: DataPlane, store: Store) -> None:
    ids = admit(plane, 2)
    train_step(plane, 1, ids)
    more = ["t0", "t1"]
    plane.put("train", more, {"prompt": more})
    train_step(plane, 2, more)
    plane.record_published(2, "w/2")
    plane.record_checkpoint(1, "c/1")
    assert plane.new_epoch(after_step=1) == 1
    assert [s.metrics for s in plane.steps()] == [{"loss": 1.0}, None]
    assert plane.published() == []
    assert plane.rows("train", have=["input_ids", "teacher_logprobs"], lack=["reward"]) == more
    assert claimed(plane, "train", step=2).attempt == 2


def test_a_new_epoch_revives_rows_that_the_repeated_tasks_failed(plane: DataPlane) -> None:
    ids = admit(plane, 2)
    claimed(plane, "generate").commit(generated(2))
    claimed(plane, "teacher").commit({"teacher_logprobs": [[0.0, -1.0]]}, ["s0"], {"s1": "engine_error: down"})
    plane.seal(1, ids)
    claimed(plane, "train", step=1).fail({"s0": "bad_logprob: NaN"})
    plane.new_epoch(after_step=0)
    assert plane.row_state("train").column("error").to_pylist() == [None, "engine_error: down"]


def test_events_tell_the_history_of_a_row(plane: DataPlane) -> None:
    admit(plane, 2)
    claimed(plane, "generate", worker="gen-0").commit(generated(1), failed={"s1": "empty_response: []"})
    plane.event("weights_loaded", version=3, ok=True, loss=float("nan"))
    rows = plane.events(with_ids=True).to_pylist()
    about = [(row["kind"], row["task"], row["worker"], row["rows"]) for row in rows if row["sample_ids"]]
    assert about == [("put", None, None, 2), ("claimed", "generate", "gen-0", 2), ("committed", "generate", "gen-0", 1)]
    assert rows[-2]["failed_ids"] == ["s1"]
    assert (rows[-1]["kind"], rows[-1]["detail"]) == ("weights_loaded", '{"ok": true, "loss": "nan"}')


def test_the_events_about_a_sample_are_those_that_name_it_in_each_of_its_lives(plane: DataPlane) -> None:
    ids = admit(plane, 4)
    claimed(plane, "generate", limit=3).commit(generated(2), ids[:2], failed={ids[2]: "engine_error: down"})
    plane.clear("train", [ids[1]])
    plane.put("train", [ids[1], "new"], {"prompt": ["again", "x"]})
    every = plane.events(with_ids=True)
    for sample_id in (*ids, "new", "nobody"):
        named = [e["seq"] for e in every.to_pylist() if sample_id in [*e["sample_ids"], *e["failed_ids"]]]
        assert plane.events(about=("train", sample_id))["seq"].to_pylist() == named
    assert len(plane.events(about=("train", ids[1]))) == 5 and len(plane.events(about=("other", ids[0]))) == 0


def test_blocks_tell_who_made_them(plane: DataPlane) -> None:
    admit(plane, 2)
    made = {"weight_version": 7, "versions": {"torch": "2.13.0"}}
    claimed(plane, "generate", worker="gen-0").commit(generated(2), lineage=made)
    first, second = plane.blocks().to_pylist()
    assert (first["columns"], first["task"]) == (["prompt"], None)
    assert (second["columns"], second["rows"]) == (["input_ids", "generation_logprobs"], 2)
    assert (second["task"], second["worker"], second["attempt"]) == ("generate", "gen-0", 1)
    assert (second["weight_version"], second["versions"]) == (7, [("torch", "2.13.0")])
    with pytest.raises(InputError, match="lineage"):
        plane.put("train", ["x"], {"prompt": ["p"]}, lineage={"author": "me"})


def test_progress_adds_up(plane: DataPlane) -> None:
    admit(plane, 6)
    claimed(plane, "generate", limit=4).commit(generated(2), ["s0", "s1"], {"s2": "timed_out: 2 s"})
    plane.seal(1, ["s0"])
    progress = plane.progress("train")
    assert (progress.rows, progress.sealed, progress.failed) == (6, 1, {"timed_out": 1})
    generate, teacher = progress.tasks["generate"], progress.tasks["teacher"]
    assert (generate.waiting, generate.ready, generate.claimed, generate.done, generate.failed) == (0, 2, 1, 2, 1)
    assert (teacher.waiting, teacher.ready, teacher.claimed, teacher.done, teacher.failed) == (3, 2, 0, 0, 1)


def test_missing_lists_what_the_next_task_lacks(plane: DataPlane) -> None:
    plane.put("train", ["a"], {"reward": [1.0]})
    plane.put("train", ["b"], {"prompt": ["p"]})
    claimed(plane, "generate").commit(sample_ids=["b"])
    assert plane.row_state("train").select(["sample_id", "missing"]).to_pylist() == [
        {"sample_id": "a", "missing": ["prompt"]},
        {"sample_id": "b", "missing": ["input_ids"]},
    ]
