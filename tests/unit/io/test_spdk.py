"""Bdev and controller made in a target: what is there is left alone, refusals and slow answers end, a restart is mended."""

from __future__ import annotations

import errno
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from tests.unit.io.fake_spdk import FakeSpdk

from halfstep.daemon.log import Log
from halfstep.daemon.spdk import Keeper, check_socket
from halfstep.errors import ConfigError, DeviceError, ProtocolError, Unavailable
from halfstep.io.spdk.config import SpdkConfig, config_of, read_config
from halfstep.io.spdk.rpc import ANSWER_BYTES_MAX
from halfstep.io.spdk.target import Target


@pytest.fixture
def config(tmp_path: Path) -> SpdkConfig:
    (tmp_path / "drive").write_bytes(b"")
    return SpdkConfig("hs0", "uring", str(tmp_path / "drive"), "halfstep.0", rpc_socket=str(tmp_path / "s"), cpumask="0x2")


@pytest.fixture
def spdk(tmp_path: Path) -> Iterator[FakeSpdk]:
    one = FakeSpdk(tmp_path / "s", tmp_path)
    one.start()
    yield one
    one.stop()


def test_what_is_missing_is_made_once(spdk: FakeSpdk, config: SpdkConfig) -> None:
    target = Target(config)
    assert target.state() is None
    made = target.ensure()
    assert made.made == ("bdev_uring_create", "vhost_create_blk_controller")
    assert (made.bdev, made.block_bytes, made.blocks, made.cpumask) == ("hs0", 4096, 1 << 16, "0x2")
    assert made.socket == str(spdk.directory / "halfstep.0")
    assert target.ensure().made == ()
    assert target.state() == replace(made, made=())


@pytest.mark.parametrize(("kind", "bdev"), [("aio", "hs0"), ("uring", "hs0"), ("nvme", "hs0n1")])
def test_each_kind_of_bdev_is_taken(spdk: FakeSpdk, config: SpdkConfig, kind: Any, bdev: str) -> None:
    source = "0000:01:00.0" if kind == "nvme" else config.source
    found = Target(replace(config, kind=kind, source=source)).ensure()
    assert found.bdev == bdev
    assert ("percentage_used" in found.drive) == (kind == "nvme")


def test_what_is_there_otherwise_is_refused_and_left_alone(spdk: FakeSpdk, config: SpdkConfig) -> None:
    Target(config).ensure()
    with pytest.raises(ConfigError, match="is of bdev 'hs0', and 'other' is wanted"):
        Target(replace(config, bdev="other")).ensure()
    with pytest.raises(ConfigError, match="has blocks of 4096 bytes, and block_bytes=512 is wanted"):
        Target(replace(config, block_bytes=512)).ensure()
    assert spdk.controllers["halfstep.0"]["backend_specific"]["block"]["bdev"] == "hs0"
    assert not [one for one in spdk.methods() if "delete" in one or "detach" in one]


def test_a_refusal_says_what_was_refused_and_by_whom(spdk: FakeSpdk, config: SpdkConfig) -> None:
    with pytest.raises(ConfigError, match=r"refuses bdev hs0 of /nowhere: No such file or directory \(-2\)"):
        Target(replace(config, source="/nowhere")).ensure()
    spdk.lacks = {"bdev_uring_create"}
    with pytest.raises(ConfigError, match=r"has no bdev_uring_create: .*--with-uring"):
        Target(config).ensure()
    spdk.lacks = {"vhost_get_controllers"}
    with pytest.raises(ConfigError, match=r"has no vhost_get_controllers: .*--with-vhost"):
        Target(config).ensure()


def test_another_who_makes_the_same_at_the_same_time_is_no_error(spdk: FakeSpdk, config: SpdkConfig) -> None:
    def first(stream: socket.socket, asked: dict[str, Any]) -> None:
        del spdk.answers["bdev_uring_create"]
        spdk._add("hs0")
        error = {"code": -errno.EEXIST, "message": "File exists"}
        stream.sendall(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}).encode())

    spdk.answers["bdev_uring_create"] = first
    assert Target(config).ensure().made == ("vhost_create_blk_controller",)


