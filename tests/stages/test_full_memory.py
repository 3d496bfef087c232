"""Memory of full-vocabulary distillation: measured, and estimated beforehand."""

import pytest
import torch

from schemas.config import OnPolicyDistillationFullConfig
from schemas.errors import InputError
from stages.losses.chunked_divergence import FullVocabulary, full_vocabulary_divergence
from stages.losses.memory import FullBytes, HeadShape, assert_full_fits, estimate_full_bytes
from stages.losses.projection import Logits
from stages.losses.teacher_heads import TeacherHeads
from tests.stages.peak import PeakBytes

VOCABULARY, HIDDEN = 151_936, 2


def whole_softmax(student, teacher):
    log_s, log_t = ((side.rows @ side.head.T).log_softmax(-1) for side in (student, teacher))
    return (log_s.exp() * (log_s - log_t)).sum(-1)


def in_chunks(student, teacher):
    return full_vocabulary_divergence(student, teacher, FullVocabulary(chunk_size=16))


def peak_bytes(function, tokens):
    """Peak of forward and backward, parameter and state gradients aside."""
    rows, theirs = torch.randn(tokens, HIDDEN, requires_grad=True), torch.randn(tokens, HIDDEN)
    head, their_head = torch.randn(VOCABULARY, HIDDEN, requires_grad=True), torch.randn(VOCABULARY, HIDDEN)
    with PeakBytes() as memory:
        function(Logits(rows, head), Logits(theirs, their_head)).sum().backward()
    return memory.peak - 4 * (rows.numel() + head.numel())


def test_peak_memory_is_flat_in_tokens_and_far_below_the_whole_softmax():
    few, many = peak_bytes(in_chunks, 32), peak_bytes(in_chunks, 80)
    per_token = (peak_bytes(whole_softmax, 32) - peak_bytes(whole_softmax, 16)) / 16
    assert many - few < 48 * 1000
    assert 2048 * per_token > 20 * many


FULL = OnPolicyDistillationFullConfig(enabled=True)


def test_bytes_are_estimated_from_shapes():
    heads = [HeadShape(1000, 64, 2), HeadShape(1000, 32, 2)]
    states = estimate_full_bytes(FULL.model_copy(update={"chunk_size": 8}), 500, 1000, heads)
    assert states == FullBytes(payload=500 * 64 * 2, heads=96_000 * 2, chunks=8 * 1000 * 4 * 5)
    assert estimate_full_bytes(FULL, 500, 1000, heads, steps=3).payload == 3 * 500 * 64 * 2
    logits = FULL.model_copy(update={"teacher_payload": "logits", "payload_dtype": "float32"})
    assert estimate_full_bytes(logits, 500, 1000, heads).payload == 500 * 1000 * 4


def test_the_estimate_of_chunks_covers_what_is_measured():
    estimate = estimate_full_bytes(FULL.model_copy(update={"chunk_size": 16}), 80, VOCABULARY, [HeadShape(9, 9, 4)])
    assert 0.5 * estimate.chunks < peak_bytes(in_chunks, 80) <= estimate.chunks


def test_what_cannot_fit_is_refused_with_both_numbers():
    needed = FullBytes(payload=3 * 2**30, heads=2**30, chunks=2**29)
    assert_full_fits(needed, store_bytes=3 * 2**30, device_bytes=None)
    with pytest.raises(InputError, match=r"payload takes 3\.00 GiB, the store has 2\.00 GiB"):
        assert_full_fits(needed, store_bytes=2 * 2**30, device_bytes=None)
    with pytest.raises(InputError, match=r"\(1\.00 GiB\) and chunks \(0\.50 GiB\) exceed the 1\.00 GiB"):
        assert_full_fits(needed, store_bytes=None, device_bytes=2**30)


@pytest.mark.parametrize(("lifecycle", "reads"), [("none", 2), ("offload", 2), ("evict", 4)])
def test_heads_come_by_index_and_are_read_as_the_lifecycle_says(lifecycle, reads):
    read = []

    def load(path):
        read.append(path)
        return torch.full((3, 2), float(len(path)))

    heads = TeacherHeads(["a", "bb", "a"], load, lifecycle)
    for _ in range(2):
        with heads.staged() as by_index:
            assert [float(head[0, 0]) for head in by_index] == [1.0, 2.0, 1.0]
    assert len(read) == reads


def test_only_the_heads_that_a_step_needs_are_read():
    read = []
    heads = TeacherHeads(["a", "b", "c"], lambda path: read.append(path) or torch.zeros(1, 1), "evict")
    with heads.staged([2, 0]) as staged:
        assert len(staged) == 2 and read == ["c", "a"]
    with pytest.raises(InputError, match="teacher_index 3: expected one of the 3 recorded"), heads.staged([3]):
        pass
