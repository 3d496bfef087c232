"""Two ranks of the torch trainer against one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from schemas.batch import Batch
from schemas.config import ClippedPGLossConfig
from stages.losses.counts import Counts
from stages.losses.reduce import Loss
from stages.objectives import judge
from stages.objectives.policy_gradient import PolicyGradient
from stages.protocols import Ask
from stages.train import Train
from tests.stages.fakes import PosLM
from tests.workers.spawned import on_ranks
from workers.engines.hf.model import load_model, recompute_activations
from workers.engines.hf.scorer import HFScorer
from workers.engines.hf.trainer import HFTrainer
from workers.ranks import ALONE, Ranks, meet, meeting_point

SEQUENCES = [[2, 10, 11, 1, 3], [2, 12, 1, 3], [2, 10, 13, 14, 15, 1, 3], [2, 9, 3], [5, 6, 7, 8, 9, 10, 11, 12, 3]]


def exchange(ranks: Ranks) -> list[object]:
    shared = ranks.share(b"from the leader" if ranks.leader else b"not mine")
    return [
        shared.decode(),
        ranks.share().decode(),
        [m.decode() for m in ranks.gather(b"ab" * ranks.rank)],
        ranks.leader,
    ]


def test_the_leaders_message_and_messages_of_unequal_length_reach_every_rank(tmp_path):
    first, second, third = on_ranks(3, tmp_path, exchange)
    assert first == ["from the leader", "", ["", "ab", "abab"], True]
    assert second == third == [*first[:3], False]


def test_a_process_on_its_own_hears_itself():
    assert ALONE.share(b"x") == b"x" and ALONE.gather(b"x") == [b"x"] and ALONE.leader


def test_ranks_meet_on_the_given_address_only():
    store, port = meeting_point("127.0.0.1")
    store.set("key", "value")
    assert meet("127.0.0.1", port).get("key") == b"value"
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    assert [line.split()[1] for line in listening.splitlines() if f":{port:04X} " in line and " 0A " in line] == [
        f"0100007F:{port:04X}"
    ]


class MeanNLL:
    """A loss of log-probs alone, each row's share of it known."""

    reads = ("input_ids", "token_mask", "sample_mask")

    def __call__(self, engine, batch: Batch, counts: Counts) -> list[Loss]:
        results: list[Loss] = []

        def loss(current, micro):
            rows = -(current * micro.padded("token_mask")).sum(1) / counts.num_tokens
            metrics = {"nll": float(rows.detach().sum()), "longest_max": float(micro.lengths().max())}
            results.append(Loss(rows.sum(), metrics, rows.detach()))
            return results[-1].loss

        engine.forward_backward(batch, loss, 1.0)
        return results


def trainer(path: str, ranks: Ranks = ALONE, tokens: int | None = None, recompute: bool = False) -> HFTrainer:
    model = load_model(path)
    if recompute:
        recompute_activations(model)
    return HFTrainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        lambda n: 1.0,
        clip_grad_norm=0.5,
        batch_size=2,
        micro_batch_size=2,
        batch_tokens=tokens,
        ranks=ranks,
    )


def batch() -> Batch:
    masks = [[False] * 2 + [True] * (len(ids) - 2) for ids in SEQUENCES]
    return Batch.of(
        [f"r{row}" for row in range(len(SEQUENCES))],
        {"input_ids": SEQUENCES, "token_mask": masks, "sample_mask": [True, True, False, True, True]},
    )


def train_twice(ranks: Ranks, path: str, out: str, tokens: int | None = None) -> list[object]:
    engine = trainer(path, ranks, tokens)
    stage = Train(engine, MeanNLL())
    outputs = [stage(batch()) for _ in range(2)]
    save_file(engine.weights(), f"{out}.{ranks.rank}")
    return [[o.columns["loss"].tolist(), dict(o.metrics)] for o in outputs]


@pytest.mark.parametrize("tokens", [None, 12])
def test_two_ranks_take_the_steps_of_one(checkpoints, tmp_path, tokens):
    path = str(checkpoints / "student")
    alone = train_twice(ALONE, path, str(tmp_path / "alone"), tokens)
    first, second = on_ranks(2, tmp_path / "two", train_twice, path, str(tmp_path / "rank"), tokens)
    assert first == second
    for (losses, metrics), (losses_alone, metrics_alone) in zip(first, alone, strict=True):
        assert losses == pytest.approx(losses_alone, abs=1e-6)
        metrics.pop("padding_share"), metrics_alone.pop("padding_share")  # each cuts its own rows
        assert metrics == pytest.approx(metrics_alone, rel=1e-4)
    weights = [load_file(tmp_path / name) for name in ("alone.0", "rank.0", "rank.1")]
    for name, expected in weights[0].items():
        torch.testing.assert_close(weights[1][name], expected, atol=1e-5, rtol=1e-3)
        assert torch.equal(weights[1][name], weights[2][name])


