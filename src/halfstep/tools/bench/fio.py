"""fio, where it is installed: one job, one answer."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfstep.errors import DeviceError

_MODES = {"read": "read", "randread": "randread", "write": "write", "mixed": "randrw"}
_ERROR_CHARACTERS = 400
# Between two looks at how far it is.
_TICK_S = 0.5
_START_S = 60.0


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
    while_it_runs: Callable[[], None],
) -> list[Side]:
    """One job with io_uring and O_DIRECT over the first `file_bytes` of a file that is there. Errors: DeviceError."""
    command = ["fio", "--name=limit", f"--filename={str(path).replace(':', chr(92) + ':')}", f"--size={file_bytes}"]
    command += ["--ioengine=io_uring", "--direct=1", f"--rw={_MODES[rw]}", f"--bs={block_bytes}", f"--iodepth={depth}"]
    command += ["--time_based", f"--runtime={int(seconds * 1000)}ms", f"--randseed={seed}", "--allow_file_create=0"]
    command += ["--fallocate=none", "--percentile_list=50:99:99.9", "--output-format=json"]
    command += [f"--rwmixread={read_percent}"] if rw == "mixed" else []
    command += ["--readonly"] if read_only else []
    # Ctrl-C at a terminal is for us, who then end it.
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        for _ in range(int((seconds + _START_S) / _TICK_S)):
            try:
                said, complaint = running.communicate(timeout=_TICK_S)
                break
            except subprocess.TimeoutExpired:
                while_it_runs()
        else:
            raise DeviceError(f"{path}: fio did not end within {seconds + _START_S:.0f} s; try --tool preadv")
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
        raise DeviceError(
            f"{path}: fio with io_uring ended with status {running.returncode}: {why}; --tool preadv needs neither of them"
        )
    return [_side(name, job[name]) for name in ("read", "write") if job[name]["total_ios"]]


def _side(name: str, told: dict[str, Any]) -> Side:
    percentiles = told["clat_ns"]["percentile"]
    p50, p99, p999 = (percentiles[f"{share:.6f}"] / 1e3 for share in (50, 99, 99.9))
    return Side(name, float(told["bw_bytes"]), float(told["iops"]), p50, p99, p999, int(told["total_ios"]))
