"""A Ray of two nodes on this machine: one with 2 CPUs in segment a, one with 3 CPUs in segment b; no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="package")
def two_nodes(request: pytest.FixtureRequest) -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    quiet = {"include_dashboard": False, "object_store_memory": 80 * 2**20}
    head = {"num_cpus": 2, "num_gpus": 0, "labels": {"nvlink-segment": "a"}, **quiet}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(
        num_cpus=3, num_gpus=0, labels={"nvlink-segment": "b"}, object_store_memory=quiet["object_store_memory"]
    )
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()
