"""Which teacher an agent is routed to, and which teachers exist."""

import pytest

from schemas.config import OnPolicyDistillationConfig, OnPolicyDistillationFullConfig
from schemas.errors import InputError
from stages.routing import (
    get_teacher_routing_metrics,
    opd_full_teacher_checkpoints_by_index,
    resolve_reference_aliases,
    teacher_by_alias,
    teacher_configs,
    teacher_configs_by_index,
)

MODELS = {"math": "/models/z", "code": "/models/b", "proof": "/models/z"}


def config(**knobs):
    return OnPolicyDistillationConfig(enabled=True, teacher_model_by_agent_name=MODELS, **knobs)


def test_agents_come_as_names_or_references_and_keep_their_order():
    agents = ["code", {"name": "math"}, "poetry", {"name": "code", "version": 2}]
    assert resolve_reference_aliases(agents, MODELS, default_teacher_alias="proof") == ["code", "math", "proof", "code"]


def test_an_unknown_agent_without_default_is_refused_naming_the_known():
    with pytest.raises(InputError, match=r"'mth' has no teacher \(did you mean 'math'\?\).*code, math, proof"):
        resolve_reference_aliases(["mth"], MODELS)


def test_strict_matching_never_falls_back():
    with pytest.raises(InputError, match="'poetry' has no teacher"):
        resolve_reference_aliases(["math", "poetry"], MODELS, "math", strict_agent_name_match=True)


def test_the_default_must_be_a_teacher():
    with pytest.raises(InputError, match="default_teacher_alias 'maths' is not in"):
        resolve_reference_aliases(["math"], MODELS, default_teacher_alias="maths")


def test_a_reference_without_a_name_is_refused():
    with pytest.raises(InputError, match="expected a name"):
        resolve_reference_aliases([{"id": 3}], MODELS, "math")


def test_aliases_of_one_checkpoint_are_one_teacher():
    teachers = teacher_configs(config())
    assert [(t.alias, t.model_name, t.aliases) for t in teachers] == [
        ("math", "/models/z", ("math", "proof")),
        ("code", "/models/b", ("code",)),
    ]
    assert teacher_by_alias(teachers)["proof"].alias == "math"


def test_without_deduplication_every_alias_loads_its_own():
    teachers = teacher_configs(config(deduplicate_shared_teacher_checkpoints=False))
    assert [t.alias for t in teachers] == ["math", "code", "proof"]


def test_teacher_index_counts_by_checkpoint():
    assert [t.alias for t in teacher_configs_by_index(teacher_configs(config()))] == ["code", "math"]


def test_checkpoints_by_index_only_where_rows_carry_one():
    full = OnPolicyDistillationFullConfig(enabled=True)
    assert opd_full_teacher_checkpoints_by_index(config(full=full)) == ["/models/b", "/models/z"]
    assert opd_full_teacher_checkpoints_by_index(config()) is None
    logits = full.model_copy(update={"teacher_payload": "logits"})
    assert opd_full_teacher_checkpoints_by_index(config(full=logits)) is None


def test_nothing_is_loaded_when_distillation_is_off():
    off = OnPolicyDistillationConfig(enabled=False, teacher_model_by_agent_name=MODELS)
    assert teacher_configs(off) == []


def test_routing_metrics_count_what_was_used():
    metrics = get_teacher_routing_metrics(["math", "proof", "math", "code"], MODELS)
    assert metrics["teacher_alias_unique"] == 3.0
    assert metrics["teacher_model_unique"] == 2.0
    assert metrics["teacher_alias_to_model_compression"] == pytest.approx(2 / 3)


def test_routing_metrics_refuse_an_alias_nobody_has():
    with pytest.raises(InputError, match="'maths' is not one of code, math, proof"):
        get_teacher_routing_metrics(["maths"], MODELS)
