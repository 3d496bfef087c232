"""Types: the few Arrow types that a store can hold and DuckDB cannot read, and how people read them."""

from __future__ import annotations

import pyarrow as pa


def readable(type_: pa.DataType) -> pa.DataType:
    """The type that a column has in SQL: its own, but that DuckDB has no 16-bit floats and no 256-bit decimals."""
    if pa.types.is_float16(type_):
        return pa.float32()
    if pa.types.is_decimal256(type_):
        return pa.float64()
    if pa.types.is_large_list(type_):
        return pa.large_list(readable(type_.value_type))
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(readable(type_.value_type), type_.list_size)
    if pa.types.is_list(type_):
        return pa.list_(readable(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(readable(field.type)) for field in type_])
    return type_


def as_readable(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """*column* in its readable type; itself where that is the type it has."""
    return column if column.type == type_ else column.cast(type_)


def type_name(type_: pa.DataType) -> str:
    """An Arrow type in words, without the names of list items."""
    if pa.types.is_large_list(type_) or pa.types.is_list(type_):
        return f"{'large_list' if pa.types.is_large_list(type_) else 'list'}<{type_name(type_.value_type)}>"
    if pa.types.is_fixed_size_list(type_):
        return f"{type_name(type_.value_type)}[{type_.list_size}]"
    if pa.types.is_struct(type_):
        return "struct<" + ", ".join(f"{field.name}: {type_name(field.type)}" for field in type_) + ">"
    if pa.types.is_map(type_):
        return f"map<{type_name(type_.key_type)}, {type_name(type_.item_type)}>"
    return str(type_)
