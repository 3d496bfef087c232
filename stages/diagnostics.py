"""What one sample says about teacher and student, and how these numbers go together over a step.

Per sample, over the generated tokens whose log-probs are finite: sum, mean and mean size of the gap
d = teacher - student, and the entropy approximations mean(-exp(lp - generation)·lp) of student and teacher.
Per step: Pearson and Spearman correlations of reward, gap and entropies over the trained rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stages.masking import fill, masked_sum

#: name of a correlation → the two per-sample numbers it is between.
PAIRS = {
    "reward_gap": ("reward", "gap_mean"),
    "reward_abs_gap": ("reward", "gap_abs_mean"),
    "reward_student_entropy": ("reward", "student_entropy"),
    "reward_teacher_entropy": ("reward", "teacher_entropy"),
    "gap_student_entropy": ("gap_mean", "student_entropy"),
    "gap_teacher_entropy": ("gap_mean", "teacher_entropy"),
}


def sample_stats(
    generation_BS: Tensor, student_BS: Tensor, teacher_BS: Tensor | None, token_mask_BS: Tensor
) -> dict[str, Tensor]:
    """The per-sample columns; [B], NaN where a row has nothing to average over, or no teacher."""
    columns = [generation_BS, student_BS] if teacher_BS is None else [generation_BS, student_BS, teacher_BS]
    finite = token_mask_BS & torch.stack([column.isfinite() for column in columns]).all(0)
    generation, student = fill(generation_BS, finite), fill(student_BS, finite)
    count = finite.sum(1)
    stats = {
        "student_entropy": _mean(token_entropy(student, generation), finite),
        "num_tokens": token_mask_BS.sum(1),
        "num_finite": count,
    }
    if teacher_BS is None:
        nothing = torch.full_like(stats["student_entropy"], torch.nan)
        return stats | dict.fromkeys(("gap_sum", "gap_mean", "gap_abs_mean", "teacher_entropy"), nothing)
    teacher = fill(teacher_BS, finite)
    gap = teacher - student
    return stats | {
        "gap_sum": torch.where(count > 0, masked_sum(gap, finite, dim=1), torch.nan),
        "gap_mean": _mean(gap, finite),
        "gap_abs_mean": _mean(gap.abs(), finite),
        "teacher_entropy": _mean(token_entropy(teacher, generation), finite),
    }


def token_entropy(logprobs: Tensor, generation: Tensor) -> Tensor:
    """-exp(lp - generation)·lp, whose mean over sampled tokens approximates the entropy of the policy of *logprobs*."""
    return -(logprobs - generation).exp() * logprobs


def _mean(values_BS: Tensor, mask_BS: Tensor) -> Tensor:
    return masked_sum(values_BS, mask_BS, dim=1) / mask_BS.sum(1)  # 0 / 0 is the NaN we want


def correlations(stats: dict[str, Tensor], rows_B: Tensor) -> dict[str, float]:
    """``pearson_…`` and ``spearman_…`` of every pair in ``PAIRS`` over *rows_B*. *stats* also holds ``reward``."""
    out = {}
    for name, (first, second) in PAIRS.items():
        x, y = stats[first][rows_B].double(), stats[second][rows_B].double()
        both = x.isfinite() & y.isfinite()
        out[f"pearson_{name}"] = pearson(x[both], y[both])
        out[f"spearman_{name}"] = spearman(x[both], y[both])
    return out


def pearson(x: Tensor, y: Tensor) -> float:
    """Linear correlation; NaN below two points or when one side does not vary."""
    if len(x) < 2 or x.max() == x.min() or y.max() == y.min():
        return float("nan")
    dx, dy = x - x.mean(), y - y.mean()
    return float(dx @ dy / (dx.norm() * dy.norm()))


def spearman(x: Tensor, y: Tensor) -> float:
    """Correlation of ranks, ties sharing their average rank; NaN as in :func:`pearson`."""
    return pearson(average_ranks(x), average_ranks(y))


def average_ranks(values: Tensor) -> Tensor:
    """Ranks from 0; equal values get the mean of the ranks they take up. [2, 5, 5] → [0, 1.5, 1.5]."""
    _, group, count = values.unique(return_inverse=True, return_counts=True)
    return (count.cumsum(0) - (count + 1) / 2).double()[group]
