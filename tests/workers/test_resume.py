"""Interrupted anywhere and resumed, a run ends as if nothing had happened."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from tests.workers.runs import query, run, small_config


class Killed(BaseException):
    """Stands for a process that ends: nothing of ours catches it."""


def dies_at(role: str, call: int):
    """Break the run at the *call*-th stage call of a role's last worker."""

    def break_roles(roles):
        stage = (roles[role].called or roles[role].workers)[-1 if role != "trainer" else 2].stage
        counted = iter(range(1, 1000))

        class Dying(type(stage)):
            def __call__(self, batch):
                if next(counted) == call:
                    raise Killed
                return super().__call__(batch)

        stage.__class__ = Dying

    return break_roles


@pytest.mark.parametrize(
    ("role", "call"), [("generator", 1), ("generator", 3), ("teacher:sort", 2), ("trainer", 1), ("trainer", 4)]
)
def test_resumed_weights_and_metrics_are_bit_equal(checkpoints, prompt_file, tmp_path, role, call):
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=5, checkpointing__period=2)
    whole = run(config, tmp_path / "whole")
    with pytest.raises(Killed):
        run(config, tmp_path / "cut", break_roles=dies_at(role, call))
    cut = run(config, tmp_path / "cut", resume=True)
    weights = [load_file(r.checkpoints / "step_000005" / "model.safetensors") for r in (whole, cut)]
    assert all(bool((weights[0][name] == weights[1][name]).all()) for name in weights[0])
    losses = [query(r, "select step, loss, gap_mean, grad_norm from steps order by step") for r in (whole, cut)]
    assert losses[0] == losses[1] and len(losses[0]) == 5


def test_every_prompt_is_trained_exactly_once_across_a_crash(checkpoints, prompt_file, tmp_path):
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=5, checkpointing__period=2)
    with pytest.raises(Killed):
        run(config, tmp_path / "run", break_roles=dies_at("trainer", 4))
    run_dir = run(config, tmp_path / "run", resume=True)
    assert query(run_dir, "select count(*), count(distinct prompt_id) from samples where status = 'trained'") == [
        (20, 20)
    ]


def test_resuming_a_complete_run_changes_nothing(checkpoints, prompt_file, tmp_path):
    config = small_config(checkpoints, prompt_file)
    before = run(config, tmp_path / "run").metrics.read_text()
    assert run(config, tmp_path / "run", resume=True).metrics.read_text() == before
