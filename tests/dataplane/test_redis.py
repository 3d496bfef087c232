"""What only a server can do to a store: fill up, evict, restart, pause, lose keys; and what stands in its keys."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dataplane import open_plane
from dataplane.backends import redis_server
from dataplane.backends.redis import RedisStorage
from dataplane.backends.redis_server import CHUNK_BYTES
from dataplane.backends.storage import BlockGone
from schemas.errors import CorruptData, InputError, StoreError, StoreLocked
from tests.dataplane.servers import Server, shared_server
from tests.dataplane.stores import pipeline
from tests.dataplane.test_claims import admit, claimed, generated


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(*getattr(request, "param", ()))
    yield server
    server.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"{shared_server().url}?prefix={tmp_path.name}"


def options(*words: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", [words], indirect=True)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7])
def test_blocks_around_the_chunk_limit_come_back_whole(url: str, size: int) -> None:
    storage = RedisStorage(url)
    data = np.random.default_rng(size).bytes(size)
    storage.write("abc", [data[:5], data[5:70], memoryview(data)[70:]])
    assert bytes(storage.view("abc")) == data
    assert storage.blocks() == {"abc": size}
    storage.delete(["abc", "nobody"])
    assert storage._client.keys(f"{storage._prefix}:b:*") == []
    storage.close()


def test_a_missing_chunk_is_corrupt_and_a_missing_block_is_gone(url: str) -> None:
    storage = RedisStorage(url)
    storage.write("abc", [bytes(2 * CHUNK_BYTES)])
    storage._client.delete(storage._chunk("abc", 1))
    with pytest.raises(CorruptData, match="1 of its 2 chunks are missing"):
        storage.view("abc")
    storage._client.delete(storage._chunk("abc", 0))
    with pytest.raises(BlockGone):
        storage.view("abc")
    storage.close()


def test_a_chunk_of_another_block_or_place_or_with_other_bytes_is_corrupt(url: str) -> None:
    storage = RedisStorage(url)
    storage.write("abc", [bytes(range(200))])
    storage.write("abd", [bytes(range(200))])
    chunk = storage._client.get(storage._chunk("abc", 0))
    for wrong in (storage._client.get(storage._chunk("abd", 0)), chunk[:-1], chunk[:-1] + b"\0", b"", chunk + b"x"):
        storage._client.set(storage._chunk("abc", 0), wrong)
        with pytest.raises(CorruptData, match="block abc: chunk 0"):
            storage.view("abc")
    storage.close()


def test_rows_whose_block_was_deleted_behind_our_back_are_lost(url: str) -> None:
    with open_plane(url) as plane:
        ids = admit(pipeline(plane), 3)
        claimed(plane, "generate").commit(generated(3))
        block = plane.blocks().column("id")[1].as_py()
        plane.storage._client.delete(plane.storage._chunk(block, 0))  # type: ignore[attr-defined]
        with pytest.raises(BlockGone, match="lost"):
            plane.get("train", ids[:1], ["input_ids"])
        assert set(plane.row_state("train").column("error").to_pylist()) == {
            f"lost: block {block!r} is not in {plane.url}: cleared meanwhile, or lost"
        }
        assert plane.claim("train", "teacher") is None


@options("--maxmemory", "12mb", "--maxmemory-policy", "noeviction")
def test_a_full_server_refuses_clearly_and_nothing_is_half_written(server: Server) -> None:
    with open_plane(server.url) as plane:
        pipeline(plane)
        with pytest.raises(StoreError, match="the server is full.*clear rows"):
            for i in range(40):
                plane.put("train", [f"s{i}"], {"input_ids": [np.arange(300_000)]})
        kept = plane.ids("train")
        assert 0 < len(kept) < 40 and len(plane.storage.blocks()) == len(kept)
        chunks = server.client().keys("*:b:*")
        assert len(chunks) == 2 * len(kept)
        assert plane.clear("train", kept[:3]) == 3
        plane.put("train", ["again"], {"input_ids": [[1, 2]]})


@options("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
def test_an_evicting_server_is_refused(server: Server) -> None:
    with pytest.raises(StoreError, match="evicts keys \\(allkeys-lru\\); set maxmemory-policy to noeviction"):
        open_plane(server.url)


def test_a_block_over_the_cap_is_refused_before_sending_with_size_and_column(url: str) -> None:
    with open_plane(f"{url}&max_block_bytes=100000") as plane:
        pipeline(plane)
        with pytest.raises(StoreError, match="200,0.. of them in column 'input_ids'.*more than the 100,000"):
            plane.put("train", ["a"], {"input_ids": [np.zeros(50_000, np.int32)], "reward": [1.0]})
        assert (plane.ids("train"), plane.storage.blocks()) == ([], {})


@options("--appendonly", "yes", "--appendfsync", "always")
def test_a_server_that_restarts_with_its_data_is_waited_for_and_applies_once(server: Server) -> None:
    with open_plane(server.url, durability="power") as plane:
        admit(pipeline(plane), 2)
        server.kill()
        back = threading.Timer(0.3, server.start)
        back.start()
        claimed(plane, "generate").commit(generated(2))
        back.join()
        assert plane.get("train", ["s1"], ["input_ids"]).values("input_ids") == [[1, 2]]
        kinds = plane.events().column("kind").to_pylist()
        assert [kinds.count(kind) for kind in ("put", "claimed", "committed")] == [1, 1, 1]


@options("--appendonly", "yes", "--appendfsync", "everysec")
def test_power_durability_needs_a_server_that_syncs_always(server: Server) -> None:
    with pytest.raises(InputError, match="appendfsync always, got everysec: a power cut would cost"):
        open_plane(server.url, durability="power")
    server.client().config_set("appendonly", "no")
    with pytest.raises(InputError, match="got none, as appendonly is no"):
        open_plane(server.url, durability="power")
    open_plane(server.url).close()


def test_an_append_sent_twice_is_applied_once(url: str) -> None:
    storage = RedisStorage(url)
    storage.lock()
    storage.append(b"first")
    storage._end = 0
    storage.append(b"first")
    storage.append(b"second")
    assert storage.journal() == b"firstsecond"
    storage.close()


def test_a_server_that_comes_back_empty_is_noticed(server: Server) -> None:
    plane, follower = pipeline(open_plane(server.url)), open_plane(server.url, mode="r")
    admit(plane, 2)
    server.kill()
    server.start()
    for what in (
        lambda: plane.put("train", ["n"], {"reward": [1.0]}),
        lambda: plane.get("train", ["s0"], ["prompt"]),
        follower.refresh,
    ):
        with pytest.raises(StoreError, match="came back empty"):
            what()
    assert plane.row_state("train").column("error").to_pylist() == [None, None]
    plane.close()
    follower.close()


def test_a_server_that_is_paused_is_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(redis_server.CONNECTION, "socket_timeout", 0.1)
    with open_plane(server.url) as plane:
        pipeline(plane)
        server.pause()
        threading.Timer(0.5, server.resume).start()
        admit(plane, 5)
        assert len(plane.ids("train")) == 5
        assert plane.events().column("kind").to_pylist().count("put") == 1


def test_a_writer_whose_place_was_taken_can_write_no_more(url: str) -> None:
    first = pipeline(open_plane(url))
    first.storage._client.connection_pool.disconnect()  # type: ignore[attr-defined]  # as after a long partition
    second = open_plane(url)
    with pytest.raises(StoreLocked, match="already open for writing by process"):
        admit(first, 1)
    assert admit(second, 2) == ["s0", "s1"]
    first.close()
    second.close()


def test_no_answer_within_the_patience_is_an_error(server: Server) -> None:
    plane = pipeline(open_plane(f"{server.url}?patience_s=0.2"))
    server.kill()
    with pytest.raises(StoreError, match=r"no answer for 0.2 s"):
        admit(plane, 1)
    server.start()


@options("--requirepass", "secret")
def test_the_password_comes_from_the_environment_or_the_url_and_is_not_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match="password into OPD_REDIS_PASSWORD"):
        open_plane(server.url)
    monkeypatch.setenv("OPD_REDIS_PASSWORD", "secret")
    with open_plane(server.url) as plane:
        assert "secret" not in plane.url


def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(InputError, match="no store here"):
        open_plane(url, mode="r")
    with pytest.raises(InputError, match="prefix"):
        open_plane(f"{shared_server().url}?prefix=a:b")
    with pytest.raises(InputError, match="got scheme 'http'"):
        open_plane("http://host")
