"""Divergences between two next-token distributions, and their gradients by the student's logits.

    reverse_kl  Σ p_S (log p_S - log p_T)                      the student covers what it can of the teacher's mode
    forward_kl  Σ p_T (log p_T - log p_S)                      the student covers all of the teacher
    jsd         β KL(p_T || M) + (1 - β) KL(p_S || M),         M = (1 - β) p_S + β p_T, 0 < β < 1

The gradient by the student's logit z_v is p_S(v)·(u_v - Σ p_S u) with u = dL/dp_S up to a constant:
log p_S - log p_T, and (1 - β)(log p_S - log M); for the forward KL it is p_S - p_T. log M - log p_S is the
proximal teacher's log(β e^d + 1 - β) with d = log p_T - log p_S, exactly 0 where both agree.

Everything takes log-probs [N, V], of one rank's slice when the vocabulary is cut over *group*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch import distributed as dist

from schemas.errors import InputError
from stages.advantages.proximal import proximal
from stages.collectives import all_sum

Kind = Literal["reverse_kl", "forward_kl", "jsd"]


@dataclass(frozen=True)
class Divergence:
    """Which divergence, and β for ``jsd``. β = 0 and 1 are the forward and the reverse KL by name, not limits."""

    kind: Kind = "reverse_kl"
    beta: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in ("reverse_kl", "forward_kl", "jsd"):
            raise InputError(f"divergence: expected reverse_kl, forward_kl or jsd, got {self.kind!r}")
        if self.kind == "jsd" and not 0 < self.beta < 1:
            raise InputError(f"jsd beta: expected 0 < beta < 1, got {self.beta}; use forward_kl (0) or reverse_kl (1)")

    def value(self, student: Tensor, teacher: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
        """The divergence of each row; [N]."""
        if self.kind == "reverse_kl":
            parts = weigh(student, student - teacher)
        elif self.kind == "forward_kl":
            parts = weigh(teacher, teacher - student)
        else:
            gap = teacher - student
            mixture = proximal(gap, self.beta)  # log M - log p_S
            parts = self.beta * weigh(teacher, gap - mixture) - (1 - self.beta) * weigh(student, mixture)
        return all_sum(parts.sum(-1), group)

    def gradient(self, student: Tensor, teacher: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
        """d value / d student logits; [N, V]."""
        if self.kind == "forward_kl":
            return student.exp() - teacher.exp()
        if self.kind == "reverse_kl":
            weighted = weigh(student, student - teacher)
        else:
            weighted = weigh(student, proximal(teacher - student, self.beta)).mul_(self.beta - 1)
        mean = all_sum(weighted.sum(-1), group)
        return weighted.sub_(student.exp().mul_(mean[:, None]))


def divergence_of(kind: Kind, beta: float) -> Divergence:
    """The divergence that a recipe names; the ends of the generalised JSD are the KLs themselves."""
    if kind == "jsd" and beta in (0, 1):
        return Divergence("forward_kl" if beta == 0 else "reverse_kl")
    return Divergence(kind, beta)


def weigh(log_p: Tensor, values: Tensor) -> Tensor:
    """p·values, written over *values*, since another [N, V] would double the memory of a chunk.

    0 where p is 0, whatever the value: a token that neither side can produce contributes nothing.
    """
    p = log_p.exp()
    return values.masked_fill_(p == 0, 0.0).mul_(p)
