"""The daemon behind the URL, by its answer: whether all of it is reached, by which path, and what its counters say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from halfstep.doctor.case import Case
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import Host

UNREACHED = Rule(
    "daemon-unreached",
    Severity.ERROR,
    "a daemon that answers",
    "Clients with that URL miss everything, and engines compute.",
    "as the message says; docs/troubleshoot.md has the others of its kind",
)
SHARDS_UNREACHED = Rule(
    "shards-unreached",
    Severity.ERROR,
    "all connections are up",
    "Blocks of the shards that are not reached are misses.",
    "open the ports of all shards, which are numbered from the first one, or share all their sockets",
)
NO_SHARED_MEMORY = Rule(
    "path-not-shared-memory",
    Severity.WARNING,
    "`shm`, for a daemon of this host",
    "Bytes go through the kernel and are copied twice more.",
    "{remedy}",
    remedies="of TCP: use a `halfstep+unix://` URL, the daemon's first lines name its socket; of its socket: raise "
    "`--shm-memory` and `MemoryMax=`, or `LimitNOFILE=`; or lower `--shm-ring`",
)
NO_RDMA = Rule(
    "path-not-rdma",
    Severity.WARNING,
    "`rdma`, which is wanted",
    "The connection goes on over TCP.",
    "as the message says; `halfstep serve --rdma auto` at the daemon, and an address of an RDMA device in the URL",
)
REPLACED = Rule(
    "daemon-build-replaced",
    Severity.WARNING,
    "the build that is installed",
    "The package was upgraded below the running daemon, which goes on with the old one.",
    "restart it when it suits: `sudo systemctl restart halfstepd`",
)
NOT_RELEASE = Rule(
    "build-not-release",
    Severity.WARNING,
    "`release`",
    "A debug or sanitizer build is several times slower.",
    "install the package anew (docs/install.md)",
)
ENGINE_PREAD = Rule(
    "daemon-without-io-uring",
    Severity.WARNING,
    "io_uring carries the requests",
    "The daemon took its pool of threads instead, at its start.",
    "the line `engine` of its start names the cause (`journalctl -u halfstepd -b`); restart it when that is mended",
)
WRITES_OUT = Rule(
    "daemon-writes-out",
    Severity.ERROR,
    "0",
    "The device takes no writes just now: puts are answered `unavailable (media)`.",
    "give the store room (thin pool, sparse image, full disk), or look at the drive: `dmesg`, `smartctl -a`",
)
DEVICE_ERRORS = Rule(
    "daemon-device-errors",
    Severity.ERROR,
    "0",
    "Requests failed at the device since the daemon started; a sound drive has none.",
    "`dmesg` and `smartctl -a` of the drive",
)
ROT = Rule(
    "daemon-rot",
    Severity.ERROR,
    "0",
    "Stored bytes failed their check, by a get or by the scrub; each such block was a miss.",
    "replace the drive where it goes on for days; look at memory (`edac-util`, `dmesg`) where drives are sound",
)
PUT_CHECKS = Rule(
    "daemon-put-checks",
    Severity.ERROR,
    "0",
    "Bytes changed between a client and the daemon.",
    "look at the memory of both, at network cards and switches",
)
SEGMENTS_BAD = Rule(
    "daemon-segments-bad",
    Severity.WARNING,
    "0",
    "Flash is out of use because the device could not read or write it.",
    "`smartctl -a`; replace the drive when the number grows",
)
INDEX_FULL = Rule(
    "daemon-index-full",
    Severity.WARNING,
    "0",
    "Blocks are smaller than the index was sized for: flash stays empty.",
    "raise `--index`: `halfstep size --blocks N --block-bytes BYTES` says to what",
)
REFUSED = Rule(
    "daemon-connections-refused",
    Severity.WARNING,
    "0",
    "All connections were in use and none was idle; those clients missed everything.",
    "raise `--connections`, and `LimitNOFILE=` with it",
)
SHM_REFUSED = Rule(
    "daemon-shm-refused",
    Severity.WARNING,
    "0",
    "Local clients asked for shared memory and are served through the socket, for want of memory or descriptors.",
    "raise `--shm-memory` and `MemoryMax=`, or `LimitNOFILE=`; or lower `--shm-ring`",
)
RECOVERING = Rule(
    "daemon-recovering",
    Severity.WARNING,
    "0",
    "Blocks in these segments are misses, and puts are throttled, until they are read.",
    "wait; where the number stands still, look at the drive",
)
CLOCK_AHEAD = Rule(
    "daemon-clock-ahead",
    Severity.WARNING,
    "within 60 s",
    "The machine's clock has jumped ahead of the store's time: ends of blocks do not follow it.",
    "set the clock, if it is wrong; it is believed after an hour otherwise",
)
SCRUB_BEHIND = Rule(
    "daemon-scrub-behind",
    Severity.WARNING,
    "two weeks at most",
    "What rots is found late.",
    "raise `--scrub`, or leave it `auto`",
)
LATE = Rule(
    "daemon-reads-late",
    Severity.WARNING,
    "one of 16 at most",
    "The device is slower than `--latency-goal`, or others use it: writes get less and less beside gets.",
    "`halfstep bench --directory` on that drive; end what else uses it, or set a goal that it can hold",
)
SCRUB_AGE_S_MAX = 14 * 86_400
CLOCK_S_MAX = 60
LATE_READS_MIN, LATE_SHARE = 1000, 16


class Counter(NamedTuple):
    """A number that should be at most `bound`. pattern: of the names that are added up."""

    rule: Rule
    pattern: str
    bound: float = 0


COUNTERS = (
    Counter(WRITES_OUT, "halfstep_store_writes_out"),
    Counter(DEVICE_ERRORS, "halfstep_device_errors_total"),
    Counter(ROT, r'halfstep_store_misses_total\{reason="corrupt"\}|halfstep_store_scrub_blocks_total\{outcome="dropped_\w+"\}'),
    Counter(PUT_CHECKS, "halfstep_put_checks_failed_total"),
    Counter(SEGMENTS_BAD, r'halfstep_store_segments\{state="bad"\}|halfstep_store_segments_retired_total'),
    Counter(INDEX_FULL, "halfstep_store_index_full_total"),
    Counter(REFUSED, r'halfstep_connections_total\{outcome="refused"\}'),
    Counter(SHM_REFUSED, "halfstep_shm_refused_total"),
    Counter(RECOVERING, "halfstep_recovery_segments_left"),
    Counter(CLOCK_AHEAD, "halfstep_store_clock_ahead_seconds", CLOCK_S_MAX),
)


def reached(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001 -- every check has one signature
    """Whether it answers, with all of its shards."""
    if case.answer is None:
        raise SkipCheck(case.why_no_answer)
    if case.answer.why_not:
        yield UNREACHED.found(case.answer.why_not)
        return
    facts = case.answer.facts
    if facts.connected < facts.connections:
        yield SHARDS_UNREACHED.found(f"{facts.connected} of {facts.connections} connections: {facts.last_error}")
    else:
        yield f"{case.answer.url}, {case.answer.shards} shard{'s' if case.answer.shards > 1 else ''}"


def transport(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001
    """How bytes travel, and whether there is a shorter way."""
    answer = case.answered()
    by = answer.facts.transport
    shares = case.daemon is not None and case.config.shm_memory_bytes > 0 and case.config.unix != "none"
    why = f": {answer.facts.last_error}" if answer.facts.last_error else ""
    if by == "tcp" and not answer.by_user:
        # Of the addresses of the daemon here it is the one that this user may use: clients have others.
        yield f"{answer.path}: the way that is open to this user"
    elif shares and by == "unix":
        yield NO_SHARED_MEMORY.found(answer.path + why, remedy=SHM_REFUSED.remedy)
    elif shares and by == "tcp" and not re.search(r"transport=(tcp|rdma)", answer.url):
        remedy = "use a `halfstep+unix://` URL: the daemon's first lines name its socket"
        yield NO_SHARED_MEMORY.found(answer.path + why, remedy=remedy)
    elif case.wants_rdma and by == "tcp" and "transport=tcp" not in answer.url:
        yield NO_RDMA.found(answer.facts.rdma or answer.path)
    else:
        yield answer.path


def builds(host: Host, case: Case) -> Iterator[Finding | str]:
    """Of this package, and of the daemon that runs here. The wire carries versions of the protocol alone."""
    told = host.kernel.build()
    if told["build"] != "release":
        yield NOT_RELEASE.found(told["build"])
    else:
        yield f"{told['version']}, commit {told['commit']}"
    if case.daemon is None:
        return
    maps = host.read(f"/proc/{case.daemon.pid}/maps")
    modules = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if re.search(r"/_shard\.\S*\.so", line)}
    if replaced := sorted(name for name in modules if name.endswith("(deleted)")):
        yield REPLACED.found(replaced[0])
    elif modules:
        yield f"the daemon's: {min(modules)}"


def counters(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001
    """Numbers that stand still in a healthy daemon, since its start."""
    told = case.answered().counters
    found = False
    for one in COUNTERS:
        values = [value for name, value in told.items() if re.fullmatch(one.pattern, name)]
        if values and sum(values) > one.bound:
            found = True
            yield one.rule.found(f"{sum(values):,.0f}")
    age_s, rate = (told.get(f"halfstep_store_scrub_{name}", 0) for name in ("age_seconds", "bytes_per_second"))
    if rate and age_s > SCRUB_AGE_S_MAX:
        found = True
        yield SCRUB_BEHIND.found(f"{age_s / 86_400:.0f} days")
    reads = told.get('halfstep_device_class_requests_total{class="demand"}', 0)
    late = told.get("halfstep_device_reads_late_total", 0)
    if reads >= LATE_READS_MIN and late > reads / LATE_SHARE:
        found = True
        yield LATE.found(f"{late:,.0f} of {reads:,.0f}")
    if not found:
        yield "none of the numbers that tell of trouble does"


def engine(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001
    """Whether the daemon really uses io_uring."""
    if case.config.engine == "pread":
        raise SkipCheck("the daemon has --engine pread")
    told = case.answered().counters
    calls = told.get("halfstep_device_submissions_total", 0)
    requests = sum(value for name, value in told.items() if name.startswith("halfstep_device_requests_total{"))
    if not requests:
        raise SkipCheck("nothing has gone to the device yet")
    if not calls:
        yield ENGINE_PREAD.found("0 calls of io_uring")
    else:
        yield f"io_uring, {requests / calls:.3g} requests a call"


AREA = Area(
    "daemon",
    "Daemon",
    (
        Check("daemon", reached, (UNREACHED, SHARDS_UNREACHED)),
        Check("transport", transport, (NO_SHARED_MEMORY, NO_RDMA)),
        Check("builds", builds, (NOT_RELEASE, REPLACED)),
        Check("daemon's engine", engine, (ENGINE_PREAD,)),
        Check("daemon's counters", counters, (*(one.rule for one in COUNTERS), SCRUB_BEHIND, LATE)),
    ),
)
