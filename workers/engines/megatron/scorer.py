"""Scoring given tokens with a frozen Megatron model: teachers, and the base of the trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.collectives import all_max
from stages.losses.full_vocabulary import shift_states
from stages.losses.projection import project
from stages.protocols import Ask, Masks, Scores
from stages.topk import TopK
from stages.vocab_parallel import WHOLE, VocabularyShard
from workers.engines.batching import MicroBatch, plan
from workers.engines.hf_model import pad_right
from workers.engines.megatron.architecture import Architecture
from workers.engines.megatron.checkpoint import Checkpoint
from workers.engines.megatron.cpu import megatron_code
from workers.engines.megatron.layout import Layout, join
from workers.engines.megatron.model import StatesOnly, build, fill, parts
from workers.engines.megatron.stage import Stage
from workers.engines.megatron.vocabulary import Head
from workers.engines.spreading import Named, decode, encode
from workers.ranks import ALONE, Ranks

#: Makes the results of one micro-batch from its rows, their numbers, and their states [B, S, H].
Run = Callable[[list[Sequence[int]], MicroBatch, Tensor], list[Named]]


class MegatronScorer:
    """A PayloadScorer over a Megatron model that its ranks share: tensor, pipeline and context parallel in each
    replica, rows over the replicas.

    At most ``batch_size`` sequences and ``batch_tokens`` tokens share a forward pass. Ids from *vocabulary_size* on
    are padding of the LM head: outside every softmax, in no result.
    """

    def __init__(
        self,
        path: str | Path,
        dtype: str = "float32",
        *,
        batch_size: int = 256,
        batch_tokens: int | None = None,
        vocabulary_size: int | None = None,
        ranks: Ranks = ALONE,
        tensor_model_parallel_size: int = 1,
        pipeline_model_parallel_size: int = 1,
        context_parallel_size: int = 1,
        overrides: Mapping[str, Any] | None = None,
        sequence_packing: bool = False,
    ) -> None:
        self.path, self.ranks = path, ranks
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self.architecture = Architecture.read(path)
        self.layout: Layout = join(
            ranks,
            tensor=tensor_model_parallel_size,
            pipeline=pipeline_model_parallel_size,
            context=context_parallel_size,
        )
        self.model: StatesOnly = build(
            self.architecture, self.layout, getattr(torch, dtype), overrides or {}, str(path)
        )
        self.parts = parts(self.model, self.architecture)
        self._fill(path)
        self.stage = Stage(self.model, self.layout, ids=self.architecture.rows, packed=sequence_packing)
        self.max_length = self.architecture.max_length
        self.vocabulary_size = min(vocabulary_size or self.architecture.rows, self.architecture.rows)

    def _fill(self, path: str | Path) -> None:
        for _ in fill(self.parts, Checkpoint(path), self.layout):
            pass

    @classmethod
    def load(cls, path: str | Path, dtype: str = "float32", **options: Any) -> MegatronScorer:
        """A frozen teacher: no parameter takes a gradient, and there is no room for any."""
        scorer = cls(path, dtype, **options)
        scorer.model.requires_grad_(False)
        return scorer

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.layout.device

    @property
    def shard(self) -> VocabularyShard:
        """Which ids this rank's part of the LM head is of."""
        tensor = self.layout.tensor
        if tensor.size == 1:
            return WHOLE
        held = self.model.vocab_size // tensor.size
        return VocabularyShard(tensor.rank * held, held, tensor.group)

    def lm_head(self) -> Tensor:
        """This rank's part of the LM head, padding included, without a gradient; empty before the last stage."""
        if not self.layout.pipeline.last:
            return torch.empty(0, self.architecture.hidden, dtype=self.model.config.params_dtype, device=self.device)
        return self.model.head().detach()

    @property
    def head(self) -> Head:
        """On the last stage."""
        return Head(self.model.head(), self.shard, self.vocabulary_size)

    # -- scoring --------------------------------------------------------------------------------------

    def logprobs(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[Tensor]:
        def run(some: list[Sequence[int]], part: MicroBatch, states: Tensor) -> list[Named]:
            return [{"logprobs": row} for row in self._logprobs(some, states, temperature)]

        return [named["logprobs"] for named in self._spread(sequences, run)]

    def logits(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        def run(some: list[Sequence[int]], part: MicroBatch, states: Tensor) -> list[Named]:
            return [{"logits": self._logits(row).float().cpu()} for row in _rows(states, some)]

        return [named["logits"] for named in self._spread(sequences, run)]

    def top_k(self, sequences: Sequence[Sequence[int]], masks: Masks, k: int, temperature: float) -> list[TopK]:
        def run(some: list[Sequence[int]], part: MicroBatch, states: Tensor) -> list[Named]:
            return [top._asdict() for top in self._top_k(states, [masks[row] for row in part], k, temperature)]

        return [TopK(**named) for named in self._spread(sequences, run)]

    def score(self, sequences: Sequence[Sequence[int]], masks: Masks, temperature: float, ask: Ask) -> list[Scores]:
        def run(some: list[Sequence[int]], part: MicroBatch, states: Tensor) -> list[Named]:
            found = [{"token_logprobs": row} for row in self._logprobs(some, states, temperature)]
            if ask.payload is not None:
                for named, row in zip(found, _rows(states, some), strict=True):
                    named["payload"] = self._payload(row, ask)
            if ask.top_k is not None:
                tops = self._top_k(states, [masks[row] for row in part], ask.top_k, temperature)
                for named, top in zip(found, tops, strict=True):
                    named.update(top._asdict())
            return found

        return [
            Scores(
                named.pop("token_logprobs"), named.pop("payload", None), None if ask.top_k is None else TopK(**named)
            )
            for named in self._spread(sequences, run)
        ]

    def head_error(self, sequences: Sequence[Sequence[int]]) -> float:
        def run(some: list[Sequence[int]], part: MicroBatch, states: Tensor) -> list[Named]:
            with megatron_code():
                logits = self.model.output_layer(states.transpose(0, 1), self.model.head())[0].transpose(0, 1).float()
            apart = (logits - project(states.flatten(0, 1), self.model.head()).view_as(logits)).abs().amax()
            both = torch.stack([apart, logits.abs().amax()])
            both = all_max(both, self.shard.group)
            return [{"error": (both[0] / both[1]).cpu()[None]} for _ in some]

        return max((float(named["error"]) for named in self._spread(sequences, run)), default=0.0)

    # -- the work of one replica --------------------------------------------------------------------------

    @torch.no_grad()
    def _spread(self, sequences: Sequence[Sequence[int]], run: Run) -> list[Named]:
        """What *run* makes of each sequence, on whichever replica; the same on every rank."""
        self.stage.assert_known(sequences)  # all of them, so that every rank raises or none
        lengths = list(map(len, sequences))
        shares = plan(lengths, self.layout.data.size, rows=self.batch_size, tokens=self.batch_tokens)
        found: list[Named] = []
        for part in shares[self.layout.data.rank]:
            some = [sequences[row] for row in part]
            states = self._states(some)
            if states is not None:
                found += run(some, part, states)
        self.stage.flush()
        results = [found] if self.ranks.size == 1 else map(decode, self.layout.gather(encode(found)))
        by_row = {
            row: named
            for share, part in zip(shares, results, strict=True)
            for row, named in zip((row for micro in share for row in micro), part, strict=True)
        }
        return [by_row[row] for row in range(len(sequences))]

    def _states(self, rows: Sequence[Sequence[int]]) -> Tensor | None:
        """Final hidden states, row t after token t, [B, S, H]; None before the last stage."""
        inputs = self.stage.inputs(rows)
        states = self.stage.run(inputs, self.stage.receive(inputs))
        if self.layout.pipeline.last:
            return inputs.rows(states)
        self.stage.send(states)
        return None

    def _logprobs(self, rows: Sequence[Sequence[int]], states_BSH: Tensor, temperature: float) -> list[Tensor]:
        ids = pad_right(rows, states_BSH.device)[0]
        return _rows(self.head.logprobs(states_BSH, ids, temperature).cpu(), rows)

    def _logits(self, states_TH: Tensor) -> Tensor:
        """What each token of a row was drawn from; row 0 is 0."""
        return shift_states(self.head.logits(states_TH)[None])[0]

    def _payload(self, states_TH: Tensor, ask: Ask) -> Tensor:
        vectors = self._logits(states_TH) if ask.payload == "logits" else shift_states(states_TH[None])[0]
        return vectors.to(getattr(torch, ask.dtype)).cpu()

    def _top_k(self, states_BSH: Tensor, masks: Masks, k: int, temperature: float) -> list[TopK]:
        """Only the states of tokens in the masks ever meet the LM head, a few at a time."""
        states = shift_states(states_BSH)
        picked = [row[: len(mask)][torch.tensor(mask)] for row, mask in zip(states, masks, strict=True)]
        tops = self.head.top_k(torch.cat(picked), k, temperature)
        columns = [column.cpu().split(list(map(len, picked))) for column in tops]
        return [TopK(*row) for row in zip(*columns, strict=True)]


def _rows(padded: Tensor, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """Rows of *padded* [B, S, …] without their padding."""
    return [padded[row, : len(sequence)] for row, sequence in enumerate(sequences)]
