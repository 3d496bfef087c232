"""Prompts that their teacher can never score, because they alone are longer than it accepts.

A recipe whose sequences all fit proves that there are none. Else the longest texts of each teacher are tokenised, so
that a run starts as soon on a large file as on a small one; what is too long and not among them fails on its row.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from schemas.config import RunConfig
from schemas.errors import InputError
from stages.generate import chat
from stages.protocols import ChatTokenizer
from stages.routing import TeacherConfig, teacher_configs
from workers.data import PromptSet

#: Prompts of one teacher that are tokenised.
LONGEST = 64


def refuse_longer_prompts(config: RunConfig, prompts: PromptSet, tokenizer: ChatTokenizer) -> None:
    """Raise InputError naming the first prompt that leaves its teacher no room for a response."""
    for teacher in teacher_configs(config.on_policy_distillation):
        accepts = max_length(teacher)
        if accepts is None or accepts >= config.policy.max_total_sequence_length:
            continue
        for prompt_id, length in _longest(prompts.table, teacher, tokenizer):
            if length >= accepts:
                raise InputError(
                    f"data.train: prompt {prompt_id!r} has {length} tokens, and its teacher {teacher.alias!r} accepts "
                    f"{accepts} (max_position_embeddings of {teacher.model_name}), the response included; shorten the "
                    "prompt, leave it out, or route its agent to a teacher that accepts more"
                )


def max_length(teacher: TeacherConfig) -> int | None:
    """Tokens that a teacher's checkpoint was made for; None if it does not say."""
    from transformers import AutoConfig

    model = AutoConfig.from_pretrained(teacher.model_name).get_text_config()
    return getattr(model, "max_position_embeddings", None)


def _longest(table: pa.Table, teacher: TeacherConfig, tokenizer: ChatTokenizer) -> Iterator[tuple[str, int]]:
    """(prompt_id, tokens) of this teacher's prompts with the longest texts, in the order of the data."""
    mine = table.filter(pc.is_in(table["teacher"], pa.array(teacher.aliases)))
    characters = pc.utf8_length(pc.coalesce(mine["messages"], mine["prompt"]))
    longest = pc.array_sort_indices(characters, order="descending")[:LONGEST]
    for row in mine.take(longest.sort()).to_pylist():
        yield row["prompt_id"], len(tokenizer.encode_chat(chat(row["prompt"], row["messages"])))
