"""A configuration laid open, and the copy that a run keeps."""

from __future__ import annotations

from pathlib import Path

import yaml

from schemas.config import describe, load_recipe, load_resolved, save_resolved
from schemas.config.recipe import validate


def test_describe_gives_value_default_and_meaning(recipe) -> None:
    settings = {setting.key: setting for setting in describe(validate(recipe(grpo__max_num_steps=7)))}
    assert settings["grpo.max_num_steps"][1:] == (7, 100, "training steps of the run")
    assert settings["policy.model"].default == "required"
    assert settings["data.train.0.path"].value == "prompts.jsonl"
    assert settings["on_policy_distillation.full"].value is None


def test_describe_covers_every_key_of_the_resolved_copy(recipe) -> None:
    config = validate(recipe(on_policy_distillation__non_colocated_teachers={"enabled": True}))
    leaves = set()

    def walk(value: object, path: str) -> None:
        below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        if path in keys or not below:
            leaves.add(path)
            return
        for key, item in below:
            walk(item, f"{path}.{key}" if path else str(key))

    keys = [setting.key for setting in describe(config)]
    walk(config.model_dump(mode="json"), "")
    assert leaves == set(keys)


def test_saved_copy_loads_equal_and_names_versions(tmp_path: Path) -> None:
    config = load_recipe("quickstart", ["run.seed=3", "trainer.optimizer.eps=1e-9"])
    save_resolved(config, tmp_path / "config.yaml")
    assert load_recipe(str(tmp_path / "config.yaml")) == config
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["versions"]["pydantic"].startswith("2.")


def test_the_text_alone_gives_the_configuration_back(recipe, tmp_path: Path) -> None:
    config = validate(recipe(run__name="kept", grpo__max_num_steps=7))
    save_resolved(config, tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text()
    assert load_resolved(text) == config
    assert load_resolved(text, ["grpo.max_num_steps=9"]).grpo.max_num_steps == 9
