"""Contract of tasks, claims and leases, on every backend."""

from __future__ import annotations

import pytest

from dataplane import Claim, DataPlane
from schemas.errors import InputError, LeaseLost, StoreError
from tests.dataplane.stores import FakeClock, Store


def admit(plane: DataPlane, count: int, **columns: list[str]) -> list[str]:
    """Rows s0 … with a prompt each, ready for ``generate``."""
    ids = [f"s{i}" for i in range(count)]
    plane.put("train", ids, {"prompt": ids, **columns})
    return ids


def claimed(plane: DataPlane, task: str, limit: int | None = None, **how: object) -> Claim:
    claim = plane.claim("train", task, limit, **how)  # type: ignore[arg-type]
    assert claim is not None
    return claim


def generated(count: int) -> dict[str, list[list[float]]]:
    return {"input_ids": [[1, 2]] * count, "generation_logprobs": [[0.0, -0.5]] * count}


def ids_of(claim: Claim | None) -> list[str]:
    return claim.sample_ids if claim else []


def test_rows_are_claimed_once_in_row_order(plane: DataPlane) -> None:
    admit(plane, 5)
    assert ids_of(plane.claim("train", "generate", limit=2)) == ["s0", "s1"]
    assert ids_of(plane.claim("train", "generate")) == ["s2", "s3", "s4"]
    assert plane.claim("train", "generate") is None


def test_a_row_waits_until_every_read_is_there(plane: DataPlane) -> None:
    admit(plane, 2)
    claimed(plane, "generate").commit(generated(2))
    assert plane.claim("train", "train") is None
    claimed(plane, "teacher", limit=1).commit({"teacher_logprobs": [[0.0, -1.0]]})
    assert ids_of(plane.claim("train", "train")) == ["s0"]


def test_the_batch_of_a_claim_holds_the_reads_of_its_task(plane: DataPlane) -> None:
    admit(plane, 3)
    claim = claimed(plane, "generate", limit=2)
    assert claim.batch.table.to_pydict() == {"prompt": ["s0", "s1"]}


def test_a_commit_of_some_rows_leaves_the_rest_leased(plane: DataPlane, clock: FakeClock) -> None:
    admit(plane, 3)
    claim = claimed(plane, "generate")
    claim.commit(generated(1), sample_ids=["s1"])
    assert plane.claim("train", "generate") is None
    claim.commit(generated(2))
    assert plane.progress("train").tasks["generate"].done == 3


def test_a_commit_writes_acknowledges_and_fails_in_one_record(plane: DataPlane) -> None:
    admit(plane, 4)
    claim = claimed(plane, "generate")
    before = plane.events().num_rows
    claim.commit(generated(3), failed={"s2": "engine_error: raised"})
    assert plane.events().num_rows == before + 1
    assert plane.rows("train", have=["input_ids"]) == ["s0", "s1", "s3"]
    assert ids_of(plane.claim("train", "teacher")) == ["s0", "s1", "s3"]


def test_a_failed_row_keeps_its_reason_and_is_ready_for_nobody(plane: DataPlane) -> None:
    admit(plane, 4, group_id=["g"] * 4)
    claimed(plane, "generate").commit(generated(3), failed={"s2": "engine_error: CUDA"})
    state = plane.row_state("train").to_pylist()[2]
    assert (state["error"], state["complete"]) == ("engine_error: CUDA", False)
    assert plane.rows("train", failed=True) == ["s2"]
    assert plane.rows("train", lack=["input_ids"]) == ["s2"]
    assert ids_of(plane.claim("train", "teacher", by_group=True)) == ["s0", "s1", "s3"]


def test_rows_come_back_when_the_lease_ends_and_the_late_commit_is_refused(
    plane: DataPlane, store: Store, clock: FakeClock
) -> None:
    admit(plane, 2)
    slow = claimed(plane, "generate", lease_s=10)
    clock.sleep(10)
    fresh = claimed(plane, "generate", limit=1)
    assert (slow.attempt, fresh.attempt, fresh.sample_ids) == (1, 2, ["s0"])
    blocks = store.blocks()
    with pytest.raises(LeaseLost, match="claim again"):
        slow.commit(generated(2))
    assert store.blocks() == blocks
    fresh.commit(generated(1))


def test_a_renewed_lease_lasts_from_then_on(plane: DataPlane, clock: FakeClock) -> None:
    admit(plane, 1)
    claim = claimed(plane, "generate", lease_s=9)
    for _ in range(4):
        clock.sleep(6)
        claim.renew()
    claim.commit(generated(1))
    with pytest.raises(LeaseLost):
        claim.renew()


