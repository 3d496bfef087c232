"""What a run keeps when it is resumed: its order of prompts, and the student that it began with."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.config.resolved import describe
from schemas.config.run import RunConfig
from schemas.errors import ConfigError

#: These, and what lies below them, decide which prompt comes when, and what weight version 0 is.
FIXED = ("run.seed", "data.train", "policy.model", "policy.tokenizer")


def fixed(key: str) -> bool:
    """Whether a resumed run keeps *key* whatever is said."""
    return any(key == name or key.startswith(f"{name}.") for name in FIXED)


def changes(stored: RunConfig, wanted: RunConfig) -> Iterator[str]:
    """A line for each setting that a resumed run changes. Raises ConfigError for one that it cannot."""
    before, now = ({setting.key: setting.value for setting in describe(config)} for config in (stored, wanted))
    for key in before | now:
        value = now.get(key)
        if before.get(key) == value:
            continue
        if fixed(key):
            raise ConfigError(
                f"{key}: expected {before.get(key)!r}, which the run began with, got {value!r}; with another one "
                "prompts would be trained twice, or its history could not be replayed: leave it out, or start a new run"
            )
        yield f"{key}: {before.get(key)!r} until now, {value!r} from here on"
