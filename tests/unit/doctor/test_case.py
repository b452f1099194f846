"""Which daemon is meant, where its settings come from, and where it is asked."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.unit.doctor.machine import PID, SERVE, STORE, Machine

from halfstep.daemon.units import GIB, MIB, TIB
from halfstep.doctor.case import NO_DAEMON_HERE, Daemon, case_of, config_of, local_daemons, url_of
from halfstep.doctor.host import Host
from halfstep.doctor.kernel import Kernel
from halfstep.doctor.sockets import holder_of, listeners
from halfstep.doctor.unit import unit_of
from halfstep.errors import ConfigError

UNIT = "/etc/systemd/system/halfstepd.service"
UNIX = """\
Num       RefCount Protocol Flags    Type St Inode Path
ffff0: 00000002 00000000 00000000 0001 03 70 /run/halfstep/halfstep.sock
ffff1: 00000002 00000000 00010000 0001 01 77 /run/halfstep/halfstep.sock
ffff2: 00000002 00000000 00010000 0001 01 78 /run/other.sock
ffff3: 00000003 00000000 00000000 0001 03 79
"""
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 90
   1: 00000000:1CB6 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 80
   2: 0100007F:1CB6 0100007F:A000 01 00000000:00000000 00:00000000 00000000     0        0 91
"""


@pytest.fixture
def unit(machine: Machine) -> Machine:
    """With the unit of the checkout and a drop-in, and no daemon."""
    machine.write(UNIT, (Path(__file__).parents[3] / "systemd" / "halfstepd.service").read_text())
    machine.write(
        f"{UNIT}.d/override.conf",
        '[Service]\nEnvironment="HALFSTEP_ARGS=--store /dev/disk/by-id/nvme-x --arena 1GiB \\\n  --rdma auto"\nMemoryMax=4G\n',
    )
    machine.remove(f"/proc/{PID}/cmdline")
    return machine


@pytest.mark.parametrize(
    "command",
    [
        SERVE,
        f"/opt/halfstep/bin/python3\0-m\0halfstep\0serve\0--store\0{STORE}\0",
        f"python\0-m\0halfstep.tools.cli\0serve\0--store\0{STORE}\0",
        f"halfstep\0serve\0--store\0{STORE}\0",
        f"/usr/bin/python3.11\0-u\0-X\0dev\0/usr/local/bin/halfstep\0serve\0--store\0{STORE}\0",
        f"python3\0-Im\0halfstep\0serve\0--store\0{STORE}\0",
    ],
)
def test_a_daemon_is_known_however_it_was_started(machine: Machine, command: str) -> None:
    machine.write(f"/proc/{PID}/cmdline", command)
    assert local_daemons(machine.host) == [Daemon(PID, ("--store", STORE))]


@pytest.mark.parametrize(
    "command",
    [
        "",
        "halfstep\0stat\0",
        "vim\0serve\0",
        "/usr/bin/env\0halfstep\0",
        "tail\0halfstep.log\0serve\0",
        "sudo\0halfstep\0serve\0",
        "timeout\x0060\0/usr/local/bin/halfstep\0serve\0",
        "/sbin/tini\0--\0python3\0-m\0halfstep\0serve\0",
        "docker\0run\0--rm\0halfstep\0serve\0",
        "python3\0/usr/bin/supervise\0halfstep\0serve\0",
        "python3\0-m\0",
    ],
)
def test_other_processes_are_no_daemons(machine: Machine, command: str) -> None:
    machine.write(f"/proc/{PID}/cmdline", command)
    machine.write("/proc/self/cmdline", SERVE)
    assert local_daemons(machine.host) == []


def test_settings_are_those_of_the_daemon_that_runs(machine: Machine) -> None:
    machine.write(
        f"/proc/{PID}/cmdline", SERVE + "--arena=1GiB\0--no-huge-pages\0--listen\0a:1\0--listen\0b:2\0--shards\x002\0"
    )
    case = case_of(machine.host, [])
    assert (case.source, str(case.config.store), case.config.arena_bytes) == (f"the daemon, pid {PID}", STORE, GIB)
    assert (case.config.huge_pages, case.config.listen, case.config.shards) == (False, ("a:1", "b:2"), 2)


