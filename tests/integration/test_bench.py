"""`halfstep bench` in fractions of a second: what it says, what it refuses, what it leaves behind. No speed is judged."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep.errors import ConfigError, InternalError, Unavailable

pytest.importorskip("click")
from click.testing import CliRunner, Result

from halfstep.tools.bench import driver as driving
from halfstep.tools.bench import measure as measuring
from halfstep.tools.bench import place as placing
from halfstep.tools.bench.clones import Clones, merged
from halfstep.tools.bench.content import BODIES, Content
from halfstep.tools.bench.device import BlockDevice, extents_of, raw_read_speed, written_ranges
from halfstep.tools.bench.driver import Driven
from halfstep.tools.bench.plan import Plan
from halfstep.tools.bench.report import CpuTime, Limit, Proof, Run
from halfstep.tools.bench.report import Result as BenchResult
from halfstep.tools.bench.workload import GetLane, LayerLane, Layers, Outcome, Timing, endless
from halfstep.tools.cli import main
from halfstep.tools.daemon_process import DaemonProcess

END_S = 60
QUICK = [
    "--json",
    "--runtime",
    "0.1",
    "--repeat",
    "1",
    "--bs",
    "64KiB",
    "--batch",
    "4",
    "--size",
    "2MiB",
    "--arena",
    "32MiB",
]

measures = pytest.mark.skipif(
    halfstep.build_info()["build"] != "release",
    reason="a benchmark refuses to report from this build, as test_only_a_release_build_reports shows",
)


def bench(*arguments: str) -> Result:
    """In this process."""
    return CliRunner().invoke(main, ["bench", *QUICK, *arguments])


def document(result: Result) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def processes_of(directory: Path) -> list[str]:
    """Command lines that name the directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in command and "serve" in command:
            found.append(command)
    return found


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
    assert 0 < one["first_layer_us"]["p50"] <= one["first_layer_us"]["p99"] <= one["latency_us"]["p999"]
    assert one["further_layer_us"]["p50"] <= one["further_layer_us"]["p99"]


def test_a_layer_that_is_announced_before_it_is_there_makes_its_blocks_wrong() -> None:
    content = Content(8 * 4096, seed=1)
    read = GetLane(content, endless(content, 8, 4, np.random.default_rng(1)), 4, np.random.default_rng(1))
    lane = LayerLane(read, content, halfstep.Layout({}, [halfstep.Group(8, (4096,))]))
    came = SimpleNamespace(ok=np.array([True, True, True, False]), reason=lambda _item: "miss (absent)")
    for early, wrong in ((0, 0), (1, 1)):
        lane.prepare()
        content.fill(read.numbers, read.target)
        head = read.target[1, 0]
        read.target[1, 0] ^= np.uint64(early)
        lane.progress(3, 1000)
        read.target[1, 0] = head
        lane.progress(8, 6000)
        outcome = lane.check(came)
        assert (outcome.ok, outcome.looked, outcome.wrong) == (3 - wrong, 3, wrong)
    assert [more for _, more in lane.each_ns] == [2, 5, 2, 5]


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
        assert one["answers_not_ok"] == {}
    assert processes_of(tmp_path) == []


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


def test_the_slowest_clone_says_how_long_it_took() -> None:
    def driven(seconds: float, *latencies: float) -> Driven:
        outcome = Outcome(blocks=4, ok=3, looked=3, wrong=1, reasons={"late": 1})
        return Driven(Timing(seconds, np.array(latencies), outcome, Layers(np.array(latencies), np.array([1.0]))), 0.5)

    told = merged([driven(1.0, 5.0), driven(2.0, 7.0, 9.0)])
    assert told.cpu_s == 1.0
    assert told.timing.seconds == 2.0
    assert told.timing.blocks_per_s == 3.0
    assert told.timing.latencies_us.tolist() == [5.0, 7.0, 9.0]
    assert told.timing.outcome == Outcome(blocks=8, ok=6, looked=6, wrong=2, reasons={"late": 2})
    assert told.timing.layers is not None
    assert (len(told.timing.layers.first_us), len(told.timing.layers.each_us)) == (3, 2)


