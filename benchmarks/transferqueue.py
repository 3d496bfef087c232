"""TransferQueue from PyPI, with its default storage, on a local Ray."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Queue:
    """What the comparison needs of it."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def fields(self, columns: dict[str, tuple[Any, Any]]) -> Any:
        """Jagged tensors in its own container."""
        from tensordict import TensorDict

        rows = len(next(iter(columns.values()))[1]) - 1
        jagged = {name: torch.nested.nested_tensor_from_jagged(*pair) for name, pair in columns.items()}
        return TensorDict(jagged, batch_size=rows)

    def put(self, ids: list[str], fields: Any) -> None:
        self._module.kv_batch_put(keys=ids, partition_id="train", fields=fields)

    def get(self, ids: list[str], columns: list[str]) -> Any:
        return self._module.kv_batch_get(keys=ids, partition_id="train", select_fields=columns)

    def clear(self, ids: list[str]) -> None:
        self._module.kv_clear(keys=ids, partition_id="train")


@contextmanager
def transferqueue() -> Iterator[Queue]:
    """A running queue, ended afterwards."""
    import ray
    import transfer_queue

    logging.getLogger("transfer_queue").setLevel(logging.ERROR)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        transfer_queue.init()
        yield Queue(transfer_queue)
        transfer_queue.close()
    finally:
        ray.shutdown()
