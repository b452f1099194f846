"""Makes what a configuration wants in a running SPDK target, once or again after its restart, and tells how it is.

Invariants: what is there already and is as wanted is left alone; what is there and is otherwise is refused and never deleted; a
bdev that another controller has is not taken. Requests are those of SPDK's own command line (docs/adr/0029), defaults included.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from halfstep.errors import ConfigError, DeviceError, ProtocolError, Unavailable
from halfstep.io.spdk.config import SpdkConfig
from halfstep.io.spdk.rpc import Refused, Rpc

METHOD_MISSING = -32601
# What SPDK says of a name that it does not have, or has: of some methods as "invalid parameters".
_ABSENT = (-errno.ENODEV, -errno.ENOENT)
_PRESENT = (-errno.EEXIST,)

Request = tuple[str, dict[str, Any]]


def create_bdev(config: SpdkConfig) -> Request:
    """As `bdev_aio_create`, `bdev_uring_create` or `bdev_nvme_attach_controller` of the command line."""
    block = {"block_size": config.block_bytes} if config.block_bytes else {}
    if config.kind == "aio":
        switches = {"readonly": False, "fallocate": False, "nowait": False}
        return "bdev_aio_create", {"filename": config.source, "name": config.bdev, **block, **switches}
    if config.kind == "uring":
        return "bdev_uring_create", {"filename": config.source, "name": config.bdev, **block}
    off = ("prchk_reftag", "prchk_guard", "hdgst", "ddgst", "allow_unrecognized_csi", "disable_sq_flow_control")
    named = {"name": config.bdev, "trtype": "PCIe", "traddr": config.source}
    return "bdev_nvme_attach_controller", {**named, **dict.fromkeys(off, False)}


def create_controller(config: SpdkConfig) -> Request:
    """As `vhost_create_blk_controller`."""
    mask = {"cpumask": config.cpumask} if config.cpumask else {}
    named = {"ctrlr": config.controller, "dev_name": config.block_device, **mask}
    return "vhost_create_blk_controller", {**named, "readonly": False, "packed_ring": False}


def ask_version() -> Request:
    """As `spdk_get_version`."""
    return "spdk_get_version", {}


def ask_bdev(config: SpdkConfig) -> Request:
    """As `bdev_get_bdevs -b`."""
    return "bdev_get_bdevs", {"name": config.block_device}


def ask_controller(config: SpdkConfig) -> Request:
    """As `vhost_get_controllers -n`."""
    return "vhost_get_controllers", {"name": config.controller}


def ask_health(config: SpdkConfig) -> Request:
    """As `bdev_nvme_get_controller_health_info -c`; of kind nvme alone."""
    return "bdev_nvme_get_controller_health_info", {"name": config.bdev}


@dataclass(frozen=True)
class State:
    """What a target has. made: the methods that were called for it. socket: of the vhost controller. drive: of kind nvme."""

    version: str
    bdev: str
    block_bytes: int
    blocks: int
    controller: str
    socket: str
    cpumask: str
    made: tuple[str, ...]
    drive: Mapping[str, Any]


class Target:
    """rpc: to the target that `config` names."""

    def __init__(self, config: SpdkConfig, rpc: Rpc | None = None) -> None:
        self.config = config
        self._rpc = rpc or Rpc(config.rpc_socket, config.deadline_s)

    def state(self) -> State | None:
        """What is there; None where bdev or controller are not. Errors: as ensure(), but nothing is made."""
        return self._look(())

    def ensure(self) -> State:
        """Makes what is missing.

        Errors: Unavailable (no target, too late, another is at it), ConfigError (it refuses, or has something else by that
        name), DeviceError (it fails), ProtocolError.
        """
        made: list[str] = []
        if self._bdev() is None:
            self._make(create_bdev(self.config), made, f"bdev {self.config.bdev} of {self.config.source}")
        if self._controller() is None:
            self._make(create_controller(self.config), made, f"vhost controller {self.config.controller}")
        found = self._look(tuple(made))
        if found is None:
            raise Unavailable(f"SPDK at {self.config.rpc_socket}: what was made is gone again; the target has restarted")
        return found

    def _look(self, made: tuple[str, ...]) -> State | None:
        version = self._call(ask_version())
        bdev, controller = self._bdev(), self._controller()
        if bdev is None or controller is None:
            return None
        blocks, block_bytes = _number(bdev, "num_blocks"), _number(bdev, "block_size")
        if self.config.block_bytes not in (0, block_bytes):
            raise ConfigError(
                f"SPDK's bdev {self.config.block_device}: has blocks of {block_bytes} bytes, and block_bytes="
                f"{self.config.block_bytes} is wanted; delete it (`spdk-rpc bdev_{self.config.kind}_delete`), or correct that"
            )
        of = _controller_bdev(controller)
        if of != self.config.block_device:
            raise ConfigError(
                f"SPDK's vhost controller {self.config.controller}: is of bdev {of!r}, and {self.config.block_device!r} "
                "is wanted; delete it (`spdk-rpc vhost_delete_controller`), or take another name"
            )
        return State(
            version=str(version.get("version", "")) if isinstance(version, dict) else "",
            bdev=self.config.block_device,
            block_bytes=block_bytes,
            blocks=blocks,
            controller=self.config.controller,
            socket=str(controller.get("socket", "")),
            cpumask=str(controller.get("cpumask", "")),
            made=made,
            drive=self._drive(),
        )

    def _drive(self) -> Mapping[str, Any]:
        if self.config.kind != "nvme":
            return {}
        try:
            told = self._call(ask_health(self.config))
        except DeviceError:
            return {}
        return told if isinstance(told, dict) else {}

    def _bdev(self) -> Mapping[str, Any] | None:
        return self._one(ask_bdev(self.config), "name", self.config.block_device)

    def _controller(self) -> Mapping[str, Any] | None:
        return self._one(ask_controller(self.config), "ctrlr", self.config.controller)

    def _one(self, asked: Request, key: str, name: str) -> Mapping[str, Any] | None:
        try:
            told = self._rpc.call(*asked)
        except Refused as refusal:
            if refusal.code in _ABSENT or (refusal.code != METHOD_MISSING and "No such" in refusal.message):
                return None
            raise self._error(refusal) from None
        for one in told if isinstance(told, list) else ():
            if isinstance(one, dict) and (one.get(key) == name or name in _aliases(one)):
                return one
        return None

    def _make(self, asked: Request, made: list[str], what: str) -> None:
        try:
            self._rpc.call(*asked)
        except Refused as refusal:
            # Another who makes the same at the same time: what came of it is looked at next.
            if refusal.code in _PRESENT:
                return
            if refusal.code == METHOD_MISSING:
                raise self._error(refusal) from None
            raise ConfigError(
                f"SPDK at {self.config.rpc_socket} refuses {what}: {refusal.message} ({refusal.code}); "
                "its log says more, and docs/drives.md what it needs"
            ) from None
        made.append(asked[0])

    def _call(self, asked: Request) -> Any:
        try:
            return self._rpc.call(*asked)
        except Refused as refusal:
            raise self._error(refusal) from None

    def _error(self, refusal: Refused) -> ConfigError | DeviceError:
        if refusal.code == METHOD_MISSING:
            return ConfigError(
                f"SPDK at {self.config.rpc_socket} has no {str(refusal).partition(':')[0]}: is it still starting "
                "(--wait-for-rpc), or built without vhost (`./configure --with-vhost`) or uring (`--with-uring`)?"
            )
        return DeviceError(f"SPDK at {self.config.rpc_socket}: {refusal}; look at the target's log")


def _aliases(one: Mapping[str, Any]) -> list[Any]:
    aliases = one.get("aliases")
    return aliases if isinstance(aliases, list) else []


def _number(told: Mapping[str, Any], key: str) -> int:
    value = told.get(key)
    if not isinstance(value, int) or value <= 0:
        raise ProtocolError(f"SPDK's bdev: {key}={value!r}: must be above 0; is it SPDK?")
    return value


def _controller_bdev(controller: Mapping[str, Any]) -> str:
    """Of what vhost_get_controllers says: backend_specific.block.bdev."""
    specific = controller.get("backend_specific")
    block = specific.get("block") if isinstance(specific, dict) else None
    return str(block.get("bdev", "")) if isinstance(block, dict) else ""
