"""Each condition of the daemon's answer and of its unit, made on a machine that is healthy otherwise."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.unit.doctor.machine import PID, STORE, URL, Machine

from halfstep.daemon.units import GIB
from halfstep.doctor.case import Answer
from halfstep.doctor.finding import Severity

UNIT = "/etc/systemd/system/halfstepd.service"
WANTS = "/etc/systemd/system/multi-user.target.wants/halfstepd.service"
DROP_IN = f"{UNIT}.d/override.conf"


def test_a_daemon_that_does_not_answer_is_found_in_the_clients_words(machine: Machine) -> None:
    machine.case = machine.case.with_answer(Answer(URL, "10.0.0.5:7350", "no daemon within 2000 ms"))
    (found,) = machine.findings().values()
    assert (found.id, found.value, found.severity) == ("daemon-unreached", "no daemon within 2000 ms", Severity.ERROR)
    assert machine.outcome("daemon's counters").why_skipped == "the daemon did not answer"


def test_without_a_daemon_nothing_of_it_counts_as_well(machine: Machine) -> None:
    machine.case = dataclasses.replace(machine.case, answer=None, daemon=None)
    for check in ("daemon", "transport", "daemon's engine", "daemon's counters", "path to the daemon"):
        one = machine.outcome(check)
        assert (one.seen, one.why_skipped) == ((), "no URL was given, and no daemon runs here")


def test_shards_that_are_not_reached_are_found(machine: Machine) -> None:
    machine.answer(shards=2, connected=1, connections=2, last_error="shard 1 of 2: ECONNREFUSED")
    assert machine.findings()["shards-unreached"].value == "1 of 2 connections: shard 1 of 2: ECONNREFUSED"


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_a_daemon_of_this_host_without_shared_memory_is_found(machine: Machine, transport: str) -> None:
    machine.answer(transport=transport, last_error="no memory for rings")
    assert machine.findings()["path-not-shared-memory"].value == "tcp cubic 10.0.0.5:7350: no memory for rings"
    machine.case = dataclasses.replace(machine.case, daemon=None)
    assert "path-not-shared-memory" not in machine.findings()


def test_the_remedy_for_a_socket_without_shared_memory_is_not_the_socket(machine: Machine) -> None:
    machine.answer(transport="unix")
    assert machine.findings()["path-not-shared-memory"].remedy.startswith("raise `--shm-memory`")
    machine.answer(transport="tcp")
    assert "halfstep+unix://" in machine.findings()["path-not-shared-memory"].remedy


@pytest.mark.parametrize("transport", ["tcp", "unix"])
@pytest.mark.parametrize("settings", [{"shm_memory_bytes": 0}, {"unix": "none"}])
def test_a_daemon_that_is_told_to_share_nothing_is_well(machine: Machine, transport: str, settings: dict[str, Any]) -> None:
    machine.answer(transport=transport)
    machine.serve(**settings)
    assert machine.findings() == {}


def test_tcp_that_the_url_asks_for_is_well(machine: Machine) -> None:
    machine.answer(transport="tcp")
    machine.serve(rdma="auto")
    assert machine.case.answer is not None
    asked = dataclasses.replace(machine.case.answer, url=f"{URL}?transport=tcp")
    machine.case = machine.case.with_answer(asked)
    assert machine.findings() == {}


def test_tcp_that_the_doctor_took_itself_is_no_fault_of_clients(machine: Machine) -> None:
    machine.answer(transport="tcp")
    machine.serve(rdma="auto")
    assert "path-not-shared-memory" in machine.findings()
    assert machine.case.answer is not None
    machine.case = machine.case.with_answer(dataclasses.replace(machine.case.answer, by_user=False))
    assert machine.findings() == {}


def test_tcp_where_rdma_is_wanted_is_found(machine: Machine) -> None:
    machine.case = dataclasses.replace(machine.case, daemon=None)
    machine.answer(transport="tcp", rdma="the daemon has it off")
    assert "path-not-rdma" not in machine.findings()
    machine.serve(rdma="auto")
    assert machine.findings()["path-not-rdma"].value == "the daemon has it off"


def test_a_debug_build_is_found(machine: Machine) -> None:
    machine.kernel.made = "asan"
    assert machine.findings()["build-not-release"].value == "asan"


def test_a_daemon_whose_package_was_upgraded_is_found(machine: Machine) -> None:
    machine.edit(f"/proc/{PID}/maps", "_shard.abi3.so", "_shard.abi3.so (deleted)")
    assert machine.findings()["daemon-build-replaced"].value.endswith("_shard.abi3.so (deleted)")


def test_a_daemon_without_io_uring_is_found(machine: Machine) -> None:
    machine.answer({"halfstep_device_submissions_total": 0})
    assert "daemon-without-io-uring" in machine.findings()
    machine.serve(engine="pread")
    assert machine.findings() == {}


@pytest.mark.parametrize(
    ("counter", "value", "found"),
    [
        ("halfstep_store_writes_out", 1, "daemon-writes-out"),
        ("halfstep_device_errors_total", 3, "daemon-device-errors"),
        ('halfstep_store_misses_total{reason="corrupt"}', 1, "daemon-rot"),
        ('halfstep_store_scrub_blocks_total{outcome="dropped_corrupt"}', 1, "daemon-rot"),
        ('halfstep_store_scrub_blocks_total{outcome="dropped_io"}', 1, "daemon-rot"),
        ("halfstep_put_checks_failed_total", 1, "daemon-put-checks"),
        ('halfstep_store_segments{state="bad"}', 1, "daemon-segments-bad"),
        ("halfstep_store_segments_retired_total", 1, "daemon-segments-bad"),
        ("halfstep_store_index_full_total", 9, "daemon-index-full"),
        ('halfstep_connections_total{outcome="refused"}', 2, "daemon-connections-refused"),
        ("halfstep_shm_refused_total", 2, "daemon-shm-refused"),
        ("halfstep_recovery_segments_left", 7, "daemon-recovering"),
        ("halfstep_store_clock_ahead_seconds", 61, "daemon-clock-ahead"),
        ("halfstep_store_scrub_age_seconds", 15 * 86_400, "daemon-scrub-behind"),
        ("halfstep_device_reads_late_total", 251, "daemon-reads-late"),
    ],
)
def test_a_counter_that_should_stand_still_is_found(machine: Machine, counter: str, value: float, found: str) -> None:
    machine.answer({counter: value})
    assert set(machine.findings()) == {found}


@pytest.mark.parametrize(
    "counters",
    [
        {'halfstep_store_misses_total{reason="absent"}': 10**6, 'halfstep_connections_total{outcome="accepted"}': 10**6},
        {"halfstep_store_clock_ahead_seconds": 60, "halfstep_device_reads_late_total": 250},
        {"halfstep_store_scrub_age_seconds": 10**7, "halfstep_store_scrub_bytes_per_second": 0},
    ],
)
def test_numbers_that_a_healthy_daemon_has_are_well(machine: Machine, counters: dict[str, float]) -> None:
    machine.answer(counters)
    assert machine.findings() == {}


def test_a_unit_that_is_not_enabled_is_found(machine: Machine) -> None:
    machine.remove(WANTS)
    assert machine.findings()["unit-not-enabled"].value == UNIT


def test_a_daemon_that_should_run_and_does_not_is_found(machine: Machine) -> None:
    machine.stop()
    machine.remove(f"/proc/{PID}/cmdline")
    assert machine.findings()["unit-not-running"].severity == Severity.ERROR


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("LimitMEMLOCK=64M", "LimitMEMLOCK=64M"),
        ("LimitMEMLOCK=", "LimitMEMLOCK=the default, 8 MiB"),
        ("LimitNOFILE=1024:4096", "LimitNOFILE=1024:4096"),
        ("LimitNOFILE=", "LimitNOFILE=the default, 1024"),
    ],
)
def test_low_limits_of_the_unit_are_found(machine: Machine, setting: str, value: str) -> None:
    machine.write(DROP_IN, f"[Service]\n{setting}\n")
    assert machine.findings()["unit-limits"].value == value


@pytest.mark.parametrize("setting", ["LimitMEMLOCK=1G", "LimitNOFILE=infinity"])
def test_limits_that_suffice_are_well(machine: Machine, setting: str) -> None:
    machine.write(DROP_IN, f"[Service]\n{setting}\n")
    assert machine.findings() == {}


def test_a_unit_without_room_for_the_arena_is_found(machine: Machine) -> None:
    machine.serve(arena_bytes=4 * GIB)
    machine.write("/sys/fs/cgroup/system.slice/halfstepd.service/memory.max", "max\n")
    assert machine.findings()["unit-memory-max"].value == "MemoryMax=2G"


@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        (["@basic-io @file-system"], False),
        (["@system-service"], True),
        (["@system-service", "~@aio"], False),
        (["@basic-io", "io_uring_setup io_uring_enter io_uring_register"], True),
        (["~@clock @debug"], True),
        (["~@aio"], False),
        (["@basic-io", ""], True),
    ],
)
def test_a_filter_of_system_calls_that_refuses_io_uring_is_found(machine: Machine, filters: list[str], passes: bool) -> None:
    machine.write(DROP_IN, "[Service]\n" + "".join(f"SystemCallFilter={line}\n" for line in filters))
    found = machine.findings().get("unit-filters-io-uring")
    assert (found.value if found else None) == (None if passes else f"SystemCallFilter={' '.join(filters)}")


@pytest.mark.parametrize(
    ("store", "settings", "why"),
    [
        ("/mnt/nvme0/store.hs", "", "ProtectSystem=strict, and no ReadWritePaths= above it"),
        ("/mnt/nvme0/store.hs", "ReadWritePaths=/mnt/nvme0 /srv", None),
        ("/mnt/nvme00/store.hs", "ReadWritePaths=/mnt/nvme0", "ProtectSystem=strict, and no ReadWritePaths= above it"),
        ("/mnt/nvme0/store.hs", "ProtectSystem=full", None),
        ("/home/ann/store.hs", "ReadWritePaths=/home/ann", "ProtectHome=yes"),
        ("/dev/nvme0n1", "PrivateDevices=yes", "PrivateDevices=yes"),
        ("/dev/nvme0n1", "", None),
        (STORE, "", None),
    ],
)
def test_a_unit_that_hides_the_store_is_found(machine: Machine, store: str, settings: str, why: str | None) -> None:
    machine.kernel.places[store] = machine.kernel.places["/dev/nvme0n1" if store.startswith("/dev") else STORE]
    machine.serve(store=type(machine.case.config.store)(store))
    machine.write(DROP_IN, f"[Service]\n{settings}\n")
    found = machine.findings().get("unit-hides-store")
    assert (found.value if found else None) == (f"{store}: {why}" if why else None)


def by_hand(machine: Machine) -> None:
    """The daemon that runs was started in a shell."""
    machine.write(f"/proc/{PID}/cgroup", "0::/user.slice\n")


def test_a_unit_is_held_against_its_own_arguments(machine: Machine) -> None:
    store = "/home/ann/store.hs"
    machine.kernel.places[store] = machine.kernel.places[STORE]
    machine.serve(store=type(machine.case.config.store)(store), arena_bytes=4 * GIB)
    found = {"unit-hides-store", "unit-memory-max"}
    assert found <= set(machine.findings())
    by_hand(machine)
    assert not found & set(machine.findings())
    machine.write(DROP_IN, '[Service]\nEnvironment="HALFSTEP_ARGS=--arena 4GiB --store /mnt/x/store.hs"\n')
    assert machine.findings()["unit-hides-store"].value.startswith("/mnt/x/store.hs: ")
    assert "unit-memory-max" in machine.findings()


@pytest.mark.parametrize(
    "store", ["/var/lib/flash/a.hs", "/var/lib/private/flash/a.hs", "/var/lib/link/a.hs", "/var/lib/b/a.hs"]
)
def test_state_directories_of_the_unit_are_open(machine: Machine, store: str) -> None:
    machine.kernel.places[store] = machine.kernel.places[STORE]
    machine.serve(store=type(machine.case.config.store)(store))
    assert "unit-hides-store" in machine.findings()
    machine.write(DROP_IN, "[Service]\nStateDirectory=\nStateDirectory=flash:link b\n")
    assert machine.findings() == {}
    machine.serve(store=type(machine.case.config.store)(STORE))
    assert "unit-hides-store" in machine.findings()


def test_truth_of_systemd_has_more_words_than_one(machine: Machine) -> None:
    machine.write(DROP_IN, "[Service]\nNoNewPrivileges=true\nProtectHome=1\nPrivateTmp=On\n")
    assert machine.findings() == {}


def test_a_unit_without_hardening_is_found(machine: Machine) -> None:
    machine.write(DROP_IN, "[Service]\nNoNewPrivileges=no\nProtectHome=\n")
    assert machine.findings()["unit-hardening"].value == "without NoNewPrivileges=yes, ProtectHome=yes"


def test_a_host_without_a_unit_skips_what_is_asked_of_it(machine: Machine) -> None:
    machine.remove(UNIT)
    assert machine.findings() == {}
    assert machine.outcome("unit").why_skipped == "halfstepd.service is not installed"
    machine.remove("/run/systemd/system/.keep")
    machine.host.path("/run/systemd/system").rmdir()
    assert machine.outcome("unit's limits").why_skipped == "systemd does not run here"
