"""The machine itself: its clock, its clock source, its processor."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.doctor.case import Case
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import Host

# 2025-01-01 and 2096-01-01: before this code, and where the store's time ends.
CLOCK_S_MIN, CLOCK_S_MAX = 1_735_689_600, 3_976_214_400
SLOW_SOURCES = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"})
WANTED_FLAGS = ("sse4_2", "pclmulqdq", "avx2")
BEST_FLAGS = ("avx512bw", "avx512vl", "avx512_vbmi", "avx512_vbmi2")
CLOCK_FREE = Rule(
    "clock-unsynchronised",
    Severity.WARNING,
    "synchronised",
    "Blocks end by the machine's clock. One that is set by a jump ends them early or late, and logs of hosts do not match.",
    "`sudo timedatectl set-ntp true`, or install chrony; in a virtual machine also look at the host",
)
CLOCK_WRONG = Rule(
    "clock-wrong",
    Severity.ERROR,
    "a time between 2025 and 2096",
    "No end of a block can be expressed, or all of them have passed.",
    "set the clock: `sudo timedatectl set-ntp true`, then `timedatectl`",
)
SOURCE_SLOW = Rule(
    "clock-source-slow",
    Severity.WARNING,
    "`tsc`, or the clock of the hypervisor",
    "Each look at the clock is a system call and a slow register; the daemon looks several times for each request.",
    "`echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource`; `dmesg` says why it was given up",
)
CPU_OLD = Rule(
    "cpu-features",
    Severity.WARNING,
    "sse4_2, pclmulqdq and avx2",
    "Checksums and codecs take their plain paths, several times slower.",
    "in a virtual machine pass the processor through (`-cpu host`); else take another machine",
)


def clock(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001 -- every check has one signature
    """Whether it is set, and kept."""
    now = host.kernel.now_s()
    if not CLOCK_S_MIN <= now <= CLOCK_S_MAX:
        yield CLOCK_WRONG.found(f"{now:.0f} s since 1970")
        return
    told = host.kernel.clock()
    if not told.synchronised:
        yield CLOCK_FREE.found("not synchronised")
    else:
        yield f"synchronised, off by {told.error_s * 1e3:.3g} ms at most"


def clock_source(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001
    """Where the kernel takes the time from."""
    name = host.read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if name in SLOW_SOURCES:
        yield SOURCE_SLOW.found(name)
    else:
        yield name


def processor(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001
    """Instructions for checksums and codecs."""
    if host.kernel.machine() != "x86_64":
        raise SkipCheck(f"no instructions of {host.kernel.machine()} are asked for")
    flags = set(host.field("/proc/cpuinfo", "flags").split())
    if missing := [flag for flag in WANTED_FLAGS if flag not in flags]:
        yield CPU_OLD.found(f"without {', '.join(missing)}")
    else:
        best = all(flag in flags for flag in BEST_FLAGS)
        yield f"avx2{', and AVX-512 with VBMI2' if best else '; no AVX-512 with VBMI2, which codecs would use'}"


AREA = Area(
    "machine",
    "Clock and processor",
    (
        Check("clock", clock, (CLOCK_FREE, CLOCK_WRONG)),
        Check("clock source", clock_source, (SOURCE_SLOW,)),
        Check("processor", processor, (CPU_OLD,)),
    ),
)
