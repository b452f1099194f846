"""Clients that code: what comes back, who sees it, and that nobody else's bytes change."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from tests.integration.commands import PATIENT, Run

import halfstep
from halfstep import compress
from halfstep.client.sections import Section
from halfstep.errors import ConfigError
from halfstep.layout import Group, Layout
from halfstep.tier import Kind, KVLayout

pytestmark = pytest.mark.integration

PARTS, PART_BYTES = 12, 12288
ALWAYS: dict[str, Any] = {**PATIENT, "coding": "always", "required": True}
SHAPE = [Group(PARTS, (PART_BYTES,))]
CODED = Layout({"model": "m"} | compress.coding_fields("bfx", [[compress.PartValues("bf16", 384)]]), SHAPE)


def blocks(count: int, seed: int = 3) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(count * PARTS * PART_BYTES // 2).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).reshape(count, -1)


def test_a_client_with_the_codec_gets_exactly_what_it_put_in_fewer_bytes(daemon: Any) -> None:
    source = blocks(16)
    keys = [b"coded-%d" % i for i in range(16)]
    with halfstep.connect(daemon.url, layout=CODED, codecs=("bfx",), **ALWAYS) as client:
        assert client.codecs == ("bfx",)
        before = client.facts()
        assert client.put(keys, source, durability="persist").ok.all()
        target = np.zeros_like(source)
        assert client.get(keys, target).ok.all()
        np.testing.assert_array_equal(target, source)
        after = client.facts()
        assert after.bytes_sent - before.bytes_sent < source.nbytes * 0.75
        assert after.bytes_received - before.bytes_received < source.nbytes * 0.75
        assert after.decode_failures == after.checksum_failures == 0
        some = np.zeros((16, 2 * PART_BYTES // 2), np.uint16)
        assert client.get(keys, some, parts=[(3, 2, 4)], order="layer").ok.all()
        np.testing.assert_array_equal(some[:, : PART_BYTES // 2], source[:, 3 * PART_BYTES // 2 : 4 * PART_BYTES // 2])
        np.testing.assert_array_equal(some[:, PART_BYTES // 2 :], source[:, 7 * PART_BYTES // 2 : 8 * PART_BYTES // 2])
        assert (client.get(keys, target).error_bounds == 0).all(), "nothing is lost"
    with halfstep.connect(daemon.url, layout=CODED, required=True, **PATIENT) as plain:
        assert not plain.match(keys).present.any(), "coded blocks are misses to a client without the codec"
        assert not plain.get(keys, np.zeros_like(source)).ok.any()


def test_without_a_codec_a_put_sends_as_many_bytes_as_ever(daemon: Any) -> None:
    source = blocks(4, 9)
    sent = []
    for codecs, layout in (((), CODED), (("bfx",), Layout({"model": "plain"}, SHAPE))):
        with halfstep.connect(daemon.url, layout=layout, codecs=codecs, required=True, **PATIENT) as client:
            before = client.facts().bytes_sent
            assert client.put([b"plain-%d" % i for i in range(4)], source).ok.all()
            sent.append(client.facts().bytes_sent - before)
    assert min(sent) > source.nbytes, "neither a client nor a layout alone codes anything"


def lossy_layout(step: float) -> Layout:
    return Layout({"model": "m"} | compress.coding_fields("ubq", [[compress.PartValues("bf16", 384, step)]]), SHAPE)


def floats(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.uint32) << 16).view(np.float32)


def test_a_lossy_layout_has_blocks_of_its_own_and_parts_with_hazards_are_exact(daemon: Any) -> None:
    source = blocks(8, 5)
    whole = source.reshape(8, PARTS, -1)
    whole[0, 3, 77] = 0x7FC0  # NaN
    whole[2, 5] = 0x3F80  # a constant
    keys = [b"lossy-%d" % i for i in range(8)]
    with halfstep.connect(daemon.url, layout=lossy_layout(0.1), codecs=("ubq",), **ALWAYS) as client:
        assert client.codecs == ("bfx", "ubq"), "by which those are coded that it refuses"
        before = client.facts()
        assert client.put(keys, source, durability="persist").ok.all()
        target = np.zeros_like(source)
        got = client.get(keys, target)
        assert got.ok.all()
        assert ((got.error_bounds > 0.04) & (got.error_bounds < 0.06)).all(), "half a step of a tenth of a deviation of one"
        assert np.array_equal(pickle.loads(pickle.dumps(got)).error_bounds, got.error_bounds)
        after = client.facts()
        assert after.bytes_sent - before.bytes_sent < source.nbytes * 0.42
        # Part 3 of the first block is exact, part 5 of the third; what is asked for counts.
        some = client.get(keys[:3], np.zeros((3, PART_BYTES), np.uint8), parts=[3])
        assert (some.error_bounds > 0).tolist() == [False, True, True]
        (section,) = client.get_sections([Section(keys[2:4], np.zeros((2, PART_BYTES), np.uint8), parts=[5])])
        assert (section.error_bounds > 0).tolist() == [False, True]
        there = client.get([keys[0], b"nobody"], np.zeros((2, PARTS * PART_BYTES), np.uint8))
        assert (there.error_bounds > 0).tolist() == [True, False]
        assert after.bytes_received - before.bytes_received < source.nbytes * 0.42
        assert after.decode_failures == after.checksum_failures == 0
    back = target.reshape(8, PARTS, -1)
    for item, part in ((0, 3), (2, 5)):
        np.testing.assert_array_equal(back[item, part], whole[item, part])
        back[item, part] = whole[item, part] = 0
    assert not np.array_equal(back, whole)
    assert (np.abs(floats(back) - floats(whole)) < 0.1 / 2 * 1.1 + np.abs(floats(back)) / 256).all()
    for layout in (CODED, lossy_layout(0.2), Layout({"model": "m"}, SHAPE)):
        with halfstep.connect(daemon.url, layout=layout, codecs=("bfx", "ubq"), **ALWAYS) as other:
            assert not other.match(keys).present.any(), "who asked for exact values, or for others, meets no such block"
    with halfstep.connect(daemon.url, layout=lossy_layout(0.1), codecs=("bfx",), **ALWAYS) as exact:
        assert not exact.get(keys, np.zeros_like(source)).ok.any(), "nor does who speaks no lossy codec"
        assert exact.put(keys, source).ok.all(), "and may put plain blocks in their place"
        assert exact.get(keys, target).ok.all()
        np.testing.assert_array_equal(target, source)


def test_a_codec_is_named_by_both_sides_or_refused() -> None:
    with pytest.raises(ConfigError, match="'lz4' is no codec"):
        halfstep.connect("halfstep://127.0.0.1:1", codecs=("lz4",), coding="always")
    with pytest.raises(ConfigError, match="sequence"):
        halfstep.connect("halfstep://127.0.0.1:1", codecs="bfx")
    layout = KVLayout("m", "r", "bfloat16", 16, (Kind("full", (0,), 1, (128, 128)),), codec="bfx")
    with (
        halfstep.connect("halfstep://127.0.0.1:1") as client,
        pytest.raises(ConfigError, match=r'open the client with codecs=\("bfx",\)'),
    ):
        client.tier(layout)
    with halfstep.connect("halfstep://127.0.0.1:1", codecs=("bfx", "raw"), coding="always") as client:
        client.tier(layout).close()


def test_whether_blocks_are_coded_is_chosen_counted_and_shown(daemon: Any) -> None:
    source = blocks(8, 9)
    for coding, keys in (("never", b"n"), ("always", b"a"), ("auto", b"u")):
        names = [keys + b"-chosen-%d" % i for i in range(8)]
        with halfstep.connect(daemon.url, layout=CODED, codecs=("bfx",), coding=coding, required=True, **PATIENT) as client:
            assert client.facts().coding.blocks == dict.fromkeys(client.facts().coding.blocks, 0)
            before = client.facts().bytes_sent
            assert client.put(names, source).ok.all()
            told, sent = client.facts().coding, client.facts().bytes_sent - before
            assert sum(told.blocks.values()) == 8
            target = np.zeros_like(source)
            assert client.get(names, target).ok.all()
            np.testing.assert_array_equal(target, source)
        if coding != "auto":
            assert told.blocks[coding] == 8
            assert (sent < source.nbytes) == (coding == "always")
        else:
            assert told.blocks["unmeasured"] > 0, "before anything was coded"
            assert told.blocks["always"] == told.blocks["never"] == 0


def test_stat_shows_what_clients_chose_why_and_what_they_knew(daemon: Any, run: Run) -> None:
    source = blocks(6, 17)
    space = f"{daemon.url}/chosen"
    with halfstep.connect(daemon.url, required=True, **PATIENT) as client:
        client.admin.create_namespace("chosen")
    for coding, count in (("never", 2), ("always", 3)):
        with halfstep.connect(space, layout=CODED, codecs=("bfx",), coding=coding, required=True, **PATIENT) as client:
            names = [b"%s-%d" % (coding.encode(), i) for i in range(count)]
            assert client.put(names, source[:count]).ok.all()
    with halfstep.connect(space, layout=Layout({"model": "plain"}, SHAPE), required=True, **PATIENT) as client:
        assert client.put([b"plain"], source[:1]).ok.all(), "nothing to choose, and not counted"
    choices = json.loads(run("stat", "--json", url=space).stdout)["choices"]
    (told,) = (one for one in choices if one["namespace"] == "chosen")
    assert told["reasons"] == {"never": 2, "always": 3}
    assert (told["coded"], told["raw"]) == (3, 2)
    assert told["encode_bytes_per_s"] > 0
    assert 1.2 < told["ratio"] < 1.6
    (row,) = (line for line in run("stat", url=space).stdout.decode().splitlines() if "always 3, never 2" in line)
    assert row.split()[:3] == ["chosen", "3", "2"]


def test_what_no_codec_makes_smaller_is_put_raw_and_counted(daemon: Any) -> None:
    noise = np.random.default_rng(3).integers(0, 1 << 16, blocks(4, 1).shape, np.uint16)
    keys = [b"noise-%d" % i for i in range(4)]
    with halfstep.connect(daemon.url, layout=CODED, codecs=("bfx",), **ALWAYS) as client:
        assert client.put(keys, noise).ok.all()
        assert client.facts().coding.blocks["no_gain"] == 4
        target = np.zeros_like(noise)
        assert client.get(keys, target).ok.all()
        np.testing.assert_array_equal(target, noise)


def test_another_word_for_coding_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="coding='alwais': did you mean always\\? must be auto, always, never"):
        halfstep.connect("halfstep://127.0.0.1:1", coding="alwais")


def test_coding_is_auto_where_nobody_says_and_tells_what_it_knew(daemon: Any) -> None:
    source = blocks(24, 13)
    with halfstep.connect(daemon.url, layout=CODED, codecs=("bfx",), required=True, **PATIENT) as client:
        before = client.facts().bytes_sent
        for at in range(0, 24, 8):
            assert client.put([b"auto-%d" % i for i in range(at, at + 8)], source[at : at + 8]).ok.all()
        told = client.facts().coding
        sent = client.facts().bytes_sent - before
    coded = sum(told.blocks[why] for why in ("unmeasured", "faster", "room", "probe"))
    assert told.blocks["unmeasured"] > 0, "the first block is coded, by which the codec is measured"
    assert sum(told.blocks.values()) == 24
    assert told.blocks["always"] == 0
    assert told.encode_bytes_per_s > 0
    assert told.decode_bytes_per_s > 0
    assert 1.2 < told.ratio < 1.6
    assert sent < source.nbytes * (1 - 0.2 * coded / 24) + 24 * 4096, "as many blocks were smaller as it says"


def test_a_get_of_coded_blocks_carries_at_most_three_quarters_of_the_bytes(daemon: Any) -> None:
    """Over a link that is the bottleneck, time is bytes by its rate: so bytes decide, and no clock."""
    source = blocks(16, 21)
    received = {}
    for coding in ("always", "never"):
        keys = [b"carried-%s-%d" % (coding.encode(), i) for i in range(16)]
        with halfstep.connect(daemon.url, layout=CODED, codecs=("bfx",), coding=coding, required=True, **PATIENT) as client:
            assert client.put(keys, source, durability="persist").ok.all()
            before = client.facts().bytes_received
            target = np.zeros_like(source)
            assert client.get(keys, target).ok.all()
            np.testing.assert_array_equal(target, source)
            received[coding] = client.facts().bytes_received - before
    assert received["never"] > source.nbytes
    assert received["always"] <= 0.75 * received["never"]
