"""`halfstep fsck` over stores of a real daemon."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner, Result

import halfstep
from halfstep.tools.cli import main

pytestmark = pytest.mark.integration

COUNT, BLOCK_BYTES = 40, 16384
Blocks = Callable[..., npt.NDArray[np.uint8]]


def fsck(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["fsck", *arguments])


def report_of(result: Result) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(result.stdout)
    return report


@pytest.fixture
def stored(own_daemon: Any, layout: halfstep.Layout, blocks: Blocks) -> npt.NDArray[np.uint8]:
    """COUNT blocks that are on media."""
    content = blocks(COUNT, BLOCK_BYTES)
    keys = [b"key-%d" % number for number in range(COUNT)]
    with halfstep.connect(own_daemon.url, layout=layout, required=True, deadline_ms=30_000) as client:
        assert client.put(keys, content, durability="persist").ok.all()
    return content


def test_a_stopped_store_is_sound(own_daemon: Any, stored: npt.NDArray[np.uint8]) -> None:
    assert own_daemon.stop() == 0
    before = own_daemon.store.stat().st_mtime_ns
    result = fsck("--json", str(own_daemon.store))
    report = report_of(result)
    assert (result.exit_code, report["findings"]) == (0, [])
    assert report["complete"]
    assert report["blocks"]["live"] == report["blocks"]["payloads_checked"] == len(stored)
    assert report["header"]["clean_stop"]
    assert own_daemon.store.stat().st_mtime_ns == before
    table = fsck("--segments", str(own_daemon.store.parent))
    assert table.exit_code == 0
    assert "verdict   sound" in table.stdout


@pytest.mark.usefixtures("stored")
def test_a_kill_is_a_crash_and_no_loss(own_daemon: Any) -> None:
    own_daemon.kill()
    result = fsck("--json", str(own_daemon.store))
    report = report_of(result)
    assert result.exit_code == 0
    assert {finding["kind"] for finding in report["findings"]} == {"crash"}
    assert report["blocks"]["live"] == COUNT


def test_a_flipped_payload_is_a_loss_of_one_block(own_daemon: Any, stored: npt.NDArray[np.uint8]) -> None:
    own_daemon.stop()
    at = own_daemon.store.read_bytes().find(stored[7].tobytes()[:4096])
    assert at > 0
    with own_daemon.store.open("r+b") as file:
        file.seek(at + 100)
        byte = file.read(1)
        file.seek(at + 100)
        file.write(bytes([byte[0] ^ 4]))
    result = fsck("--json", str(own_daemon.store))
    report = report_of(result)
    assert result.exit_code == 1
    assert [finding["kind"] for finding in report["findings"]] == ["loss"]
    assert report["blocks"]["payloads_bad"] == 1
    assert "verdict   lost blocks" in fsck(str(own_daemon.store)).stdout
    assert fsck("--no-payloads", str(own_daemon.store)).exit_code == 0


def test_a_store_in_use_is_refused_with_its_holder(own_daemon: Any) -> None:
    result = fsck(str(own_daemon.store))
    assert result.exit_code == 3
    assert f"process {own_daemon.pid}" in result.stderr
    assert own_daemon.running


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    missing = fsck(str(tmp_path / "none.hs"))
    assert (missing.exit_code, "no such file" in missing.stderr) == (3, True)
    (tmp_path / "zeros").write_bytes(bytes(4 << 20))
    zeros = fsck(str(tmp_path / "zeros"))
    assert (zeros.exit_code, f"{tmp_path / 'zeros'}: no store header" in zeros.stderr) == (3, True)
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for its other end
    pipe = fsck(str(tmp_path / "pipe"))
    assert (pipe.exit_code, "neither a regular file nor a block device" in pipe.stderr) == (3, True)
