"""This rank's place among those that hold a model together.

With tensor size 2, pipeline size 2 and eight ranks, two replicas of the model ("tp-cp-ep-dp-pp", tensor fastest):

    rank        0 1 2 3 4 5 6 7
    tensor      0 1 0 1 0 1 0 1
    data        0 0 1 1 0 0 1 1
    pipeline    0 0 0 0 1 1 1 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import HashStore

from schemas.errors import InputError
from workers.engines.megatron.cpu import megatron_code
from workers.engines.megatron.library import parallel_state, tensor_parallel
from workers.ranks import PATIENCE, Ranks


class Place(NamedTuple):
    """This rank's number among *size* that differ in one direction alone, and their group."""

    rank: int
    size: int
    group: dist.ProcessGroup

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def last(self) -> bool:
        return self.rank == self.size - 1


@dataclass(frozen=True)
class Layout:
    """Directions in which *ranks* differ: parts of a layer, of the stack, of a sequence, and of the batch."""

    ranks: Ranks
    tensor: Place
    pipeline: Place
    context: Place
    data: Place
    #: All ranks with the same parameters: data and context parallel.
    copies: dist.ProcessGroup
    #: The first and the last stage, which both hold a tied embedding; None elsewhere and in one stage.
    embedding: dist.ProcessGroup | None

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    def world_rank(self, *, tensor: int = 0, context: int = 0, data: int = 0, pipeline: int = 0) -> int:
        """The rank at these places."""
        return tensor + self.tensor.size * (context + self.context.size * (data + self.data.size * pipeline))

    def stage(self, pipeline: int) -> int:
        """The rank that differs from this one in its stage alone."""
        return self.world_rank(
            tensor=self.tensor.rank, context=self.context.rank, data=self.data.rank, pipeline=pipeline
        )

    @property
    def speaks(self) -> bool:
        """Whether this rank has what its replica found out, and says so for all of it."""
        return self.pipeline.last and self.tensor.first and self.context.first

    def gather(self, message: bytes) -> list[bytes]:
        """The message of each replica's speaker, in order of replicas, on every rank."""
        messages = self.ranks.gather(message if self.speaks else b"")
        last = self.pipeline.size - 1
        return [messages[self.world_rank(data=data, pipeline=last)] for data in range(self.data.size)]


def join(ranks: Ranks, *, tensor: int = 1, pipeline: int = 1, context: int = 1) -> Layout:
    """The layout of *ranks* with these sizes; what is left over is data parallel.

    Raises InputError if the ranks are no whole number of replicas, or the process holds a model of other sizes.
    """
    replica = tensor * pipeline * context
    if ranks.size % replica:
        raise InputError(
            f"{ranks.size} ranks are no multiple of the {replica} that one replica takes "
            f"(tensor {tensor} × pipeline {pipeline} × context {context})"
        )
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    if parallel_state.is_initialized():
        _assert_same(tensor, pipeline, context)
    else:
        _initialize(tensor, pipeline, context)
    state = parallel_state
    return Layout(
        ranks,
        _place(state.get_tensor_model_parallel_group()),
        _place(state.get_pipeline_model_parallel_group()),
        _place(state.get_context_parallel_group()),
        _place(state.get_data_parallel_group()),
        state.get_data_parallel_group(with_context_parallel=True),
        _embedding_group(),
    )


def _initialize(tensor: int, pipeline: int, context: int) -> None:
    with megatron_code():
        parallel_state.initialize_model_parallel(
            tensor,
            pipeline,
            context_parallel_size=context,
            distributed_timeout_minutes=int(PATIENCE.total_seconds() // 60),
            create_gloo_process_groups=False,
        )
    if torch.cuda.is_available():
        tensor_parallel.model_parallel_cuda_manual_seed(0)


def _assert_same(tensor: int, pipeline: int, context: int) -> None:
    state = parallel_state
    sizes = (
        state.get_tensor_model_parallel_world_size(),
        state.get_pipeline_model_parallel_world_size(),
        state.get_context_parallel_world_size(),
    )
    if sizes != (tensor, pipeline, context):
        raise InputError(
            f"this process holds a Megatron model of sizes {sizes} (tensor, pipeline, context), and all in a process "
            f"have the same: got {(tensor, pipeline, context)}; give this one processes of its own"
        )


def _place(group: dist.ProcessGroup) -> Place:
    return Place(dist.get_rank(group), dist.get_world_size(group), group)


def _embedding_group() -> dist.ProcessGroup | None:
    one_stage = parallel_state.get_pipeline_model_parallel_world_size() == 1
    if one_stage or not parallel_state.is_rank_in_embedding_group():
        return None
    return parallel_state.get_embedding_group()
