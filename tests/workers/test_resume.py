"""Interrupted anywhere and resumed, a run ends as if nothing had happened."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from dataplane import DataPlane, open_plane
from schemas.columns import TRAIN, VALIDATION
from schemas.errors import LeaseLost
from tests.workers.runs import query, run, small_config
from tests.workers.test_window import World, make_config
from workers.control.resume import go_back


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


def commit(plane: DataPlane, claim, **versions: tuple[int, int]) -> None:
    """Three tokens for each group, by weights from the first version to the second."""
    rows = {row: versions[f"g{int(row[:7])}"] for row in claim.sample_ids if f"g{int(row[:7])}" in versions}
    columns = {
        "input_ids": [[4, 5, 6]] * len(rows),
        "weight_version": [first for first, _ in rows.values()],
        "weight_version_max": [last for _, last in rows.values()],
    }
    claim.commit(columns, sample_ids=list(rows))


def test_going_back_lets_rows_wait_again_that_lost_weights_sampled_or_have_in_hand():
    with open_plane("memory://") as plane:
        world = World(plane, make_config())
        world.admit()  # groups 0 to 7 of two rows each
        claim = plane.claim(TRAIN, "generate", limit=14)
        commit(plane, claim, g0=(0, 0), g1=(0, 2), g2=(2, 2), g3=(0, 0), g4=(1, 1), g5=(1, 2))
        plane.seal(1, ["0000000-0", "0000001-0"])
        go_back(plane, world.window, 1)
        waits = ["0000001-1", "0000002-0", "0000002-1", "0000005-0", "0000005-1", "0000006-0", "0000006-1"]
        assert plane.rows(TRAIN, lack=["input_ids"]) == [*waits, "0000007-0", "0000007-1"]
        with pytest.raises(LeaseLost):
            commit(plane, claim, g6=(2, 2))


def test_going_back_leaves_no_question_about_lost_weights_that_others_would_answer():
    with open_plane("memory://") as plane:
        world = World(plane, make_config())
        questions = ["v000001.00000-0", "v000001.00001-0", "v000002.00000-0", "v000002.00001-0"]
        plane.put(VALIDATION, questions, {"prompt": ["p"] * 4})
        plane.put(VALIDATION, questions[1:3], {"input_ids": [[7], [8]], "weight_version_max": [1, 2]})
        go_back(plane, world.window, 1)
        assert plane.rows(VALIDATION) == questions[:2]
