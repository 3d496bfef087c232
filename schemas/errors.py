"""The one error tree.

    OpdError
    ├── InputError (ValueError)          the caller's input is wrong: nothing was done; exit code 2
    │   ├── ConfigError                  a recipe is wrong
    │   └── ResourceInsufficientError    the cluster can never give what is asked of it
    ├── StoreError (RuntimeError)        the store cannot do what was asked
    │   ├── MissingRows (LookupError)    ids or columns that are not there
    │   ├── LeaseLost                    the claim's lease ended; its rows belong to somebody else
    │   ├── StoreLocked                  another process writes this store
    │   └── CorruptData                  bytes on disk are not what the journal says
    └── JobFailed (RuntimeError)         the run ends here and can be resumed; exit code 1
        └── DeadlinePassed (TimeoutError)

Every message says what, what came, what was expected and how to go on. The failure of one *sample*
is not an exception but data on its row: see :data:`schemas.columns.FAILURE_CODES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches


class OpdError(Exception):
    """Root of every error this package raises on purpose."""


class InputError(OpdError, ValueError):
    """The caller's input is wrong; nothing was written or started."""


class ConfigError(InputError):
    """A recipe or an override is wrong."""


class ResourceInsufficientError(InputError):
    """The cluster can never give what is asked of it; nothing was reserved."""


class StoreError(OpdError, RuntimeError):
    """The store cannot do what was asked."""


class MissingRows(StoreError, LookupError):
    """Rows, or columns of rows, that are not there. ``missing`` maps sample id to column names."""

    def __init__(self, message: str, missing: Mapping[str, Iterable[str]] | None = None) -> None:
        super().__init__(message)
        self.missing = {sample_id: list(columns) for sample_id, columns in (missing or {}).items()}


class LeaseLost(StoreError):
    """The claim is over (lease ended, released, or committed); its rows may belong to another attempt."""


class StoreLocked(StoreError):
    """Another process has this store open for writing."""


class CorruptData(StoreError):
    """Stored bytes are not what the journal says they are; ``block`` names the block, if it is one."""

    block = ""


class JobFailed(OpdError, RuntimeError):
    """The run cannot go on; what it finished is stored and it can be resumed."""


class DeadlinePassed(JobFailed, TimeoutError):
    """Something the job waited for did not come in time."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` for the known word nearest to *word*, or an empty string."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
