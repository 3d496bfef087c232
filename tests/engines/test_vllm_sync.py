"""New weights in place, and that the probe sees each way in which that goes wrong silently."""

from __future__ import annotations

import pytest

from tests.engines.conftest import VOCABULARY
from workers.doctor.probe import LENGTHS, same, scores
from workers.engines.hf.scorer import HFScorer
from workers.engines.vllm import sync
from workers.engines.vllm.engine import Request, read_checkpoint

#: Tokens of the sequences of the probe that no block of the prefix cache holds.
SHORT = sum(LENGTHS[:-1])


@pytest.fixture
def expected(checkpoints):
    """What the trainer's side says of the new weights."""
    return scores(HFScorer.load(checkpoints / "rev", vocabulary_size=VOCABULARY), 200)


def synced(generator, checkpoints):
    """Scores after new weights are loaded over old ones whose probe was taken, as in a run."""
    scores(generator.scorer(), 200)
    generator.load_weights(read_checkpoint(checkpoints / "rev"), 1)
    return scores(generator.scorer(), 200)


def test_new_weights_are_taken_in_place_and_nothing_of_the_old_ones_is_left(generator, checkpoints, expected):
    found = synced(generator, checkpoints)
    assert same(expected, found) and generator.version == 1
    assert (expected - found).abs().max() < 1e-4


def test_a_sync_that_does_nothing_is_seen(generator, checkpoints, expected, monkeypatch):
    monkeypatch.setattr(sync.WeightSync, "take_weights", lambda worker, tensors: None)
    assert not same(expected, synced(generator, checkpoints))


def test_a_stale_tied_head_is_seen(generator, checkpoints, expected, monkeypatch):
    monkeypatch.setattr(sync, "repack_tied_head", lambda model: None)
    assert not same(expected, synced(generator, checkpoints))


def test_a_stale_prefix_cache_is_seen_by_the_long_sequence_alone(generator, checkpoints, expected, monkeypatch):
    monkeypatch.setattr(generator.engine, "forget_prefixes", lambda: None)
    found = synced(generator, checkpoints)
    assert same(expected[:SHORT], found[:SHORT]) and not same(expected, found)
    generator.load_weights(read_checkpoint(checkpoints / "rev"), 1)
    assert not same(expected, scores(generator.scorer(), 200)), "scoring again must not hide it"


def test_a_cache_that_cannot_be_reset_is_an_error(generator):
    running = Request([2, 10, 11], generator.engine.params(max_tokens=9))
    inner = generator.engine.llm.llm_engine
    name = inner.add_request("running", running.as_prompt(), running.params)
    inner.step()
    with pytest.raises(RuntimeError, match="prefix cache could not be reset"):
        generator.engine.forget_prefixes()
    inner.abort_request([name], internal=True)
