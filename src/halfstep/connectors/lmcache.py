"""LMCache's KV cache through the tier: a client for the `native_plugin` L2 adapter of its server (MP mode).

    lmcache server … --l2-adapter '{"type": "native_plugin", "module_path": "halfstep.connectors.lmcache",
      "class_name": "HalfstepClient", "adapter_params": {"url": "halfstep://flash-node", "contents": "llama-3-70b bf16 r1"}}'

It reaches the engines that LMCache reaches: vLLM, SGLang, TensorRT-LLM. An object is a chunk of tokens of one rank, opaque, and
one block here. LMCache's keys name the model, the rank and the tokens, and neither weights nor dtype nor how the bytes are
ordered: `contents` has to say what else decides what they mean, so that other contents have other blocks.

Whatever the daemon does, each submitted batch ends by its deadline, and what did not come is a miss.

Source: LMCache 0.5.6, lmcache/v1/distributed/l2_adapters/native_plugin_l2_adapter.py. Thread: any; LMCache submits from
several, and drains when the descriptor is readable.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from typing import Any

import numpy as np

from halfstep.client import Answer, Client, Ticket, connect
from halfstep.connectors.planning import Notices, warn_of_version, why_not
from halfstep.errors import ConfigError
from halfstep.layout import Layout

# Of this module's meaning of an object; another one has other blocks.
INTERFACE = "native-plugin-1"
# Whose adapter was read and run. Another one is tried, with a word about it.
VERSIONS = ("0.5.6",)

# ok, error, per key.
End = tuple[bool, str, list[bool]]


class HalfstepClient:
    """What LMCache's adapter calls. The keyword arguments are the "adapter_params".

    url: the daemon's. contents: see above, any text; not empty. ttl_s: of stored objects, 0 = the namespace's default.
    deadline_ms: of gets and sets; match_deadline_ms: of questions. connections: data connections per shard.
    Errors: ConfigError. A daemon that is not there is none.
    """

    def __init__(
        self,
        url: str,
        contents: str,
        *,
        ttl_s: int = 0,
        deadline_ms: float = 2000,
        match_deadline_ms: float = 100,
        connections: int = 1,
    ) -> None:
        if not contents:
            raise ConfigError(
                'contents="": must say which weights, dtype and byte order these objects have; a change needs another'
            )
        with contextlib.suppress(PackageNotFoundError):  # a stand-in of tests has none
            warn_of_version("LMCache", package_version("lmcache"), VERSIONS)
        self._ttl_s = ttl_s
        self._notices = Notices(f"halfstep at {url}")
        self._client: Client = connect(
            url,
            layout=Layout.opaque("lmcache", interface=INTERFACE, contents=contents),
            deadline_ms=deadline_ms,
            match_deadline_ms=match_deadline_ms,
            connections=connections,
        )
        self._queue = self._client.queue()
        self._descriptor = self._queue.fileno()
        self._numbers = 0
        # By ticket: the number that LMCache knows, and how its end is told. A ticket may be over, and another thread drain it,
        # before who submitted it has noted it here.
        self._lock = threading.Lock()
        self._flying: dict[Ticket[Any], tuple[int, Callable[[Any], End]]] = {}

    def event_fd(self) -> int:
        """An eventfd: readable when drain_completions has something to say."""
        return self._descriptor

    def submit_batch_set(self, keys: Sequence[str], bufs: Sequence[memoryview]) -> int:
        """Store objects; what is there already is not sent. The buffers must not change until it is drained."""
        names = [_name(key) for key in keys]
        return self._fly(lambda: self._queue.put(names, [_flat(one) for one in bufs], ttl_s=self._ttl_s), self._stored)

    def submit_batch_get(self, keys: Sequence[str], bufs: Sequence[memoryview]) -> int:
        """Objects into buffers of their length; another length is a miss."""
        names, targets = [_name(key) for key in keys], [_flat(one) for one in bufs]
        lengths = np.array([target.nbytes for target in targets], np.uint32)
        return self._fly(lambda: self._queue.get(names, targets), lambda result: self._loaded(result, lengths))

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Which are there."""
        names = [_name(key) for key in keys]
        return self._fly(lambda: self._queue.match(names), self._matched)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Remove objects, for good."""
        names = [_name(key) for key in keys]
        return self._fly(lambda: self._queue.delete(names), self._deleted)

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool]]]:
        """(number, ok, error, per key) of each batch that is over and was not told. Never waits."""
        over = [event.ticket for event in self._queue.poll() if event.done]
        with self._lock:
            flown = [(self._flying.pop(ticket), ticket) for ticket in over]
        return [(number, *told(ticket.result())) for (number, told), ticket in flown]

    def close(self) -> None:
        """No byte lands in anybody's buffer afterwards. Idempotent."""
        self._client.close()

    # ---- within ----

    def _fly(self, submit: Callable[[], Ticket[Any]], told: Callable[[Any], End]) -> int:
        with self._lock:
            self._numbers += 1
            self._flying[submit()] = self._numbers, told
            return self._numbers

    def _stored(self, result: Any) -> End:
        return self._complete("set", result, result.items_ok)

    def _loaded(self, result: Any, lengths: Any) -> End:
        whole = result.items_ok & (result.lengths == lengths)
        return self._complete("get", result, whole)

    def _matched(self, result: Any) -> End:
        self._notices.note("exists", result.reason)
        return True, "", result.present.tolist()

    def _deleted(self, result: Any) -> End:
        # What the daemon has dropped by itself is gone, too: LMCache would ask for its end again and again.
        return True, "", (result.items_ok | (result.answers == Answer.MISS)).tolist()

    def _complete(self, what: str, result: Any, ok: Any) -> End:
        why = why_not(result)
        self._notices.note(what, why)
        return bool(ok.all()), why, ok.tolist()


def _name(key: str) -> bytes:
    """LMCache's key, which may be longer than ours."""
    return hashlib.sha256(key.encode()).digest()


def _flat(buffer: memoryview) -> memoryview:
    return buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")
