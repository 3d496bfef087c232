"""What the page is told: every number recomputed from stored columns, and nothing that a visitor must not do."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from dataplane import open_plane
from dataplane.inspector import timeline as timelines
from tests.workers.runs import run, small_config
from tests.workers.ui_server import NASTY, fetch, served

ASSETS = Path(timelines.__file__).parent / "assets"


@pytest.fixture(scope="module")
def finished(checkpoints: Path, prompt_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of eight samples, two a prompt; one response is hostile."""
    config = small_config(checkpoints, prompt_file, grpo__max_num_steps=3, grpo__num_generations_per_prompt=2)
    path = run(config, tmp_path_factory.mktemp("ui") / "run").path
    with open_plane(path / "plane") as plane:
        plane.replace("train", [plane.members(1)[0]], {"response_text": [NASTY]})
    return path


@pytest.fixture(scope="module")
def page(finished: Path) -> Iterator[str]:
    with served(finished) as url:
        yield url


def columns(run_path: Path, *names: str, step: int | None = None) -> dict[str, list]:
    with open_plane(run_path / "plane", mode="r") as plane:
        ids = plane.rows("train", have=["advantages"], step=step)
        batch = plane.get("train", ids, list(names))
        return {"sample_id": ids, **{name: batch.values(name) for name in names}}


def test_gap_and_reward_by_agent_agree_with_the_columns(page: str, finished: Path) -> None:
    _, found, _ = fetch(f"{page}/api/steps")
    names = ("agent", "reward", "token_mask", "teacher_logprobs", "student_logprobs", "weight_version")
    for row in found["by_agent"]:
        stored = columns(finished, *names, step=row["step"])
        picked = [k for k, agent in enumerate(stored["agent"]) if agent == row["agent"]]
        mask = np.concatenate([stored["token_mask"][k] for k in picked])
        teacher, student = (np.concatenate([stored[name][k] for k in picked]) for name in names[3:5])
        assert row["samples"] == len(picked) and row["finite"] == row["tokens"] == mask.sum()
        assert row["gap"] == pytest.approx((teacher - student)[mask].mean(), abs=1e-6)
        assert row["reward"] == pytest.approx(np.mean([stored["reward"][k] for k in picked]))
        stale = [row["step"] - 1 - stored["weight_version"][k] for k in picked]
        assert (row["staleness"], row["staleness_max"]) == (pytest.approx(np.mean(stale)), max(stale))
    assert sum(row["samples"] for row in found["by_agent"]) == 24


def test_step_metrics_are_those_of_the_store(page: str, finished: Path) -> None:
    _, found, _ = fetch(f"{page}/api/steps")
    with open_plane(finished / "plane", mode="r") as plane:
        metrics = [step.metrics for step in plane.steps()]
    for name in ("loss", "gap_mean", "grad_norm", "wall_s"):
        assert found["metrics"][name] == [each[name] for each in metrics]
    losses = [np.sum(columns(finished, "loss", step=step)["loss"], dtype=float) for step in (1, 2, 3)]
    assert found["metrics"]["loss"] == pytest.approx(losses, abs=1e-6)


def test_samples_are_filtered_sorted_and_paged(page: str, finished: Path) -> None:
    query = "partition=train&agent=rev&sort=gap_mean&desc=true&limit=3&offset=2"
    _, found, _ = fetch(f"{page}/api/samples?{query}")
    stored = columns(finished, "agent", "gap_mean")
    rows = zip(stored["gap_mean"], stored["agent"], stored["sample_id"], strict=True)
    expected = [i for _, agent, i in sorted(rows, key=lambda row: (-row[0], row[2])) if agent == "rev"]
    at = found["columns"].index("sample_id")
    assert [row[at] for row in found["rows"]] == expected[2:5] and found["total"] >= len(expected)


def test_samples_are_searched_as_text_not_as_a_pattern(page: str) -> None:
    _, found, _ = fetch(f"{page}/api/samples?text={quote(NASTY)}")
    assert found["total"] == 1
    assert fetch(f"{page}/api/samples?text={quote('%')}")[1]["total"] == 0
    assert fetch(f"{page}/api/samples?status={quote(chr(39))}")[1]["total"] == 0


