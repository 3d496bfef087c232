"""What every section of a recipe shares: strict types, no unknown keys, no infinities, frozen once read."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A mapping in a recipe. Every field has a description, which ``opd run --dry-run`` prints."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, validate_default=False)


#: Two numbers, which YAML writes as a list.
Pair = Annotated[tuple[float, float], Field(strict=False)]
