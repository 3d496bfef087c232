"""Every loss with another model as teacher: on tensor and pipeline ranks the numbers of one process, and of HF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.arrays import to_arrow
from schemas.batch import Batch
from schemas.columns import payload
from schemas.config import ClippedPGLossConfig, OnPolicyDistillationFullConfig
from stages.losses.teacher_heads import TeacherHeads
from stages.objectives import Objective, judge
from stages.objectives.full_vocabulary import FullVocabularyObjective
from stages.objectives.policy_gradient import PolicyGradient
from stages.objectives.top_k import TopKObjective
from stages.protocols import Ask
from stages.top_columns import ids_column, logprobs_column
from stages.vocab_parallel import VocabularyShard
from tests.workers.engines.contract import MASKS, SEQUENCES
from tests.workers.engines.megatron_ranks import trainer
from tests.workers.engines.models import make_model
from tests.workers.engines.training import COUNTS, batch
from tests.workers.spawned import on_ranks
from workers.engines.hf.head import load_head
from workers.engines.hf.model import load_model
from workers.engines.hf.scorer import HFScorer
from workers.engines.hf.trainer import HFTrainer
from workers.ranks import ALONE, Ranks

TENSOR = {"tensor_model_parallel_size": 2}

#: One of each kind of loss; states go through the teacher's head, at temperature 1.
FULL = {
    "states, reverse": {"teacher_payload": "hidden_states", "validate_decomposition": True},
    "states, forward": {"teacher_payload": "hidden_states", "divergence": "forward_kl", "chunk_size": 3},
    "logits, jsd": {"teacher_payload": "logits", "divergence": "jsd", "beta": 0.3},
}
KINDS = ("policy gradient", "top k", *FULL)


def objective(kind: str, teacher: str, shard: VocabularyShard) -> Objective:
    if kind == "policy gradient":
        config = ClippedPGLossConfig(use_importance_sampling_correction=True, reference_policy_kl_penalty=0.1)
        return PolicyGradient(config, 0.6)
    if kind == "top k":
        return TopKObjective("reverse", temperature=0.6, vocabulary=97, shard=shard)
    full = OnPolicyDistillationFullConfig(enabled=True, payload_dtype="float32", **FULL[kind])
    heads = TeacherHeads([teacher], lambda path: shard.cut(load_head(path)))
    return FullVocabularyObjective(full, temperature=0.6, vocabulary=97, heads=heads, shard=shard)


def scored_batch(kind: str, teacher: str) -> Batch:
    """The contract's batch with the columns that the loss of this kind reads, from a teacher with a padded head."""
    scorer = HFScorer.load(teacher, vocabulary_size=97)
    rows, near = batch(), scorer.logprobs(SEQUENCES, 0.6)
    moved = {name: [values + at for values in near] for name, at in _MOVED.items()}
    rows = rows.with_columns({**moved, "teacher_index": [0] * len(rows)})
    if kind == "top k":
        tops = [score.top for score in scorer.score(SEQUENCES, MASKS, 0.6, Ask(top_k=7)) if score.top]
        shipped = {"teacher_topk_ids": ids_column(tops, MASKS), "teacher_topk_logprobs": logprobs_column(tops, MASKS)}
        return rows.with_columns(shipped)
    if kind not in FULL:
        return rows
    full = OnPolicyDistillationFullConfig(enabled=True, payload_dtype="float32", **FULL[kind])
    vectors = [
        s.payload for s in scorer.score(SEQUENCES, MASKS, 1.0, Ask(full.teacher_payload)) if s.payload is not None
    ]
    field = payload(full, vectors[0].shape[1])
    return Batch(rows.sample_ids, rows.table.append_column(field, to_arrow(vectors, field, rows.sample_ids)))


_MOVED = {"student_logprobs": 0.1, "generation_logprobs": 0.3, "reference_logprobs": -0.2}


def numbers(engine: Any, kind: str, teacher: str) -> list[Any]:
    """Losses of rows, metrics, and two numbers of each parameter's gradient."""
    judged = judge(objective(kind, teacher, engine.shard), engine, scored_batch(kind, teacher), COUNTS)
    metrics = {name: value for name, value in judged.metrics.items() if name != "padding_share"}
    return [judged.losses_B.tolist(), metrics, engine.take_gradient().tolist()]


def all_numbers(ranks: Ranks, student: str, teacher: str, options: dict[str, Any]) -> dict[str, list[Any]]:
    engine = trainer(student, ranks, **options)
    return {kind: numbers(engine, kind, teacher) for kind in KINDS}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("models")
    student, teacher = make_model(folder / "student"), make_model(folder / "teacher", "padded", seed=5)
    return str(student.path), str(teacher.path)


@pytest.fixture(scope="module")
def of_hf(models: tuple[str, str]) -> dict[str, list[Any]]:
    model = load_model(models[0])
    optimizer = torch.optim.AdamW(model.parameters())
    options: dict[str, Any] = {"clip_grad_norm": 1.0, "batch_size": 2, "micro_batch_size": 2, "vocabulary_size": 97}
    engine = HFTrainer(model, optimizer, lambda n: 1.0, **options)
    return {kind: numbers(engine, kind, models[1]) for kind in KINDS}


def assert_same(found: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    assert found.keys() == expected.keys()
    for kind, (losses, metrics, gradient) in expected.items():
        assert found[kind][0] == pytest.approx(losses, abs=1e-5), kind
        assert found[kind][1] == pytest.approx(metrics, abs=1e-4, rel=1e-4), kind
        assert found[kind][2] == pytest.approx(gradient, abs=2e-5, rel=1e-4), kind
        assert max(map(abs, losses)) > 0.01 and max(gradient) > 0.01, f"{kind} says nothing"


def test_one_process_gives_the_numbers_of_hf(models: tuple[str, str], of_hf: dict[str, list[Any]]) -> None:
    assert_same(all_numbers(ALONE, *models, {}), of_hf)


@pytest.mark.parametrize("options", [TENSOR, {"pipeline_model_parallel_size": 2}], ids=["tensor", "pipeline"])
def test_two_ranks_give_the_numbers_of_hf(
    models: tuple[str, str], of_hf: dict[str, list[Any]], options: dict[str, Any], tmp_path: Path
) -> None:
    first, second = on_ranks(2, tmp_path, all_numbers, *models, options)
    assert_same(first, of_hf)
    assert first == second
