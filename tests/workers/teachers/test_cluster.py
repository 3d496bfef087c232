"""Reservations on a real Ray of two nodes."""

from __future__ import annotations

import time

import pytest

from schemas.errors import DeadlinePassed, ResourceInsufficientError
from tests.workers.teachers.test_resources import config
from workers.teachers import cluster as clusters
from workers.teachers.cluster import cluster_nodes, reserve, reserve_teacher_clusters
from workers.teachers.placement import Bundles

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:ray", "ignore::ResourceWarning")


def segments_of(reserved) -> dict[str, list[str | None]]:
    by_id = {node.name: node.segment for node in cluster_nodes(free=False)}
    return {name: [by_id[node] for node in cluster.nodes] for name, cluster in reserved.items()}


def free_cpus() -> float:
    return sum(node.cpus for node in cluster_nodes(free=True))


def freed() -> bool:
    """Whether all five CPUs are free again before long; Ray tells a moment later."""
    until = time.monotonic() + 20
    while free_cpus() < 5 and time.monotonic() < until:
        time.sleep(0.05)
    return free_cpus() == 5


def cpu_teachers(**overrides):
    """math on 2 ranks and code on 3, without GPUs."""
    default = {"gpus_per_node": 0, "tensor_model_parallel_size": 2}
    code = {"tensor_model_parallel_size": 3, **overrides}
    return config({"enabled": True, "default_teacher_cfg": default, "teacher_overrides": {"code": code}})


def test_each_teacher_gets_a_node_of_its_own_and_gives_it_back(two_nodes) -> None:
    assert freed()
    reserved = reserve_teacher_clusters(cpu_teachers())
    assert segments_of(reserved) == {"math": ["a", "a"], "code": ["b", "b", "b"]}
    for cluster in reserved.values():
        cluster.free()
        cluster.free()
    assert freed()


def test_an_actor_of_a_rank_runs_on_the_node_of_its_bundle(two_nodes) -> None:
    import ray

    @ray.remote
    class Where:
        def node(self) -> str:
            return ray.get_runtime_context().get_node_id()

    assert freed()
    reserved = reserve({"spread": Bundles(2, num_nodes=2)})["spread"]
    actors = [Where.options(**reserved.options(rank)).remote() for rank in range(2)]
    assert ray.get([actor.node.remote() for actor in actors], timeout=60) == reserved.nodes
    assert len(set(reserved.nodes)) == 2
    reserved.free()
    assert freed()


def test_gpus_that_no_node_has_are_refused_at_once_and_nothing_stays_reserved(two_nodes) -> None:
    assert freed()
    with pytest.raises(ResourceInsufficientError, match="9 GPUs are asked for, 0 are free"):
        reserve({"math": Bundles(2, num_nodes=1), "code": Bundles(9, gpus=1, num_nodes=1)}, timeout_s=3600)
    assert free_cpus() == 5


def test_a_topology_given_by_hand_decides_instead_of_labels(two_nodes) -> None:
    assert freed()
    topology = {node.name: "one" for node in cluster_nodes(free=False)}
    asked = {"wide": Bundles(2, num_nodes=2, segment_size=2)}
    with pytest.raises(ResourceInsufficientError, match="by segment: [ab] 1, [ab] 1"):
        reserve(asked)
    reserved = reserve(asked, segment_topology=topology)["wide"]
    assert len(set(reserved.nodes)) == 2
    reserved.free()
    assert freed()


def test_what_others_hold_is_waited_for_and_then_a_timeout_says_so(two_nodes) -> None:
    assert freed()
    held = reserve({"other": Bundles(3, num_nodes=1)})["other"]
    with pytest.raises(DeadlinePassed, match="others have the rest, and did not give it back in time") as late:
        reserve({"code": Bundles(3, num_nodes=1)}, timeout_s=0.5)
    assert isinstance(late.value, TimeoutError)
    held.free()
    assert freed()


def test_one_group_that_cannot_be_made_frees_the_ones_before_it(two_nodes, monkeypatch) -> None:
    assert freed()
    ask = clusters._ask

    def refuses_code(name, bundles, nodes):
        if name == "teacher:code":
            raise RuntimeError("no more groups")
        return ask(name, bundles, nodes)

    monkeypatch.setattr(clusters, "_ask", refuses_code)
    with pytest.raises(RuntimeError, match="no more groups"):
        reserve_teacher_clusters(cpu_teachers())
    assert freed()
