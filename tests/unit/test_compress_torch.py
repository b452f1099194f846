"""halfstep.compress.torch: the native codec's bytes from torch operations, in both directions, and the same refusals."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from halfstep import compress
from halfstep.errors import ConfigError, ProtocolError

torch = pytest.importorskip("torch", reason="torch is not installed: the extra 'torch'")

from halfstep.compress.torch import Units, decode, encode  # noqa: E402 -- it needs torch

ROW, HEADS = 32, 4
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
VECTORS = Path(__file__).parent / "vectors" / "compress.txt"


def kv(element: compress.Element, units: int, values: int, *, spread: int = 0, seed: int = 1) -> torch.Tensor:
    """[units, values] like those of a cache; channels of ROW differ in size by up to `spread` powers of two."""
    bell = np.random.default_rng(seed).standard_normal((units, values)).astype(np.float32)
    scale = np.exp2(np.arange(values) % ROW * 7 % (spread + 1)).astype(np.float32)
    return torch.from_numpy(bell * scale).to(DTYPES[element])


def bits(parts: torch.Tensor) -> np.ndarray:
    """uint8 [units, bytes]."""
    return parts.flatten(1).contiguous().view(torch.uint8).numpy()


def expect_native_bytes(parts: torch.Tensor, element: compress.Element | None, row_values: int = 0) -> list[bytes | None]:
    """Codes all parts both ways, and decodes what came out both ways."""
    raw = bits(parts)
    native = [compress.encode(one.tobytes(), element=element, row_values=row_values) for one in raw]
    coded = encode(parts, element=element, row_values=row_values)
    told = coded.to_host()
    assert told == native
    for units in (coded, Units.of(native, raw.shape[1])):
        back, good = decode(units, element=element)
        assert good.tolist() == [unit is not None for unit in native]
        np.testing.assert_array_equal(back.numpy()[good.numpy()], raw[good.numpy()])
    return told


@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize("tokens", [16, 64, 256])
@pytest.mark.parametrize("spread", [0, 12])
def test_units_of_kv_are_the_native_ones(element: compress.Element, tokens: int, spread: int) -> None:
    parts = kv(element, 3, HEADS * tokens * ROW, spread=spread)
    units = expect_native_bytes(parts, element, ROW)
    if not (element in ("e4m3", "e5m2") and spread):
        assert None not in units, "it should pay"
    if element == "bf16" and spread and tokens > 16:
        assert all(compress.inspect(unit).row_values == ROW for unit in units), "bases"
    assert encode(parts, row_values=ROW).to_host() == units, "the dtype names the element"


@pytest.mark.parametrize("element", DTYPES)
def test_every_length_of_a_last_group_is_the_same(element: compress.Element) -> None:
    for values in range(1024, 1024 + 64):
        assert None not in expect_native_bytes(kv(element, 2, values, seed=values), element)


@pytest.mark.parametrize("element", DTYPES)
def test_every_pattern_of_bits_is_the_same(element: compress.Element) -> None:
    """NaN with payloads, infinities, denormals and zeros of both signs."""
    parts = kv(element, 4, 4096)
    dice = np.random.default_rng(5)
    if compress.ELEMENTS[element] == 2:
        hazards = parts.view(torch.int16)
        patterns = dice.integers(-(1 << 15), 1 << 15, 4 * 400)
        patterns[:8] = [0, -(1 << 15), 0x7F80, 0x7FC1, 0x7C00, 0x7C01, 1, -1]
        hazards[:, ::11][:, :400] = torch.from_numpy(patterns.astype(np.int16)).view(4, 400)[:, : hazards[:, ::11].shape[1]]
    else:
        hazards = parts.view(torch.uint8)
        hazards[:, ::16] = torch.arange(256, dtype=torch.uint8)
    assert None not in expect_native_bytes(hazards, element, ROW)


@pytest.mark.parametrize("element", DTYPES)
def test_constants_are_the_same(element: compress.Element) -> None:
    patterns = torch.tensor([0, 1, 0x3F, 0x7F, 0x80, 0xFF], dtype=torch.uint8)
    expect_native_bytes(patterns[:, None].expand(6, 4096).contiguous(), element, 64)


@pytest.mark.parametrize("element", [*DTYPES, None])
def test_noise_goes_raw_beside_parts_that_gain(element: compress.Element | None) -> None:
    noise = torch.from_numpy(np.random.default_rng(6).integers(0, 256, (3, 8192), dtype=np.uint8))
    assert expect_native_bytes(noise, element, 0) == [None] * 3
    mixed = torch.cat([noise, torch.from_numpy(bits(kv(element or "fp16", 2, 8192 // compress.ELEMENTS[element or "fp16"])))])
    assert [unit is None for unit in expect_native_bytes(mixed, element)] == [True] * 3 + [False] * 2


@pytest.mark.parametrize("share", range(40, 60))
def test_the_border_between_raw_and_coded_is_the_same(share: int) -> None:
    """Fewer and fewer of the values are noise, until the unit takes 97 % of its part."""
    parts = kv("fp16", 8, 2048).view(torch.int16)
    noisy = torch.from_numpy(np.random.default_rng(share).integers(-(1 << 15), 1 << 15, (8, 2048)).astype(np.int16))
    some = torch.arange(2048) % 100 < share + torch.arange(8)[:, None]
    expect_native_bytes(torch.where(some, noisy, parts), "fp16")


def test_elements_that_nobody_names_are_found() -> None:
    rows = [bits(kv(element, 2, 4096 // compress.ELEMENTS[element], seed=9)) for element in DTYPES]  # type: ignore[arg-type, index]
    units = expect_native_bytes(torch.from_numpy(np.concatenate(rows)), None)
    assert [compress.inspect(unit).element for unit in units[:4] if unit] == ["bf16", "bf16", "fp16", "fp16"]


def test_an_odd_byte_and_parts_that_are_too_short_are_the_same() -> None:
    for raw_bytes in (1, 2, 255, 256, 257, 511, 512, 513, 1025, 4097):
        raw = torch.from_numpy(bits(kv("bf16", 3, raw_bytes // 2 + 1))[:, :raw_bytes].copy())
        for element in (*DTYPES, None):
            expect_native_bytes(raw, element)


@pytest.mark.parametrize("row_values", [1, 7, 24, 63, 65, 128, 511, 513])
def test_rows_of_any_length_are_the_same(row_values: int) -> None:
    values = max(1024, 70 * row_values) + 33
    scale = np.exp2(np.arange(values) % row_values % 13).astype(np.float32)
    apart = (kv("bf16", 2, values).float() * torch.from_numpy(scale)).to(torch.bfloat16)
    units = expect_native_bytes(apart, "bf16", row_values)
    assert [compress.inspect(unit or b"").row_values for unit in units] == [row_values if row_values > 1 else 0] * 2


def test_units_beyond_a_slice_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfstep.compress.torch.SLICE_BYTES", 3 * 2048)
    for count in (3, 7):
        expect_native_bytes(kv("bf16", count, 1024), "bf16")
        expect_native_bytes(kv("bf16", count, 1024), None)


def published() -> Iterator[tuple[str, bytes, bytes]]:
    for line in VECTORS.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, _, raw, unit = line.split()
            yield name, bytes.fromhex(raw), bytes.fromhex(unit)


@pytest.mark.parametrize(("name", "raw", "unit"), list(published()), ids=[vector[0] for vector in published()])
def test_a_published_unit_decodes(name: str, raw: bytes, unit: bytes) -> None:
    back, good = decode(Units.of([unit], len(raw)))
    assert good.tolist() == [True]
    assert back.numpy().tobytes() == raw


def native_says(unit: bytes, raw_bytes: int) -> bytes | None:
    try:
        return compress.decode(unit, raw_bytes)
    except ProtocolError:
        return None


def expect_native_refusals(units: list[bytes], raw_bytes: int) -> int:
    """How many of them the native decoder refuses, which are those that this one does."""
    native = [native_says(unit, raw_bytes) for unit in units]
    back, good = decode(Units.of(units, raw_bytes))
    assert good.tolist() == [one is not None for one in native]
    for at, one in enumerate(native):
        assert one is None or back[at].numpy().tobytes() == one
    return sum(one is None for one in native)


@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize("values", [1024, 1031])
def test_damaged_units_are_refused_alike(element: compress.Element, values: int) -> None:
    parts = kv(element, 1, values, spread=3)
    raw_bytes = bits(parts).shape[1]
    whole = compress.encode(bits(parts).tobytes(), element=element, row_values=8)
    assert whole is not None
    cuts = [whole[:length] for length in range(0, len(whole), 7)] + [whole + b"\0", whole + bytes(64)]
    assert expect_native_refusals(cuts, raw_bytes) == len(cuts)
    flips = []
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at * 5 % 8
        flips.append(bytes(flipped))
    refused = expect_native_refusals(flips, raw_bytes)
    assert 0 < refused < len(flips), "a fraction's bit is a value, the header's is none"
    for other in (raw_bytes - 1, raw_bytes + 1, 1, 2 * raw_bytes):
        assert expect_native_refusals([whole], other) == 1


def test_headers_that_lie_are_refused_alike() -> None:
    raw = bits(kv("fp16", 1, 1024, spread=2))
    whole = compress.encode(raw.tobytes(), element="fp16", row_values=0)
    assert whole is not None
    lies = []
    for at, form, numbers in (
        (0, "<B", range(4)),
        (1, "<B", range(7)),
        (2, "<H", (1, 16, 16384, 16385, 65535)),
        (4, "<I", (0, 1, 1023, 1025, (1 << 32) - 1)),
        (8, "<I", (0, 1, 1024, 1025, (1 << 31), (1 << 32) - 1)),
        (12, "<I", (0, 1, 1024, 1025, (1 << 31), (1 << 32) - 1)),
        (25, "<B", (1, 2, 255)),
        (26, "<H", (1, 256)),
    ):
        for number in numbers:
            lie = bytearray(whole)
            struct.pack_into(form, lie, at, number)
            lies.append(bytes(lie))
    assert expect_native_refusals(lies, raw.shape[1]) == len(lies) - 2, "all but the true version and element"


def test_units_of_fewer_values_than_an_encoder_codes_decode_alike() -> None:
    """A header, one plane of each level that says: the first listed symbol."""
    units = []
    for values in (0, 1, 7, 63, 64, 65, 130):
        for number, tail in ((1, 0), (1, 1), (2, 0), (3, 0), (4, 0)):
            head = struct.pack("<BBHIII", 1, number, 0, values, 0, 0) + bytes(range(1, 10)) + bytes([tail, 0, 0])
            units.append((values * (2 if number < 3 else 1) + tail, head, number))
    for raw_bytes, head, number in units:
        if raw_bytes == 0:
            continue
        for more in range(300):
            unit = head + bytes(more)
            native = native_says(unit, raw_bytes)
            if native is not None:
                back, good = decode(Units.of([unit], raw_bytes))
                assert good.tolist() == [True], (number, raw_bytes)
                assert back.numpy().tobytes() == native
                break
        else:
            pytest.fail(f"no unit of {raw_bytes} bytes, element {number}")


def test_random_bytes_are_refused_alike() -> None:
    dice = np.random.default_rng(8)
    whole = compress.encode(bits(kv("e5m2", 1, 2048)).tobytes(), element="e5m2")
    assert whole is not None
    bad = [whole[:28] + dice.bytes(len(whole) - 28) for _ in range(64)] + [dice.bytes(100) for _ in range(64)]
    assert expect_native_refusals(bad, 2048) == len(bad)


def test_wrong_arguments_are_named() -> None:
    for arguments, words in (
        ({"parts": torch.zeros(8)}, r"shape \[8\]"),
        ({"parts": torch.zeros(2, 512)}, "torch.float32; bfx knows bf16, fp16"),
        ({"parts": torch.zeros(2, 0, dtype=torch.bfloat16)}, "at least one byte"),
        ({"parts": torch.zeros(2, 512, dtype=torch.int16), "element": "int8"}, "element='int8'"),
        ({"parts": torch.zeros(2, 512, dtype=torch.int16), "row_values": -1}, "row_values=-1"),
    ):
        with pytest.raises(ConfigError, match=words):
            encode(**arguments)
    with pytest.raises(ConfigError, match="raw_bytes=0"):
        Units.of([b"x"], 0)
    with pytest.raises(ConfigError, match="lengths"):
        Units(torch.zeros(2, 8, dtype=torch.uint8), torch.zeros(2), 8)
    with pytest.raises(ConfigError, match="data"):
        Units(torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64), 8)
    with pytest.raises(ConfigError, match="element='int8'"):
        decode(Units.of([b"x"], 8), element="int8")  # type: ignore[arg-type]


def test_no_units_at_all_are_no_error() -> None:
    assert encode(torch.zeros(0, 512, dtype=torch.bfloat16)).to_host() == []
    raw, good = decode(Units.of([], 1024))
    assert raw.shape == (0, 1024)
    assert good.shape == (0,)


_WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import halfstep.compress.torch
"""