def test_a_target_that_does_not_answer_costs_its_deadline(spdk: FakeSpdk, config: SpdkConfig) -> None:
    go_on = threading.Event()
    spdk.answers["bdev_get_bdevs"] = lambda _stream, _asked: go_on.wait(30) and None
    with pytest.raises(Unavailable, match=r"no answer to bdev_get_bdevs within 0.2 s; .*raise deadline_s"):
        Target(replace(config, deadline_s=0.2)).ensure()
    go_on.set()


def test_an_answer_that_trickles_in_is_bounded_by_the_clock(spdk: FakeSpdk, config: SpdkConfig) -> None:
    ended = threading.Event()

    def trickle(stream: socket.socket, _asked: dict[str, Any]) -> None:
        try:
            while not ended.wait(0.01):
                stream.sendall(b" ")
        except OSError:  # the client has gone
            ended.set()

    spdk.answers["bdev_get_bdevs"] = trickle
    with pytest.raises(Unavailable, match=r"within 0\.3 s"):
        Target(replace(config, deadline_s=0.3)).ensure()
    assert ended.wait(30), "the connection is left open"


def test_an_answer_in_pieces_is_put_together(spdk: FakeSpdk, config: SpdkConfig) -> None:
    def pieces(stream: socket.socket, asked: dict[str, Any]) -> None:
        answer = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"version": "ä}" * 200}}, ensure_ascii=False)
        for byte in answer.encode():
            stream.sendall(bytes([byte]))

    spdk.answers["spdk_get_version"] = pieces
    assert Target(config).ensure().version == "ä}" * 200


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n}",
        b'{"jsonrpc": "2.0", "id": 77, "result": {}}',
        b'{"jsonrpc": "2.0", "id": 1}',
        b"{" * (ANSWER_BYTES_MAX + 1),
        b'{"a":' * 100_000 + b"}",
    ],
)
def test_what_is_no_answer_is_no_spdk(spdk: FakeSpdk, config: SpdkConfig, said: bytes) -> None:
    def send(stream: socket.socket, _asked: dict[str, Any]) -> None:
        try:
            stream.sendall(said)
        except OSError:  # enough was sent
            return

    spdk.answers["bdev_get_bdevs"] = send
    with pytest.raises((ProtocolError, Unavailable), match=r"is it SPDK|ended the connection|neither result nor error"):
        Target(config).ensure()


def test_an_error_of_the_target_itself_is_told(spdk: FakeSpdk, config: SpdkConfig) -> None:
    def broken(stream: socket.socket, asked: dict[str, Any]) -> None:
        stream.sendall(json.dumps({"id": asked["id"], "error": {"code": -5, "message": "Input/output error"}}).encode())

    spdk.answers["bdev_get_bdevs"] = broken
    with pytest.raises(DeviceError, match=r"bdev_get_bdevs: Input/output error \(-5\); look at the target's log"):
        Target(config).ensure()


def test_a_target_that_restarts_is_set_up_again_and_each_trouble_told_once(spdk: FakeSpdk, config: SpdkConfig) -> None:
    said = StringIO()
    target = Target(config)
    target.ensure()
    keeper = Keeper(target, Log(said))
    keeper.look()
    assert said.getvalue() == ""
    spdk.stop()
    for _ in range(3):
        keeper.look()
    assert said.getvalue().count("start the target") == 1
    spdk.start()
    keeper.look()
    keeper.look()
    assert said.getvalue().count("made again by bdev_uring_create, vhost_create_blk_controller") == 1
    assert list(spdk.controllers) == ["halfstep.0"]


