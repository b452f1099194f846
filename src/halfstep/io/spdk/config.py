"""What an SPDK target is to have: a file of TOML, read once; unknown keys fail."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from halfstep.errors import ConfigError

Kind = Literal["aio", "uring", "nvme"]
KINDS: tuple[str, ...] = get_args(Kind)
DEFAULT_SOCKET = "/var/tmp/spdk.sock"  # noqa: S108 -- where SPDK's applications listen
NAME_BYTES_MAX = 64
DEADLINE_S_MIN, DEADLINE_S_MAX = 0.1, 600.0
FILE_BYTES_MAX = 64 << 10
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PCI = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_MASK = re.compile(r"0x[0-9a-fA-F]{1,64}|\[[0-9,-]{1,200}\]")


@dataclass(frozen=True)
class SpdkConfig:
    """rpc_socket: of the target. deadline_s: of one call, by the wall clock.

    bdev: its name; of kind nvme the controller's, whose first namespace is taken. source: a path, or an address on PCIe.
    block_bytes: 0 for the device's own. controller: the name of the vhost controller, and of its socket. cpumask: "" for any.
    """

    bdev: str
    kind: Kind
    source: str
    controller: str
    rpc_socket: str = DEFAULT_SOCKET
    deadline_s: float = 30.0
    block_bytes: int = 0
    cpumask: str = ""

    @property
    def block_device(self) -> str:
        """The name of the bdev that the controller gets."""
        return f"{self.bdev}n1" if self.kind == "nvme" else self.bdev


def read_config(path: Path) -> SpdkConfig:
    """Errors: ConfigError, which names file, key, value and bound."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise ConfigError(f"spdk={path}: has more than {FILE_BYTES_MAX} bytes; name a file of settings")
        return config_of(tomllib.loads(text.decode()), str(path))
    except OSError as error:
        raise ConfigError(f"spdk={path}: {error.strerror}; name a file as docs/drives.md shows one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"spdk={path}: is no TOML: {error}") from None


# Of each table its keys, and what their values are.
_KNOWN: dict[str, dict[str, tuple[type, ...]]] = {
    "": {"rpc_socket": (str,), "deadline_s": (int, float), "bdev": (object,), "controller": (object,)},
    "bdev": {"name": (str,), "kind": (str,), "source": (str,), "block_bytes": (int,)},
    "controller": {"name": (str,), "cpumask": (str,)},
}
_NEEDED = (("bdev", "name"), ("bdev", "source"), ("controller", "name"))


def config_of(told: Mapping[str, Any], where: str) -> SpdkConfig:
    """Of a file's tables. Errors: ConfigError."""
    tables: dict[str, Any] = {"": told, "bdev": told.get("bdev"), "controller": told.get("controller")}
    for name, table in tables.items():
        _check_table(where, name, table)
    for name, key in _NEEDED:
        if not tables[name].get(key):
            raise _refusal(where, f"{name}.{key}", tables[name].get(key), "is missing; every target needs it")
    bdev, controller = tables["bdev"], tables["controller"]
    found = SpdkConfig(
        bdev=bdev["name"],
        kind=bdev.get("kind", "uring"),
        source=bdev["source"],
        controller=controller["name"],
        rpc_socket=told.get("rpc_socket", DEFAULT_SOCKET),
        deadline_s=float(told.get("deadline_s", SpdkConfig.deadline_s)),
        block_bytes=bdev.get("block_bytes", 0),
        cpumask=controller.get("cpumask", ""),
    )
    _check_values(where, found)
    return found


def _refusal(where: str, key: str, value: object, bound: str) -> ConfigError:
    return ConfigError(f"spdk={where}: {key}={value!r}: {bound}")


def _check_table(where: str, name: str, table: object) -> None:
    if not isinstance(table, Mapping):
        raise _refusal(where, name, table, f"must be a table; write [{name}] and its keys below it")
    known = _KNOWN[name]
    for key, value in table.items():
        path = f"{name}.{key}" if name else key
        if key not in known:
            raise _refusal(where, path, value, f"there is no such key; there are {', '.join(sorted(known))}")
        if not isinstance(value, known[key]) or isinstance(value, bool):
            raise _refusal(where, path, value, "is of the wrong type; see docs/drives.md")


def _check_values(where: str, found: SpdkConfig) -> None:
    for key, name in (("bdev.name", found.bdev), ("controller.name", found.controller)):
        if len(name) > NAME_BYTES_MAX or not _NAME.fullmatch(name):
            raise _refusal(where, key, name, f"must be of letters, digits, '_', '.' and '-', {NAME_BYTES_MAX} at most")
    if found.kind not in KINDS:
        raise _refusal(where, "bdev.kind", found.kind, f"must be one of {', '.join(KINDS)}")
    if found.kind == "nvme" and not _PCI.fullmatch(found.source):
        raise _refusal(where, "bdev.source", found.source, "of kind nvme must be an address on PCIe, such as 0000:01:00.0")
    if found.kind != "nvme" and not found.source.startswith("/"):
        raise _refusal(where, "bdev.source", found.source, "must be a whole path, such as /dev/disk/by-id/nvme-…")
    if found.block_bytes not in (0, 512, 4096) or (found.block_bytes and found.kind == "nvme"):
        bound = "must be 512 or 4096, and is left out for nvme, whose format says it"
        raise _refusal(where, "bdev.block_bytes", found.block_bytes, bound)
    if not DEADLINE_S_MIN <= found.deadline_s <= DEADLINE_S_MAX:
        raise _refusal(where, "deadline_s", found.deadline_s, f"must be {DEADLINE_S_MIN:g} to {DEADLINE_S_MAX:g}")
    if found.cpumask and not _MASK.fullmatch(found.cpumask):
        raise _refusal(where, "controller.cpumask", found.cpumask, "must be a mask such as 0x6, or a list such as [1,2]")
