"""Replay: the same comes out, what was altered is found, and what would have been is what the formula says."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from dataplane import open_plane
from schemas.errors import InputError
from tests.workers.runs import run, small_config
from workers.cli.app import main
from workers.replay import replay
from workers.replay.session import _as_texts

ALPHA = "on_policy_distillation.proximal_teacher_alpha"


@pytest.fixture(scope="module")
def finished(checkpoints: Path, prompt_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps; of the weights, versions 2 and 4 (checkpoints), 0, and the newest published ones are left."""
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=4, checkpointing__period=2)
    return run(config, tmp_path_factory.mktemp("replay") / "run").path


@pytest.fixture
def altered(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def opd(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


def contents(directory: Path) -> dict[str, str]:
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_every_stage_of_an_inline_run_is_identical(finished: Path, step: int) -> None:
    with replay(finished, step) as again:
        report = again.run()
    assert [stage.stage for stage in report.stages] == ["teacher", "student", "baseline", "train"]
    assert [stage.verdict for stage in report.stages][1:] == ["identical", "identical", "identical"]
    assert report.stages[0].verdict in ("identical", "within_tolerance")
    assert {name: c.rows for name, c in report.stages[3].columns.items()} == {"loss": 4}


def test_a_recipe_with_relative_paths_is_replayed_from_another_directory(
    checkpoints: Path, prompt_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoints.parent)
    run(small_config(Path(checkpoints.name), prompt_file, grpo__max_num_steps=1), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    with replay("run", 1) as again:
        verdicts = [stage.verdict for stage in again.run().stages]
    assert verdicts[1:] == ["identical"] * 3 and verdicts[0] in ("identical", "within_tolerance")
    assert Path.cwd() == tmp_path


def test_generate_is_scored_again_within_the_tolerance(finished: Path) -> None:
    with replay(finished, 2) as again:
        [stage] = again.run("generate").stages
    assert stage.verdict in ("identical", "within_tolerance")
    assert stage.columns["generation_logprobs"].max_abs_diff < stage.tolerance.absolute
    assert stage.columns["reward"].verdict == "identical"


def test_weights_come_from_where_they_are_left(finished: Path) -> None:
    said = {}
    for step in (1, 2, 3, 4):
        with replay(finished, step) as again:
            said[step] = str(again.run("student").stages[0].weights)
    assert said[1].startswith("version 0: ")
    assert "the initial student" in said[2] and "trained forward through the stored batch of step 1" in said[2]
    assert said[3] == "version 2: checkpoint step_000002"
    assert said[4] == "version 3: published weights version_000003.safetensors"


def test_an_altered_teacher_value_is_found_by_sample_and_token(altered: Path) -> None:
    with open_plane(altered / "plane") as plane:
        sample_id = plane.members(2)[1]
        values = plane.get("train", [sample_id], ["teacher_logprobs"]).values("teacher_logprobs")[0]
        position = len(values) - 1
        changed = [*values[:position], values[position] - 0.5]
        plane.replace("train", [sample_id], {"teacher_logprobs": [changed]})
    with replay(altered, 2) as again:
        report = again.run("teacher", "baseline")
    first = report.stages[0].columns["teacher_logprobs"].first_difference
    assert (report.verdict, first.sample_id, first.position) == ("different", sample_id, position)
    assert first.stored - first.replayed == pytest.approx(-0.5, abs=1e-5)
    advantage = report.stages[1].columns["advantages"].first_difference
    assert (advantage.sample_id, advantage.position) == (sample_id, position)


def test_an_altered_scalar_is_found(altered: Path) -> None:
    with open_plane(altered / "plane") as plane:
        sample_id = plane.members(3)[2]
        plane.replace("train", [sample_id], {"loss": [7.5]})
    with replay(altered, 3) as again:
        column = again.run("train").stages[0].columns["loss"]
    assert (column.rows, column.equal, column.first_difference.sample_id) == (4, 3, sample_id)
    assert column.first_difference.position is None and column.first_difference.stored == 7.5


def test_a_counterfactual_is_the_formula_by_hand(finished: Path) -> None:
    with replay(finished, 3) as again:
        report = again.run(overrides={ALPHA: 0.25})
        columns = ["token_mask", "generation_logprobs", "student_logprobs", "teacher_logprobs"]
        batch = again.source.batch(list(again.rows), columns)
    mask, generation, student, teacher = (np.concatenate(batch.values(name)) for name in columns)
    gap = teacher[mask].astype(np.float64) - student[mask]
    advantages = np.log(0.25 * np.exp(gap) + 0.75)
    weight = np.exp(student[mask] - generation[mask].astype(np.float64))
    kept = np.where((weight >= 0.2) & (weight <= 5.0), weight, 0.0)
    assert report.change is not None and report.stages[0].weights is None
    assert report.change["advantages"]["replayed"]["mean"] == pytest.approx(advantages.mean(), abs=1e-6)
    assert report.change["loss"]["replayed"] == pytest.approx(-(kept * advantages * student[mask]).mean(), abs=1e-6)
    assert report.change["loss"]["stored"] == pytest.approx(-(kept * gap * student[mask]).mean(), abs=1e-6)


def test_the_samples_that_moved_most_come_first(finished: Path) -> None:
    with replay(finished, 2) as again:
        change = again.run(overrides=[f"{ALPHA}=0.5"]).change
        stored = again.source.batch(list(again.rows), ["token_mask", "advantages"])
    moved = change["moved"]
    sizes = [each["mean_abs_change"] for each in moved]
    assert sizes == sorted(sizes, reverse=True) and len(moved) == 4
    row = stored.sample_ids.index(moved[0]["sample_id"])
    old = np.array(stored.values("advantages")[row])[np.array(stored.values("token_mask")[row])]
    new = np.log(0.5 * np.exp(old) + 0.5)
    assert sizes[0] == pytest.approx(np.abs(new - old).mean(), abs=1e-6)


def test_a_narrower_gate_drops_more_tokens(finished: Path) -> None:
    bounds = {"truncated_importance_sampling_ratio_min": 0.9999, "truncated_importance_sampling_ratio": 1.0001}
    with replay(finished, 4) as again:
        change = again.run("train", overrides={f"loss_fn.{name}": value for name, value in bounds.items()}).change
        columns = ["token_mask", "generation_logprobs", "student_logprobs"]
        batch = again.source.batch(list(again.rows), columns)
    mask, generation, student = (np.concatenate(batch.values(name)) for name in columns)
    weight = np.exp(student[mask] - generation[mask])
    assert change["share_gated"]["replayed"] == pytest.approx(((weight < 0.9999) | (weight > 1.0001)).mean())
    assert change["share_gated"]["replayed"] > change["share_gated"]["stored"]


def test_nothing_is_written_to_the_run(finished: Path) -> None:
    before = contents(finished)
    with replay(finished, 2) as again:
        again.run()
        again.run(overrides={ALPHA: 0.5})
    assert contents(finished) == before


def test_rows_that_failed_are_replayed_with_their_errors(altered: Path) -> None:
    with open_plane(altered / "plane") as plane:
        long = {"input_ids": [[5] * 300], "token_mask": [[False] * 299 + [True]], "agent": ["rev"], "teacher": ["rev"]}
        plane.put("train", ["long"], long)
        plane.put("train", ["well"], {**long, "input_ids": [[5, 6]], "token_mask": [[False, True]]})
        error = "teacher_too_long: 300 tokens exceed the 256 that this model accepts"
        plane.fail("train", {"long": error, "well": "engine_error: out of memory"})
    with replay(altered, where="status = 'failed'") as again:
        [stage] = again.run("teacher").stages
    assert stage.errors == {"long": [error, error], "well": ["engine_error: out of memory", None]}
    assert stage.verdict == "different"


def test_one_sample_is_compared_alone_though_its_step_is_run_whole(finished: Path) -> None:
    with replay(finished, step=2) as whole:
        sample_id = list(whole.rows)[3]
    with replay(finished, sample_ids=[sample_id]) as again:
        report = again.run("baseline")
        assert (again.step, len(again.batch("baseline"))) == (2, 4)
    assert report.verdict == "identical" and report.stages[0].columns["advantages"].rows == 1


def test_a_stage_can_be_called_by_hand(finished: Path) -> None:
    with replay(finished, 1) as again:
        output = again.stage("baseline")(again.batch("baseline"))
    assert list(output.sample_ids) == list(again.rows) and "advantages" in output.columns


def test_pdb_stops_inside_the_stage(finished: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("p len(batch)\np self.task\ncontinue\n"))
    code, out, _ = opd(capsys, "replay", str(finished), "--step", "2", "--stage", "baseline", "--pdb")
    assert code == 0 and "stages/baseline.py" in out and "\n(Pdb) 4\n" in out and "'baseline'" in out


def test_the_contract_of_json(finished: Path, capsys) -> None:
    code, out, err = opd(capsys, "replay", str(finished), "--step", "2", "--stage", "baseline", "--format", "json")
    found = json.loads(out)
    assert (code, err) == (0, "") and {"step", "stages", "verdict"} <= found.keys()
    assert (found["step"], found["verdict"]) == (2, "identical")
    [stage] = found["stages"]
    assert stage["columns"]["advantages"] == {"rows": 4, "equal": 4, "max_abs_diff": 0.0, "first_difference": None}
    assert (stage["stage"], stage["weights"]) == ("baseline", None)


def test_a_difference_is_exit_1(finished: Path, capsys) -> None:
    code, out, _ = opd(capsys, "replay", str(finished), "--step", "2", "--set", f"{ALPHA}=0.5", "--format", "json")
    found = json.loads(out)
    first = found["stages"][0]["columns"]["advantages"]["first_difference"]
    assert (code, found["verdict"]) == (1, "different") and first.keys() == {
        "sample_id",
        "position",
        "stored",
        "replayed",
    }


def test_what_cannot_run_is_exit_2_with_its_reason(finished: Path, capsys, tmp_path: Path) -> None:
    gone = f"on_policy_distillation.teacher_model_by_agent_name.rev={tmp_path}/gone"
    arguments = ["replay", str(finished), "--step", "2", "--stage", "teacher", "--set", gone, "--format", "json"]
    code, out, err = opd(capsys, *arguments)
    found = json.loads(out)
    assert (code, found["verdict"]) == (2, "not_run") and "gone" in found["reason"] and "gone" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "9"], "step 9 is not sealed in this run; steps 1 to 4 are"),
        ([], "say which rows"),
        (["--sample", "none"], "no sample 'none'"),
        (["--where", "rewardd > 1"], "opd: where 'rewardd > 1': no column 'rewardd' (did you mean 'reward'?)"),
        (["--step", "1", "--set", "nothing=1"], "nothing"),
    ],
)
def test_bad_input_is_exit_2_in_one_line(finished: Path, capsys, arguments: list[str], message: str) -> None:
    code, out, err = opd(capsys, "replay", str(finished), *arguments)
    assert (code, out) == (2, "") and message in err


