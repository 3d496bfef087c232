"""What callers may hand in as a column, turned into exactly the declared Arrow type.

Accepted: lists, numpy arrays, Arrow arrays, torch tensors (1-D for scalars, 2-D or nested/jagged for token
columns), and ``(values, offsets)`` pairs. Nothing is cast with loss: a float for an integer column, a number
out of range or a value of another kind is refused, naming the row. A lone surrogate in text becomes U+FFFD.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.errors import InputError

ColumnData = Any  # list | numpy | Arrow | torch | (values, offsets)

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_SURROGATE = re.compile("[\ud800-\udfff]")


def to_arrow(data: ColumnData, field: pa.Field, sample_ids: Sequence[str]) -> pa.Array:
    """*data* as one contiguous Arrow array of ``field.type`` with a value per sample id.

    Raises InputError naming the column, and the row where one is to blame.
    """
    array = _convert(data, field, sample_ids)
    if len(array) != len(sample_ids):
        raise InputError(f"column {field.name!r}: expected {len(sample_ids)} values, one per id, got {len(array)}")
    if pa.types.is_large_list(field.type) and array.values.null_count:
        _refuse_holes(array, field, sample_ids)
    return array


def _refuse_holes(array: pa.Array, field: pa.Field, sample_ids: Sequence[str]) -> None:
    """A row may be missing, and so may a log-prob inside one (NaN in tensors); a whole number or a flag may not."""
    if pa.types.is_integer(field.type.value_type) or pa.types.is_boolean(field.type.value_type):
        for sample_id, row in zip(sample_ids, array, strict=True):
            if row.is_valid and row.values.null_count:
                place = row.as_py().index(None)
                what = f"column {field.name!r} of sample {sample_id!r}: value {place} is missing"
                raise InputError(f"{what}; give one for every token, or null for the whole row")


def _convert(data: ColumnData, field: pa.Field, sample_ids: Sequence[str]) -> pa.Array:
    if isinstance(data, pa.ChunkedArray):
        data = data.combine_chunks()
    if isinstance(data, pa.Array):
        return _cast(data, field)
    if isinstance(data, tuple) and len(data) == 2 and pa.types.is_large_list(field.type):
        return _from_jagged(*data, field)
    if _is_torch(data):
        return _from_tensor(data, field, sample_ids)
    if isinstance(data, np.ndarray):
        return _from_numpy(data, field, sample_ids)
    return _from_sequence(data, field, sample_ids)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type == field.type:
        return array
    if not _fits(_kind(array.type), _kind(field.type)):
        raise _wrong(field, f"Arrow {array.type}")
    try:
        cast = array.cast(field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _wrong(field, f"Arrow {array.type}", str(error)) from None
    if _kind(array.type).endswith("number") and _num_infinite(cast) > _num_infinite(array):
        raise _wrong(field, "a number beyond its range")
    return cast


def _kind(type_: pa.DataType) -> str:
    """What values of a type are, whatever their width."""
    if pa.types.is_dictionary(type_):
        return _kind(type_.value_type)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return f"list of {_kind(type_.value_type)}"
    names = {"integer": pa.types.is_integer, "number": pa.types.is_floating, "text": _is_text, "null": pa.types.is_null}
    return next((name for name, holds in names.items() if holds(type_)), str(type_))


def _fits(given: str, wanted: str) -> bool:
    """Arrow would read '12' as 12, True as 1 and 2.0 as 2; only whole numbers may become numbers."""
    return given in (wanted, "null") or given == wanted.replace("number", "integer") or given == "list of null"


def _is_text(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)


def _num_infinite(array: pa.Array) -> int:
    while not pa.types.is_floating(array.type):
        array = array.flatten()
    return int(np.isinf(array.to_numpy(zero_copy_only=False)).sum())


def _from_jagged(values: Any, offsets: Any, field: pa.Field) -> pa.Array:
    flat = _flat_values(values, field)
    ends = np.ascontiguousarray(_numpy(offsets), dtype=np.int64)
    if ends.ndim != 1 or len(ends) == 0 or ends[0] != 0 or ends[-1] != len(flat) or (np.diff(ends) < 0).any():
        raise InputError(
            f"column {field.name!r}: offsets must rise from 0 to the number of values ({len(flat)}); got {ends[:4]}…"
        )
    return pa.LargeListArray.from_arrays(pa.array(ends), flat, type=field.type)


def _from_tensor(tensor: Any, field: pa.Field, sample_ids: Sequence[str]) -> pa.Array:
    if tensor.is_nested:
        if not pa.types.is_large_list(field.type):
            raise _wrong(field, "a nested tensor")
        if str(tensor.layout) != "torch.jagged":
            return _from_sequence(tensor.unbind(), field, sample_ids)
        return _from_jagged(tensor.values(), tensor.offsets(), field)
    if tensor.dim() == 2 and pa.types.is_large_list(field.type):
        rows, width = tensor.shape
        return _from_jagged(tensor.reshape(-1), np.arange(rows + 1, dtype=np.int64) * width, field)
    return _from_numpy(_numpy(tensor), field, sample_ids, torch_dtype=str(tensor.dtype).removeprefix("torch."))


def _from_numpy(
    array: np.ndarray, field: pa.Field, sample_ids: Sequence[str], torch_dtype: str | None = None
) -> pa.Array:
    if array.ndim == 2 and pa.types.is_large_list(field.type):
        return _from_jagged(array.reshape(-1), np.arange(len(array) + 1, dtype=np.int64) * array.shape[1], field)
    if array.ndim != 1 or (pa.types.is_large_list(field.type) and array.dtype != object):
        raise _wrong(field, f"an array of shape {array.shape}")
    if array.dtype.kind in "OU":  # objects, and text, in which numpy allows lone surrogates
        return _from_sequence(array.tolist(), field, sample_ids)
    return _cast(_flat(array, torch_dtype, field.type), field)


def _flat_values(values: Any, field: pa.Field) -> pa.Array:
    torch_dtype = str(values.dtype).removeprefix("torch.") if _is_torch(values) else None
    inner = pa.field(field.name, field.type.value_type, metadata=field.metadata)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return _cast(values, inner)
    if pa.types.is_fixed_size_list(inner.type):
        return _from_vectors(_numpy(values), torch_dtype, inner)
    return _cast(_flat(_numpy(values), torch_dtype, inner.type), inner)


def _from_vectors(array: np.ndarray, torch_dtype: str | None, field: pa.Field) -> pa.Array:
    """A vector per token: [tokens, width] as fixed-size lists."""
    width, inner = field.type.list_size, pa.field(field.name, field.type.value_type, metadata=field.metadata)
    if array.ndim != 2 or array.shape[1] != width:
        raise _wrong(field, f"an array of shape {array.shape}")
    return pa.FixedSizeListArray.from_arrays(_cast(_flat(array.reshape(-1), torch_dtype, inner.type), inner), width)


def _flat(array: np.ndarray, torch_dtype: str | None, wanted: pa.DataType) -> pa.Array:
    if torch_dtype == "bfloat16" and pa.types.is_floating(wanted):  # widen bits: bf16 is the top half of float32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return pa.array(np.ascontiguousarray(array))


def _from_sequence(rows: Any, field: pa.Field, sample_ids: Sequence[str]) -> pa.Array:
    try:
        rows = list(rows)
    except TypeError:
        raise _wrong(field, type(rows).__name__) from None
    if any(_is_array_type(kind) for kind in set(map(type, rows))):
        return _from_ragged(rows, field)
    try:
        return _from_python(rows, field)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _first_bad(rows, field, sample_ids, error) from None


def _from_ragged(rows: list[Any], field: pa.Field) -> pa.Array:
    """Rows that are arrays themselves: one concatenation; null rows stay null."""
    if not pa.types.is_large_list(field.type):
        return _from_python([row.item() if hasattr(row, "item") else row for row in rows], field)
    lengths = np.fromiter((0 if row is None else len(row) for row in rows), dtype=np.int64, count=len(rows))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    parts = [_flat_values(part, field) for part in _joined([row for row in rows if row is not None and len(row)])]
    flat = pa.concat_arrays(parts) if parts else pa.array([], field.type.value_type)
    mask = pa.array([row is None for row in rows]) if any(row is None for row in rows) else None
    return pa.LargeListArray.from_arrays(pa.array(offsets), flat, type=field.type, mask=mask)


def _joined(rows: list[Any]) -> list[Any]:
    """*rows* as one array if they are arrays or tensors of one kind, which is much faster; else as they are."""
    arrays = all(isinstance(row, np.ndarray) for row in rows)
    if not rows or not (arrays or all(map(_is_torch, rows))):
        return rows
    if len({(row.dtype, getattr(row, "device", None), row.shape[1:]) for row in rows}) > 1:
        return rows
    return [np.concatenate(rows) if arrays else sys.modules["torch"].cat(rows)]


def _from_python(rows: list[Any], field: pa.Field) -> pa.Array:
    _refuse_kind_mixups(rows, field)
    try:
        array = pa.array(rows, type=field.type)
    except UnicodeEncodeError:
        return pa.array([clean_text(row) for row in rows], type=field.type)
    if pa.types.is_float32(_value_type(field)) and _num_infinite(array):
        _refuse_overflow(rows, field)
    return array


def clean_text(value: Any) -> Any:
    """*value* with lone surrogates, which no UTF-8 can hold, replaced by U+FFFD at any depth."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: clean_text(item) for key, item in value.items()}
    return [clean_text(item) for item in value] if isinstance(value, list) else value


