"""A made-up machine: a tree of files below a root, and a kernel that answers as it is told. Healthy until a test changes it."""

from __future__ import annotations

import dataclasses
import errno
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halfstep.client.facts import ClientFacts
from halfstep.daemon.config import ServeConfig
from halfstep.doctor.case import Answer, Case, Daemon
from halfstep.doctor.cuda import Cuda, Gpu
from halfstep.doctor.examine import Outcome, examine
from halfstep.doctor.finding import Finding
from halfstep.doctor.host import Host
from halfstep.doctor.kernel import Clock, Kernel, PageViews, Place, RingRefusal, Route
from halfstep.doctor.verbs import Port, Verbs
from halfstep.errors import HalfstepError
from halfstep.io import nvme
from halfstep.io.second_opinion import NEEDED, Opinion, Transfers
from halfstep.io.spdk.config import SpdkConfig
from halfstep.io.spdk.target import State

REPOSITORY = Path(__file__).parents[3]
PID = 4711
DRIVE = (259, 0)
PCI = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
NVME = f"{PCI}/nvme/nvme0"
DISK = f"{NVME}/nvme0n1"
STORE = "/var/lib/halfstep/store.hs"
SERVE = f"python3\0/usr/local/bin/halfstep\0serve\0--store\0{STORE}\0"
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max address space         unlimited            unlimited            bytes
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
"""
STATUS = "Name:\thalfstep\nVmSwap:\t       0 kB\nCapEff:\t0000000000000000\nSeccomp:\t0\n"


PORTS = (Port("mlx5_0", 1, "ACTIVE", 4096, 4096),)
VERBS = Verbs("", "1.14.50.0", too_old=False, devices=("mlx5_0",), refused={}, ports=PORTS)
CUDA = Cuda("", 0, "13.0", (Gpu("H100", "0000:42:00.0", gpudirect=True, dma_buf=True),))
OPINION = Opinion(frozenset((*NEEDED, "NOP", "URING_CMD")))
PAGES = PageViews("7a", Transfers(0.1, "7a", (90.0,)), "7a")
CLOCK, WAY = Clock(synchronised=True, error_s=0.004), Route("10.0.0.8", "10.0.0.5", 9000, "eth0")
URL = "halfstep://10.0.0.5:7350/default"
COUNTERS = {
    "halfstep_store_writes_out": 0.0,
    "halfstep_device_errors_total": 0.0,
    'halfstep_device_requests_total{op="read"}': 5000.0,
    'halfstep_device_class_requests_total{class="demand"}': 4000.0,
    "halfstep_device_reads_late_total": 3.0,
    "halfstep_device_submissions_total": 2500.0,
    "halfstep_store_scrub_bytes_per_second": 262144.0,
    "halfstep_store_scrub_age_seconds": 9.0,
    'halfstep_memory_sampled_pages{of="arena",node="0"}': 64.0,
    'halfstep_memory_sampled_pages{of="index",node="0"}': 64.0,
}


@dataclass
class MadeUpKernel(Kernel):
    """Answers that a test may change."""

    kernel: str = "6.12.0-1-amd64"
    ring: RingRefusal | None = None
    core: str = ""
    uid: int = 0
    closed: tuple[str, ...] = ()
    # Paths that this user may not even look at, as those below a directory of mode 0700.
    unseen: tuple[str, ...] = ()
    time: Clock = CLOCK
    now: float = 1_800_000_000
    way: Route = WAY
    up: tuple[str, ...] = ("lo", "eth0")
    made: str = "release"
    library: Verbs = VERBS
    second: tuple[Port, ...] | None = PORTS
    driver: Cuda = CUDA
    refusal: str = ""
    direct: int = 0
    free: int = 1 << 40
    places: dict[str, Place] = field(default_factory=dict)
    # By controller, command, and command dword 10. What is not there is refused.
    admin: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    # By controller, number, and endurance group.
    features: dict[tuple[str, int, int], int] = field(default_factory=dict)
    # Of an SPDK target: (what it is to have, what it has), or why it did not say.
    opinion: Opinion = OPINION
    pages: PageViews = PAGES
    filtered: tuple[str, ...] = ()
    spdk_target: tuple[SpdkConfig, State | None] | HalfstepError | None = None

    def name(self) -> str:
        return "flash-1"

    def release(self) -> str:
        return self.kernel

    def machine(self) -> str:
        return "x86_64"

    def user(self) -> int:
        return self.uid

    def ring_refusal(self) -> RingRefusal | None:
        return self.ring

    def may_write(self, path: str) -> bool:
        return path not in self.closed

    def clock(self) -> Clock:
        return self.time

    def now_s(self) -> float:
        return self.now

    def build(self) -> dict[str, str]:
        return {"version": "1.2.3", "build": self.made, "commit": "abc"}

    def is_up(self, device: str) -> bool:
        return device in self.up

    def route(self, host: str, port: int) -> Route:
        if host in ("127.0.0.1", "flash-1"):
            return Route("127.0.0.1", "127.0.0.1", 65536, "lo")
        if host != "10.0.0.5":
            raise OSError(errno.ENETUNREACH, "Network is unreachable")
        return self.way

    def verbs(self) -> Verbs:
        return self.library

    def pyverbs(self) -> tuple[Port, ...] | None:
        return self.second

    def cuda(self) -> Cuda:
        return self.driver

    def place(self, path: str) -> Place | None:
        if path in self.unseen:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return self.places.get(path)

    def place_refusal(self, path: str) -> str:
        if path in self.unseen:
            return f"{path}: EACCES; choose another path"
        return self.refusal

    def real_path(self, path: str) -> str:
        return path

    def free_bytes(self, path: str) -> int:
        assert path in self.places, path
        return self.free

    def try_direct(self, path: str) -> int:
        assert path in self.places, path
        return self.direct

    def nvme(self, controller: str, command: int, namespace: int, word10: int, count: int) -> bytes:
        if (controller, command, word10) not in self.admin:
            raise PermissionError(errno.EACCES, "Permission denied", f"/dev/{controller}")
        return self.admin[controller, command, word10].ljust(count, b"\0")

    def second_opinion(self) -> Opinion:
        return self.opinion

    def first_page(self, path: str) -> PageViews:
        assert path in self.places, path
        return self.pages

    def refused_calls(self) -> tuple[str, ...]:
        return self.filtered

    def spdk(self, file: str) -> tuple[SpdkConfig, State | None]:
        assert file == "/etc/halfstep/spdk.toml"
        assert self.spdk_target is not None
        if isinstance(self.spdk_target, HalfstepError):
            raise self.spdk_target
        return self.spdk_target

    def nvme_feature(self, controller: str, number: int, group: int) -> int:
        return self.features[controller, number, group]

    def core_missing(self) -> str:
        return self.core


class Machine:
    """root: where its files are. case: what is asked of it; a daemon runs, with the default settings."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kernel = MadeUpKernel()
        self.host = Host(root, self.kernel)
        self.case = Case(ServeConfig(store=Path(STORE)), daemon=Daemon(PID, ("--store", STORE)), gpu=True)
        self.answer()
        for path, text in FILES.items():
            self.write(path, text)
        for path, to in LINKS.items():
            self.link(path, to)
        self.kernel.places |= {
            "/": Place((8, 1), is_block_device=False, is_directory=True, bytes=4096, stored_bytes=4096),
            "/var": Place((8, 1), is_block_device=False, is_directory=True, bytes=4096, stored_bytes=4096),
            "/var/lib/halfstep": Place(DRIVE, is_block_device=False, is_directory=True, bytes=4096, stored_bytes=4096),
            STORE: Place(DRIVE, is_block_device=False, is_directory=False, bytes=1 << 36, stored_bytes=1 << 36),
            "/dev/nvme0n1": Place(DRIVE, is_block_device=True, is_directory=False, bytes=0, stored_bytes=0),
        }
        identity = bytearray(4096)
        identity[525] = 1  # it has a volatile write cache
        formats = bytearray(4096)
        formats[25], formats[26] = 1, 1  # two formats, the second in use
        formats[128:136] = bytes([0, 0, 9, 2, 0, 0, 12, 0])
        log = bytearray(512)
        log[1:3] = (273 + 41).to_bytes(2, "little")
        log[3], log[4], log[5] = 100, 10, 3
        self.kernel.admin |= {
            ("nvme0", nvme.IDENTIFY, 1): bytes(identity),
            ("nvme0", nvme.IDENTIFY, 0): bytes(formats),
            ("nvme0", nvme.GET_LOG, 0x7F0002): bytes(log),
        }

    def write(self, path: str, text: str) -> None:
        """A file; its directories are made."""
        place = self.host.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="latin-1" if path.endswith("/config") else "utf-8")

    def link(self, path: str, to: str) -> None:
        """A symbolic link, as it says it."""
        place = self.host.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(to)

    def set_admin(self, command: int, word10: int, at: int, value: bytes) -> None:
        """Other bytes in what the drive answers."""
        answer = bytearray(self.kernel.admin["nvme0", command, word10])
        answer[at : at + len(value)] = value
        self.kernel.admin["nvme0", command, word10] = bytes(answer)

    def set_place(self, path: str, **changes: Any) -> None:
        """Something else about what lies at a path."""
        self.kernel.places[path] = dataclasses.replace(self.kernel.places[path], **changes)

    def remove(self, path: str) -> None:
        """A file that was there."""
        self.host.path(path).unlink()

    def edit(self, path: str, old: str, new: str) -> None:
        """A file's text; `old` has to stand in it."""
        text = self.host.path(path).read_text()
        assert old in text, path
        self.write(path, text.replace(old, new))

    def set_limit(self, name: str, value: int, pid: object = PID) -> None:
        """Of the daemon, or of pid "self", by its name in /proc/PID/limits."""
        lines = self.host.path(f"/proc/{pid}/limits").read_text().splitlines()
        old = next(line for line in lines if line.startswith(name))
        self.edit(f"/proc/{pid}/limits", old, f"{name:<26}{value:<21}{value:<21}")

    def answer(self, changes: dict[str, float] | None = None, shards: int = 1, **facts: Any) -> None:
        """What the daemon says: other counters, other facts of the client."""
        told = {"connected": 1, "connections": 1, "transport": "shm"} | facts
        path = "shm /run/halfstep/halfstep.sock" if told["transport"] == "shm" else "tcp cubic 10.0.0.5:7350"
        self.case = self.case.with_answer(
            Answer(URL, "10.0.0.5:7350", "", path, COUNTERS | (changes or {}), shards, ClientFacts(**told))
        )

    def serve(self, **settings: Any) -> None:
        """Other settings of the daemon."""
        self.case = dataclasses.replace(self.case, config=dataclasses.replace(self.case.config, **settings))

    def stop(self) -> None:
        """No daemon runs: what counts is this process."""
        self.case = dataclasses.replace(self.case, daemon=None)

    def outcomes(self) -> list[Outcome]:
        """Of all checks, those of GPUs included."""
        return list(examine(self.host, self.case).outcomes)

    def findings(self) -> dict[str, Finding]:
        """By id."""
        return {finding.id: finding for one in self.outcomes() for finding in one.findings}

    def outcome(self, check: str) -> Outcome:
        """Of one check by its name."""
        return next(one for one in self.outcomes() if one.check == check)


