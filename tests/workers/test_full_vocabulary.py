"""Full-vocabulary distillation through the whole pipeline: payloads as columns, several teachers, heads by index."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from dataplane import open_plane
from schemas.errors import ConfigError, InputError
from tests.workers.runs import query, run, small_config
from workers.engines.hf.head import head_shape, load_head
from workers.engines.hf.model import load_model
from workers.partitions import create_partitions

PLAIN_LOSS = {
    "loss_fn": {},
    "grpo__max_num_steps": 2,
    "grpo__async_grpo": {"enabled": False},
    "store__payload_retention": "never",
}


def full_config(checkpoints, prompt_file, **changes):
    full = {"enabled": True, **changes.pop("full", {})}
    return small_config(checkpoints, prompt_file, **{**PLAIN_LOSS, "on_policy_distillation__full": full, **changes})


def exact_loss(checkpoints, run_dir, teachers, step=1, temperature=1.0):
    """The mean reverse KL of a step's generated tokens, from whole softmaxes of the real models."""
    student = load_model(checkpoints / "student")
    rows = query(run_dir, f"select teacher_index, input_ids, token_mask from samples where step = {step}")
    values = []
    for index, ids, mask in rows:
        with torch.no_grad():
            sides = [m(input_ids=torch.tensor([ids])).logits[0, :-1] for m in (student, load_model(teachers[index]))]
        log_s, log_t = ((logits / temperature).log_softmax(-1) for logits in sides)
        values.append((log_s.exp() * (log_s - log_t)).sum(-1)[torch.tensor(mask[1:])])
    return float(torch.cat(values).mean())


@pytest.mark.parametrize("payload", ["hidden_states", "logits"])
def test_the_loss_of_a_mixed_step_is_the_mean_kl_to_each_rows_own_teacher(checkpoints, prompt_file, tmp_path, payload):
    full = {"teacher_payload": payload, "payload_dtype": "float32", "chunk_size": 3}
    config = full_config(checkpoints, prompt_file, full=full, policy__train_micro_batch_size=3)
    run_dir = run(config, tmp_path / "run")
    [(loss, oob)] = query(run_dir, "select loss, is_oob_ratio from steps where step = 1")
    expected = exact_loss(checkpoints, run_dir, [checkpoints / "rev", checkpoints / "sort"])
    assert loss == pytest.approx(expected, rel=1e-5) and expected > 0.01
    assert oob is None
    assert query(run_dir, "select count(distinct teacher_index), count(advantages) from samples where step = 1") == [
        (2, 4)
    ]


def test_a_logits_payload_is_compared_at_the_sampling_temperature(checkpoints, prompt_file, tmp_path):
    full = {"teacher_payload": "logits", "payload_dtype": "float32"}
    sampling = {"max_new_tokens": 5, "temperature": 0.5}
    config = full_config(checkpoints, prompt_file, full=full, generator__sampling=sampling, grpo__max_num_steps=1)
    run_dir = run(config, tmp_path / "run")
    expected = exact_loss(checkpoints, run_dir, [checkpoints / "rev", checkpoints / "sort"], temperature=0.5)
    assert query(run_dir, "select loss from steps") == [(pytest.approx(expected, rel=1e-5),)]


def test_payload_rows_are_the_states_that_predict_each_token(checkpoints, prompt_file, tmp_path):
    config = full_config(checkpoints, prompt_file, full={"payload_dtype": "float32"}, grpo__max_num_steps=1)
    run_dir = run(config, tmp_path / "run")
    [(ids, states, logprobs)] = query(
        run_dir,
        "select input_ids, payload_hidden_states, teacher_logprobs from samples where step = 1 and agent = 'sort' "
        "order by sample_id limit 1",
    )
    logits = torch.tensor(states) @ load_head(checkpoints / "sort").float().T
    assert states[0] == [0.0] * 64
    at_tokens = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]
    torch.testing.assert_close(at_tokens[1:], torch.tensor(logprobs)[1:], atol=1e-4, rtol=0)


@pytest.mark.parametrize(("dtype", "stored"), [("bfloat16", pa.uint16()), ("float16", pa.float16())])
def test_a_narrow_payload_is_stored_as_such_and_trains_nearly_the_same(
    checkpoints, prompt_file, tmp_path, dtype, stored
):
    losses = {}
    for kind in ("float32", dtype):
        config = full_config(checkpoints, prompt_file, full={"payload_dtype": kind}, grpo__max_num_steps=1)
        run_dir = run(config, tmp_path / kind)
        losses[kind] = query(run_dir, "select loss from steps")[0][0]
    with open_plane(str(run_dir.plane), mode="r") as plane:
        assert plane.partitions()["train"].field("payload_hidden_states").type.value_type.value_type == stored
    assert losses[dtype] == pytest.approx(losses["float32"], rel=2e-2) and losses[dtype] != losses["float32"]


