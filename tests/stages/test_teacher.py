"""teacher and student: alignment, routing, and rows that cannot be scored."""

from __future__ import annotations

import math

import pytest
import torch

from schemas.batch import Batch
from schemas.errors import InputError, JobFailed
from stages.payload import Shipment
from stages.protocols import Ask, Scores
from stages.student import Student
from stages.teacher import Teacher
from tests.stages.fakes import PosLM


def rows(**sequences: tuple[list[int], list[int]]) -> Batch:
    """Samples by id: prompt ids and response ids."""
    return Batch.of(
        list(sequences),
        {
            "input_ids": [prompt + response for prompt, response in sequences.values()],
            "token_mask": [[False] * len(prompt) + [True] * len(response) for prompt, response in sequences.values()],
            "teacher": ["t"] * len(sequences),
        },
    )


def test_every_value_stands_at_its_own_token():
    out = Teacher(PosLM(), {"t": 0})(rows(long=([5, 6, 7], [8, 9]), short=([5, 6, 7], [8])))
    assert out.columns["teacher_logprobs"][0].tolist() == pytest.approx([0.0, -1.006, -2.007, -3.008, -4.009])
    assert out.columns["teacher_logprobs"][1].tolist() == pytest.approx([0.0, -1.006, -2.007, -3.008])


def test_tool_tokens_are_conditioned_on_but_positions_stay_absolute():
    batch = rows(s=([5], [1, 2, 90, 90, 3])).with_columns({"token_mask": [[False, True, True, False, False, True]]})
    assert Teacher(PosLM(), {"t": 0})(batch).columns["teacher_logprobs"][0][5].item() == pytest.approx(-5.003)


def test_a_row_longer_than_the_teacher_accepts_fails_and_is_never_clipped():
    out = Teacher(PosLM(max_length=12), {"t": 0})(rows(fits=([1] * 10, [2, 3]), long=([1] * 10, [2, 3, 4, 5])))
    assert list(out.sample_ids) == ["fits"]
    assert out.failed == {"long": "teacher_too_long: 14 tokens exceed the 12 that this model accepts"}


def test_a_long_row_that_breaks_the_engine_is_tried_alone_and_the_others_kept():
    class Fragile(PosLM):
        def logprobs(self, sequences, temperature):
            if any(len(ids) > 6 for ids in sequences):
                raise MemoryError("no room for the logits")
            return super().logprobs(sequences, temperature)

    out = Teacher(Fragile(), {"t": 0})(rows(a=([1], [2]), b=([1] * 6, [2, 3]), c=([1, 2], [3])))
    assert list(out.sample_ids) == ["a", "c"]
    assert out.failed == {"b": "engine_error: MemoryError: no room for the logits"}


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_non_finite_value_fails_the_row_only_where_the_student_spoke(value):
    class Holed(PosLM):
        def value(self, position, token):
            return value if token == 50 else super().value(position, token)

    out = Teacher(Holed(), {"t": 0})(rows(prompt=([1, 50], [2]), response=([1, 2], [3, 50])))
    assert list(out.sample_ids) == ["prompt"]
    assert out.failed["response"] == f"bad_logprob: {value} at position 3"


def test_a_mixed_batch_keeps_its_order_and_each_value_proves_its_teacher():
    batch = rows(m0=([1, 2], [3]), c0=([4], [5, 6]), m1=([7], [8]))
    routed = {"math": (Teacher(PosLM(), {"math": 0}), [0, 2]), "code": (Teacher(PosLM(factor=2.0), {"code": 1}), [1])}
    scores = {}
    for alias, (stage, positions) in routed.items():
        out = stage(batch.take(positions).with_columns({"teacher": [alias] * len(positions)}))
        scores |= dict(
            zip(
                out.sample_ids,
                zip(out.columns["teacher_logprobs"], out.columns["teacher_index"], strict=True),
                strict=True,
            )
        )
    assert scores["m0"][0][2].item() == pytest.approx(-2.003) and scores["m0"][1] == 0
    assert scores["c0"][0][1].item() == pytest.approx(-2.010) and scores["c0"][1] == 1
    assert scores["m1"][0][1].item() == pytest.approx(-1.008)


def test_student_keeps_a_bad_value_for_baseline_to_quarantine():
    class Broken(PosLM):
        def logprobs(self, sequences, temperature):
            return [torch.full((len(ids),), math.nan) for ids in sequences]

    out = Student(Broken())(rows(s=([1, 2], [3])))
    assert not out.failed and out.columns["student_logprobs"][0].isnan().all()


class Shipper(PosLM):
    """A PosLM that also ships a vector of two numbers a token."""

    def __init__(self, hole: float | None = None) -> None:
        super().__init__()
        self.hole = hole

    def score(self, sequences, masks, temperature, ask):
        logprobs = self.logprobs(sequences, temperature)
        shipped = [torch.tensor([[p, t] for p, t in enumerate(ids)]).to(getattr(torch, ask.dtype)) for ids in sequences]
        for vectors in shipped if self.hole is not None else []:
            vectors[-1, 1] = self.hole
        return [Scores(*pair) for pair in zip(logprobs, shipped, strict=True)]

    def head_error(self, sequences):
        return 0.5


SHIPS = Shipment(Ask("hidden_states", "float16"), "payload_hidden_states", width=4)


def test_a_narrow_teachers_vectors_are_widened_with_zeros():
    out = Teacher(Shipper(), {"t": 2}, ships=SHIPS)(rows(a=([5, 6], [7]), b=([5], [8])))
    assert out.columns["payload_hidden_states"][1].tolist() == [[0, 5, 0, 0], [1, 8, 0, 0]]
    assert out.columns["teacher_index"] == [2, 2]
    assert Teacher(Shipper(), ships=SHIPS).writes[-1] == "payload_hidden_states"


def test_a_payload_that_overflows_its_type_quarantines_the_row():
    out = Teacher(Shipper(hole=math.inf), {"t": 0}, ships=SHIPS)(rows(a=([5, 6], [7])))
    assert out.failed == {"a": "bad_logprob: a number in its payload is not finite at position 2"}


def test_a_teacher_wider_than_the_column_is_an_error():
    narrow = Shipment(Ask("hidden_states"), "payload_hidden_states", width=1)
    with pytest.raises(InputError, match="expected vectors of at most 1 numbers, got 2"):
        Teacher(Shipper(), {"t": 0}, ships=narrow)(rows(a=([5, 6], [7])))


def test_logits_that_are_not_the_heads_product_stop_a_checked_run():
    with pytest.raises(JobFailed, match=r"not lm_head\(hidden states\): they differ by 0.5"):
        Teacher(Shipper(), {"t": 0}, ships=SHIPS, check_head="float32")(rows(a=([5, 6], [7])))


def test_a_bad_value_is_left_to_the_baseline_when_rewards_may_still_train_the_row():
    class Holed(PosLM):
        def value(self, position, token):
            return math.nan

    out = Teacher(Holed(), {"t": 0}, keep_nonfinite=True)(rows(a=([5, 6], [7])))
    assert not out.failed and out.columns["teacher_logprobs"][0][2].isnan()
