"""Which teacher scores which sample.

``teacher_model_by_agent_name`` maps an agent to a teacher checkpoint; the agent's name is the teacher's *alias*.
An agent that the map does not name goes to ``default_teacher_alias``, or is an error. Aliases that share a
checkpoint share one teacher, named by the first of them. A row's ``teacher_index`` counts the distinct teachers in
the order of their checkpoints, and is recorded with the run, since a later config may count otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from schemas.config import OnPolicyDistillationConfig

#: An agent's name, or ``{"name": name}``.
AgentRef = str | Mapping[str, Any]


@dataclass(frozen=True)
class TeacherConfig:
    """One teacher to load: its checkpoint and the aliases it answers to, the first of them its own."""

    alias: str
    model_name: str
    aliases: tuple[str, ...]


def agent_name(agent: AgentRef) -> str:
    """The name in an agent reference."""
    if isinstance(agent, str):
        return agent
    name = agent.get("name")
    if not isinstance(name, str):
        raise InputError(f"agent: expected a name or {{'name': name}}, got {dict(agent)!r}")
    return name


def resolve_reference_aliases(
    agents: Iterable[AgentRef],
    teacher_model_by_agent_name: Mapping[str, str],
    default_teacher_alias: str | None = None,
    strict_agent_name_match: bool = False,
) -> list[str]:
    """The teacher alias of each agent, in order. Raises InputError for an agent without a teacher."""
    if default_teacher_alias is not None and default_teacher_alias not in teacher_model_by_agent_name:
        raise InputError(
            f"default_teacher_alias {default_teacher_alias!r} is not in teacher_model_by_agent_name, "
            f"which names {_names(teacher_model_by_agent_name)}"
        )
    fallback = None if strict_agent_name_match else default_teacher_alias
    return [_alias(agent_name(agent), teacher_model_by_agent_name, fallback) for agent in agents]


def _alias(name: str, known: Mapping[str, str], fallback: str | None) -> str:
    if name in known:
        return name
    if fallback is None:
        raise InputError(
            f"agent {name!r} has no teacher{did_you_mean(name, known)}; teacher_model_by_agent_name names "
            f"{_names(known)}: add the agent, or set default_teacher_alias without strict_agent_name_match"
        )
    return fallback


def _names(known: Iterable[str]) -> str:
    return ", ".join(sorted(known)) or "no agent"


def get_teacher_routing_metrics(
    reference_aliases: Sequence[str], teacher_model_by_agent_name: Mapping[str, str]
) -> dict[str, float]:
    """Distinct aliases and checkpoints among *reference_aliases*, and checkpoints per alias (1 = nothing shared)."""
    aliases = set(reference_aliases)
    unknown = sorted(aliases - set(teacher_model_by_agent_name))
    if unknown:
        raise InputError(f"teacher alias {unknown[0]!r} is not one of {_names(teacher_model_by_agent_name)}")
    models = {teacher_model_by_agent_name[alias] for alias in aliases}
    return {
        "teacher_alias_unique": float(len(aliases)),
        "teacher_model_unique": float(len(models)),
        "teacher_alias_to_model_compression": len(models) / max(len(aliases), 1),
    }


def teacher_configs(config: OnPolicyDistillationConfig) -> list[TeacherConfig]:
    """The teachers to load, in the order of the map; aliases of one checkpoint together when deduplicating."""
    if not config.enabled:
        return []
    models = config.teacher_model_by_agent_name
    return [TeacherConfig(aliases[0], models[aliases[0]], aliases) for aliases in config.aliases_by_teacher]


def teacher_by_alias(teachers: Iterable[TeacherConfig]) -> dict[str, TeacherConfig]:
    """The teacher that answers to each alias."""
    return {alias: teacher for teacher in teachers for alias in teacher.aliases}


def teacher_configs_by_index(teachers: Iterable[TeacherConfig]) -> list[TeacherConfig]:
    """*teachers* in ``teacher_index`` order: by checkpoint, then alias."""
    return sorted(teachers, key=lambda teacher: (teacher.model_name, teacher.alias))


def opd_full_teacher_checkpoints_by_index(config: OnPolicyDistillationConfig) -> list[str] | None:
    """The checkpoint behind each ``teacher_index``, or None when rows carry none (no hidden-states payload)."""
    if not config.enabled or config.full is None or not config.full.enabled:
        return None
    if config.full.teacher_payload != "hidden_states":
        return None
    return [teacher.model_name for teacher in teacher_configs_by_index(teacher_configs(config))]