def test_a_reason_is_said_once(finished: Path, capsys) -> None:
    code, out, err = opd(capsys, "replay", str(finished), "--step", "1", "--stage", "techer")
    assert (code, out.count("no stage 'techer'"), err) == (2, 1, "")


def test_an_unknown_stage_names_those_there_are(finished: Path) -> None:
    with replay(finished, 1) as again:
        report = again.run("techer")
    assert report.verdict == "not_run" and "did you mean 'teacher'?" in str(report.reason)


def test_a_store_alone_has_its_recipe_in_it(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "plane", tmp_path / "alone")
    with replay(tmp_path / "alone", 1) as again:
        assert again.run("baseline").verdict == "identical"


def test_a_store_without_a_recipe_asks_for_it(tmp_path: Path) -> None:
    with open_plane(tmp_path / "plane") as plane:
        plane.create_partition("train", ["prompt"])
    with pytest.raises(InputError, match="--config FILE"):
        replay(tmp_path / "plane", 1)


def test_packages_that_changed_since_the_run_are_named(altered: Path, capsys) -> None:
    file = altered / "config.yaml"
    content = yaml.safe_load(file.read_text())
    now = content["versions"]["torch"]
    content["versions"] |= {"torch": "1.0.0", "gone-since": "3.1"}
    file.write_text(yaml.safe_dump(content))
    code, out, _ = opd(capsys, "replay", str(altered), "--step", "2", "--stage", "baseline")
    assert code == 0 and f"since the run, torch changed from 1.0.0 to {now}" in out
    assert "gone-since changed from 3.1 to absent" in out and "numpy" not in out


def test_a_setting_that_no_stage_reads_is_refused():
    with pytest.raises(InputError, match="policy.model=x: no stage of a replay would read it; expected a key of"):
        _as_texts("policy.model=x")
    assert _as_texts({"loss_fn.token_level_loss": False}) == ["loss_fn.token_level_loss=false"]
