"""halfstep.compress: units from Python, the same bytes on every path, tensors out of files, and what a layout says."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from halfstep import compress
from halfstep.compress.analysis import analyse, measure
from halfstep.compress.tensors import read_tensors
from halfstep.errors import ConfigError, ProtocolError
from halfstep.layout import Group, Layout
from halfstep.tier import Grid, Kind, KVLayout
from halfstep.tools.cli import main
from halfstep.tools.compress.stored import shapes_of

KV_FILE = Path(__file__).parent / "tensors" / "kv.npz"

# Prints the unit of each element of what it reads, in hex, and decodes it again.
_ENCODE = """
import sys
from halfstep import compress
raw = bytes.fromhex(sys.stdin.read())
print(compress.path())
for element in compress.ELEMENTS:
    unit = compress.encode(raw, element=element, row_values=64)
    assert unit is None or compress.decode(unit, len(raw)) == raw
    print("" if unit is None else unit.hex())
for element in ("bf16", "fp16"):
    unit = compress.encode(raw, codec="ubq", element=element, row_values=3, step=0.1)
    print("" if unit is None else unit.hex() + compress.decode(unit, len(raw), codec="ubq").hex())
"""


def kv_bytes(count: int = 6144, seed: int = 1) -> bytes:
    """bf16 values like those of a cache."""
    values = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def test_a_unit_comes_back_and_says_what_it_is() -> None:
    raw = kv_bytes()
    unit = compress.encode(raw, element="bf16", row_values=128)
    assert unit is not None
    assert len(raw) / len(unit) > 1.4
    assert compress.decode(unit, len(raw)) == raw
    facts = compress.inspect(unit)
    assert (facts.version, facts.element, facts.raw_bytes) == (1, "bf16", len(raw))
    assert compress.inspect(compress.encode(raw) or b"").element == "bf16", "found without being told"
    assert compress.encode(os.urandom(8192)) is None


def test_a_unit_that_is_none_is_the_peers_mistake() -> None:
    unit = compress.encode(kv_bytes(), element="bf16")
    assert unit is not None
    for bad, size in ((unit[:-1], 12288), (unit, 12286), (b"", 12288), (unit[:28], 12288)):
        with pytest.raises(ProtocolError, match="no bfx unit"):
            compress.decode(bad, size)
    with pytest.raises(ProtocolError, match="head"):
        compress.inspect(b"\2" + unit[1:])


def floats(raw: bytes) -> np.ndarray:
    return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)


def test_a_lossy_unit_says_its_step_and_no_value_is_off_by_more_than_half_of_it() -> None:
    raw = kv_bytes()
    unit = compress.encode(raw, codec="ubq", element="bf16", row_values=128, step=0.1)
    assert unit is not None
    assert len(raw) / len(unit) > 2.6
    facts = compress.inspect(unit, codec="ubq")
    assert (facts.version, facts.element, facts.row_values, facts.raw_bytes) == (1, "bf16", 128, len(raw))
    assert facts.step == pytest.approx(0.1, rel=0.1), "values of a deviation of 1"
    before, after = floats(raw), floats(compress.decode(unit, len(raw), codec="ubq"))
    assert not np.array_equal(before, after)
    assert (np.abs(before - after) <= facts.step / 2 * 1.0001 + np.abs(after) / 256).all()
    assert compress.inspect(compress.encode(raw) or b"").step == 0, "exact"
    assert compress.encode(bytes(12288), codec="ubq", element="bf16", row_values=128, step=0.1) is None, "it has no step"


def test_a_lossy_codec_takes_nothing_that_is_not_stated() -> None:
    stated: dict[str, Any] = {"codec": "ubq", "element": "bf16", "row_values": 128, "step": 0.1}
    for change, words in (
        ({"step": 0.0}, "needs a step"),
        ({"step": 5.0}, "step=5.0: must be 0.001 to 4"),
        ({"step": float("nan")}, "step=nan"),
        ({"row_values": 0}, "row_values"),
        ({"element": None}, "has to know the element"),
        ({"element": "e4m3"}, "codes bf16 and fp16, not e4m3"),
        ({"codec": "bfx"}, "'bfx' is exact"),
    ):
        with pytest.raises(ConfigError, match=words):
            compress.encode(kv_bytes(), **(stated | change))


def test_wrong_arguments_are_named() -> None:
    for arguments, words in (
        ({"codec": "lz4"}, "raw, bfx, ubq, zstd"),
        ({"element": "int8"}, "bf16, fp16"),
        ({"element": "bf16", "row_values": -1}, "row_values"),
    ):
        with pytest.raises(ConfigError, match=words):
            compress.encode(b"x" * 512, **arguments)
    with pytest.raises(ConfigError, match="lz4"):
        compress.coding_fields("lz4")


def encode_on(name: str, raw: bytes) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _ENCODE],
        input=raw.hex(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"HALFSTEP_COMPRESS_PATH": name},
    )
    if done.returncode != 0:
        assert "this processor has no such path" in done.stderr, done.stderr
        pytest.skip(f"this processor has no {name} path")
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", ["avx2", "avx512"])
def test_every_path_writes_the_same_bytes(name: str) -> None:
    raw = kv_bytes(5001)  # rows of 3
    plain = encode_on("plain", raw)
    assert plain[0] == "plain"
    assert any(plain[1:])
    assert encode_on(name, raw) == [name, *plain[1:]]


def test_a_path_that_is_none_ends_the_process_with_a_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ENCODE],
        input="00" * 1024,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"HALFSTEP_COMPRESS_PATH": "sse"},
    )
    assert done.returncode != 0
    assert "HALFSTEP_COMPRESS_PATH=sse: this processor has no such path; use plain, avx2 or avx512" in done.stderr


def kv_layout(codec: str = "", dtype: str = "bfloat16", planes: tuple[int, ...] = (128, 128)) -> KVLayout:
    return KVLayout("m", "r", dtype, 16, (Kind("full", (0, 1), 2, planes),), codec=codec)


def test_a_layout_says_how_its_blocks_are_coded() -> None:
    assert kv_layout("bfx").layout.fields["codec.0"] == "bf16/64"
    assert kv_layout("bfx", planes=(128, 64)).layout.fields["codec.0"] == "bf16/64,bf16/32"
    assert kv_layout("bfx", "fp8", (128, 128)).layout.fields["codec.0"] == "e4m3/128"
    assert "codec.0" not in kv_layout("bfx", "int8").layout.fields, "nobody knows what they are"
    with pytest.raises(ConfigError, match="codec='fast'"):
        kv_layout("fast")


def test_a_layout_says_the_step_of_a_lossy_codec() -> None:
    def layout(step: float | tuple[float, ...], dtype: str = "bfloat16", planes: tuple[int, ...] = (128, 128)) -> KVLayout:
        return KVLayout("m", "r", dtype, 16, (Kind("full", (0, 1), 2, planes),), codec="ubq", step=step)

    assert layout(0.1).layout.fields["codec.0"] == "bf16/64/0.1"
    assert layout((0.03, 0.25)).layout.fields["codec.0"] == "bf16/64/0.03,bf16/64/0.03,bf16/64/0.25,bf16/64/0.25"
    assert layout((0.03, 0.25), planes=(128, 64)).layout.fields["codec.0"] == "bf16/64/0.03,bf16/32/0.25"
    assert len({layout(0.1), layout(0.2), kv_layout("bfx"), kv_layout()}) == 4, "who asked for exact blocks meets no others"
    for make, words in (
        (lambda: layout(0.0), "needs a step"),
        (lambda: layout((0.1,)), "one for each of the 2 planes"),
        (lambda: layout(0.1, "fp8"), "not e4m3"),
        (lambda: layout(0.1, "int8"), "is lossy, and has to know"),
        (lambda: KVLayout("m", "r", "bf16", 16, (Kind("full", (0,), 1, (128,)),), step=0.1), "only a lossy codec"),
        (lambda: KVLayout("m", "r", "bf16", 16, (Kind("full", (0,), 1, (128,)),), codec="bfx", step=0.1), "only a lossy codec"),
        (lambda: compress.coding_fields("ubq"), "is lossy, and has to know"),
    ):
        with pytest.raises(ConfigError, match=words):
            make()


def test_a_layout_without_a_codec_is_what_it_was() -> None:
    assert kv_layout().layout.fields.keys().isdisjoint({"codec", "codec.0"})
    assert kv_layout().layout != kv_layout("bfx").layout, "coded and plain blocks never meet"


def test_figures_are_the_same_each_time_and_below_their_bound() -> None:
    tensors = list(read_tensors(KV_FILE))
    assert [tensor.bits.shape for tensor in tensors] == [(2, 2, 2, 32, 64)]
    wholes, planes = analyse(tensors, [16, 32, 64])
    assert analyse(tensors, [16, 32, 64]) == (wholes, planes)
    assert [one.unit_tokens for one in wholes] == [16, 32], "no unit of 64 tokens is there"
    assert {one.plane for one in planes} == {"layer 0 K", "layer 0 V", "layer 1 K", "layer 1 V"}
    for one in planes:
        assert 1.3 < one.ratio < one.bound
    for whole in wholes:
        assert whole.raw_bytes == 2 * 2 * 2 * 32 * 64 * 2
        assert 1 < whole.flash_ratio <= whole.ratio


def safetensors(path: Path, header: object, data: bytes) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_safetensors_are_read_by_dtype(tmp_path: Path) -> None:
    raw = kv_bytes(2 * 32 * 64)
    header = {
        "__metadata__": {"format": "pt"},
        "k": {"dtype": "BF16", "shape": [2, 32, 64], "data_offsets": [0, len(raw)]},
        "ids": {"dtype": "I64", "shape": [1], "data_offsets": [len(raw), len(raw) + 8]},
    }
    tensors = list(read_tensors(safetensors(tmp_path / "a.safetensors", header, raw + bytes(8))))
    assert [(one.name, one.element, one.bits.tobytes()) for one in tensors] == [("k", "bf16", raw)]


@pytest.mark.parametrize(
    "told",
    [
        {"dtype": "BF16", "shape": [4], "data_offsets": [0, 99]},
        {"dtype": "BF16", "shape": [400], "data_offsets": [0, 8]},
        {"dtype": "BF16", "shape": [4], "data_offsets": [8, 0]},
        {"dtype": "BF16", "shape": [4]},
    ],
)
def test_a_file_that_lies_is_refused_by_name(tmp_path: Path, told: dict[str, object]) -> None:
    path = safetensors(tmp_path / "bad.safetensors", {"k": told}, bytes(8))
    with pytest.raises(ConfigError, match=r"bad\.safetensors"):
        list(read_tensors(path))


@pytest.mark.parametrize(
    ("header", "said"),
    [([], "header is a JSON list"), ("k", "header is a JSON str"), ({"k": [1]}, "tensor k is described by a JSON list")],
)
def test_a_header_of_the_wrong_type_is_refused_by_name(tmp_path: Path, header: object, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"bad\.safetensors: .*{said}"):
        list(read_tensors(safetensors(tmp_path / "bad.safetensors", header, bytes(8))))


def test_a_dimension_longer_than_a_row_is_analysed_without_bases(tmp_path: Path) -> None:
    raw = kv_bytes(2 * 16 * (compress.ROW_VALUES_MAX + 1))
    header = {"k": {"dtype": "BF16", "shape": [2, 16, compress.ROW_VALUES_MAX + 1], "data_offsets": [0, len(raw)]}}
    path = safetensors(tmp_path / "wide.safetensors", header, raw)
    lengths, _ = analyse(read_tensors(path), [16])
    assert lengths[0].ratio > 1.3
    assert measure(read_tensors(path), 16).encode_gb_s > 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.npz", "none.npz: No such file or directory$"),
        ("none.safetensors", "none.safetensors: No such file or directory$"),
        ("kv.txt", "kv.txt: must be"),
    ],
)
def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        list(read_tensors(tmp_path / name))


def test_a_file_that_ends_in_its_first_number_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "cut.safetensors").write_bytes(b"1234")
    with pytest.raises(ConfigError, match=r"cut\.safetensors: .*it has 4 bytes"):
        list(read_tensors(tmp_path / "cut.safetensors"))


@pytest.mark.parametrize(
    ("name", "content"),
    [("empty.npz", b""), ("deep.safetensors", struct.pack("<Q", 100_000) + b"[" * 100_000)],
    ids=["nothing", "nested"],
)
def test_a_file_that_its_reader_gives_up_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{name}: cannot be read as {name.partition('.')[2]}: "):
        list(read_tensors(tmp_path / name))


def test_the_command_prints_a_table_and_json() -> None:
    table = CliRunner().invoke(main, ["compress", "analyse", str(KV_FILE), "--unit-tokens", "16"], standalone_mode=False)
    assert table.exit_code == 0, table.output
    assert "layer 1 V" in table.output
    told = CliRunner().invoke(main, ["compress", "analyse", str(KV_FILE), "--json"], standalone_mode=False)
    document = json.loads(told.output)
    assert document["lengths"][0]["policy"] == "exact"
    assert document["speeds"] is None, "what differs between machines is asked for"
    nothing = CliRunner().invoke(main, ["compress", "analyse", str(KV_FILE), "--tensor", "q*"], standalone_mode=False)
    assert isinstance(nothing.exception, ConfigError)


def test_a_picture_has_every_plane(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, start in (("planes.svg", b"<?xml"), ("planes.png", b"\x89PNG")):
        done = CliRunner().invoke(
            main, ["compress", "analyse", str(KV_FILE), "--picture", str(tmp_path / name)], standalone_mode=False
        )
        assert done.exception is None
        assert (tmp_path / name).read_bytes().startswith(start)
    bad = CliRunner().invoke(main, ["compress", "analyse", str(KV_FILE), "--picture", "planes.pdf"], standalone_mode=False)
    assert isinstance(bad.exception, ConfigError)
    assert str(bad.exception).startswith("picture=planes.pdf: must end in")


def two_kinds(codec: str, dtype: str = "bfloat16") -> KVLayout:
    kinds = (
        Kind("full", (0, 1, 5), 4, (64, 64)),
        Kind("latent", (2, 3), 1, (144,), window=64),
        Kind("uneven", (7,), 2, (64, 32)),
    )
    return KVLayout("m", "r", dtype, 16, kinds, Grid(2, 1), codec=codec)


@pytest.mark.parametrize("codec", ["", "bfx"])
def test_a_layout_says_what_its_parts_are(codec: str) -> None:
    layout = two_kinds(codec)
    shapes = shapes_of(layout.layout)
    assert [[(one.element, one.row_values) for one in shapes[number].values] for number in range(3)] == [
        [("bf16", 32)],
        [("bf16", 72)],
        [("bf16", 32), ("bf16", 16)],
    ]
    for number, kind in enumerate(layout.kinds):
        for cell in layout.cells(kind.name):
            for layer in range(len(cell.layers)):
                for plane in range(len(kind.planes)):
                    for head in range(len(cell.heads)):
                        said = shapes[number].plane_of(cell.component & 0xFFFFF, cell.part(layer, plane, head))
                        told = f"layer {kind.layers[cell.layers[layer]]}"
                        assert said == (f"{told} {'KV'[plane]}" if len(kind.planes) == 2 else told)
    assert {one.block_tokens for one in shapes.values()} == {16}


@pytest.mark.parametrize("window", [0, 8])
def test_a_kinds_own_dtype_says_what_its_values_are(window: int) -> None:
    kinds = (Kind("wide", (0,), 2, (64,)), Kind("narrow", (1,), 2, (64,), window=window, dtype="fp8_e5m2"))
    shapes = shapes_of(KVLayout("m", "r", "bfloat16", 16, kinds).layout)
    assert [[(one.element, one.row_values) for one in shapes[number].values] for number in (0, 1)] == [
        [("bf16", 32)],
        [("e5m2", 64)],
    ]
    assert shapes[1].plane_of(0, 0) == "layer 1"
    packed = Kind("packed", (0,), 1, (656,), dtype="fp8_ds_mla")
    assert shapes_of(KVLayout("m", "r", "bfloat16", 16, (packed,)).layout) == {}, "no bf16, whatever the layout says"


def test_a_step_is_no_part_of_a_row() -> None:
    kind = Kind("full", (0,), 1, (64, 64))
    layout = KVLayout("m", "r", "bfloat16", 16, (kind,), codec="ubq", step=(0.1, 0.2)).layout
    assert shapes_of(layout)[0].values == (compress.PartValues("bf16", 32, 0.1), compress.PartValues("bf16", 32, 0.2))


@pytest.mark.parametrize("told", ["bf16,int4", "bf16/x", "bf16/3/y", "bf16/3/9", "bf16/3/0.1/1", "bf16/99999", "/3", "bf16,"])
def test_parts_of_which_one_is_not_known_are_not_told(told: str) -> None:
    assert shapes_of(Layout({"codec": "bfx", "codec.0": told}, [Group(2, (64,))])) == {}


def test_a_layout_that_says_nothing_is_told_or_left_out() -> None:
    opaque = Layout.opaque("file")
    assert shapes_of(opaque) == {}
    assert shapes_of(two_kinds("", "int8").layout) == {}
    told = shapes_of(opaque, "e4m3")[0]
    assert told.values == (compress.PartValues("e4m3"),)
    assert (told.block_tokens, told.plane_of(0, 3)) == (0, "group 0")
    strange = Layout(
        {"codec": "bfx", "codec.0": "int4/7", "kind0": "x: 0-1, 0 heads, 1/1", "order": "other"}, [Group(2, (64,))]
    )
    assert shapes_of(strange) == {}
    assert shapes_of(strange, "bf16")[0].plane_of(0, 1) == "group 0"