def test_of_several_daemons_the_others_are_named(machine: Machine) -> None:
    machine.write("/proc/5000/cmdline", "halfstep\0serve\0--listen=127.0.0.1:7400\0")
    assert case_of(machine.host, []).source == f"the daemon, pid {PID}; others run here: pid 5000"
    case = case_of(machine.host, [], "127.0.0.1:7400")
    assert case.daemon is not None
    assert (case.daemon.pid, case.source) == (5000, "the daemon, pid 5000")


def test_of_several_daemons_the_lowest_number_comes_first(machine: Machine) -> None:
    for pid in (10000, 20, 3000):
        machine.write(f"/proc/{pid}/cmdline", "halfstep\0serve\0")
    assert [daemon.pid for daemon in local_daemons(machine.host)] == [20, 3000, PID, 10000]


@pytest.fixture
def contained(machine: Machine) -> Machine:
    """Whose daemon runs in a container, and no unit is installed."""
    machine.link("/proc/self/ns/pid", "pid:[1]")
    machine.link(f"/proc/{PID}/ns/pid", "pid:[2]")
    machine.remove(UNIT)
    return machine


def test_a_daemon_in_a_container_is_not_looked_at_from_outside(contained: Machine) -> None:
    contained.set_limit("Max locked memory", 0)
    contained.set_limit("Max locked memory", 0, "self")
    contained.case = case = case_of(contained.host, [])
    told = f"pid {PID} serves in a container: run halfstep doctor inside it"
    assert (case.daemon, case.source, case.serves) == (None, f"the defaults; {told}", False)
    assert contained.findings() == {}
    assert contained.outcome("locked memory").why_skipped == told
    assert contained.outcome("daemon").why_skipped == f"no URL was given, and {told}"
    assert case_of(contained.host, ["--store=/srv/x"]).serves


def test_a_daemon_beside_one_in_a_container_is_looked_at(contained: Machine) -> None:
    contained.link("/proc/5000/ns/pid", "pid:[1]")
    contained.write("/proc/5000/cmdline", "halfstep\0serve\0")
    contained.write("/proc/6000/cmdline", "halfstep\0serve\0")
    assert [daemon.pid for daemon in local_daemons(contained.host)] == [5000, 6000], "what is hidden counts as of this host"
    case = case_of(contained.host, [])
    assert case.daemon is not None
    assert (case.daemon.pid, case.serves) == (5000, True)


