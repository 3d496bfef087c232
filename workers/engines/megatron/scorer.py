"""Scoring given tokens with a frozen Megatron model: teachers, and the base of the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.collectives import all_max
from stages.losses.projection import project
from stages.topk import TopK
from stages.vocab_parallel import WHOLE, VocabularyShard
from workers.engines.batching import MicroBatch, plan
from workers.engines.hf.model import pad_right
from workers.engines.megatron.architecture import Architecture
from workers.engines.megatron.checkpoint import Checkpoint
from workers.engines.megatron.cpu import megatron_code
from workers.engines.megatron.layout import Layout, join
from workers.engines.megatron.model import StatesOnly, build, fill, parts
from workers.engines.megatron.stage import Stage
from workers.engines.megatron.vocabulary import Head
from workers.engines.scoring import Run, Sequences, StatesScorer
from workers.engines.spreading import Named, decode, encode, in_order
from workers.ranks import ALONE, Ranks


class MegatronScorer(StatesScorer):
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

    def head_error(self, sequences: Sequences) -> float:
        def run(rows: Sequences, part: MicroBatch, states: Tensor) -> list[Named]:
            with megatron_code():
                logits = self.model.output_layer(states.transpose(0, 1), self.model.head())[0].transpose(0, 1).float()
            apart = (logits - project(states.flatten(0, 1), self.model.head()).view_as(logits)).abs().amax()
            both = torch.stack([apart, logits.abs().amax()])
            both = all_max(both, self.shard.group)
            return [{"error": (both[0] / both[1]).cpu()[None]} for _ in rows]

        return max((float(named["error"]) for named in self._spread(sequences, run)), default=0.0)

    # -- the work of one replica --------------------------------------------------------------------------

    @torch.no_grad()
    def _spread(self, sequences: Sequences, run: Run) -> list[Named]:
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
        return in_order(shares, [found] if self.ranks.size == 1 else map(decode, self.layout.gather(encode(found))))

    def _states(self, rows: Sequence[Sequence[int]]) -> Tensor | None:
        """Final hidden states, row t after token t, [B, S, H]; None before the last stage."""
        inputs = self.stage.inputs(rows)
        states = self.stage.run(inputs, self.stage.receive(inputs))
        if self.layout.pipeline.last:
            return inputs.rows(states)
        self.stage.send(states)
        return None

    def _logprobs(self, rows: Sequences, states_BSH: Tensor, temperature: float) -> Tensor:
        return self.head.logprobs(states_BSH, pad_right(rows, states_BSH.device)[0], temperature)

    def _logits(self, states_TH: Tensor) -> Tensor:
        return self.head.logits(states_TH)

    def _best(self, states_NH: Tensor, k: int, temperature: float) -> TopK:
        return self.head.top_k(states_NH, k, temperature)
