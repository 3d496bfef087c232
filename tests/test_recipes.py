"""Every built-in recipe is planned without GPUs, and the launcher starts what it should."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from schemas.config import load_recipe, recipe_names
from workers.cli.app import main
from workers.planning.plan import Plan, plan

HOUSE = Path(__file__).parents[1]
LAUNCHER = HOUSE / "configs" / "launch" / "slurm.sh"
MOPD = "mopd-qwen3-1.7b-3n8g-megatron-pack"
SIX = "mopd-8b-six-teachers-54n4g"

#: Settings of checkpoints that the large recipes name, and how many numbers they have.
QWEN3_1_7B = (2_031_739_904, 28, 2048, 6144, 16, 8, 151_936)
LLAMA_8B = (8_030_261_248, 32, 4096, 14_336, 32, 8, 128_256)
QWEN_32B = (32_762_123_264, 64, 5120, 25_600, 64, 8, 151_936)
LLAMA_70B = (70_553_706_496, 80, 8192, 28_672, 64, 8, 128_256)
_NAMES = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")


def checkpoint(path: Path, shape: tuple[int, ...]) -> None:
    """A bfloat16 checkpoint of that shape: its settings, and an index of shards that are elsewhere."""
    parameters, *sizes, vocabulary = shape
    path.mkdir(parents=True)
    settings = {**dict(zip(_NAMES, sizes, strict=True)), "head_dim": 128, "vocab_size": vocabulary, "dtype": "bfloat16"}
    index = {"metadata": {"total_size": 2 * parameters}, "weight_map": {"a": "model-1.safetensors"}}
    (path / "config.json").write_text(json.dumps(settings))
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the large recipes' checkpoints."""
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path / "models" / "Qwen3-1.7B", QWEN3_1_7B)
    checkpoint(tmp_path / "models" / "student-8b", LLAMA_8B)
    checkpoint(tmp_path / "models" / "teacher-math-70b", LLAMA_70B)
    for skill in ("code", "tools", "science"):
        checkpoint(tmp_path / "models" / f"teacher-{skill}-32b", QWEN_32B)
    for skill in ("instructions", "safety"):
        checkpoint(tmp_path / "models" / f"teacher-{skill}-8b", LLAMA_8B)
    return tmp_path


def planned(recipe: str, *overrides: str) -> Plan:
    return plan(load_recipe(recipe, overrides))


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_is_planned_without_its_checkpoints(recipe, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["run", recipe, "--dry-run"])
    printed = capsys.readouterr().out
    assert (left.value.code or 0) == 0
    assert "is not on this machine: its bytes are left out" in printed and "does not fit" not in printed


def test_the_three_node_recipe_puts_policy_teacher_and_generators_on_a_node_each(models) -> None:
    roles = {role.name: role for role in planned(MOPD).roles}
    assert {name: (role.engine, role.nodes) for name, role in roles.items()} == {
        "teacher:default_teacher": ("megatron", {"node 0": 8}),
        "generator": ("vllm", {"node 1": 8}),
        "trainer": ("megatron", {"node 2": 8}),
    }


@pytest.mark.parametrize("recipe", [MOPD, f"{MOPD}-full", SIX])
def test_large_recipes_fit_their_gpus(models, recipe) -> None:
    made = planned(recipe)
    assert (made.notes, made.problems) == ([], [])
    assert all(role.memory.device["weights"] > 0 for role in made.roles)


def test_a_policy_on_one_rank_would_not_fit_and_says_so(models) -> None:
    one = ["trainer.tensor_model_parallel_size=1", "cluster.gpu_memory_gb=24"]
    [problem] = [line for line in planned(MOPD, *one).problems if line.startswith("trainer")]
    assert "which has 24.0 GB; most of it is optimizer (24.4 GB): spread the model over more ranks" in problem


def test_teachers_of_the_large_recipe_stay_inside_their_segments(models) -> None:
    config = load_recipe(SIX)
    teachers = [role for role in plan(config).roles if role.name.startswith("teacher:")]
    assert {role.name: role.processes for role in teachers} == {
        **{"teacher:math": 32, "teacher:code": 16, "teacher:tools": 16, "teacher:science": 16},
        **{"teacher:instructions": 8, "teacher:safety": 8},
    }
    for role in teachers:
        nodes = [int(node.removeprefix("node ")) for node in role.nodes]
        assert len({node // config.cluster.segment_size for node in nodes}) == 1


def test_the_full_vocabulary_variant_ships_two_bytes_a_number_of_a_hidden_state(models) -> None:
    [shipped] = [column for column in planned(f"{MOPD}-full").columns if column.heavy]
    assert (shipped.name, shipped.per_token) == ("payload_hidden_states", 2 * 2048)


# -- the launcher -------------------------------------------------------------------------------------


def test_the_launcher_is_valid_bash() -> None:
    subprocess.run(["bash", "-n", str(LAUNCHER)], check=True)


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A folder of commands that note what they are given in ``log``, for a job of the nodes n1 and n2."""
    commands = {
        "scontrol": "printf 'n1\\nn2\\n'",
        "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
        "hostname": "echo 10.0.0.7",
        "ray": f'echo "ray $*" >> {tmp_path}/log; exec sleep 60',
        "python": f"grep -c ^ray {tmp_path}/log",
        "opd": f'echo "opd $* at $RAY_ADDRESS" >> {tmp_path}/log',
    }
    (tmp_path / "bin").mkdir()
    for name, body in commands.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def launch(slurm: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        **{"PATH": f"{slurm}/bin:{os.environ['PATH']}", "OPD_VENV": str(slurm), "SLURM_JOB_NODELIST": "n[1-2]"},
        **{"SLURM_GPUS_ON_NODE": "8", **settings},
    }
    return subprocess.run(
        ["bash", str(LAUNCHER), *arguments], env=environment, capture_output=True, text=True, timeout=60
    )


def test_the_launcher_starts_a_head_the_other_nodes_and_then_the_run(slurm) -> None:
    done = launch(slurm, "quickstart", "run.seed=1", OPD_SEGMENT="echo rack-3")
    assert (done.returncode, done.stderr) == (0, "")
    *rays, run = (slurm / "log").read_text().splitlines()
    head, other = sorted(rays, key=lambda line: "--head" not in line)
    common = "ray start --block --disable-usage-stats --num-gpus=8"
    label = "--labels nvlink-segment=rack-3"
    assert head == f"{common} --head --node-ip-address=10.0.0.7 --port=6380 --include-dashboard=false {label}"
    assert other == f"{common} --address=10.0.0.7:6380 {label}"
    assert run == "opd run quickstart run.seed=1 at 10.0.0.7:6380"


def test_the_launcher_without_a_recipe_says_how_to_use_it(slurm) -> None:
    done = launch(slurm)
    assert done.returncode == 2 and done.stderr.startswith("usage: sbatch --nodes=N")
