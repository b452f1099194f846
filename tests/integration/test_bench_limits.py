"""`halfstep bench device` and `wire`, and what the plain reads are made of. No speed is judged."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("click")

from tests.bench_command import command, directio, document, interrupt

from halfstep.errors import DeviceError
from halfstep.tools.bench.device import BlockDevice, extents_of, raw_read_speed, written_ranges
from halfstep.tools.bench.device_limit import noise_file
from halfstep.tools.bench.fio import iolog, job_command, replay_command, replay_fio


def test_what_fio_is_told(tmp_path: Path) -> None:
    plain = job_command(Path("/a:b"), "mixed", 65536, 16, 1 << 20, 70, 7, 0.0)
    assert {"--filename=/a\\:b", "--rw=randrw", "--bs=65536", "--iodepth=16", "--size=1048576", "--rwmixread=70"} <= set(plain)
    assert not any("rate" in word for word in plain)
    assert job_command(Path("/a"), "mixed", 65536, 16, 1 << 20, 70, 7, 1000.0)[-2:] == [
        "--rate_iops=700,300",
        "--rate_process=poisson",
    ]
    assert job_command(Path("/a"), "randread", 65536, 16, 1 << 20, 70, 7, 1000.0)[-2] == "--rate_iops=1000,1"
    assert job_command(Path("/a"), "mixed", 65536, 16, 1 << 20, 100, 7, 10.0)[-2] == "--rate_iops=10,1", (
        "0 would be without end"
    )
    replay = replay_command(Path("/a"), Path("/log"), 64)
    assert {"--read_iolog=/log", "--replay_no_stall=1", "--replay_redirect=/a", "--iodepth=64", "--readonly"} <= set(replay)
    assert not any("batch" in word for word in replay)
    assert {"--iodepth_batch=16", "--iodepth_low=48"} <= set(replay_command(Path("/a"), Path("/log"), 64, 16))
    assert "--iodepth_low=1" in replay_command(Path("/a"), Path("/log"), 16, 16), "0 would be the depth"
    assert iolog([(4096, 512), (0, 1024)], 2).splitlines() == [
        "fio version 2 iolog",
        "x add",
        "x open",
        *["x read 4096 512", "x read 0 1024"] * 2,
        "x close",
    ]


def test_fio_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="fio: there is none here; install the package fio"):
        replay_fio(tmp_path / "x", [(0, 4096)], depth=1, seconds=0.1)


@pytest.mark.integration
def test_fio_reads_the_extents_that_it_is_given_and_writes_nothing(tmp_path: Path) -> None:
    directio(tmp_path)
    if shutil.which("fio") is None:
        pytest.skip("there is no fio here")
    path = tmp_path / "some:file"
    bytes_there = os.urandom(1 << 20)
    path.write_bytes(bytes_there)
    # Beyond the end of the file nothing could be read, and a list that ends at once is read again.
    extents = [(at, 16384) for at in range(0, 1 << 20, 65536)]
    try:
        side = replay_fio(path, extents, depth=4, seconds=0.2, together=2)
    except DeviceError as error:
        if "io_uring" in str(error):
            pytest.skip(str(error))
        raise
    assert side.name == "read"
    assert side.transfers > len(extents)
    assert 0 < side.p50_us <= side.p99_us <= side.p999_us
    assert path.read_bytes() == bytes_there
    with pytest.raises(DeviceError, match="before time and list were over"):
        replay_fio(path, [(2 << 20, 16384)] * 64, depth=4, seconds=0.2)


@pytest.mark.integration
@pytest.mark.parametrize("tool", ["fio", "preadv"])
def test_a_drive_is_measured_in_every_mode_and_left_as_it_was(tmp_path: Path, tool: str) -> None:
    directio(tmp_path)
    if tool == "fio" and shutil.which("fio") is None:
        pytest.skip("there is no fio here")
    sweep = ("--rw", "read,randread,write,mixed", "--bs", "4k,64k", "--iodepth", "1,3", "--size", "1MiB", "--rwmixread", "50")
    result = command(
        "device", *sweep, "--runtime", "0.1", "--repeat", "1", "--tool", tool, "--directory", str(tmp_path), "--json"
    )
    if tool == "fio" and "io_uring" in result.stderr:
        pytest.skip(result.stderr)
    assert result.exit_code == 0, result.output
    told = document(result)
    points = [(one["rw"], one["block_bytes"], one["iodepth"]) for one in told["results"]]
    modes = ("read", "randread", "write", "mixed")
    assert points == [(mode, size, depth) for mode in modes for size in (4096, 65536) for depth in (1, 3)]
    for one in told["results"]:
        sides = {side["name"] for side in one["sides"]}
        assert sides <= {"read": {"read"}, "randread": {"read"}, "write": {"write"}, "mixed": {"read", "write"}}[one["rw"]]
        assert one["gigabytes_per_s"] > 0
        assert one["by"].startswith("fio-" if tool == "fio" else "preadv")
        for side in one["sides"]:
            assert 0 < side["p50_us"] <= side["p99_us"] <= side["p999_us"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_what_fio_says_before_it_fails_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directio(tmp_path)
    fio = tmp_path / "fio"
    fio.write_text("#!/bin/sh\n[ $1 = --version ] && echo fio-0 && exit\necho '{\"jobs\": ['\necho no ring here >&2\nexit 1\n")
    fio.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    result = command("device", "--size", "1MiB", "--runtime", "0.1", "--directory", str(tmp_path))
    assert result.exit_code == 3, result.output
    assert "fio with io_uring ended with status 1: no ring here; --tool preadv needs neither of them" in result.stderr
    assert list(tmp_path.iterdir()) == [fio]


@pytest.mark.integration
def test_a_path_that_is_given_is_read_and_never_written(tmp_path: Path) -> None:
    directio(tmp_path)
    path = tmp_path / "somebody's:data"
    path.write_bytes(os.urandom(300_000))
    before = path.read_bytes()
    result = command("device", str(path), "--bs", "4k", "--runtime", "0.1", "--repeat", "1", "--json")
    assert result.exit_code == 0, result.output
    assert [side["name"] for one in document(result)["results"] for side in one["sides"]] == ["read"]
    for rw in ("write", "mixed"):
        refused = command("device", str(path), "--rw", rw)
        assert refused.exit_code == 3
        assert f"{rw} would overwrite it" in refused.stderr
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.integration
def test_a_signal_right_after_a_file_was_made_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_open = os.open

    def interrupted(path: Path, flags: int, mode: int) -> int:
        os.close(really_open(path, flags, mode))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), noise_file(tmp_path, 1 << 20, lambda _text: None):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("what", [("device", "--tool", "auto"), ("device", "--tool", "preadv"), ("wire", "--connections", "3")])
def test_a_limit_ends_cleanly_when_it_is_interrupted(tmp_path: Path, number: int, what: tuple[str, ...]) -> None:
    directio(tmp_path)
    mine = ("--directory", str(tmp_path), "--size", "1MiB") if what[0] == "device" else ()
    starts_something = what[0] == "wire" or (what[-1] == "auto" and shutil.which("fio") is not None)

    def ready(children: list[str]) -> bool:
        return any(tmp_path.iterdir()) and (bool(children) or not starts_something)

    interrupt([*what, *mine, "--runtime", "60"], number, ready, TMPDIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_the_wire_is_measured_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sweep = ("--bs", "4k,64k", "--connections", "1,2", "--ping", "1,64", "--size", "1MiB")
    result = command("wire", *sweep, "--runtime", "0.05", "--repeat", "2", "--json")
    assert result.exit_code == 0, result.output
    told = document(result)
    points = [(one["over"], one["block_bytes"], one["connections"]) for one in told["streams"]]
    assert points == [(over, size, count) for over in ("tcp", "unix") for size in (4096, 65536) for count in (1, 2)]
    assert all(one["gigabytes_per_s"] > 0 and len(one["runs_gigabytes_per_s"]) == 2 for one in told["streams"])
    assert [(one["over"], one["message_bytes"]) for one in told["pings"]] == [
        (over, size) for over in ("tcp", "unix") for size in (1, 64)
    ]
    assert all(0 < one["p50_us"] <= one["p99_us"] <= one["p999_us"] for one in told["pings"])
    assert list(tmp_path.iterdir()) == []


def test_raw_reads_cover_what_was_written_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 16 << 20)
        file.seek(4 << 20)
        file.write(os.urandom(2 << 20))
        file.flush()
        os.fsync(file.fileno())
    if written_ranges(path) != [(4 << 20, 6 << 20)]:
        pytest.skip(f"this file system does not tell what was written: {written_ranges(path)}")
    extents = extents_of(path, 64 << 10, 4, 2 << 20, seed=1)
    assert sorted(extents) == [(at, 64 << 10) for at in range(4 << 20, 6 << 20, 64 << 10)]
    directio(tmp_path)
    speed = raw_read_speed(path, BlockDevice.of(path), extents, 4)
    assert speed.bytes == 2 << 20
    small = extents_of(path, 4096, 64, 4 << 20, seed=1)
    assert {length for _, length in small} == {64 << 10}, "neighbours are read together"
    assert sorted(small) == sorted(extents * 2), "all of it comes again where more is wanted"
    assert speed.bytes_per_s > 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["device", "--rw", "get"], "rw='get'"),
        (["device", "--rw", ""], "rw='': nothing chosen; choose from read, randread"),
        (["device", "--bs", "1000"], "bs=1000: must be a multiple of 512"),
        (["device", "--iodepth", "0"], "iodepth=0: must be 1 to 1024"),
        (["device", "--size", "1"], "size=1: must be"),
        (["device", "--rwmixread", "101"], "rwmixread=101"),
        (["device", "--seed", "-1"], "seed=-1: must be 0 to"),
        (["device", "/dev/null"], "/dev/null: is neither a file nor a block device"),
        (["wire", "--over", "udp"], "over='udp'"),
        (["wire", "--over", ","], "over='': nothing chosen; choose from tcp, unix"),
        (["wire", "--connections", "17"], "connections=17: must be 1 to 16"),
        (["wire", "--ping", "0"], "ping=0"),
        (["wire", "--congestion", "none-such"], "congestion=none-such"),
    ],
)
def test_a_limit_that_cannot_be_measured_is_named(arguments: list[str], named: str) -> None:
    result = command(*arguments)
    assert result.exit_code == 3, result.output
    assert named in result.stderr


def test_a_file_that_does_not_fit_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _directory: SimpleNamespace(free=(1 << 20) - 1))
    result = command("device", "--size", "1MiB", "--directory", str(tmp_path))
    assert result.exit_code == 3
    assert f"size=1 MiB: {tmp_path} has 1023 KiB free; lower it or name another --directory" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_subcommand_takes_nothing_from_those_who_name_a_daemon() -> None:
    for words in ([], ["--json"], ["halfstep://127.0.0.1:1/x"], ["--rw", "get", "device"]):
        result = command(*words, "--batch", "0")
        assert "batch=0: must be 1 to 1024" in result.stderr, words
    usage = command("--help").stdout
    assert "bench [OPTIONS] [URL]" in usage
    assert "halfstep bench device" in usage
