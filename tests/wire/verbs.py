"""What rings over RDMA need of verbs, by pyverbs: a device by its IP address, registered memory, a reliable queue pair.

pyverbs is Debian's package python3-pyverbs, for the Python that Debian has. One of the same version loads it from where it
lies; nothing else of that folder is on the path. NoVerbs says what is missing.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import mmap
import random
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.wire.paths import MTUS, RECEIVES, RdmaPath, gid_of

_DEBIAN = Path("/usr/lib/python3/dist-packages/pyverbs")
_GIDS_MAX = 64
_PORT = 1
_SENDS_MAX = 64
# A dead peer is noticed after some seconds; on Soft-RoCE 7 retries would be without end.
_TIMEOUT, _RETRIES, _RNR_FOR_EVER, _RNR_TIMER = 16, 6, 7, 12


class NoVerbs(Exception):
    """This Python has no pyverbs."""


class NoDevice(Exception):
    """None of this machine's has the address."""


class VerbsFault(Exception):
    """A completion in error."""


def module(name: str) -> Any:
    """A module of pyverbs. Errors: NoVerbs."""
    try:
        if "pyverbs" not in sys.modules and importlib.util.find_spec("pyverbs") is None:
            spec = importlib.util.spec_from_file_location(
                "pyverbs", _DEBIAN / "__init__.py", submodule_search_locations=[str(_DEBIAN)]
            )
            if spec is None or spec.loader is None or not _DEBIAN.is_dir():
                raise NoVerbs(f"{_DEBIAN} is not there: package python3-pyverbs")
            package = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(package)
            sys.modules["pyverbs"] = package
        return importlib.import_module(f"pyverbs.{name}")
    except ImportError as error:
        raise NoVerbs(f"pyverbs of {_DEBIAN} does not load into Python {sys.version.split()[0]}: {error}") from error


class Completion(NamedTuple):
    """A receive of the other end's write."""

    immediate: int
    bytes: int


class Device:
    """The one that has an IP address, with a protection domain. Errors: NoVerbs, NoDevice."""

    def __init__(self, address: str) -> None:
        self.gid = gid_of(address)
        self.enums = module("enums")
        self.context, self.gid_index = self._opened(address)
        self.domain = module("pd").PD(self.context)
        # ibv_mtu counts from 1, 256 bytes.
        self.mtu_bytes = MTUS[self.context.query_port(_PORT).active_mtu - 1]

    def _opened(self, address: str) -> tuple[Any, int]:
        device = module("device")
        for found in device.get_device_list():
            context = device.Context(name=found.name.decode())
            for entry in context.query_gid_table(_GIDS_MAX):
                same = entry.gid_subnet_prefix, entry.gid_interface_id
                # Both numbers are as they lie in the GID, in network byte order.
                if b"".join(half.to_bytes(8, sys.byteorder) for half in same) != self.gid:
                    continue
                if entry.gid_type == self.enums.IBV_GID_TYPE_ROCE_V2 and entry.port_num == _PORT:
                    return context, entry.gid_index
            context.close()
        raise NoDevice(f"no RDMA device has the address {address}")

    def close(self) -> None:
        """After everything that was made of it."""
        self.domain.close()
        self.context.close()


class Memory:
    """Registered memory of our own. remote: what the other end may do, of "read" and "write"."""

    def __init__(self, device: Device, count: int, remote: str = "") -> None:
        self.view = mmap.mmap(-1, count)
        self._held = (ctypes.c_char * count).from_buffer(self.view)
        self.address = ctypes.addressof(self._held)
        access = device.enums.IBV_ACCESS_LOCAL_WRITE
        if "write" in remote:
            access |= device.enums.IBV_ACCESS_REMOTE_WRITE
        if "read" in remote:
            access |= device.enums.IBV_ACCESS_REMOTE_READ
        self._registered = module("mr").MR(device.domain, count, access, address=self.address)

    @property
    def key(self) -> int:
        """For the other end."""
        return int(self._registered.rkey)

    @property
    def local_key(self) -> int:
        """For our own requests."""
        return int(self._registered.lkey)

    def close(self) -> None:
        """Nobody may write any more."""
        self._registered.close()
        del self._held
        self.view.close()