def test_released_rows_are_ready_at_once_and_release_can_be_repeated(plane: DataPlane) -> None:
    admit(plane, 3)
    claim = claimed(plane, "generate")
    claim.commit(generated(1), sample_ids=["s0"])
    claim.release()
    claim.release()
    assert ids_of(plane.claim("train", "generate")) == ["s1", "s2"]
    with pytest.raises(LeaseLost):
        claim.commit(generated(2))


def test_a_commit_for_a_row_outside_the_claim_is_refused_whole(plane: DataPlane) -> None:
    admit(plane, 3)
    claim = claimed(plane, "generate", limit=2)
    with pytest.raises(LeaseLost, match="'s2'"):
        claim.commit(generated(2), sample_ids=["s0", "s2"])
    assert plane.rows("train", have=["input_ids"]) == []


def test_a_failure_code_must_be_a_known_one(plane: DataPlane) -> None:
    admit(plane, 1)
    with pytest.raises(InputError, match="did you mean 'engine_error'"):
        claimed(plane, "generate").fail({"s0": "engin_error: x"})


def test_a_worker_that_dies_between_columns_blocks_nobody_for_good(plane: DataPlane, clock: FakeClock) -> None:
    admit(plane, 1)
    claimed(plane, "generate", lease_s=5)
    plane.put("train", ["s0"], {"generation_logprobs": [[0.0]]})
    assert plane.claim("train", "teacher") is None
    assert plane.row_state("train").column("missing").to_pylist() == [[]]
    clock.sleep(5)
    claimed(plane, "generate").commit(generated(1))
    assert plane.get("train", ["s0"], ["generation_logprobs"]).values("generation_logprobs") == [[0.0, -0.5]]
    assert plane.row_state("train").column("missing").to_pylist() == [[]]


def test_a_commit_of_a_column_that_the_task_does_not_declare_is_refused_and_costs_nothing(plane: DataPlane) -> None:
    admit(plane, 1)
    claim = claimed(plane, "generate")
    with pytest.raises(InputError, match=r"'generate' does not write column 'reward'; it declares input_ids"):
        claim.commit({**generated(1), "reward": [1.0]})
    claim.commit(generated(1))
    assert plane.rows("train", have=["reward"]) == [] and plane.rows("train", have=["input_ids"]) == ["s0"]


def test_a_second_commit_of_a_whole_claim_says_that_it_is_over(plane: DataPlane) -> None:
    admit(plane, 1)
    claim = claimed(plane, "generate")
    claim.commit(generated(1))
    with pytest.raises(LeaseLost, match="is over: its rows were all committed or failed; claim again"):
        claim.commit(generated(1))


def test_where_narrows_to_the_wanted_values(plane: DataPlane) -> None:
    admit(plane, 6, teacher=["math", "code", "math", "chat", "code", "math"])
    assert ids_of(plane.claim("train", "generate", limit=2, where={"teacher": "math"})) == ["s0", "s2"]
    assert ids_of(plane.claim("train", "generate", where={"teacher": ["code", "chat"]})) == ["s1", "s3", "s4"]
    assert plane.claim("train", "generate", where={"teacher": "none"}) is None
    assert ids_of(plane.claim("train", "generate", where={"teacher": ["math", "code"]})) == ["s5"]


def test_where_of_two_columns_wants_both(plane: DataPlane) -> None:
    admit(plane, 4, teacher=["math", "code", "math", "math"], group_id=["g", "g", "h", "g"])
    where = {"teacher": "math", "group_id": ["g"]}
    assert ids_of(plane.claim("train", "generate", limit=1, where=where)) == ["s0"]
    assert ids_of(plane.claim("train", "generate", where=where)) == ["s3"]


def test_where_sees_rows_that_come_return_and_change(plane: DataPlane, clock: FakeClock) -> None:
    admit(plane, 2, teacher=["math", "code"])
    claimed(plane, "generate", where={"teacher": "math"}, lease_s=5)
    plane.put("train", ["s9"], {"prompt": ["s9"], "teacher": ["math"]})
    plane.put("train", ["s8"], {"prompt": ["s8"]})
    plane.put("train", ["s8"], {"teacher": ["math"]})
    plane.replace("train", ["s1"], {"teacher": ["math"]})
    clock.sleep(5)
    assert ids_of(plane.claim("train", "generate", where={"teacher": "math"})) == ["s0", "s1", "s9", "s8"]


