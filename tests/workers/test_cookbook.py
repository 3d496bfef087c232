"""Every recipe of the cookbook runs, on a real run and on an empty one, and says what it says it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dataplane import DataPlane, open_plane
from dataplane.inspector.cookbook import cookbook, cookbook_page
from tests.workers.runs import run, small_config

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
RECIPES = {recipe["title"]: recipe["query"] for recipe in cookbook()}

#: Recipes that have nothing to show of a run in which nothing went wrong and nothing was held out.
QUIET = {"Samples masked by the sequence-error test", "Held-out accuracy by weights"}


@pytest.fixture(scope="module")
def plane(checkpoints: Path, prompt_file: Path, tmp_path_factory: pytest.TempPathFactory):
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=3)
    finished = run(config, tmp_path_factory.mktemp("cookbook") / "run")
    with open_plane(finished.plane, mode="r") as opened:
        yield opened


def column(plane: DataPlane, name: str, step: int | None = None) -> list:
    return plane.get("train", plane.rows("train", step=step, have=[name]), [name]).values(name)


@pytest.mark.parametrize("title", RECIPES)
def test_every_recipe_answers(plane: DataPlane, title: str) -> None:
    assert (plane.sql(RECIPES[title]).num_rows > 0) == (title not in QUIET)


def test_there_are_fifteen_at_least_and_each_says_what_it_is_for() -> None:
    assert len(RECIPES) == len(cookbook()) >= 15
    assert all(len(recipe["about"]) > 20 for recipe in cookbook())


def test_the_page_is_rendered_from_the_recipes() -> None:
    assert PAGE.read_text() == cookbook_page(), "run: python -m dataplane.inspector.cookbook > docs/cookbook.md"


def test_gap_by_agent_and_position_agrees_with_the_columns(plane: DataPlane) -> None:
    ids = plane.rows("train", have=["advantages"])
    names = ["token_mask", "teacher_logprobs", "student_logprobs", "agent"]
    batch = plane.get("train", ids, names)
    found = {
        (r["agent"], r["response_position"]): r
        for r in plane.sql(RECIPES["Gap by agent and response position"]).to_pylist()
    }
    gaps: dict[tuple[str, int], list[np.float32]] = {}
    for mask, teacher, student, agent in zip(*(batch.values(name) for name in names), strict=True):
        first = mask.index(True)
        for position in np.flatnonzero(mask):
            gap = np.float32(teacher[position]) - np.float32(student[position])
            gaps.setdefault((agent, int(position) - first), []).append(gap)
    assert found.keys() == gaps.keys()
    for key, values in gaps.items():
        assert found[key]["tokens"] == len(values) and found[key]["gap"] == pytest.approx(np.mean(values, dtype=float))


def test_staleness_agrees_with_the_columns(plane: DataPlane) -> None:
    expected: dict[int, int] = {}
    for step in (1, 2, 3):
        for version in column(plane, "weight_version", step):
            expected[step - 1 - version] = expected.get(step - 1 - version, 0) + 1
    assert {r["staleness"]: r["samples"] for r in plane.sql(RECIPES["Staleness"]).to_pylist()} == expected


def test_the_worst_token_is_the_worst_token(plane: DataPlane) -> None:
    columns = ("token_mask", "teacher_logprobs", "student_logprobs")
    mask, teacher, student = (np.concatenate(column(plane, name, 3)) for name in columns)
    worst = (teacher.astype(np.float32) - student.astype(np.float32))[mask].min()
    assert plane.sql(RECIPES["The worst tokens of a step"])["gap"][0].as_py() == worst


def test_a_nan_spoils_no_mean(tmp_path: Path) -> None:
    with open_plane(tmp_path / "plane") as plane:
        plane.create_partition("train", ["agent", "reward", "gap_sum", "gap_mean", "num_finite", "sample_mask"])
        gaps = {"gap_sum": [-4.0, None, float("nan")], "gap_mean": [-2.0, None, float("nan")], "num_finite": [2, 0, 0]}
        plane.put(
            "train", ["a", "b", "c"], {"agent": ["x"] * 3, "reward": [1.0] * 3, "sample_mask": [True] * 3, **gaps}
        )
        plane.seal(1, ["a", "b", "c"])
        plane.record_trained(1, {})
        [row] = plane.sql(RECIPES["Advantage against reward"]).to_pylist()
    assert (row["samples"], row["tokens"], row["gap"], row["mean_of_samples"]) == (1, 2, -2.0, -2.0)


@pytest.mark.parametrize("title", RECIPES)
def test_recipes_need_nothing_but_the_views_of_a_run_just_begun(
    title: str, checkpoints: Path, prompt_file: Path
) -> None:
    from workers.partitions import create_partitions

    with open_plane("memory://") as plane:
        create_partitions(plane, small_config(checkpoints, prompt_file), 79)
        plane.sql(RECIPES[title])
