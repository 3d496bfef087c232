"""Several threads on one plane, and readers that hold batches while rows change under them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from dataplane import DataPlane
from tests.dataplane.stores import Store
from tests.dataplane.test_claims import admit


def in_threads(count: int, work: Callable[[int], None]) -> list[BaseException]:
    """Run ``work(0)`` … at once; what they raised."""
    raised: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as error:  # shown by the test that called
            raised.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_workers_in_threads_share_the_rows_without_overlap(plane: DataPlane) -> None:
    ids = admit(plane, 120)
    done: list[list[str]] = [[], [], [], []]

    def work(index: int) -> None:
        while claim := plane.claim("train", "generate", limit=1 + index):
            tokens = [[int(i[1:])] for i in claim.batch.values("prompt")]
            claim.commit({"input_ids": tokens, "generation_logprobs": [[0.0]] * len(claim)})
            done[index] += claim.sample_ids

    assert in_threads(4, work) == []
    assert sorted(i for part in done for i in part) == sorted(ids)
    assert plane.get("train", ids, ["input_ids"]).values("input_ids") == [[i] for i in range(120)]


def test_a_held_batch_stays_as_it_was_while_its_row_is_rewritten_and_cleared(plane: DataPlane, store: Store) -> None:
    held = []
    for i in range(200):
        plane.put("train", ["a"], {"teacher_logprobs": (np.full(400_000, i, np.float32), [0, 400_000])})
        held.append(plane.get("train", ["a"], ["teacher_logprobs"], copy=False))
        plane.replace("train", ["a"], {"teacher_logprobs": [[-1.0]]})
        plane.clear("train", ["a"])
        held = held[-20:]
    assert [batch.array("teacher_logprobs").values.to_numpy().sum() for batch in held] == [
        400_000.0 * i for i in range(180, 200)
    ]
    assert store.blocks() == set()


def test_a_reader_beside_a_rewriting_writer_sees_old_or_new_and_never_a_mix(plane: DataPlane) -> None:
    plane.put("train", ["a"], {"teacher_logprobs": [[0.0] * 3], "generation_logprobs": [[0.0] * 3]})
    stop = threading.Event()
    seen = []

    def work(index: int) -> None:
        if index == 0:
            for i in range(300):
                values = [[float(i)] * (1 + i % 5)]
                plane.replace("train", ["a"], {"teacher_logprobs": values, "generation_logprobs": values})
            stop.set()
        while not stop.is_set():
            batch = plane.get("train", ["a"], ["teacher_logprobs", "generation_logprobs"])
            seen.append((batch.values("teacher_logprobs"), batch.values("generation_logprobs")))

    assert in_threads(3, work) == []
    assert seen and all(first == second and len(set(first[0])) == 1 for first, second in seen)


def test_lists_past_two_to_the_31_need_no_memory(plane: DataPlane) -> None:
    plane.create_partition("huge", {"nothing": pa.large_list(pa.null())})
    length = 2**31 - 1
    offsets = pa.array([0, length, 2 * length])
    plane.put("huge", ["a", "b"], {"nothing": pa.LargeListArray.from_arrays(offsets, pa.nulls(2 * length))})
    array = plane.get("huge", ["b", "a", "b"], ["nothing"]).array("nothing")
    assert np.diff(array.offsets.to_numpy()).tolist() == [length] * 3