def test_where_sees_values_that_another_task_wrote(plane: DataPlane) -> None:
    admit(plane, 2)
    plane.declare_task("train", "rate", reads=["prompt"])
    plane.declare_task("train", "route", reads=["prompt"])
    assert plane.claim("train", "rate", where={"teacher": "math"}) is None
    claimed(plane, "route", limit=1).commit({"teacher": ["math"]})
    assert ids_of(plane.claim("train", "rate", where={"teacher": "math"})) == ["s0"]


def test_rows_that_no_value_has_come_for_are_not_ready_in_a_step_either(plane: DataPlane) -> None:
    assert plane.claim("train", "teacher") is None
    rows = admit(plane, 1500)
    plane.seal(1, rows)
    assert plane.claim("train", "teacher", step=1) is None


def test_where_leaves_a_row_whose_value_was_replaced(plane: DataPlane) -> None:
    admit(plane, 3, teacher=["math", "math", "math"])
    assert ids_of(plane.claim("train", "generate", limit=1, where={"teacher": "math"})) == ["s0"]
    plane.replace("train", ["s1"], {"teacher": ["code"]})
    assert ids_of(plane.claim("train", "generate", where={"teacher": "math"})) == ["s2"]
    assert ids_of(plane.claim("train", "generate", where={"teacher": "code"})) == ["s1"]


def test_where_finds_nothing_among_rows_that_were_all_cleared(plane: DataPlane) -> None:
    admit(plane, 2, teacher=["math", "code"])
    claimed(plane, "generate", where={"teacher": "math"}).release()
    plane.clear("train", ["s0", "s1"])
    assert plane.claim("train", "generate", where={"teacher": "math"}) is None


def test_where_refuses_token_columns_and_values_of_another_type(plane: DataPlane) -> None:
    admit(plane, 1)
    with pytest.raises(InputError, match="only scalar columns"):
        plane.claim("train", "generate", where={"input_ids": 1})
    with pytest.raises(InputError, match="column 'reward' holds float, got 'high'"):
        plane.claim("train", "generate", where={"reward": "high"})


def test_whole_groups_only(plane: DataPlane) -> None:
    admit(plane, 5, group_id=["g", "h", "g", "h", "h"])
    claimed(plane, "generate").commit(generated(4), sample_ids=["s1", "s2", "s3", "s4"])
    assert ids_of(plane.claim("train", "teacher", by_group=True)) == ["s1", "s3", "s4"]
    assert plane.claim("train", "teacher", by_group=True) is None


def test_a_group_becomes_whole_when_its_last_row_comes_or_fails(plane: DataPlane) -> None:
    admit(plane, 4, group_id=["g", "g", "h", "h"])
    claim = claimed(plane, "generate")
    claim.commit(generated(2), sample_ids=["s0", "s2"])
    assert plane.claim("train", "teacher", by_group=True) is None
    claim.commit(generated(1), sample_ids=["s3"], failed={"s1": "timed_out: 2 s"})
    assert ids_of(plane.claim("train", "teacher", limit=1, by_group=True)) == ["s0"]
    assert ids_of(plane.claim("train", "teacher", limit=1, by_group=True)) == ["s2", "s3"]


def test_groups_fill_a_limit_and_never_split(plane: DataPlane) -> None:
    admit(plane, 7, group_id=["a", "a", "b", "b", "b", "c", "c"])
    assert ids_of(plane.claim("train", "generate", limit=4, by_group=True)) == ["s0", "s1"]
    assert ids_of(plane.claim("train", "generate", limit=5, by_group=True)) == ["s2", "s3", "s4", "s5", "s6"]


def test_rows_done_already_do_not_hold_their_group_back(plane: DataPlane) -> None:
    admit(plane, 3, group_id=["g"] * 3)
    claimed(plane, "generate", limit=1).commit(generated(1))
    assert ids_of(plane.claim("train", "generate", by_group=True)) == ["s1", "s2"]


def test_groups_of_a_step_are_whole_and_in_its_order(plane: DataPlane) -> None:
    admit(plane, 6, group_id=["a", "b", "a", "b", "c", "c"])
    plane.seal(1, ["s4", "s5", "s1", "s3", "s0", "s2"])
    claimed(plane, "generate").commit(generated(5), ["s0", "s1", "s2", "s4", "s5"])
    assert ids_of(plane.claim("train", "teacher", limit=3, step=1, by_group=True)) == ["s4", "s5"]
    assert ids_of(plane.claim("train", "teacher", step=1, by_group=True)) == ["s0", "s2"]
    assert plane.claim("train", "teacher", step=1, by_group=True) is None