@pytest.mark.parametrize("divergence", [{"divergence": "forward_kl"}, {"divergence": "jsd", "beta": 0.3}])
def test_another_divergence_trains_to_other_weights(checkpoints, prompt_file, tmp_path, divergence):
    weights = []
    for number, full in enumerate(({}, divergence)):
        run_dir = run(full_config(checkpoints, prompt_file, full=full), tmp_path / str(number))
        weights.append(load_file(run_dir.checkpoints / "step_000002" / "model.safetensors"))
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_jsd_of_beta_one_is_the_reverse_kl_bit_for_bit(checkpoints, prompt_file, tmp_path):
    losses = [
        query(run(full_config(checkpoints, prompt_file, full=full), tmp_path / name), "select loss from steps")
        for name, full in {"jsd": {"divergence": "jsd", "beta": 1.0}, "kl": {}}.items()
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("lifecycle", ["none", "evict"])
def test_where_heads_live_between_steps_changes_no_bit(checkpoints, prompt_file, tmp_path, lifecycle):
    losses = [
        query(
            run(full_config(checkpoints, prompt_file, full={"teacher_lm_head_lifecycle": kind}), tmp_path / kind),
            "select loss, grad_norm from steps order by step",
        )
        for kind in ("offload", lifecycle)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 2


def test_the_micro_batch_split_does_not_show(checkpoints, prompt_file, tmp_path):
    steps = [
        query(
            run(full_config(checkpoints, prompt_file, policy__train_micro_batch_size=size), tmp_path / str(size)),
            "select loss, grad_norm from steps where step = 1",
        )
        for size in (1, 4)
    ]
    assert steps[0][0] == pytest.approx(steps[1][0], rel=1e-5)


def test_a_checked_decomposition_is_reported_and_small(checkpoints, prompt_file, tmp_path):
    run_dir = run(full_config(checkpoints, prompt_file, full={"validate_decomposition": True}), tmp_path / "run")
    [(error,)] = query(run_dir, "select max(decomposition_error_max) from steps")
    assert 0 <= error < 1e-4


def test_self_distillation_with_a_float32_payload_is_zero_up_to_rounding(checkpoints, prompt_file, tmp_path):
    teachers = dict.fromkeys(("rev", "sort"), str(checkpoints / "student"))
    changes = {"on_policy_distillation__teacher_model_by_agent_name": teachers, "grpo__max_num_steps": 1}
    run_dir = run(full_config(checkpoints, prompt_file, full={"payload_dtype": "float32"}, **changes), tmp_path / "run")
    [(loss, norm)] = query(run_dir, "select loss, grad_norm from steps")
    assert abs(loss) < 1e-9 and norm < 1e-6


def test_payloads_of_checkpointed_steps_are_cleared_on_their_own(checkpoints, prompt_file, tmp_path):
    changes = {"grpo__max_num_steps": 4, "checkpointing__period": 2, "store__payload_retention": 1}
    run_dir = run(full_config(checkpoints, prompt_file, **changes), tmp_path / "run")
    left = query(run_dir, "select step, count(payload_hidden_states), count(teacher_logprobs) from samples group by 1")
    assert sorted(left) == [(1, 0, 4), (2, 0, 4), (3, 0, 4), (4, 4, 4)]
    kept = "select sum(rows) from blocks where task = 'teacher' and list_contains(columns, 'payload_hidden_states')"
    assert query(run_dir, kept) == [(4,)]


def test_a_run_resumed_after_its_payloads_went_is_bit_equal(checkpoints, prompt_file, tmp_path):
    def dies(roles):
        stage, calls = roles["trainer"].step_workers[-1], iter(range(1, 9))
        work = stage.stage.objective

        def dying(engine, batch, counts):
            if next(calls) == 4:
                raise KeyboardInterrupt
            return work(engine, batch, counts)

        dying.reads = work.reads
        stage.stage.objective = dying

    changes = {"grpo__max_num_steps": 5, "checkpointing__period": 2, "store__payload_retention": 0}
    config = full_config(checkpoints, prompt_file, **changes)
    whole = run(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "cut", break_roles=dies)
    cut = run(config, tmp_path / "cut", resume=True)
    weights = [load_file(r.checkpoints / "step_000005" / "model.safetensors") for r in (whole, cut)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_teachers_padded_head_gives_the_unpadded_numbers(checkpoints, prompt_file, tmp_path):
    padded = tmp_path / "padded"
    model = load_model(checkpoints / "rev")
    torch.manual_seed(1)
    model.resize_token_embeddings(81 + 128, mean_resizing=False)
    model.save_pretrained(padded)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (padded / file).write_bytes((checkpoints / "rev" / file).read_bytes())
    seen = []
    for name, teacher in (("plain", checkpoints / "rev"), ("wide", padded)):
        teachers = {"rev": str(teacher), "sort": str(checkpoints / "sort")}
        config = full_config(
            checkpoints,
            prompt_file,
            on_policy_distillation__teacher_model_by_agent_name=teachers,
            grpo__max_num_steps=1,
        )
        run_dir = run(config, tmp_path / name)
        seen.append(
            (query(run_dir, "select loss from steps"), query(run_dir, "select sum(teacher_logprob) from tokens"))
        )
    assert head_shape(padded).vocabulary == 209
    assert np.allclose(np.array(seen[0]).ravel(), np.array(seen[1]).ravel(), rtol=1e-6)


def test_what_cannot_fit_is_refused_before_the_run_starts(checkpoints, prompt_file, tmp_path, monkeypatch):
    monkeypatch.setattr("workers.teachers.payload._free_disk", lambda path: 1000)
    with pytest.raises(InputError, match=r"the payload takes 0\.00 GiB, the store has 0\.00 GiB; use teacher_payload"):
        run(full_config(checkpoints, prompt_file), tmp_path / "run")


def test_a_model_whose_logits_are_more_than_its_heads_product_is_refused(checkpoints, prompt_file, tmp_path):
    soft = tmp_path / "soft"
    soft.mkdir()
    for file in (checkpoints / "rev").iterdir():
        (soft / file.name).write_bytes(file.read_bytes())
    text = (soft / "config.json").read_text()
    (soft / "config.json").write_text(text.replace("{", '{"final_logit_softcapping": 30.0,', 1))
    teachers = {"rev": str(soft), "sort": str(checkpoints / "sort")}
    config = full_config(checkpoints, prompt_file, on_policy_distillation__teacher_model_by_agent_name=teachers)
    with pytest.raises(InputError, match="final_logit_softcapping is 30.0"):
        run(config, tmp_path / "run")


def test_a_resumed_run_with_another_payload_type_is_refused(checkpoints, prompt_file):
    with open_plane("memory://") as plane:
        create_partitions(plane, full_config(checkpoints, prompt_file), 81)
        with pytest.raises(InputError, match="exists with other columns"):
            create_partitions(plane, full_config(checkpoints, prompt_file, full={"payload_dtype": "float32"}), 81)


def test_policy_gradient_settings_are_refused_by_name(checkpoints, prompt_file):
    with pytest.raises(ConfigError, match="loss_fn.disable_ppo_ratio: has no effect"):
        full_config(checkpoints, prompt_file, loss_fn={"disable_ppo_ratio": True})


class Killed(BaseException):
    """Stands for a process that ends."""


def test_rows_scored_before_a_resume_keep_the_teacher_they_were_scored_by(checkpoints, prompt_file, tmp_path):
    def dies(roles):
        def dying(step):
            raise Killed

        roles["trainer"].train_step = dying

    swapped = {"rev": str(checkpoints / "sort"), "sort": str(checkpoints / "student")}
    exact = {"payload_dtype": "float32"}
    with pytest.raises(Killed):
        run(full_config(checkpoints, prompt_file, full=exact), tmp_path / "run", break_roles=dies)
    changed = full_config(
        checkpoints, prompt_file, full=exact, on_policy_distillation__teacher_model_by_agent_name=swapped
    )
    run_dir = run(changed, tmp_path / "run", resume=True)
    indexes = query(run_dir, "select step, agent, min(teacher_index) from samples where step > 0 group by 1, 2")
    assert sorted(indexes) == [(1, "rev", 0), (1, "sort", 1), (2, "rev", 1), (2, "sort", 2)]
    expected = exact_loss(checkpoints, run_dir, [checkpoints / "rev", checkpoints / "sort"])
    assert query(run_dir, "select loss from steps where step = 1") == [(pytest.approx(expected, rel=1e-5),)]


def test_a_resumed_recipe_must_name_the_teachers_that_rows_wait_for(checkpoints, prompt_file, tmp_path):
    def dies(roles):
        def dying(step):
            raise Killed

        roles["trainer"].train_step = dying

    staleness = {"grpo__async_grpo": {"enabled": True, "max_staleness": 1}}
    with pytest.raises(Killed):
        run(full_config(checkpoints, prompt_file, **staleness), tmp_path / "run", break_roles=dies)
    renamed = {"rev": str(checkpoints / "rev"), "other": str(checkpoints / "sort")}
    changed = full_config(
        checkpoints,
        prompt_file,
        **staleness,
        on_policy_distillation__teacher_model_by_agent_name=renamed,
        on_policy_distillation__default_teacher_alias="rev",
    )
    with pytest.raises(InputError, match="rows of this run wait for the teacher 'sort', which the recipe does not"):
        run(changed, tmp_path / "run", resume=True)
