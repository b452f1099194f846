"""Emulated NVMe drives for a guest: images and servers on this machine, arguments for QEMU, and faults that the guest asks for.

The job in the guest asks for a fault by a line that begins with MARK: `lab-host: NAME`. Nothing here outlives its context.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.guest import CannotRun

from halfstep.tools.daemon_process import DaemonProcess

MARK = "lab-host: "
_MIB = 1 << 20
_PATIENCE_S = 60.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Drives:
    """arguments: for QEMU. asked: what the guest may ask for by a line, by its name."""

    arguments: Sequence[str]
    asked: Mapping[str, Callable[[], None]] = field(default_factory=dict)

    def said(self, line: str) -> None:
        """A line of the guest's."""
        if line.startswith(MARK) and (act := self.asked.get(line.removeprefix(MARK).strip())):
            act()


def image(path: Path, mebibytes: int) -> Path:
    """A blank one, of holes."""
    with path.open("wb") as file:
        file.truncate(mebibytes * _MIB)
    return path


def controller(number: int = 0, *options: str) -> list[str]:
    """An NVMe controller; namespaces name it by `nvme<number>`."""
    return ["-device", ",".join((f"nvme,id=nvme{number},serial=lab{number}", *options))]


def namespace(node: str, nsid: int, *options: str, number: int = 0) -> list[str]:
    """A namespace of blocks of 4 KiB over a block node of QEMU's."""
    formatted = "logical_block_size=4096,physical_block_size=4096"
    return ["-device", ",".join((f"nvme-ns,drive={node},bus=nvme{number},nsid={nsid},{formatted}", *options))]


def file_node(node: str, path: Path) -> list[str]:
    """An image as a block node."""
    return ["-blockdev", json.dumps({"driver": "raw", "node-name": node, "discard": "unmap",
                                     "file": {"driver": "file", "filename": str(path), "discard": "unmap"}})]  # fmt: skip


def faulty_node(node: str, path: Path, errors: Sequence[Mapping[str, object]]) -> list[str]:
    """The same, which answers an error for what `errors` names (blkdebug's inject-error)."""
    inner = {"driver": "file", "filename": str(path)}
    return ["-blockdev", json.dumps({"driver": "blkdebug", "node-name": node, "image": inner, "inject-error": list(errors)})]


def remote_node(node: str, socket: Path) -> list[str]:
    """What an NBD server has."""
    server = {"type": "unix", "path": str(socket)}
    return ["-blockdev", json.dumps({"driver": "nbd", "node-name": node, "server": server, "discard": "unmap"})]


@contextmanager
def nbd_server(socket: Path, path: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """nbdkit over an image. options: filters, before `file`; their settings, with `=`, after it."""
    program = shutil.which("nbdkit")
    if program is None:
        raise CannotRun("nbdkit (package nbdkit) is not installed; scripts/setup.sh lab installs it")
    filters = [one for one in options if one.startswith("-")]
    settings = [one for one in options if not one.startswith("-")]
    socket.unlink(missing_ok=True)
    process = subprocess.Popen(
        [program, "-f", "-U", str(socket), *filters, "file", str(path), *settings], preexec_fn=_die_with_parent
    )
    try:
        until = time.monotonic() + _PATIENCE_S
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise CannotRun(f"nbdkit does not listen at {socket}: status {process.poll()}")
            time.sleep(0.05)
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def signals(process: subprocess.Popen[bytes]) -> dict[str, Callable[[], None]]:
    """What a guest may do to a drive that is behind a server: it hangs, and goes on."""
    return {
        "the drive hangs": lambda: process.send_signal(signal.SIGSTOP),
        "the drive goes on": lambda: process.send_signal(signal.SIGCONT),
    }


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# ---- The drives of scenarios -------------------------------------------------------------------------------------------------

STORE_MIB = 1152
SMALL_MIB = 8


@contextmanager
def plain(folder: Path) -> Iterator[Drives]:
    """ng0n1 for a daemon; ng0n2, of 8 MiB, for the tests of engines."""
    yield Drives(
        [
            *controller(0, "mdts=5"),
            *file_node("d0", image(folder / "store.img", STORE_MIB)),
            *namespace("d0", 1),
            *file_node("d1", image(folder / "small.img", SMALL_MIB)),
            *namespace("d1", 2),
        ]
    )


def bad_range(first_mib: int, count_mib: int, kind: str, error: int) -> list[dict[str, object]]:
    """blkdebug takes one sector a rule: one in each 128 KiB, which no command of 512 KiB goes round."""
    step = 256
    first = first_mib * _MIB // 512
    return [
        {"event": "none", "iotype": kind, "errno": error, "sector": first + at * step}
        for at in range(count_mib * _MIB // 512 // step)
    ]


def formatted(path: Path, mebibytes: int) -> Path:
    """An image with an empty store: what cannot be read is not blank, and is made no store."""
    path.unlink(missing_ok=True)
    daemon = DaemonProcess(path.parent, "--size", f"{mebibytes}MiB", "--arena", "32MiB")
    daemon.store = path
    with daemon:
        pass
    return path


@contextmanager
def failing(folder: Path) -> Iterator[Drives]:
    """ng0n1 cannot read nor write what lies from 64 MiB to 160 MiB; ng1n1 hangs when it is asked to."""
    errors = [*bad_range(64, 48, "read", 5), *bad_range(112, 48, "write", 5)]
    with nbd_server(folder / "nbd.sock", image(folder / "hang.img", 256)) as server:
        yield Drives(
            [
                *controller(0),
                *faulty_node("d0", formatted(folder / "faulty.img", 256), errors),
                *namespace("d0", 1),
                *controller(1),
                *remote_node("d1", folder / "nbd.sock"),
                *namespace("d1", 1, number=1),
            ],
            signals(server),
        )


@contextmanager
def placing(folder: Path) -> Iterator[Drives]:
    """ng0n1 places data (FDP): it has 4 of 8 reclaim unit handles; reclaim units of 16 MiB. QEMU 8 or newer."""
    subsystem = "nvme-subsys,id=sub0,nqn=sub0,fdp=on,fdp.nruh=8,fdp.nrg=1,fdp.runs=16M"
    yield Drives(
        [
            *("-device", subsystem),
            *controller(0, "subsys=sub0"),
            *file_node("d0", image(folder / "placed.img", 256)),
            *namespace("d0", 1, "fdp.ruhs=0-3"),
        ]
    )


__all__ = ["MARK", "Drives", "failing", "plain"]