def test_groups_can_be_narrowed_by_a_column(plane: DataPlane) -> None:
    admit(plane, 4, group_id=["a", "a", "b", "b"], teacher=["math", "math", "code", "code"])
    assert ids_of(plane.claim("train", "generate", where={"teacher": "code"}, by_group=True)) == ["s2", "s3"]
    assert ids_of(plane.claim("train", "generate", by_group=True)) == ["s0", "s1"]


def test_a_step_is_claimed_in_its_sealed_order(plane: DataPlane) -> None:
    admit(plane, 5, teacher=["x", "y", "x", "x", "y"])
    plane.seal(1, ["s3", "s0", "s4"])
    plane.seal(2, ["s2", "s1"])
    assert ids_of(plane.claim("train", "generate", step=1, limit=2)) == ["s3", "s0"]
    assert ids_of(plane.claim("train", "generate", step=2, where={"teacher": "y"})) == ["s1"]
    with pytest.raises(InputError, match="step 3 of partition 'train' is not sealed"):
        plane.claim("train", "generate", step=3)


def test_a_row_failed_by_others_leaves_its_lease(plane: DataPlane) -> None:
    admit(plane, 2)
    claim = claimed(plane, "generate")
    plane.fail("train", {"s0": "timed_out: no sign of life for 2 s"})
    with pytest.raises(LeaseLost, match="'s0'"):
        claim.commit(generated(2))
    claim.commit(generated(1), sample_ids=["s1"])


def test_a_cleared_row_leaves_its_lease(plane: DataPlane) -> None:
    admit(plane, 2)
    claim = claimed(plane, "generate")
    plane.clear("train", ["s1"])
    claim.commit(generated(1), sample_ids=["s0"])
    assert plane.claim("train", "generate") is None


def test_requeued_rows_wait_again_without_what_the_tasks_wrote(plane: DataPlane) -> None:
    admit(plane, 2)
    claimed(plane, "generate").commit(generated(2))
    claimed(plane, "teacher", limit=1).commit({"teacher_logprobs": [[0.0, -1.0]]})
    plane.requeue("train", ["s0"], ["generate", "teacher"])
    assert plane.rows("train", lack=["input_ids"]) == ["s0"]
    assert ids_of(plane.claim("train", "teacher")) == ["s1"]
    again = claimed(plane, "generate")
    assert (again.sample_ids, again.attempt) == (["s0"], 2)
    again.commit(generated(1))
    assert plane.row_state("train").column("attempt").to_pylist() == [2, 1]


def test_requeue_revives_failed_rows_and_ends_leases(plane: DataPlane) -> None:
    admit(plane, 2)
    claim = claimed(plane, "generate")
    claim.fail({"s0": "engine_error: x"})
    plane.requeue("train", ["s0", "s1"], ["generate"])
    with pytest.raises(LeaseLost):
        claim.commit(generated(1))
    assert ids_of(plane.claim("train", "generate")) == ["s0", "s1"]


def test_requeue_refuses_to_leave_a_task_done_on_superseded_values(plane: DataPlane) -> None:
    admit(plane, 1)
    claimed(plane, "generate").commit(generated(1))
    claimed(plane, "teacher").commit({"teacher_logprobs": [[0.0, -1.0]]})
    with pytest.raises(InputError, match="requeue 'teacher' too"):
        plane.requeue("train", ["s0"], ["generate"])


def test_superseded_blocks_stay_until_their_row_is_cleared(plane: DataPlane, store: Store) -> None:
    admit(plane, 1)
    claimed(plane, "generate").commit(generated(1))
    plane.requeue("train", ["s0"], ["generate"])
    claimed(plane, "generate").commit(generated(1))
    assert len(store.blocks()) == 3
    plane.clear("train", ["s0"])
    assert store.blocks() == set()


def test_a_task_declared_late_finds_rows_that_are_ready(plane: DataPlane) -> None:
    admit(plane, 3)
    plane.put("train", ["s1"], {"reward": [1.0]})
    plane.declare_task("train", "judge", ["prompt", "reward"])
    assert ids_of(plane.claim("train", "judge")) == ["s1"]


def test_unknown_tasks_and_limits_below_one_are_refused(plane: DataPlane) -> None:
    with pytest.raises(InputError, match="no task 'techer' .did you mean 'teacher'"):
        plane.claim("train", "techer")
    with pytest.raises(InputError, match="limit: expected at least 1, got 0"):
        plane.claim("train", "teacher", limit=0)


def test_a_follower_may_not_write(plane: DataPlane, store: Store) -> None:
    with store.open("r") as follower, pytest.raises(StoreError, match="open read-only"):
        follower.claim("train", "generate")
