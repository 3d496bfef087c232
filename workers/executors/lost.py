"""Why something on Ray ended: a process that died, or an error that one raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schemas.errors import JobFailed, OpdError

#: Seconds in which the death of a rank shows after the others have felt it.
PEER_S = 3.0


def why_ended(loops: Sequence[Any]) -> str:
    """Why a role's loops ended. What one raised itself is the job's failure, unless a rank's death made it raise."""
    import ray

    if lost := lost_rank(loops):
        return lost
    ended, _ = ray.wait(list(loops), timeout=0)
    try:
        ray.get(ended)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, OpdError) else JobFailed(cause_of(error))) from error
    return "its loop ended"


def lost_rank(loops: Sequence[Any]) -> str:
    """How a process among the ranks of a role died; empty if none did.

    The others raise when they talk to it, maybe before its death is known.
    """
    import ray

    ended, _ = ray.wait(list(loops), num_returns=len(loops), timeout=PEER_S if len(loops) > 1 else 0)
    for loop in ended:
        try:
            ray.get(loop)
        except ray.exceptions.RayActorError as error:
            return f"its process died: {cause_of(error)}"
        except ray.exceptions.RayTaskError:
            continue
    return ""


def cause_of(error: Exception) -> str:
    """The last line of Ray's long message, or the first where it is the telling one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
