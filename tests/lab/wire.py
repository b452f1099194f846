"""Two guests on one wire, each with an RDMA device: what pair.py runs in them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from tests.lab.guest import Guest, Outcome

ROLES = ("daemon", "client")
DAEMON = "10.9.1.1"
# Both, beside the machine's own work.
_MEMORY_MB = 3072
# Gives RDMA one of 4096: of a block as few packets as may be, since some of them are lost.
_MTU = 9000
_PATIENCE_S = 60.0
_MODULES = "virtio_net rdma_rxe ib_uverbs sch_netem sch_ingress cls_u32 act_gact"


def run(folder: Path, root: Path, results: Path, *, limit_s: float, environment: Mapping[str, str]) -> Outcome:
    """Boots both, and returns when both have ended. folder: of kernel and initramfs. The console is that of both.

    Errors: CannotRun.
    """
    guests = [Guest(folder) for _ in ROLES]
    outcomes: dict[str, Outcome] = {}
    booted: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="halfstep-wire-") as place:
        wire = Path(place) / "wire"

        def boot(number: int) -> None:
            role = ROLES[number]
            outcomes[role] = guests[number].run(
                _job(number, root),
                results / role,
                limit_s=limit_s,
                memory_mb=_MEMORY_MB,
                environment=environment,
                devices=_network(number, wire),
                on_start=booted.append,
            )

        threads = [threading.Thread(target=boot, args=(number,)) for number in range(len(ROLES))]
        try:
            threads[0].start()
            until = time.monotonic() + _PATIENCE_S
            while not wire.exists() and threads[0].is_alive() and time.monotonic() < until:
                time.sleep(0.05)
            threads[1].start()
            for thread in threads:
                thread.join()
        except BaseException:  # Ctrl-C: the guests go with us
            for process in booted:
                process.kill()
            raise
    ended = [outcomes[role] for role in ROLES if role in outcomes]
    failed = [outcome for outcome in ended if outcome.status != 0]
    return Outcome(
        status=failed[0].status if failed else 0 if len(ended) == len(ROLES) else None,
        timed_out=any(outcome.timed_out for outcome in ended),
        console="".join(f"--- {role}\n{outcomes[role].console}" for role in ROLES if role in outcomes),
        seconds=max((outcome.seconds for outcome in ended), default=0.0),
    )


def _network(number: int, wire: Path) -> list[str]:
    """A network card at one end of the wire, which the first guest lays out."""
    end = f"stream,id=wire,server={'off' if number else 'on'},addr.type=unix,addr.path={wire}"
    return ["-netdev", end, "-device", f"virtio-net-pci,netdev=wire,mac=52:54:00:00:09:{number + 1:02x},romfile="]


def _job(number: int, root: Path) -> str:
    address = DAEMON if number == 0 else "10.9.1.2"
    return f"""
set -e
modprobe -a {_MODULES}
ip addr add {address}/24 dev eth0
ip link set eth0 mtu {_MTU} up
rdma link add rxe0 type rxe netdev eth0
rdma link
set +e
cd {root} && exec {sys.executable} -P -m tests.lab.pair {ROLES[number]} {DAEMON}
"""