class QueuePair:
    """Reliable; allows remote writes. Every send is signalled: `sent` counts those that have completed."""

    def __init__(self, device: Device) -> None:
        qp, cq = module("qp"), module("cq")
        self._device, self._wr = device, module("wr")
        context = device.context
        self._sends = cq.CQ(context, 2 * _SENDS_MAX)
        self._receives = cq.CQ(context, 2 * RECEIVES)
        caps = qp.QPCap(max_send_wr=_SENDS_MAX, max_recv_wr=RECEIVES, max_send_sge=1, max_recv_sge=1)
        first = qp.QPInitAttr(qp_type=device.enums.IBV_QPT_RC, scq=self._sends, rcq=self._receives, cap=caps, sq_sig_all=1)
        self._attributes = qp.QPAttr(port_num=_PORT)
        self._attributes.qp_access_flags = device.enums.IBV_ACCESS_REMOTE_WRITE
        self._pair = qp.QP(device.domain, first, self._attributes)
        self.number = int(self._pair.qp_num)
        self.psn = random.getrandbits(24)
        self.posted = self.sent = 0
        for _ in range(RECEIVES):
            self._post_receive()

    def connect(self, its: RdmaPath, reads: int = 0) -> None:
        """To the other end; it can receive and send from then on. reads: that it answers at once; 0 allows none."""
        addresses, attributes = module("addr"), self._attributes
        route = addresses.GlobalRoute(dgid=addresses.GID(_gid_text(its.gid)), sgid_index=self._device.gid_index)
        attributes.ah_attr = addresses.AHAttr(gr=route, is_global=1, port_num=_PORT)
        attributes.dest_qp_num = its.queue_pair
        attributes.path_mtu = MTUS.index(min(its.mtu_bytes, self._device.mtu_bytes)) + 1
        attributes.rq_psn, attributes.sq_psn = its.psn, self.psn
        attributes.max_rd_atomic, attributes.max_dest_rd_atomic = 1, max(reads, 1)
        attributes.min_rnr_timer, attributes.timeout = _RNR_TIMER, _TIMEOUT
        attributes.retry_cnt, attributes.rnr_retry = _RETRIES, _RNR_FOR_EVER
        self._pair.to_rts(attributes)
        if reads:
            enums = self._device.enums
            attributes.qp_access_flags |= enums.IBV_ACCESS_REMOTE_READ
            self._pair.modify(attributes, enums.IBV_QP_ACCESS_FLAGS)

    @property
    def full(self) -> bool:
        """No more can be posted until something has completed."""
        return self.posted - self.sent >= _SENDS_MAX

    def write(self, source: Memory, at: int, count: int, target: int, key: int, immediate: int | None) -> None:
        """RDMA WRITE of bytes of our memory, of none as well; with an immediate where there is one."""
        enums = self._device.enums
        opcode = enums.IBV_WR_RDMA_WRITE if immediate is None else enums.IBV_WR_RDMA_WRITE_WITH_IMM
        asked = self._wr.SendWR(
            wr_id=self.posted,
            num_sge=1,
            sg=[self._wr.SGE(source.address + at, count, source.local_key)],
            opcode=opcode,
            send_flags=enums.IBV_SEND_SIGNALED,
            imm_data=0 if immediate is None else socket.htonl(immediate),
        )
        asked.set_wr_rdma(key, target)
        self._pair.post_send(asked)
        self.posted += 1

    def look_at_sends(self) -> None:
        """Counts what has completed. Errors: VerbsFault."""
        for done in self._polled(self._sends):
            self._good(done, "a write")
            self.sent += 1

    def arrivals(self) -> list[Completion]:
        """What the other end has written since, in order; each receive is posted again. Errors: VerbsFault."""
        came = []
        for done in self._polled(self._receives):
            self._good(done, "a receive")
            came.append(Completion(socket.ntohl(done.imm_data), done.byte_len))
            self._post_receive()
        return came

    def close(self) -> None:
        """Nothing of it writes or is written any more."""
        for each in (self._pair, self._sends, self._receives):
            each.close()

    def _post_receive(self) -> None:
        # Without memory; pyverbs wants a piece, and takes an empty one.
        self._pair.post_recv(self._wr.RecvWR(num_sge=1, sg=[self._wr.SGE(0, 0, 0)]))

    def _polled(self, queue: Any) -> list[Any]:
        count, found = queue.poll(RECEIVES)
        return list(found[:count])

    def _good(self, done: Any, what: str) -> None:
        if done.status != self._device.enums.IBV_WC_SUCCESS:
            raise VerbsFault(f"{what} completes with status {done.status}")


def _gid_text(gid: bytes) -> str:
    return ":".join(gid[at : at + 2].hex() for at in range(0, 16, 2))
