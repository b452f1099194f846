"""`halfstep bench` in fractions of a second: what it says, what it refuses, what it leaves behind. No speed is judged."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep.errors import ConfigError, InternalError, Unavailable

pytest.importorskip("click")

from tests.bench_command import END_S, QUICK, bench, command, directio, document, interrupt, measures, processes_of, wait_until

from halfstep.tools.bench import driver as driving
from halfstep.tools.bench import measure as measuring
from halfstep.tools.bench import place as placing
from halfstep.tools.bench.clones import Clones
from halfstep.tools.bench.content import Content
from halfstep.tools.bench.plan import Plan
from halfstep.tools.bench.workload import Timing
from halfstep.tools.daemon_process import DaemonProcess


@measures
@pytest.mark.integration
@pytest.mark.parametrize("more", [[], ["--iodepth", "3", "--connections", "2", "--durability", "persist", "--no-pin"]])
def test_results_carry_what_programs_read(tmp_path: Path, more: list[str]) -> None:
    result = bench("--rw", "get,put,mixed,match", "--directory", str(tmp_path), *more)
    assert result.exit_code == 0, result.output
    told = document(result)
    assert [one["name"] for one in told["results"]] == ["get", "put", "mixed", "match"]
    for one in told["results"]:
        assert (one["block_bytes"], one["batch"]) == (65536, 4)
        assert one["verified"] is True
        assert one["blocks_per_s"] > 0
        latency = one["latency_us"]
        assert 0 < latency["p50"] <= latency["p99"] <= latency["p999"]
        if one["name"] == "match":
            assert one["cpu_s_per_gib"] == {"client": None, "daemon": None}
            assert one["gigabytes_per_s"] is one["limit_gigabytes_per_s"] is one["ratio_to_limit"] is None
        else:
            assert one["gigabytes_per_s"] == pytest.approx(one["blocks_per_s"] * 65536 / 1e9)
            assert one["ratio_to_limit"] == pytest.approx(one["gigabytes_per_s"] / one["limit_gigabytes_per_s"])
            assert one["cpu_s_per_gib"]["client"] > 0
            assert one["cpu_s_per_gib"]["daemon"] >= 0
    assert told["refused"] == []
    head = told["header"]
    assert head["build"] == "release"
    assert set(head) >= {"kernel", "device", "command", "seed", "commit", "cpu", "congestion_control", "engine", "pinned"}


@measures
@pytest.mark.integration
def test_a_daemon_of_its_own_is_reached_over_shared_memory(tmp_path: Path) -> None:
    result = bench("--rw", "get", "--transport", "shm", "--directory", str(tmp_path))
    assert result.exit_code == 0, result.output
    told = document(result)
    assert told["header"]["path"].startswith("shm ")
    (one,) = told["results"]
    assert (one["name"], one["verified"]) == ("get", True)


def test_a_namespace_of_its_own_is_reached_by_the_urls_transport() -> None:
    assert placing.with_namespace("halfstep://h:1/x?transport=rdma", "y") == "halfstep://h:1/y?transport=rdma"
    assert placing.Place("halfstep://127.0.0.1:1/x?transport=rdma", {}).loopback is None, "no stream limit is that of RDMA"


def test_rdma_takes_the_address_of_a_device_or_says_that_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no RDMA device with an IPv4 address; measure a daemon elsewhere"):
        placing.device_address(tmp_path)
    gids = tmp_path / "rxe0" / "ports" / "1" / "gids"
    gids.mkdir(parents=True)
    (gids / "0").write_text("fe80:0000:0000:0000:5054:00ff:fe12:3456\n")
    (gids / "1").write_text("0000:0000:0000:0000:0000:ffff:0a09:0001\n")
    (gids / "2").write_text("")
    assert placing.device_address(tmp_path) == "10.9.0.1"


@measures
@pytest.mark.integration
def test_a_sweep_has_a_result_for_every_size_and_depth_and_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "sweep.svg"
    sweep = ("--rw", "get,put", "--bs", "4k,64k", "--iodepth", "1,3", "--ramp", "0.05", "--latency-goal", "60s")
    drawn = ["--plot", str(picture)] if importlib.util.find_spec("matplotlib") else []
    result = bench(*sweep, "--directory", str(tmp_path), *drawn)
    assert result.exit_code == 0, result.output
    told = document(result)
    points = [(one["name"], one["block_bytes"], one["iodepth"]) for one in told["results"]]
    assert points == [(name, size, depth) for size in (4096, 65536) for name in ("get", "put") for depth in (1, 3)]
    assert all(one["verified"] for one in told["results"])
    for kept in told["latency_goal"]["kept_by"]:
        rivals = [one for one in told["results"] if (one["name"], one["block_bytes"]) == (kept["name"], kept["block_bytes"])]
        assert kept["iodepth"] == max(rivals, key=lambda one: one["blocks_per_s"])["iodepth"]
    assert len(told["latency_goal"]["kept_by"]) == 4
    if drawn:
        text = picture.read_text()
        assert text.count("get, depth 3") == text.count("put, 64 KiB") == 2, "a line of each chart has this name"


@measures
@pytest.mark.integration
def test_every_layer_of_every_call_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timings: list[Timing] = []

    def watched(*arguments: Any, **options: Any) -> Timing:
        timings.append(drive(*arguments, **options))
        return timings[-1]

    drive = driving.drive
    monkeypatch.setattr(driving, "drive", watched)
    result = bench("--rw", "layerwise", "--parts", "8", "--iodepth", "2", "--directory", str(tmp_path))
    assert result.exit_code == 0, result.output
    (one,) = document(result)["results"]
    assert (one["name"], one["verified"]) == ("layerwise", True)
    assert one["blocks_compared_whole"] == 32
    for timing in timings:
        assert timing.layers is not None
        assert len(timing.layers.first_us) == len(timing.latencies_us)
        assert len(timing.layers.each_us) == 7 * len(timing.latencies_us)
        assert timing.layers.first_us.sum() + timing.layers.each_us.sum() <= timing.latencies_us.sum() * 1.000001
    assert 0 < one["first_layer_us"]["p50"] <= one["first_layer_us"]["p99"] <= one["latency_us"]["p999"]
    assert one["further_layer_us"]["p50"] <= one["further_layer_us"]["p99"]


@measures
@pytest.mark.integration
def test_clones_do_the_same_at_once_and_are_told_of_together(tmp_path: Path) -> None:
    result = bench("--rw", "get,put,mixed,match,layerwise", "--numjobs", "3", "--iodepth", "2", "--directory", str(tmp_path))
    assert result.exit_code == 0, result.output
    told = document(result)
    assert told["header"]["numjobs"] == 3
    assert [(one["name"], one["verified"]) for one in told["results"]] == [
        (name, True) for name in ("get", "put", "mixed", "match", "layerwise")
    ]
    for one in told["results"]:
        assert one["calls"] >= 6, "a clone keeps two calls at its client"
        # A slow drive may throttle puts.
        puts = one["name"] in ("put", "mixed")
        assert all(puts and reason.startswith("throttled") for reason in one["answers_not_ok"]), one["answers_not_ok"]
    assert processes_of(tmp_path) == []


@measures
@pytest.mark.integration
@pytest.mark.parametrize("more", [[], ["--numjobs", "2"]])
def test_calls_come_at_a_rate(tmp_path: Path, more: list[str]) -> None:
    rate = ("--rate", "200", "--runtime", "0.5", "--ramp", "0.1", "--iodepth", "4", "--batch", "2")
    result = bench("--rw", "get,put,mixed", *rate, *more, "--directory", str(tmp_path))
    assert result.exit_code == 0, result.output
    told = document(result)
    assert told["header"]["rate"] == 200
    jobs = told["header"]["numjobs"]
    for one in told["results"]:
        assert one["verified"] is True
        assert 0.5 * 200 * jobs < one["rate"]["offered_calls_per_s"] < 1.5 * 200 * jobs, "as many as the seed draws"
        assert one["calls"] == one["rate"]["calls_due"] - one["rate"]["calls_never_made"]
        assert ("reads" in one) == ("writes" in one) == (one["name"] == "mixed")
    mixed = told["results"][2]
    assert mixed["reads"]["calls"] + mixed["writes"]["calls"] == mixed["calls"]
    assert mixed["reads"]["latency_us"]["p50"] <= mixed["latency_us"]["p999"]


@measures
@pytest.mark.integration
@pytest.mark.parametrize("more", [["--rate", "800", "--iodepth", "8"], ["--iodepth", "4", "--numjobs", "2"]])
def test_gets_from_flash_while_puts_go_round_the_store(tmp_path: Path, more: list[str]) -> None:
    directio(tmp_path)
    # The smallest memory, so that little is written; many puts, so that a segment is filled soon.
    small = ("--arena", "32MiB", "--rwmixread", "50", "--runtime", "4", "--batch", "1")
    result = bench("--rw", "coldmixed", *small, *more, "--directory", str(tmp_path))
    told = document(result)
    if "kernel counts" in (why := "".join(one["why"] for one in told["refused"])) or "no block device" in why:
        pytest.skip(why)
    assert result.exit_code == 0, result.output
    (one,) = told["results"]
    assert one["verified"] is True
    assert one["moved"]["reclaimed_segments"] > 0
    assert one["moved"]["hits_flash"] >= 0.99 * one["reads"]["calls"]
    assert one["reads"]["calls"] + one["writes"]["calls"] == one["calls"]
    assert one["limit"] is None


@measures
@pytest.mark.integration
@pytest.mark.timeout(1200)  # it fills stores, which a busy machine does slowly
def test_coldmixed_without_reclaim_is_refused_by_name(tmp_path: Path) -> None:
    result = bench("--rw", "coldmixed", "--arena", "32MiB", "--rwmixread", "100", "--batch", "1", "--directory", str(tmp_path))
    assert result.exit_code == 1, result.output
    (refused,) = document(result)["refused"]
    assert refused["name"] == "coldmixed"
    assert refused["why"].startswith("reclaim did not run: ")


@measures
@pytest.mark.integration
def test_what_a_clone_dies_of_is_what_the_run_dies_of(shared_daemon: Any) -> None:
    plan = Plan(numjobs=3, batch=4, block_bytes=(4096,), hot_bytes=1 << 20).validated()
    with placing.own_namespace(shared_daemon.url) as url:
        with Clones(plan, url, 4096, ()) as clones:
            clones.begin("put", 1, 64, 0)
            assert sum(len(numbers) for numbers in clones.stored()) >= 12
        processes: list[Any] = []

        def lose_one() -> None:
            with Clones(plan, url, 4096, ()) as clones:
                processes.extend(clones._processes)
                processes[1].kill()
                clones.begin("put", 1, 64, 0)

        with pytest.raises(InternalError, match="client process 2 of 3 ended by signal 9"):
            lose_one()
        assert all(process.returncode is not None for process in processes)
    with pytest.raises(ConfigError, match=r"client process [123] of 3: .*bench-"), Clones(plan, url, 4096, ()):
        pass


@measures
@pytest.mark.integration
def test_a_job_file_is_measured_job_by_job(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[global]\nrw = "get"\n[small]\nbs = ["4k", "8k"]\n[deep]\nrw = ["match"]\niodepth = 2\n')
    result = bench("--job", str(jobs), "--directory", str(tmp_path))
    assert result.exit_code == 0, result.output
    told = [
        (job["job"], one["name"], one["block_bytes"], one["iodepth"])
        for job in document(result)["jobs"]
        for one in job["results"]
    ]
    assert told == [("small", "get", 4096, 1), ("small", "get", 8192, 1), ("deep", "match", 65536, 2)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "has no job"),
        ("[global]\nbatch = 2\n", "has no job"),
        ("rw = 'get'\n", "rw stands outside of a table"),
        ("[one]\nblock = '4k'\n", "[one] block: there is no such option; choose from arena, batch, bs"),
        ("[one]\nbatch = 0\n", "job one: batch=0: must be 1 to 1024"),
        ("[one]\nbatch = 1.5\n", "job one: batch=1.5: must be a whole number"),
        ("[one]\nlatency-goal = 2\n", "job one: latency_goal=2: not a time"),
        ("[one]\npin = 'no'\n", "job one: pin='no': must be true or false"),
        ("[one]\ndurability = 'disk'\n", "job one: durability='disk': unknown; choose from cache, persist"),
        ("[one]\nengine = 'aio'\n", "job one: engine='aio': unknown; choose from auto, uring, pread, noop"),
        ("[one]\ntransport = 'ib'\n", "job one: transport='ib': unknown; choose from tcp, shm, rdma"),
        ("[one]\nurl = 'halfstep://h:1'\ntransport = 'shm'\n", "job one: transport=shm: the URL halfstep://h:1 says how"),
        ("[one]\ndirectory = '/not/here'\n", "job one: directory=/not/here: is none"),
        ("[one]\nrate = 'fast'\n", "job one: rate='fast': must be a number"),
        ("[one]\nrw = 'match'\nrate = 100\n", "job one: rate=100: match makes each call when the one before has ended"),
        ("[one]\nseed = -1\n", "job one: seed=-1: must be 0 to"),
        ("[one", "jobs.toml"),
    ],
)
def test_a_job_file_that_cannot_be_is_explained(tmp_path: Path, text: str, named: str) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(text)
    result = bench("--job", str(jobs), "--directory", str(tmp_path))
    assert result.exit_code == 3
    assert named in result.stderr


@measures
@pytest.mark.integration
def test_a_benchmark_that_is_killed_takes_its_processes_along(tmp_path: Path) -> None:
    words = ["bench", *QUICK, "--directory", str(tmp_path), "--runtime", "30", "--numjobs", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "halfstep.tools.cli", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        wait_until(lambda: len(children.read_text().split()) >= 3, "it starts a daemon and two clones")
        started = children.read_text().split()
    finally:
        process.kill()
        process.wait(END_S)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "they hear of it")


@pytest.mark.integration
def test_a_daemon_that_dies_in_a_run_is_what_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    populated = measuring.populate

    def then_kill(*arguments: Any) -> None:
        populated(*arguments)
        os.kill(pids[0], signal.SIGKILL)

    pids: list[int] = []
    started = DaemonProcess.start

    def start(process: DaemonProcess) -> None:
        started(process)
        pids.append(process.pid)

    monkeypatch.setattr(DaemonProcess, "start", start)
    monkeypatch.setattr(measuring, "populate", then_kill)
    monkeypatch.setattr(measuring, "refuse_unless_release", lambda _info: None)
    result = bench("--directory", str(tmp_path))
    assert result.exit_code == 3
    assert "the daemon of its own ended by SIGKILL" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_a_namespace_that_is_left_behind_is_named(own_daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_arguments: Any) -> None:
        own_daemon.kill()
        raise Unavailable("the daemon is gone")

    monkeypatch.setattr(measuring, "populate", die)
    monkeypatch.setattr(measuring, "refuse_unless_release", lambda _info: None)
    result = command(own_daemon.url, "--rw", "get")
    assert result.exit_code == 3
    assert "halfstep: the daemon is gone; its namespace is left there: `halfstep namespace delete bench-" in result.stderr


@measures
@pytest.mark.integration
def test_nothing_is_left_of_a_daemon_of_its_own(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    assert bench("--rw", "get", "--directory", str(tmp_path)).exit_code == 0
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []
    assert os.sched_getaffinity(0) == before


@measures
@pytest.mark.integration
@pytest.mark.parametrize("what", [[*QUICK, "--rw", "match"], ["device", "--size", "1MiB", "--runtime", "0.1", "--repeat", "1"]])
def test_the_directory_that_one_is_in_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: list[str]) -> None:
    directio(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not-here"))
    result = command(*what, "--directory", ".")
    assert result.exit_code == 0, result.output
    assert list(tmp_path.iterdir()) == []


@measures
@pytest.mark.integration
@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGINT, 1), (signal.SIGINT, 3), (signal.SIGTERM, 3)])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, number: int, jobs: int) -> None:
    def ready(children: list[str]) -> bool:
        """The daemon, and every clone where there are several."""
        return len(children) >= (1 if jobs == 1 else 1 + jobs) and any(tmp_path.glob("*/store.hs"))

    interrupt([*QUICK, "--runtime", "60", "--directory", str(tmp_path), "--numjobs", str(jobs)], number, ready)
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


@measures
@pytest.mark.integration
@pytest.mark.parametrize("interrupted", [False, True])
def test_its_namespace_is_gone_afterwards(shared_daemon: Any, monkeypatch: pytest.MonkeyPatch, interrupted: bool) -> None:
    monkeypatch.setattr(placing.secrets, "token_hex", lambda _count: f"test{interrupted}")
    url = placing.with_namespace(shared_daemon.url, f"bench-test{interrupted}")
    seen: list[bool] = []

    def watched(client: halfstep.Client, *arguments: Any, **options: Any) -> Timing:
        seen.append(client.url == url and bool(client.stat()))
        if interrupted:
            raise KeyboardInterrupt
        return drive(client, *arguments, **options)

    drive = driving.drive
    monkeypatch.setattr(driving, "drive", watched)
    result = bench("--rw", "get", shared_daemon.url)
    assert (result.exit_code != 0) == interrupted, result.output
    assert seen, "it measured in another namespace"
    assert all(seen)
    with pytest.raises(ConfigError):
        halfstep.connect(url, required=True, deadline_ms=5000)


@measures
@pytest.mark.integration
def test_cold_counts_only_what_the_device_read(tmp_path: Path) -> None:
    result = bench("--rw", "cold", "--directory", str(tmp_path))
    told = document(result)
    if told["refused"]:
        pytest.skip(f"no cold reads here: {told['refused'][0]['why']}")
    (one,) = told["results"]
    assert one["verified"] is True
    assert min(one["moved"]["engine_read_bytes"], one["moved"]["device_read_bytes"]) >= 0.99 * one["moved"]["payload_bytes"] > 0
    assert one["limit"].startswith("preadv")


@measures
@pytest.mark.integration
def test_a_set_that_memory_holds_is_refused_as_cold(tmp_path: Path) -> None:
    result = bench("--rw", "cold,get", "--cold-size", "2MiB", "--directory", str(tmp_path))
    assert result.exit_code == 1
    told = document(result)
    assert [refusal["name"] for refusal in told["refused"]] == ["cold"]
    assert "memory" in told["refused"][0]["why"]
    assert [one["name"] for one in told["results"]] == ["get"]


@measures
@pytest.mark.integration
def test_blocks_in_each_others_place_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that mixes up names would pass every checksum; here the blocks are stored under their neighbours' keys."""

    def swapped(client: halfstep.Client, content: Content, count: int, _layout: halfstep.Layout) -> None:
        rows = np.empty((count, content.words), np.uint64)
        content.fill(content.numbers(0, count), rows)
        put = client.put(content.keys(content.numbers(0, count)), np.roll(rows, 1, axis=0), deadline_ms=10_000)
        assert put.ok.all()

    monkeypatch.setattr(measuring, "populate", swapped)
    result = bench("--rw", "get", "--directory", str(tmp_path))
    assert result.exit_code == 1
    (one,) = document(result)["results"]
    assert one["verified"] is False
    assert one["blocks_wrong"] > 0
    assert one["gigabytes_per_s"] == 0.0


