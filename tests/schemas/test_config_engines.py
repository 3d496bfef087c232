"""What a recipe may ask of vLLM."""

from __future__ import annotations

import pytest

from schemas.config import load_recipe
from schemas.errors import ConfigError

APART = "on_policy_distillation.non_colocated_teachers"
TEACHERS = [
    f"{APART}.enabled=true",
    f"{APART}.default_teacher_cfg.engine=vllm",
    f"{APART}.default_teacher_cfg.gpus_per_node=0",
    f"{APART}.default_teacher_cfg.precision=fp32",
]


def test_raw_logprobs_go_with_any_sampling():
    load_recipe("quickstart", ["generator.engine=vllm", "generator.sampling.temperature=0.5"])
    load_recipe("quickstart", ["generator.engine=vllm", "generator.sampling.top_p=0.9"])


@pytest.mark.parametrize("cut", ["top_p=0.9", "top_k=5"])
def test_processed_logprobs_of_a_cut_vocabulary_are_refused(cut):
    asked = ["generator.engine=vllm", "generator.logprobs_mode=processed", f"generator.sampling.{cut}"]
    with pytest.raises(ConfigError, match=f"generator.sampling.{cut[:5]} leaves, not of the whole vocabulary"):
        load_recipe("quickstart", asked)


@pytest.mark.parametrize("key", ["logprobs_mode=processed", "weight_update=abort", "kv_cache_bytes=1000"])
def test_settings_of_vllm_are_refused_for_another_engine(key):
    with pytest.raises(ConfigError, match=f"generator.{key.partition('=')[0]}: has no effect"):
        load_recipe("quickstart", [f"generator.{key}"])


def test_a_vllm_teacher_is_refused_where_logits_would_be_measured():
    load_recipe("quickstart", [*TEACHERS, "validation.exact_kl_rows=0"])
    with pytest.raises(
        ConfigError, match=r"exact_kl_rows \(128\) needs; set it to 0, or use the engine hf or megatron"
    ):
        load_recipe("quickstart", TEACHERS)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("on_policy_distillation.log_topk_stats=true", "log_topk_stats"),
        ("on_policy_distillation.full.enabled=true", "neither hidden states nor logits"),
        ("on_policy_distillation.topk_loss.enabled=true", "topk_loss"),
    ],
)
def test_a_vllm_teacher_is_refused_where_more_than_logprobs_is_shipped(asked, said):
    with pytest.raises(ConfigError, match=said):
        load_recipe("quickstart", [*TEACHERS, "validation.exact_kl_rows=0", asked])
