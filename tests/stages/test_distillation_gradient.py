"""What reaches the student: advantage and loss together."""

import pytest
import torch

from schemas.config import OnPolicyDistillationConfig
from stages.advantages.opd import OPDAdvantageEstimator
from stages.losses.chunked_divergence import FullVocabulary, full_vocabulary_divergence
from stages.losses.counts import Counts
from stages.losses.policy_gradient import LossBatch, policy_gradient_loss
from stages.losses.projection import Logits
from tests.stages.ragged import CONFIGS, ragged_batch


def distil(teacher, batch, config, **knobs):
    """(loss, gradient by the current log-probs) of one step on the student's own log-probs."""
    mask = batch.token_mask & batch.sample_mask[:, None]
    advantages = OPDAdvantageEstimator(OnPolicyDistillationConfig(**knobs))(teacher, batch.student_logprobs, mask)
    current = batch.student_logprobs.clone().requires_grad_()
    columns = (batch.token_mask, batch.sample_mask, batch.generation_logprobs, batch.student_logprobs)
    counts = Counts.of(batch.token_mask, batch.sample_mask)
    result = policy_gradient_loss(current, LossBatch(*columns, advantages.values_BS), counts, config)
    result.loss.backward()
    return float(result.loss.detach()), current.grad


@pytest.mark.parametrize("alpha", [1.0, 0.4])
@pytest.mark.parametrize("name", ["reinforce icepop", "ppo", "cispo", "gspo"])
def test_a_teacher_equal_to_the_student_gives_exactly_nothing(name, alpha):
    batch, _ = ragged_batch(dtype=torch.float32)
    loss, gradient = distil(batch.student_logprobs.clone(), batch, CONFIGS[name], proximal_teacher_alpha=alpha)
    assert loss == 0.0 and not gradient.any()


@pytest.mark.parametrize("name", ["reinforce icepop", "ppo", "cispo", "gspo"])
def test_a_changed_teacher_changes_the_gradient(name):
    batch, teacher = ragged_batch()
    _, one = distil(teacher, batch, CONFIGS[name])
    _, other = distil(teacher + 0.1, batch, CONFIGS[name])
    assert not torch.allclose(one, other, atol=1e-4)


def test_the_sampled_gradient_averages_to_the_exact_reverse_kl():
    """Each token weighed by its probability: the expectation over samples, without sampling."""
    student = torch.randn(1, 6, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(1, 6, dtype=torch.float64)
    logprobs = student.log_softmax(-1)
    advantages = teacher.log_softmax(-1) - logprobs.detach()
    expected = (logprobs.exp().detach() * -advantages * logprobs).sum()
    exact = full_vocabulary_divergence(Logits(student), Logits(teacher), FullVocabulary()).sum()
    sampled, whole = (torch.autograd.grad(loss, student)[0] for loss in (expected, exact))
    assert torch.allclose(sampled, whole, atol=1e-12)
