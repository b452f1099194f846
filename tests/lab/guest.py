"""A guest that sees this machine's files under their own paths, read-only, runs one job as root and ends.

Emulated (QEMU's TCG), always: /dev/kvm may be there and start no Linux kernel. What the job writes is gone with the guest, but
for /results, which is a folder of this machine. Nothing about speed can be learned in it.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import initramfs, kernel_image

_PROGRAM = "qemu-system-x86_64"
_NEEDED = {
    _PROGRAM: "qemu-system-x86",
    "busybox": "busybox",
    "rdma": "iproute2",
    "/sbin/modprobe": "kmod",
}
_REMEDY = "scripts/setup.sh lab installs it"
_APPEND = "console=ttyS0 quiet loglevel=4 panic=-1 nokaslr mitigations=off random.trust_cpu=on tsc=reliable no_timer_check"
_PR_SET_PDEATHSIG = 1


class CannotRun(Exception):
    """This machine has no such guest: says what is missing."""


@dataclass(frozen=True)
class Outcome:
    """status: of the job, None where it came to no end (timed_out, or the guest died). console: what it and the kernel said."""

    status: int | None
    timed_out: bool
    console: str
    seconds: float


class Guest:
    """Kernel and initramfs, made once in `folder` for the newest kernel that is installed.

    major: the oldest QEMU that will do. Errors: CannotRun where there is none.
    """

    def __init__(self, folder: Path, *, major: int = 0) -> None:
        self._kernel, self._initramfs = _prepare(folder)
        self._program, self._firmware = _qemu(folder, major)

    def run(
        self,
        job: str,
        results: Path,
        *,
        limit_s: float,
        memory_mb: int = 3072,
        environment: Mapping[str, str] | None = None,
        devices: Sequence[str] = (),
        on_line: Callable[[str], None] = lambda _line: None,
        on_start: Callable[[subprocess.Popen[bytes]], None] = lambda _process: None,
    ) -> Outcome:
        """Runs the shell text `job` in /results. limit_s: from QEMU's start to its end; then it is killed.

        devices: further arguments of QEMU. on_line: hears each line of the console; on_start: of QEMU's process.
        """
        results.mkdir(parents=True, exist_ok=True)
        (results / "status").unlink(missing_ok=True)
        (results / "job.sh").write_text(_wrapped(job, environment or {}))
        started = time.monotonic()
        process = subprocess.Popen(
            [*self._command(results, memory_mb), *devices],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,
        )
        on_start(process)
        limit = threading.Timer(limit_s, process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            with (results / "console.log").open("wb") as console:
                for line in process.stdout:
                    console.write(line)
                    console.flush()
                    on_line(line.decode(errors="replace").rstrip("\r\n"))
        finally:
            timed_out = not limit.is_alive()
            limit.cancel()
            process.kill()
            process.wait()
        said = (results / "status").read_text().strip() if (results / "status").exists() else ""
        return Outcome(
            status=int(said) if said.isdigit() and not timed_out else None,
            timed_out=timed_out,
            console=(results / "console.log").read_text(errors="replace").replace("\r\n", "\n"),
            seconds=time.monotonic() - started,
        )

    def _command(self, results: Path, memory_mb: int) -> list[str]:
        def share(number: int, path: str, tag: str, options: str = "") -> list[str]:
            return [
                *("-fsdev", f"local,id=share{number},path={path},security_model=none{options}"),
                *("-device", f"virtio-9p-pci,fsdev=share{number},mount_tag={tag}"),
            ]

        return [
            *(self._program, "-M", "q35", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max"),
            *("-m", f"{memory_mb}M", "-smp", "2", "-nodefaults", "-no-user-config", "-no-reboot"),
            *("-display", "none", "-serial", "stdio"),
            *(word for place in self._firmware for word in ("-L", place)),
            *("-kernel", str(self._kernel), "-initrd", str(self._initramfs), "-append", _APPEND),
            *share(0, "/", "machine", ",readonly=on,multidevs=remap"),
            *share(1, str(results.resolve()), "results"),
        ]


def installed_kernel() -> tuple[str, Path]:
    """Release and image of the newest kernel whose modules are here. Errors: CannotRun."""
    found = []
    for image in Path("/boot").glob("vmlinuz-*"):
        release = image.name.removeprefix("vmlinuz-")
        if Path("/lib/modules", release, "kernel").is_dir():
            found.append(([int(number) for number in re.findall(r"\d+", release)], release, image))
    if not found:
        raise CannotRun(f"no kernel in /boot with modules in /lib/modules (package linux-image-amd64); {_REMEDY}")
    _, release, image = max(found)
    return release, image


def check() -> str:
    """The release of the kernel that the guest would have. Errors: CannotRun with all that is missing."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise CannotRun(f"the guest is an x86-64 one; this machine is {sys.platform} on {os.uname().machine}")
    missing = [f"{program} (package {package})" for program, package in _NEEDED.items() if shutil.which(program) is None]
    if missing:
        raise CannotRun(f"{', '.join(missing)} is not installed; {_REMEDY}")
    return installed_kernel()[0]


def _prepare(folder: Path) -> tuple[Path, Path]:
    check()
    release, image = installed_kernel()
    folder.mkdir(parents=True, exist_ok=True)
    kernel, archive = folder / f"vmlinux-{release}", folder / f"initramfs-{release}.gz"
    if not kernel.exists() or kernel.stat().st_mtime < image.stat().st_mtime:
        _write(kernel, kernel_image.unpack(image))
    _write(archive, initramfs.build(release))
    return kernel, archive


def _qemu(folder: Path, major: int) -> tuple[str, tuple[str, ...]]:
    """The installed one if it is new enough, else that which `setup.sh lab-long` has unpacked; and where its firmware lies."""
    firmware = ("/usr/share/qemu", "/usr/share/seabios")
    installed = _major(_PROGRAM)
    if installed >= major:
        return _PROGRAM, firmware
    unpacked = folder / "qemu" / "usr"
    program = str(unpacked / "bin" / _PROGRAM)
    if _major(program) >= major:
        return program, (str(unpacked / "share" / "qemu"), *firmware)
    raise CannotRun(f"QEMU {installed} is installed, and this needs {major} or newer; scripts/setup.sh lab-long gets one")


def _major(program: str) -> int:
    """0: there is none that runs."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    found = re.match(r"QEMU emulator version (\d+)", said)
    return int(found[1]) if found else 0


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(data)
    part.replace(path)


def _wrapped(job: str, environment: Mapping[str, str]) -> str:
    exports = "".join(f"export {name}={_quoted(value)}\n" for name, value in environment.items())
    return (
        "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8\n"
        f"{exports}ip link set lo up; hostname lab; cd /results\n( {job}\n) 2>&1\n"
    )


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
