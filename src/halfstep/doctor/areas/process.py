"""What the kernel and this installation let a daemon do: io_uring, descriptors, threads, the native core."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from halfstep.doctor.case import Case
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import Host
from halfstep.io.second_opinion import NEEDED

KERNEL_MIN = (5, 15)
KERNEL_OLD = Rule(
    "kernel-old",
    Severity.WARNING,
    "5.15 or newer",
    "Its io_uring lacks what the daemon uses: it reads and writes by a pool of threads.",
    "upgrade the kernel",
)
IO_URING_REFUSED = Rule(
    "io-uring-refused",
    Severity.WARNING,
    "io_uring_setup, io_uring_register and io_uring_enter are allowed",
    "The daemon reads and writes by a pool of threads (`pread`), with a switch of threads for each request.",
    "{remedy}",
    remedies="of `kernel.io_uring_disabled`: `sudo sysctl kernel.io_uring_disabled=0`; of a container: the three calls in its "
    "seccomp profile; the finding names who refuses",
)
OPERATIONS_MISSING = Rule(
    "io-uring-operations",
    Severity.WARNING,
    "the kernel takes {needed}",
    "The engine goes without what is missing, or a pool of threads stands in for it; the line `engine` says which.",
    "upgrade the kernel, or see what filters the operations (a container's seccomp profile, IORING_REGISTER_RESTRICTIONS)",
)
VIEWS_DIFFER = Rule(
    "io-uring-views-differ",
    Severity.WARNING,
    "that both the doctor's own ring and the Python package liburing reach io_uring, or neither",
    "One of them is refused where the other is not: a filter that looks at the caller, or a build that does not fit.",
    "`pip install --upgrade 'halfstep[doctor]'`; `dmesg` names what a security module refused",
)
CALLS_REFUSED = Rule(
    "seccomp-refuses",
    Severity.WARNING,
    "memfd_create, mbind and sched_setaffinity are allowed",
    "Without memfd_create local clients get no shared memory; without the others memory and threads lie where they happen to.",
    "allow {calls} in the seccomp profile of the container; Docker's own allows mbind with `--cap-add SYS_NICE`",
)
OPEN_FILES_LOW = Rule(
    "open-files-low",
    Severity.WARNING,
    "at least {wanted}: `--connections`, {clients} of them over shared memory with three each, and 64",
    "Beyond it clients are refused, and local ones get no shared memory, though `--connections` allows more.",
    "`LimitNOFILE=1048576` in the unit, and start the daemon again; by hand `ulimit -n 1048576`; or lower `--connections`",
)
THREADS_LOW = Rule(
    "threads-low",
    Severity.WARNING,
    "at least {wanted} more than run",
    "io_uring can start no worker, or a shard no thread: the daemon does not start, or answers ECANCELED.",
    "raise `ulimit -u`, or `TasksMax=` of the unit",
)
CORE_MISSING = Rule(
    "core-missing",
    Severity.ERROR,
    "the module `halfstep._shard` can be loaded",
    "This installation cannot serve, though its client may work.",
    "`sudo apt-get install liburing2` where that is named, else build the package on this machine (docs/install.md)",
)
THREADS_WANTED = 64


def kernel_version(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001 -- every check has one signature
    """Of the kernel, for io_uring."""
    release = host.kernel.release()
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers is None:
        raise SkipCheck(f"{release}: no version that could be compared")
    if (int(numbers[1]), int(numbers[2])) < KERNEL_MIN:
        yield KERNEL_OLD.found(release)
    else:
        yield release


def io_uring(host: Host, case: Case) -> Iterator[Finding | str]:
    """Tries a ring; names who refuses it. Of this process: a container or a unit may have another filter."""
    if case.config.engine == "pread":
        raise SkipCheck("the daemon has --engine pread")
    disabled = host.number("/proc/sys/kernel/io_uring_disabled")
    refusal = host.kernel.ring_refusal()
    if refusal is None:
        yield "a ring was made and entered" + ("" if disabled is None else f"; kernel.io_uring_disabled={disabled}")
        return
    told = f"{refusal.call}: {errno.errorcode.get(refusal.error, refusal.error)}"
    yield IO_URING_REFUSED.found(told, remedy=_ring_remedy(host, refusal.error, disabled))


def second_opinion(host: Host, case: Case) -> Iterator[Finding | str]:
    """The kernel's operations by the Python package liburing, beside the ring that the doctor made."""
    if case.config.engine == "pread":
        raise SkipCheck("the daemon has --engine pread")
    opinion = host.kernel.second_opinion()
    if opinion.why_none:
        raise SkipCheck(opinion.why_none)
    refusal = host.kernel.ring_refusal()
    if bool(opinion.operations) != (refusal is None):
        own = "made a ring" if refusal is None else f"is refused by {refusal.call}"
        yield VIEWS_DIFFER.found(f"the doctor {own}, liburing sees {len(opinion.operations)} operations")
    elif opinion.operations and opinion.missing:
        yield OPERATIONS_MISSING.found(f"without {', '.join(opinion.missing)}", needed=", ".join(NEEDED))
    else:
        yield f"{len(opinion.operations)} operations by liburing" + ("" if refusal is None else ", and no ring for the doctor")


