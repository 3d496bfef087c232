"""Whole runs of the inline pipeline on untrained models."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import pytest
from safetensors.torch import load_file

from schemas.errors import InputError, JobFailed
from tests.workers.runs import query, run, small_config
from workers.rundir import RunDir


def test_every_row_of_every_step_is_trained_once(checkpoints, prompt_file, tmp_path):
    run_dir = run(small_config(checkpoints, prompt_file), tmp_path / "run")
    rows = query(
        run_dir,
        "select step, count(*), count(distinct prompt_id) from samples where status = 'trained' group by 1 order by 1",
    )
    assert rows == [(1, 4, 4), (2, 4, 4), (3, 4, 4)]


@pytest.mark.parametrize("window", [0, 1, 2])
def test_samples_lag_behind_by_the_staleness_window_and_no_more(checkpoints, prompt_file, tmp_path, window):
    staleness = {"enabled": window > 0, "max_staleness": window}
    config = small_config(
        checkpoints, prompt_file, grpo__max_num_steps=4, grpo__async_grpo=staleness, generator__batch_size=12
    )
    run_dir = run(config, tmp_path / "run")
    assert query(run_dir, "select max(step - 1 - weight_version), count(*) from samples where status = 'trained'") == [
        (window, 16)
    ]
    assert query(run_dir, "select count(*) from samples where partition = 'train'") == [(16,)], "nothing is left over"


def test_each_row_is_scored_by_the_teacher_of_its_agent(checkpoints, prompt_file, tmp_path):
    run_dir = run(small_config(checkpoints, prompt_file), tmp_path / "run")
    assert query(
        run_dir, "select distinct agent, teacher, teacher_index from samples where step = 1 order by agent"
    ) == [
        ("rev", "rev", 0),
        ("sort", "sort", 1),
    ]


def test_a_generation_that_raises_is_tried_again_then_replaced_and_never_trained(checkpoints, prompt_file, tmp_path):
    def break_roles(roles):
        engine = roles["generator"].engine
        sample = engine.generate

        def broken(sample_ids, prompts, sampling):
            if "0000001-0" in sample_ids:
                raise RuntimeError("boom")
            return sample(sample_ids, prompts, sampling)

        engine.generate = broken

    config = small_config(checkpoints, prompt_file, failures__max_failed_share=0.25, failures__attempts=2)
    run_dir = run(config, tmp_path / "run", break_roles=break_roles)
    [(status, error, attempt, ids)] = query(
        run_dir, "select status, error, attempt, input_ids from samples where sample_id = '0000001-0'"
    )
    assert (status, error, attempt, ids) == ("failed", "engine_error: RuntimeError: boom", 2, None)
    assert query(run_dir, "select count(*) from samples where status = 'trained'") == [(12,)]


def test_a_step_that_loses_too_much_ends_the_job_and_says_what_was_lost(checkpoints, prompt_file, tmp_path):
    def break_roles(roles):
        def broken(sample_ids, prompts, sampling):
            raise RuntimeError("boom")

        roles["generator"].engine.generate = broken

    with pytest.raises(
        JobFailed, match=r"expected 4 samples, got 0: 8 lost is more than failures.max_failed_share allows.*boom"
    ):
        run(small_config(checkpoints, prompt_file), tmp_path / "run", break_roles=break_roles)


def test_a_group_with_a_failed_member_is_not_trained_as_if_it_were_whole(checkpoints, prompt_file, tmp_path):
    def break_roles(roles):
        engine = roles["generator"].engine
        sample = engine.generate

        def broken(sample_ids, prompts, sampling):
            if any(sample_id.endswith("-2") for sample_id in sample_ids):
                raise RuntimeError("boom")
            return sample(sample_ids, prompts, sampling)

        engine.generate = broken

    config = small_config(checkpoints, prompt_file, grpo__num_generations_per_prompt=4, failures__max_failed_share=1.0)
    with pytest.raises(JobFailed, match="expected 16 samples, got 12, less than failures.min_step_fraction"):
        run(config, tmp_path / "run", break_roles=break_roles)


def loses_three_of_sixteen(roles):
    """Rollouts of three groups of four come back without a token."""
    engine, lost = roles["generator"].engine, {"0000000-1", "0000002-3", "0000003-0"}
    sample = engine.generate

    def some(sample_ids, prompts, sampling):
        done = zip(sample_ids, sample(sample_ids, prompts, sampling), strict=True)
        return [replace(c, token_ids=[], logprobs=[]) if sample_id in lost else c for sample_id, c in done]

    engine.generate = some


FOUR_BY_FOUR = {"grpo__num_generations_per_prompt": 4, "grpo__max_num_steps": 1}


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({}, "expected 16 samples, got 13: 3 lost is more than failures.max_failed_share allows"),
        ({"failures__max_failed_share": 0.2}, "expected 16 samples, got 13, less than failures.min_step_fraction"),
    ],
)
def test_sixteen_asked_and_thirteen_got_is_no_step(checkpoints, prompt_file, tmp_path, policy, said):
    config = small_config(checkpoints, prompt_file, **FOUR_BY_FOUR, **policy)
    with pytest.raises(JobFailed, match=said):
        run(config, tmp_path / "run", break_roles=loses_three_of_sixteen)
    assert query(RunDir(tmp_path / "run"), "select count(*) from events where kind = 'step_sealed'") == [(0,)]


def test_thirteen_of_sixteen_train_where_the_recipe_allows_it_and_the_step_says_so(checkpoints, prompt_file, tmp_path):
    policy = {"failures__max_failed_share": 0.2, "failures__min_step_fraction": 0.8}
    config = small_config(checkpoints, prompt_file, **FOUR_BY_FOUR, **policy)
    run_dir = run(config, tmp_path / "run", break_roles=loses_three_of_sixteen)
    counts = "select rows_admitted, rows_empty, samples, trained_samples from steps"
    assert query(run_dir, counts) == [(16, 3, 13, 13)]


def test_a_teacher_equal_to_the_student_gives_exactly_nothing(checkpoints, prompt_file, tmp_path):
    teachers = dict.fromkeys(("rev", "sort"), str(checkpoints / "student"))
    config = small_config(
        checkpoints,
        prompt_file,
        on_policy_distillation__teacher_model_by_agent_name=teachers,
        grpo__max_num_steps=2,
        grpo__async_grpo={"enabled": False},
    )
    run_dir = run(config, tmp_path / "run")
    assert query(run_dir, "select min(advantage), max(advantage), count(*) > 10 from tokens where trained") == [
        (0.0, 0.0, True)
    ]
    assert query(run_dir, "select loss, grad_norm from steps") == [(0.0, 0.0)] * 2
    drift = query(run_dir, "select max(abs(student_logprob - generation_logprob)) from tokens where trained")
    assert drift[0][0] < 1e-4


def test_two_runs_with_one_seed_end_with_the_same_bits(checkpoints, prompt_file, tmp_path):
    first, second = (run(small_config(checkpoints, prompt_file), tmp_path / name) for name in ("a", "b"))
    weights = [load_file(r.checkpoints / "step_000003" / "model.safetensors") for r in (first, second)]
    assert all(bool((weights[0][name] == weights[1][name]).all()) for name in weights[0])


def test_another_seed_samples_something_else(checkpoints, prompt_file, tmp_path):
    texts = [
        query(
            run(small_config(checkpoints, prompt_file, run__seed=seed), tmp_path / str(seed)),
            "select response_text from samples order by 1",
        )
        for seed in (0, 1)
    ]
    assert texts[0] != texts[1]


def test_validation_rows_are_greedy_answers_by_named_weights(checkpoints, prompt_file, tmp_path):
    config = small_config(checkpoints, prompt_file, data__validation=[{"path": str(prompt_file)}], validation__period=2)
    run_dir = run(config, tmp_path / "run")
    rows = query(
        run_dir, "select weight_version, count(*) from samples where partition = 'validation' group by 1 order by 1"
    )
    assert rows == [(0, 20), (2, 20), (3, 20)]
    assert query(run_dir, "select count(*) from steps where exact_kl > 0") == [(2,)]


def test_metrics_file_is_what_the_store_says(checkpoints, prompt_file, tmp_path):
    run_dir = run(small_config(checkpoints, prompt_file), tmp_path / "run")
    lines = [json.loads(line) for line in run_dir.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    stored = query(run_dir, "select step, loss, trained_tokens from steps order by step")
    assert stored == [(line["step"], line["loss"], line["trained_tokens"]) for line in lines]
    assert query(run_dir, "select step, count(*) from tokens where trained group by step order by step") == [
        (line["step"], line["trained_tokens"]) for line in lines
    ]


def test_the_last_checkpoint_loads_in_transformers(checkpoints, prompt_file, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run_dir = run(small_config(checkpoints, prompt_file), tmp_path / "run")
    last = run_dir.checkpoints / "step_000003"
    assert AutoModelForCausalLM.from_pretrained(last).config.vocab_size == len(AutoTokenizer.from_pretrained(last))


def test_an_agent_without_a_teacher_is_refused_before_anything_starts(checkpoints, prompt_file, tmp_path):
    config = small_config(
        checkpoints, prompt_file, on_policy_distillation__teacher_model_by_agent_name={"rev": str(checkpoints / "rev")}
    )
    with pytest.raises(InputError, match="agent 'sort' has no teacher"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_directory_that_holds_something_else_is_no_place_for_a_run(checkpoints, prompt_file, tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match=r"holds 'notes.txt' and no run; give another --run-dir"):
        run(small_config(checkpoints, prompt_file), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "killed" / "plane").mkdir(parents=True)  # before it was a run
    assert run(small_config(checkpoints, prompt_file), tmp_path / "killed").config.exists()


def test_a_checkpoint_that_was_cut_is_refused_by_file_before_anything_starts(checkpoints, prompt_file, tmp_path):
    shutil.copytree(checkpoints, tmp_path / "models")
    [weights] = (tmp_path / "models" / "sort").glob("*.safetensors")
    os.truncate(weights, weights.stat().st_size - 8)
    with pytest.raises(InputError, match=r"teacher 'sort': .*models/sort/model.safetensors is cut or damaged"):
        run(small_config(tmp_path / "models", prompt_file), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_existing_run_is_not_overwritten(checkpoints, prompt_file, tmp_path):
    run(small_config(checkpoints, prompt_file), tmp_path / "run")
    with pytest.raises(InputError, match="continue it with --resume, remove it, or give another"):
        run(small_config(checkpoints, prompt_file), tmp_path / "run")
