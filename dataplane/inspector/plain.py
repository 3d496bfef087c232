"""Values as JSON has them, the page's way: NaN and ±inf as texts, times in ISO form, huge whole numbers as texts."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from typing import Any

#: Largest whole number that a browser holds exactly.
_EXACT = 2**53


def plain(value: Any) -> Any:
    """*value* out of what JSON knows."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _EXACT else str(value)
    if isinstance(value, float):
        return (
            value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        )
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, Decimal):
        return plain(int(value)) if value == value.to_integral_value() else float(value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def to_json(value: Any) -> bytes:
    """One JSON text, UTF-8."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
