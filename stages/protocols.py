"""What a stage asks of an engine. Engines (HF, vLLM, Megatron) live with the workers and are passed in.

Sequences are lists of token ids; log-probs come back one per token of the sequence, input-position aligned
(entry t describes token t, entry 0 is 0.0), float32, at ``temperature``, over the full vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from schemas.batch import Batch

if TYPE_CHECKING:
    import torch

    from stages.topk import TopK
    from stages.vocab_parallel import VocabularyShard

#: Which tokens of each sequence are meant.
Masks = Sequence[Sequence[bool]]


@dataclass(frozen=True)
class Sampling:
    """How to sample one response. Temperature 0 is greedy; its log-probs are those of temperature 1.

    ``top_p`` and ``top_k`` cut what can be drawn; the log-prob recorded is still the full vocabulary's.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 16
    seed: int = 0


@dataclass(frozen=True)
class Completion:
    """One sampled response: its tokens, their log-probs, and why it ended ("stop" or "length")."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str
    weight_version: int
    weight_version_max: int


class ChatTokenizer(Protocol):
    """Text to prompt ids and back; responses are never tokenised again."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...
    def decode(self, token_ids: Sequence[int]) -> str: ...


class Generator(Protocol):
    """Samples responses from the student's current weights."""

    #: Longest prompt plus response it takes, in tokens.
    max_length: int

    def generate(
        self, sample_ids: Sequence[str], prompts: Sequence[Sequence[int]], sampling: Sequence[Sampling]
    ) -> list[Completion]:
        """One completion per prompt. Noise depends on (seed, sample id, position) alone."""
        ...


class Scorer(Protocol):
    """Scores given tokens under fixed weights."""

    max_length: int
    vocabulary_size: int

    def logprobs(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[torch.Tensor]:
        """Log-probs per sequence: a float32 tensor as long as the sequence."""
        ...

    def logits(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Raw logits per sequence, [length, V]: row t is what token t was drawn from; row 0 is 0."""
        ...


@dataclass(frozen=True)
class Ask:
    """What a scorer is to give beside log-probs: a payload of vectors in *dtype*, or the top k of some tokens."""

    payload: Literal["hidden_states", "logits"] | None = None
    dtype: str = "float32"
    top_k: int | None = None


@dataclass(frozen=True)
class Scores:
    """What one sequence of T tokens got.

    ``logprobs`` [T]; ``payload`` [T, H] or [T, V], row t being what token t was predicted from and row 0 being 0;
    ``top`` has an entry for each token that was asked for, in order.
    """

    logprobs: torch.Tensor
    payload: torch.Tensor | None = None
    top: TopK | None = None


class TopKScorer(Scorer, Protocol):
    """A Scorer that shows its most likely tokens. Nothing is computed for tokens that are not asked for."""

    def top_k(self, sequences: Sequence[Sequence[int]], masks: Masks, k: int, temperature: float) -> list[TopK]:
        """Per sequence the top k in place of each token in its mask: exact float32 log-probs at *temperature*."""
        ...


class PayloadScorer(TopKScorer, Protocol):
    """A Scorer that ships what a distribution loss needs, from one forward pass."""

    def score(self, sequences: Sequence[Sequence[int]], masks: Masks, temperature: float, ask: Ask) -> list[Scores]:
        """Log-probs and what *ask* says, per sequence."""
        ...

    def head_error(self, sequences: Sequence[Sequence[int]]) -> float:
        """Largest difference between the model's logits and ``lm_head(hidden states)``, as a share of the largest."""
        ...


#: ``loss(current_logprobs_BS, micro_batch) -> scalar``; the micro-batch's share of the global batch's loss.
MicroBatchLoss = Callable[["torch.Tensor", Batch], "torch.Tensor"]

#: The same of ``(states_BSH, lm_head_VH, micro_batch)``, row t of the states being what token t is predicted from.
#: Where the vocabulary is cut over ranks, the head is this rank's part.
StatesLoss = Callable[["torch.Tensor", "torch.Tensor", Batch], "torch.Tensor"]


@dataclass(frozen=True)
class Update:
    """What one optimizer step did."""

    grad_norm: float
    learning_rate: float
    stepped: bool


class TrainEngine(TopKScorer, Protocol):
    """The student being trained, in one process or in several *replicas* that share the rows of a batch.

    Every process asks its engine the same. Each replica runs the loss of its own rows; scores are everybody's.
    """

    @property
    def shard(self) -> VocabularyShard:
        """Which ids this process's part of the LM head is of."""
        ...

    def micro_batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """The rows of this replica by index, a list for each micro-batch, in order. Known from the lengths alone."""
        ...

    def gather(self, message: bytes) -> list[bytes]:
        """What the processes that ran the loss have to say, one for each replica, in every process."""
        ...

    def forward_backward(self, batch: Batch, loss: MicroBatchLoss, temperature: float) -> float:
        """Accumulate gradients over the micro-batches of *batch*, this replica's rows; the sum of their losses."""
        ...

    def forward_backward_states(self, batch: Batch, loss: StatesLoss) -> float:
        """The same for a loss of hidden states and LM head."""
        ...

    def update(self) -> Update:
        """One optimizer step on the gradients of all replicas, summed, which are then cleared."""
        ...

    def take_gradient(self) -> torch.Tensor:
        """Two numbers a parameter tensor, its gradient's norm and a projection of it; the gradients are cleared."""
        ...
