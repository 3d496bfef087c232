"""A student of 135 million parameters with a BPE tokenizer and a chat template: ``python -m benchmarks.real_size``.

The architecture is a published one (30 layers of 576, 9 heads over 3, 49,152 ids, tied head), the weights random with
logits as sharp as a language model's. Distilled from itself, every advantage must be rounding; perturbed, it must come
back to its teacher. Prints what it measured, memory beside what ``--dry-run`` plans, and fails where it does not hold.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.flat_run import tree
from dataplane import open_plane
from schemas.config.recipe import load_recipe
from workers.planning.plan import plan

FOLDER = Path("runs/real_size")
END, TURN = "<|im_end|>", "<|im_start|>"
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
IDS = 49_152
#: Factor on the last norm: logits then spread as a trained model's do.
SHARPNESS = 6.0
#: Noise on the perturbed student's weights, as a share of their own spread.
NOISE = 0.1
#: Largest advantage that the batch shapes of two processes explain.
ROUNDING = 1e-4
#: Exact KL that must be left after the last step, as a share of the first.
LEFT = 0.5

RECIPE = """
data:
  train: [{{path: {folder}/prompts.jsonl}}]
  validation: [{{path: {folder}/held_out.jsonl}}]
policy: {{model: {folder}/{student}, max_total_sequence_length: 128, logprob_batch_size: 4, train_micro_batch_size: 2}}
generator: {{batch_size: 8, sampling: {{max_new_tokens: 24}}}}
trainer:
  gradient_checkpointing: true
  optimizer: {{lr: {lr}, betas: [0.9, 0.98]}}
grpo: {{num_prompts_per_step: 8, max_num_steps: {steps}, async_grpo: {{enabled: false}}}}
on_policy_distillation:
  enabled: true
  teacher_model_by_agent_name: {{chat: {folder}/teacher}}
  full: {{enabled: {full}}}
validation: {{period: {steps}, exact_kl_rows: 8}}
checkpointing: {{period: {steps}}}
"""


def build() -> None:
    """Teacher, the student that it is, a perturbed one, and prompts."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path("docs").glob("*.md"))]
    tokenizer = bpe(texts)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=IDS,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    with torch.no_grad():
        model.model.norm.weight *= SHARPNESS
    save(model, tokenizer, "teacher")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += NOISE * parameter.std() * torch.randn_like(parameter)
    save(model, tokenizer, "perturbed")
    lines = [line for text in texts for line in text.splitlines() if 40 < len(line) < 100]
    for name, some in (("prompts", lines[:64]), ("held_out", lines[64:72])):
        rows = [json.dumps({"messages": [{"role": "user", "content": line}], "agent": "chat"}) for line in some]
        (FOLDER / f"{name}.jsonl").write_text("\n".join(rows) + "\n")


def bpe(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer learnt from *texts*, filled up to the model's ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=IDS, special_tokens=[END, TURN], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([f"<|filler_{index}|>" for index in range(IDS - tokenizer.get_vocab_size())])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = TEMPLATE
    return fast


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, name: str) -> None:
    model.save_pretrained(FOLDER / name)
    tokenizer.save_pretrained(FOLDER / name)


def run(name: str, student: str, steps: int, lr: float, full: bool) -> tuple[Path, dict[str, int]]:
    """Run the recipe on Ray; the run's directory, and the largest resident memory of each role in bytes."""
    recipe, directory = FOLDER / f"{name}.yaml", FOLDER / name
    recipe.write_text(RECIPE.format(folder=FOLDER, student=student, steps=steps, lr=lr, full=str(full).lower()))
    shutil.rmtree(directory, ignore_errors=True)
    command = [sys.executable, "-m", "workers.cli.app", "run", str(recipe), "--run-dir", str(directory)]
    job, peaks = subprocess.Popen(command), dict[int, int]()
    while job.poll() is None:
        peaks |= {pid: peak for pid in tree(job.pid) if (peak := _peak(pid))}
        time.sleep(1)
    if job.returncode:
        sys.exit(job.returncode)
    started = ask(directory, "select worker, detail->>'pid' from events where kind = 'worker_started'")
    return directory, {str(worker): peaks[int(pid)] for worker, pid in started}


def _peak(pid: int) -> int:
    """The most that process *pid* ever had resident, in bytes; 0 when it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def ask(directory: Path, sql: str) -> list[tuple[Any, ...]]:
    with open_plane(str(directory / "plane"), mode="r") as plane:
        return [tuple(row.values()) for row in plane.sql(sql).to_pylist()]


def main() -> None:
    if not (FOLDER / "held_out.jsonl").exists():
        build()
    own, _ = run("self", "teacher", steps=1, lr=1e-6, full=False)
    [(worst, tokens)] = ask(own, "select max(abs(advantage)), count(*) from tokens where trained")
    print(f"self-distillation: largest advantage {worst:g} over {tokens} tokens")
    back, peaks = run("back", "perturbed", steps=12, lr=1e-6, full=True)
    kl = [value for (value,) in ask(back, "select (detail->>'exact_kl')::double from events where kind = 'validated'")]
    print(f"perturbed: exact KL {kl[0]:.3f} -> {kl[-1]:.3f} nats a token in 12 steps")
    planned = {role.name: role.memory.host_bytes for role in plan(load_recipe(str(FOLDER / "back.yaml"))).roles}
    for name, peak in peaks.items():
        print(f"{name}: planned {planned[name] / 2**30:.2f} GB, used {peak / 2**30:.2f} GB")
    over = [name for name, peak in peaks.items() if peak > planned[name]]
    if worst > ROUNDING or not kl[-1] < LEFT * kl[0] or over:
        sys.exit(
            f"expected no advantage beyond {ROUNDING:g}, less than {LEFT:g} of the KL left, and no more memory than "
            f"planned; {worst:g}, {kl[-1] / kl[0]:.2f}, over: {', '.join(over) or 'none'}"
        )


if __name__ == "__main__":
    main()
