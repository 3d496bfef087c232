"""What a teacher ships beside log-probs, as the loss needs it: vectors of states or logits, or its top k."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from schemas.batch import Batch
from schemas.columns import TEACHER_LOGITS, opd_full_payload_field
from schemas.config import RunConfig, get_opd_full_config, get_topk_loss_config
from schemas.errors import InputError
from stages.protocols import Ask


@dataclass(frozen=True)
class Shipment:
    """What to ask of the engine, and for vectors the column and width that they are stored with."""

    ask: Ask = field(default_factory=Ask)
    column: str = ""
    width: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that this adds."""
        top = ("teacher_topk_ids", "teacher_topk_logprobs") if self.ask.top_k else ()
        return (*((self.column,) if self.ask.payload else ()), *top)


def shipment_of(config: RunConfig, width: int) -> Shipment:
    """What the training loss of *config* needs; *width* is that of a payload's vectors."""
    if (full := get_opd_full_config(config)) is not None:
        return Shipment(Ask(full.teacher_payload, full.payload_dtype), opd_full_payload_field(full), width)
    top = get_topk_loss_config(config)
    return Shipment() if top is None else Shipment(Ask(top_k=top.k))


def measured_shipment(vocabulary: int) -> Shipment:
    """What the exact KL on held-out prompts needs."""
    return Shipment(Ask("logits"), TEACHER_LOGITS, vocabulary)


def widened(payload_TW: Tensor, width: int) -> Tensor:
    """*payload_TW* with zeros up to *width*: a narrower teacher uses the first numbers of a vector."""
    missing = width - payload_TW.shape[1]
    if missing < 0:
        raise InputError(f"payload: expected vectors of at most {width} numbers, got {payload_TW.shape[1]}")
    return torch.nn.functional.pad(payload_TW, (0, missing)) if missing else payload_TW


def read_payload(batch: Batch, name: str) -> Tensor:
    """Column *name*, padded with zeros; [B, S, W]. Raises InputError where a row's payload is gone."""
    column = batch.array(name)
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise InputError(
            f"column {name!r} of sample {batch.sample_ids[row]!r} is not there; what teachers ship is cleared after a "
            "checkpoint, as store.payload_retention says"
        )
    return batch.padded(name)
