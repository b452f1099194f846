"""make lab: scenarios that need more than this machine has, in a guest that has it. docs/lab-machine.md.

    python -m tests.lab [--set host|guest|long] [--scenario NAME]... [--results DIR] [--shell COMMAND]

host: what needs no guest, in seconds. guest: a boot each with an RDMA device or drives, some minutes. long: many boots. A
scenario that cannot run here is a skip, which says why; the exit status is 0 when nothing failed, and 77 when everything was
skipped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tests.lab import drives, power, wire
from tests.lab.drives import Drives
from tests.lab.guest import CannotRun, Guest, Outcome, check

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "release"
ADDRESS = "10.9.0.1"
SECOND = "10.9.1.1"
SKIPPED = 77
# Native tests of a server, whose client talks over the device. What counts time or places of unix sockets is not among them.
CARRIER_TESTS = (
    *("request_get_test", "request_get_layers_test", "request_put_test", "request_keys_test"),
    *("request_life_test", "request_prefetch_test", "malformed_test", "hello_test"),
)
# Four times and more of what the job takes on an idle machine.
LIMIT_S = 900.0

# Soft-RoCE over a device of no network: MTU 9000 gives RDMA one of 4096.
_DEVICE = f"""
set -e
modprobe -a rdma_rxe ib_uverbs dummy
ip link add lab0 type dummy
ip link set lab0 mtu 9000 up
ip addr add {ADDRESS}/24 dev lab0
rdma link add rxe0 type rxe netdev lab0
rdma link
"""

# The drives of QEMU: one queue has polled completions. No command is given up while a scenario's drive hangs: the controller
# would be reset, and QEMU waits for the drive then, with the whole guest.
_DRIVES = """
set -e
modprobe nvme_core io_timeout=120
modprobe nvme poll_queues=1
for _ in $(seq 300); do [ -e /dev/ng0n1 ] && [ -e /dev/nvme0n1 ] && break; sleep 0.1; done
ls /dev/ng*
"""


Boot = Callable[[str, Drives, Callable[["subprocess.Popen[bytes]"], None]], Outcome]


@dataclass(frozen=True)
class Scenario:
    """name: for --scenario. kind: the set it is in. job: the shell text that runs it, there. needs: files of the build.

    drives: of the guest, made in a folder; None: it has an RDMA device instead. qemu: the oldest major version that will do.
    boots: for one that is more than a boot; gets the folder, and how to boot. limits: a boot may take so many times --limit.
    pair: two guests, a job of their own each.
    """

    name: str
    kind: str
    what: str
    job: Callable[[], str]
    needs: Callable[[], Sequence[Path]] = lambda: ()
    drives: Callable[[Path], AbstractContextManager[Drives]] | None = None
    qemu: int = 0
    boots: Callable[[Path, Boot], Outcome] | None = None
    limits: int = 1
    pair: bool = False


def _carrier_programs() -> list[Path]:
    return [BUILD / "native" / "shard" / f"shard_{name}" for name in CARRIER_TESTS]


def _carriers() -> str:
    lines = [
        f"echo '=== {program.name}'; HALFSTEP_TEST_RDMA={ADDRESS} {program} --gtest_brief=1 --gtest_color=no || failed=1"
        for program in _carrier_programs()
    ]
    return "failed=0\n" + "\n".join(lines) + "\nexit $failed"


def _blocks() -> str:
    return f"cd {ROOT} && exec {sys.executable} -P -m tests.lab.blocks {ADDRESS}"


def _placed() -> str:
    return f"cd {ROOT} && exec {sys.executable} -P -m tests.lab.placed {ADDRESS}"


def _cards() -> str:
    second = f"""