def _refuse_kind_mixups(rows: list[Any], field: pa.Field) -> None:
    """True is no 1 and 2.0 no integer, though Python and Arrow would take them."""
    kind = _value_type(field)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return
    items = _items(rows, field)
    whole = pa.types.is_integer(kind)
    refused = (bool, np.bool_, float) if whole else (bool, np.bool_)
    if any(issubclass(given, refused) for given in set(map(type, items))):
        item = next(item for item in items if isinstance(item, refused))
        raise TypeError(f"{item!r} is not of type {kind}")


def _refuse_overflow(rows: list[Any], field: pa.Field) -> None:
    """1e300 is no float32, though Arrow would make an infinity of it."""
    finite = (abs(item) for item in _items(rows, field) if item is not None and abs(item) < math.inf)
    largest = max(finite, default=0.0)
    if largest > _LARGEST_FLOAT32:
        raise ValueError(f"{largest!r} is beyond the range of {_value_type(field)}")


def _value_type(field: pa.Field) -> pa.DataType:
    return field.type.value_type if pa.types.is_large_list(field.type) else field.type


def _items(rows: list[Any], field: pa.Field) -> list[Any]:
    """The single values of *rows*."""
    nested = pa.types.is_large_list(field.type)
    return list(chain.from_iterable(row for row in rows if row is not None)) if nested else rows


def _first_bad(rows: list[Any], field: pa.Field, sample_ids: Sequence[str], error: Exception) -> InputError:
    for sample_id, row in zip(sample_ids, rows, strict=False):
        try:
            _from_python([row], field)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as reason:
            what = f"column {field.name!r} of sample {sample_id!r}"
            return InputError(f"{what}: expected {field.type}, got {_short(row)} ({reason})")
    return _wrong(field, "these values", str(error))


def _wrong(field: pa.Field, got: str, reason: str = "") -> InputError:
    return InputError(f"column {field.name!r}: expected {field.type}, got {got}{f' ({reason})' if reason else ''}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_array_type(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return issubclass(kind, (np.ndarray, pa.Array)) or (torch is not None and issubclass(kind, torch.Tensor))


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _numpy(value: Any) -> np.ndarray:
    """A host array of *value*'s bits; bf16, which numpy lacks, comes as uint16."""
    if not _is_torch(value):
        return np.asarray(value)
    tensor = value.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        return tensor.contiguous().view(sys.modules["torch"].int16).numpy().view(np.uint16)
    return tensor.numpy()
