"""An SPDK target's control plane, in this process: it takes what SPDK's own command line sends, and nothing else.

What it takes is checked by test_spdk_requests.py against that command line's dry run.
"""

from __future__ import annotations

import errno
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 30
BLOCKS, BLOCK_BYTES = 1 << 16, 4096
# Of each method the parameters that it has to have, and those that it may have, with their types.
_NAME = {"name": str}
_OFF = ("prchk_reftag", "prchk_guard", "hdgst", "ddgst", "allow_unrecognized_csi", "disable_sq_flow_control")
METHODS: dict[str, tuple[dict[str, type], dict[str, type]]] = {
    "spdk_get_version": ({}, {}),
    "bdev_get_bdevs": ({}, {"name": str, "timeout": int}),
    "bdev_aio_create": (
        {"filename": str, "name": str},
        {"block_size": int, "readonly": bool, "fallocate": bool, "nowait": bool, "uuid": str},
    ),
    "bdev_uring_create": ({"filename": str, "name": str}, {"block_size": int, "uuid": str}),
    "bdev_nvme_attach_controller": ({"name": str, "trtype": str, "traddr": str}, dict.fromkeys(_OFF, bool)),
    "bdev_nvme_get_controller_health_info": (_NAME, {}),
    "vhost_get_controllers": ({}, _NAME),
    "vhost_create_blk_controller": (
        {"ctrlr": str, "dev_name": str},
        {"cpumask": str, "transport": str, "readonly": bool, "packed_ring": bool},
    ),
}
INVALID_PARAMS, METHOD_MISSING = -32602, -32601


class Error(Exception):
    """What the target answers in place of a result."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class FakeSpdk:
    """answers: a method's name, and what is sent in place of its answer: bytes, or a call that gets the socket."""

    def __init__(self, path: Path, directory: Path) -> None:
        self.path, self.directory = path, directory
        self.asked: list[dict[str, Any]] = []
        self.bdevs: dict[str, dict[str, Any]] = {}
        self.controllers: dict[str, dict[str, Any]] = {}
        self.lacks: set[str] = set()
        self.health: dict[str, Any] = {"temperature_celsius": 41, "percentage_used": 3, "media_errors": 0}
        self.health["available_spare_percentage"] = 100
        self.answers: dict[str, Callable[[socket.socket, dict[str, Any]], None]] = {}
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._serve, args=(self._listener,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """As one that is killed: its bdevs and controllers are gone."""
        assert self._listener is not None
        assert self._thread is not None
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self.bdevs, self.controllers = {}, {}

    def methods(self) -> list[str]:
        return [one["method"] for one in self.asked]

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                stream, _ = listener.accept()
            except OSError:  # it was stopped
                return
            with stream:
                stream.settimeout(PATIENCE_S)
                self._hear(stream)

    def _hear(self, stream: socket.socket) -> None:
        data, asked = b"", None
        while asked is None:
            more = stream.recv(4096)
            if not more:
                return
            data += more
            try:
                asked = json.loads(data)
            except ValueError:
                continue
        self.asked.append(asked)
        if (instead := self.answers.get(asked["method"])) is not None:
            instead(stream, asked)
            return
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
        try:
            answer["result"] = self._result(asked["method"], asked.get("params", {}))
        except Error as error:
            answer["error"] = {"code": error.code, "message": error.message}
        stream.sendall(json.dumps(answer).encode())

    def check(self, method: str, params: dict[str, Any]) -> None:
        """Errors: Error of a method that there is not, or of parameters that it does not take."""
        if method not in METHODS or method in self.lacks:
            raise Error(METHOD_MISSING, "Method not found")
        needed, known = METHODS[method][0], {**METHODS[method][0], **METHODS[method][1]}
        if set(needed) - set(params) or any(key not in known or type(value) is not known[key] for key, value in params.items()):
            raise Error(INVALID_PARAMS, "Invalid parameters")

    def _result(self, method: str, params: dict[str, Any]) -> Any:
        self.check(method, params)
        return getattr(self, f"_{method}")(**params)

    def _spdk_get_version(self) -> Any:
        return {"version": "SPDK v26.09", "fields": {"major": 26, "minor": 9}}

    def _bdev_get_bdevs(self, name: str, timeout: int = 0) -> Any:
        if name not in self.bdevs:
            raise Error(-errno.ENODEV, "No such device")
        return [self.bdevs[name]]

    def _add(self, name: str, block_size: int = BLOCK_BYTES) -> None:
        if name in self.bdevs:
            raise Error(-errno.EEXIST, "File exists")
        self.bdevs[name] = {"name": name, "aliases": [], "num_blocks": BLOCKS, "block_size": block_size}

    def _bdev_aio_create(self, filename: str, name: str, block_size: int = BLOCK_BYTES, **_: Any) -> Any:
        if not Path(filename).exists():
            raise Error(-errno.ENOENT, "No such file or directory")
        self._add(name, block_size)
        return name

    _bdev_uring_create = _bdev_aio_create

    def _bdev_nvme_attach_controller(self, name: str, trtype: str, **_: Any) -> Any:
        if trtype != "PCIe":
            raise Error(INVALID_PARAMS, "Invalid parameters")
        self._add(f"{name}n1")
        return [f"{name}n1"]

    def _bdev_nvme_get_controller_health_info(self, name: str) -> Any:
        if f"{name}n1" not in self.bdevs:
            raise Error(-errno.ENODEV, "No such device")
        return dict(self.health)

    def _vhost_get_controllers(self, name: str = "") -> Any:
        if name not in self.controllers:
            raise Error(-errno.ENODEV, "No such device")
        return [self.controllers[name]]

    def _vhost_create_blk_controller(self, ctrlr: str, dev_name: str, cpumask: str = "0x1", **_: Any) -> Any:
        if ctrlr in self.controllers:
            raise Error(-errno.EEXIST, "File exists")
        if dev_name not in self.bdevs:
            raise Error(-errno.ENODEV, "No such device")
        block = {"readonly": False, "bdev": dev_name, "transport": "vhost_user_blk"}
        place = str(self.directory / ctrlr)
        self.controllers[ctrlr] = {
            "ctrlr": ctrlr,
            "cpumask": cpumask,
            "socket": place,
            "backend_specific": {"block": block},
        }
        return True
