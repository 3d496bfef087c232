"""What vLLM cannot do exactly, refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from schemas.config.enabled import get_non_colocated_teachers, get_opd_full_config, get_topk_loss_config
from schemas.errors import ConfigError

if TYPE_CHECKING:
    from schemas.config.run import RunConfig

_TEACHERS = "on_policy_distillation.non_colocated_teachers"


def assert_vllm_records_exact_logprobs(config: RunConfig) -> None:
    """Raise if vLLM's processed log-probs, which are taken after top-p and top-k, would not be the whole vocabulary's.

    Raw ones always are: the engine divides the model's logits by the temperature.
    """
    generator, sampling = config.generator, config.generator.sampling
    if generator.engine != "vllm" or generator.logprobs_mode != "processed":
        return
    for key, is_set in (("top_p", sampling.top_p != 1), ("top_k", sampling.top_k is not None)):
        if is_set:
            raise ConfigError(
                "generator.logprobs_mode: processed log-probs of vllm are those of the tokens that "
                f"generator.sampling.{key} leaves, not of the whole vocabulary; set it to raw, or remove {key}"
            )


def assert_vllm_teachers_can_score(config: RunConfig) -> None:
    """Raise if a teacher on vLLM is asked for more than the log-probs of given tokens."""
    apart, teachers = get_non_colocated_teachers(config), config.on_policy_distillation.aliases_by_teacher
    if apart is None or all(apart.resources(aliases).engine != "vllm" for aliases in teachers):
        return
    for problem in _beyond_vllm(config):
        raise ConfigError(f"{_TEACHERS}: {problem}")


def _beyond_vllm(config: RunConfig) -> Iterator[str]:
    others = "use the engine hf or megatron"
    if get_opd_full_config(config) is not None:
        yield f"a vllm teacher ships neither hidden states nor logits for on_policy_distillation.full; {others}"
    if get_topk_loss_config(config) is not None:
        yield f"a vllm teacher has no logsumexp beside its top k for on_policy_distillation.topk_loss; {others}"
    if config.on_policy_distillation.log_topk_stats:
        yield f"a vllm teacher has no logsumexp beside its top k for on_policy_distillation.log_topk_stats; {others}"
    if config.validation.exact_kl_rows > 0 and config.data.validation:
        yield (
            "a vllm teacher ships no logits, which the exact KL of validation.exact_kl_rows "
            f"({config.validation.exact_kl_rows}) needs; set it to 0, or {others}"
        )
