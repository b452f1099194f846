"""The client: what a process holds to reach a daemon's namespace.

Invariants: construction never waits for a daemon; a dead, slow or full daemon is an answer, never an exception; close() returns
when nothing can land in anybody's memory any more. It pickles as its URL and options, and works again after a fork.
Thread: any thread may call anything.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from halfstep import _peer
from halfstep.arguments import real_number
from halfstep.client.admin import Admin
from halfstep.client.canary import Canary
from halfstep.client.coding import NONE, policy_text
from halfstep.client.entries import Entry, Namespace
from halfstep.client.facts import ClientFacts, CodingFacts, GpuFacts, ShardLoad
from halfstep.client.link import Links
from halfstep.client.living import Living
from halfstep.client.options import (
    Coding,
    CommonOptions,
    GetOptions,
    GetSectionsOptions,
    HoldOptions,
    Keys,
    MatchOptions,
    MatchSectionsOptions,
    Mode,
    PrefetchOptions,
    PutOptions,
    PutSectionsOptions,
)
from halfstep.client.queue import Queue
from halfstep.client.recording import tally_of
from halfstep.client.region import Region
from halfstep.client.request import Request, Requests, deadline_us_of, request_of
from halfstep.client.results import (
    Answer,
    ChangeResult,
    DeleteResult,
    GetResult,
    MatchResult,
    PrefetchResult,
    PutResult,
    ReleaseResult,
    describe,
)
from halfstep.client.sections import Section, get_request, match_request, put_request
from halfstep.client.session import Session
from halfstep.client.url import Endpoint
from halfstep.client.values import round_trip, value_of
from halfstep.errors import ConfigError, Unavailable
from halfstep.layout import Layout

if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Unpack

    from halfstep.client.aio import Aio
    from halfstep.client.futures import Futures
    from halfstep.client.options import NamespaceChanges, NamespaceLimits, TierOptions, ValuesOptions
    from halfstep.client.tally import Tally
    from halfstep.tier import KVLayout, Tier, Values

R = TypeVar("R")


@dataclass(frozen=True)
class ClientOptions:
    """How a client behaves; validated by connect()."""

    url: str
    layout: Layout
    deadline_ms: float
    match_deadline_ms: float
    connections: int
    mode: Mode
    codecs: tuple[str, ...] = ()
    coding: Coding = "auto"
    canary: int = 0


class Client:
    """A namespace of a daemon. Made by connect(); see there for the options."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self.canary = Canary(options.canary)
        self._endpoint = Endpoint.parse(options.url)
        self._links = Links(self._endpoint, options.mode, options.connections, options.codecs, options.coding)
        self._terms = _Terms(options, self._links)
        # As of the last greeting of any core: one that speaks more codecs is greeted anew.
        self._told_policy: str | None = None
        self._tally = tally_of(self._endpoint.namespace, options.mode)
        # Of calls that count themselves, as a tier's do.
        self._uncounted = Requests(self._terms)
        self._requests = self._uncounted
        if self._tally is not None:
            # Here: who records nothing does not need it.
            from halfstep.client.recorded import RecordedRequests

            self._requests = RecordedRequests(self._terms, self._tally)
        self._queues: Living[Queue] = Living()
        # Queues of synchronous calls that are not in one now; append and pop are atomic.
        self._idle: list[Queue] = []
        self._lock = threading.Lock()
        self._aio: Aio | None = None
        self._futures: Futures | None = None
        self._links.add(self)
        _open_clients.add(self)

    # ---- the data path: answers, never exceptions ----

    def match(self, keys: Keys, **options: Unpack[MatchOptions]) -> MatchResult:
        """Ask which keys are there, with all `components` asked for.

        keys: list of bytes (1-255 each), or array of uint8 [keys, key_bytes]. lengths=True: block bytes, too.
        hold_ms, owner: keep what is found for that long, until release(owner). stop_at_miss: only the prefix matters.
        wait=True: answered when each key has been there, or at the deadline, with what is there then.
        Errors: ConfigError. Deadline: match_deadline_ms.
        """
        return self._call(self._requests.match(keys, **options))

    @overload
    def get(self, keys: bytes, **options: Unpack[CommonOptions]) -> bytes | None: ...
    @overload
    def get(self, keys: Keys, target: object, **options: Unpack[GetOptions]) -> GetResult: ...
    def get(self, keys: bytes | Keys, target: object = None, **options: Any) -> GetResult | bytes | None:
        """Read blocks, verified, into `target`; what is not `ok` in the result leaves its bytes undefined.

        One key and no target: its bytes, or None, whatever the reason; of two calls, one for the length.
        target: one writable C-contiguous buffer (numpy, bytearray, CPU tensor, DLPack), split evenly: item i at
        i * len / items; or a list with one entry per item, each a buffer or a list of buffers; or Rows, or Addresses. Items are
        key-major.
        parts: only these parts of each block, back to back, as ranges. order="layer": first parts of all items first.
        wait=True: blocks that are not there are waited for, until somebody stores them; at the deadline they are misses.
        Errors: ConfigError. Deadline: deadline_ms.
        """
        if target is None and isinstance(keys, (bytes, str)):  # text is refused there by name
            return value_of(self, keys, options)
        # Without options to hand on, where there are none: a hundredth of a call of 64 KiB.
        return self._call(self._requests.get(keys, target, **options) if options else self._requests.get(keys, target))

    def exists(self, key: bytes, **options: Unpack[MatchOptions]) -> bool:
        """Whether one key is there, as far as the daemon says so in time. Errors: ConfigError. Deadline: match_deadline_ms."""
        return bool(self.match([key], **options).present[0])

    def put(self, keys: bytes | Keys, source: object, **options: Unpack[PutOptions]) -> PutResult:
        """Store blocks; one key may stand without a list. One that is there already stays as it is, and counts as ok.

        source: as the target of get, may be read-only. block_bytes: per item, or one number, where a block is shorter than its
        place in the source. durability="persist": ok means on media. parents: per key, the ordinal of its parent among `keys`.
        Errors: ConfigError. Deadline: deadline_ms.
        """
        return self._call(self._requests.put([keys] if isinstance(keys, bytes) else keys, source, **options))

    def delete(self, keys: Keys, **options: Unpack[CommonOptions]) -> DeleteResult:
        """Remove blocks; ok means gone for good, also after a restart. Errors: ConfigError."""
        return self._call(self._requests.delete(keys, **options))

    def prefetch(self, keys: Keys, **options: Unpack[PrefetchOptions]) -> PrefetchResult:
        """Have the daemon read blocks into its memory ahead of their get, behind everybody who reads now; waits for them.

        Who does not want to wait, or may want to cancel, uses queue().prefetch(). seconds=5: how long each is kept for its
        first get, cut to the daemon's longest lease. priority=0: smaller goes first, among prefetches. At most a quarter of
        the daemon's memory is for blocks that wait for their get: keys beyond that are throttled (budget), or with
        follow=True wait until earlier ones were got, so that one call can run ahead of who reads a long chain. What had not
        begun by the deadline is late, and is not read any more. kind: what it is for, "window" (the next blocks of a chain),
        "layers", "turn" (one that is expected) or "named" (by the engine): the daemon counts by it what was used, late, unused.
        ok, miss, throttled, late or cancelled per item. Errors: ConfigError. Deadline: deadline_ms.
        """
        return self._call(self._requests.prefetch(keys, **options))

    def match_sections(self, sections: Sequence[Section], **options: Unpack[MatchSectionsOptions]) -> list[MatchResult]:
        """Which keys of several sections are there, in one request: a result a section. See Client.match.

        sections: 1 to 16. Errors: ConfigError.
        """
        return self._call(match_request(self._requests, sections, **options))

    def get_sections(self, sections: Sequence[Section], **options: Unpack[GetSectionsOptions]) -> list[GetResult]:
        """Read blocks of several sections (groups, cells) in one request; order="layer": across them. A result a section.

        sections: 1 to 16. Errors: ConfigError.
        """
        return self._call(get_request(self._requests, sections, **options))

    def put_sections(self, sections: Sequence[Section], **options: Unpack[PutSectionsOptions]) -> list[PutResult]:
        """Store blocks of several sections in one request. A result a section.

        sections: 1 to 16. Errors: ConfigError.
        """
        return self._call(put_request(self._requests, sections, **options))

    # ---- a block's life: also answers ----

    def touch(self, keys: Keys, **options: Unpack[CommonOptions]) -> ChangeResult:
        """Say that blocks are in use, without reading them: the last key counts as used last, so pass a chain leaf first.

        ok per item: it is there. Errors: ConfigError. Deadline: deadline_ms.
        """
        return self._call(self._requests.touch(keys, **options))

    def hold(self, keys: Keys, *, owner: int, **options: Unpack[HoldOptions]) -> ChangeResult:
        """Keep blocks from eviction and from their namespace's quota for `owner`, a number over 0; the newest hold wins.

        seconds: how long. persistent=False: a lease, cut to the daemon's longest (60 s unless configured), gone with a restart.
        persistent=True: a pin; it counts against the namespace's pin budget (bytes), survives restarts, and ok means that it is
        on media; seconds=None: until released. Neither keeps a block from its expiry.
        ok, miss (absent), or throttled (budget, load) per item. Errors: ConfigError. Deadline: deadline_ms.
        """
        return self._call(self._requests.hold(keys, owner=owner, **options))

    def lease(self, keys: Keys, owner: int, seconds: float) -> ChangeResult:
        """`hold` for a while."""
        return self.hold(keys, owner=owner, seconds=seconds)

    def pin(self, keys: Keys, owner: int, seconds: float | None = None) -> ChangeResult:
        """`hold` across restarts, within the pin budget; None = until released."""
        return self.hold(keys, owner=owner, seconds=seconds, persistent=True)

    def tier(self, layout: KVLayout, **options: Unpack[TierOptions]) -> Tier:
        """The semantic face, for one model: prefixes of tokens, memory of an engine, sessions. See halfstep.tier.Tier."""
        # Here: who moves plain blocks does not need it.
        from halfstep.tier.face import Tier

        return Tier(self, layout, **options)

    def default_policy(self, *, wait: bool = False) -> str | None:
        """What the namespace says to who has no policy: the name of one, or "none"; None: no daemon has said it yet.

        wait: for the first greeting, no longer than for a match, and not where connecting is known to have failed.
        """
        if self.mode == "off":
            return NONE
        facts = self.facts()
        if wait and self._told_policy is None and not facts.handshakes and not facts.last_error:
            with contextlib.suppress(Unavailable, ConfigError):  # the calls of a tier will say so
                self.wait_ready(self._options.match_deadline_ms)
            facts = self.facts()
        if facts.handshakes:
            self._told_policy = policy_text(facts.namespace_policy)
        return self._told_policy

    def speak(self, codecs: Sequence[str]) -> None:
        """Speak these codecs too, from now on; what is under way ends as it began."""
        self._links.speak(codecs)

    def values(self, layout: Layout, **options: Unpack[ValuesOptions]) -> Values:
        """As tier(), for blocks whose inside nobody here needs to know. See halfstep.tier.Values."""
        from halfstep.tier.values import Values

        return Values(self, layout, **options)

    def session(self, seconds: float = 30) -> Session:
        """`with client.session() as session: session.hold(keys)`: leases that are renewed until the block is left.

        seconds: how long they outlive this process when it dies.
        """
        return Session(self, seconds)

    def renew(self, owner: int, seconds: float, *, deadline_ms: float | None = None) -> ChangeResult:
        """Let all leases of `owner` end so many seconds from now; pins stay as they are.

        One answer: ok, or miss (absent) when it has none. Errors: ConfigError. Deadline: deadline_ms.
        """
        return self._call(self._requests.renew(owner, seconds, deadline_ms=deadline_ms))

    def release(self, owner: int, keys: Keys | None = None, **options: Unpack[CommonOptions]) -> ReleaseResult:
        """End what `owner` holds, leases and pins: on `keys`, or everything. Errors: ConfigError. Deadline: deadline_ms."""
        return self._call(self._requests.release(owner, keys, **options))

    def expire(self, keys: Keys, ttl_s: int, **options: Unpack[CommonOptions]) -> ChangeResult:
        """Let blocks end `ttl_s` whole seconds from now, 0 = never, whatever was said before; ok means that it is on media.

        ok, miss (absent) or throttled (load) per item. Errors: ConfigError. Deadline: deadline_ms.
        """
        return self._call(self._requests.expire(keys, ttl_s, **options))

    def queue(self, *, counted: bool = True) -> Queue:
        """A queue of its own: submit without waiting, poll, eventfd. counted: False = whoever submits counts it itself."""
        queue = Queue(self._links, self._requests if counted else self._uncounted)
        self._queues.add(queue)
        # In this order: who closes the client right now finds the queue, or has said so.
        if self._links.closed and not self._links.ending:
            raise ConfigError("client is closed; connect again")
        self._links.add(queue)
        return queue

    @property
    def aio(self) -> Aio:
        """The same calls for asyncio: `await client.aio.get(...)`."""
        # Here, because asyncio is a third of the import time of a client that never uses it.
        from halfstep.client.aio import Aio

        with self._lock:
            if self._aio is None:
                self._aio = Aio(self.queue, self._requests)
                self._links.add(self._aio)
            return self._aio

    @overload
    def submit(self, operation: Literal["match"], *args: Any, **options: Any) -> Future[MatchResult]: ...
    @overload
    def submit(self, operation: Literal["get"], *args: Any, **options: Any) -> Future[GetResult]: ...
    @overload
    def submit(self, operation: Literal["put"], *args: Any, **options: Any) -> Future[PutResult]: ...
    @overload
    def submit(self, operation: Literal["delete"], *args: Any, **options: Any) -> Future[DeleteResult]: ...
    def submit(self, operation: str, *args: Any, **options: Any) -> Future[Any]:
        """A call as a concurrent.futures.Future. operation: "match", "get", "put" or "delete", then its arguments."""
        makers = {name: getattr(self._requests, name) for name in ("match", "get", "put", "delete")}
        if operation not in makers:
            raise ConfigError(f"operation={operation!r}: must be {', '.join(makers)}")
        # Here, for the same reason as asyncio.
        from halfstep.client.futures import Futures

        with self._lock:
            if self._futures is None:
                self._futures = Futures(self.queue)
                self._links.add(self._futures)
            futures = self._futures
        return futures.submit(makers[operation](*args, **options))

    def register(self, buffer: object, *, direct: bool = False) -> Region:
        """Registered memory for Rows: an engine's pool, once. Region.close() fences, then releases. Errors: ConfigError.

        direct: over RDMA daemons write what is got straight into it (docs/client-contract.md, *Direct regions*). What lies on a
        GPU then was verified by the daemon alone: GetResult.unchecked.
        """
        return Region(buffer, direct=direct)

    # ---- for operators ----

    @property
    def admin(self) -> Admin:
        """The operators' half: what is in the daemon, why, and who may have how much of it. Its calls raise what went wrong."""
        return Admin(self._operate, self.namespace, self.layout)

    # What `admin` has, by the names of before: they stay until 1.0.

    def list(self, *, limit: int | None = None) -> Iterator[Entry]:
        """As `admin.list`."""
        return self.admin.list(limit=limit)

    def stat(self) -> dict[str, float]:
        """As `admin.stat`."""
        return self.admin.stat()

    def stat_by_shard(self) -> dict[int, dict[str, float]]:
        """As `admin.stat_by_shard`."""
        return self.admin.stat_by_shard()

    def explain(self, key: bytes, components: Sequence[range] = (range(1),), *, every_group: bool = True) -> dict[str, Any]:
        """As `admin.explain`."""
        return self.admin.explain(key, components, every_group=every_group)

    def clear(self, layout: Layout | bytes | None = None) -> None:
        """As `admin.clear`."""
        self.admin.clear(layout)

    def namespaces(self) -> tuple[Namespace, ...]:
        """As `admin.namespaces`."""
        return self.admin.namespaces()

    def create_namespace(self, name: str, quota_bytes: int = 0, **limits: Unpack[NamespaceLimits]) -> None:
        """As `admin.create_namespace`."""
        self.admin.create_namespace(name, quota_bytes, **limits)

    def limit_namespace(self, name: str, *, quota_bytes: int | None = None, **limits: Unpack[NamespaceChanges]) -> None:
        """As `admin.limit_namespace`."""
        self.admin.limit_namespace(name, quota_bytes=quota_bytes, **limits)

    def delete_namespace(self, name: str) -> None:
        """As `admin.delete_namespace`."""
        self.admin.delete_namespace(name)

    # ---- about itself ----

    @property
    def url(self) -> str:
        """As given to connect()."""
        return self._options.url

    @property
    def codecs(self) -> tuple[str, ...]:
        """Spoken besides raw, as given to connect(), and those of the namespace's default policy since a tier follows it."""
        return self._links.codec_names

    @property
    def namespace(self) -> str:
        """Whose blocks it sees."""
        return self._endpoint.namespace

    @property
    def layout(self) -> Layout:
        """The layout of calls that name none."""
        return self._options.layout

    @property
    def mode(self) -> Mode:
        """on, off (answers everything itself, with a miss) or shadow (does all the work, answers a miss)."""
        return self._options.mode

    @property
    def tally(self) -> Tally | None:
        """Where its calls are counted; None: nowhere, unless $HALFSTEP_RECORD names a folder. See docs/effect.md."""
        return self._tally

    @property
    def deadline_ms(self) -> float:
        """Of calls that name none, matches aside."""
        return self._options.deadline_ms

    @property
    def match_deadline_ms(self) -> float:
        """Of matches that name none."""
        return self._options.match_deadline_ms

    def facts(self) -> ClientFacts:
        """Its connection and the daemon behind it, as of the last answer; does not ask."""
        core = None if self.mode == "off" else self._links.existing_core()
        if core is None:
            return ClientFacts()
        told = core.facts()
        shards, coding = tuple(ShardLoad(*load) for load in told["shards"]), CodingFacts(**told["coding"])
        return ClientFacts(
            **told | {"shards": shards, "coding": coding, "gpu": GpuFacts(**told["gpu"]), "canary": self.canary.facts()}
        )

    @property
    def path(self) -> str:
        """How bytes travel, for people: "tcp cubic 127.0.0.1:7350", or why they do not, or not on all connections."""
        address = self._endpoint.address
        if self.mode == "off":
            return f"off {address}"
        facts = self.facts()
        if not facts.connected:
            return f"not connected {address}" + (f": {facts.last_error}" if facts.last_error else "")
        place = address.removeprefix("unix:") if facts.transport in ("shm", "unix") else address
        path = " ".join(filter(None, (facts.transport, facts.congestion if facts.transport == "tcp" else "", place)))
        if facts.connected < facts.connections and facts.last_error:
            path += f" ({facts.connected} of {facts.connections} connections: {facts.last_error})"
        return path

    def wait_ready(self, timeout_ms: float) -> None:
        """Wait until every shard is reached; 0 only asks. It may be needed again: after an outage, or with a new layout.

        Errors: Unavailable (not within the time), ConfigError (refused for good; closed; a negative time).
        """
        within_ms = real_number("timeout_ms", timeout_ms)
        if within_ms < 0:
            raise ConfigError(f"timeout_ms={timeout_ms}: must be 0 or more")
        if self.mode == "off":
            return
        ready, why = self._links.core().wait_ready(within_ms / 1000)
        if ready < 0:
            raise ConfigError(f"{self.url}: the daemon refuses: {why}")
        if ready == 0:
            reason = why or self.facts().last_error or "no answer"
            if "transport=rdma: " in reason:
                raise Unavailable(
                    f"{self.url}: no rings over RDMA within {within_ms:g} ms ({reason}); ?transport=auto does without them"
                )
            # Who asks what it is that listens there has somebody listening, and of whom a part is reached is running.
            running = reason.endswith(("?", "share one")) or "while others are" in reason or "hangs, or is stopped" in reason
            remedy = "" if running else "; start it with `halfstep serve`"
            raise Unavailable(f"{self.url}: no daemon within {within_ms:g} ms ({reason}){remedy}")

    def ping(self, *, deadline_ms: float | None = None) -> float:
        """Seconds until a daemon has answered. Errors: Unavailable (it has not, and why), ConfigError."""
        return round_trip(self, deadline_ms)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._links.closed

    def close(self) -> None:
        """Cancel what is in flight, wait until nothing can land any more, disconnect. Idempotent."""
        self._end_calls()
        self._links.close()
        # Those of threads that came meanwhile; after this none comes.
        self._end_calls()
        _open_clients.discard(self)
        if self._tally is not None:
            self._tally.write()

    def forked(self) -> None:
        """In a child."""
        self._lock = threading.Lock()

    def end(self) -> None:
        """Close, because the process ends; threads that still call are answered `unavailable (closed)`."""
        self._links.ending = True
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[Client], tuple[ClientOptions]]:
        return Client, (self._options,)

    def __repr__(self) -> str:
        return f"Client({self.url!r}, {'closed' if self.closed else self.path})"

    # ---- within ----

    def _end_calls(self) -> None:
        if self._aio is not None:
            self._aio.close()
        if self._futures is not None:
            self._futures.close()
        for queue in self._queues:
            queue.close()
        self._idle.clear()

    def _call(self, request: Request[R]) -> R:
        try:
            queue = self._idle.pop()
        except IndexError:
            queue = self.queue()
        result = queue.run(request)
        # Not in a finally: a queue that an exception left is closed when it is collected.
        self._idle.append(queue)
        return result

    def _operate(self, what: str, batch: _peer.Batch) -> None:
        if self.mode == "off":
            raise Unavailable(f'{what}: the client is off (mode="off", or HALFSTEP_MODE); connect with mode="on"')
        request = request_of(batch, self._terms.deadline_us)
        self._call(request)
        answer, reason = request.outcome
        if answer == Answer.OK:
            return
        why = f"{what} on {self.url}: {describe(answer, reason)}"
        if answer in (Answer.REJECTED, Answer.MISS):
            raise ConfigError(why)
        error = self.facts().last_error
        raise Unavailable(f"{why}: {error}" if error else why)


class _Terms:
    """What a client brings to its requests, without the client: they must not keep each other alive."""

    def __init__(self, options: ClientOptions, links: Links) -> None:
        self.mode = options.mode
        self.layout = options.layout
        self.deadline_us = deadline_us_of(options.deadline_ms)
        self.match_deadline_us = deadline_us_of(options.match_deadline_ms)
        self.layout_handle = links.layout_handle


_open_clients: Living[Client] = Living()


@atexit.register
def _close_clients() -> None:
    # Before the interpreter takes memory away that the core might still write to, and threads with it: one that waited in the
    # core would never get the interpreter's lock back.
    for client in _open_clients:
        client.end()
