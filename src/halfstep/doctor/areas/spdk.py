"""The SPDK target behind the store: that it answers, has bdev and controller, and that its memory and its drive are well."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.daemon.spdk import check_socket
from halfstep.daemon.units import MIB, format_bytes
from halfstep.doctor.case import Case
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import Host
from halfstep.errors import ConfigError, HalfstepError
from halfstep.io.spdk.target import State

PAGE_BYTES = 2 * MIB
# Of each shard beside its arena: its queue, twice while it is renewed, and pages to move the arena by.
PAGES_BESIDE = 8
USED_PERCENT = 90
UNREACHED = Rule(
    "spdk-unreached",
    Severity.ERROR,
    "an SPDK target that answers",
    "The daemon does not start; one that runs answers misses for what is not in memory.",
    "start the target and look at its log, or correct `rpc_socket` in {file}",
)
REFUSED = Rule(
    "spdk-configuration",
    Severity.ERROR,
    "a file that fits the target and the store",
    "The daemon does not start.",
    "as the message says; docs/drives.md shows a file; it is {file}",
)
MISSING = Rule(
    "spdk-missing",
    Severity.ERROR,
    "bdev and vhost controller",
    "Nobody listens at the store's socket.",
    "`halfstep device spdk {file}` makes them; so does a daemon with `--spdk`, and one that has ended has to be started",
)
PAGES_SHORT = Rule(
    "spdk-huge-pages",
    Severity.ERROR,
    "at least {wanted} free pages of 2 MiB",
    "SPDK takes the arena in reserved pages alone: the daemon does not start.",
    "`sudo sysctl vm.nr_hugepages=` to what SPDK has and {wanted} more, before both start; or lower `--arena`",
)
DRIVE_WORN = Rule(
    "spdk-drive-worn",
    Severity.WARNING,
    f"below {USED_PERCENT} % of the endurance, and no media errors",
    "Worn flash reads slower, and the drive may make itself read-only.",
    "plan its replacement; `halfstep device spdk {file} --check` shows its health, for smartctl does not see a drive of SPDK's",
)


def _file(case: Case) -> str:
    if not case.config.spdk:
        raise SkipCheck("the daemon has no --spdk")
    return case.config.spdk


def _state(host: Host, file: str) -> State:
    """Errors: SkipCheck where `target` says what is wrong."""
    try:
        _, state = host.kernel.spdk(file)
    except HalfstepError:
        raise SkipCheck("the SPDK target did not answer") from None
    if state is None:
        raise SkipCheck("the SPDK target has no bdev or controller of this store")
    return state


def target(host: Host, case: Case) -> Iterator[Finding | str]:
    """That it answers and has what its file wants."""
    file = _file(case)
    try:
        config, state = host.kernel.spdk(file)
        if state is not None:
            check_socket(str(case.config.store), state)
    except ConfigError as error:
        yield REFUSED.found(str(error), file=file)
        return
    except HalfstepError as error:
        yield UNREACHED.found(str(error), file=file)
        return
    if state is None:
        yield MISSING.found(f"no bdev {config.block_device} or no controller {config.controller}", file=file)
    else:
        size = format_bytes(state.blocks * state.block_bytes)
        yield f"{state.version}: {state.controller} of {state.bdev}, {size}, blocks of {state.block_bytes} bytes"


def pages(host: Host, case: Case) -> Iterator[Finding | str]:
    """That the next start finds reserved pages; a daemon that runs has its own."""
    _file(case)
    if case.daemon is not None:
        raise SkipCheck("the daemon runs, and has its pages")
    wanted = -(-case.config.arena_bytes // PAGE_BYTES) + PAGES_BESIDE * max(case.config.shards, 1)
    free = host.number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") or 0
    if free < wanted:
        yield PAGES_SHORT.found(free, wanted=wanted)
    else:
        yield f"{free} free pages of 2 MiB"


def drive(host: Host, case: Case) -> Iterator[Finding | str]:
    """Health of an NVMe drive that SPDK has, in its own words."""
    file = _file(case)
    told = _state(host, file).drive
    if not told:
        raise SkipCheck("the bdev is no NVMe drive of SPDK's, or tells no health")
    used, errors = (told.get(key) for key in ("percentage_used", "media_errors"))
    text = f"{used} % used, {errors} media errors"
    worn = isinstance(used, int) and used >= USED_PERCENT
    if worn or (isinstance(errors, int) and errors > 0):
        yield DRIVE_WORN.found(text, file=file)
    else:
        yield text


AREA = Area(
    "spdk",
    "SPDK target",
    (
        Check("SPDK target", target, (UNREACHED, REFUSED, MISSING)),
        Check("SPDK's huge pages", pages, (PAGES_SHORT,)),
        Check("SPDK's drive", drive, (DRIVE_WORN,)),
    ),
    of_daemon=True,
)