def test_what_is_stored_for_a_token_meets_that_token_in_the_loss_of_packed_rows(checkpoints):
    engine = trainer(str(checkpoints / "student"), tokens=12)
    rows = [[5, 6, 7, *response] for response in ([8], [8, 9], [8, 9, 10, 11, 12])]
    stored = PosLM().logprobs(rows, 1.0)  # -3.008, then -4.009, … at the responses: a shift by one shows
    current = engine.logprobs(rows, 1.0)
    expected = [-float((a * lp)[3:].sum()) / 8 for a, lp in zip(stored, current, strict=True)]
    zeros = [[0.0] * len(ids) for ids in rows]
    columns = {"input_ids": rows, "token_mask": [[at > 2 for at in range(len(ids))] for ids in rows]}
    columns |= {"sample_mask": [True] * 3, "advantages": [values.tolist() for values in stored]}
    columns |= {"generation_logprobs": zeros, "student_logprobs": zeros}
    stage = Train(engine, PolicyGradient(ClippedPGLossConfig(disable_ppo_ratio=True)))
    assert stage(Batch.of(["a", "b", "c"], columns)).columns["loss"].tolist() == pytest.approx(expected, abs=1e-4)


def train_one_row(ranks: Ranks, path: str) -> list[object]:
    """A step of one row, of which five tokens are trained: all but one of the ranks have none."""
    engine, row = trainer(path, ranks), Batch.of(["r"], {"input_ids": [[2, 10, 13, 14, 15, 1, 3]]})
    masks = {"token_mask": [[False] * 2 + [True] * 5], "sample_mask": [True]}
    output = Train(engine, MeanNLL())(row.with_columns(masks))
    return [engine.micro_batches([7]), output.metrics["loss"], output.metrics["grad_norm"]]


def test_a_rank_with_no_token_beside_one_with_five_takes_the_step_of_the_five(checkpoints, tmp_path):
    path = str(checkpoints / "student")
    _, *alone = train_one_row(ALONE, path)
    found = on_ranks(2, tmp_path, train_one_row, path)
    assert sorted(rows for rows, *_ in found) == [[], [[0]]] and alone[1] > 0
    assert [step for _, *step in found] == [pytest.approx(alone, rel=1e-5)] * 2


def test_a_step_that_trains_nothing_takes_no_optimizer_step(checkpoints):
    engine = trainer(str(checkpoints / "student"))
    Train(engine, MeanNLL())(batch())  # from here on the optimizer moves weights even without a gradient
    before = [parameter.detach().clone() for parameter in engine.model.parameters()]
    nothing = Train(engine, MeanNLL())(batch().with_columns({"sample_mask": [False] * 5}))
    assert [nothing.metrics[name] for name in ("optimizer_steps", "loss", "grad_norm")] == [0, 0.0, 0.0]
    assert engine.updates == 1 and all(map(torch.equal, before, engine.model.parameters()))


def score_all(ranks: Ranks, path: str) -> list[object]:
    engine = HFScorer.load(path, batch_size=2, ranks=ranks)
    masks = [[True] * len(ids) for ids in SEQUENCES]
    scores = engine.score(SEQUENCES, masks, 1.0, Ask(payload="hidden_states", top_k=3))
    return [
        [values.tolist() for values in engine.logprobs(SEQUENCES, 0.7)],
        [[s.logprobs.tolist(), s.payload.tolist(), s.top.ids.tolist(), s.top.logsumexp.tolist()] for s in scores],
        [logits[-1].tolist() for logits in engine.logits(SEQUENCES[:1])],
    ]


def test_scores_spread_over_ranks_come_back_whole_and_in_order(checkpoints, tmp_path):
    path = str(checkpoints / "student")
    first, second = on_ranks(2, tmp_path, score_all, path)
    assert first == second
    torch.testing.assert_close(_flat(first), _flat(score_all(ALONE, path)), atol=1e-5, rtol=1e-5)


def _flat(values: object) -> torch.Tensor:
    if isinstance(values, list):
        return torch.cat([_flat(value) for value in values]) if values else torch.zeros(0)
    return torch.tensor([float(values)])  # type: ignore[arg-type]


def test_recomputed_activations_change_no_gradient_and_nothing_is_dropped(checkpoints):
    plain, again = trainer(str(checkpoints / "student")), trainer(str(checkpoints / "student"), recompute=True)
    for engine in (plain, again):
        judge(MeanNLL(), engine, batch(), Counts(20, 4))
    torch.testing.assert_close(again.take_gradient(), plain.take_gradient(), rtol=1e-5, atol=1e-8)


def test_the_share_of_padding_is_told_and_a_token_budget_lowers_it(checkpoints):
    # widths 5, 7, 9 for rows of 5 + 4, 7 + 3 and 9; sorted within 12 tokens: (3, 4), 5, 7, 9
    shares = [
        Train(trainer(str(checkpoints / "student"), tokens=tokens), MeanNLL())(batch()).metrics["padding_share"]
        for tokens in (None, 12)
    ]
    assert shares == pytest.approx([1 - 28 / 33, 1 - 28 / 29])
