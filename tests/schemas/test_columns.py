"""Every column is declared once, with its type, writer and meaning."""

from __future__ import annotations

import pyarrow as pa
import pytest

from schemas.columns import (
    FAILURE_CODES,
    REGISTRY,
    column,
    opd_full_payload_field,
    opd_full_teacher_index_field,
    payload,
    schema_of,
    written_by,
)
from schemas.config import OnPolicyDistillationFullConfig
from schemas.errors import InputError


def test_token_columns_are_large_lists_and_say_so() -> None:
    per_token = [name for name, declared in REGISTRY.items() if declared.per == "token"]
    assert {"input_ids", "token_mask", "generation_logprobs", "teacher_logprobs", "student_logprobs"} <= set(per_token)
    assert [name for name in per_token if not pa.types.is_large_list(REGISTRY[name].type)] == []


def test_every_column_says_what_it_means_and_who_writes_it() -> None:
    tasks = {"admit", "generate", "teacher", "student", "reference", "baseline", "train", "divergence"}
    tasks |= {"topk_student", "topk_teacher"}
    assert [c.name for c in REGISTRY.values() if not c.doc or c.writer not in tasks] == []


def test_units_travel_as_field_metadata() -> None:
    assert column("teacher_logprobs").field.metadata[b"unit"] == b"nats"


def test_schema_of_names_is_the_registered_one_in_order() -> None:
    schema = schema_of(["reward", "input_ids"])
    assert (schema.names, schema.types) == (["reward", "input_ids"], [pa.float32(), pa.large_list(pa.int32())])


def test_a_partition_may_declare_columns_of_its_own() -> None:
    schema = schema_of({"difficulty": pa.int8(), "reward": pa.float32()})
    assert schema.field("difficulty").type == pa.int8()


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (["rewrad"], r"'rewrad': not in the registry \(did you mean 'reward'\?\)"),
        ({"reward": pa.float64()}, "expected its registered type float, got double"),
        ({"sample_id": pa.string()}, "is the key of every partition"),
    ],
)
def test_refused(columns: object, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        schema_of(columns)


def test_written_by_keeps_registry_order() -> None:
    assert written_by("student") == ("student_logprobs",)
    assert written_by("generate")[:2] == ("input_ids", "token_mask")


def test_failure_codes_lead_to_known_final_statuses() -> None:
    assert set(FAILURE_CODES.values()) == {"failed", "quarantined", "lost", "empty", "stale"}


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", pa.uint16()), ("float16", pa.float16())])
def test_a_payload_is_a_vector_a_token_and_names_its_encoding(dtype: str, kind: pa.DataType) -> None:
    field = payload(OnPolicyDistillationFullConfig(payload_dtype=dtype), 3)
    assert (field.name, field.type) == ("payload_hidden_states", pa.large_list(pa.list_(kind, 3)))
    assert (b"encoding" in field.metadata) == (dtype == "bfloat16")


def test_only_hidden_states_need_to_know_their_teacher() -> None:
    shapes = [OnPolicyDistillationFullConfig(teacher_payload=kind) for kind in ("hidden_states", "logits")]
    assert [opd_full_payload_field(full) for full in shapes] == ["payload_hidden_states", "payload_logits"]
    assert [opd_full_teacher_index_field(full) for full in shapes] == ["teacher_index", None]
