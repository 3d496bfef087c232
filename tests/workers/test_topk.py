"""Top-k lists through the pipeline: as a loss, and as statistics taken in the run or afterwards."""

from __future__ import annotations

import pytest
import torch
from pyarrow import parquet

from dataplane import open_plane
from stages.topk import with_tail
from tests.workers.runs import query, run, small_config
from workers.engines.hf.model import load_model
from workers.engines.hf.scorer import HFScorer
from workers.reports.diagnostics import write_topk
from workers.reports.topk_export import score_deferred_topk

STATS = {"on_policy_distillation__log_topk_stats": True, "on_policy_distillation__topk_stats_k": 5}
DEFERRED = {**STATS, "on_policy_distillation__topk_stats_mode": "student_online_teacher_deferred"}


def topk_config(checkpoints, prompt_file, **changes):
    top = {"enabled": True, "k": 6, **changes.pop("topk", {})}
    plain = {"loss_fn": {}, "grpo__async_grpo": {"enabled": False}, "store__payload_retention": "never"}
    return small_config(checkpoints, prompt_file, on_policy_distillation__topk_loss=top, **{**plain, **changes})


def whole_logprobs(path, ids, temperature=1.0):
    """Log-softmax of every next-token distribution of a sequence; row t judges token t + 1."""
    with torch.no_grad():
        return (load_model(path)(input_ids=torch.tensor([ids])).logits[0, :-1] / temperature).log_softmax(-1)


@pytest.mark.parametrize(("direction", "temperature"), [("reverse", 1.0), ("forward", 0.7)])
def test_the_loss_is_the_divergence_over_k_ids_and_a_bucket(checkpoints, prompt_file, tmp_path, direction, temperature):
    sampling = {"max_new_tokens": 5, "temperature": temperature}
    config = topk_config(
        checkpoints,
        prompt_file,
        topk={"direction": direction},
        grpo__max_num_steps=1,
        generator__sampling=sampling,
        policy__train_micro_batch_size=3,
    )
    run_dir = run(config, tmp_path / "run")
    expected, mass = [], []
    for agent, ids, mask in query(run_dir, "select agent, input_ids, token_mask from samples where step = 1"):
        teacher = whole_logprobs(checkpoints / agent, ids, temperature)[torch.tensor(mask[1:])]
        student = whole_logprobs(checkpoints / "student", ids, temperature)[torch.tensor(mask[1:])]
        top = teacher.topk(6).indices
        sides = [with_tail(side.gather(1, top)) for side in (student, teacher)]
        p, q = sides if direction == "reverse" else reversed(sides)
        expected.append((p.exp() * (p - q)).sum(1))
        mass.append(teacher.gather(1, top).exp().sum(1))
    [(loss, captured)] = query(run_dir, "select loss, captured_mass from steps")
    assert loss == pytest.approx(float(torch.cat(expected).mean()), rel=1e-4)
    assert captured == pytest.approx(float(torch.cat(mass).mean()), rel=1e-4)


def test_a_list_of_all_ids_trains_like_the_whole_vocabulary(checkpoints, prompt_file, tmp_path):
    whole = small_config(
        checkpoints,
        prompt_file,
        loss_fn={},
        grpo__max_num_steps=1,
        on_policy_distillation__full={"enabled": True, "payload_dtype": "float32"},
    )
    listed = topk_config(checkpoints, prompt_file, topk={"k": 81}, grpo__max_num_steps=1)
    losses = [
        query(run(c, tmp_path / n), "select loss, grad_norm from steps") for n, c in (("w", whole), ("l", listed))
    ]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-3)


def test_lists_stand_at_generated_tokens_and_go_with_their_retention(checkpoints, prompt_file, tmp_path):
    kept = run(topk_config(checkpoints, prompt_file, grpo__max_num_steps=1), tmp_path / "kept")
    rows = query(kept, "select token_mask, teacher_topk_ids, teacher_topk_logprobs from samples where step = 1")
    for mask, ids, logprobs in rows:
        assert [len(x) for x in ids] == [len(x) for x in logprobs] == [6 if generated else 0 for generated in mask]
    gone = run(topk_config(checkpoints, prompt_file, store__payload_retention=0), tmp_path / "gone")
    assert query(gone, "select count(teacher_topk_ids), count(teacher_logprobs) from samples") == [(0, 12)]