def test_a_samples_tokens_are_those_of_its_columns(page: str, finished: Path) -> None:
    stored = columns(finished, "input_ids", "token_mask", "advantages", "teacher_logprobs", "group_id", step=2)
    sample_id = stored["sample_id"][5]
    _, found, _ = fetch(f"{page}/api/sample?partition=train&id={sample_id}")
    assert [token["token_id"] for token in found["tokens"]] == stored["input_ids"][5]
    for shown, name in (("advantage", "advantages"), ("teacher_logprob", "teacher_logprobs")):
        masked = zip(stored[name][5], stored["token_mask"][5], strict=True)
        assert [token[shown] for token in found["tokens"]] == [value if on else None for value, on in masked]
    group = [i for i, g in zip(stored["sample_id"], stored["group_id"], strict=True) if g == stored["group_id"][5]]
    assert [each["sample_id"] for each in found["responses"]] == group and len(group) == 2


def test_the_timeline_agrees_with_the_events(page: str, finished: Path) -> None:
    _, found, _ = fetch(f"{page}/api/timeline")
    with open_plane(finished / "plane", mode="r") as plane:
        events = plane.sql("select claim, worker, kind, rows, epoch(time) as at from events where claim is not null")
    ends = {e["claim"]: e["at"] for e in events.to_pylist() if e["kind"] == "committed"}
    for lane in found["lanes"]:
        claims = [e for e in events.to_pylist() if e["kind"] == "claimed" and e["worker"] == lane["name"]]
        worked = sum(ends[claim["claim"]] - claim["at"] for claim in claims)
        assert lane["busy_s"] == pytest.approx(worked, abs=1e-4) and lane["rows"] == sum(c["rows"] for c in claims)
        assert lane["busy"] == pytest.approx(worked / (found["end"] - found["start"]), abs=1e-4)
    assert [lane["name"] for lane in found["lanes"]] == ["generator", "teacher:rev", "teacher:sort", "trainer"]
    assert [m["number"] for m in found["marks"] if m["kind"] == "step_trained"] == [1, 2, 3]


def test_overlapping_work_is_counted_once_and_waiting_is_the_rest() -> None:
    assert timelines._covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (5.5, 5.6)]) == 4.0


def test_work_that_a_crash_cut_off_ends_with_the_last_word_of_its_writer(tmp_path: Path) -> None:
    clock = iter(range(100, 200))
    with open_plane(tmp_path / "plane", clock=lambda: float(next(clock))) as plane:
        plane.create_partition("train", ["prompt"])
        plane.declare_task("train", "generate", reads=["prompt"])
        plane.put("train", ["a", "b"], {"prompt": ["x", "y"]})
        assert plane.claim("train", "generate", worker="generator") is not None
        plane.event("last_word")
        told = timelines.timeline(plane)
        assert told["lanes"][0]["spans"][0][2:5] == [None, 2, "running"]
    with open_plane(tmp_path / "plane", clock=lambda: 500.0) as plane:
        [span] = timelines.timeline(plane)["lanes"][0]["spans"]
    task, start, end, rows, outcome, count = span
    assert (task, rows, outcome, count, end - start) == ("generate", 2, "lost", 1, 1.0)


def test_a_query_is_answered_with_types_and_at_most_a_thousand_rows(page: str) -> None:
    status, found, _ = fetch(f"{page}/api/sql", {"query": "select range as n, 'nan'::float as x from range(1500)"})
    assert status == 200 and found["types"] == ["int64", "float"] and found["more"] is True
    assert len(found["rows"]) == 1000 and found["rows"][999] == [999, "NaN"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select length(repeat('x', 3000000000))", "more memory"),
        ("select len(range(2000000000))", "more memory"),
        ("select gapp from tokens", "did you mean 'gap'"),
        ("drop view samples", "only reads"),
        ("select * from read_text('/etc/passwd')", "file system operations are disabled"),
    ],
)
def test_no_query_stops_the_page(page: str, query: str, message: str) -> None:
    status, found, _ = fetch(f"{page}/api/sql", {"query": query})
    assert status == 400 and message in found["error"]
    assert fetch(f"{page}/api/run")[0] == 200