def test_a_drop_in_that_this_user_may_not_read_ends_nothing(unit: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    read = unit.host.read

    def refused(path: str) -> str:
        if path.endswith("override.conf"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return read(path)

    monkeypatch.setattr(unit.host, "read", refused)
    unit.kernel.uid = 1000
    unit.set_limit("Max locked memory", 0, "self")
    unit.case = case = case_of(unit.host, [])
    assert case.source == "the defaults, for the unit cannot be read (Permission denied)"
    assert (case.by_unit, str(case.config.store)) == (True, STORE)
    assert unit.findings() == {}
    assert unit.outcome("unit's limits").why_skipped == f"{UNIT}.d/override.conf: EACCES (Permission denied); run it as root"


@pytest.mark.parametrize("name", ["node..lan", "n" * 64 + ".lan"])
def test_a_name_that_no_host_can_have_is_not_here(machine: Machine, name: str) -> None:
    with pytest.raises(OSError, match="no name of a host"):
        Kernel().route(name, 7350)
    assert case_of(Host(machine.root, Kernel()), [], f"{name}:7350").daemon is None


def test_options_replace_the_settings_of_the_daemon(machine: Machine) -> None:
    case = case_of(machine.host, ["--arena=64MiB", "--store=/dev/nvme9n9"])
    assert (case.config.arena_bytes, str(case.config.store)) == (64 * MIB, "/dev/nvme9n9")


def test_what_cannot_be_read_of_a_command_line_is_left_out() -> None:
    config = config_of(["--arena", "much", "--unknown", "x", "--shards"])
    assert (config.arena_bytes, config.shards) == (256 * MIB, 0)


def test_settings_are_those_of_the_unit_where_no_daemon_runs(unit: Machine) -> None:
    case = case_of(unit.host, [])
    assert (case.source, str(case.config.store)) == (f"the unit {UNIT}", "/dev/disk/by-id/nvme-x")
    assert (case.config.arena_bytes, case.config.rdma, case.daemon) == (GIB, "auto", None)


def test_a_drop_in_of_a_higher_directory_hides_another_of_its_name(unit: Machine) -> None:
    unit.write("/run/systemd/system/halfstepd.service.d/override.conf", "[Service]\nMemoryMax=1G\n")
    unit.write("/run/systemd/system/halfstepd.service.d/a.conf", "[Service]\nLimitMEMLOCK=\n[Unit]\nMemoryMax=3G\n")
    found = unit_of(unit.host)
    assert found is not None
    assert (found.last("MemoryMax"), found.last("LimitMEMLOCK"), found.last("Type")) == ("4G", None, "notify")


@pytest.mark.parametrize(
    ("environment", "store"),
    [
        ("STATE_DIRECTORY=/srv/a:/srv/b\0HOME=/root\0", "/srv/a/store.hs"),
        ("XDG_STATE_HOME=/srv/x\0HOME=/root\0", "/srv/x/halfstep/store.hs"),
        ("HOME=/home/ann\0", "/var/lib/halfstep/store.hs"),
    ],
)
def test_a_store_that_is_not_named_lies_where_the_daemon_puts_it(machine: Machine, environment: str, store: str) -> None:
    machine.write(f"/proc/{PID}/cmdline", "halfstep\0serve\0")
    machine.write(f"/proc/{PID}/environ", environment)
    assert str(case_of(machine.host, []).config.store) == store


def test_a_daemon_without_a_unit_has_its_store_at_home(machine: Machine) -> None:
    machine.write(f"/proc/{PID}/cmdline", "halfstep\0serve\0")
    machine.write(f"/proc/{PID}/cgroup", "0::/user.slice\n")
    machine.write(f"/proc/{PID}/environ", "HOME=/home/ann\0")
    assert str(case_of(machine.host, []).config.store) == "/home/ann/.local/state/halfstep/store.hs"


@pytest.fixture
def listening(machine: Machine) -> Machine:
    """A daemon that holds a unix socket and port 7350 on all addresses, whatever it was told."""
    machine.write("/proc/net/unix", UNIX)
    machine.write("/proc/net/tcp", TCP)
    machine.link(f"/proc/{PID}/fd/5", "socket:[77]")
    machine.link(f"/proc/{PID}/fd/6", "socket:[80]")
    machine.link(f"/proc/{PID}/fd/7", "/dev/null")
    return machine


def test_who_listens_is_read_from_the_kernels_tables(listening: Machine) -> None:
    assert listeners(listening.host) == [
        ("/run/halfstep/halfstep.sock", 0, "77"),
        ("/run/other.sock", 0, "78"),
        ("127.0.0.1", 22, "90"),
        ("0.0.0.0", 7350, "80"),
    ]
    listening.write("/proc/net/tcp6", TCP.replace("0100007F:0016", "00000000000000000000000001000000:0016"))
    assert ("::1", 22, "90") in listeners(listening.host)
    listening.write(f"/proc/{PID}/comm", "halfstep\n")
    assert holder_of(listening.host, "80") == f"pid {PID} (halfstep)"
    assert holder_of(listening.host, "90") == ""


def test_a_path_of_a_socket_with_an_end_of_line_ends_nothing(listening: Machine) -> None:
    listening.edit("/proc/net/unix", "/run/other.sock", "/run/a\nb c d e f g h i")
    assert [one.address for one in listeners(listening.host)][:2] == ["/run/halfstep/halfstep.sock", "/run/a"]


def test_a_daemon_is_asked_by_its_socket_where_this_user_may(listening: Machine) -> None:
    listening.serve(listen=("127.0.0.1:0",))
    assert url_of(listening.host, listening.case) == "halfstep+unix:///run/halfstep/halfstep.sock"
    listening.kernel.closed = ("/run/halfstep/halfstep.sock",)
    assert url_of(listening.host, listening.case) == "halfstep://127.0.0.1:7350"


@pytest.mark.parametrize(("listen", "url"), [("0.0.0.0:7", "127.0.0.1:7"), ("[::]:1", "[::1]:1"), ("10.0.0.5:2", "10.0.0.5:2")])
def test_a_daemon_whose_sockets_are_hidden_is_asked_at_its_address(machine: Machine, listen: str, url: str) -> None:
    machine.serve(unix="none", listen=(listen,))
    assert url_of(machine.host, machine.case) == f"halfstep://{url}"
    machine.serve(unix="/run/x.sock")
    assert url_of(machine.host, machine.case) == "halfstep+unix:///run/x.sock"


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.0.0.1:http"])
def test_a_daemon_whose_address_nobody_knows_is_not_asked(machine: Machine, listen: str) -> None:
    machine.serve(listen=(listen,))
    assert url_of(machine.host, machine.case) is None


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("flash-1:7350", True),
        ("10.0.0.5:7350", False),
        ("nowhere:7350", False),
        ("127.0.0.1:7350", True),
        ("127.0.0.1:7351", False),
        ("unix:/run/halfstep/halfstep.sock", True),
        ("unix:/run/other.sock", False),
    ],
)
def test_a_daemon_that_is_named_is_found_by_its_sockets(listening: Machine, address: str, here: bool) -> None:
    assert (case_of(listening.host, [], address).daemon is not None) == here


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("flash-1:7400", True),
        ("flash-1:7350", False),
        ("10.0.0.5:7400", False),
        ("unix:/run/h.sock", True),
        ("unix:/run/i.sock", False),
    ],
)
def test_a_daemon_whose_sockets_are_hidden_is_found_by_its_arguments(machine: Machine, address: str, here: bool) -> None:
    machine.write(f"/proc/{PID}/cmdline", SERVE + "--listen\0" + "127.0.0.1:7400\0--unix\0/run/h.sock\0")
    assert (case_of(machine.host, [], address).daemon is not None) == here