def test_clones_walk_through_a_cold_set_together() -> None:
    content = Content(4096, seed=1)
    walks = [endless(content, 40, 4, np.random.default_rng(1), (clone, 3)) for clone in range(3)]
    seen = [next(walk) for walk, batches in zip(walks, (4, 3, 3), strict=True) for _ in range(batches)]
    assert sorted(np.concatenate(seen).tolist()) == list(range(40))
    assert next(endless(content, 4, 4, np.random.default_rng(1), (1, 3))).tolist() == [0, 1, 2, 3], "one batch for three"


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
        ("[one]\ndurability = 'forever'\n", "job one: durability='forever': 'forever' unknown; choose from cache, persist"),
        ("[one]\nengine = 'steam'\n", "job one: engine='steam': 'steam' unknown; choose from auto, uring, pread"),
        ("[one]\ndirectory = '/nowhere'\n", "job one: directory=/nowhere: there is no such directory"),
        ("[one]\npin = 'no'\n", "job one: pin='no': must be true or false"),
        ("[one]\nlatency-goal = 2\n", "job one: latency_goal=2: not a time"),
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
    command = [sys.executable, "-m", "halfstep.tools.cli", "bench", *QUICK, "--directory", str(tmp_path), "--runtime", "30"]
    process = subprocess.Popen([*command, "--numjobs", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: bool(processes_of(tmp_path)), "it starts a daemon")
    finally:
        process.kill()
        process.wait(END_S)
    wait_until(lambda: not processes_of(tmp_path), "the daemon hears of it")


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
    result = CliRunner().invoke(main, ["bench", own_daemon.url, "--rw", "get"])
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
@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGINT, 1), (signal.SIGINT, 3), (signal.SIGTERM, 3)])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, number: int, jobs: int) -> None:
    command = [sys.executable, "-m", "halfstep.tools.cli", "bench", *QUICK, "--runtime", "60", "--directory", str(tmp_path)]
    command += ["--numjobs", str(jobs)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: bool(processes_of(tmp_path)), "its daemon did not appear")
        wait_until(lambda: any(tmp_path.glob("*/store.hs")), "its store did not appear")
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        # The daemon, and every clone where there are several.
        wait_until(lambda: len(children.read_text().split()) >= (1 if jobs == 1 else 1 + jobs), "its clones did not appear")
        started = children.read_text().split()
        running.send_signal(number)
        _, complaint = running.communicate(timeout=END_S)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130, complaint
    assert complaint.strip() == b"halfstep: interrupted"
    # A clone that was being started at that moment finds that nobody speaks to it.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "it left a process")
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
        (["--bs", "32MiB", "--batch", "2", "--numjobs", "17"], "numjobs=17: more than 1 GiB at once"),
        (["--rw", "layerwise", "--parts", "3"], "parts=3: bs=65536 cannot be cut"),
        (["--rw", "layerwise", "--parts", "0"], "parts=0: must be 1 to 2560"),
    ],
)
def test_what_cannot_be_measured_is_named(arguments: list[str], named: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 3
    assert named in result.stderr


def test_content_differs_in_every_page_of_every_block() -> None:
    content = Content(3 * 4096, seed=7)
    rows = np.empty((2 * BODIES, content.words), np.uint64)
    numbers = content.numbers(0, len(rows))
    content.fill(numbers, rows)
    pages = rows.reshape(-1, 512)
    assert len(np.unique(pages, axis=0)) == len(pages)
    assert content.wrong_blocks(numbers, rows) == 0
    assert not content.wrong_heads(numbers, rows, 2).any()
    # A block in another's place, also in that of one whose body is the same; a page; a word.
    assert content.wrong_blocks(numbers, np.roll(rows, BODIES, axis=0)) == len(rows)
    assert content.wrong_heads(numbers, np.roll(rows, BODIES, axis=0), 1).all()
    rows[5, 512:1024] = rows[5 + BODIES, 512:1024]
    rows[9, 700] ^= np.uint64(1)
    assert content.wrong_blocks(numbers, rows) == 2


def test_a_source_that_is_stamped_anew_holds_the_next_blocks() -> None:
    content = Content(64 * 1024, seed=7)
    rows = np.empty((3, content.words), np.uint64)
    content.fill(content.numbers(0, 3), rows)
    content.stamp(content.numbers(BODIES, 3), rows)
    assert content.wrong_blocks(content.numbers(BODIES, 3), rows) == 0


def test_blocks_of_other_seeds_and_numbers_have_other_keys() -> None:
    names = {bytes(key) for seed in (1, 2) for key in Content(4096, seed).keys(Content(4096, seed).numbers(0, 300))}
    assert len(names) == 600


def test_a_walk_asks_for_every_block_before_it_asks_again() -> None:
    content = Content(4096, seed=1)
    walk = endless(content, 32, 4, np.random.default_rng(1))
    first = [next(walk) for _ in range(8)]
    assert sorted(np.concatenate(first).tolist()) == list(range(32))
    assert [next(walk).tolist() for _ in range(8)] == [batch.tolist() for batch in first]


def test_percentiles_are_latencies_that_were_measured() -> None:
    timing = Timing(1.0, np.arange(1, 1001, dtype=np.float64), Outcome())
    assert [timing.percentile_us(share) for share in (0.5, 0.99, 0.999)] == [500, 990, 999]
    assert Timing(1.0, np.array([7.0]), Outcome()).percentile_us(0.999) == 7


def test_the_run_with_the_median_ratio_is_reported_whole() -> None:
    def run(bytes_per_s: float, limit: float) -> Run:
        timing = Timing(1.0, np.array([1.0]), Outcome(blocks=1, ok=1, looked=1))
        return Run(bytes_per_s, timing, Limit(limit, "x"), Proof(1, 0, None, 1, 0), CpuTime(1.0, None))

    runs = [run(1e9, 2e9), run(9e9, 10e9), run(3e9, 4e9)]
    result = BenchResult.of("get", 4096, 1, 1, runs, Outcome(blocks=1, ok=1, looked=1))
    assert result.run is runs[2]
    assert result.as_json()["ratio_to_limit"] == 0.75
    assert result.verified
    assert not BenchResult.of("get", 4096, 1, 1, runs, Outcome(blocks=2, ok=1, looked=1)).verified, "one is missing"
    assert not BenchResult.of("get", 4096, 1, 1, runs, Outcome(blocks=1, ok=0, looked=1, wrong=1)).verified, "one is wrong"


@pytest.mark.parametrize(
    ("engine", "device", "why"),
    [(1000, 1000, ""), (10, 1000, "memory"), (1000, 10, "page cache"), (1000, None, "tmpfs")],
)
def test_cold_is_what_engine_and_device_both_read(engine: int, device: int | None, why: str) -> None:
    told = measuring._why_not_cold(Proof(1000, engine, device, 0, 0), BlockDevice("vda", (Path("/sys/block/vda/stat"),)))
    assert why in told
    assert bool(told) == bool(why)


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
    try:
        speed = raw_read_speed(path, BlockDevice.of(path), extents, 4)
    except OSError as error:
        pytest.skip(f"no O_DIRECT here: {error}")
    assert speed.bytes == 2 << 20
    small = extents_of(path, 4096, 64, 4 << 20, seed=1)
    assert {length for _, length in small} == {64 << 10}, "neighbours are read together"
    assert sorted(small) == sorted(extents * 2), "all of it comes again where more is wanted"
    assert speed.bytes_per_s > 0


def test_a_plan_makes_cold_sets_that_memory_cannot_hold() -> None:
    plan = Plan(batch=16).validated()
    for block_bytes in (4096, 65536, 1 << 20):
        blocks = plan.cold_blocks(block_bytes, 256 << 20)
        assert blocks * block_bytes >= 2 * (256 << 20)
        assert blocks % 16 == 0


def limits(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments])


