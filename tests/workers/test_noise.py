"""Counter-based noise: the same numbers whoever asks."""

from __future__ import annotations

import numpy as np

from workers.engines.noise import stream_keys, uniform


def test_a_sample_draws_the_same_number_alone_and_in_any_batch():
    alone = uniform(stream_keys([7], ["b"]), 3)
    among = uniform(stream_keys([7, 7, 7], ["a", "b", "c"]), 3)
    assert alone[0] == among[1]


def test_seed_sample_and_position_each_change_the_number():
    base = uniform(stream_keys([1], ["a"]), 0)[0]
    others = [
        uniform(stream_keys([2], ["a"]), 0)[0],
        uniform(stream_keys([1], ["b"]), 0)[0],
        uniform(stream_keys([1], ["a"]), 1)[0],
    ]
    assert base not in others and len(set(others)) == 3


def test_numbers_are_uniform_over_the_unit_interval():
    keys = stream_keys([0] * 4096, [f"s{i}" for i in range(4096)])
    numbers = np.concatenate([uniform(keys, position) for position in range(8)])
    assert numbers.min() >= 0 and numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=16, range=(0, 1))
    assert abs(counts - len(numbers) / 16).max() < 5 * np.sqrt(len(numbers) / 16)