def test_a_host_that_only_asks_is_not_looked_at_as_one_that_serves(machine: Machine) -> None:
    machine.remove(f"/proc/{PID}/cmdline")
    machine.remove(UNIT)
    machine.set_limit("Max locked memory", 0, "self")
    machine.kernel.refusal = "no place for a store"
    asking = case_of(machine.host, [], "10.0.0.5:7350")
    assert not asking.serves
    machine.case = asking
    assert machine.findings() == {}
    assert machine.outcome("locked memory").why_skipped == machine.outcome("daemon's port").why_skipped == NO_DAEMON_HERE
    assert machine.outcome("clock").seen
    assert case_of(machine.host, []).serves, "nobody else is named"
    assert case_of(machine.host, ["--store=/srv/x"], "10.0.0.5:7350").serves
    machine.write(UNIT, "[Service]\n")
    assert case_of(machine.host, [], "10.0.0.5:7350").serves


def test_limits_of_this_shell_are_nobodys_where_the_unit_starts_the_daemon(unit: Machine) -> None:
    unit.case = case_of(unit.host, [])
    for name in ("Max locked memory", "Max open files", "Max address space"):
        unit.set_limit(name, 1, "self")
    assert set(unit.findings()) == {"unit-not-running"}
    for check in ("locked memory", "address space", "control group's memory", "open files", "threads"):
        assert unit.outcome(check).why_skipped == "no daemon runs, and the next one gets the limits of the unit"


def test_a_store_that_this_user_may_not_see_is_the_one_that_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_given: object) -> Path:
        raise ConfigError

    monkeypatch.setattr("halfstep.doctor.case.store_path", refused)
    assert [str(config_of(["--store", path]).store) for path in ("/root/a.hs", "/root/b/")] == [
        "/root/a.hs",
        "/root/b/store.hs",
    ]


def test_a_store_on_a_device_has_its_size_and_an_index_for_it(machine: Machine) -> None:
    machine.write("/sys/dev/block/259:0/size", f"{16 * TIB // 512}\n")
    machine.write(f"/proc/{PID}/cmdline", "halfstep\0serve\0--store\0/dev/nvme0n1\0")
    case = case_of(machine.host, [])
    assert (case.config.size_bytes, case.index_bytes) == (16 * TIB, 16 * 116 * MIB)


def test_a_daemon_that_cannot_be_asked_is_not_said_to_be_away(machine: Machine) -> None:
    assert case_of(machine.host, []).why_no_answer == "no URL was given, and this user may not see where the daemon listens"


def test_without_a_daemon_nobody_is_asked(machine: Machine) -> None:
    machine.stop()
    assert url_of(machine.host, machine.case) is None
