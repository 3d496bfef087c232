"""One rank of a teacher group, in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stages.protocols import PayloadScorer, Scores
from stages.topk import TopK
from workers.engines.spreading import Named, encode
from workers.executors.host import own_address
from workers.ranks import ALONE, Ranks, meet, meeting_point, use_interface

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore


class TeacherRank:
    """Loads its part of the model and runs what all ranks run; only the leader's answer is anything."""

    def __init__(self, rank: int, size: int, threads: int, directory: Path) -> None:
        torch.set_num_threads(threads)
        os.chdir(directory)  # paths resolve as they do for whoever started this
        self.rank, self.size = rank, size
        self.scorer: PayloadScorer
        self._meeting: TCPStore | None = None

    def open_meeting(self) -> tuple[str, int]:
        """Of the leader: where the other ranks find it."""
        host = own_address()
        self._meeting, port = meeting_point(host)
        return host, port

    def begin(self, load: Callable[..., PayloadScorer], meeting: tuple[str, int] | None) -> tuple[int, int]:
        """Meet the others and load the model; the longest sequence that it takes, and its vocabulary."""
        ranks = ALONE
        if meeting is not None:
            use_interface(meeting[0])
            ranks = Ranks.join(self._meeting or meet(*meeting), self.rank, self.size)
        self.scorer = load(ranks=ranks)
        return self.scorer.max_length, self.scorer.vocabulary_size

    def call(self, method: str, *arguments: Any) -> bytes:
        """``scorer.method(*arguments)`` as bytes."""
        result = getattr(self.scorer, method)(*arguments)
        if self.rank:
            return b""
        return encode([_named(row) for row in (result if isinstance(result, Sequence) else [result])])

    def ping(self) -> bool:
        return True


def _named(row: float | torch.Tensor | TopK | Scores) -> Named:
    """What one sequence got, as tensors by name."""
    if isinstance(row, TopK):
        return row._asdict()
    if not isinstance(row, Scores):
        return {"value": torch.as_tensor(row)}
    named = {"scored": row.logprobs}
    if row.payload is not None:
        named["payload"] = row.payload
    if row.top is not None:
        named |= {f"top.{name}": value for name, value in row.top._asdict().items()}
    return named
