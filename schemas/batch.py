"""``Batch``: the columns of some samples, in order. The only thing stages see of the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from schemas.arrays import ColumnData, to_arrow
from schemas.columns import BFLOAT16, REGISTRY, schema_of
from schemas.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import torch


class Batch:
    """An Arrow table with a row per sample id.

    ``table`` is Arrow; ``padded``, ``jagged`` and ``tensor`` are torch. *writable* says that the table's
    memory belongs to this batch (owned, or a private map), so that torch may look at it without a copy and
    write into it without reaching the store; otherwise tensors are copies.
    """

    __slots__ = ("sample_ids", "table", "writable")

    def __init__(self, sample_ids: Sequence[str], table: pa.Table, *, writable: bool = False) -> None:
        if len(sample_ids) != table.num_rows:
            raise InputError(f"batch: {len(sample_ids)} sample ids for {table.num_rows} rows")
        self.sample_ids = list(sample_ids)
        self.table = table
        self.writable = writable

    @classmethod
    def of(cls, sample_ids: Sequence[str], columns: Mapping[str, ColumnData], schema: pa.Schema | None = None) -> Batch:
        """A batch of *columns* (lists, numpy, Arrow, torch, jagged pairs) typed by *schema*, else by the registry."""
        schema = schema if schema is not None else schema_of(list(columns))
        fields = [schema.field(name) for name in columns]
        arrays = [to_arrow(columns[f.name], f, sample_ids) for f in fields]
        return cls(sample_ids, pa.table(arrays, schema=pa.schema(fields)))

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __contains__(self, name: object) -> bool:
        return name in self.table.column_names

    def __iter__(self) -> Iterator[str]:
        return iter(self.table.column_names)

    def __repr__(self) -> str:
        return f"Batch({len(self)} samples, columns {', '.join(self.table.column_names)})"

    def array(self, name: str) -> pa.Array:
        """Column *name* as one Arrow array."""
        try:
            column = self.table.column(name)
        except KeyError:
            raise InputError(f"batch has no column {name!r}{did_you_mean(name, self.table.column_names)}") from None
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def values(self, name: str) -> list[Any]:
        """Column *name* as Python values, None where missing."""
        return self.array(name).to_pylist()

    def take(self, rows: Sequence[int]) -> Batch:
        """The rows at these positions, in this order, as a batch of their own."""
        picked = self.table.take(pa.array(rows, type=pa.int64()))
        return Batch([self.sample_ids[row] for row in rows], picked, writable=True)

    def with_columns(self, columns: Mapping[str, ColumnData]) -> Batch:
        """This batch with *columns* added (or replaced), typed by the registry."""
        table = self.table
        for name, data in columns.items():
            field = schema_of([name]).field(0) if name in REGISTRY else self.table.schema.field(name)
            array = to_arrow(data, field, self.sample_ids)
            at = table.schema.get_field_index(name)
            table = table.append_column(field, array) if at < 0 else table.set_column(at, field, array)
        return Batch(self.sample_ids, table)

    # -- torch ------------------------------------------------------------------------------------

    def lengths(self, name: str = "input_ids") -> np.ndarray:
        """Entries per sample of token column *name*; shape [B], int64; 0 where missing."""
        array = self.array(name)
        return np.diff(_offsets(array))

    def tensor(self, name: str) -> torch.Tensor:
        """A per-sample numeric or boolean column; shape [B]. Raises InputError if a value is missing."""
        array = self.array(name)
        if array.null_count:
            row = array.is_null().to_pylist().index(True)
            raise InputError(f"column {name!r} of sample {self.sample_ids[row]!r} is missing")
        return self._torch(array, name)

    def jagged(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """A token column as ``(values, offsets)``; shapes [total tokens] and [B + 1], int64.

        A column with a vector per token, such as a teacher's hidden states, has values [total tokens, width].

        A missing row has no entries; use ``array(name)`` to tell it from an empty one.
        """
        array = self.array(name)
        offsets = _offsets(array)
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        import torch

        tensor = self._torch(values, name)
        if (self.table.schema.field(name).metadata or {}).get(b"encoding") == BFLOAT16.encode():
            tensor = tensor.view(torch.bfloat16)
        return tensor, torch.from_numpy(offsets - offsets[0])

    def padded(self, name: str, pad: float = 0, *, multiple: int = 1, length: int | None = None) -> torch.Tensor:
        """A token column as [B, S], right-padded with *pad*; S is the longest row (or *length*), up to a *multiple*."""
        import torch

        values, offsets = self.jagged(name)
        lengths = offsets.diff()
        width = length if length is not None else int(lengths.max()) if len(lengths) else 0
        width = -(-width // multiple) * multiple
        out = torch.full((len(self), width, *values.shape[1:]), pad, dtype=values.dtype)
        out[torch.arange(width) < lengths[:, None]] = values
        return out

    def _torch(self, array: pa.Array, name: str) -> torch.Tensor:
        import torch

        if pa.types.is_fixed_size_list(array.type):
            return self._torch(array.flatten(), name).reshape(len(array), array.type.list_size)
        if pa.types.is_boolean(array.type):
            return torch.from_numpy(array.to_numpy(zero_copy_only=False))
        in_place = self.writable and not array.null_count  # what lies under a null is not NaN
        view = _writable_view(array) if in_place else np.array(array.to_numpy(zero_copy_only=array.null_count == 0))
        metadata = self.table.schema.field(name).metadata or {}
        if metadata.get(b"torch_dtype") == b"bfloat16":
            return torch.from_numpy(view.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(view)


def _offsets(array: pa.Array) -> np.ndarray:
    """int64 offsets of a large list; [B + 1]."""
    if not pa.types.is_large_list(array.type):
        raise InputError(f"expected a token column, got type {array.type}")
    return array.offsets.to_numpy()


class _Memory:
    """Arrow memory as numpy sees it: writable, and kept alive as long as somebody looks."""

    def __init__(self, array: pa.Array, dtype: np.dtype) -> None:
        self.owner = array
        address = array.buffers()[1].address + array.offset * dtype.itemsize
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (len(array),),
            "typestr": dtype.str,
            "version": 3,
        }


def _writable_view(array: pa.Array) -> np.ndarray:
    dtype = np.dtype(array.type.to_pandas_dtype())
    return np.asarray(_Memory(array, dtype)) if len(array) else np.empty(0, dtype)
