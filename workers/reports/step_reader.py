"""One step of a store, for SQL: the same views, the same queries, and only the step's own rows are ever read."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dataplane import DataPlane
from schemas.columns import TRAIN
from schemas.messages import Step
from workers.partitions import VOCABULARY


class StepReader:
    """What a query needs of a plane, cut to the members of *step* in their sealed order."""

    def __init__(self, plane: DataPlane, step: int) -> None:
        self.plane = plane
        self.members = plane.members(step)

    def partitions(self) -> dict[str, pa.Schema]:
        schemas = self.plane.partitions()
        return {name: schemas[name] for name in (TRAIN, VOCABULARY) if name in schemas}

    def ids(self, partition: str) -> list[str]:
        return self.members if partition == TRAIN else self.plane.ids(partition)

    def table(self, partition: str, columns: Sequence[str]) -> pa.Table:
        if partition != TRAIN:
            return self.plane.table(partition, columns)
        return self.plane.get(TRAIN, self.members, columns, missing="null", copy=False).table

    def row_state(self, partition: str, columns: Sequence[str] = ()) -> pa.Table:
        if partition != TRAIN:
            return self.plane.row_state(partition, columns)
        state = self.plane.row_state(partition)
        return state.take(pc.index_in(pa.array(self.members), state["sample_id"]))

    def events(self) -> pa.Table:
        return self.plane.events()

    def blocks(self) -> pa.Table:
        return self.plane.blocks()

    def steps(self) -> list[Step]:
        return self.plane.steps()
