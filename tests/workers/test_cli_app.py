"""The command line's shell: exit codes, one clear line for an error, and a start without the heavy libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import typer

from schemas.errors import ConfigError, JobFailed, MissingRows
from workers.cli import app as shell
from workers.cli.app import VERBS, main


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch):
    """Registers a verb ``try`` that does what the test says, and runs it: ``(exit code)``."""

    def run(does, *options: str) -> int:
        def register(app: typer.Typer) -> None:
            app.command("try")(does)

        monkeypatch.setitem(VERBS, "try", "a.module")
        monkeypatch.setattr(shell, "import_module", lambda name: SimpleNamespace(register=register))
        with pytest.raises(SystemExit) as left:
            main([*options, "try"])
        return int(left.value.code or 0)

    return run


def raising(error: BaseException):
    def does() -> None:
        raise error

    return does


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("grpo.max_num_step: unknown key"), 2, "opd: grpo.max_num_step: unknown key\n"),
        (JobFailed("step 3: 2 of 8 rows failed"), 1, "opd: step 3: 2 of 8 rows failed\n"),
        (MissingRows("rows a, b are missing"), 1, "opd: rows a, b are missing\n"),
        (RuntimeError("first\nsecond"), 1, "opd: unexpected RuntimeError: first second (opd --debug … shows where)\n"),
    ],
)
def test_an_error_is_one_line_and_a_code(verb, capsys, error: Exception, code: int, line: str) -> None:
    assert verb(raising(error)) == code
    assert capsys.readouterr() == ("", line)


def test_an_interruption_is_exit_1(verb, capsys) -> None:
    assert verb(raising(KeyboardInterrupt())) == 1
    assert capsys.readouterr().err == "opd: interrupted\n"


def test_success_is_exit_0(verb, capsys) -> None:
    assert verb(lambda: typer.echo("done")) == 0
    assert capsys.readouterr().out == "done\n"


def test_debug_shows_the_traceback(verb, capsys) -> None:
    assert verb(raising(RuntimeError("boom")), "--debug") == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_misspelt_verb_gets_the_nearest_one(capsys) -> None:
    with pytest.raises(SystemExit) as left:
        main(["rnu"])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("opd: no verb 'rnu' (did you mean 'run'?); verbs: run, ")


def test_a_bad_choice_names_those_there_are(capsys) -> None:
    with pytest.raises(SystemExit) as left:
        main(["ls", "runs/none", "--format", "csv"])
    assert left.value.code == 2
    assert "Invalid value for '--format': 'csv' is not one of 'table', 'json'" in capsys.readouterr().err


@pytest.mark.parametrize("verb_name", list(VERBS))
def test_no_argument_is_bracketed_twice(capsys, verb_name: str) -> None:
    with pytest.raises(SystemExit):
        main([verb_name, "--help"])
    assert "[[" not in capsys.readouterr().out.split("Options:")[0]


@pytest.mark.parametrize("verb_name", list(VERBS))
def test_help_of_every_verb_has_an_example(capsys, verb_name: str) -> None:
    with pytest.raises(SystemExit) as left:
        main([verb_name, "--help"])
    assert left.value.code == 0
    assert f"Example: opd {verb_name} " in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "arguments", [["--version"], ["sql", "--help"], ["ls", "--help"], ["run", "quickstart", "--dry-run"]]
)
def test_verbs_without_a_model_start_without_heavy_libraries(arguments: list[str]) -> None:
    code = (
        "import sys; from workers.cli.app import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit: print([m for m in ('torch', 'ray', 'transformers', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_dry_run_prints_every_key_as_json(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["run", "quickstart", "grpo.max_num_steps=7", "--dry-run", "--format", "json"])
    settings = {setting["key"]: setting for setting in json.loads(capsys.readouterr().out)}
    assert settings["grpo.max_num_steps"] == {
        "key": "grpo.max_num_steps",
        "value": 7,
        "default": 100,
        "meaning": "training steps of the run",
    }


def test_dry_run_table_names_sections_and_warns_on_stderr(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["run", "quickstart", "loss_fn.disable_ppo_ratio=false", "--dry-run"])
    printed = capsys.readouterr()
    assert "on_policy_distillation\n" in "\n".join(line.rstrip() for line in printed.out.splitlines())
    assert printed.err == "warning: loss_fn.disable_ppo_ratio: on-policy distillation was published with true\n"
