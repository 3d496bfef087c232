"""Random verbs, crashes and reopenings against a model in plain Python, on every backend."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dataplane import Claim, DataPlane
from dataplane.upkeep.check import check
from schemas.errors import InputError
from tests.dataplane.stores import BACKENDS, FakeClock, Store

IDS = st.lists(st.sampled_from([f"s{i}" for i in range(12)]), min_size=1, max_size=5, unique=True)
TOKENS = st.lists(st.integers(0, 99), max_size=4)


class StoreMachine(RuleBasedStateMachine):
    """``rows`` is the model: id → column → value, in the order in which the rows were made."""

    backend = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="opd-machine-"))
        self.clock = FakeClock()
        self.store = Store(BACKENDS[self.backend](self.folder), self.clock)
        self.plane: DataPlane = self.store.open()
        self.plane.create_partition("train", ["prompt", "input_ids", "reward"])
        self.plane.declare_task("train", "judge", ["input_ids"], ["reward"])
        self.rows: dict[str, dict[str, object]] = {}
        self.done: set[str] = set()
        self.failed: set[str] = set()
        self.leased: dict[str, tuple[str, float]] = {}  # by which claim, and until when
        self.claims: list[tuple[Claim, float]] = []
        self.steps: dict[int, list[str]] = {}
        self.covered = 0

    def teardown(self) -> None:
        self.plane.close()
        storage = self.store._storage()
        assert check(storage).problems == []
        shutil.rmtree(self.folder)

    # -- verbs --------------------------------------------------------------------------------------------------------

    @rule(ids=IDS, tokens=TOKENS, column=st.sampled_from(["prompt", "input_ids"]), replace=st.booleans())
    def write(self, ids: list[str], tokens: list[int], column: str, replace: bool) -> None:
        values = [[len(i), *tokens] if column == "input_ids" else f"{i}{tokens}" for i in ids]
        verb = self.plane.replace if replace else self.plane.put
        if not replace and any(column in self.rows.get(i, ()) for i in ids):
            with pytest.raises(InputError, match="is there already"):
                verb("train", ids, {column: values})
            return
        verb("train", ids, {column: values})
        for sample_id, value in zip(ids, values, strict=True):
            self.rows.setdefault(sample_id, {})[column] = value

    @rule(limit=st.integers(1, 4), lease_s=st.sampled_from([10.0, 100.0]))
    def claim(self, limit: int, lease_s: float) -> None:
        claim = self.plane.claim("train", "judge", limit=limit, lease_s=lease_s)
        ready = [i for i in self.rows if self._ready(i)][:limit]
        assert (claim.sample_ids if claim else []) == ready
        if claim is not None:
            assert claim.batch.values("input_ids") == [self.rows[i]["input_ids"] for i in ready]
            self.leased |= dict.fromkeys(ready, (claim.id, self.clock.now + lease_s))
            self.claims.append((claim, self.clock.now + lease_s))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), how=st.sampled_from(["commit", "fail", "release"]))
    def finish(self, data: st.DataObject, how: str) -> None:
        claim, until = self.claims.pop(data.draw(st.integers(0, len(self.claims) - 1)))
        ids = [i for i in claim.sample_ids if self.leased.get(i) == (claim.id, until)]
        if until <= self.clock.now or len(ids) != len(claim.sample_ids):
            claim.release()
            self._unlease(ids)
            return
        self._unlease(ids)
        if how == "commit":
            claim.commit({"reward": [float(len(i)) for i in ids]})
            self.done |= set(ids)
            for sample_id in ids:
                self.rows[sample_id]["reward"] = float(len(sample_id))
        elif how == "fail":
            claim.fail(dict.fromkeys(ids, "engine_error: drawn"))
            self.failed |= set(ids)
        else:
            claim.release()

    @rule(ids=IDS)
    def clear(self, ids: list[str]) -> None:
        sealed = {i: step for step, members in self.steps.items() for i in members}
        if any(sealed.get(i, 0) > self.covered for i in ids if i in self.rows):
            with pytest.raises(InputError, match="which no checkpoint covers"):
                self.plane.clear("train", ids)
            return
        assert self.plane.clear("train", ids) == len(set(ids) & set(self.rows))
        self._forget(ids)

    @rule(ids=IDS)
    def requeue(self, ids: list[str]) -> None:
        known = [i for i in ids if i in self.rows]
        self.plane.requeue("train", known, ["judge"])
        for sample_id in known:
            self.rows[sample_id].pop("reward", None)
        self.done -= set(known)
        self.failed -= set(known)
        self._unlease(known)

    @rule(count=st.integers(1, 6))
    def train(self, count: int) -> None:
        sealed = {i for members in self.steps.values() for i in members}
        ids = [i for i in self.rows if i not in sealed][:count]
        if ids:
            step = len(self.steps) + 1
            self.plane.seal(step, ids)
            self.plane.record_trained(step, {"loss": 0.5})
            self.steps[step] = ids

    @precondition(lambda self: self.steps)
    @rule(keep=st.sampled_from([None, None, None, 0, 2]))
    def checkpoint(self, keep: int | None) -> None:
        self.covered = max(self.steps)
        self.plane.record_checkpoint(self.covered, "c")
        self.plane.retain(steps=keep)
        for step, ids in self.steps.items():
            if keep is not None and step <= self.covered - keep:
                self._forget([i for i in ids if i in self.rows])

    @rule(seconds=st.sampled_from([1.0, 20.0]))
    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        self._unlease([i for i, (_, until) in self.leased.items() if until <= self.clock.now])

    @rule(crash=st.booleans(), snapshot=st.booleans())
    def reopen(self, crash: bool, snapshot: bool) -> None:
        if snapshot:
            self.plane._writer.snapshot(False)
        if crash:
            self.plane._write("train", ["torn"], {})
            self.plane = self.store.crash(self.plane)
        else:
            self.plane.close()
            self.plane = self.store.open()
        self.leased.clear()
        self.claims.clear()

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def reads_equal(self) -> None:
        assert self.plane.ids("train") == list(self.rows)
        found = self.plane.table("train", ["prompt", "input_ids", "reward"]).to_pylist()
        assert found == [{n: row.get(n) for n in ("prompt", "input_ids", "reward")} for row in self.rows.values()]

    @invariant()
    def counts_equal(self) -> None:
        counts = self.plane.progress("train").tasks["judge"]
        assert (counts.done, counts.claimed) == (len(self.done), len(self.leased))
        assert counts.ready == sum(map(self._ready, self.rows))

    def _ready(self, sample_id: str) -> bool:
        taken = sample_id in self.done or sample_id in self.failed or sample_id in self.leased
        return "input_ids" in self.rows[sample_id] and not taken

    def _unlease(self, ids: list[str]) -> None:
        for sample_id in ids:
            self.leased.pop(sample_id, None)

    def _forget(self, ids: list[str]) -> None:
        for sample_id in ids:
            self.rows.pop(sample_id, None)
        self.done -= set(ids)
        self.failed -= set(ids)
        self._unlease(ids)
        self.steps = {step: [i for i in members if i not in ids] for step, members in self.steps.items()}


@pytest.mark.parametrize(("backend", "examples"), [("memory", 120), ("local", 20), ("redis", 10)])
def test_random_verbs_and_crashes_agree_with_the_model(backend: str, examples: int) -> None:
    machine = type("Machine", (StoreMachine,), {"backend": backend})
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    how = settings(max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=quiet)
    run_state_machine_as_test(machine, settings=how)
