"""Filler rows reach the engine, and nobody else."""

from __future__ import annotations

import pytest
import torch

from stages.protocols import Ask, Scores
from stages.topk import TopK
from tests.stages.fakes import PosLM
from workers.teachers.padding import FullRounds


class Watched(PosLM):
    """Notes what it is given; its top-1 at a token is the token itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[list[int]]] = []

    def logprobs(self, sequences, temperature):
        self.seen.append([list(sequence) for sequence in sequences])
        return super().logprobs(sequences, temperature)

    def top_k(self, sequences, masks, k, temperature):
        picked = [torch.tensor(ids)[torch.tensor(mask)] for ids, mask in zip(sequences, masks, strict=True)]
        return [TopK(ids[:, None].int(), torch.zeros(len(ids), 1), torch.zeros(len(ids))) for ids in picked]

    def score(self, sequences, masks, temperature, ask):
        return [
            Scores(row, top=top)
            for row, top in zip(
                self.logprobs(sequences, temperature), self.top_k(sequences, masks, 1, temperature), strict=True
            )
        ]


ROWS = [[5, 6, 7], [8, 9], [1, 2, 3, 4], [2, 2, 2], [3, 1, 4, 1, 5]]
MASKS = [[False, True, True], [True, True], [False] * 4, [True] * 3, [False, False, True, True, True]]


@pytest.mark.parametrize(("replicas", "filler"), [(1, 0), (2, 1), (3, 1), (4, 3), (5, 0), (8, 3)])
def test_the_engine_sees_a_multiple_of_its_replicas_and_callers_what_they_asked_for(replicas: int, filler: int) -> None:
    engine = Watched()
    scored = FullRounds(engine, replicas).logprobs(ROWS, 1.0)
    assert engine.seen == [[*ROWS, *[[8, 9]] * filler]]
    assert all(torch.equal(a, b) for a, b in zip(scored, PosLM().logprobs(ROWS, 1.0), strict=True))


def test_no_top_k_is_asked_for_at_filler() -> None:
    tops = FullRounds(Watched(), 4).top_k(ROWS, MASKS, 1, 1.0)
    assert [top.ids.flatten().tolist() for top in tops] == [[6, 7], [8, 9], [], [2, 2, 2], [4, 1, 5]]
    scores = FullRounds(Watched(), 3).score(ROWS, MASKS, 1.0, Ask(top_k=1))
    assert [len(score.top.ids) for score in scores] == [2, 2, 0, 3, 3]


def test_an_empty_batch_stays_empty() -> None:
    assert FullRounds(Watched(), 4).logprobs([], 1.0) == []
