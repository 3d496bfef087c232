"""Supervised fine-tuning of the proxy models on question and answer pairs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from workers.engines.hf.model import pad_right

#: One batch of (prompt, answer) texts.
NextBatch = Callable[[], list[tuple[str, str]]]

PEAK_LR, BETAS, WEIGHT_DECAY, WARMUP, FLOOR, CLIP = 5e-3, (0.9, 0.98), 0.01, 20, 0.05, 1.0


def fine_tune(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    next_batch: NextBatch,
    steps: int,
    on_step: Callable[[float], None] = lambda loss: None,
) -> None:
    """*steps* updates of AdamW with cosine decay; the loss is on the answer and its end token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=BETAS, weight_decay=WEIGHT_DECAY)
    model.train()
    for step in range(steps):
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = PEAK_LR * min(1.0, (step + 1) / WARMUP) * (FLOOR + (1 - FLOOR) * cosine)
        loss = _loss(model, tokenizer, next_batch())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        on_step(loss.item())
    model.eval()


def _loss(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> torch.Tensor:
    prompts = [chat_ids(tokenizer, [{"role": "user", "content": prompt}]) for prompt, _ in pairs]
    answers = [[*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id] for _, answer in pairs]
    ids, _ = pad_right([p + a for p, a in zip(prompts, answers, strict=True)], model.device)
    labels = torch.full_like(ids, -100)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    logits = model(input_ids=ids).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def chat_ids(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]) -> list[int]:
    """Prompt token ids of a chat, up to where the assistant speaks."""
    encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
    return list(encoded["input_ids"])
