"""The doctor: every invariant holds on a sound recipe, and each one is broken by what it is there to catch."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from schemas.batch import Batch
from schemas.errors import JobFailed
from stages.objectives.policy_gradient import PolicyGradient
from stages.protocols import Sampling
from tests.workers.runs import query, run, small_config
from workers.cli.app import main
from workers.doctor import diagnose as doctor
from workers.doctor import judged_rows
from workers.doctor.invariants import Check, check_gradients, check_scores
from workers.engines.hf.generator import HFGenerator
from workers.engines.hf.trainer import build_trainer
from workers.rundir import RunDir

FULL = "on_policy_distillation__full"
PROMPTS = [[2, 33, 29, 57, 1], [2, 33, 29, 32, 34, 67, 1], [2, 44, 1, 3]]

RECIPES = {
    "reinforce with icepop": {},
    "ppo, proximal, baseline, clip": {
        "loss_fn": {},
        "on_policy_distillation__proximal_teacher_alpha": 0.3,
        "on_policy_distillation__subtract_global_baseline": True,
        "on_policy_distillation__advantage_clip": [-2.0, 2.0],
    },
    "gspo, discount": {
        "loss_fn": {"sequence_level_importance_ratios": True, "token_level_loss": False},
        "on_policy_distillation__discount": 0.9,
    },
    "orm and a reference": {
        "loss_fn": {"reference_policy_kl_penalty": 0.1, "use_cispo": True},
        "on_policy_distillation__use_orm_advantage": True,
        "grpo__num_generations_per_prompt": 2,
    },
    "half temperature": {"generator__sampling": {"max_new_tokens": 5, "temperature": 0.5}},
    "hidden states": {"loss_fn": {}, FULL: {"enabled": True, "payload_dtype": "float32"}},
    "bfloat16 states": {"loss_fn": {}, FULL: {"enabled": True}},
    "logits, jsd": {"loss_fn": {}, FULL: {"enabled": True, "teacher_payload": "logits", "divergence": "jsd"}},
    "top-k": {"loss_fn": {}, "on_policy_distillation__topk_loss": {"enabled": True, "k": 8}},
    "rewards alone": {
        "loss_fn": {},
        "on_policy_distillation": {"enabled": False},
        "grpo__num_generations_per_prompt": 4,
    },
}


@pytest.mark.parametrize("changes", RECIPES.values(), ids=RECIPES)
def test_a_sound_recipe_passes_every_check(checkpoints, prompt_file, changes):
    checks = doctor.diagnose(small_config(checkpoints, prompt_file, **changes))
    assert [doctor.describe(check) for check in checks if not check.passed] == []
    names = {check.name.partition(".")[0] for check in checks}
    assert {"nothing_to_learn", "first_ratio", "rows_scored_twice", "batch_independence", "micro_batches"} <= names
    assert {"masked_filler", "another_teacher"} <= names


def sampled(path, temperature=1.0):
    """Rows as the generator writes them."""
    generator = HFGenerator.load(path, [1], max_length=64)
    how = Sampling(max_new_tokens=6, temperature=temperature)
    done = generator.generate(["a", "b", "c"], PROMPTS, [how] * 3)
    pairs = list(zip(PROMPTS, done, strict=True))
    columns = {
        "input_ids": [[*prompt, *c.token_ids] for prompt, c in pairs],
        "token_mask": [[False] * len(prompt) + [True] * len(c.token_ids) for prompt, c in pairs],
        "generation_logprobs": [[0.0] * len(prompt) + list(c.logprobs) for prompt, c in pairs],
    }
    return Batch.of(["a", "b", "c"], columns)


def examined(checkpoints, prompt_file, break_engine=lambda engine: None, rows=None, **changes):
    """Names of the checks that fail on a trainer that somebody broke."""
    config = small_config(checkpoints, prompt_file, **changes)
    engine = build_trainer(config.policy.model, config, max_steps=3)
    break_engine(engine)
    rows = rows or sampled(checkpoints / "student")
    checks = [*check_scores(engine, config, rows), *check_gradients(engine, config, rows, 81)]
    assert all(parameter.grad is None for parameter in engine.model.parameters())
    return {check.name for check in checks if not check.passed}


def test_a_sampler_at_another_temperature_is_seen_in_the_first_ratio(checkpoints, prompt_file):
    assert examined(checkpoints, prompt_file) == set()
    rows = sampled(checkpoints / "student", temperature=0.5)
    assert examined(checkpoints, prompt_file, rows=rows) == {"first_ratio"}


def test_logprobs_shifted_by_one_are_seen_in_the_first_ratio(checkpoints, prompt_file):
    def shift(engine):
        scored = engine.logprobs
        engine.logprobs = lambda sequences, t: [torch.roll(row, 1) for row in scored(sequences, t)]

    assert "first_ratio" in examined(checkpoints, prompt_file, shift)


def test_noise_in_scoring_is_seen(checkpoints, prompt_file):
    def shake(engine):
        scored = engine.logprobs
        engine.logprobs = lambda sequences, t: [row + torch.randn(len(row)) / 100 for row in scored(sequences, t)]

    assert "rows_scored_twice" in examined(checkpoints, prompt_file, shake)


def test_padding_that_leaks_is_seen(checkpoints, prompt_file):
    def leak(engine):
        scored = engine.logprobs

        def leaking(sequences, temperature):
            width = max(map(len, sequences))
            return [row + (width - len(row)) / 100 for row in scored(sequences, temperature)]

        engine.logprobs = leaking

    assert "batch_independence" in examined(checkpoints, prompt_file, leak)


def test_a_loss_averaged_over_micro_batches_is_seen(checkpoints, prompt_file, monkeypatch):
    class Averaging(PolicyGradient):
        def __call__(self, engine, batch, counts):
            mine = int((batch.padded("token_mask") & batch.tensor("sample_mask")[:, None]).sum())
            return super().__call__(engine, batch, replace(counts, num_tokens=mine))

    monkeypatch.setattr(judged_rows, "objective_of", lambda config, *_: Averaging(config.loss_fn))
    assert examined(checkpoints, prompt_file) == {"micro_batches"}


def test_a_loss_that_reads_masked_tokens_is_seen(checkpoints, prompt_file, monkeypatch):
    class Careless(PolicyGradient):
        def _columns(self, micro, device):
            columns = super()._columns(micro, device)
            everywhere = torch.nan_to_num(columns.advantages, nan=1.0).sum()
            return replace(columns, advantages=columns.advantages + everywhere / 1000)

    monkeypatch.setattr(judged_rows, "objective_of", lambda config, *_: Careless(config.loss_fn))
    assert "masked_filler" in examined(checkpoints, prompt_file)


def test_a_loss_without_its_teacher_is_seen(checkpoints, prompt_file, monkeypatch):
    class Deaf(PolicyGradient):
        def _columns(self, micro, device):
            columns = super()._columns(micro, device)
            return replace(columns, advantages=torch.zeros_like(columns.advantages))

    monkeypatch.setattr(judged_rows, "objective_of", lambda config, *_: Deaf(config.loss_fn))
    assert examined(checkpoints, prompt_file) == {"another_teacher"}


def test_a_broken_invariant_ends_the_job_before_its_first_update(checkpoints, prompt_file, tmp_path):
    def shift(roles):
        engine = roles["generator"].engine
        sample = engine.generate
        engine.generate = lambda ids, prompts, how: [
            replace(c, logprobs=[x - 1.0 for x in c.logprobs]) for c in sample(ids, prompts, how)
        ]

    config = small_config(checkpoints, prompt_file)
    with pytest.raises(JobFailed, match=r"1 of 11 invariants do not hold.*\n  first_ratio: 0\.632, expected at most"):
        run(config, tmp_path / "run", break_roles=shift)
    assert query(RunDir(tmp_path / "run"), "select count(*) from steps") == [(0,)]
    reported = small_config(checkpoints, prompt_file, failures__stop_on_invariant=False)
    again = run(reported, tmp_path / "again", break_roles=shift)
    assert query(again, "select count(*) from events where kind = 'invariants'") == [(1,)]


def test_a_teacher_whose_stored_scores_are_not_its_own_is_named(checkpoints, prompt_file, tmp_path):
    def forget(roles):
        engine = roles["teacher:sort"].engine
        scored = engine.logprobs
        engine.logprobs = lambda rows, t: [x - 1.0 for x in scored(rows, t)] if len(rows) > 1 else scored(rows, t)

    with pytest.raises(JobFailed, match=r"rescored.sort: 1, expected at most 0.001; the stored scores are not this"):
        run(small_config(checkpoints, prompt_file), tmp_path / "run", break_roles=forget)


def test_checks_change_no_bit_of_a_run(checkpoints, prompt_file, tmp_path, monkeypatch):
    checked = run(small_config(checkpoints, prompt_file), tmp_path / "checked")
    monkeypatch.setattr("workers.control.controller.examine", lambda call, roles, step: [])
    free = run(small_config(checkpoints, prompt_file), tmp_path / "free")
    columns = "select sample_id, advantages, loss from samples order by 1"
    assert query(checked, columns) == query(free, columns)


@pytest.fixture
def recipe(checkpoints, prompt_file, tmp_path):
    path = tmp_path / "small.yaml"
    values = small_config(checkpoints, prompt_file).model_dump(mode="json")
    path.write_text(json.dumps(values))  # YAML reads JSON
    return str(path)


def leave(*arguments):
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return left.value.code or 0


def test_the_command_prints_a_table_and_exits_0(recipe, capsys):
    assert leave("doctor", recipe) == 0
    out = capsys.readouterr().out
    assert "nothing_to_learn.gradient" in out and "first_ratio" in out


def test_a_failed_check_exits_1_and_names_its_remedy(recipe, capsys, monkeypatch):
    bad = Check("first_ratio", 0.9, 0.001, "load the same weights")
    monkeypatch.setattr(doctor, "diagnose", lambda config: [bad])
    assert leave("doctor", recipe, "--format", "json") == 1
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "first_ratio",
            "value": 0.9,
            "bound": 0.001,
            "remedy": "load the same weights",
            "at_least": False,
            "passed": False,
        }
    ]


def test_a_wrong_recipe_exits_2(recipe):
    assert leave("doctor", recipe, "grpo.max_num_step=3") == 2
