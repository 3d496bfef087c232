"""Model engines, chosen by the recipe. Only the chosen one's library is imported.

    hf         transformers in plain PyTorch: generates, scores, trains
    vllm       generates and scores
    megatron   scores and trains, a model over several ranks

All keep to stages/protocols.py and pass one suite of tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from schemas.errors import InputError
from stages.protocols import Generator, PayloadScorer, Scorer, TrainEngine
from workers.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from schemas.config import RunConfig


class SyncedGenerator(Generator, Protocol):
    """A generator whose weights follow the trainer's."""

    #: Version of the weights it samples from.
    version: int

    def load_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None: ...

    def scorer(self) -> Scorer:
        """Scores under the very weights and code that sample, so that a sync can be proved."""
        ...


class InterruptibleGenerator(SyncedGenerator, Protocol):
    """One that can drop what it is sampling when weights are published."""

    def follow(self, newest: Callable[[], int], load_newest: Callable[[], None]) -> None:
        """Ask *newest* for the published version while requests run; on another one drop them, load, begin again."""
        ...


class Trainer(TrainEngine, PayloadScorer, Protocol):
    """A training engine with a state that is published, saved and restored. All its ranks are asked alike."""

    @property
    def device(self) -> torch.device: ...

    def weights(self) -> dict[str, torch.Tensor]:
        """The parameters on the CPU under their Hugging Face names, tied ones once; on the leader at least."""
        ...

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take these parameters, named as ``weights`` names them; the optimizer stays as it is."""
        ...

    def lm_head(self) -> torch.Tensor:
        """This rank's part of the LM head, [V, H] on one rank."""
        ...

    def snapshot(self) -> Callable[[Path], None]:
        """Copy the state; what comes back writes this rank's part into a directory, from any thread.

        The leader's part includes a checkpoint that transformers can load.
        """
        ...

    def restore(self, directory: Path) -> None:
        """Continue from what ``snapshot`` wrote."""
        ...

    def reset(self, directory: str | Path) -> None:
        """Start over from the weights in *directory*, as if nothing had been trained."""
        ...


def build_generator(config: RunConfig, stop_ids: Sequence[int], vocabulary: int) -> SyncedGenerator:
    """The generator that *config* names."""
    options: dict[str, Any] = {
        "max_length": config.policy.max_total_sequence_length,
        "batch_size": config.generator.batch_size,
        "vocabulary_size": vocabulary,
    }
    if config.generator.engine == "vllm":
        from workers.engines.vllm.generator import VLLMGenerator

        return VLLMGenerator.load(config.policy.model, stop_ids, **options, config=config)
    from workers.engines.hf.generator import HFGenerator

    return HFGenerator.load(config.policy.model, stop_ids, **options)


def build_scorer(
    path: str,
    engine: str = "hf",
    dtype: str = "float32",
    *,
    ranks: Ranks = ALONE,
    parallel: Mapping[str, Any] | None = None,
    **options: Any,
) -> PayloadScorer:
    """A frozen model at *path*. *parallel* holds what only megatron reads: its sizes and overrides."""
    if engine == "megatron":
        from workers.engines.megatron.scorer import MegatronScorer

        return MegatronScorer.load(path, dtype, ranks=ranks, **(parallel or {}), **options)
    if engine == "vllm":
        from workers.engines.vllm.scorer import VLLMScorer

        return VLLMScorer.load(path, dtype, **options)
    if engine != "hf":
        raise InputError(f"engine {engine!r}: expected hf, vllm or megatron")
    from workers.engines.hf.scorer import HFScorer

    return HFScorer.load(path, dtype, ranks=ranks, **options)


def build_trainer(config: RunConfig, vocabulary: int, ranks: Ranks = ALONE) -> Trainer:
    """The trainer that *config* names, or one of its *ranks*."""
    options: dict[str, Any] = {"max_steps": config.grpo.max_num_steps, "vocabulary_size": vocabulary, "ranks": ranks}
    if config.trainer.engine == "megatron":
        from workers.engines.megatron.trainer import build_trainer as build_megatron

        return build_megatron(config.policy.model, config, **options)
    from workers.engines.hf.trainer import build_trainer as build_hf

    return build_hf(config.policy.model, config, **options)
