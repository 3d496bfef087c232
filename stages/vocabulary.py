"""Whether two models speak of the same tokens, and whether a model's logits are what its LM head says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.errors import InputError

#: Settings by which models change logits after the LM head, and the values that change nothing.
LOGIT_CHANGES: dict[str, tuple[Any, ...]] = {
    "final_logit_softcapping": (None,),
    "logit_scale": (None, 1, 1.0),
    "logits_scaling": (None, 1, 1.0),
    "lm_head_multiplier": (None, 1, 1.0),
    "output_multiplier": (None, 1, 1.0),
}


def first_difference(student: Mapping[int, str], teacher: Mapping[int, str]) -> int | None:
    """The smallest token id that means something else to the teacher, or to one of them nothing; None if they agree."""
    if student == teacher:
        return None
    return next(i for i in sorted(student.keys() | teacher.keys()) if student.get(i) != teacher.get(i))


def assert_same_vocabulary(student: Mapping[int, str], teacher: Mapping[int, str], teacher_name: str) -> None:
    """Raise InputError naming the first id that student and teacher read differently."""
    token_id = first_difference(student, teacher)
    if token_id is not None:
        raise InputError(
            f"teacher {teacher_name!r}: token id {token_id} is {_text(teacher, token_id)}, to the student it is "
            f"{_text(student, token_id)}; distillation needs teachers with the student's tokenizer"
        )


def assert_plain_lm_head(model_config: Mapping[str, Any], name: str) -> None:
    """Raise InputError for a model whose logits are not exactly ``lm_head(h)``, by its settings."""
    for key, neutral in LOGIT_CHANGES.items():
        value = model_config.get(key)
        if value not in neutral:
            raise InputError(
                f"model {name!r}: its logits are not its LM head's product ({key} is {value}), which is how they are "
                "computed here, a chunk at a time; use another model"
            )


def _text(vocabulary: Mapping[int, str], token_id: int) -> str:
    return repr(vocabulary[token_id]) if token_id in vocabulary else "no token"