GPU = "/sys/devices/pci0000:40/0000:40:01.0/0000:42:00.0"
BRIDGE = "/sys/devices/pci0000:40/0000:40:01.0"
NIC = "/sys/class/infiniband/mlx5_0"
GID_V4, GID_LINK = "0000:0000:0000:0000:0000:ffff:0a00:0008", "fe80:0000:0000:0000:0000:00ff:fe00:0001"


def pci_config(control: int) -> str:
    """Configuration space with one extended capability, Access Control Services, as characters of one byte each."""
    return "\0" * 0x100 + "".join(map(chr, [0x0D, 0, 1, 0, 0xFF, 0, control, 0])) + "\0" * 100


LINKS = {
    "/sys/bus/pci/devices/0000:42:00.0": f"../../../..{GPU}",
    "/sys/bus/pci/devices/0000:40:01.0": f"../../../..{BRIDGE}",
    "/etc/systemd/system/multi-user.target.wants/halfstepd.service": "/etc/systemd/system/halfstepd.service",
    "/sys/dev/block/259:0": f"../../..{DISK}",
    "/sys/class/nvme/nvme0": f"../../..{NVME}",
    f"{DISK}/device": "../../nvme0",
    f"{PCI}/iommu_group": "../../../../kernel/iommu_groups/7",
}
FILES: dict[str, str] = {
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0\n",
    "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "0\n",
    "/proc/self/status": STATUS,
    "/proc/cpuinfo": "processor : 0\nflags : fpu sse4_2 pclmulqdq avx2 avx512bw avx512vl avx512_vbmi avx512_vbmi2\n",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "/sys/class/net/eth0/operstate": "up\n",
    "/sys/class/net/eth0/mtu": "9000\n",
    "/sys/class/net/eth0/speed": "100000\n",
    "/proc/sys/net/ipv4/tcp_window_scaling": "1\n",
    "/proc/sys/net/ipv4/tcp_congestion_control": "cubic\n",
    "/proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
    "/proc/sys/net/ipv4/tcp_wmem": "4096\t16384\t4194304\n",
    "/proc/sys/net/core/optmem_max": "131072\n",
    f"/proc/{PID}/maps": "7f00-7f01 r-xp 0 08:01 1 /opt/halfstep/lib/python3.11/site-packages/halfstep/_shard.abi3.so\n",
    "/run/systemd/system/.keep": "",
    "/etc/systemd/system/halfstepd.service": (REPOSITORY / "systemd" / "halfstepd.service").read_text(),
    f"{NIC}/device/vendor": "0x15b3\n",
    f"{NIC}/device/net/eth0/mtu": "9000\n",
    f"{NIC}/ports/1/state": "4: ACTIVE\n",
    f"{NIC}/ports/1/rate": "100 Gb/sec (4X EDR)\n",
    f"{NIC}/ports/1/link_layer": "Ethernet\n",
    f"{NIC}/ports/1/gids/0": f"{GID_LINK}\n",
    f"{NIC}/ports/1/gids/1": f"{GID_V4}\n",
    f"{NIC}/ports/1/gids/2": "0000:0000:0000:0000:0000:0000:0000:0000\n",
    f"{NIC}/ports/1/gid_attrs/types/0": "RoCE v2\n",
    f"{NIC}/ports/1/gid_attrs/types/1": "RoCE v2\n",
    f"{NIC}/ports/1/gid_attrs/types/2": "IB/RoCE v1\n",
    f"{NIC}/ports/1/gid_attrs/ndevs/0": "eth0\n",
    f"{NIC}/ports/1/gid_attrs/ndevs/1": "eth0\n",
    f"{GPU}/vendor": "0x10de\n",
    f"{GPU}/class": "0x030200\n",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release\n",
    f"{BRIDGE}/vendor": "0x8086\n",
    f"{BRIDGE}/class": "0x060400\n",
    f"{BRIDGE}/config": pci_config(0x00),
    "/proc/self/mountinfo": (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "30 22 259:0 / /var/lib/halfstep rw,noatime shared:9 - xfs /dev/nvme0n1 rw,attr2\n"
    ),
    f"{DISK}/ro": "0\n",
    f"{DISK}/nsid": "1\n",
    f"{NVME}/model": "Made-up 3840\n",
    f"{NVME}/state": "live\n",
    f"{NVME}/transport": "pcie\n",
    f"{DISK}/queue/rotational": "0\n",
    f"{DISK}/queue/logical_block_size": "4096\n",
    f"{DISK}/queue/physical_block_size": "4096\n",
    f"{DISK}/queue/scheduler": "[none] mq-deadline\n",
    f"{DISK}/queue/write_cache": "write back\n",
    f"{DISK}/queue/discard_max_bytes": "2199023255040\n",
    f"{DISK}/queue/discard_granularity": "4096\n",
    f"{PCI}/current_link_speed": "16.0 GT/s PCIe\n",
    f"{PCI}/max_link_speed": "16.0 GT/s PCIe\n",
    f"{PCI}/current_link_width": "4\n",
    f"{PCI}/max_link_width": "4\n",
    f"{PCI}/numa_node": "0\n",
    "/sys/kernel/iommu_groups/7/type": "DMA-FQ\n",
    "/proc/self/cgroup": "0::/user.slice\n",
    f"/proc/{PID}/status": STATUS,
    f"/proc/{PID}/limits": LIMITS,
    "/proc/self/limits": LIMITS,
    f"/proc/{PID}/cmdline": SERVE,
    f"/proc/{PID}/environ": "STATE_DIRECTORY=/var/lib/halfstep\0",
    f"/proc/{PID}/cgroup": "0::/system.slice/halfstepd.service\n",
    "/proc/meminfo": "MemTotal:       65536000 kB\nMemAvailable:   60000000 kB\n",
    "/proc/sys/vm/max_map_count": "65530\n",
    "/proc/sys/vm/zone_reclaim_mode": "0\n",
    "/proc/sys/kernel/io_uring_disabled": "0\n",
    "/sys/devices/system/node/node0/cpulist": "0-7\n",
    "/sys/devices/system/node/node1/cpulist": "8-15\n",
    "/sys/fs/cgroup/system.slice/halfstepd.service/memory.max": "2147483648\n",
    "/sys/fs/cgroup/system.slice/halfstepd.service/memory.events.local": "low 0\noom 0\noom_kill 0\n",
    "/sys/fs/cgroup/system.slice/halfstepd.service/pids.max": "4096\n",
    "/sys/fs/cgroup/system.slice/halfstepd.service/pids.current": "9\n",
}
