"""`halfstep compress analyse NAMESPACE`: what is in a running daemon, sampled, with the layouts that the daemon tells."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.integration.commands import PATIENT
from tests.wire.frames import Kind as Tlv
from tests.wire.frames import Op, frame, tlv

import halfstep
from halfstep.client.entries import Stock, stocks_of
from halfstep.client.layout_question import ask_layout
from halfstep.errors import ProtocolError, Unavailable
from halfstep.layout import Layout
from halfstep.tier import Kind, KVLayout
from halfstep.tools.compress import stored

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "halfstep.tools.cli", "compress", "analyse"]
TOKENS, HEADS, DIMENSIONS, LAYERS = 16, 2, 64, 3
CODED = KVLayout("m", "r", "bfloat16", TOKENS, (Kind("full", tuple(range(LAYERS)), HEADS, (128, 128)),), codec="bfx")
PLAIN = KVLayout("m", "r", "bfloat16", TOKENS, (Kind("full", tuple(range(LAYERS)), HEADS, (128, 128)),))

# What a daemon might say: its Final of Hello, and answers to the question.
UNSUPPORTED = struct.pack("<HHIIIBBH", 0xFFFF, 0, 1, 0, 1, 6, 0, 51)


def final(request_id: int, body: bytes, **lies: int) -> bytes:
    return frame(Op.FINAL, request_id, body, **lies)


WELCOME = final(1, tlv(Tlv.HELLO_SERVER, bytes(80)))


def analyse(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def blocks(count: int) -> np.ndarray:
    """uint16 [count, values] of bf16, smaller with each layer."""
    shape = (count, LAYERS, 2, HEADS, TOKENS, DIMENSIONS)
    values = np.random.default_rng(3).standard_normal(shape) / (1 + np.arange(LAYERS))[:, None, None, None, None]
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).reshape(count, -1)


@pytest.fixture
def filled(daemon: Any) -> Iterator[str]:
    """The URL of a namespace with 6 coded and 5 plain blocks of KV and one of unknown make."""
    url = f"{daemon.url}/analysed"
    with halfstep.connect(daemon.url, required=True, **PATIENT) as operator:
        operator.admin.create_namespace("analysed")
    with halfstep.connect(url, codecs=("bfx",), coding="always", required=True, **PATIENT) as client:
        source = blocks(11)
        keys = [b"kv-%d" % i for i in range(11)]
        assert client.put(keys[:6], source[:6], layout=CODED.layout).ok.all()
        assert client.put(keys[6:], source[6:], layout=PLAIN.layout).ok.all()
        assert client.put([b"other"], bytes(5000), layout=Layout.opaque("other")).ok.all()
    yield url
    with halfstep.connect(daemon.url, required=True, **PATIENT) as operator:
        operator.admin.delete_namespace("analysed")


def test_stored_blocks_are_told_by_layer_and_plane(filled: str) -> None:
    done = analyse(filled, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    planes = {one["plane"]: one for one in document["planes"]}
    assert planes.keys() == {f"layer {layer} {plane}" for layer in range(LAYERS) for plane in "KV"}
    for one in planes.values():
        assert (one["element"], one["unit_tokens"], one["units"]) == ("bf16", TOKENS, 11 * HEADS)
        assert 1.3 < one["ratio"] < one["bound"]
    (whole,) = document["lengths"]
    assert whole["raw_bytes"] == blocks(11).nbytes
    assert whole["plain_pages"] == 11 * 6
    assert document["remarks"] == [
        "11 stored blocks; a unit is a part of one, as it is stored",
        "left out: 1 blocks of layouts that do not say what their values are",
    ]
    table = analyse(filled, "--speed")
    assert "layer 2 V" in table.stdout
    assert "GB/s in" in table.stdout


def test_a_sample_has_a_bound(filled: str) -> None:
    document = json.loads(analyse(filled, "--blocks", "4", "--json").stdout)
    assert document["lengths"][0]["raw_bytes"] == blocks(4).nbytes


def test_a_sample_is_read_as_it_is_analysed_and_ends_at_its_bytes(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block_bytes = blocks(1).nbytes
    monkeypatch.setattr(stored, "_GET_BYTES", 2 * block_bytes)
    read: list[int] = []

    with halfstep.connect(filled, codecs=("bfx",), coding="always", required=True, **PATIENT) as client:
        get = client.get
        monkeypatch.setattr(client, "get", lambda keys, *rest, **more: read.append(len(keys)) or get(keys, *rest, **more))
        taken = stored.Sample(keep_bytes=3 * block_bytes - 1, bytes_max=7 * block_bytes + 1)
        sampled = stored.sample(client, 11, taken)
        next(sampled)
        assert len(read) == 1, "the rest is read when it is asked for"
        assert sum(1 for _ in sampled) == 6
        assert (taken.blocks, sum(read), max(read), taken.full) == (7, 7, 2, True)
        for keep_bytes, kept in ((0, 0), (1, 1)):
            other = stored.Sample(keep_bytes)
            assert sum(1 for _ in stored.sample(client, 3, other)) == 3
            assert (len(other.kept), other.full) == (kept, False)
    assert len(taken.kept) == 2
    assert f"the sample ended before it had {7 * block_bytes + 1:,} bytes of blocks" in list(stored.lines(taken))


def test_values_that_no_layout_names_can_be_named(filled: str) -> None:
    document = json.loads(analyse(filled, "--element", "e5m2", "--json").stdout)
    assert {one["plane"] for one in document["planes"] if one["element"] == "e5m2"} == {"group 0"}
    assert document["remarks"] == ["12 stored blocks; a unit is a part of one, as it is stored"]


def test_what_cannot_be_analysed_is_said_in_one_line(daemon: Any, filled: str) -> None:
    with halfstep.connect(daemon.url, required=True, **PATIENT) as operator:
        operator.admin.create_namespace("of-files")
    try:
        assert "of-files: the namespace has no blocks" in error_of(analyse(f"{daemon.url}/of-files"))
        with halfstep.connect(f"{daemon.url}/of-files", required=True, **PATIENT) as client:
            assert client.put([b"one"], bytes(5000)).ok.all()
        assert "no layout of the blocks listed first says what its values are" in error_of(analyse(f"{daemon.url}/of-files"))
    finally:
        with halfstep.connect(daemon.url, required=True, **PATIENT) as operator:
            operator.admin.delete_namespace("of-files")
    assert "nobody" in error_of(analyse(f"{daemon.url}/nobody"))
    assert "127.0.0.1:1" in error_of(analyse("halfstep://127.0.0.1:1"))
    for option in (("--unit-tokens", "16"), ("--tensor", "kv*")):
        done = analyse(filled, *option)
        assert done.returncode == 2
        assert f"{option[0]}: is for files" in done.stderr


def test_quantised_blocks_are_no_sample(daemon: Any, filled: str) -> None:
    quantised = KVLayout("q", "r", "bfloat16", TOKENS, CODED.kinds, codec="ubq", step=0.1)
    remark = "3 blocks of codec ubq: what was quantised is no sample of real K and V"
    with halfstep.connect(filled, codecs=("ubq",), coding="always", required=True, **PATIENT) as client:
        assert client.put([b"q0", b"q1", b"q2"], blocks(3), layout=quantised.layout).ok.all()
    document = json.loads(analyse(filled, "--json").stdout)
    assert document["lengths"][0]["raw_bytes"] == blocks(11).nbytes, "of the others alone"
    assert f"left out: {remark}" in document["remarks"]
    assert not any("went" in one for one in document["remarks"])
    with halfstep.connect(daemon.url, required=True, **PATIENT) as operator:
        operator.admin.create_namespace("quantised")
    try:
        with halfstep.connect(f"{daemon.url}/quantised", codecs=("ubq",), coding="always", required=True, **PATIENT) as client:
            assert client.put([b"q0", b"q1", b"q2"], blocks(3), layout=quantised.layout).ok.all()
        assert remark in error_of(analyse(f"{daemon.url}/quantised"))
    finally:
        with halfstep.connect(daemon.url, required=True, **PATIENT) as operator:
            operator.admin.delete_namespace("quantised")


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (3, ""), (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("halfstep: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


# ---- what it takes on flash ----


def listed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "halfstep.tools.cli", "ls", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_listing_tells_pages_on_flash_and_codecs(filled: str) -> None:
    done = listed("--flash", "--json", "--url", filled)
    assert done.returncode == 0, done.stderr
    entries = json.loads(done.stdout)
    by_codec = {codec: [one for one in entries if one["codec"] == codec] for codec in ("bfx", "raw")}
    assert sum(map(len, by_codec.values())) == len(entries)
    assert {one["block_bytes"] for one in by_codec["bfx"]} == {24576}
    # Twelve parts of 24 bytes and the tail of 32 beside what is coded, in whole pages.
    assert {one["flash_bytes"] for one in by_codec["bfx"]} == {20480}
    assert sorted(one["flash_bytes"] for one in by_codec["raw"]) == [8192] + [24576] * 5
    with halfstep.connect(filled, required=True, **PATIENT) as client:
        (space,) = (one for one in client.admin.namespaces() if one.name == "analysed")
    assert space.used_bytes == sum(one["flash_bytes"] for one in entries), "what the quota counts"
    table = listed("--flash", "--url", filled).stdout
    assert "147,456" in table, "six coded blocks as they were put"
    assert "122,880" in table, "and on flash"
    assert "1.200" in table
    plain = listed("--json", "--url", filled)
    assert "flash_bytes" not in json.loads(plain.stdout)[0]


def stocks_in_frames(url: str, space: str) -> dict[str, Stock]:
    """By codec, of group 0, once no block waits for its frame any more."""
    with halfstep.connect(url, required=True, **PATIENT) as client:
        for _ in range(3000):
            used = next(one for one in client.admin.namespaces() if one.name == space).used_bytes
            stocks = [one for one in stocks_of(client.admin.stat()) if one.namespace == space]
            if sum(one.flash_bytes for one in stocks) == used:
                return {one.codec: one for one in stocks if one.group == "0"}
            time.sleep(0.01)
    raise AssertionError(f"{stocks}: {used} bytes are used")


def test_a_daemon_tells_bytes_by_codec(filled: str) -> None:
    stocks = stocks_in_frames(filled, "analysed")
    assert set(stocks) == {"raw", "bfx"}
    coded, raw = stocks["bfx"], stocks["raw"]
    assert (coded.blocks, coded.logical_bytes, coded.flash_bytes) == (6, 6 * 24576, 6 * 20480)
    assert 6 * 16384 < coded.stored_bytes < 6 * (20480 - 32 - 12 * 24)
    assert (raw.blocks, raw.flash_bytes) == (6, 8192 + 5 * 24576)
    assert raw.logical_bytes == raw.stored_bytes
    done = subprocess.run(
        [sys.executable, "-m", "halfstep.tools.cli", "stat", "--json", filled], capture_output=True, text=True, timeout=120
    )
    assert {"namespace": "analysed", "group": "0", "codec": "bfx"}.items() <= json.loads(done.stdout)["stocks"][0].items()


# ---- the question for a layout ----


def test_the_daemon_tells_a_layout_by_its_id(daemon: Any, filled: str) -> None:
    assert ask_layout(filled, CODED.layout.id) == CODED.layout
    assert ask_layout(f"{daemon.unix_url}?namespace=analysed", PLAIN.layout.id) == PLAIN.layout
    assert ask_layout(filled, bytes(16)) is None
    assert ask_layout(daemon.url, CODED.layout.id) is None, "of another namespace"
    with pytest.raises(Unavailable, match="refuses the connection"):
        ask_layout(f"{daemon.url}/nobody", bytes(16))
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1: "):
        ask_layout("halfstep://127.0.0.1:1", bytes(16))


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (b"", Unavailable, "closed the connection"),
        (b"HSW1", Unavailable, "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n........", ProtocolError, "no Halfstep daemon"),
        (bytes(64), ProtocolError, "no Halfstep daemon"),
        (frame(Op.ABORT, 0, tlv(Tlv.REASON, b"no room")), Unavailable, "ended the connection: no room"),
        (WELCOME + final(2, tlv(Tlv.STATUSES, UNSUPPORTED)), Unavailable, "does not tell its layouts"),
        (WELCOME + final(2, b""), ProtocolError, "Statuses of 0 bytes"),
        (WELCOME + final(2, tlv(Tlv.LAYOUT_CANONICAL, PLAIN.layout.canonical)), ProtocolError, "what came is layout"),
        (WELCOME + final(2, tlv(Tlv.LAYOUT_CANONICAL, b"\1\0")), ProtocolError, "canonical form"),
        (WELCOME + final(2, b"\6\0\0\0\xff\0\0\0"), ProtocolError, "reaches past its body"),
        (final(1, b"", body_bytes=1 << 20), ProtocolError, "bytes of body"),
        (final(1, bytes(8), body_crc=1), ProtocolError, "another checksum"),
    ],
)
def test_who_answers_something_else_is_named(answer: bytes, error: type[Exception], words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connected, _ = listening.accept()
            with connected:
                connected.recv(4096)
                connected.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises(error, match=words):
                ask_layout(f"halfstep://127.0.0.1:{listening.getsockname()[1]}", bytes(16))
        finally:
            thread.join()