def _ring_remedy(host: Host, error: int, disabled: int | None) -> str:
    filtered = host.field("/proc/self/status", "Seccomp") == "2"
    if error in (errno.EPERM, errno.EACCES):
        if disabled == 2:
            return "`sudo sysctl kernel.io_uring_disabled=0`, and the same in /etc/sysctl.d"
        if disabled == 1 and not filtered:
            group = host.text("/proc/sys/kernel/io_uring_group")
            return f"`sudo sysctl kernel.io_uring_disabled=0`, or the daemon's user joins group {group} (kernel.io_uring_group)"
    if filtered:
        return "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile of the container"
    if error == errno.ENOSYS:
        return "boot a kernel with CONFIG_IO_URING, 5.15 or newer"
    if error == errno.ENOMEM:
        return "`ulimit -l unlimited`: before Linux 5.12 the ring's memory counts as locked"
    if error in (errno.EMFILE, errno.ENFILE):
        return "`ulimit -n 1048576`"
    return "allow io_uring for this service in the security module (`journalctl -k -g denied` names it)"


def seccomp(host: Host, case: Case) -> Iterator[Finding | str]:
    """The filter of system calls on the daemon, and which of its calls this process's own filter refuses."""
    pid, of = case.limited
    filters = {one: host.field(f"/proc/{one}/status", "Seccomp") for one in (pid, "self")}
    if filters["self"] != "2":
        own = "" if filters[pid] != "2" else "; the doctor has none, and cannot tell what it refuses: run it inside"
        yield f"{'a filter' if filters[pid] == '2' else 'no filter'} on {of}{own}"
        return
    refused = host.kernel.refused_calls()
    if refused:
        yield CALLS_REFUSED.found(f"{', '.join(refused)}: refused", calls=", ".join(refused))
    else:
        yield "a filter, which lets the daemon's calls through"


def open_files(host: Host, case: Case) -> Iterator[Finding | str]:
    """RLIMIT_NOFILE against the connections that are allowed."""
    wanted, clients = case.files_wanted, case.local_clients
    pid, of = case.limited
    limit = host.limit_of(pid, "Max open files")
    if limit is not None and limit < wanted:
        yield OPEN_FILES_LOW.found(f"{limit} for {of}", wanted=wanted, clients=clients)
    else:
        yield f"{'unlimited' if limit is None else limit} for {of}"


def threads(host: Host, case: Case) -> Iterator[Finding | str]:
    """The control group's limit of tasks, which a daemon that runs shares with nobody."""
    pid, _ = case.limited
    tightest: tuple[int, int] | None = None
    for line in host.read(f"/proc/{pid}/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "pids" not in controllers.split(","):
            continue
        directory = "/sys/fs/cgroup" + ("/pids" if controllers else "") + group.rstrip("/")
        limit, used = host.number(f"{directory}/pids.max"), host.number(f"{directory}/pids.current")
        if limit is not None and used is not None and (tightest is None or limit - used < tightest[0] - tightest[1]):
            tightest = limit, used
    if tightest is None:
        yield "no limit"
    elif tightest[0] - tightest[1] < THREADS_WANTED:
        yield THREADS_LOW.found(f"{tightest[1]} of {tightest[0]}", wanted=THREADS_WANTED)
    else:
        yield f"{tightest[1]} of {tightest[0]}"


def native_core(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001
    """Whether the daemon's half of the package loads."""
    why_not = host.kernel.core_missing()
    if why_not:
        yield CORE_MISSING.found(why_not)
    else:
        yield "loads"


AREA = Area(
    "process",
    "Kernel and process",
    (
        Check("kernel", kernel_version, (KERNEL_OLD,)),
        Check("io_uring", io_uring, (IO_URING_REFUSED,)),
        Check("io_uring, second opinion", second_opinion, (OPERATIONS_MISSING, VIEWS_DIFFER)),
        Check("seccomp", seccomp, (CALLS_REFUSED,)),
        Check("open files", open_files, (OPEN_FILES_LOW,)),
        Check("threads", threads, (THREADS_LOW,)),
        Check("native core", native_core, (CORE_MISSING,)),
    ),
    of_daemon=True,
)
