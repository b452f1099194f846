"""The systemd unit is one that systemd accepts, and keeps what the daemon stands on."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(params=["halfstepd", "halfstepd@", "halfstep-mount"])
def unit(request: pytest.FixtureRequest, repository: Path) -> Path:
    return repository / "systemd" / f"{request.param}.service"


def test_systemd_accepts_the_unit(unit: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout + done.stderr
    if "Failed to initialize manager" in said or "Failed to connect to bus" in said:
        pytest.skip(f"systemd-analyze cannot run here: {said.strip()}")
    assert (done.returncode, said) == (0, "")


def test_unit_leaves_io_uring_and_locked_memory_to_the_daemon(unit: Path) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit.read_text())
    service = parser["Service"]
    assert service["Type"] == "notify"
    assert service["Restart"] == "on-failure"
    assert service["LimitMEMLOCK"] == "infinity"
    # Either of these would refuse what the data path needs: io_uring_setup, or pages that a device writes to.
    assert "SystemCallFilter" not in service
    assert "MemoryDenyWriteExecute" not in service
    assert "PrivateDevices" not in service, "flash nodes name block devices"


def test_memory_max_leaves_room_for_all_that_may_be_taken_by_default(unit: Path) -> None:
    from halfstep.daemon.config import ServeConfig
    from halfstep.daemon.mount_config import MountConfig
    from halfstep.daemon.units import GIB, MIB

    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit.read_text())
    text = parser["Service"]["MemoryMax"]
    assert text.endswith("G")
    config = ServeConfig(store=Path("store.hs"))
    requests, rings, rest = 64 * MIB, config.shm_memory_bytes, 256 * MIB
    blocks = MountConfig.memory_bytes if "mount" in unit.name else config.arena_bytes + 16 * MIB
    assert int(text[:-1]) * GIB >= blocks + requests + rings + rest


def test_a_daemon_of_several_differs_from_a_single_one_by_its_name_alone(repository: Path) -> None:
    def settings(name: str) -> list[str]:
        text = (repository / "systemd" / name).read_text()
        return [line for line in text.splitlines() if line and not line.startswith("#")]

    one, template = settings("halfstepd.service"), settings("halfstepd@.service")
    assert [line for line in one if line not in template] == [
        "Description=Halfstep KV cache daemon",
        "StateDirectory=halfstep",
        "RuntimeDirectory=halfstep",
        "Environment=XDG_STATE_HOME=%S XDG_RUNTIME_DIR=%t",
    ]
    assert [line for line in template if line not in one] == [
        "Description=Halfstep KV cache daemon %i",
        "StateDirectory=halfstep-%i",
        "RuntimeDirectory=halfstep-%i",
    ]
