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
import logging
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from itertools import compress
from typing import Any, NamedTuple

from halfstep.connectors.settings import refuse_unknown
from halfstep.connectors.versions import warn_of_version
from halfstep.errors import ConfigError
from halfstep.layout import BLOCK_BYTES_MAX, Layout
from halfstep.tier import (
    BACKGROUND,
    HOLD_MS,
    Coding,
    Moved,
    Notices,
    Pending,
    Present,
    SharedCounts,
    Wait,
    Waits,
    codecs_of,
    coding_of,
    connect,
    counted,
)

# Of this module's meaning of an object; another one has other blocks.
INTERFACE = "native-plugin-1"
# Whose adapter was read and run. Another one is tried, with a word about it.
VERSIONS = ("0.5.6",)

SETTINGS = (
    "url",
    "contents",
    "ttl_s",
    "deadline_ms",
    "match_deadline_ms",
    "hold_ms",
    "connections",
    "codec",
    "policy",
    "coding",
)

# Said of a batch with such an object, which is answered as not stored.
TOO_LARGE = f"an object has more than {BLOCK_BYTES_MAX} bytes, the most that a block has: lower LMCache's chunk_size"

log = logging.getLogger("halfstep.connectors.lmcache")

# ok, error, per key.
End = tuple[bool, str, list[bool]]


class _Flying(NamedTuple):
    """wait: a request of LMCache's waits for it; None: nobody does."""

    pending: Pending[Any]
    told: Callable[[Any], End]
    wait: Wait | None