def test_every_answer_forbids_what_is_not_its_own(page: str) -> None:
    for path in ("/", "/assets/app.js", "/api/run", "/nowhere"):
        headers = {name.lower(): value for name, value in fetch(page + path)[2].items()}
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example"])
def test_another_host_name_is_refused(page: str, host: str) -> None:
    assert fetch(f"{page}/api/run", host=host)[0] == 400
    assert fetch(f"{page}/api/sql", {"query": "select 1"}, host=host)[0] == 400


def test_what_a_form_of_another_site_can_send_is_refused(page: str) -> None:
    assert fetch(f"{page}/api/sql", {"query": "select 1"}, content_type="text/plain")[0] == 415
    assert fetch(f"{page}/api/sql", ["select 1"])[0] == 400


@pytest.mark.parametrize("name", ["..%2fserver.py", "%2e%2e%2fserver.py", "..", "uPlot.LICENSE", "none.js"])
def test_only_assets_are_served(page: str, name: str) -> None:
    assert fetch(f"{page}/assets/{name}")[0] == 404


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("samples?sort=gapmean", "did you mean 'gap_mean'"),
        ("samples?limit=-1", "whole number"),
        ("sample?partition=train&id=none", "no sample 'none'"),
        ("sample?partition=train", "id: expected a value"),
        ("timeline?start=now", "seconds since the epoch"),
    ],
)
def test_a_bad_question_is_told_what_is_wrong(page: str, path: str, message: str) -> None:
    status, found, _ = fetch(f"{page}/api/{path}")
    assert status == 400 and message in found["error"]


def test_looking_changes_nothing(page: str, finished: Path) -> None:
    def state() -> dict[str, str]:
        files = [path for path in sorted(finished.rglob("*")) if path.is_file()]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = state()
    for path in ("", "api/run", "api/steps", "api/timeline", "api/samples", "api/cookbook"):
        assert fetch(f"{page}/{path}")[0] == 200
    assert state() == before


def test_a_live_run_is_followed(tmp_path: Path) -> None:
    with open_plane(tmp_path / "plane") as plane:
        plane.create_partition("train", ["prompt", "reward"])
        with served(tmp_path) as page:
            before = fetch(f"{page}/api/run")[1]
            plane.put("train", ["a", "b"], {"prompt": ["x", "y"], "reward": [1.0, 0.0]})
            plane.seal(1, ["b", "a"])
            plane.record_trained(1, {"loss": 0.5})
            after = fetch(f"{page}/api/run")[1]
            assert (before["steps_trained"], after["steps_trained"]) == (0, 1)
            assert after["position"] > before["position"]
            assert fetch(f"{page}/api/steps")[1]["metrics"]["loss"] == [0.5]
            assert fetch(f"{page}/api/samples")[1]["total"] == 2


def test_the_page_asks_nobody_else_and_everything_it_names_is_there() -> None:
    for path in ASSETS.iterdir():
        text = path.read_text(encoding="utf-8")
        urls = [url for url in re.findall(r"https?://[\w./-]+", text) if "w3.org" not in url]
        assert path.name.startswith("uPlot") or urls == []
        named = re.findall(r"/assets/([\w.]+)", text) + re.findall(r'from "\./([\w.]+)"', text)
        assert {name for name in named if not (ASSETS / name).is_file()} == set()
        assert "innerHTML" not in text or path.name.startswith("uPlot")


def test_the_command_serves_on_this_machine_only(finished: Path) -> None:
    command = [sys.executable, "-m", "workers.cli.app", "ui", str(finished)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            port = int(url.rstrip("/").rpartition(":")[2])
            assert url == f"http://127.0.0.1:{port}/" and fetch(url)[0] == 200
            listening = {line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if " 0A " in line}
            assert [each for each in listening if each.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]
            taken = subprocess.run([*command, "--port", str(port)], capture_output=True, text=True, check=False)
            assert taken.returncode == 2 and "give another" in taken.stderr
        finally:
            server.terminate()
