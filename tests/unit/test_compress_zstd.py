"""Units of codec 3, zstd: decoded by what docs/compression.md says and by the zstandard package, and by nothing of ours."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import numpy as np
import pytest
import zstandard
from tests.unit.test_compress import kv_bytes

from halfstep import compress
from halfstep.compress import PartValues, coding_fields
from halfstep.compress.policy import parsed
from halfstep.errors import ProtocolError
from halfstep.tier import Kind, KVLayout, coding_of


def decoded(unit: bytes) -> tuple[int, bytes]:
    """The number of byte planes and the raw bytes, by section 12 of the page."""
    version, element, planes, zero, step, raw_bytes = struct.unpack_from("<BBBBfI", unit)
    assert (version, zero, step) == (1, 0, 0.0)
    assert element in range(5)
    frame = unit[12:]
    told = zstandard.get_frame_parameters(frame)
    assert (told.content_size, told.dict_id, told.has_checksum) == (raw_bytes, 0, False)
    content = zstandard.ZstdDecompressor().decompress(frame)
    assert len(content) == raw_bytes
    values = raw_bytes // planes
    rows = np.frombuffer(content[: values * planes], np.uint8).reshape(planes, values)
    return planes, rows.T.tobytes() + content[values * planes :]


def parts() -> dict[str, bytes]:
    random = np.random.default_rng(7)
    return {
        "text": b"a state that nobody knows; " * 200,
        "bf16": kv_bytes(4000),
        "fp32": random.standard_normal(3000).astype(np.float32).tobytes(),
        "int8": random.integers(-9, 9, 5000, np.int8).tobytes(),
        "odd": kv_bytes(4000) + b"\1",
        "zeros": bytes(70_000),
    }


@pytest.mark.parametrize("name", parts())
def test_a_unit_decodes_by_the_description(name: str) -> None:
    raw = parts()[name]
    unit = compress.encode(raw, codec="zstd")
    assert unit is not None
    assert len(unit) <= len(raw) * 0.97
    planes, back = decoded(unit)
    assert back == raw
    assert planes == {"bf16": 2, "odd": 2, "fp32": 4}.get(name, 1)
    assert compress.decode(unit, len(raw), codec="zstd") == raw
    assert compress.encode(raw, codec="zstd") == unit


def test_a_unit_of_another_encoder_is_read() -> None:
    raw = parts()["text"]
    for level in (-5, 3, 19):
        frame = zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=True).compress(raw)
        unit = struct.pack("<BBBBfI", 1, 0, 1, 0, 0.0, len(raw)) + frame
        assert compress.decode(unit, len(raw), codec="zstd") == raw
    # Of a dictionary that nobody has.
    with_dictionary = zstandard.ZstdCompressionDict(os.urandom(64) + raw[:512], dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    frame = zstandard.ZstdCompressor(dict_data=with_dictionary).compress(raw)
    with pytest.raises(ProtocolError):
        compress.decode(struct.pack("<BBBBfI", 1, 0, 1, 0, 0.0, len(raw)) + frame[:-1], len(raw), codec="zstd")


# Runs in a process of its own, whose address space has no room for the window.
_LARGE_WINDOW = """
import resource, sys
from halfstep import compress
unit, raw_bytes = bytes.fromhex(sys.argv[1]), int(sys.argv[2])
now = 1024 * int(next(l for l in open("/proc/self/status") if l.startswith("VmSize")).split()[1])
resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20),) * 2)
print(len(compress.decode(unit, raw_bytes, codec="zstd")))
"""


def test_a_frame_that_claims_a_window_of_gigabytes_takes_no_memory_for_it() -> None:
    raw = parts()["text"]
    frame = zstandard.ZstdCompressor(level=1, write_content_size=True).compress(raw)
    # Content size in four bytes; a window of 2^31, which is the most that libzstd reads.
    head = struct.pack("<IBBI", zstandard.MAGIC_NUMBER, 0x80, 21 << 3, len(raw))
    unit = struct.pack("<BBBBfI", 1, 0, 1, 0, 0.0, len(raw)) + head + frame[zstandard.frame_header_size(frame) :]
    command = [sys.executable, "-c", _LARGE_WINDOW, unit.hex(), str(len(raw))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == str(len(raw)), done.stderr


def test_a_part_without_a_gain_is_raw_and_a_unit_says_what_it_is() -> None:
    assert compress.encode(os.urandom(8192), codec="zstd") is None
    unit = compress.encode(kv_bytes(4000), codec="zstd", element="bf16", row_values=128)
    assert unit is not None
    facts = compress.inspect(unit, codec="zstd")
    assert (facts.version, facts.element, facts.row_values, facts.raw_bytes, facts.step) == (1, "bf16", 0, 8000, 0.0)
    with pytest.raises(ProtocolError, match="no zstd unit"):
        compress.decode(unit[:-1], 8000, codec="zstd")


def test_a_policy_names_it_for_what_nobody_knows() -> None:
    """A state beside K and V: these are bfx's, the state is zstd's."""
    policy = parsed('[[rule]]\nkinds = ["state"]\ncodec = "zstd"\n', "mixed.toml")
    assert policy.codecs == ("bfx", "zstd")
    full, state = Kind("full", (0, 1), 2, (128, 128)), Kind("state", (2,), 1, (4096,), dtype="float32")
    fields = KVLayout("m", "r", "bfloat16", 16, (full, state), policy=policy).layout.fields
    assert (fields["codec"], fields["codec.0"], fields["codec.1"]) == ("bfx", "bf16/64", "zstd")
    alone = KVLayout("m", "r", "bfloat16", 16, (state,), policy=policy).layout.fields
    assert (alone["codec"], alone["codec.0"]) == ("zstd", "zstd")
    whole = parsed('[[rule]]\ncodec = "zstd"\n', "all.toml")
    assert whole.codecs == ("zstd",)
    assert coding_of("", [None], whole) == {"policy": "all", "policy.hash": whole.hash, "codec": "zstd"}
    assert coding_of("zstd", [PartValues("bf16", 64)]) == coding_fields("zstd", [[PartValues("bf16", 64)]])
