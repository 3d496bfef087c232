"""Where ranks go, on invented clusters."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ResourceInsufficientError
from workers.teachers.placement import Bundles, Node, place


def nodes(*gpus: int, segments: str = "") -> list[Node]:
    """Nodes n0, n1, … with so many free GPUs and 64 CPUs, and a letter for each one's segment."""
    return [Node(f"n{at}", 64, free, segments[at] if segments else None) for at, free in enumerate(gpus)]


def teacher(num_nodes: int, gpus: int, segment_size: int | None = None) -> Bundles:
    return Bundles(num_nodes * gpus, cpus=1, gpus=1, num_nodes=num_nodes, segment_size=segment_size)


def test_a_teacher_gets_the_same_share_of_each_of_its_nodes() -> None:
    placed = place(nodes(4, 4, 4), {"math": teacher(2, 3)})
    assert placed == {"math": ["n0", "n0", "n0", "n1", "n1", "n1"]}


def test_the_tightest_nodes_are_taken_so_that_large_ones_stay_free() -> None:
    assert place(nodes(8, 2, 4), {"math": teacher(1, 2)}) == {"math": ["n1", "n1"]}


def test_an_exact_fit_is_found() -> None:
    placed = place(nodes(8, 8, 8), {"small": teacher(1, 8), "large": teacher(2, 8)})
    assert [len(set(placed[name])) for name in ("small", "large")] == [1, 2]
    assert set(placed["small"]) & set(placed["large"]) == set()


def test_a_teacher_stays_inside_one_segment_of_an_uneven_cluster() -> None:
    there = nodes(8, 8, 8, 8, 8, segments="abbba")
    assert place(there, {"math": teacher(3, 8, 4)}) == {"math": [name for name in ("n1", "n2", "n3") for _ in range(8)]}


def test_a_segment_whose_free_gpus_are_fragmented_is_passed_over() -> None:
    there = nodes(8, 2, 6, 8, 8, segments="aaabb")
    assert set(place(there, {"math": teacher(2, 8, 4)})["math"]) == {"n3", "n4"}


def test_a_smaller_teacher_makes_way_for_one_that_fits_only_there() -> None:
    there = nodes(8, 8, 8, segments="aab")
    placed = place(there, {"code": teacher(1, 8, 2), "math": teacher(2, 8, 2)})
    assert (set(placed["code"]), set(placed["math"])) == ({"n2"}, {"n0", "n1"})


def test_two_teachers_that_compete_for_a_segment_are_told_apart_by_trying() -> None:
    # largest first takes the first segment that fits; only the other way round do both find room
    there = [Node("n0", 8, 8, "a"), Node("n1", 64, 8, "b")]
    thrifty, hungry = Bundles(8, 1, 1, 1, 1), Bundles(8, 8, 1, 1, 1)
    assert place(there, {"thrifty": thrifty, "hungry": hungry}) == {"thrifty": ["n0"] * 8, "hungry": ["n1"] * 8}


def test_teachers_without_gpus_are_placed_by_cpus() -> None:
    there = [Node("n0", 1), Node("n1", 3)]
    assert place(there, {"math": Bundles(2, cpus=1, num_nodes=1)}) == {"math": ["n1", "n1"]}


def test_other_roles_fill_up_what_teachers_leave_on_as_few_nodes_as_can_be() -> None:
    wanted = {"generator": Bundles(gpus=2), "trainer": Bundles(6, gpus=1), "math": teacher(1, 8)}
    placed = place(nodes(8, 8), wanted)
    assert placed["math"] == ["n0"] * 8
    assert (placed["trainer"], placed["generator"]) == (["n1"] * 6, ["n1"])


def test_a_role_that_no_node_holds_spreads_over_the_emptiest() -> None:
    assert place(nodes(1, 4, 3), {"trainer": Bundles(6, gpus=1)}) == {"trainer": ["n1"] * 4 + ["n2"] * 2}


@pytest.mark.parametrize(
    ("there", "wanted", "message"),
    [
        (nodes(4, 2), {"a": teacher(1, 8)}, "8 GPUs are asked for, 6 are free: 2 are missing"),
        (nodes(), {"a": teacher(1, 2)}, "2 GPUs are asked for, 0 are free"),
        (nodes(6, 6), {"a": teacher(1, 8)}, "a asks for 1 node with 8 GPUs and 8 CPUs each; 0 of 2 nodes have that"),
        (
            nodes(8, 8, 8, 8, segments="aabc"),
            {"a": teacher(2, 8, 4), "b": teacher(2, 8, 4)},
            "each of these fits, but not all of them together",
        ),
        (
            nodes(8, 8, 4, segments="aab"),
            {"a": teacher(3, 4, 4), "b": teacher(1, 8)},
            "a asks for 3 nodes with 4 GPUs and 4 CPUs each in one NVLink segment; nodes with that much free, by "
            "segment: a 2, b 1",
        ),
        (nodes(8), {"a": teacher(1, 8, 4)}, "no node says which segment it is part of"),
    ],
)
def test_what_cannot_be_placed_says_what_is_missing(there, wanted, message) -> None:
    with pytest.raises(ResourceInsufficientError, match=message):
        place(there, wanted)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ab")), max_size=5),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3),
)
def test_a_placement_is_found_exactly_where_there_is_one(cluster, groups) -> None:
    there = [Node(f"n{at}", 64, gpus, segment) for at, (gpus, segment) in enumerate(cluster)]
    wanted = {f"t{at}": teacher(count, gpus, 5) for at, (count, gpus) in enumerate(groups)}
    try:
        placed = place(there, wanted)
    except ResourceInsufficientError:
        assert not exists(cluster, groups)
        return
    used = Counter(name for names in placed.values() for name in names)
    assert all(used[node.name] <= node.gpus for node in there)
    by_name = {node.name: node.segment for node in there}
    for (count, gpus), names in zip(groups, placed.values(), strict=True):
        assert sorted(Counter(names).values()) == [gpus] * count
        assert len({by_name[name] for name in names}) == 1


def exists(cluster, groups) -> bool:
    """By trying everything."""
    if not groups:
        return True
    (count, gpus), *rest = groups
    for picked in combinations(range(len(cluster)), count):
        if len({cluster[at][1] for at in picked}) == 1 and all(cluster[at][0] >= gpus for at in picked):
            left = [(free - gpus * (at in picked), segment) for at, (free, segment) in enumerate(cluster)]
            if exists(left, rest):
                return True
    return False
