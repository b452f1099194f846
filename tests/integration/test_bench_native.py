"""The client core alone in an open loop (bench/native): what it says, refuses and notices. No speed is judged."""

from __future__ import annotations

import importlib
import json
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep.errors import ConfigError, InternalError
from halfstep.layout import OPAQUE_PART_BYTES, Group

pytest.importorskip("click")

from tests.bench_command import directio, measures
from tests.integration.commands import PATIENT

from halfstep.tools.bench import place as placing
from halfstep.tools.bench.measure import Timed, measure
from halfstep.tools.bench.place import own_namespace
from halfstep.tools.bench.plan import Plan
from halfstep.tools.bench.report import Report

BS = 4096
LAYOUT = halfstep.Layout({"model": "client_bench"}, [Group(0, (OPAQUE_PART_BYTES,))])  # as the program's


@pytest.fixture
def program(repository: Path) -> Path:
    path = repository / "build" / "release" / "bench" / "halfstep_client_bench"
    if not path.exists():
        pytest.skip(f"{path} is not there: a build of the release preset makes it")
    return path


@pytest.fixture
def native(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """bench/native_driver.py, which is no part of the package."""
    monkeypatch.syspath_prepend(str(repository / "bench"))
    return importlib.import_module("native_driver")


def run(program: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program), *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)


