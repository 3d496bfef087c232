"""The distillation gap d = teacher log-prob - student log-prob, a constant.

As an advantage it is on-policy distillation (OPD, arXiv 2601.02780): a sampled token is pushed up exactly as far
as the teacher likes it better than the student does, which is the policy gradient of the reverse KL.
"""

from __future__ import annotations

from torch import Tensor

from stages.masking import fill


def gap(teacher_BS: Tensor, student_BS: Tensor, mask_BS: Tensor) -> Tensor:
    """d where *mask_BS*, 0 elsewhere; nats, [B, S]. Exactly 0 where teacher and student are equal."""
    return (fill(teacher_BS, mask_BS) - fill(student_BS, mask_BS)).detach()
