"""fio, where it is installed: one job, one answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfstep.errors import DeviceError

_MODES = {"read": "read", "randread": "randread", "write": "write", "mixed": "randrw"}
_ERROR_CHARACTERS = 400
# Between two looks at how far it is.
_TICK_S = 0.5
_START_S = 60.0
# fio's buffers in huge pages where the C library can: in pages of 4 KiB a read of a mebibyte has more pieces than many devices
# take in one request, and is cut in two. On the drive that this was found with fio is nearly twice as fast so, and it has no
# option for it that needs no reserved pages.
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
# Of the time of a replay that ended with time, and not with a read that failed.
_REPLAYED_MIN = 0.8


@dataclass(frozen=True)
class Side:
    """The reads, or the writes, of one job. name: "read" or "write". A latency is one transfer's, from submit to completion."""

    name: str
    bytes_per_s: float
    iops: float
    p50_us: float
    p99_us: float
    p999_us: float
    transfers: int


def fio_version() -> str:
    """As it names itself; "" where there is none."""
    program = shutil.which("fio")
    if program is None:
        return ""
    done = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def run_fio(
    path: Path,
    *,
    rw: str,
    block_bytes: int,
    depth: int,
    file_bytes: int,
    read_percent: int,
    seconds: float,
    seed: int,
    read_only: bool,
    while_it_runs: Callable[[], None] = lambda: None,
    rate: float = 0.0,
) -> list[Side]:
    """One job with io_uring and O_DIRECT over the first `file_bytes` of a file that is there. Errors: DeviceError.

    rate: transfers a second, at moments with exponential gaps as long as no more than `depth` are at the device; 0 = as fast as
    they end.
    """
    command = job_command(path, rw, block_bytes, depth, file_bytes, read_percent, seed, rate)
    command += ["--readonly"] if read_only else []
    job = _job_of(command, path, seconds, while_it_runs, "--tool preadv needs neither of them")
    return [_side(name, job[name]) for name in ("read", "write") if job[name]["total_ios"]]


def job_command(
    path: Path, rw: str, block_bytes: int, depth: int, file_bytes: int, read_percent: int, seed: int, rate: float
) -> list[str]:
    """What run_fio() says, but for how long."""
    command = ["fio", "--name=limit", f"--filename={str(path).replace(':', chr(92) + ':')}", f"--size={file_bytes}"]
    command += [f"--rw={_MODES[rw]}", f"--bs={block_bytes}", f"--iodepth={depth}", f"--randseed={seed}", "--time_based"]
    command += [f"--rwmixread={read_percent}"] if rw == "mixed" else []
    if rate:
        # Of reads and of writes; 0 would be: as many as there may be.
        share = read_percent / 100 if rw == "mixed" else float(rw in ("read", "randread"))
        command += [f"--rate_iops={max(1, round(rate * share))},{max(1, round(rate * (1 - share)))}", "--rate_process=poisson"]
    return command


def replay_fio(path: Path, extents: Sequence[tuple[int, int]], *, depth: int, seconds: float, together: int = 1) -> Side:
    """Reads the extents (offset, length) with io_uring and O_DIRECT, over and over for `seconds`. Errors: DeviceError.

    together: how many are submitted at once, which lets the kernel make one request of neighbours. The list is longer than the
    time: where it ends, fio's clock and count stop before the last reads have ended.
    """
    remedy = "install a fio that has io_uring (from 3.13 on), and let this process use it"
    turns = 1
    with tempfile.TemporaryDirectory(prefix="halfstep-bench-") as directory:
        log = Path(directory) / "extents.log"
        while True:
            log.write_text(iolog(extents, turns))
            job = _job_of(replay_command(path, log, depth, together), path, seconds, lambda: None, remedy)
            told = job["read"]
            # At the end of the list it does not count the reads that are still out.
            listed = turns * sum(length for _, length in extents) - depth * max(length for _, length in extents)
            if told["io_bytes"] < max(1, listed):
                if told["runtime"] >= _REPLAYED_MIN * seconds * 1e3:
                    return _side("read", told)
                raise DeviceError(
                    f"{path}: fio ended after {told['runtime']} ms and {told['io_bytes']} bytes, before time and list were "
                    "over; its extents do not all lie in the file"
                )
            # By twice what would have been enough, so that it is once more and no more.
            turns = max(2 * turns, int(2 * turns * seconds * 1e3 / max(1, told["runtime"])))


def iolog(extents: Sequence[tuple[int, int]], turns: int) -> str:
    """Reads of one file as fio's list of them, version 2; the name is another's place."""
    lines = [f"x read {offset} {length}" for offset, length in extents] * turns
    return "\n".join(["fio version 2 iolog", "x add", "x open", *lines, "x close", ""])


def replay_command(path: Path, log: Path, depth: int, together: int = 1) -> list[str]:
    """What replay_fio() says, but for how long: each read as soon as there is room, in the file of the store and no other."""
    command = ["fio", "--name=limit", f"--read_iolog={log}", "--replay_no_stall=1", f"--replay_redirect={path}"]
    if together > 1:
        command += [f"--iodepth_batch={together}", f"--iodepth_low={max(1, depth - together)}"]
    return [*command, f"--iodepth={depth}", "--readonly"]


def _job_of(command: list[str], path: Path, seconds: float, while_it_runs: Callable[[], None], remedy: str) -> dict[str, Any]:
    """What fio says of its only job. A latency is the whole of it: of submitting as well (lat, not clat)."""
    command = [*command, "--ioengine=io_uring", "--direct=1", f"--runtime={int(seconds * 1000)}ms", "--allow_file_create=0"]
    command += ["--fallocate=none", "--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50:99:99.9"]
    command += ["--output-format=json"]
    tunables = ":".join(part for part in (os.environ.get("GLIBC_TUNABLES", ""), _HUGE_PAGES) if part)
    # Ctrl-C at a terminal is for us, who then end it.
    try:
        running = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "GLIBC_TUNABLES": tunables},
        )
    except FileNotFoundError:
        raise DeviceError("fio: there is none here; install the package fio") from None
    try:
        for _ in range(int((seconds + _START_S) / _TICK_S)):
            try:
                said, complaint = running.communicate(timeout=_TICK_S)
                break
            except subprocess.TimeoutExpired:
                while_it_runs()
        else:
            raise DeviceError(f"{path}: fio did not end within {seconds + _START_S:.0f} s; {remedy}")
    finally:
        if running.poll() is None:
            running.terminate()
            try:
                running.wait(_TICK_S * 4)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
    job: dict[str, Any] = {}
    if running.returncode == 0 and "{" in said:
        # What it warns of stands before the document.
        job = json.loads(said[said.index("{") :])["jobs"][0]
    if not job or job["error"]:
        why = " ".join((complaint or said).split())[-_ERROR_CHARACTERS:]
        raise DeviceError(f"{path}: fio with io_uring ended with status {running.returncode}: {why}; {remedy}")
    return job


def _side(name: str, told: dict[str, Any]) -> Side:
    percentiles = told["lat_ns"]["percentile"]
    p50, p99, p999 = (percentiles[f"{share:.6f}"] / 1e3 for share in (50, 99, 99.9))
    return Side(name, float(told["bw_bytes"]), float(told["iops"]), p50, p99, p999, int(told["total_ios"]))
