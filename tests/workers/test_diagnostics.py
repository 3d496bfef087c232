"""Files about single steps: what stands in them, when they are written, and that writing them changes nothing."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file

from dataplane import open_plane
from tests.workers.runs import query, run, small_config
from workers.reports.diagnostics import SAMPLE_COLUMNS, TOKEN_COLUMNS, write_samples, write_tokens

OPD = "on_policy_distillation__"
ALL_LOGS = {OPD + "log_sample_stats": True, OPD + "log_token_stats": True, OPD + "log_topk_stats": True}
CORE = "sample_id, input_ids, generation_logprobs, teacher_logprobs, student_logprobs, advantages, loss, step"


def lines(run_dir, step):
    return objects(run_dir.diagnostics / f"samples_step_{step:06d}.jsonl")


def objects(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_a_member_in_sealed_order(checkpoints, prompt_file, tmp_path):
    run_dir = run(small_config(checkpoints, prompt_file, **{OPD + "log_sample_stats": True}), tmp_path / "run")
    found = lines(run_dir, 2)
    assert [list(line) for line in found] == [list(SAMPLE_COLUMNS)] * 4
    with open_plane(str(run_dir.plane), mode="r") as plane:
        assert [line["sample_id"] for line in found] == plane.members(2)
    assert {(line["step"], line["status"], line["sample_mask"]) for line in found} == {(2, "trained", True)}


def test_the_numbers_of_a_line_are_those_of_its_columns(checkpoints, prompt_file, tmp_path):
    run_dir = run(small_config(checkpoints, prompt_file, **{OPD + "log_sample_stats": True}), tmp_path / "run")
    columns = "sample_id, token_mask, generation_logprobs, student_logprobs, teacher_logprobs"
    stored = {row[0]: row[1:] for row in query(run_dir, f"select {columns} from samples where step = 1")}
    for line in lines(run_dir, 1):
        mask, generation, student, teacher = (torch.tensor(column) for column in stored[line["sample_id"]])
        gap, generation, student = (teacher - student)[mask], generation[mask], student[mask]
        assert line["gap_sum"] == pytest.approx(float(gap.sum()), abs=1e-5)
        assert line["gap_abs_mean"] == pytest.approx(float(gap.abs().mean()), abs=1e-5)
        entropy = -((student - generation).exp() * student).mean()
        assert line["student_entropy"] == pytest.approx(float(entropy), abs=1e-5)
        assert line["seq_logprob_error"] == pytest.approx(float((generation - student).abs().exp().mean()), abs=1e-5)
        assert (line["num_tokens"], line["prompt_tokens"]) == (int(mask.sum()), int((~mask).sum()))


def test_a_row_masked_by_its_sequence_error_says_so(checkpoints, prompt_file, tmp_path):
    def drift(roles):
        scored = roles["trainer"].engine.logprobs

        def drifted(sequences, temperature):
            out = scored(sequences, temperature)
            out[0] = out[0] - 5.0
            return out

        roles["trainer"].engine.logprobs = drifted

    config = small_config(
        checkpoints,
        prompt_file,
        **{OPD + "log_sample_stats": True},
        grpo__seq_logprob_error_threshold=2.0,
        grpo__max_num_steps=1,
        failures__stop_on_invariant=False,
    )
    run_dir = run(config, tmp_path / "run", break_roles=drift)
    masks = [(x["mask_before_sequence_error"], x["sample_mask"], x["status"]) for x in lines(run_dir, 1)]
    assert masks == [(True, False, "masked"), *[(True, True, "trained")] * 3]
    assert query(run_dir, "select samples, trained_samples, masked_samples from steps") == [(4, 3, 1)]


@pytest.mark.parametrize("asked", [True, False])
def test_responses_stand_in_a_line_only_when_asked_for(checkpoints, prompt_file, tmp_path, asked):
    logs = {OPD + "log_sample_stats": True, OPD + "log_sample_responses": asked}
    run_dir = run(small_config(checkpoints, prompt_file, **logs, grpo__max_num_steps=1), tmp_path / "run")
    assert {"response_text", "prompt", "answer"} & set(lines(run_dir, 1)[0]) == (
        {"response_text", "prompt", "answer"} if asked else set()
    )


def test_the_token_file_has_a_row_a_generated_token(checkpoints, prompt_file, tmp_path):
    run_dir = run(small_config(checkpoints, prompt_file, **{OPD + "log_token_stats": True}), tmp_path / "run")
    table = parquet.read_table(run_dir.diagnostics / "tokens_step_000003.parquet")
    assert table.schema.names == list(TOKEN_COLUMNS)
    types = {name: table.schema.field(name).type for name in ("position", "token_id", "trained", "gap", "token")}
    assert types == {
        "position": pa.int64(),
        "token_id": pa.int32(),
        "trained": pa.bool_(),
        "gap": pa.float32(),
        "token": pa.string(),
    }
    assert query(run_dir, "select trained_tokens from steps where step = 3") == [(table.num_rows,)]
    row = table.to_pylist()[0]
    ratio = math.exp(row["teacher_logprob"] - row["generation_logprob"])
    assert row["teacher_entropy"] == pytest.approx(-ratio * row["teacher_logprob"], rel=1e-5)
    assert row["gap"] == pytest.approx(row["teacher_logprob"] - row["student_logprob"], abs=1e-6)


def test_the_documented_columns_are_those_of_the_files():
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    for opening, columns in (("`samples_step", SAMPLE_COLUMNS), ("`tokens_step", TOKEN_COLUMNS)):
        [paragraph] = [text for text in page.split("\n\n") if text.startswith(opening)]
        assert [name for name in re.findall(r"`(\w+)`", paragraph) if name in columns] == list(columns)


def test_periods_decide_which_steps_have_files(checkpoints, prompt_file, tmp_path):
    config = small_config(
        checkpoints,
        prompt_file,
        grpo__max_num_steps=6,
        **{OPD + "log_sample_stats": True, OPD + "sample_stats_log_period": 3},
        **{OPD + "log_token_stats": True, OPD + "token_stats_log_period": 4},
    )
    names = sorted(path.name for path in run(config, tmp_path / "run").diagnostics.iterdir())
    assert names == ["samples_step_000003.jsonl", "samples_step_000006.jsonl", "tokens_step_000004.parquet"]


def test_a_file_written_again_from_the_store_is_the_same(checkpoints, prompt_file, tmp_path):
    run_dir = run(small_config(checkpoints, prompt_file, **ALL_LOGS), tmp_path / "run")
    with open_plane(str(run_dir.plane), mode="r") as plane:
        samples, tokens = write_samples(plane, 2, tmp_path / "again"), write_tokens(plane, 2, tmp_path / "again")
    assert samples.read_bytes() == (run_dir.diagnostics / samples.name).read_bytes()
    assert parquet.read_table(tokens).equals(parquet.read_table(run_dir.diagnostics / tokens.name))


@pytest.mark.parametrize("batch", [5, 64])
def test_switching_the_logs_changes_no_bit(checkpoints, prompt_file, tmp_path, batch):
    runs = [
        run(
            small_config(checkpoints, prompt_file, grpo__max_num_steps=4, generator__batch_size=batch, **logs),
            tmp_path / name,
        )
        for name, logs in (("off", {}), ("on", ALL_LOGS))
    ]
    weights = [load_file(r.checkpoints / "step_000004" / "model.safetensors") for r in runs]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    rows = [query(r, f"select {CORE} from samples order by sample_id") for r in runs]
    assert rows[0] == rows[1] and len(rows[0]) >= 16
    metrics = [
        [{k: v for k, v in x.items() if "/" not in k and not k.endswith("_s")} for x in objects(r.metrics)]
        for r in runs
    ]
    assert metrics[0] == metrics[1]


def losing(roles):
    """One row that the sampler always breaks on, one that says nothing, one whose teacher gives NaN."""
    engine, teacher = roles["generator"].engine, roles["teacher:rev"].engine
    sample, scored = engine.generate, teacher.logprobs

    def broken(sample_ids, prompts, sampling):
        if "0000001-0" in sample_ids:
            raise RuntimeError("boom")
        done = sample(sample_ids, prompts, sampling)
        return [
            type(c)([], [], "stop", c.weight_version, c.weight_version_max) if i == "0000002-1" else c
            for i, c in zip(sample_ids, done, strict=True)
        ]

    def holed(sequences, temperature):
        out = scored(sequences, temperature)
        if not roles.get("holed"):
            roles["holed"] = True
            out[0][-1] = math.nan
        return out

    engine.generate, teacher.logprobs = broken, holed


def test_the_counts_of_every_step_add_up(checkpoints, prompt_file, tmp_path):
    config = small_config(
        checkpoints,
        prompt_file,
        grpo__num_generations_per_prompt=2,
        failures__attempts=2,
        failures__max_failed_share=1.0,
        failures__max_quarantined_share=1.0,
        failures__min_step_fraction=0.1,
    )

    def break_roles(roles):
        losing(dict(roles))

    run_dir = run(config, tmp_path / "run", break_roles=break_roles)
    lost = "rows_failed + rows_empty + rows_quarantined + rows_stale + rows_lost"
    steps = query(
        run_dir, f"select rows_admitted, samples, {lost}, trained_samples, masked_samples from steps order by step"
    )
    assert all(admitted == members + gone for admitted, members, gone, _, _ in steps)
    assert all(members == trained + masked for _, members, _, trained, masked in steps)
    by_status = dict(query(run_dir, "select status, count(*) from samples group by 1"))
    assert (by_status["failed"], by_status["empty"], by_status["quarantined"]) == (1, 1, 1)
    totals = query(run_dir, "select sum(rows_failed), sum(rows_empty), sum(rows_quarantined), sum(samples) from steps")
    assert totals == [(1, 1, 1, by_status["trained"] + by_status.get("masked", 0))]


def test_a_replaced_group_counts_for_the_step_that_lost_it(checkpoints, prompt_file, tmp_path):
    config = small_config(checkpoints, prompt_file, failures__attempts=1, failures__max_failed_share=0.5)

    def break_roles(roles):
        losing({**roles, "holed": True})

    run_dir = run(config, tmp_path / "run", break_roles=break_roles)
    assert query(run_dir, "select rows_admitted, rows_failed, samples from steps order by step") == [
        (5, 1, 4),
        (4, 0, 4),
        (4, 0, 4),
    ]