def directio(directory: Path) -> None:
    """Skips where the file system has no O_DIRECT."""
    try:
        os.close(os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600))
    except OSError as error:
        pytest.skip(f"no O_DIRECT in {directory}: {error}")


@pytest.mark.integration
@pytest.mark.parametrize("tool", ["fio", "preadv"])
def test_a_drive_is_measured_in_every_mode_and_left_as_it_was(tmp_path: Path, tool: str) -> None:
    directio(tmp_path)
    if tool == "fio" and shutil.which("fio") is None:
        pytest.skip("there is no fio here")
    sweep = ("--rw", "read,randread,write,mixed", "--bs", "4k,64k", "--iodepth", "1,3", "--size", "1MiB", "--rwmixread", "50")
    result = limits(
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
def test_a_path_that_is_given_is_read_and_never_written(tmp_path: Path) -> None:
    directio(tmp_path)
    path = tmp_path / "somebody's:data"
    path.write_bytes(os.urandom(300_000))
    before = path.read_bytes()
    result = limits("device", str(path), "--bs", "4k", "--runtime", "0.1", "--repeat", "1", "--json")
    assert result.exit_code == 0, result.output
    assert [side["name"] for one in document(result)["results"] for side in one["sides"]] == ["read"]
    for rw in ("write", "mixed"):
        refused = limits("device", str(path), "--rw", rw)
        assert refused.exit_code == 3
        assert f"{rw} would overwrite it" in refused.stderr
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("what", [("device", "--tool", "auto"), ("device", "--tool", "preadv"), ("wire", "--connections", "3")])
def test_a_limit_ends_cleanly_when_it_is_interrupted(tmp_path: Path, number: int, what: tuple[str, ...]) -> None:
    directio(tmp_path)
    mine = ("--directory", str(tmp_path), "--size", "1MiB") if what[0] == "device" else ()
    running = subprocess.Popen(
        [sys.executable, "-m", "halfstep.tools.cli", "bench", *what, *mine, "--runtime", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        wait_until(lambda: any(tmp_path.iterdir()), "it made nothing")
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        if "preadv" not in what and (what[0] == "wire" or shutil.which("fio")):
            wait_until(lambda: bool(children.read_text()), "it started nothing")
        started = children.read_text().split()
        running.send_signal(number)
        _, complaint = running.communicate(timeout=END_S)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130, complaint
    assert complaint.strip() == "halfstep: interrupted"
    assert list(tmp_path.iterdir()) == []
    # One that was being started at that moment finds nobody to connect to.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "it left a process")


@pytest.mark.integration
def test_the_wire_is_measured_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sweep = ("--bs", "4k,64k", "--connections", "1,2", "--ping", "1,64", "--size", "1MiB")
    result = limits("wire", *sweep, "--runtime", "0.05", "--repeat", "2", "--json")
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


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["device", "--rw", "get"], "rw='get'"),
        (["device", "--rw", ""], "rw='': nothing chosen; choose from read, randread"),
        (["device", "--seed", "-1"], "seed=-1: must be 0 to"),
        (["device", "--bs", "1000"], "bs=1000: must be a multiple of 512"),
        (["device", "--iodepth", "0"], "iodepth=0: must be 1 to 1024"),
        (["device", "--size", "1"], "size=1: must be"),
        (["device", "--size", "1024GiB"], "free; lower it or name another --directory"),
        (["device", "--rwmixread", "101"], "rwmixread=101"),
        (["wire", "--over", "udp"], "over='udp'"),
        (["wire", "--over", ","], "over='': nothing chosen; choose from tcp, unix"),
        (["wire", "--connections", "17"], "connections=17: must be 1 to 16"),
        (["wire", "--ping", "0"], "ping=0"),
        (["wire", "--congestion", "none-such"], "congestion=none-such"),
    ],
)
def test_a_limit_that_cannot_be_measured_is_named(arguments: list[str], named: str) -> None:
    result = limits(*arguments)
    assert result.exit_code == 3, result.output
    assert named in result.stderr


@pytest.mark.parametrize("arguments", [[], ["device"]])
def test_a_directory_that_cannot_be_written_is_named(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody may make a file there, root included; it says that it has no room, though.
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=1 << 40))
    result = CliRunner().invoke(main, ["bench", *arguments, "--size", "1MiB", "--directory", "/sys"])
    assert result.exit_code == 3, result.output
    assert "/sys/halfstep-bench-" in result.stderr
    assert "name a --directory that this user may write" in result.stderr


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):  # to open a pipe would wait for its other end
        result = limits("device", str(path))
        assert result.exit_code == 3, result.output
        assert f"{path}: neither a file nor a block device" in result.stderr


def test_a_subcommand_takes_nothing_from_those_who_name_a_daemon() -> None:
    for words in ([], ["--json"], ["halfstep://127.0.0.1:1/x"], ["--rw", "get", "device"]):
        result = limits(*words, "--batch", "0")
        assert "batch=0: must be 1 to 1024" in result.stderr, words
    usage = limits("--help").stdout
    assert "bench [OPTIONS] [URL]" in usage
    assert "halfstep bench device" in usage
