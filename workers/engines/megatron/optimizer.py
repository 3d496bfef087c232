"""AdamW over the parts of a model that ranks share: reductions of gradients, their norm, and float32 master weights.

After all micro-batches of a global batch, each rank has the gradient of its own rows, and these are added up over

    tensor ranks       for norms of queries and keys: each rank applied them to its own heads
                       (under sequence parallelism for all norms: each rank saw its own tokens)
    first, last stage  for a tied embedding, which both hold a copy of
    replicas           for everything: the loss is divided by global counts already
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import Parameter

from workers.engines.megatron.layout import Layout
from workers.engines.megatron.mapping import Whole
from workers.engines.megatron.model import Part

#: Added to the norm when gradients are clipped, as torch does.
_EPS = 1e-6
_TIED = ("embedding.word_embeddings.weight", "output_layer.weight")
#: Numbers that travel together (128 MiB).
BUCKET = 2**25


class ShardedAdamW:
    """Updates the parameters that this rank holds. Weights narrower than float32 have a master copy in it."""

    def __init__(
        self,
        held: Mapping[str, Part],
        layout: Layout,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        tied: bool,
        sequence_parallel: bool = False,
    ) -> None:
        self.held, self.layout, self.lr = held, layout, lr
        self.sequence_parallel = sequence_parallel
        #: Parameters on the first and on the last stage that are one tensor.
        self.copied = (
            {"embedding.word_embeddings.weight", "output_layer.weight"} if tied and layout.embedding else set()
        )
        self.masters = {name: self._master(part.parameter) for name, part in held.items()}
        self.adamw = torch.optim.AdamW(self.masters.values(), lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _master(self, parameter: Parameter) -> Parameter:
        if parameter.dtype == torch.float32:
            return parameter
        master = Parameter(parameter.detach().float())

        def accumulate(_: Tensor) -> None:
            """In float32, whatever the type of the weights."""
            assert parameter.grad is not None
            gradient = parameter.grad.float()
            master.grad = gradient if master.grad is None else master.grad + gradient
            parameter.grad = None

        parameter.register_post_accumulate_grad_hook(accumulate)
        return master

    def set_masters(self, name: str, value: Tensor) -> None:
        """The exact *value* of a parameter that was just set."""
        if self.masters[name] is not self.held[name].parameter:
            self.masters[name].data.copy_(value)

    # -- gradients ------------------------------------------------------------------------------------

    @property
    def has_gradient(self) -> bool:
        """Whether any loss of this rank reached a parameter."""
        return any(master.grad is not None for master in self.masters.values())

    def gradient(self, name: str) -> Tensor:
        """Of one parameter; zeros where no row of this rank reached it."""
        master = self.masters[name]
        if master.grad is None:
            master.grad = torch.zeros_like(master)
        return master.grad

    def reduce(self) -> None:
        """Give every rank the gradient of the global batch. All ranks must call it."""
        layout, gradients = self.layout, {name: self.gradient(name) for name in self.held}
        if layout.tensor.size > 1:
            _sum([gradients[name] for name, part in self.held.items() if self._partial(part)], layout.tensor.group)
        if layout.embedding is not None:
            _sum([gradient for name, gradient in gradients.items() if name in self.copied], layout.embedding)
        if layout.data.size * layout.context.size > 1:
            _sum(list(gradients.values()), layout.copies)
        if layout.context.size > 1:
            for gradient in gradients.values():
                gradient /= layout.context.size  # each took the gradient of all its replica's tokens

    def _partial(self, part: Part) -> bool:
        """Whether tensor ranks have parts of the gradient of a parameter that they all hold."""
        return isinstance(part.unit.cut, Whole) and (part.unit.cut.summed or self.sequence_parallel)

    def norm(self) -> float:
        """Of the whole model's gradient: what several ranks hold copies of counts once."""
        squares = torch.zeros((), dtype=torch.float64, device=self.layout.device)
        for name, part in self.held.items():
            if self._counts(name, part):
                squares += self.gradient(name).norm().double() ** 2
        for place in (self.layout.tensor, self.layout.pipeline):
            if place.size > 1:
                dist.all_reduce(squares, group=place.group)
        return math.sqrt(float(squares)) if squares.isfinite() else math.nan

    def _counts(self, name: str, part: Part) -> bool:
        if name in self.copied and name.startswith("output_layer"):
            return False
        return self.layout.tensor.first or not isinstance(part.unit.cut, Whole)

    def clear(self) -> None:
        self.adamw.zero_grad(set_to_none=True)

    # -- updates --------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, rate: float, limit: float | None) -> float:
        """Clip the reduced gradients to *limit*, step at *rate*, clear them; their norm before.

        Raises RuntimeError, having changed nothing, where it is not finite.
        """
        norm = self.norm()
        if not math.isfinite(norm):
            raise RuntimeError("the norm of the gradient is non-finite: no step was taken; look at the step's losses")
        if limit is not None and norm + _EPS > limit:
            for name in self.held:
                self.gradient(name).mul_(limit / (norm + _EPS))
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()
        for name, part in self.held.items():
            if self.masters[name] is not part.parameter:
                part.parameter.copy_(self.masters[name])
        self.clear()
        return norm

    # -- state ----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Moments and master weights of this rank, by parameter and name."""
        named = {
            f"{name}|{key}": value
            for name, master in self.masters.items()
            for key, value in self.adamw.state.get(master, {}).items()
        }
        masters = {n: m for n, m in self.masters.items() if m is not self.held[n].parameter}
        return named | {f"{name}|master": master.detach() for name, master in masters.items()}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what ``state`` gave."""
        self.forget()
        for full, value in state.items():
            name, _, key = full.rpartition("|")
            master = self.masters[name]
            if key == "master":
                master.copy_(value)
                self.held[name].parameter.copy_(master)
            else:
                # the count of steps stays on the CPU, as AdamW keeps it
                self.adamw.state[master][key] = value if value.dim() == 0 else value.to(master.device)

    def forget(self) -> None:
        """As if nothing had been trained; the weights stay."""
        self.adamw.state.clear()
        self.clear()


def _sum(gradients: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Add up *gradients* over the ranks of *group*, in place, many in one message."""
    waiting = list(gradients)
    while waiting:
        bucket: list[Tensor] = []
        numbers = 0
        while waiting and (not bucket or numbers + waiting[0].numel() <= BUCKET):
            bucket.append(waiting.pop(0))
            numbers += bucket[-1].numel()
        together = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(together, group=group)
        parts = together.split([gradient.numel() for gradient in bucket])
        for gradient, part in zip(bucket, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
