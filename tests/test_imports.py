"""The house's one rule: imports go one way. Read from the source, so that lazy imports count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[1]
ROOMS = ("schemas", "dataplane", "stages", "workers", "configs")

#: What each room may import from the house, and what from outside it must never import.
MAY = {"schemas": {"schemas"}, "dataplane": {"schemas", "dataplane"}, "stages": {"schemas", "stages"}}
NEVER = {
    "schemas": {"ray", "redis", "transformers", "duckdb", "typer"},
    "dataplane": {"torch", "ray", "transformers", "vllm", "megatron", "pandas"},
    "stages": {"ray", "redis", "transformers", "duckdb", "vllm", "megatron"},
}


#: Inside the data plane: each of these imports only the ones before it.
FLOORS = ("backends", "blocks", "catalog", "serving")


def modules(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full path"
            yield str(node.module)


def imports(path: Path) -> Iterator[str]:
    """Top-level names of every import in a file."""
    return (module.partition(".")[0] for module in modules(path))


def sources(room: str) -> list[Path]:
    return sorted((HOUSE / room).rglob("*.py"))


@pytest.mark.parametrize("room", MAY)
def test_rooms_import_one_way(room: str) -> None:
    forbidden = (set(ROOMS) | {"tests", "benchmarks"}) - MAY[room]
    found = {
        f"{path.relative_to(HOUSE)} imports {name}"
        for path in sources(room)
        for name in imports(path)
        if name in forbidden
    }
    assert found == set()


@pytest.mark.parametrize("floor", range(len(FLOORS)))
def test_the_data_plane_is_built_floor_by_floor(floor: int) -> None:
    below = {"numbers", *FLOORS[: floor + 1]}
    found = {
        f"{path.relative_to(HOUSE)} imports {module}"
        for path in sources(f"dataplane/{FLOORS[floor]}")
        for module in modules(path)
        if module.startswith("dataplane") and module.split(".")[1:2] and module.split(".")[1] not in below
    }
    assert found == set()


@pytest.mark.parametrize("room", NEVER)
def test_rooms_stay_free_of_what_is_too_heavy_for_them(room: str) -> None:
    found = {
        f"{path.relative_to(HOUSE)} imports {name}"
        for path in sources(room)
        for name in imports(path)
        if name in NEVER[room]
    }
    assert found == set()


def test_schemas_import_torch_only_inside_batch() -> None:
    files = {path.name for path in sources("schemas") if "torch" in imports(path)}
    assert files <= {"batch.py"}


@pytest.mark.parametrize("room", ROOMS)
def test_every_folder_with_code_is_a_package_of_the_wheel(room: str) -> None:
    bare = {str(path.parent.relative_to(HOUSE)) for path in sources(room) if not (path.parent / "__init__.py").exists()}
    assert bare == set()


def test_the_rule_sees_imports_inside_functions(tmp_path: Path) -> None:
    source = tmp_path / "lazy.py"
    source.write_text("def f():\n    from ray.util import x\n    import torch.nn as nn, os\n")
    assert list(imports(source)) == ["ray", "torch", "os"]