def test_only_a_release_build_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for build in ("debug", "asan", "tsan", "fuzz"):
        with pytest.raises(ConfigError, match=f"build={build}: .*release"):
            measuring.refuse_unless_release({"build": build})
    measuring.refuse_unless_release({"build": "release"})
    monkeypatch.setattr(halfstep, "build_info", lambda: {"build": "asan", "version": "0", "commit": "0"})
    result = bench("--directory", str(tmp_path))
    assert result.exit_code == 3
    assert "build=asan" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--rw", "get,write"], "write"),
        (["--bs", "1000001"], "bs=1000001"),
        (["--bs", "64MiB", "--batch", "1024"], "at once"),
        (["--batch", "0"], "batch=0: must be 1 to 1024"),
        (["--runtime", "0"], "runtime=0"),
        (["--iodepth", "1,65"], "iodepth=65: must be 1 to 64"),
        (["--iodepth", ""], "values of iodepth=0"),
        (["--bs", ","], "values of bs=0: must be 1 to 16"),
        (["--rw", ""], "rw='': nothing chosen; choose from get, cold"),
        (["--rwmixread", "150"], "rwmixread=150.0: must be 0 to 100"),
        (["--seed", "-1"], "seed=-1: must be 0 to"),
        (["--size", "99999999TiB"], "size='99999999TiB': must be at most"),
        (["--latency-goal", "soon"], "latency_goal='soon': not a time"),
        (["--plot", "sweep.gif"], "must end in .png or .svg"),
        (["--size", "many"], "size='many'"),
        (["--numjobs", "0"], "numjobs=0: must be 1 to 32"),
        (["--numjobs", "1000"], "numjobs=1000: must be 1 to 32"),
        (["--rwmixread", "101"], "rwmixread=101"),
        (["--bs", "32MiB", "--batch", "2", "--numjobs", "17"], "numjobs=17: more than 1 GiB at once"),
        (["--rw", "layerwise", "--parts", "3"], "parts=3: bs=65536 cannot be cut"),
        (["--rw", "layerwise", "--parts", "0"], "parts=0: must be 1 to 2560"),
    ],
)
def test_what_cannot_be_measured_is_named(arguments: list[str], named: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 3
    assert named in result.stderr


def test_a_directory_that_cannot_be_written_is_named() -> None:
    result = bench("--directory", "/sys")  # nobody may make a file there, root included
    assert result.exit_code == 3, result.output
    assert "/sys/halfstep-bench-" in result.stderr
    assert "name another --directory" in result.stderr