class HalfstepClient:
    """What LMCache's adapter calls. The keyword arguments are the "adapter_params".

    url: the daemon's. contents: see above, any text; not empty. ttl_s: of stored objects, 0 = the namespace's default.
    deadline_ms: of gets and sets; match_deadline_ms: of questions. hold_ms: for so long the daemon keeps what was found,
    until it is got; 0 = not. connections: data connections per shard. codec: "bfx" = objects are stored coded, exactly; "" = as
    they are. LMCache says nothing of their values, so the codec looks for itself. policy: instead of a codec, "exact" or "off";
    a lossy one is refused, since nobody says which values are K and V. coding: whether objects are coded: "auto", "always" or
    "never"; see halfstep.connect.
    Errors: ConfigError. A daemon that is not there is none.
    """

    def __init__(
        self,
        url: str = "",
        contents: str = "",
        *,
        ttl_s: int = 0,
        deadline_ms: float = 2000,
        match_deadline_ms: float = 100,
        hold_ms: int = HOLD_MS,
        connections: int = 1,
        codec: str = "",
        policy: str = "",
        coding: Coding = "auto",
        **unknown: object,
    ) -> None:
        refuse_unknown({"url", *unknown} if url else unknown, SETTINGS, "adapter_params")
        if not contents:
            raise ConfigError(
                'halfstep: contents="": must say which weights, dtype and byte order these objects have; a change needs another'
            )
        with contextlib.suppress(PackageNotFoundError):  # a stand-in of tests has none
            warn_of_version("LMCache", package_version("lmcache"), VERSIONS)
        self.layout = Layout.opaque("lmcache", interface=INTERFACE, contents=contents, **coding_of(codec, policy=policy))
        self._name = f"halfstep at {url}"
        self._connection = connect(
            url,
            deadline_ms=deadline_ms,
            match_deadline_ms=match_deadline_ms,
            connections=connections,
            codecs=codecs_of(codec),
            policy=policy,
            coding=coding,
        )
        self._values = self._connection.values(self.layout, ttl_s=ttl_s, notices=Notices(self._name))
        self._values.hold_options(hold_ms)  # refuses what is no time
        self._hold_ms = hold_ms
        self._descriptor = self._values.fileno()
        log.info("%s: layout %s, codec %s", self._name, self.layout.id.hex(), codec or policy or "none")
        # By the number that LMCache knows: what is on its way, and how its end is told. A call may be over, and another thread
        # drain it, before who submitted it has noted it here.
        self._lock = threading.Lock()
        self._numbers = 0
        self._flying: dict[int, _Flying] = {}
        self.counts = SharedCounts()
        self._waits = Waits(self.counts)

    def event_fd(self) -> int:
        """An eventfd: readable when drain_completions has something to say."""
        return self._descriptor

    @counted
    def submit_batch_set(self, keys: Sequence[str], bufs: Sequence[memoryview]) -> int:
        """Store objects; what is there already is not sent. The buffers must not change until it is drained."""
        names, sources = [_name(key) for key in keys], [_flat(one) for one in bufs]
        fits = [len(one) <= BLOCK_BYTES_MAX for one in sources]
        put, those = list(compress(names, fits)), list(compress(sources, fits))

        def told(result: Moved) -> End:
            ok, reason, each = self._stored(result)
            if all(fits):
                return ok, reason, each
            if self._connection.mode == "off":
                return True, "", [True] * len(fits)
            self.counts.add(stores_failed=fits.count(False))
            stored = iter(each)
            return False, reason or TOO_LARGE, [fit and next(stored) for fit in fits]

        return self._fly(lambda: self._values.begin_put(put, those, priority=BACKGROUND), told, None)

    @counted
    def submit_batch_get(self, keys: Sequence[str], bufs: Sequence[memoryview]) -> int:
        """Objects into buffers of their length; another length is a miss."""
        names, targets = [_name(key) for key in keys], [_flat(one) for one in bufs]
        return self._fly(lambda: self._values.begin_get(names, targets), self._loaded, self._connection.deadline_ms)

    @counted
    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Which are there; LMCache locks those, and gets them when their turn comes."""
        names = [_name(key) for key in keys]
        within_ms = self._connection.match_deadline_ms
        self.counts.add(matches=bool(names), keys_asked=len(names))
        return self._fly(lambda: self._values.begin_match(names, hold_ms=self._hold_ms), self._matched, within_ms)

    @counted
    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Remove objects, for good."""
        names = [_name(key) for key in keys]
        return self._fly(lambda: self._values.begin_delete(names), _deleted, None)

    @counted
    def drain_completions(self) -> list[tuple[int, bool, str, list[bool]]]:
        """(number, ok, error, per key) of each batch that is over and was not told. Never waits."""
        self._values.poll()
        with self._lock:
            over = {number: flown for number, flown in self._flying.items() if flown.pending.done}
            for number, flown in over.items():
                del self._flying[number]
                if flown.wait is not None:
                    self._waits.end_now(flown.wait)
        return [(number, *flown.told(flown.pending.result())) for number, flown in over.items()]

    def close(self) -> None:
        """No byte lands in anybody's buffer afterwards. Idempotent."""
        self._values.close()
        self._connection.close()
        log.info("%s: %s", self._name, self.counts)

    def _fly(self, submit: Callable[[], Pending[Any]], told: Callable[[Any], End], within_ms: float | None) -> int:
        with self._lock:
            self._numbers += 1
            wait = None if within_ms is None else self._waits.begin(within_ms)
            self._flying[self._numbers] = _Flying(submit(), told, wait)
            return self._numbers

    def _stored(self, result: Moved) -> End:
        if self._connection.mode == "off":  # LMCache warns of each key that is not stored, and nothing is to be done
            return True, "", [True] * len(result.ok)
        ok, reason, each = _moved(result)
        self.counts.add(stores=sum(each), stores_failed=len(each) - sum(each))
        return ok, reason, each

    def _loaded(self, result: Moved) -> End:
        ok, reason, each = _moved(result)
        self.counts.add(loads=sum(each), loads_failed=len(each) - sum(each))
        return ok, reason, each

    def _matched(self, result: Present) -> End:
        there = result.there.tolist()
        self.counts.add(keys_hit=sum(there))
        return True, "", there


def _moved(result: Moved) -> End:
    return bool(result.ok.all()), result.reason, result.ok.tolist()


def _deleted(result: Moved) -> End:
    # What the daemon has dropped by itself is gone, too: LMCache would ask for its end again and again.
    return True, "", result.ok.tolist()


def _name(key: str) -> bytes:
    """LMCache's key, which may be longer than ours."""
    return hashlib.sha256(key.encode()).digest()


def _flat(buffer: memoryview) -> memoryview:
    return buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")
