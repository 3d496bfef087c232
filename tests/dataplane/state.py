"""The durable state of a catalog as plain data, for comparing two folds."""

from __future__ import annotations

from typing import Any

from dataplane import DataPlane
from dataplane.catalog.catalog import Catalog
from dataplane.catalog.partition import Cells, Partition
from dataplane.numbers import Ints


def durable(catalog: Catalog) -> dict[str, Any]:
    """Everything but leases, claims and attempts."""
    return {
        "partitions": {name: _partition(catalog, p) for name, p in catalog.partitions.items()},
        "blocks": sorted((block.id, made.partition, rows) for block, made, rows in catalog.blocks),
        "steps": catalog.steps,
        "members": catalog.members,
        "published": catalog.published,
        "checkpoints": catalog.checkpoints,
        "put_ids": list(catalog.put_ids),
        "epoch": catalog.epoch,
        "facts": catalog.facts,
    }


def _partition(catalog: Catalog, partition: Partition) -> dict[str, Any]:
    live = partition.live_slots()
    cells = {name: _cells(catalog, column, live) for name, column in partition.cells.items()}
    tasks = partition.tasks.values()
    return {
        "schema": partition.schema,
        "ids": partition.ids_at(live),
        "numbers": partition.numbers_at(live).tolist(),
        "index": partition.index,
        "next": partition.next_number,
        "steps": partition.step.data[live].tolist(),
        "errors": partition.errors,
        "failed": partition.failed.data[live].tolist(),
        "superseded": {number: [catalog.blocks[b].id for b in bs] for number, bs in partition.superseded.items()},
        "cells": cells,
        "tasks": {t.name: (t.reads, t.done.data[live].tolist(), t.missing.data[live].tolist()) for t in tasks},
    }


def _cells(catalog: Catalog, column: Cells, live: Ints) -> list[tuple[str, int] | None]:
    pairs = zip(column.block.data[live].tolist(), column.row.data[live].tolist(), strict=True)
    return [(catalog.blocks[block].id, row) if block >= 0 else None for block, row in pairs]


def catalog_of(plane: DataPlane) -> Catalog:
    return getattr(plane, "hosted_by", plane)._host._catalog
