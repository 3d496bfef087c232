"""The data plane: typed columns of samples in one store, shared by every stage of a run.

    from dataplane import open_plane
    with open_plane("runs/demo/plane") as plane:
        plane.create_partition("train", ["input_ids", "reward"])
        plane.put("train", ["a"], {"input_ids": [[1, 2]], "reward": [1.0]})
"""

from dataplane.claim import Claim
from dataplane.opening import connect, open_plane
from dataplane.plane import DataPlane

__all__ = ["Claim", "DataPlane", "connect", "open_plane"]
