"""Settings of `halfstep mount` that cannot be, refused before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from halfstep.daemon.mount_config import MountConfig
from halfstep.errors import ConfigError
from halfstep.tools.cli import main


@pytest.mark.parametrize(
    ("upstream", "listen"),
    [
        ("127.0.0.1:7351", "127.0.0.1:7351"),
        ("localhost:7351", "127.0.0.1:7351"),
        ("127.0.0.1:7351", "0.0.0.0:7351"),
        ("127.0.0.2:7351", "0.0.0.0:7351"),
        ("10.0.0.5,127.0.0.1:7351", "127.0.0.1:7351"),
        ("10.0.0.5,127.0.0.2:7351", "0.0.0.0:7351"),
    ],
)
def test_a_mount_before_itself_is_refused_whatever_it_is_called(upstream: str, listen: str) -> None:
    with pytest.raises(ConfigError, match=r"is the mount's own address; name another with --unix or --listen"):
        MountConfig(upstream, unix="none", listen=(listen,), insecure_listen=True).validated()


def test_a_mount_before_its_own_socket_is_refused_by_another_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match=r"is the mount's own address"):
        MountConfig(f"unix:{tmp_path}/link/m.sock", unix=f"{tmp_path}/m.sock").validated()


@pytest.mark.parametrize(
    ("upstream", "listen"),
    [
        ("localhost:7350", "127.0.0.1:7351"),
        ("127.0.0.2:7351", "127.0.0.1:7351"),
        ("192.0.2.1:7351", "0.0.0.0:7351"),  # of nobody, by RFC 5737
        ("no-such-host.invalid:7351", "127.0.0.1:7351"),
    ],
)
def test_another_daemon_is_none_of_its_own(upstream: str, listen: str) -> None:
    assert MountConfig(upstream, unix="none", listen=(listen,), insecure_listen=True).validated().upstream == upstream


@pytest.mark.parametrize("transport", ["tcp", "rdma"])
def test_a_transport_is_not_passed_over(transport: str) -> None:
    done: Any = CliRunner().invoke(main, ["mount", f"halfstep://127.0.0.1:1?transport={transport}"])
    assert (done.exit_code, done.stdout) == (3, "")
    assert f"transport={transport}: a mount chooses it by itself; leave it out" in done.stderr
