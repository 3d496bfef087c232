"""Samplers: which of the admitted groups make up the next step.

Groups have places in the order of their admission. A group is *settled* when each of its rows is either done or given
up. A settled group may overtake a late one, which was admitted before it and is not settled yet, if it was admitted
fewer than ``window`` places after it; the oldest groups that may join do.

    place     4      5      6      7      8         a step takes 3 groups; 5 is late
    settled   yes    no     yes    yes    yes

    in_order      window 1    waits for 5
    windowed      window 3    takes 4, 6, 7      8 would have been 3 places ahead of 5
    first_ready   as far as anything is admitted: takes 4, 6, 7, and could have taken 8

So a late group is overtaken by ``window`` − 1 others at most, in all steps together: nothing starves. The window
slides on with the oldest group that is late.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.config import GRPOConfig


def overtaking_window(grpo: GRPOConfig) -> int:
    """Places ahead of a late group at which others must wait for it, by ``grpo.async_grpo.sampler``.

    Of ``first_ready`` it is twice what is admitted at a time: by then the late group's weights are too old for any
    step, and it has been generated again.
    """
    prompts, how = grpo.num_prompts_per_step, grpo.async_grpo
    if how.sampler == "windowed":
        return how.sampler_window or prompts // 2 + 1
    return 1 if how.sampler == "in_order" else 2 * (how.window + 1) * prompts


def choose(settled: Iterable[tuple[int, bool]], count: int, window: int) -> list[int] | None:
    """The places of the *count* groups of the next step, ascending; None while there are not enough.

    *settled* says of every open group, by rising place, whether it is; it is asked no further than need be.
    """
    chosen: list[int] = []
    late = None
    for place, is_settled in settled:
        if late is not None and place >= late + window:
            return None
        if not is_settled:
            late = place if late is None else late
            continue
        chosen.append(place)
        if len(chosen) == count:
            return chosen
    return None
