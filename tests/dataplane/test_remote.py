"""Another process on the same plane: ends, tokens, sockets. What the verbs do there is the contract suite's."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dataplane import DataPlane, connect, open_plane
from dataplane.plane_reader import GUEST_OPEN
from dataplane.serving.remote import RemoteHost
from dataplane.serving.wire import value_of
from schemas.errors import InputError, MissingRows, StoreError
from tests.dataplane.stores import pipeline
from tests.dataplane.test_claims import admit, claimed


@pytest.fixture
def host(tmp_path: Path) -> DataPlane:
    return pipeline(open_plane(tmp_path / "plane"))


def until(true: object, timeout_s: float = 10.0) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if true():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


def test_a_connection_that_ends_gives_its_claims_back(host: DataPlane) -> None:
    admit(host, 3)
    guest = connect(host.address)
    assert claimed(guest, "generate", limit=2).sample_ids == ["s0", "s1"]
    assert host.progress("train").tasks["generate"].claimed == 2
    guest.close()
    assert until(lambda: host.progress("train").tasks["generate"].ready == 3)
    host.close()


def test_a_killed_worker_gives_its_claims_back_before_the_lease_ends(host: DataPlane) -> None:
    admit(host, 2)
    code = "import sys; from dataplane import connect; p = connect(sys.argv[1]); p.claim('train', 'generate'); "
    code += "print('claimed', flush=True); input()"
    command = [sys.executable, "-c", code, host.address]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert worker.stdout is not None and worker.stdin is not None
    assert worker.stdout.readline() == b"claimed\n"
    worker.kill()
    worker.wait()
    worker.stdout.close()
    worker.stdin.close()
    assert until(lambda: host.progress("train").tasks["generate"].ready == 2)
    host.close()


def test_the_unix_socket_is_the_users_own_and_goes_with_the_plane(host: DataPlane) -> None:
    socket = Path(host.address.removeprefix("unix://"))
    assert stat.S_IMODE(os.stat(socket).st_mode) == 0o600
    host.close()
    assert not socket.parent.exists()


def test_tcp_takes_the_token_and_nothing_else(host: DataPlane) -> None:
    address = host.serve(tcp="127.0.0.1")
    admit(host, 1)
    with connect(address) as guest:
        assert guest.get("train", ["s0"], ["prompt"]).values("prompt") == ["s0"]
    for wrong in (address[:-3], address.split("?")[0]):
        with pytest.raises(InputError, match="token is wrong"):
            connect(wrong)
    host.close()


def test_a_guest_of_a_plane_that_ended_is_told_so(host: DataPlane) -> None:
    guest = connect(host.address)
    host.close()
    with pytest.raises(StoreError, match="is gone"):
        guest.ids("train")
    with pytest.raises(StoreError, match="no plane answers"):
        connect(guest.address)
    guest.close()


def test_a_plane_in_memory_is_not_for_other_processes() -> None:
    with open_plane("memory://") as host, pytest.raises(InputError, match="in its own memory"):
        connect(host.address)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="expected unix:///path or tcp://host:port"):
        connect("runs/demo")


def test_methods_that_are_not_offered_are_refused(host: DataPlane) -> None:
    remote = RemoteHost(host.address)
    with pytest.raises(AttributeError):
        remote.storage_close  # noqa: B018
    with pytest.raises(InputError, match="no method '_write'"):
        value_of("ids", remote._exchange(["_write", [1]], "a test"))
    with pytest.raises(StoreError, match="Expected `str`"):
        value_of("ids", remote._exchange(["ids", [5]], "a test"))
    remote.close()
    host.close()


def test_missing_rows_cross_with_what_is_missing(host: DataPlane) -> None:
    with connect(host.address) as guest, pytest.raises(MissingRows) as caught:
        guest.get("train", ["nobody"], ["prompt"])
    assert caught.value.missing == {"nobody": ["prompt"]}
    host.close()


def test_a_guest_waits_for_news_while_its_other_threads_work(host: DataPlane) -> None:
    guest = connect(host.address)
    before = guest.position()
    got: list[int] = []
    waiting = threading.Thread(target=lambda: got.append(guest.wait(before, 30.0)))
    waiting.start()
    assert guest.ids("train") == []
    host.put("train", ["a"], {"reward": [1.0]})
    waiting.join()
    assert got == [before + 1]
    guest.close()
    host.close()


def test_a_guest_waits_until_rows_are_ready_for_one_of_its_tasks(host: DataPlane) -> None:
    guest = connect(host.address)
    got: list[list[int]] = []
    tasks = [("train", "train"), ("train", "generate")]
    waiting = threading.Thread(target=lambda: got.append(guest.wait_ready(tasks, 30.0)))
    waiting.start()
    host.event("nothing to do with it")
    admit(host, 1)
    waiting.join()
    claimed(host, "generate")
    assert got == [[1]] and guest.wait_ready(tasks, 0.0) == []
    guest.close()
    host.close()


def test_a_guest_keeps_no_more_than_a_few_blocks_open(host: DataPlane) -> None:
    names = [f"s{number}" for number in range(GUEST_OPEN + 5)]
    for number, name in enumerate(names):
        host.put("train", [name], {"reward": [number / 2]})
    guest = connect(host.address)
    rewards = [guest.get("train", [name], ["reward"]).values("reward")[0] for name in names]
    assert rewards == [number / 2 for number in range(len(names))]
    assert len(guest._reader._open) == GUEST_OPEN and len(guest._reader._checked) == GUEST_OPEN
    guest.close()
    host.close()
