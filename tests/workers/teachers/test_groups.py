"""Teacher groups in processes of their own, and the coordinator that routes a store's rows to them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from dataplane import open_plane
from schemas.errors import DeadlinePassed, InputError, JobFailed
from stages.protocols import Ask
from stages.routing import TeacherConfig
from tests.workers.runs import small_config
from tests.workers.teachers.test_cluster import free_cpus, freed
from workers.engines.hf.scorer import HFScorer
from workers.partitions import create_partitions
from workers.teachers.cluster import reserve, reserve_teacher_clusters
from workers.teachers.coordinator import TeacherLogprobCoordinator
from workers.teachers.groups import TeacherWorkerGroup, create_teacher_worker_groups, teacher_seq_pad_multiple
from workers.teachers.placement import Bundles
from workers.teachers.resources import TeacherEngine, load_teacher

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:ray", "ignore::ResourceWarning")

VOCABULARY = 81
ROWS = [[5, 6, 7, 40], [8, 9], [1, 2, 3, 4, 5, 6]]
MASKS = [[False, True, True, False], [True, False], [False, False, True, True, True, False]]
ON_CPUS = {"engine": "hf", "gpus_per_node": 0, "precision": "fp32", "micro_batch_size": 2}


@pytest.fixture(scope="module")
def group(two_nodes, checkpoints):
    """Two replicas of ``rev``, in two processes on two nodes."""
    bundles = Bundles(2, num_nodes=2)
    how = TeacherEngine("hf", "float32", 2, ranks=2, replicas=2, bundles=bundles)
    path = str(checkpoints / "rev")
    made = TeacherWorkerGroup(TeacherConfig("rev", path, ("rev",)), how, reserve({"rev": bundles})["rev"])
    made.await_ready(made.start(partial(load_teacher, path, how, VOCABULARY)), time.monotonic() + 120)
    yield made
    made.stop()
    assert freed()


def apart(checkpoints, prompt_file, **resources):
    resources = {"enabled": True, "default_teacher_cfg": {**ON_CPUS, **resources}}
    return small_config(checkpoints, prompt_file, on_policy_distillation__non_colocated_teachers=resources)


def test_replicas_score_what_one_process_scores(group, checkpoints) -> None:
    alone = HFScorer.load(checkpoints / "rev", "float32", vocabulary_size=VOCABULARY)
    for rows in (ROWS, ROWS[:1]):  # neither divides by two
        found, expected = group.get_logprobs(rows, 0.7), alone.logprobs(rows, 0.7)
        assert [len(row) for row in found] == [len(row) for row in rows]
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True))


def test_replicas_give_the_top_k_and_payloads_of_one_process(group, checkpoints) -> None:
    alone = HFScorer.load(checkpoints / "rev", "float32", vocabulary_size=VOCABULARY)
    expected = alone.top_k(ROWS, MASKS, 3, 1.0)
    for found, one in zip(group.get_topk_logits(ROWS, MASKS, 3), expected, strict=True):
        assert torch.equal(found.ids, one.ids)
        assert torch.allclose(found.logsumexp, one.logsumexp, atol=1e-5)
    scored = group.score(ROWS, MASKS, 1.0, Ask("hidden_states", "float32", top_k=2))
    assert [tuple(score.payload.shape) for score in scored] == [(4, 64), (2, 64), (6, 64)]
    assert [len(score.top.ids) for score in scored] == [2, 1, 3]


def test_a_group_says_whether_its_ranks_are_alive(group) -> None:
    assert group.alive()
    assert (group.max_length, group.vocabulary_size) == (256, VOCABULARY)


def test_what_a_rank_raises_names_the_teacher(group) -> None:
    with pytest.raises(JobFailed, match=r"teacher 'rev': .*"):
        group.get_logprobs([[10**9, 1]])


def test_a_teacher_that_cannot_start_frees_every_group(two_nodes, checkpoints, prompt_file, tmp_path) -> None:
    assert free_cpus() >= 2
    before = free_cpus()
    config = apart(checkpoints, prompt_file)
    models = {"rev": str(checkpoints / "rev"), "sort": str(tmp_path / "nowhere")}
    opd = config.on_policy_distillation.model_copy(update={"teacher_model_by_agent_name": models})
    broken = config.model_copy(update={"on_policy_distillation": opd})
    with pytest.raises(JobFailed, match="teacher 'sort': cannot start: .*no config.json"):
        create_teacher_worker_groups(broken, VOCABULARY, teacher_clusters=reserve_teacher_clusters(broken))
    until = time.monotonic() + 20
    while free_cpus() < before and time.monotonic() < until:
        time.sleep(0.05)
    assert free_cpus() == before


def test_a_teacher_that_never_starts_is_a_timeout(two_nodes, checkpoints, prompt_file) -> None:
    config = apart(checkpoints, prompt_file)
    with pytest.raises(DeadlinePassed, match="'rev': not all of its ranks have started in time"):
        create_teacher_worker_groups(
            config, VOCABULARY, teacher_clusters=reserve_teacher_clusters(config), start_s=0.01
        )


def test_clusters_of_other_teachers_are_refused(checkpoints, prompt_file) -> None:
    with pytest.raises(InputError, match="expected those of rev, sort, got none"):
        create_teacher_worker_groups(apart(checkpoints, prompt_file), VOCABULARY, teacher_clusters={})


def test_the_coordinator_scores_waiting_rows_with_the_teacher_of_each(two_nodes, checkpoints, prompt_file) -> None:
    config = apart(checkpoints, prompt_file)
    groups, of_alias = create_teacher_worker_groups(
        config, VOCABULARY, teacher_clusters=reserve_teacher_clusters(config)
    )
    with open_plane("memory://") as plane:
        create_partitions(plane, config, VOCABULARY)
        columns = {
            "input_ids": ROWS,
            "token_mask": MASKS,
            "teacher": ["sort", "rev", "sort"],
            "group_id": ["g", "g", "h"],
        }
        plane.put("train", ["a", "b", "c"], columns)
        coordinator = TeacherLogprobCoordinator(plane, groups, of_alias, config)
        assert sorted(asyncio.run(coordinator.enrich(["g"]))) == ["a", "b"]
        assert asyncio.run(coordinator.enrich()) == ["c"]
        found = plane.get("train", ["a", "b", "c"], ["teacher_logprobs", "teacher_index"])
        assert found.values("teacher_index") == [1, 0, 1]
        for row, skill in enumerate(["sort", "rev", "sort"]):
            [expected] = HFScorer.load(checkpoints / skill, vocabulary_size=VOCABULARY).logprobs([ROWS[row]], 1.0)
            assert torch.allclose(torch.tensor(found.values("teacher_logprobs")[row]), expected, atol=1e-5)
        metrics = coordinator.drain_metrics()
        assert (metrics["teacher:sort/samples"], metrics["teacher:sort/batches"], metrics["teacher:rev/samples"]) == (
            2,
            2,
            1,
        )
        assert metrics["teacher_alias_unique"] == 2
        assert coordinator.drain_metrics()["teacher:sort/samples"] == 0
        assert coordinator.teacher_checkpoints_by_index() == [str(checkpoints / name) for name in ("rev", "sort")]
    for made in groups.values():
        made.stop()


def takes(packs: bool, multiple: int) -> SimpleNamespace:
    return SimpleNamespace(use_sequence_packing=packs, sequence_length_pad_multiple=multiple)


def test_packed_teachers_or_none_need_no_padding_beforehand() -> None:
    assert teacher_seq_pad_multiple({"a": takes(True, 4), "b": takes(True, 3)}, 8) == 1
    assert teacher_seq_pad_multiple({}, 8) == 1


def test_unpacked_teachers_take_the_policys_multiple_if_theirs_divide_it() -> None:
    assert teacher_seq_pad_multiple({"a": takes(False, 4), "b": takes(False, 2)}, 8) == 8
    with pytest.raises(InputError, match="teacher 'b': pads sequences to multiples of 3, which the policy's 8 is not"):
        teacher_seq_pad_multiple({"a": takes(False, 4), "b": takes(False, 3)}, 8)


def test_mixed_packing_is_refused() -> None:
    with pytest.raises(InputError, match="only a pack sequences"):
        teacher_seq_pad_multiple({"a": takes(True, 1), "b": takes(False, 1)}, 8)


@pytest.mark.parametrize(
    ("tensor", "context", "shared", "multiple"), [(2, 1, False, 1), (2, 1, True, 2), (1, 2, False, 4), (2, 3, True, 12)]
)
def test_what_a_group_pads_to_follows_from_its_sizes(tensor: int, context: int, shared: bool, multiple: int) -> None:
    overrides = {"sequence_parallel": True} if shared else {}
    sizes = {"tensor_model_parallel_size": tensor, "context_parallel_size": context, "overrides": overrides}
    how = replace(TeacherEngine("megatron", "float32", 2), parallel=sizes)
    assert TeacherWorkerGroup(TeacherConfig("a", "t", ("a",)), how, None).sequence_length_pad_multiple == multiple
