"""``enabled: false``: no teacher anywhere, outcome rewards alone, and they rise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.workers.runs import query, run, small_config


def reward_config(checkpoints, prompt_file, **changes):
    plain = {
        "on_policy_distillation": {"enabled": False},
        "loss_fn": {},
        "data__train": [{"path": str(prompt_file), "checker": "tests.workers.rewards:stopped"}],
        "grpo__num_generations_per_prompt": 8,
        "grpo__async_grpo": {"enabled": False},
        "generator__batch_size": 64,
    }
    return small_config(checkpoints, prompt_file, **{**plain, **changes})


def test_reward_rises(checkpoints, prompt_file, tmp_path):
    changes = {
        "grpo__num_prompts_per_step": 8,
        "grpo__max_num_steps": 24,
        "generator__sampling": {"max_new_tokens": 10},
        "trainer": {"optimizer": {"lr": 5e-3}},
    }
    run_dir = run(reward_config(checkpoints, prompt_file, **changes), tmp_path / "run")
    first, last = query(
        run_dir,
        "select avg(reward_mean) from steps where step = 1 union all "
        "select avg(reward_mean) from steps where step > 20",
    )
    assert first[0] < 0.3 and last[0] > first[0] + 0.4


def test_advantages_are_rewards_against_the_rest_of_their_group(checkpoints, prompt_file, tmp_path):
    config = reward_config(
        checkpoints, prompt_file, grpo__adv_estimator={"normalize_rewards": False}, grpo__max_num_steps=1
    )
    run_dir = run(config, tmp_path / "run")
    rows = query(
        run_dir,
        "select reward - (sum(reward) over (partition by group_id) - reward) / 7, list_max(advantages), "
        "list_min(advantages) from samples where step = 1",
    )
    assert len(rows) == 32 and any(expected for expected, _, _ in rows)
    for expected, high, low in rows:
        assert high == pytest.approx(max(expected, 0), abs=1e-6) and low == pytest.approx(min(expected, 0), abs=1e-6)


def test_a_generation_that_raises_is_no_zero_reward_in_the_baseline_of_its_group(checkpoints, prompt_file, tmp_path):
    def break_roles(roles):
        engine = roles["generator"].engine
        sample = engine.generate

        def broken(sample_ids, prompts, sampling):
            if "0000000-2" in sample_ids:
                raise RuntimeError("boom")
            done = zip(sample_ids, sample(sample_ids, prompts, sampling), strict=True)
            return [replace(c, finish_reason="stop" if i == "0000000-1" else "length") for i, c in done]

        engine.generate = broken

    config = reward_config(
        checkpoints,
        prompt_file,
        grpo__adv_estimator={"use_leave_one_out_baseline": False, "normalize_rewards": False},
        grpo__num_prompts_per_step=1,
        grpo__num_generations_per_prompt=4,
        grpo__max_num_steps=1,
        failures={"attempts": 1, "max_failed_share": 0.25, "min_step_fraction": 0.75},
    )
    run_dir = run(config, tmp_path / "run", break_roles=break_roles)
    rows = query(run_dir, "select status, reward, list_sum(advantages) / num_tokens from samples order by sample_id")
    assert [row[:2] for row in rows] == [("trained", 0.0), ("trained", 1.0), ("failed", None), ("trained", 0.0)]
    advantages = [row[2] for row in rows if row[2] is not None]  # from the mean of three; of four it is a quarter
    assert advantages == pytest.approx([-1 / 3, 2 / 3, -1 / 3], abs=1e-6)
    lost = "error, input_ids, token_mask, generation_logprobs, student_logprobs, advantages, loss"
    assert query(run_dir, f"select {lost} from samples where sample_id = '0000000-2'") == [
        ("engine_error: RuntimeError: boom", *[None] * 6)
    ]


def test_no_teacher_is_hosted_and_no_teacher_column_written(checkpoints, prompt_file, tmp_path):
    hosted = []
    config = reward_config(checkpoints, prompt_file, grpo__max_num_steps=1)
    run_dir = run(config, tmp_path / "run", break_roles=lambda roles: hosted.extend(roles))
    assert hosted == ["generator", "trainer"]
    assert query(run_dir, "select count(teacher), count(teacher_logprobs), count(gap_mean) from samples") == [(0, 0, 0)]
    assert query(run_dir, "select count(*) from events where detail like '%\"fact\": \"teachers\"%'") == [(0,)]


def test_an_interrupted_run_on_rewards_resumes(checkpoints, prompt_file, tmp_path):
    class Killed(BaseException):
        pass

    def dies(roles):
        take = roles["trainer"].train_step

        def dying(step):
            if step == 4:
                raise Killed
            return take(step)

        roles["trainer"].train_step = dying

    staleness = {"enabled": True, "max_staleness": 1}
    changes = {"checkpointing__period": 2, "grpo__async_grpo": staleness, "grpo__max_num_steps": 5}
    config = reward_config(checkpoints, prompt_file, **changes)
    with pytest.raises(Killed):
        run(config, tmp_path / "run", break_roles=dies)
    run_dir = run(config, tmp_path / "run", resume=True)
    assert query(run_dir, "select count(*) from samples where status = 'trained'") == [(160,)]
