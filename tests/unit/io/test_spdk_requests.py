"""Every request of ours equals that of SPDK's own command line in a dry run, and the fake target takes exactly those."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.io.fake_spdk import METHODS, Error, FakeSpdk

from halfstep.io.spdk import target
from halfstep.io.spdk.config import SpdkConfig
from halfstep.io.spdk.rpc import request

DryRun = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def dry_run() -> DryRun:
    """dry_run(*words): the request of that command line."""
    spdk_rpc = pytest.importorskip("spdk.spdk_rpc", reason="SPDK's package is not installed: pip install 'halfstep[spdk]'")
    client = pytest.importorskip("spdk.rpc.client")
    spdk_rpc.suppress_cli_prints()
    parser, _ = spdk_rpc.create_parser()

    def emitted(*words: str) -> dict[str, Any]:
        arguments = parser.parse_args(list(words))
        arguments.client = client.JSONRPCDryRunClient()
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            arguments.func(arguments)
        found: dict[str, Any] = json.loads(told.getvalue().removeprefix("Request:\n"))
        return found

    return emitted


def config(kind: Any, source: str, **more: Any) -> SpdkConfig:
    return SpdkConfig("hs0", kind, source, "halfstep.0", **more)


AIO, AIO_512 = config("aio", "/dev/sdb"), config("aio", "/dev/sdb", block_bytes=512)
URING, URING_4096 = config("uring", "/dev/sdb"), config("uring", "/dev/sdb", block_bytes=4096)
NVME = config("nvme", "0000:01:00.0")
MASKED = config("uring", "/dev/sdb", cpumask="0x6")

CASES: list[tuple[target.Request, tuple[str, ...]]] = [
    (target.ask_version(), ("spdk_get_version",)),
    (target.create_bdev(AIO), ("bdev_aio_create", "/dev/sdb", "hs0")),
    (target.create_bdev(AIO_512), ("bdev_aio_create", "/dev/sdb", "hs0", "512")),
    (target.create_bdev(URING), ("bdev_uring_create", "/dev/sdb", "hs0")),
    (target.create_bdev(URING_4096), ("bdev_uring_create", "/dev/sdb", "hs0", "4096")),
    (target.create_bdev(NVME), ("bdev_nvme_attach_controller", "-b", "hs0", "-t", "PCIe", "-a", "0000:01:00.0")),
    (target.create_controller(NVME), ("vhost_create_blk_controller", "halfstep.0", "hs0n1")),
    (target.create_controller(MASKED), ("vhost_create_blk_controller", "--cpumask", "0x6", "halfstep.0", "hs0")),
    (target.ask_bdev(NVME), ("bdev_get_bdevs", "-b", "hs0n1")),
    (target.ask_controller(NVME), ("vhost_get_controllers", "-n", "halfstep.0")),
    (target.ask_health(NVME), ("bdev_nvme_get_controller_health_info", "-c", "hs0")),
]


@pytest.mark.parametrize(("ours", "words"), CASES, ids=[" ".join(words) for _, words in CASES])
def test_a_request_equals_that_of_spdks_own_command_line(dry_run: DryRun, ours: target.Request, words: tuple[str, ...]) -> None:
    assert request(1, *ours) == dry_run(*words)


def test_every_method_of_the_fake_target_is_compared() -> None:
    assert {method for (method, _), _ in CASES} == set(METHODS)


@pytest.mark.parametrize("words", [words for _, words in CASES], ids=" ".join)
def test_the_fake_target_takes_what_spdks_own_command_line_sends(
    tmp_path: Path, dry_run: DryRun, words: tuple[str, ...]
) -> None:
    asked = dry_run(*words)
    fake, given = FakeSpdk(tmp_path / "s", tmp_path), asked.get("params", {})
    fake.check(asked["method"], given)
    with pytest.raises(Error, match="Invalid parameters"):
        fake.check(asked["method"], {**given, "surprise": 1})
    for key in METHODS[asked["method"]][0]:
        with pytest.raises(Error, match="Invalid parameters"):
            fake.check(asked["method"], {**given, key: None})