def test_health_of_target_and_drive_is_beside_the_daemons_own_samples(spdk: FakeSpdk, config: SpdkConfig) -> None:
    said = StringIO()
    spdk.health = {"percentage_used": 3, "media_errors": 2}
    keeper = Keeper(Target(replace(config, kind="nvme", source="0000:01:00.0")), Log(said))
    own = {"counters": [("a_total", {"op": "read"}, 7.0)], "gauges": [], "latencies": []}
    snapshot = keeper.beside(lambda: own)

    def samples() -> dict[str, float]:
        both = snapshot()
        return {name: value for kind in ("counters", "gauges") for name, _, value in both[kind]}

    assert samples() == {"a_total": 7, "halfstep_spdk_made_again_total": 0, "halfstep_spdk_answers": 1}
    keeper.look()
    wanted = {"made_again_total": 1, "answers": 1, "drive_media_errors_total": 2, "drive_used_ratio": 0.03}
    assert samples() == {"a_total": 7} | {f"halfstep_spdk_{name}": value for name, value in wanted.items()}
    assert "media errors" not in said.getvalue(), "those of before are no news"
    spdk.health["media_errors"] = 5
    keeper.look()
    keeper.look()
    assert said.getvalue().count("5 media errors, 3 of them new") == 1
    spdk.health = {"percentage_used": "much", "media_errors": -1}
    keeper.look()
    assert set(samples()) == {"a_total", "halfstep_spdk_made_again_total", "halfstep_spdk_answers"}
    spdk.stop()
    keeper.look()
    assert samples()["halfstep_spdk_answers"] == 0
    spdk.start()
    keeper.look()
    assert (samples()["halfstep_spdk_answers"], samples()["halfstep_spdk_made_again_total"]) == (1, 2)
    assert own["counters"] == [("a_total", {"op": "read"}, 7.0)]


def test_a_store_on_another_socket_than_the_controllers_is_refused(spdk: FakeSpdk, config: SpdkConfig) -> None:
    state = Target(config).ensure()
    check_socket(f"vhost-user:{state.socket}", state)
    with pytest.raises(ConfigError, match=f"listens at {state.socket}; name that"):
        check_socket("vhost-user:/run/other", state)


def test_a_file_of_settings_is_read(tmp_path: Path) -> None:
    path = tmp_path / "spdk.toml"
    path.write_text(
        'rpc_socket = "/run/spdk.sock"\ndeadline_s = 5\n[bdev]\nname = "hs0"\nkind = "aio"\nsource = "/dev/sdb"\n'
        'block_bytes = 4096\n[controller]\nname = "halfstep.0"\ncpumask = "[1,2]"\n'
    )
    assert read_config(path) == SpdkConfig("hs0", "aio", "/dev/sdb", "halfstep.0", "/run/spdk.sock", 5.0, 4096, "[1,2]")


GOOD: dict[str, Any] = {"bdev": {"name": "hs0", "source": "/dev/sdb"}, "controller": {"name": "c0"}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bdev": None}, r"bdev=None: must be a table"),
        ({"port": 1}, "port=1: there is no such key"),
        ({"bdev.mode": "x"}, "bdev.mode='x': there is no such key; there are block_bytes, kind, name, source"),
        ({"bdev.name": ""}, "bdev.name='': is missing"),
        ({"bdev.name": "a b"}, "bdev.name='a b': must be of letters"),
        ({"bdev.name": 7}, "bdev.name=7: is of the wrong type"),
        ({"bdev.kind": "malloc"}, "must be one of aio, uring, nvme"),
        ({"bdev.source": "sdb"}, "must be a whole path"),
        ({"bdev.kind": "nvme"}, "must be an address on PCIe"),
        ({"bdev.block_bytes": 1000}, "must be 512 or 4096"),
        ({"deadline_s": 0}, "deadline_s=0.0: must be 0.1 to 600"),
        ({"deadline_s": True}, "is of the wrong type"),
        ({"controller.cpumask": "all"}, "must be a mask such as 0x6"),
        ({"controller.name": "../c"}, "must be of letters"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_bound(change: dict[str, Any], says: str) -> None:
    told = json.loads(json.dumps(GOOD))
    for key, value in change.items():
        table, _, name = key.rpartition(".")
        if table:
            told[table][name] = value
        else:
            told[name] = value
    with pytest.raises(ConfigError, match="spdk=f: ") as refused:
        config_of(told, "f")
    assert says in str(refused.value)


def test_what_is_no_file_of_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_config(tmp_path / "gone")
    (tmp_path / "bad").write_text("[bdev\n")
    with pytest.raises(ConfigError, match="is no TOML"):
        read_config(tmp_path / "bad")
