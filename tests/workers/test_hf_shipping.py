"""What the HF engine ships beside log-probs, the heads it reads from disk, and a vocabulary with padding."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from schemas.errors import InputError
from stages.protocols import Ask, Sampling
from workers.engines.hf.generator import HFGenerator
from workers.engines.hf.head import head_shape, load_head
from workers.engines.hf.model import load_model
from workers.engines.hf.scorer import HFScorer

SEQUENCES = [[2, 33, 29, 57, 1], [2, 44, 1], [2, 33, 29, 32, 34, 67, 1]]
MASKS = [[False, True, False, True, True], [False] * 3, [False] * 6 + [True]]


@pytest.fixture
def engine(checkpoints):
    return HFScorer.load(checkpoints / "rev", batch_size=2)


def test_one_pass_gives_the_same_logprobs_as_scoring_alone(engine):
    scores = engine.score(SEQUENCES, MASKS, 0.7, Ask("hidden_states", "float16", 4))
    for score, expected in zip(scores, engine.logprobs(SEQUENCES, 0.7), strict=True):
        torch.testing.assert_close(score.logprobs, expected, atol=1e-5, rtol=0)
    assert [tuple(score.payload.shape) for score in scores] == [(5, 64), (3, 64), (7, 64)]
    assert {score.payload.dtype for score in scores} == {torch.float16}


def test_states_and_logits_are_what_each_token_was_drawn_from(engine):
    head = engine.lm_head()
    states, logits = (engine.score(SEQUENCES, MASKS, 1.0, Ask(kind)) for kind in ("hidden_states", "logits"))
    for state, logit, ids in zip(states, logits, SEQUENCES, strict=True):
        torch.testing.assert_close(state.payload @ head.T, logit.payload, atol=1e-4, rtol=0)
        assert not logit.payload[0].any()
        at_tokens = logit.payload.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]
        torch.testing.assert_close(at_tokens[1:], logit.logprobs[1:], atol=1e-5, rtol=0)


def test_the_top_k_is_of_picked_tokens_at_the_temperature(engine):
    tops = engine.top_k(SEQUENCES, MASKS, 3, 0.5)
    assert [tuple(top.ids.shape) for top in tops] == [(3, 3), (0, 3), (1, 3)]
    logits = engine.logits(SEQUENCES)[2][6] / 0.5
    assert tops[2].ids[0].tolist() == logits.topk(3).indices.tolist()
    torch.testing.assert_close(tops[2].logprobs[0], logits.log_softmax(-1).topk(3).values, atol=1e-5, rtol=0)
    torch.testing.assert_close(tops[2].logsumexp[0], logits.logsumexp(0), atol=1e-5, rtol=0)


def test_a_head_that_is_not_what_makes_the_logits_is_measured(engine):
    assert engine.head_error(SEQUENCES) < 1e-5
    head = engine.model.lm_head
    engine.model.lm_head.register_forward_hook(lambda module, given, out: 30 * torch.tanh(out / 3))
    assert head is engine.model.lm_head and engine.head_error(SEQUENCES) > 0.01


@pytest.fixture
def padded(checkpoints, tmp_path):
    """The student with 128 rows of padding that nobody trained, loud enough to be heard."""
    model = load_model(checkpoints / "student")
    torch.manual_seed(1)
    model.resize_token_embeddings(81 + 128, mean_resizing=False)
    with torch.no_grad():
        model.lm_head.weight[81:] *= 50
    model.save_pretrained(tmp_path / "padded")
    return tmp_path / "padded"


def test_padding_of_the_head_is_outside_every_softmax(checkpoints, padded):
    plain, wide = HFScorer.load(checkpoints / "student"), HFScorer.load(padded, vocabulary_size=81)
    for one, other in zip(plain.logprobs(SEQUENCES, 1.0), wide.logprobs(SEQUENCES, 1.0), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    assert [tuple(rows.shape) for rows in wide.logits(SEQUENCES)] == [(5, 81), (3, 81), (7, 81)]
    assert all(int(top.ids.max()) < 81 for top in wide.top_k(SEQUENCES[:1], MASKS[:1], 5, 1.0))


def test_padding_is_never_sampled(checkpoints, padded):
    how = [Sampling(max_new_tokens=6, seed=4)] * 3
    drawn = [
        HFGenerator.load(path, [1], max_length=64, vocabulary_size=81).generate(list("abc"), SEQUENCES, how)
        for path in (checkpoints / "student", padded)
    ]
    assert [c.token_ids for c in drawn[0]] == [c.token_ids for c in drawn[1]]


def test_a_tied_head_is_the_embedding_and_an_untied_one_its_own(checkpoints, tmp_path):
    tied = load_head(checkpoints / "rev")
    assert torch.equal(tied, load_model(checkpoints / "rev").lm_head.weight)
    directory = copied(checkpoints / "rev", tmp_path)
    tensors = load_file(directory / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tied + 1}, directory / "model.safetensors")
    assert torch.equal(load_head(directory), tied + 1)
    assert head_shape(directory).size_bytes == 81 * 64 * 4


def test_a_head_is_found_among_shards(checkpoints, tmp_path):
    directory = copied(checkpoints / "rev", tmp_path)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names, index = list(tensors), {}
    for number, part in enumerate((names[:3], names[3:])):
        save_file({name: tensors[name] for name in part}, directory / f"model-{number}.safetensors")
        index |= dict.fromkeys(part, f"model-{number}.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert torch.equal(load_head(directory), load_head(checkpoints / "rev"))


def test_a_head_with_a_bias_or_without_tensors_is_refused(checkpoints, tmp_path):
    directory = copied(checkpoints / "rev", tmp_path)
    tensors = load_file(directory / "model.safetensors")
    save_file({**tensors, "lm_head.bias": torch.zeros(81)}, directory / "model.safetensors")
    with pytest.raises(InputError, match=r"its LM head has a bias \(lm_head.bias\)"):
        load_head(directory)
    save_file({"norm": torch.zeros(3)}, directory / "model.safetensors")
    with pytest.raises(InputError, match="no LM head among its tensors"):
        head_shape(directory)


def copied(source, tmp_path):
    directory = tmp_path / "copy"
    directory.mkdir()
    for file in source.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    return directory