def loop(daemon: Any, namespace: str = "default") -> tuple[str, ...]:
    address = daemon.url.removeprefix("halfstep://").split("/")[0]
    small = ("--bs", str(BS), "--batch", "2", "--iodepth", "3", "--size", "262144")
    return ("--address", address, "--namespace", namespace, "--rate", "400", "--runtime", "250", *small)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "--address: none given; name a daemon's"),
        (("--address", "x:1", "--rw", "coldmixed"), "--rw coldmixed: goes with --rate"),
        (("--address", "x:1", "--rw", "put", "--rate", "5"), "--rw put with --rate: must be get, cold or coldmixed"),
        (("--address", "x:1", "--rw", "list"), "--rw list: must be get or put"),
        (("--address", "x:1", "--rate", "1000001"), "--rate 1000001: must be 0 to 1000000"),
        (("--address", "x:1", "--rate", "5", "--rwmixread", "101"), "--rwmixread 101: must be 0 to 100"),
        (("--address", "x:1", "--iodepth", "65"), "--iodepth 65: must be 1 to 64"),
        (("--address", "x:1", "--bs", "8"), "--bs 8: must be 16 to 67108864"),
        (("--address", "x:1", "--rw", "coldmixed", "--rate", "5"), "--fill 0: coldmixed goes round the store"),
        (("--address", "x:1", "--rate", "fast"), "--rate fast: must be a whole number from 0 to 2^64 - 2"),
        (("--cold-size", "5"), "--cold-size 5: not understood"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(program: Path, arguments: tuple[str, ...], why: str) -> None:
    done = run(program, *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert why in done.stderr


def test_each_program_says_what_it_understands(program: Path) -> None:
    programs = sorted(program.parent.glob("halfstep_*_bench"))
    assert len(programs) >= 9
    for each in programs:
        done = run(each, "--help")
        assert (done.returncode, done.stderr) == (0, ""), each
        assert done.stdout.startswith(f"usage: {each.name} [--name value]..."), each
        assert "  --" in done.stdout, each
    assert "  --bs N  (1048576)\n" in run(program, "--help").stdout


def test_a_core_that_is_not_there_is_refused(program: Path) -> None:
    done = run(program.with_name("halfstep_distance_bench"), "--core", "100000", "--other-core", "0")
    assert done.returncode == 1
    assert f"core 100000: must be 0 to {os.sysconf('SC_NPROCESSORS_CONF') - 1}" in done.stderr


@pytest.mark.integration
def test_a_daemon_that_is_not_there_is_named(program: Path) -> None:
    done = run(program, "--address", "127.0.0.1:9", "--rate", "5")
    assert done.returncode == 1
    assert "127.0.0.1:9: not ready: " in done.stderr
    assert "ECONNREFUSED" in done.stderr


@pytest.mark.integration
@pytest.mark.parametrize("rw", ["get", "cold"])
def test_gets_come_when_they_are_due(program: Path, shared_daemon: Any, tmp_path: Path, rw: str) -> None:
    with own_namespace(shared_daemon.url) as url:
        namespace = url.rsplit("/", 1)[1]
        more = ("--rw", rw, "--cold-bytes", "1048576", "--latencies", str(tmp_path / "l"))
        done = run(program, *loop(shared_daemon, namespace), *more)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["rw"], told["bs"], told["batch"], told["iodepth"], told["runtime_ms"]) == (rw, BS, 2, 3, 250)
    assert told["verified"] is True
    rate, gets = told["rate"], told["gets"]
    assert rate["calls_begun_in_time"] <= rate["calls_made"] <= rate["calls_due"]
    assert told["calls"] == gets["calls"] == rate["calls_made"]
    assert gets["blocks"] == gets["ok"] == 2 * gets["calls"]
    assert (gets["wrong"], gets["answers_not_ok"]) == (0, {})
    assert 0 < gets["latency_us"]["p50"] <= gets["latency_us"]["p99"] <= gets["latency_us"]["p999"]
    assert told["latency_us"] == gets["latency_us"]
    assert (told["puts"]["calls"], told["puts"]["latency_us"]) == (0, None)
    written = np.fromfile(tmp_path / "l.gets")
    assert len(written) == gets["calls"]
    assert gets["latency_us"]["p999"] == pytest.approx(float(np.quantile(written, 0.999, method="inverted_cdf")), abs=0.1)
    assert len(np.fromfile(tmp_path / "l.puts")) == 0


@pytest.mark.integration
@pytest.mark.parametrize("rw", ["get", "put"])
def test_calls_come_one_after_the_other_without_a_rate(program: Path, shared_daemon: Any, rw: str) -> None:
    with own_namespace(shared_daemon.url) as url:
        address = (
            "--address",
            shared_daemon.url.removeprefix("halfstep://").split("/")[0],
            "--namespace",
            url.rsplit("/", 1)[1],
        )
        small = ("--bs", str(BS), "--batch", "2", "--iodepth", "2", "--size", "262144", "--runtime", "50")
        done = run(program, *address, *small, "--rw", rw)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["calls"] > 0
    # Of what is put some may be throttled, on a slow drive.
    refused = told["answers_not_ok"]
    assert all(reason.startswith("throttled") for reason in refused)
    assert rw == "put" or not refused
    ok = 2 * told["calls"] - sum(refused.values())
    assert told["blocks_per_s"] == pytest.approx(ok / told["seconds"], rel=0.02)
    assert told["bytes_per_s"] == pytest.approx(told["blocks_per_s"] * BS, rel=1e-3)
    assert 0 < told["latency_us"]["p50"] <= told["latency_us"]["p999"]
    if told["blocks_per_s"]:
        assert told["cpu_s_per_gib"]["client"] > 0


@pytest.mark.integration
def test_puts_that_are_throttled_are_counted_and_the_run_goes_on(program: Path, shared_daemon: Any) -> None:
    """In a namespace without room for all that is at the daemon at once, for any of it, and for a block at all."""
    address = ("--address", shared_daemon.url.removeprefix("halfstep://"), "--namespace")
    small = ("--bs", str(BS), "--batch", "2", "--iodepth", "2", "--warm-up", "0", "--runtime", "100", "--rw", "put")
    done = []
    with own_namespace(shared_daemon.url) as url, halfstep.connect(url, layout=LAYOUT, required=True, **PATIENT) as client:
        for quota_blocks in (3.0, 1.0, 0.5):
            client.admin.limit_namespace(client.namespace, quota_bytes=int(quota_blocks * BS), pin_budget_bytes=BS)
            if quota_blocks == 1.0:
                # What is there has to go first.
                while not client.put([b"pinned"], np.zeros((1, BS), np.uint8), durability="persist").ok.all():
                    continue
                assert client.pin([b"pinned"], owner=1).ok.all()
            done.append(run(program, *address, client.namespace, *small))
    for some, one in zip((True, False), done, strict=False):
        assert one.returncode == 0, one.stderr
        told = json.loads(one.stdout)
        assert list(told["answers_not_ok"]) == ["throttled (budget)"]
        ok = 2 * told["calls"] - told["answers_not_ok"]["throttled (budget)"]
        assert (0 < ok < 2 * told["calls"]) if some else ok == 0
        assert told["blocks_per_s"] == pytest.approx(ok / told["seconds"], rel=0.02)
        assert told["bytes_per_s"] == pytest.approx(told["blocks_per_s"] * BS, rel=0.01)
        assert (told["cpu_s_per_gib"]["client"] is not None) == some
    assert done[2].returncode == 1
    assert "a block was answered rejected (too_large)" in done[2].stderr, "what will never be taken ends the run"


@pytest.mark.integration
def test_it_makes_a_run_for_each_line(program: Path, shared_daemon: Any) -> None:
    with own_namespace(shared_daemon.url) as url:
        asked = (*loop(shared_daemon, url.rsplit("/", 1)[1]), "--rw", "get", "--ask", "1")
        done = run(program, *asked, text="50\n150\n")
        refused = run(program, *asked, text="soon\n")
    assert done.returncode == 0, done.stderr
    ready, *runs = (json.loads(line) for line in done.stdout.splitlines())
    assert ready["ready"] is True
    assert [one["runtime_ms"] for one in runs] == [50, 150]
    assert all(one["verified"] for one in runs)
    assert refused.returncode == 1
    assert "stdin: soon: not a number of milliseconds" in refused.stderr


@pytest.mark.integration
def test_the_seed_draws_when_calls_are_due(program: Path, shared_daemon: Any) -> None:
    due = []
    with own_namespace(shared_daemon.url) as url:
        for seed in ("1", "2", "1"):
            done = run(program, *loop(shared_daemon, url.rsplit("/", 1)[1]), "--rate", "2000", "--seed", seed)
            due.append(json.loads(done.stdout)["rate"]["calls_due"])
    assert due[0] == due[2]
    assert due[0] != due[1]
    assert all(300 < one < 700 for one in due), "500 of them, as many as the seed draws"


@pytest.mark.integration
@pytest.mark.parametrize("more", [["--rate", "400"], []])
def test_other_bytes_than_were_put_are_noticed(program: Path, shared_daemon: Any, more: list[str]) -> None:
    with own_namespace(shared_daemon.url) as url:
        address = (
            "--address",
            shared_daemon.url.removeprefix("halfstep://").split("/")[0],
            "--namespace",
            url.rsplit("/", 1)[1],
        )
        blocks = np.zeros((64, BS), np.uint8)
        with halfstep.connect(url, layout=LAYOUT, required=True, **PATIENT) as client:
            # Its names: seed and number. What is there before it is answered as present.
            assert client.put([struct.pack("<QQ", 1, number) for number in range(64)], blocks).ok.all()
        small = ("--bs", str(BS), "--batch", "2", "--size", str(64 * BS), "--runtime", "100")
        done = run(program, *address, *small, *more)
    assert done.returncode == 1
    if more:
        told = json.loads(done.stdout)
        assert told["verified"] is False
        assert told["gets"]["wrong"] == told["gets"]["blocks"] - told["gets"]["ok"] > 0
    else:
        assert "blocks of a batch are wrong" in done.stderr


@pytest.mark.integration
def test_a_crowd_says_what_each_client_got(program: Path, shared_daemon: Any) -> None:
    crowd = program.with_name("halfstep_crowd_bench")
    with own_namespace(shared_daemon.url) as url:
        where = ("--address", shared_daemon.url.removeprefix("halfstep://").split("/")[0], "--namespace", url.rsplit("/", 1)[1])
        small = ("--clients", "5", "--bs", "200000", "--batch", "3", "--size", "3000000", "--warm-up", "50", "--runtime", "300")
        done = run(crowd, *where, *small)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert len(told["blocks_each"]) == 5
        assert sum(told["blocks_each"]) == 3 * told["calls"] > 0
        assert told["bytes_per_s"] == pytest.approx(200_000 * sum(told["blocks_each"]) / 0.3, rel=0.01)
        assert told["slowest_us"] >= told["latency_us"]["p50"] > 0
    missing = run(crowd, *where, *small)
    assert missing.returncode == 1
    assert "unknown_namespace" in missing.stderr
    for arguments, why in (
        (("--clients", "0"), "--clients 0: must be 1 to 4096"),
        (("--bs", "262145"), "--bs 262145: must be 16 to 262144"),
    ):
        assert why in run(crowd, "--address", "x:1", *arguments).stderr
    assert "come over TCP" in run(crowd, "--address", "unix:/tmp/x").stderr


@pytest.mark.integration
def test_a_crowd_notices_a_byte_that_changed_on_the_way(program: Path, shared_daemon: Any) -> None:
    host, port = shared_daemon.url.removeprefix("halfstep://").split("/")[0].split(":")

    def pump(source: socket.socket, sink: socket.socket, spoilt_at: int) -> None:
        passed = 0
        with suppress(OSError):
            while data := bytearray(source.recv(65536)):
                if passed <= spoilt_at < passed + len(data):
                    data[spoilt_at - passed] ^= 1
                passed += len(data)
                sink.sendall(data)
        with suppress(OSError):  # one end is gone: so goes the other
            sink.shutdown(socket.SHUT_RDWR)

    def relay(listener: socket.socket, ends: ExitStack, connections: int) -> None:
        for number in range(connections):
            near = ends.enter_context(listener.accept()[0])
            far = ends.enter_context(socket.create_connection((host, int(port))))
            # The first is the client that puts the blocks; of the last, a byte in the middle of the first block that it gets.
            spoilt_at = 100_000 if number == connections - 1 else -1
            for source, sink, at in ((near, far, -1), (far, near, spoilt_at)):
                pumping = threading.Thread(target=pump, args=(source, sink, at))
                pumping.start()
                pumps.append(pumping)

    pumps: list[threading.Thread] = []
    with (
        own_namespace(shared_daemon.url) as url,
        ExitStack() as ends,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        listener.settimeout(60)
        relaying = threading.Thread(target=relay, args=(listener, ends, 3))
        relaying.start()
        where = ("--address", f"127.0.0.1:{listener.getsockname()[1]}", "--namespace", url.rsplit("/", 1)[1])
        small = ("--clients", "2", "--bs", "200000", "--batch", "3", "--size", "600000", "--runtime", "20000")
        done = run(program.with_name("halfstep_crowd_bench"), *where, *small)
        for thread in (relaying, *pumps):
            thread.join(60)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "did not come, or not with its checksum" in done.stderr


def measured(native: Any, program: Path, tmp_path: Path, **changes: Any) -> Report:
    directio(tmp_path)
    plan: dict[str, Any] = {"block_bytes": (65536,), "batch": 1, "iodepth": (8,), "seconds": 1.0, "repeat": 1, "rate": 800.0}
    plan |= {"arena_bytes": 32 << 20, "directory": tmp_path, **changes}
    report = measure(Plan(**plan), lambda _text: None, "", lambda _stream: None, drives_of=native.native_drives(program))
    if "kernel counts" in (why := "".join(one.why for one in report.refused)) or "no block device" in why:
        pytest.skip(why)
    return report


@measures
@pytest.mark.integration
def test_it_gets_from_flash_while_its_puts_go_round_the_store(native: Any, program: Path, tmp_path: Path) -> None:
    report = measured(native, program, tmp_path, scenarios=("coldmixed",), read_share=0.5, seconds=6.0)
    assert report.refused == []
    one = report.results[0].as_json()
    assert one["verified"] is True
    assert one["moved"]["reclaimed_segments"] > 0
    assert one["moved"]["hits_flash"] >= 0.99 * one["reads"]["calls"]
    assert one["reads"]["calls"] + one["writes"]["calls"] == one["calls"]
    assert one["rate"]["calls_due"] == one["calls"] + one["rate"]["calls_never_made"]
    assert one["blocks_looked_at"] == one["reads"]["calls"]


@measures
@pytest.mark.integration
def test_it_gets_what_has_left_memory_and_nobody_else_fills_the_store(native: Any, program: Path, tmp_path: Path) -> None:
    cold_bytes = 12 * (32 << 20)
    report = measured(native, program, tmp_path, scenarios=("cold",), cold_bytes=cold_bytes, rate=0.0, batch=4, seconds=0.3)
    assert report.refused == []
    one = report.results[0].as_json()
    assert one["verified"] is True
    assert (one["blocks_missing"], one["blocks_compared_whole"]) == (0, 0)
    assert one["blocks_looked_at"] == 4 * one["calls"]
    assert one["moved"]["hits_memory"] == 0


@pytest.mark.parametrize(
    "arguments", [("--rate", "1000001"), ("--rate", "5", "--rw", "put"), ("--rate", "5", "--connections", "2")]
)
def test_the_pair_refuses_rates_that_it_does_not_do(program: Path, arguments: tuple[str, ...]) -> None:
    done = run(program.with_name("halfstep_pair_bench"), *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert "rate to 1000000, of gets over one connection" in done.stderr


@measures
@pytest.mark.integration
def test_the_pair_makes_calls_when_they_are_due(program: Path) -> None:
    small = ("--bs", "4096", "--batch", "2", "--iodepth", "3", "--size", "65536")
    done = run(program.with_name("halfstep_pair_bench"), "--rate", "100", "--runtime", "1000", *small)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    rate = told["rate"]
    assert 50 < rate["calls_due"] < 160
    assert 0 < rate["calls_begun_in_time"] <= rate["calls_due"]
    assert told["calls"] == rate["calls_due"], "all of them were made, late ones too"
    assert 0 < told["latency_us"]["p50"] <= told["latency_us"]["p99"] <= told["latency_us"]["p999"]
    closed = run(program.with_name("halfstep_pair_bench"), "--runtime", "50", *small)
    assert json.loads(closed.stdout)["rate"] is None


@measures
@pytest.mark.integration
@pytest.mark.parametrize("check", ["0", "1"])
@pytest.mark.parametrize("block_bytes", ["1000", "1048577"])
def test_the_pair_puts_and_gets_blocks_of_any_length(program: Path, block_bytes: str, check: str) -> None:
    """Whoever receives ends with an error when a block differs from its sum, which follows it where it is put."""
    several = ("--batch", "3", "--iodepth", "3", "--connections", "2", "--check", check, "--runtime", "50")
    for rw in ("put", "get"):
        done = run(program.with_name("halfstep_pair_bench"), "--rw", rw, "--bs", block_bytes, *several)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["calls"] > 0


@measures
@pytest.mark.integration
def test_the_distance_of_two_cores_is_measured(program: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("this process has one core")
    distance = program.with_name("halfstep_distance_bench")
    done = run(distance, "--core", str(allowed[0]), "--other-core", str(allowed[1]))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["there_and_back_ns"]
    assert 0 < told["lowest"] <= told["median"] <= told["highest"]
    for arguments in ((), ("--core", "0", "--other-core", "0")):
        assert "two that are not the same" in run(distance, *arguments).stderr
    assert "--windows 1: must be 2 to 1000000" in run(distance, "--core", "0", "--other-core", "1", "--windows", "1").stderr


@measures
@pytest.mark.integration
def test_a_wrong_byte_counts_in_a_run_that_is_made_again_too(tmp_path: Path) -> None:
    plan = Plan(
        scenarios=("get",),
        block_bytes=(BS,),
        batch=4,
        seconds=0.05,
        repeat=2,
        directory=tmp_path,
        hot_bytes=1 << 20,
        arena_bytes=32 << 20,
    )
    made: list[Timed] = []

    def twice(work: Callable[[], Timed]) -> Timed:
        made.append(work())
        made[-1].driven.timing.outcome.wrong += 1
        made[-1].driven.timing.outcome.reasons["miss (corrupt)"] = 3
        made.append(work())
        return made[-1]

    report = measure(plan, lambda _text: None, "", lambda _stream: None, steadily=twice)
    (result,) = report.results
    assert len(made) == 4
    assert [one.timing for one in result.runs] == [made[1].driven.timing, made[3].driven.timing]
    assert (result.wrong, result.missing) == (2, 0)
    assert result.answers == {"miss (corrupt)": 6}
    assert not result.verified


@measures
@pytest.mark.integration
def test_runs_that_are_not_what_they_are_called_are_refused(native: Any, program: Path, tmp_path: Path) -> None:
    report = measured(native, program, tmp_path, scenarios=("coldmixed",), read_share=1.0)
    assert report.results == []
    assert report.refused[0].why.startswith("reclaim did not run: ")
    report = measured(native, program, tmp_path, scenarios=("cold",), cold_bytes=1 << 20, seconds=0.2)
    assert report.results == []
    assert "give a larger --cold-size" in report.refused[0].why


@measures
@pytest.mark.integration
def test_what_the_program_dies_of_is_what_the_run_dies_of(
    native: Any, program: Path, shared_daemon: Any, tmp_path: Path
) -> None:
    plan = Plan(batch=4, block_bytes=(BS,), hot_bytes=1 << 20, rate=200.0).validated()
    with placing.own_namespace(shared_daemon.url) as url:
        driver = native.NativeDriver(program, plan, url, BS, tmp_path)
        try:
            with pytest.raises(ConfigError, match="rw='put': it does get, cold, coldmixed"):
                driver.begin("put", 1, 64, 0)
            driver.begin("get", 1, 64, 0)
            assert driver.drive(0.05).timing.outcome.wrong == 0
            driver._process.kill()
            with pytest.raises(InternalError, match="halfstep_client_bench: ended by signal 9 before its time"):
                driver.drive(0.05)
        finally:
            driver.close()
    with pytest.raises(ConfigError, match="leave numjobs and durability alone"):
        native.NativeDriver(program, Plan(numjobs=2), shared_daemon.url, BS, tmp_path)
