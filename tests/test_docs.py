"""What the documents say is true: every command runs, every snippet works, every key and file exists.

Commands run in a folder of their own, on the proxy of ``opd build-proxy`` with its training cut to a step and on
runs cut to two small steps, so that what they print is poor, but everything that they name is real.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.config import RunConfig, load_recipe
from schemas.config.problems import key_paths
from workers.cli.app import main
from workers.proxy import build

HOUSE = Path(__file__).parents[1]
PAGES = [HOUSE / "README.md", HOUSE / "CHANGELOG.md", *sorted((HOUSE / "docs").rglob("*.md"))]
RECIPES = sorted((HOUSE / "configs").glob("*.yaml"))

SHRINK = ["grpo.num_prompts_per_step=4", "grpo.max_num_steps=2", "validation.rows=4", "validation.exact_kl_rows=2"]


def blocks(language: str) -> Iterator[str]:
    """Fenced blocks of every page."""
    for page in PAGES:
        yield from re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def inline_code() -> set[str]:
    """What stands between single backticks, outside of fences."""
    prose = (re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S) for page in PAGES)
    return {code for text in prose for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)}


def commands(program: str) -> list[list[str]]:
    """Every command line of *program* in a page, split into its arguments."""
    lines = [line for block in blocks("bash") for line in block.splitlines()] + sorted(inline_code())
    split = [shlex.split(line, comments=True) for line in lines if re.match(rf"(\S*/)?{program} ", line)]
    return [words[1:] for words in split if len(words) > 1]


def opd(*arguments: str) -> int:
    """Exit code of a command run here, runs cut short."""
    shrink = SHRINK if arguments[0] == "run" else []
    with pytest.raises(SystemExit) as left:
        main([*arguments, *shrink])
    return int(left.value.code or 0)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that looks like a checkout in which ``make quickstart`` has been run."""
    place = tmp_path_factory.mktemp("workplace")
    (place / "configs").symlink_to(HOUSE / "configs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(build, "TEACHER_STEPS", {"rev": 1, "sort": 1})
        patch.setattr(build, "STUDENT_STEPS", 1)
        patch.setattr(build, "TRAIN_PROMPTS", 40)
        assert opd("build-proxy", "runs/proxy") == 0
        assert opd("run", "configs/quickstart.yaml") == 0
        yield place


STANDS_FOR = {"RUN": "runs/quickstart", "QUERY": "select count(*) from samples"}


@pytest.mark.parametrize("arguments", [a for a in commands("opd") if a[0] != "build-proxy"], ids=" ".join)
def test_every_command_runs(workplace: Path, arguments: list[str]) -> None:
    only_named = len(arguments) == 1
    assert opd(*[STANDS_FOR.get(word, word) for word in arguments], *["--help"] * only_named) == 0


@pytest.mark.parametrize("snippet", list(blocks("python")), ids=lambda text: text.split("\n", 1)[0])
def test_every_python_snippet_works(workplace: Path, snippet: str) -> None:
    exec(compile(snippet, "snippet", "exec"), {})


@pytest.mark.parametrize("text", list(blocks("yaml")), ids=lambda text: text.split("\n", 1)[0])
def test_every_recipe_snippet_loads(tmp_path: Path, text: str) -> None:
    (tmp_path / "snippet.yaml").write_text(text)
    load_recipe(str(tmp_path / "snippet.yaml"))


def test_every_make_target_exists() -> None:
    targets = sorted({word for words in commands("make") for word in words})
    assert {"quickstart", "test"} <= set(targets)
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=HOUSE, check=True, capture_output=True)


def test_every_key_in_the_text_is_a_key_of_a_recipe() -> None:
    keys = {code for code in inline_code() if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", code)}
    named = {key for key in keys if key.partition(".")[0] in RunConfig.model_fields}
    assert "grpo.async_grpo.max_staleness" in named
    assert named - set(key_paths(RunConfig)) == set()


def test_every_file_in_the_text_exists() -> None:
    rooms = ("schemas", "dataplane", "stages", "workers", "configs", "tests", "docs")
    named = {code for code in inline_code() if re.fullmatch(rf"({'|'.join(rooms)})/[\w./-]*", code)}
    assert {name for name in named if not (HOUSE / name).exists()} == set()


def test_every_link_leads_somewhere() -> None:
    links = [
        (page, link) for page in PAGES for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_commands_in_a_recipes_comment_exist(recipe: Path) -> None:
    verbs = re.findall(r"^#.*\bopd ([a-z-]+)", recipe.read_text(), re.M)
    for verb in verbs:
        assert opd(verb, "--help") == 0
