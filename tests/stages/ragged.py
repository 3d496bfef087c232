"""Random ragged batches, and the ways of filling what must not matter."""

import math

import torch

from schemas.config import ClippedPGLossConfig
from stages.losses.policy_gradient import LossBatch

#: What is written to masked positions by tests that say nothing there may matter.
JUNK = (math.nan, math.inf, -math.inf, 1e9)

#: One config of every kind of loss.
CONFIGS = {
    "ppo": ClippedPGLossConfig(ratio_clip_max=0.28),
    "dual clip": ClippedPGLossConfig(ratio_clip_c=1.5),
    "reinforce icepop": ClippedPGLossConfig(
        disable_ppo_ratio=True, use_importance_sampling_correction=True, truncated_importance_sampling_type="icepop"
    ),
    "ppo tis": ClippedPGLossConfig(
        use_importance_sampling_correction=True,
        truncated_importance_sampling_type="tis",
        truncated_importance_sampling_ratio=1.1,
        truncated_importance_sampling_ratio_min=0.7,
    ),
    "seq mask": ClippedPGLossConfig(
        disable_ppo_ratio=True,
        use_importance_sampling_correction=True,
        truncated_importance_sampling_type="seq-mask-tis",
        truncated_importance_sampling_ratio=1.1,
        truncated_importance_sampling_ratio_min=0.8,
    ),
    "cispo": ClippedPGLossConfig(use_cispo=True),
    "gspo": ClippedPGLossConfig(
        sequence_level_importance_ratios=True, token_level_loss=False, use_importance_sampling_correction=True
    ),
    "forced": ClippedPGLossConfig(force_on_policy_ratio=True, use_importance_sampling_correction=True),
    "sequence level": ClippedPGLossConfig(disable_ppo_ratio=True, token_level_loss=False),
    "k1": ClippedPGLossConfig(reference_policy_kl_penalty=0.3, reference_policy_kl_type="k1"),
    "k2": ClippedPGLossConfig(reference_policy_kl_penalty=0.3, reference_policy_kl_type="k2"),
    "k3": ClippedPGLossConfig(reference_policy_kl_penalty=0.3, reference_policy_kl_type="k3"),
}


def ragged_batch(seed=0, lengths=(7, 1, 4, 6, 3), dtype=torch.float64):
    """(LossBatch, current log-probs) with holes in the mask, a dropped row and an empty one."""
    random = torch.Generator().manual_seed(seed)
    size = (len(lengths), max(lengths) + 2)
    position = torch.arange(size[1])
    inside = (position > 0) & (position <= torch.tensor(lengths)[:, None])
    token_mask = inside & (torch.rand(size, generator=random) < 0.8)
    token_mask[1] = False
    sample_mask = torch.tensor([row not in (1, 2) for row in range(size[0])])
    student = -2 * torch.rand(size, generator=random, dtype=dtype)
    near = [student + 0.3 * torch.randn(size, generator=random, dtype=dtype) for _ in range(3)]
    advantages = torch.randn(size, generator=random, dtype=dtype)
    return LossBatch(token_mask, sample_mask, near[0], student, advantages, near[1]), near[2]


def columns_of(batch):
    """The float columns of a LossBatch by name."""
    names = ("generation_logprobs", "student_logprobs", "advantages", "reference_logprobs")
    return {name: getattr(batch, name) for name in names}


def rows_of(batch, rows):
    """The LossBatch of these rows, in this order."""
    columns = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    return LossBatch(**{name: column if column is None else column[rows] for name, column in columns.items()})
