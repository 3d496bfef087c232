"""How many bytes full-vocabulary distillation takes, known before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas.errors import InputError

if TYPE_CHECKING:
    from schemas.config import OnPolicyDistillationFullConfig

#: Numbers in one chunk of logits (32 MiB of float32), and in one block of a head that is widened to float32.
CHUNK_NUMBERS = 2**23

ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}

#: Tables of one chunk that exist together: both sides' log-probs, their difference, probabilities and a mask.
TABLES_PER_CHUNK = 5


@dataclass(frozen=True)
class HeadShape:
    """A teacher's LM head: rows, columns, and bytes a number."""

    vocabulary: int
    hidden: int
    itemsize: int

    @property
    def size_bytes(self) -> int:
        return self.vocabulary * self.hidden * self.itemsize


@dataclass(frozen=True)
class FullBytes:
    """``payload`` of the steps that the store keeps; teacher ``heads`` and ``chunks`` on the training device."""

    payload: int
    heads: int
    chunks: int


def estimate_full_bytes(
    full: OnPolicyDistillationFullConfig,
    tokens_per_step: int,
    vocabulary: int,
    heads: Sequence[HeadShape],
    steps: int = 1,
) -> FullBytes:
    """Bytes for *steps* steps of *tokens_per_step* tokens (prompts included) over *vocabulary* shared ids."""
    hidden = full.teacher_payload == "hidden_states"
    width = max(head.hidden for head in heads) if hidden else vocabulary
    chunk = full.chunk_size * vocabulary if full.chunk_size else max(CHUNK_NUMBERS, vocabulary)
    return FullBytes(
        payload=steps * tokens_per_step * width * ITEMSIZE[full.payload_dtype],
        heads=sum(head.size_bytes for head in heads) if hidden else 0,
        chunks=chunk * 4 * TABLES_PER_CHUNK,
    )


def assert_full_fits(needed: FullBytes, store_bytes: int | None, device_bytes: int | None) -> None:
    """Raise InputError when the payload exceeds *store_bytes* or the rest *device_bytes* (None: unknown)."""
    if store_bytes is not None and needed.payload > store_bytes:
        raise InputError(
            f"on_policy_distillation.full: the payload takes {_gib(needed.payload)}, the store has "
            f"{_gib(store_bytes)}; use teacher_payload hidden_states, a narrower payload_dtype, smaller steps, a "
            "shorter checkpointing.period or a smaller store.payload_retention"
        )
    device = needed.heads + needed.chunks
    if device_bytes is not None and device > device_bytes:
        raise InputError(
            f"on_policy_distillation.full: teacher heads ({_gib(needed.heads)}) and chunks ({_gib(needed.chunks)}) "
            f"exceed the {_gib(device_bytes)} that are free; use a smaller chunk_size or fewer teachers"
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