def test_without_torch_the_error_names_the_extra() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_TORCH], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "halfstep.compress.torch needs torch; in the checkout of Halfstep: pip install '.[torch]'" in done.stderr


@pytest.mark.parametrize("element", DTYPES)
def test_the_host_is_not_waited_for_where_the_element_is_named(element: compress.Element) -> None:
    """A meta tensor has a shape and no values: whatever asks for one on the host, or mixes devices, raises."""
    parts = torch.empty(4, 4129, dtype=DTYPES[element], device="meta")
    units = encode(parts, row_values=ROW)
    raw, good = decode(units, element=element)
    assert (raw.shape, raw.device.type, good.device.type) == ((4, units.raw_bytes), "meta", "meta")
    for waits in (units.to_host, lambda: decode(units), lambda: encode(torch.empty(4, 4129, dtype=torch.int16, device="meta"))):
        with pytest.raises((NotImplementedError, RuntimeError), match=r"[Mm]eta"):
            waits()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("element", DTYPES)
def test_a_gpu_writes_the_same_bytes_and_is_not_waited_for(element: compress.Element) -> None:
    parts = kv(element, 5, 4129, spread=5)
    native = encode(parts, row_values=ROW)
    on_device = parts.cuda()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        units = encode(on_device, row_values=ROW)
        back, good = decode(units, element=element)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert units.to_host() == native.to_host()
    assert good.all()
    np.testing.assert_array_equal(back.cpu().numpy(), bits(parts))
