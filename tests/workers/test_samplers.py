"""Which groups make up a step: by example, and whatever order they are finished in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.config import AsyncGRPOConfig, GRPOConfig
from workers.control.samplers import choose, overtaking_window

#: Places 4 to 8, of which 5 is late.
LATE = {4: True, 5: False, 6: True, 7: True, 8: True}


@pytest.mark.parametrize(
    ("settled", "window", "chosen"),
    [
        (LATE, 1, None),
        (LATE, 2, None),
        (LATE, 3, [4, 6, 7]),
        (LATE, 100, [4, 6, 7]),
        ({5: False, 6: True, 7: True, 8: True}, 3, None),
        ({5: False, 6: True, 7: True, 8: True}, 4, [6, 7, 8]),
        ({4: True, 5: True, 6: True, 7: False, 8: True}, 1, [4, 5, 6]),
        ({4: True, 5: True}, 100, None),
    ],
)
def test_a_settled_group_overtakes_a_late_one_inside_the_window(settled, window, chosen):
    assert choose(settled.items(), 3, window) == chosen


@pytest.mark.parametrize(
    ("sampler", "given_window", "window"),
    [("in_order", None, 1), ("windowed", None, 5), ("windowed", 3, 3), ("first_ready", None, 32)],
)
def test_the_sampler_decides_how_far_a_late_group_is_overtaken(sampler, given_window, window):
    how = AsyncGRPOConfig(enabled=True, max_staleness=1, sampler=sampler, sampler_window=given_window)
    assert overtaking_window(GRPOConfig(num_prompts_per_step=8, async_grpo=how)) == window


@given(st.permutations(range(24)), st.integers(1, 24), st.integers(1, 5), st.lists(st.integers(1, 9), max_size=24))
def test_every_group_is_taken_once_and_none_is_overtaken_by_as_many_as_the_window(order, window, count, bursts):
    settled, taken, finished = dict.fromkeys(range(24), False), [], iter(order)
    for burst in [*bursts, 24]:
        settled |= {place: True for _, place in zip(range(burst), finished, strict=False)}
        while (chosen := choose(settled.items(), count, window)) is not None:
            assert chosen == sorted(chosen)
            taken.extend(chosen)
            settled = {place: is_settled for place, is_settled in settled.items() if place not in chosen}
    assert len(taken) == len(set(taken)) == 24 - 24 % count
    for at, place in enumerate([*taken, *settled]):
        assert sum(other > place for other in taken[:at]) < window
