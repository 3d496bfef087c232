"""The Hugging Face engines against each other and against plain transformers."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from schemas.batch import Batch
from schemas.errors import InputError
from stages.losses.counts import Counts
from stages.protocols import Sampling
from workers.engines.hf.generator import HFGenerator, _Draw
from workers.engines.hf.model import load_model, max_positions
from workers.engines.hf.scorer import HFScorer
from workers.engines.hf.trainer import HFTrainer
from workers.engines.training import lr_schedule

PROMPTS = [[2, 10, 11, 1, 3], [2, 12, 1, 3], [2, 10, 13, 14, 15, 1, 3]]


def reference(path, ids, temperature):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1] / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[1:, None])[:, 0]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_scores_equal_transformers_at_the_temperature_and_start_with_zero(checkpoints, temperature):
    scored = HFScorer.load(checkpoints / "student", batch_size=2).logprobs(PROMPTS, temperature)
    for ids, values in zip(PROMPTS, scored, strict=True):
        assert values[0] == 0 and len(values) == len(ids)
        torch.testing.assert_close(values[1:], reference(checkpoints / "student", ids, temperature), atol=1e-5, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampler_and_scorer_agree_on_what_was_sampled(checkpoints, temperature):
    generator = HFGenerator.load(checkpoints / "student", [1], max_length=64)
    done = generator.generate(["a", "b", "c"], PROMPTS, [Sampling(temperature=temperature, max_new_tokens=6)] * 3)
    sequences = [prompt + list(c.token_ids) for prompt, c in zip(PROMPTS, done, strict=True)]
    scored = HFScorer(generator.model).logprobs(sequences, temperature)
    for prompt, completion, values in zip(PROMPTS, done, scored, strict=True):
        torch.testing.assert_close(values[len(prompt) :], torch.tensor(completion.logprobs), atol=1e-4, rtol=0)


def test_a_sample_is_the_same_alone_and_in_a_batch(checkpoints):
    generator = HFGenerator.load(checkpoints / "student", [1], max_length=64)
    how = Sampling(max_new_tokens=5, seed=3)
    batch = generator.generate(["a", "b", "c"], PROMPTS, [how] * 3)
    assert generator.generate(["b"], PROMPTS[1:2], [how])[0].token_ids == batch[1].token_ids


def test_each_row_stops_at_its_own_budget_or_end_token(checkpoints):
    generator = HFGenerator.load(checkpoints / "student", list(range(2, 81)), max_length=64)
    first, second = generator.generate(
        ["a", "b"], PROMPTS[:2], [Sampling(max_new_tokens=4), Sampling(max_new_tokens=4)]
    )
    assert [len(first.token_ids), first.finish_reason, second.finish_reason] == [1, "stop", "stop"]
    generator = HFGenerator.load(checkpoints / "student", [], max_length=64)
    short, long = generator.generate(["a", "b"], PROMPTS[:2], [Sampling(max_new_tokens=2), Sampling(max_new_tokens=5)])
    assert [len(short.token_ids), len(long.token_ids), short.finish_reason] == [2, 5, "length"]


def test_ended_rows_leave_the_batch_and_the_others_go_on_as_they_would_alone(checkpoints):
    budgets, widths = [1, 2, 9, 1, 6, 1, 1], []
    generator = HFGenerator.load(checkpoints / "student", [], max_length=64, batch_size=4)
    generator.model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    prompts = [[2, 10 + row, 11][: 1 + row % 3] for row in range(7)]
    how = [Sampling(max_new_tokens=budget, seed=3) for budget in budgets]
    done = generator.generate(list("abcdefg"), prompts, how)
    assert [len(c.token_ids) for c in done] == budgets
    # prompts by length: a d g b, then e c f; ended rows are left out once a quarter of a batch has ended
    assert widths == [4, 1, 3, *[2] * 5, *[1] * 3]
    for row, completion in enumerate(done):
        [alone] = generator.generate(["abcdefg"[row]], [prompts[row]], [how[row]])
        assert alone.token_ids == completion.token_ids
        assert alone.logprobs == pytest.approx(completion.logprobs, abs=1e-5)


def test_draws_follow_the_distribution_and_its_full_vocabulary_logprob():
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]])).repeat(3, 1)
    token, logprob = _Draw([Sampling()] * 3, torch.device("cpu"))(
        logits, [0.59, 0.61, 0.95] @ torch.eye(3).double().numpy()
    )
    assert token.tolist() == [0, 1, 2]
    assert logprob.exp().tolist() == pytest.approx([0.6, 0.3, 0.1])


def test_top_p_cuts_what_is_drawn_but_not_the_logprob():
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]])).repeat(2, 1)
    noise = torch.tensor([0.999, 0.0]).double().numpy()
    token, logprob = _Draw([Sampling(top_p=0.8), Sampling(top_k=1)], torch.device("cpu"))(logits, noise)
    assert token.tolist() == [1, 0]
    assert logprob.exp().tolist() == pytest.approx([0.3, 0.6])


def test_raw_and_scaled_logprobs_of_a_half_temperature():
    logits = torch.tensor([[2.0, 0.0]])
    raw = _Draw([Sampling(temperature=1.0)], torch.device("cpu"))(logits, torch.zeros(1).double().numpy())[1]
    scaled = _Draw([Sampling(temperature=0.5)], torch.device("cpu"))(logits, torch.zeros(1).double().numpy())[1]
    assert raw.item() == pytest.approx(-0.12693, abs=1e-5) and scaled.item() == pytest.approx(-0.01815, abs=1e-5)


def trainer(path, micro_batch_size=8, lr=1e-2):
    model = load_model(path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    return HFTrainer(
        model, optimizer, lambda n: 1.0, clip_grad_norm=1.0, batch_size=8, micro_batch_size=micro_batch_size
    )


def batch() -> Batch:
    mask = [[False] * (len(ids) - 2) + [True] * 2 for ids in PROMPTS]
    return Batch.of(["a", "b", "c"], {"input_ids": PROMPTS, "token_mask": mask, "sample_mask": [True, True, True]})


def nll(counts):
    return lambda current, micro: -torch.where(micro.padded("token_mask"), current, 0.0).sum() / counts.num_tokens


def gradients(path, micro_batch_size):
    engine = trainer(path, micro_batch_size)
    counts = Counts.of(batch().padded("token_mask"), batch().tensor("sample_mask"))
    loss = engine.forward_backward(batch(), nll(counts), 1.0)
    return loss, torch.cat([p.grad.flatten() for p in engine.model.parameters()])


def test_micro_batch_split_changes_neither_loss_nor_gradient(checkpoints):
    whole, split = gradients(checkpoints / "student", 8), gradients(checkpoints / "student", 2)
    assert whole[0] == pytest.approx(split[0], abs=1e-6)
    torch.testing.assert_close(whole[1], split[1], atol=1e-6, rtol=1e-4)


def test_an_update_lowers_the_loss_and_clears_the_gradient(checkpoints):
    engine, counts = trainer(checkpoints / "student"), Counts(6, 3)
    before = engine.forward_backward(batch(), nll(counts), 1.0)
    assert engine.update().stepped and all(p.grad is None for p in engine.model.parameters())
    assert engine.forward_backward(batch(), nll(counts), 1.0) < before
    assert engine.updates == 1


def test_saved_and_restored_trainers_take_the_same_next_step(checkpoints, tmp_path):
    first, counts = trainer(checkpoints / "student"), Counts(6, 3)
    first.forward_backward(batch(), nll(counts), 1.0)
    first.update()
    first.snapshot()(tmp_path)
    second = trainer(checkpoints / "rev")
    second.restore(tmp_path)
    for engine in (first, second):
        engine.forward_backward(batch(), nll(counts), 1.0)
        engine.update()
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
    assert not list(tmp_path.glob("*.pt")) and not list(tmp_path.glob("*.bin"))


def test_a_trainer_that_starts_over_takes_the_first_step_again(checkpoints):
    engine, counts, weights = trainer(checkpoints / "student"), Counts(6, 3), []
    for _ in range(2):
        engine.forward_backward(batch(), nll(counts), 1.0)
        engine.update()
        weights.append([parameter.detach().clone() for parameter in engine.model.parameters()])
        engine.forward_backward(batch(), nll(counts), 1.0)  # a gradient that no step used
        engine.reset(checkpoints / "student")
    assert all(map(torch.equal, *weights)) and engine.updates == 0


def test_schedule_warms_up_then_falls_to_the_floor():
    shape = lr_schedule(SimpleNamespace(warmup_steps=4, decay="cosine", min_lr_ratio=0.1), max_steps=100)
    assert shape(1) == pytest.approx(0.25) and shape(4) == pytest.approx(1.0, abs=0.01)
    assert shape(101) == pytest.approx(0.1) and shape(51) == pytest.approx(
        0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.5))
    )


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(InputError, match="no config.json there"):
        load_model(tmp_path / "nowhere")


def test_longest_sequence_is_the_models_own(checkpoints):
    assert max_positions(load_model(checkpoints / "student")) == 256