def test_statistics_are_exact_logprobs_of_both_sides(checkpoints, prompt_file, tmp_path):
    run_dir = run(small_config(checkpoints, prompt_file, grpo__max_num_steps=1, **STATS), tmp_path / "run")
    table = parquet.read_table(run_dir.diagnostics / "topk_step_000001.parquet").to_pylist()
    sequences = dict(query(run_dir, "select sample_id, input_ids from samples where step = 1"))
    assert len(table) == query(run_dir, "select count(*) from tokens where trained")[0][0]
    for row in table[:4]:
        ids = sequences[row["sample_id"]]
        assert ids[row["position"]] == row["token_id"]
        for side, path in (("student", "student"), ("teacher", row["agent"])):
            exact = whole_logprobs(checkpoints / path, ids)[row["position"] - 1].topk(5)
            assert row[f"{side}_ids"] == exact.indices.tolist()
            assert row[f"{side}_logprobs"] == pytest.approx(exact.values.tolist(), abs=1e-5)
        mass = torch.tensor(row["student_logprobs"]).exp().sum()
        assert row["student_head_mass"] == pytest.approx(float(mass), abs=1e-6)


def test_the_deferred_teacher_gives_what_the_online_one_gave(checkpoints, prompt_file, tmp_path):
    online = run(small_config(checkpoints, prompt_file, **STATS), tmp_path / "online")
    config = small_config(checkpoints, prompt_file, **DEFERRED)
    later = run(config, tmp_path / "later")
    name = "topk_step_000002.parquet"
    assert "teacher_ids" not in parquet.read_schema(later.diagnostics / name).names
    with open_plane(str(later.plane)) as plane:
        assert [score_deferred_topk(plane, config, 2), score_deferred_topk(plane, config, 2)] == [4, 0]
        write_topk(plane, 2, later.diagnostics)
    tables = [parquet.read_table(run_dir.diagnostics / name) for run_dir in (online, later)]
    assert tables[0].equals(tables[1]) and tables[0].num_rows > 4


def test_a_deferred_teacher_is_the_recorded_one_and_not_todays(checkpoints, prompt_file, tmp_path):
    run_dir = run(small_config(checkpoints, prompt_file, **DEFERRED, grpo__max_num_steps=1), tmp_path / "run")
    swapped = {"rev": str(checkpoints / "sort"), "sort": str(checkpoints / "rev")}
    today = small_config(
        checkpoints, prompt_file, **DEFERRED, on_policy_distillation__teacher_model_by_agent_name=swapped
    )
    with open_plane(str(run_dir.plane)) as plane:
        score_deferred_topk(plane, today, 1)
        write_topk(plane, 1, run_dir.diagnostics)
    sequences = dict(query(run_dir, "select sample_id, input_ids from samples where step = 1"))
    for row in parquet.read_table(run_dir.diagnostics / "topk_step_000001.parquet").to_pylist():
        exact = whole_logprobs(checkpoints / row["agent"], sequences[row["sample_id"]])[row["position"] - 1]
        assert row["teacher_ids"][0] == int(exact.argmax())


def test_only_picked_tokens_leave_the_engine(checkpoints, prompt_file, tmp_path):
    counted = []

    def watch(roles):
        for role in (roles["trainer"], roles["teacher:rev"], roles["teacher:sort"]):
            taken = role.engine.top_k

            def counting(sequences, masks, k, temperature, taken=taken):
                counted.append(sum(map(sum, masks)))
                return taken(sequences, masks, k, temperature)

            role.engine.top_k = counting

    config = small_config(
        checkpoints, prompt_file, **STATS, on_policy_distillation__topk_stats_max_tokens=7, grpo__max_num_steps=1
    )
    run_dir = run(config, tmp_path / "run", break_roles=watch)
    assert counted[0] == 7 and sum(counted[1:]) == 7
    assert parquet.read_metadata(run_dir.diagnostics / "topk_step_000001.parquet").num_rows == 7


def test_a_period_takes_some_steps_only(checkpoints, prompt_file, tmp_path):
    config = small_config(checkpoints, prompt_file, **STATS, on_policy_distillation__topk_stats_log_period=2)
    run_dir = run(config, tmp_path / "run")
    assert [path.name for path in run_dir.diagnostics.iterdir()] == ["topk_step_000002.parquet"]
    assert query(run_dir, "select distinct step from samples where topk_stats_student_ids is not null") == [(2,)]


def test_top_k_of_no_token_at_all_is_empty(checkpoints):
    engine = HFScorer.load(checkpoints / "rev")
    tops = engine.top_k([[3, 4, 5], [6, 7]], [[False] * 3, [False] * 2], 4, 1.0)
    assert [(len(top.ids), len(top.logprobs)) for top in tops] == [(0, 0), (0, 0)]
