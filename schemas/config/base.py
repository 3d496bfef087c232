"""What every section of a recipe shares: strict types, no unknown keys, no infinities, frozen once read."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A mapping in a recipe. Every field has a description, which ``opd run --dry-run`` prints."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, validate_default=False)


#: Two numbers, which YAML writes as a list.
Pair = Annotated[tuple[float, float], Field(strict=False)]

#: The sizes whose product is the ranks of one replica of a model, and what they count.
MODEL_PARALLEL = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
TensorParallel = Annotated[int, Field(ge=1, description="ranks that share each layer")]
PipelineParallel = Annotated[int, Field(ge=1, description="ranks that share the stack of layers")]
ContextParallel = Annotated[int, Field(ge=1, description="ranks that share a sequence")]


class ModelParallel:
    """Of a section that has the three sizes, among its own keys in the order that it prints them."""

    @property
    def model_parallel_sizes(self) -> dict[str, int]:
        """Over how many ranks one replica of the model is spread, and along what."""
        return {name: getattr(self, name) for name in MODEL_PARALLEL}

    @property
    def replica_ranks(self) -> int:
        """Ranks of one replica."""
        return math.prod(self.model_parallel_sizes.values())
