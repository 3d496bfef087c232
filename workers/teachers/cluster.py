"""Resources for the teachers, reserved before any model is loaded: one Ray placement group a teacher, or none at all.

What the cluster can never give is refused at once. What it could give but has lent out is waited for, up to a
deadline. A node says which NVLink segment it belongs to by a label (``ray start --labels nvlink-segment=NAME``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from schemas.config import RunConfig
from schemas.errors import DeadlinePassed, ResourceInsufficientError
from workers.teachers.placement import Bundles, Node, place
from workers.teachers.resources import placements

#: Labels that name a node's NVLink segment, the first that is there.
SEGMENT_LABELS = ("nvlink-segment", "ray.io/gpu-domain")

#: Seconds until all of a job's groups must be reserved, and between two looks at what is free.
RESERVE_S, LOOK_S = 120.0, 0.25


@dataclass
class TeacherCluster:
    """What one teacher has: a bundle for each rank, on the nodes named."""

    name: str
    bundles: Bundles
    nodes: Sequence[str]
    group: Any

    def options(self, rank: int) -> dict[str, Any]:
        """Options of the actor that hosts *rank*."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {
            "num_cpus": self.bundles.cpus,
            "num_gpus": self.bundles.gpus,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=rank),
        }

    def free(self) -> None:
        """Give everything back; the actors in it end. Again does nothing."""
        import ray
        from ray.util.placement_group import remove_placement_group

        with suppress(ray.exceptions.RayError):
            remove_placement_group(self.group)


def reserve_teacher_clusters(
    config: RunConfig, *, segment_topology: Mapping[str, str] | None = None, timeout_s: float = RESERVE_S
) -> dict[str, TeacherCluster]:
    """A cluster for each teacher that *config* gives resources of its own, by alias. Errors as of :func:`reserve`."""
    clusters = reserve(placements(config), segment_topology=segment_topology, timeout_s=timeout_s)
    return {role.removeprefix("teacher:"): cluster for role, cluster in clusters.items()}


def reserve(
    wanted: Mapping[str, Bundles],
    *,
    segment_topology: Mapping[str, str] | None = None,
    timeout_s: float = RESERVE_S,
) -> dict[str, TeacherCluster]:
    """All of *wanted*, by name, on the Ray that is connected.

    *segment_topology* gives the segment of a node by its id, instead of the nodes' labels.
    Raises ResourceInsufficientError at once if that can never be, DeadlinePassed if it is not after *timeout_s*; then
    nothing stays reserved.
    """
    if not wanted:
        return {}
    deadline = time.monotonic() + timeout_s
    place(cluster_nodes(free=False, segment_topology=segment_topology), wanted)
    chosen = _when_free(wanted, segment_topology, deadline)
    clusters: dict[str, TeacherCluster] = {}
    try:
        for name, bundles in wanted.items():
            clusters[name] = TeacherCluster(name, bundles, chosen[name], _ask(name, bundles, chosen[name]))
        for cluster in clusters.values():
            if not cluster.group.wait(max(0.0, deadline - time.monotonic())):
                raise DeadlinePassed(
                    f"{cluster.name}: {cluster.bundles} not reserved after {timeout_s:g} s; somebody else uses them"
                )
    except BaseException:
        for cluster in clusters.values():
            cluster.free()
        raise
    return clusters


def _when_free(
    wanted: Mapping[str, Bundles], segment_topology: Mapping[str, str] | None, deadline: float
) -> dict[str, list[str]]:
    """The nodes for *wanted*, as soon as there are any."""
    while True:
        try:
            return place(cluster_nodes(free=True, segment_topology=segment_topology), wanted)
        except ResourceInsufficientError as error:
            if time.monotonic() > deadline:
                raise DeadlinePassed(f"{error}; others have the rest, and did not give it back in time") from error
            time.sleep(LOOK_S)


def _ask(name: str, bundles: Bundles, nodes: Sequence[str]) -> Any:
    """A placement group with a bundle a rank, each on its node."""
    from ray.util.placement_group import placement_group

    each = {"CPU": bundles.cpus} | ({"GPU": bundles.gpus} if bundles.gpus else {})
    return placement_group(
        [dict(each) for _ in nodes], name=name, bundle_label_selector=[{"ray.io/node-id": node} for node in nodes]
    )


def cluster_nodes(*, free: bool, segment_topology: Mapping[str, str] | None = None) -> list[Node]:
    """The nodes of the connected Ray: all that they have, or what of it is *free*."""
    import ray
    from ray._private.state import available_resources_per_node  # Ray tells what is free by node nowhere else

    left = available_resources_per_node() if free else {}
    nodes = [node for node in ray.nodes() if node["Alive"]]
    found = []
    for node in nodes:
        name, has = node["NodeID"], left.get(node["NodeID"], {}) if free else node["Resources"]
        labels = node.get("Labels") or {}
        segment = next((labels[key] for key in SEGMENT_LABELS if key in labels), None)
        if segment_topology is not None:
            segment = segment_topology.get(name)
        found.append(Node(name, has.get("CPU", 0.0), has.get("GPU", 0.0), segment))
    return found
