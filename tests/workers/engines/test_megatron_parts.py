"""The arithmetic of the Megatron engines: cuts of tensors, lines of tokens, numbers of ranks, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import CorruptData, InputError
from tests.workers.engines.megatron_ranks import scorer
from tests.workers.engines.models import Model, make_model
from workers.engines.megatron.architecture import Architecture
from workers.engines.megatron.cpu import megatron_code
from workers.engines.megatron.inputs import Inputs
from workers.engines.megatron.layout import Layout, Place, join
from workers.engines.megatron.mapping import Columns, Gated, Groups, Rows, Whole, shapes, unit
from workers.engines.megatron.model import check_overrides
from workers.engines.megatron.packing import (
    block_causal_mask,
    gather_packed,
    packed_zigzag,
    padded_length,
    places,
    row_multiple,
    starts,
    zigzag,
)
from workers.engines.megatron.state import read_state, write_state
from workers.ranks import ALONE, Ranks


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("model"))


# -- tensors --------------------------------------------------------------------------------------------


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers)[:, None]


def test_queries_keys_and_values_lie_together_by_group() -> None:
    # two groups of two query heads, one number a head
    cut = Groups(2, (2, 1, 1))
    tensors = [column(1, 2, 3, 4), column(10, 20), column(100, 200)]
    assert cut.part(tensors, 1, 2).flatten().tolist() == [3, 4, 20, 200]
    assert cut.part(tensors, 0, 1).flatten().tolist() == [1, 2, 10, 100, 3, 4, 20, 200]
    parts = [cut.part(tensors, rank, 2) for rank in range(2)]
    assert all(map(torch.equal, cut.whole(parts), tensors))


def test_biases_are_cut_as_their_weights_are() -> None:
    tensors = [torch.tensor([1.0, 2, 3, 4]), torch.tensor([10.0, 20]), torch.tensor([100.0, 200])]
    assert Groups(2, (2, 1, 1)).part(tensors, 0, 2).tolist() == [1, 2, 10, 100]


def test_gate_and_up_are_both_halved() -> None:
    tensors = [column(1, 2, 3, 4), column(10, 20, 30, 40)]
    assert Gated().part(tensors, 1, 2).flatten().tolist() == [3, 4, 30, 40]
    assert all(map(torch.equal, Gated().whole([Gated().part(tensors, rank, 2) for rank in range(2)]), tensors))


def test_a_vocabulary_that_does_not_divide_is_padded_with_zeros_and_cut_again() -> None:
    table = column(1, 2, 3, 4, 5)
    parts = [Rows(5).part([table], rank, 2) for rank in range(2)]
    assert parts[1].flatten().tolist() == [4, 5, 0]
    assert torch.equal(Rows(5).whole(parts)[0], table)


def test_columns_are_cut_and_norms_are_not() -> None:
    tensor = torch.tensor([[1.0, 2, 3, 4]])
    assert Columns().part([tensor], 1, 2).tolist() == [[3, 4]]
    assert Columns().whole([tensor[:, :2], tensor[:, 2:]])[0].tolist() == tensor.tolist()
    assert Whole().part([tensor], 1, 2) is tensor


@pytest.mark.parametrize(
    ("fused", "plain"),
    [
        ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
        ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
    ],
)
def test_norms_have_two_names_and_layers_are_counted_over_all_stages(model: Model, fused: str, plain: str) -> None:
    of = Architecture.read(model.path)
    found = unit(f"decoder.layers.0.{fused}", of, 4)
    assert found == unit(f"decoder.layers.0.{plain}", of, 4)
    assert found.names[0].startswith("model.layers.4.") and found.names[0].endswith("layernorm.weight")


@pytest.mark.parametrize("variant", ["tied", "untied", "llama", "qwen2"])
def test_shapes_are_those_of_transformers_in_its_order(variant: str, tmp_path: Path) -> None:
    made = make_model(tmp_path, variant)
    expected = {name: tuple(parameter.shape) for name, parameter in made.reference.named_parameters()}
    assert list(shapes(Architecture.read(made.path)).items()) == list(expected.items())


# -- lines of tokens ------------------------------------------------------------------------------------


def test_zigzag_gives_each_rank_a_piece_from_the_front_and_one_from_the_back() -> None:
    assert [zigzag(8, rank, 2).tolist() for rank in range(2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert zigzag(3, 0, 1).tolist() == [0, 1, 2]
    assert [zigzag(6, rank, 3).tolist() for rank in range(3)] == [[0, 5], [1, 4], [2, 3]]


def test_rows_of_a_packed_line_are_padded_each_and_cut_each() -> None:
    # rows of 5, 1 and 4 tokens, padded to multiples of 4: 8 + 4 + 4
    assert starts([5, 1, 4], 4) == [0, 8, 12, 16]
    assert places([5, 1, 4], 4).tolist() == [0, 1, 2, 3, 4, 8, 12, 13, 14, 15]
    assert packed_zigzag([5, 1, 4], 0, 2, 4).tolist() == [0, 1, 6, 7, 8, 11, 12, 15]


@pytest.mark.parametrize("width", [(), (6,)])
def test_what_two_context_ranks_hold_of_packed_rows_comes_back_as_rows(width: tuple[int, ...]) -> None:
    lengths, random = [5, 1, 12, 4], torch.Generator().manual_seed(1)
    rows = [torch.randn((length, *width), generator=random) for length in lengths]
    line = torch.full((starts(lengths, 4)[-1], *width), torch.nan)
    line[places(lengths, 4)] = torch.cat(rows)
    shards = [line[packed_zigzag(lengths, rank, 2, 4)] for rank in range(2)]
    assert len(shards[0]) == len(shards[1])
    assert all(map(torch.equal, gather_packed(shards, lengths, 4), rows))


def test_in_a_packed_line_nobody_sees_another_row_or_what_comes_later() -> None:
    seen = (~block_causal_mask([2, 3])).int().tolist()
    assert seen == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]


def test_what_lines_are_padded_to() -> None:
    assert [padded_length(n, 4) for n in (1, 4, 5)] == [4, 4, 8]
    assert [row_multiple(2, 1), row_multiple(2, 1, sequence_parallel=True), row_multiple(2, 2)] == [1, 2, 4]


@pytest.mark.parametrize("packed", [False, True])
def test_padding_of_lines_is_in_no_row(packed: bool) -> None:
    rows = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]
    inputs = Inputs.of(rows, torch.device("cpu"), packed=packed, multiple=4)
    assert inputs.shape == ((16, 1) if packed else (8, 3))
    states = inputs.ids_BS.T[..., None].float()
    states[states == 0] = torch.nan  # whatever the model makes of filler
    expected = torch.tensor([[5, 6, 7, 0, 0], [8, 0, 0, 0, 0], [9, 10, 11, 12, 13]])
    assert inputs.rows(states)[..., 0].tolist() == expected.tolist()
    assert inputs.positions_BS[0, :5].tolist() == ([0, 1, 2, 0, 0] if packed else [0, 1, 2, 3, 4])


def test_a_line_padded_to_what_ranks_need_changes_no_result(model: Model) -> None:
    plain, wide = scorer(model.path), scorer(model.path)
    wide.stage.multiple = 8
    rows = [[2, 33, 29, 57, 96], [3, 44], [5, 6, 7, 8, 9, 10, 11, 12, 13]]
    for one, other in zip(plain.logprobs(rows, 1.0), wide.logprobs(rows, 1.0), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


# -- ranks ----------------------------------------------------------------------------------------------


def layout(ranks: int, tensor: tuple[int, int], pipeline: tuple[int, int], data: tuple[int, int]) -> Layout:
    none: Any = None
    sizes = [Place(*given, none) for given in (tensor, pipeline, (0, 1), data)]
    return Layout(Ranks(0, ranks), *sizes, copies=none, embedding=none)


def test_ranks_are_numbered_tensor_first_and_pipeline_last() -> None:
    seventh = layout(8, (0, 2), (1, 2), (1, 2))
    assert seventh.world_rank(data=1, pipeline=1) == 6
    assert [seventh.stage(0), seventh.stage(1)] == [2, 6]
    assert seventh.speaks and not layout(8, (1, 2), (1, 2), (1, 2)).speaks


def test_ranks_that_are_no_whole_number_of_replicas_are_refused() -> None:
    with pytest.raises(InputError, match=r"3 ranks are no multiple of the 2 that one replica takes \(tensor 2"):
        join(Ranks(0, 3), tensor=2)


def test_a_process_holds_models_of_one_layout(model: Model) -> None:
    scorer(model.path)
    with pytest.raises(InputError, match=r"holds a Megatron model of sizes \(1, 1, 1\)"):
        join(Ranks(0, 2), tensor=2)


def test_optimizer_state_of_other_sizes_is_refused(tmp_path: Path) -> None:
    write_state(tmp_path, {"a": torch.ones(2)}, layout(2, (0, 2), (0, 1), (0, 1)))
    assert read_state(tmp_path, layout(4, (0, 2), (0, 1), (1, 2)))["a"].tolist() == [1, 1]
    with pytest.raises(CorruptData, match="its optimizer state is of parallel sizes"):
        read_state(tmp_path, layout(1, (0, 1), (0, 1), (0, 1)))
    with pytest.raises(CorruptData, match="no optimizer/pipeline1-tensor0.safetensors there"):
        read_state(tmp_path, layout(2, (0, 1), (1, 2), (0, 1)))


# -- models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"recompute_granularty": "full"}, "did you mean 'recompute_granularity'"),
        ({"num_layers": 2}, "the checkpoint or the sizes of the ranks decide it"),
        ({"sequence_parallel": "yes"}, "expected bool (by default False), got 'yes'"),
        ({"init_method_std": True}, "expected float"),
    ],
)
def test_settings_that_megatron_does_not_know_are_refused(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        check_overrides(overrides)
    assert said in str(refused.value)


def test_settings_of_megatron_pass_and_reach_the_model(model: Model) -> None:
    overrides = {"attention_softmax_in_fp32": False, "expert_model_parallel_size": 1, "softmax_scale": 0.5}
    check_overrides(overrides)
    plain, other = scorer(model.path), scorer(model.path, overrides=overrides)
    assert other.model.config.softmax_scale == 0.5
    assert not torch.allclose(plain.logprobs([[2, 9, 44]], 1.0)[0], other.logprobs([[2, 9, 44]], 1.0)[0])


def test_what_megatron_refuses_is_an_error_of_the_recipe(model: Model) -> None:
    with pytest.raises(InputError, match="Megatron refuses these sizes or settings: Cannot use sequence parallelism"):
        scorer(model.path, overrides={"sequence_parallel": True})
    with pytest.raises(InputError, match="expert_model_parallel_size is for experts"):
        scorer(model.path, overrides={"expert_model_parallel_size": 2})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gpt2"}, "knows dense llama, qwen2, qwen3 models, got 'gpt2'"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "rope_type is 'linear'"),
    ],
)
def test_models_that_are_not_known_are_refused(
    model: Model, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    config = json.loads((model.path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(InputError) as refused:
        Architecture.read(tmp_path)
    assert said in str(refused.value)


def test_layers_that_ranks_cannot_share_are_refused(model: Model) -> None:
    with pytest.raises(InputError, match="num_attention_heads 4 cannot be shared by 3 tensor-parallel ranks"):
        Architecture.read(model.path).assert_divides(3, "m")


def test_llama_3_rope_is_that_of_transformers(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    made = make_model(tmp_path, "llama", rope_parameters=rope, max_position_embeddings=256)
    ids = [2 + (7 * at) % 90 for at in range(60)]
    with torch.no_grad():
        torch.testing.assert_close(
            scorer(made.path).logprobs([ids], 1.0)[0], made.logprobs(ids, 1.0), atol=1e-4, rtol=0
        )
    assert not torch.allclose(make_model(tmp_path / "plain", "llama").logprobs(ids, 1.0), made.logprobs(ids, 1.0))


def test_a_teacher_takes_no_gradient_and_has_no_room_for_one(model: Model) -> None:
    engine = scorer(model.path, dtype="bfloat16")
    engine.logprobs([[2, 9, 44, 7]], 1.0)
    parameters = list(engine.model.parameters())
    assert not any(parameter.requires_grad or hasattr(parameter, "main_grad") for parameter in parameters)
    assert {parameter.grad for parameter in parameters} == {None}
    assert {parameter.dtype for parameter in parameters} == {torch.bfloat16}


def test_a_token_that_no_row_of_the_embedding_is_for_is_refused(model: Model) -> None:
    with pytest.raises(InputError, match="token id 97: the model knows ids below 97"):
        scorer(model.path).logprobs([[2, 3], [4, 97]], 1.0)


def test_cuda_is_stood_in_for_only_inside_megatrons_code() -> None:
    outside = torch.cuda.current_device
    with megatron_code(), megatron_code():
        assert torch.cuda.current_device() == torch.device("cpu")
    assert torch.cuda.current_device is outside


def test_one_process_is_one_replica(model: Model) -> None:
    alone = join(ALONE)
    assert alone.speaks and alone.gather(b"x") == [b"x"] and alone.device == torch.device("cpu")
