"""Values of scalar columns as small codes by slot, so that ``where`` and groups need no scan. Made on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from dataplane.catalog.partition import Partition
from dataplane.numbers import Bools, Grown, Ints
from schemas.columns import refuse_unknown
from schemas.errors import InputError
from schemas.records import Plain

#: Values of a column at some slots, missing ones null.
ReadColumn = Callable[[Partition, str, Ints], pa.Array]

#: The column that says which rows form a group.
GROUP = "group_id"

_UNKNOWN = -1

#: Values wanted of a column whose conversion is remembered.
_MOST_ASKED = 1024

#: Changes are looked at when asked for, or when so many wait.
_BACKLOG = 256


class ColumnIndex:
    """A code per slot for one scalar column; equal values have equal codes, and rows without the column have −1."""

    def __init__(self, partition: Partition, column: str, read: ReadColumn) -> None:
        field = _scalar_field(partition, column)
        self._partition, self._column, self._read, self._type = partition, column, read, field.type
        self._codes = Grown(np.int32, _UNKNOWN, partition.size)
        self._seen = Grown(np.int32, -1, partition.size)
        self._known: dict[Plain, int] = {}
        self._typed_as: dict[tuple[type, Plain], Plain] = {}
        self._stale: list[Ints] = []  # row numbers whose value must be read again
        partition.attached += [self._codes, self._seen]
        self.touched(partition.live_slots())

    def touched(self, slots: Ints) -> None:
        """Rows whose cells may have changed."""
        cells = self._partition.cells.get(self._column)
        if cells is None:
            return
        blocks = cells.block.data[slots]
        changed = slots[blocks != self._seen.data[slots]]
        if len(changed):
            self._seen.data[changed] = cells.block.data[changed]
            self._codes.data[changed] = _UNKNOWN
            self._stale.append(self._partition.numbers_at(changed))
            if len(self._stale) > _BACKLOG:
                self._refresh()

    def moved(self, slots: Ints) -> None:
        """Rows whose values lie elsewhere by now."""
        cells = self._partition.cells.get(self._column)
        if cells is not None:
            self._seen.data[slots] = cells.block.data[slots]

    def codes(self, slots: Ints) -> Ints:
        """Codes of these rows."""
        self._refresh()
        return self._codes.data[slots]

    def wanted(self, values: Sequence[Plain]) -> list[int]:
        """Codes of *values*; those that no row has are left out. Raises InputError for values of another type."""
        self._refresh()
        found = (self._known.get(self._typed(value)) for value in values)
        return [code for code in found if code is not None]

    def matches(self, slots: Ints, values: Sequence[Plain]) -> Bools:
        """Which of these rows have one of *values*."""
        return np.isin(self.codes(slots), self.wanted(values))

    def _typed(self, value: Plain) -> Plain:
        """*value* as the column holds it: what claims ask for is asked again and again."""
        asked = type(value), value
        if asked not in self._typed_as:
            if len(self._typed_as) > _MOST_ASKED:
                self._typed_as.clear()
            self._typed_as[asked] = self._cast(value)
        return self._typed_as[asked]

    def _cast(self, value: Plain) -> Plain:
        try:
            return pa.scalar(value, type=self._type).as_py()
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise InputError(
                f"where: column {self._column!r} holds {self._type}, got {value!r}; give values of that type"
            ) from None

    def _refresh(self) -> None:
        if not self._stale:
            return
        slots = self._partition.slots(np.unique(np.concatenate(self._stale)))
        self._stale.clear()
        slots = slots[slots >= 0]
        slots = slots[self._partition.present(self._column, slots)]
        encoded = self._read(self._partition, self._column, slots).dictionary_encode(null_encoding="encode")
        values = encoded.dictionary.to_pylist()
        codes = np.array([self._known.setdefault(value, len(self._known)) for value in values], dtype=np.int32)
        if len(slots):
            self._codes.data[slots] = codes[encoded.indices.to_numpy(zero_copy_only=False)]


class GroupIndex:
    """Rows of each group, by the code of the column ``group_id``."""

    def __init__(self, partition: Partition, column: ColumnIndex) -> None:
        self._partition, self._column = partition, column
        self._rows: dict[int, list[int]] = {}
        self._fresh: list[Ints] = [partition.numbers_at(partition.live_slots())]

    def touched(self, slots: Ints) -> None:
        """Rows that may be new in a group."""
        self._fresh.append(self._partition.numbers_at(slots))
        if len(self._fresh) > _BACKLOG:
            self._refresh()

    def groups(self, slots: Ints) -> list[int]:
        """Groups of these rows, each once, in order of appearance."""
        codes = self._column.codes(slots)
        return list(dict.fromkeys(codes[codes >= 0].tolist()))

    def rows(self, group: int) -> Ints:
        """Slots of the rows of a group."""
        self._refresh()
        numbers = sorted(set(self._rows.get(group, ())))
        slots = self._partition.slots(np.array(numbers, dtype=np.int64))
        held = slots[slots >= 0]
        held = held[self._column.codes(held) == group]
        self._rows[group] = self._partition.numbers_at(held).tolist()
        if not len(held):
            self._rows.pop(group)
        return held

    def _refresh(self) -> None:
        if not self._fresh:
            return
        numbers = np.unique(np.concatenate(self._fresh))
        self._fresh.clear()
        slots = self._partition.slots(numbers)
        codes = self._column.codes(slots[slots >= 0])
        for number, code in zip(numbers[slots >= 0].tolist(), codes.tolist(), strict=True):
            if code >= 0:
                self._rows.setdefault(code, []).append(number)


class Indexes:
    """The indexes of one partition, made when first asked for."""

    def __init__(self, partition: Partition, read: ReadColumn) -> None:
        self._partition, self._read = partition, read
        self._columns: dict[str, ColumnIndex] = {}
        self._groups: GroupIndex | None = None
        self._packed = partition.packed

    def column(self, name: str) -> ColumnIndex:
        """The index of a scalar column. Raises InputError for columns that are not there or not scalar."""
        if name not in self._columns:
            self._columns[name] = ColumnIndex(self._partition, name, self._read)
        return self._columns[name]

    def groups(self) -> GroupIndex:
        """The index of groups. Raises InputError for a partition without ``group_id``."""
        if self._groups is None:
            self._groups = GroupIndex(self._partition, self.column(GROUP))
        return self._groups

    def matches(self, slots: Ints, where: dict[str, list[Plain]] | None) -> Bools:
        """Which of these rows have one of the wanted values in every column of *where*."""
        keep = np.ones(len(slots), np.bool_)
        for name, values in (where or {}).items():
            keep &= self.column(name).matches(slots, values)
        return keep

    def touched(self, slots: Ints) -> None:
        """Rows whose cells may have changed."""
        if self._partition.packed != self._packed:
            self._forget()
        for column in self._columns.values():
            column.touched(slots)
        if self._groups is not None:
            self._groups.touched(slots)

    def moved(self, slots: Ints) -> None:
        """Rows whose values lie elsewhere by now."""
        if self._partition.packed != self._packed:
            self._forget()
        for column in self._columns.values():
            column.moved(slots)

    def _forget(self) -> None:
        """Slots moved and values went: the indexes are made again when asked for, without what is gone."""
        self._packed = self._partition.packed
        self._columns.clear()
        self._groups = None
        self._partition.attached.clear()


def _scalar_field(partition: Partition, column: str) -> pa.Field:
    refuse_unknown([column], partition.schema, partition.name)
    field = partition.schema.field(column)
    if pa.types.is_nested(field.type):
        raise InputError(f"column {column!r} is {field.type}; only scalar columns narrow rows")
    return field
