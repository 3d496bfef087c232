"""What the vLLM engine does before and after vLLM itself; vLLM is not imported here."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from schemas.errors import InputError
from tests.workers.engines.models import make_model
from workers.engines.vllm.engine import Engine, read_checkpoint
from workers.engines.vllm.generator import VLLMGenerator
from workers.engines.vllm.heads import wide_head, widen_heads
from workers.engines.vllm.scorer import token_scores
from workers.engines.vllm.settings import engine_arguments, kv_cache_bytes, prepare_environment

#: Two layers, four heads of 32, two of them shared: a token takes 2 × 2 × 2 × 32 × 4 bytes = 1 KiB in float32.
MODEL = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 128}


def given(**logprobs):
    """What vLLM gives for a position: its entries by token id."""
    return {int(token[1:]): SimpleNamespace(logprob=value) for token, value in logprobs.items()}


@pytest.mark.parametrize("variant", ["tied", "untied", "llama"])
def test_a_model_with_heads_widened_computes_the_same(variant, tmp_path):
    model = make_model(tmp_path / "narrow", variant, head_dim=16)
    shutil.copytree(tmp_path / "narrow", tmp_path / "wide")
    config = json.loads((tmp_path / "wide" / "config.json").read_text())
    (tmp_path / "wide" / "config.json").write_text(json.dumps({**config, "head_dim": 32}))
    wide = widen_heads(read_checkpoint(tmp_path / "narrow"), 16, wide_head(config))
    save_file({name: tensor.contiguous() for name, tensor in wide.items()}, tmp_path / "wide" / "model.safetensors")
    ids = torch.tensor([[(11 * at) % 97 for at in range(60)]])
    widened = AutoModelForCausalLM.from_pretrained(tmp_path / "wide", dtype=torch.float32).eval()
    torch.testing.assert_close(widened(ids).logits, model.reference(ids).logits, atol=1e-4, rtol=1e-4)


def test_heads_that_vllm_knows_stay_and_those_that_nothing_fits_are_refused():
    qwen = {"model_type": "qwen3"}
    assert wide_head({"head_dim": 128}) is None and wide_head(MODEL) is None and wide_head(qwen | {"head_dim": 8}) == 32
    for refused in ({"head_dim": 36}, {"head_dim": 16, "rope_parameters": {"rope_type": "yarn"}}):
        with pytest.raises(
            InputError, match=r"vllm on a CPU knows 32, 64, .* with plain RoPE, in qwen3, llama, mistral"
        ):
            wide_head(qwen | refused)
    with pytest.raises(InputError, match="head_dim 16: vllm on a CPU knows 32"):
        wide_head({"model_type": "qwen2", "head_dim": 16})


def test_the_cache_on_a_cpu_holds_all_sequences_in_whole_blocks_up_to_a_limit():
    block = 128 * 1024
    assert kv_cache_bytes(MODEL, "float32", 32, 130, 5) == (5 * 2 + 1) * block
    assert kv_cache_bytes(MODEL, "bfloat16", 32, 128, 5) == (5 + 1) * block // 2
    assert kv_cache_bytes(MODEL, "float32", 32, 128, 10**6) == 4 * 2**30 + block
    assert kv_cache_bytes(MODEL, "float32", 32, 2**23, 5) == 2**33 + block, "one sequence must fit"


def test_a_gpu_gets_a_share_of_its_memory_and_a_cpu_bytes_and_no_compiler():
    options = {"dtype": "float32", "max_length": 128, "batch_size": 2, "gpu_memory_utilization": 0.5}
    on_gpu = engine_arguments("m", MODEL, cuda=True, **options)
    on_cpu = engine_arguments("m", MODEL, cuda=False, cache_bytes=77, wide_head=64, **options)
    assert on_gpu["gpu_memory_utilization"] == 0.5 and "enforce_eager" not in on_gpu
    assert (on_cpu["kv_cache_memory_bytes"], on_cpu["enforce_eager"], on_cpu["max_model_len"]) == (77, True, 129)
    assert on_cpu["hf_overrides"] == {"head_dim": 64} and on_cpu["load_format"] == "dummy"


def test_the_environment_keeps_what_is_set_but_the_engine_stays_in_this_process(monkeypatch):
    monkeypatch.setattr(os, "environ", {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"})
    prepare_environment(cuda=True)
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0" and os.environ["VLLM_LOGGING_LEVEL"] == "INFO"
    assert "TORCHDYNAMO_DISABLE" not in os.environ
    prepare_environment(cuda=False)
    assert os.environ["TORCHDYNAMO_DISABLE"] == "1"


def test_scores_are_looked_up_by_token_id_and_the_first_is_zero():
    entries = [None, given(t9=-0.5, t7=-2.0), given(t8=-0.25)]
    assert token_scores([5, 7, 8], entries, [5, 7, 8]).tolist() == [0.0, -2.0, -0.25]


@pytest.mark.parametrize("second", [None, given(t9=-0.5), given(t7=None)])
def test_a_score_that_is_missing_is_an_error_and_never_zero(second):
    with pytest.raises(ValueError, match="no log-prob for token 7 at position 1"):
        token_scores([5, 7], [None, second], [5, 7])


@pytest.mark.parametrize(("tokens", "entries"), [([5, 9], [None, given(t9=-1.0)]), ([5, 7], [None]), ([5, 7], None)])
def test_scores_of_other_tokens_than_those_asked_for_are_an_error(tokens, entries):
    with pytest.raises(ValueError, match="score this sample again"):
        token_scores(tokens, entries, [5, 7])


def test_an_environment_without_vllm_says_how_to_get_one(tmp_path):
    model = make_model(tmp_path / "tied")
    with pytest.raises(InputError, match=r"make test-engines.* generator\.python=\.venv-engines/bin/python"):
        Engine.start(model.path, dtype="float32", batch_size=2, vocabulary_size=97)


@pytest.mark.parametrize("forgets", [True, False])
def test_a_prefix_cache_that_is_not_reset_after_new_weights_is_an_error_and_no_new_version(forgets):
    calls = []
    llm = SimpleNamespace(
        collective_rpc=lambda method, args: calls.append(method),
        reset_prefix_cache=lambda: (calls.append("reset"), forgets)[1],
    )
    generator = VLLMGenerator(Engine(llm, max_length=8, vocabulary_size=4, narrow=32, wide=None), [1], version=7)
    with nullcontext() if forgets else pytest.raises(RuntimeError, match="prefix cache could not be reset"):
        generator.load_weights({}, 8)
    assert calls == ["limit_vocabulary", "take_weights", "reset"] and generator.version == (8 if forgets else 7)