ip link add lab1 type dummy
ip link set lab1 mtu 9000 up
ip addr add {SECOND}/24 dev lab1
rdma link add rxe1 type rxe netdev lab1
"""
    return f"{second}cd {ROOT} && exec {sys.executable} -P -m tests.lab.cards {ADDRESS} {SECOND}"


def _peer() -> str:
    step = f"{sys.executable} -P -m tests.lab.peer {ADDRESS}"
    return f"cd {ROOT} && {step} client && exec {step} daemon"


def _placed_life_program() -> list[Path]:
    return [BUILD / "tests" / "integration" / "native" / "integration_placed_life_test"]


def _placed_life() -> str:
    return f"HALFSTEP_TEST_RDMA={ADDRESS} exec {_placed_life_program()[0]} --gtest_color=no"


def _bench() -> str:
    # One batch at a time for a second: what is asked is whether it measures that path at all.
    options = "--transport rdma --rw get,put --bs 64KiB --size 1MiB --batch 4 --runtime 1 --repeat 1 --arena 64MiB --no-pin"
    return f"cd /tmp && exec {sys.executable} -P -m halfstep.tools.cli bench {options} --directory /tmp"


def _fake() -> str:
    wanted = r"^rdma/|^net/(Rings|Border|Pipes|Liar)\.|Rdma|over_rdma"
    return f"exec ctest --test-dir {BUILD} --output-on-failure --no-tests=error -R '{wanted}'"


def _refusal() -> str:
    return f"cd {ROOT} && exec {sys.executable} -P -m tests.lab.no_device"


def _nvme(step: str, *devices: str) -> str:
    return f"cd {ROOT} && exec {sys.executable} -P -m tests.lab.nvme {step} {' '.join(devices)}"


def _engine_tests() -> list[Path]:
    return [BUILD / "native" / "io" / "io_engine_test", BUILD / "native" / "io" / "io_engine_gather_test"]


def _nvme_engine() -> str:
    runs = "\n".join(
        f"echo '=== {program.name}'; {program} --gtest_filter='*/UringCmd' --gtest_brief=1 --gtest_color=no || failed=1"
        for program in _engine_tests()
    )
    return f"export HALFSTEP_TEST_NVME=/dev/ng0n2\nfailed=0\n{runs}\nexit $failed"


# Of a daemon that all of a file's tests share: what is put comes back, whole and in parts, by every call that there is.
_INTEGRATION = ("test_client_data.py", "test_values.py", "test_parts.py", "test_client_sections.py")


def _integration() -> str:
    files = " ".join(str(ROOT / "tests" / "integration" / name) for name in _INTEGRATION)
    # A line for each test, so that the console shows how far it is.
    options = "-v --color=no -p no:cacheprovider --timeout=0 --basetemp=/tmp/pytest"
    return f"cd {ROOT} && export HALFSTEP_TEST_STORE=/dev/ng0n1 && exec {sys.executable} -m pytest {options} {files}"


SCENARIOS = (
    Scenario(
        "fake-device", "host", "native tests over a table of verbs that moves bytes within a process", _fake, _carrier_programs
    ),
    Scenario("no-device", "host", "a client of a machine without a device stays on TCP and says why, or is refused", _refusal),
    Scenario("carriers", "guest", "the server's tests of carriers over Soft-RoCE", _carriers, _carrier_programs),
    Scenario("blocks", "guest", "daemon and client over Soft-RoCE: 100 blocks compared, either end killed", _blocks),
    Scenario("cards", "guest", "a daemon with two devices: blocks over both, and one taken away", _cards),
    Scenario(
        "placed",
        "guest",
        "500 blocks through rings and placed over Soft-RoCE, the daemon killed, gets called off",
        _placed,
        limits=2,
    ),
    Scenario(
        "peer", "guest", "over Soft-RoCE, a peer in pyverbs written from the page: a client, and a daemon", _peer, limits=2
    ),
    Scenario(
        "placed-life",
        "long",
        "100 kills of either end, deadlines and cancels while a daemon writes into the client's memory",
        _placed_life,
        _placed_life_program,
        limits=3,
    ),
    Scenario(
        "pair",
        "long",
        "two guests: 200 blocks while packets are lost; RDMA dies and comes back, at either end",
        lambda: "",
        pair=True,
        limits=3,
    ),
    Scenario("bench", "guest", "`halfstep bench --transport rdma` over Soft-RoCE; its figures mean nothing", _bench),
    Scenario("nvme-engine", "guest", "the tests of engines by NVMe commands", _nvme_engine, _engine_tests, drives=drives.plain),
    Scenario(
        "nvme-daemon",
        "guest",
        "a daemon by NVMe commands: blocks compared after a stop and a kill",
        lambda: _nvme("daemon", "/dev/ng0n1"),
        drives=drives.plain,
    ),
    Scenario(
        "nvme-integration",
        "guest",
        "integration tests of the client with a daemon by NVMe commands",
        _integration,
        drives=drives.plain,
        limits=3,
    ),
    Scenario(
        "nvme-errors",
        "guest",
        "drives that answer errors and that hang: misses within the deadline",
        lambda: _nvme("errors", "/dev/ng0n1", "/dev/ng1n1"),
        drives=drives.failing,
    ),
    Scenario(
        "nvme-placed",
        "long",
        "streams by placement identifiers (FDP), and write amplification as the drive counts",
        lambda: _nvme("placed", "/dev/ng0n1"),
        drives=drives.placing,
        qemu=8,
    ),
    Scenario(
        "nvme-power",
        "long",
        f"{power.CUTS} power cuts that lose the drive's volatile cache: no wrong byte, no lost `persist` block",
        lambda: "",
        boots=power.cuts,
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what was asked for, prints a line for each scenario. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description="Scenarios that need more than this machine has.")
    parser.add_argument("--set", choices=("host", "guest", "long"), default="guest", dest="kind")
    parser.add_argument("--scenario", action="append", choices=[scenario.name for scenario in SCENARIOS], default=None)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "lab" / "results", help="where logs of guests go")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds that a guest may take")
    parser.add_argument("--targets", action="store_true", help="print the programs that they need, and run nothing")
    parser.add_argument("--shell", help="run this instead of scenarios, in a guest with the device")
    options = parser.parse_args(arguments)
    if options.shell is not None:
        return _shell(options.shell, options.results, options.limit)
    wanted = [s for s in SCENARIOS if (s.name in options.scenario if options.scenario else s.kind == options.kind)]
    if options.targets:
        print(*sorted({program.name for scenario in wanted for program in scenario.needs()}))
        return 0
    outcomes = [_run(scenario, options.results, options.limit) for scenario in wanted]
    if "failed" in outcomes:
        return 1
    return SKIPPED if set(outcomes) == {"skipped"} else 0


def _run(scenario: Scenario, results: Path, usual_limit_s: float) -> str:
    limit_s = usual_limit_s * scenario.limits
    if missing := [str(path) for path in scenario.needs() if not path.exists()]:
        return _said(scenario, "skipped", f"{missing[0]} is not built; `make lab` builds it")
    started = time.monotonic()
    if scenario.kind == "host":
        status = subprocess.run(["bash", "-c", scenario.job()], env=_environment(), check=False).returncode
        log, ended = "", f"{time.monotonic() - started:.0f} s"
    else:
        try:
            outcome = _in_guest(scenario, results / scenario.name, limit_s)
        except CannotRun as error:
            return _said(scenario, "skipped", str(error))
        status = outcome.status if outcome.status is not None else -1
        log = str(results / scenario.name / ("*/console.log" if scenario.pair else "console.log"))
        ended = f"{outcome.seconds:.0f} s" + (f", killed at its limit of {limit_s:.0f} s" if outcome.timed_out else "")
        print(outcome.console, end="", flush=True)
    if status == SKIPPED:
        return _said(scenario, "skipped", "what it printed says why")
    return _said(scenario, "ok" if status == 0 else "failed", f"status {status}, {ended}" + (f", {log}" if log else ""))


def _in_guest(scenario: Scenario, results: Path, limit_s: float) -> Outcome:
    if scenario.pair:
        return wire.run(ROOT / "build" / "lab", ROOT, results, limit_s=limit_s, environment=_guest_environment())
    guest = Guest(ROOT / "build" / "lab", major=scenario.qemu)
    results.mkdir(parents=True, exist_ok=True)
    if scenario.boots is not None:

        def boot(step: str, there: Drives, on_start: Callable[[subprocess.Popen[bytes]], None]) -> Outcome:
            return guest.run(
                _DRIVES + _nvme(step),
                results,
                limit_s=limit_s,
                environment=_guest_environment(),
                devices=there.arguments,
                on_line=there.said,
                on_start=on_start,
            )

        return scenario.boots(results, boot)
    device = _DEVICE if scenario.drives is None else _DRIVES
    with scenario.drives(results) if scenario.drives is not None else nullcontext(Drives(())) as there:
        return guest.run(
            device + scenario.job(),
            results,
            limit_s=limit_s,
            environment=_guest_environment(),
            devices=there.arguments,
            on_line=there.said,
        )


def _said(scenario: Scenario, outcome: str, why: str) -> str:
    print(f"lab: {outcome}: {scenario.name} ({scenario.what}): {why}", flush=True)
    return outcome


def _shell(command: str, results: Path, limit_s: float) -> int:
    try:
        check()
        outcome = Guest(ROOT / "build" / "lab").run(
            f"{_DEVICE}set +e\n{command}", results / "shell", limit_s=limit_s, environment=_guest_environment()
        )
    except CannotRun as error:
        print(f"lab: skipped: {error}")
        return SKIPPED
    print(outcome.console, end="")
    return 1 if outcome.status is None else outcome.status


def _environment() -> dict[str, str]:
    path = filter(None, (os.environ.get("PYTHONPATH"), str(ROOT / "src"), str(ROOT)))
    return dict(os.environ) | {"PYTHONPATH": ":".join(path), "PYTHONUNBUFFERED": "1"}


def _guest_environment() -> dict[str, str]:
    return {name: _environment()[name] for name in ("PYTHONPATH", "PYTHONUNBUFFERED")} | {"PYTHONDONTWRITEBYTECODE": "1"}


if __name__ == "__main__":
    sys.exit(main())
