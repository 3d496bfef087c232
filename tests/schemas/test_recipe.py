"""From a YAML file and overrides to a RunConfig, with a clear line for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.config import load_recipe, recipe_names, warnings
from schemas.config.recipe import BUILT_IN
from schemas.errors import ConfigError

BASE = """\
data:
  train: [{path: a.jsonl}, {path: b.jsonl, agent: sort}]
policy: {model: student}
grpo: {num_prompts_per_step: 6, max_num_steps: 4}
on_policy_distillation:
  enabled: true
  teacher_model_by_agent_name: {rev: t/rev, sort: t/sort}
"""
SEEDS = Path(__file__).parents[1] / "data" / "seeds"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.yaml"
    path.write_text(BASE)
    return path


def extend(base: Path, text: str) -> str:
    path = base.with_name("child.yaml")
    path.write_text(f"extends: {base.name}\n{text}")
    return str(path)


@pytest.mark.parametrize("name", recipe_names())
def test_every_built_in_recipe_loads_by_name_and_needs_no_warning(name: str) -> None:
    config = load_recipe(name)
    assert (config.run.name, warnings(config)) == (name, [])


@pytest.mark.parametrize("name", recipe_names())
def test_every_built_in_recipe_opens_with_hardware_time_and_expected_number(name: str) -> None:
    text = (BUILT_IN / f"{name}.yaml").read_text()
    head = text.partition("\n\n")[0]
    assert [word for word in ("Hardware:", "Time:", "Expected:") if word not in head] == []


def test_quickstart_is_what_the_documents_say() -> None:
    config = load_recipe("quickstart")
    assert config.trainer.optimizer.lr == 1.5e-3
    assert (config.grpo.max_num_steps, config.grpo.num_samples_per_step, config.grpo.async_grpo.window) == (80, 256, 1)
    assert sorted(config.on_policy_distillation.teacher_model_by_agent_name) == ["rev", "sort"]


@pytest.mark.parametrize("seed", ["mopd_usage.yaml", "proximal_usage.yaml"])
def test_usage_blocks_of_the_sources_load_verbatim(base: Path, seed: str) -> None:
    block = (SEEDS / seed).read_text()
    base.write_text("data: {train: [{path: a.jsonl}]}\npolicy: {model: student}\n")
    config = load_recipe(extend(base, block))
    assert (config.on_policy_distillation.enabled, config.grpo.adv_estimator.name) == (True, "opd")


def test_extends_merges_mappings_and_replaces_everything_else(base: Path) -> None:
    child = extend(base, "grpo: {max_num_steps: 9}\ndata: {train: [{path: c.jsonl}]}\n")
    config = load_recipe(child)
    assert (config.grpo.num_prompts_per_step, config.grpo.max_num_steps) == (6, 9)
    assert [source.path for source in config.data.train] == ["c.jsonl"]
    assert config.run.name == "child"


def test_extends_is_one_level_only(base: Path) -> None:
    child = Path(extend(base, ""))
    grandchild = child.with_name("grandchild.yaml")
    grandchild.write_text("extends: child.yaml\n")
    with pytest.raises(ConfigError, match=r"extends child.yaml, which extends base.yaml; one level is allowed"):
        load_recipe(str(grandchild))


def test_a_section_with_nothing_below_it_changes_nothing(base: Path) -> None:
    assert load_recipe(extend(base, "grpo:\ntrainer:\n")).grpo.num_prompts_per_step == 6


def test_a_recipe_elsewhere_may_extend_a_built_in_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: quickstart.yaml\nrun: {seed: 7}\n")
    config = load_recipe(str(path))
    assert (config.run.name, config.run.seed, config.grpo.max_num_steps) == ("mine", 7, 80)


def test_overrides_are_yaml_at_dotted_paths(base: Path) -> None:
    overrides = ["trainer.optimizer.lr=2e-3", "data.train.1.agent=rev", "store.retention=never", "run.name=no"]
    config = load_recipe(str(base), [*overrides, "on_policy_distillation.teacher_model_by_agent_name.rev=x=y"])
    assert config.trainer.optimizer.lr == 0.002
    assert [source.agent for source in config.data.train] == [None, "rev"]
    assert (config.run.name, config.on_policy_distillation.teacher_model_by_agent_name["rev"]) == ("no", "x=y")


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("grpo.max_num_steps", "expected KEY=VALUE with a dotted key"),
        ("grpo..max_num_steps=3", "expected KEY=VALUE with a dotted key"),
        ("data.train.2.agent=rev", "expected a position from 0 to 1, got '2'"),
        ("policy.model.name=x", "model holds 'student', so there is nothing below it"),
        ("run.name=[a", "not valid YAML"),
        ("grpo.max_num_step=5", r"^grpo.max_num_step: unknown key \(did you mean 'max_num_steps'\?\)$"),
    ],
)
def test_bad_overrides_are_refused(base: Path, override: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_recipe(str(base), [override])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("grpo: {a: 1\npolicy: 2\n", r"base.yaml:2: not valid YAML"),
        ("grpo:\n  a: 1\n  a: 2\n", r"base.yaml:3: not valid YAML: key 'a' is given twice"),
        ("- grpo\n", "expected a mapping of sections, got list"),
        ("", "expected a mapping of sections, got nothing"),
        ("extends: [a]\n", "extends: expected the name of a recipe file"),
        ("extends: nowhere.yaml\n", r"base.yaml: extends nowhere.yaml: recipe 'nowhere.yaml': no such file or built"),
    ],
)
def test_bad_files_are_refused(base: Path, text: str, reason: str) -> None:
    base.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        load_recipe(str(base))


def test_a_misspelt_built_in_name_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"no such file or built-in recipe \(did you mean 'quickstart'\?\)"):
        load_recipe("quikstart")


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a YAML file, got a folder"):
        load_recipe(str(tmp_path))
