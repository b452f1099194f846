"""Any sequence of calls, restarts and kills, against a running daemon, judged after each by the oracle of tests/torture.

Hypothesis draws the sequences; without more said it draws the same few in every run, so that `make test` takes its seconds and
gives the same answer. HALFSTEP_STATEFUL_EXAMPLES=1000 draws so many others, anew each time, and shrinks what it finds.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.integration.conftest import Daemon
from tests.torture.content import bytes_of, noise_of
from tests.torture.oracle import Block, Broken, Log, Oracle, Rule

import halfstep
from halfstep.client.results import Answer, Result

EXAMPLES = int(os.environ.get("HALFSTEP_STATEFUL_EXAMPLES", "0"))

# Long enough for a busy machine: no test is about speed.
DEADLINE_MS = 30_000
STORE = "132MiB"
NAMES = [
    b"k",
    b"a name of more than thirty-two bytes, so that its hash is stored",
    bytes(range(36)),
    *(b"n%d" % n for n in range(5)),
]
SPACES = ("default", "tenant", "other")
PARTED = halfstep.Group(6, (4096, 2048))
LAYOUTS = (
    halfstep.Layout.opaque("stateful"),  # any length, odd ones too
    halfstep.Layout({"name": "plain"}, [halfstep.Group(4, (16_384,))]),  # whole pages: no trailer
    halfstep.Layout({"name": "parted"}, [PARTED]),
)
FILLER = halfstep.Layout.opaque("filler")
FILLER_BATCHES, FILLER_BLOCKS, FILLER_BYTES = 11, 12, 262_144
FILLING = noise_of(b"filling", FILLER_BLOCKS * FILLER_BYTES)
FILLS_MAX = 8  # of an example: the store is written over twice
QUOTA_BYTES, PIN_BUDGET_BYTES = 512 << 10, 512 << 10
LEASE_OWNER, PIN_OWNER = 1, 2
LEASE_S = 50

spaces = st.integers(0, len(SPACES) - 1)  # which of those that there are
layouts = st.integers(0, len(LAYOUTS) - 1)
names = st.lists(st.integers(0, len(NAMES) - 1), min_size=1, max_size=4, unique=True)
ttls = st.sampled_from((0, 0, 3600, 1))

Place = tuple[str, int, int]  # namespace, layout, name: by their numbers


@settings(
    max_examples=EXAMPLES or 10,
    stateful_step_count=30,
    derandomize=not EXAMPLES,
    deadline=None,
    phases=tuple(Phase) if EXAMPLES else (Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
    print_blob=bool(EXAMPLES),
)
class StoreMachine(RuleBasedStateMachine):
    """A daemon on an empty store, clients of its namespaces, and what must be true of each block."""

    # ---- life ----

    @initialize()
    def begin(self) -> None:
        """Every example has a daemon and a store of its own: what happens depends on nothing before."""
        self.directory = tempfile.TemporaryDirectory(prefix="halfstep-stateful-")
        self.daemon = Daemon(Path(self.directory.name), STORE)
        self.daemon.start()
        geometry = self.daemon.facts["geometry"]
        self.bytes_max = geometry["block_bytes_max"]
        self.oracle = Oracle(Log(geometry["segments"], geometry["segment_bytes"]))
        self.blocks: dict[Place, Block] = {}
        self.spaces: dict[str, int] = {"default": 0}  # name -> quota
        self.clients = {"default": self._connect("default")}
        self.clients["default"].limit_namespace("default", pin_budget_bytes=PIN_BUDGET_BYTES)
        self.fills = 0
        self.waited = False

    def teardown(self) -> None:
        """The last look: everything, as it is and as a list has it; then nothing stays."""
        if not hasattr(self, "clients"):
            return
        try:
            for space in self.spaces:
                for layout in range(len(LAYOUTS)):
                    self._look(space, layout)
                self._lists_what_is_there(space)
        finally:
            for client in self.clients.values():
                client.close()
            self.daemon.close()
            self.directory.cleanup()

    def _connect(self, space: str) -> halfstep.Client:
        return halfstep.connect(
            f"{self.daemon.url}/{space}",
            layout=LAYOUTS[0],
            required=True,
            deadline_ms=DEADLINE_MS,
            match_deadline_ms=DEADLINE_MS,
        )

    # ---- blocks ----

    @rule(which=spaces, layout=layouts, numbers=names, persist=st.booleans(), ttl_s=ttls)
    def put(self, which: int, layout: int, numbers: list[int], persist: bool, ttl_s: int) -> None:
        space = self._space(which)
        blocks = self._blocks(space, layout, numbers)
        contents = [self._content(block, layout, len(block.puts)) for block in blocks]
        puts = [self.oracle.put_begins(block, content, ttl_s) for block, content in zip(blocks, contents, strict=True)]
        durability: Any = "persist" if persist else "cache"
        result = self._client(space).put(_keys(numbers), contents, layout=LAYOUTS[layout], durability=durability, ttl_s=ttl_s)
        for item, (block, put) in enumerate(zip(blocks, puts, strict=True)):
            reason = result.reason(item)
            if reason == "ok (present)":
                self.oracle.put_present(block, put, persist=persist)
            elif result.answers[item] == Answer.OK:
                self.oracle.put_stored(block, put, persist=persist, ttl_s=ttl_s)
            elif result.answers[item] == Answer.THROTTLED:
                self.oracle.put_refused(block, put)
            else:
                raise Broken(Rule.WRONG_ANSWER, f"{block.name}: put: {reason}")

    @rule(which=spaces, layout=layouts)
    def look(self, which: int, layout: int) -> None:
        """Match all names, get all, and some parts of those that have several."""
        self._look(self._space(which), layout)

    def _look(self, space: str, layout: int) -> None:
        everything = list(range(len(NAMES)))
        blocks = self._blocks(space, layout, everything)
        client, keys = self._client(space), _keys(everything)
        match = client.match(keys, lengths=True, layout=LAYOUTS[layout])
        if not match.answered or match.lengths is None:
            raise Broken(Rule.WRONG_ANSWER, f"match: {match}")
        for block, present, length in zip(blocks, match.present, match.lengths, strict=True):
            self.oracle.found(block, present=bool(present), block_bytes=int(length) if present else None)
        sizes = [int(length) or self._bytes_of_next(block, layout) for block, length in zip(blocks, match.lengths, strict=True)]
        targets = [np.zeros(size, np.uint8) for size in sizes]
        got = client.get(keys, targets, layout=LAYOUTS[layout])
        self._fair("get", got)
        for item, (block, target) in enumerate(zip(blocks, targets, strict=True)):
            self.oracle.read(block, target if got.ok[item] else None)
        if LAYOUTS[layout].groups == (PARTED,):
            self._look_at_parts(client, layout, [number for number in everything if got.ok[number]], targets)

    def _look_at_parts(
        self, client: halfstep.Client, layout: int, numbers: list[int], whole: list[npt.NDArray[np.uint8]]
    ) -> None:
        """Parts 1, 3 and 5 are the 2048 bytes behind every 4096."""
        target = np.zeros((len(numbers), 3, 2048), np.uint8)
        got = client.get(_keys(numbers), target, layout=LAYOUTS[layout], parts=[(1, 3, 2)], order="layer")
        for item, number in enumerate(numbers):
            parts = whole[number].reshape(3, 6144)[:, 4096:]
            if got.items_ok[item] and not np.array_equal(target[item], parts):
                raise Broken(Rule.WRONG_BYTES, f"parts of {NAMES[number]!r}")

    @rule(which=spaces, layout=layouts, numbers=names)
    def delete(self, which: int, layout: int, numbers: list[int]) -> None:
        space = self._space(which)
        blocks = self._blocks(space, layout, numbers)
        for block in blocks:
            self.oracle.delete_begins(block)
        self._fair("delete", self._client(space).delete(_keys(numbers), layout=LAYOUTS[layout]))
        for block in blocks:
            self.oracle.delete_ended(block)

    @rule(which=spaces, layout=layouts, numbers=names, ttl_s=ttls)
    def expire(self, which: int, layout: int, numbers: list[int], ttl_s: int) -> None:
        space = self._space(which)
        blocks = self._blocks(space, layout, numbers)
        for block in blocks:
            self.oracle.expire_begins(block, ttl_s)
        result = self._client(space).expire(_keys(numbers), ttl_s, layout=LAYOUTS[layout])
        for block, ok in zip(blocks, self._there("expire", result, blocks), strict=True):
            if ok:
                self.oracle.expire_ended(block, ttl_s)

    @rule(which=spaces, layout=layouts, numbers=names)
    def touch(self, which: int, layout: int, numbers: list[int]) -> None:
        space = self._space(which)
        blocks = self._blocks(space, layout, numbers)
        self._there("touch", self._client(space).touch(_keys(numbers), layout=LAYOUTS[layout]), blocks)

    # ---- holds ----

    @rule(which=spaces, layout=layouts, numbers=names, persistent=st.booleans())
    def hold(self, which: int, layout: int, numbers: list[int], persistent: bool) -> None:
        space = self._space(which)
        blocks = self._blocks(space, layout, numbers)
        owner = PIN_OWNER if persistent else LEASE_OWNER
        until_s = math.inf if persistent else time.monotonic() + LEASE_S
        seconds = None if persistent else LEASE_S
        client = self._client(space)
        result = client.hold(_keys(numbers), owner=owner, seconds=seconds, persistent=persistent, layout=LAYOUTS[layout])
        for block, ok in zip(blocks, self._there("hold", result, blocks), strict=True):
            if ok:
                block.hold(owner, until_s, persistent=persistent)

    @rule(which=spaces)
    def renew(self, which: int) -> None:
        space = self._space(which)
        until_s = time.monotonic() + LEASE_S
        result = self._client(space).renew(LEASE_OWNER, LEASE_S)
        self._fair("renew", result)
        for place, block in self.blocks.items():
            lease = block.holds.get(LEASE_OWNER)
            if place[0] == space and lease is not None and result.ok.all() and lease.until_s > time.monotonic():
                lease.until_s = until_s

    @rule(which=spaces, owner=st.sampled_from((LEASE_OWNER, PIN_OWNER)))
    def release(self, which: int, owner: int) -> None:
        space = self._space(which)
        for place, block in self.blocks.items():
            if place[0] == space:
                block.holds.pop(owner, None)
        self._fair("release", self._client(space).release(owner))

    # ---- names ----

    @rule(space=st.sampled_from(SPACES[1:]), quota=st.sampled_from((0, QUOTA_BYTES)))
    def make_or_limit_namespace(self, space: str, quota: int) -> None:
        operator = self._client("default")
        if space in self.spaces:
            operator.limit_namespace(space, quota_bytes=quota)
        else:
            operator.create_namespace(space, quota, pin_budget_bytes=PIN_BUDGET_BYTES)
            self.clients[space] = self._connect(space)
        self.spaces[space] = quota
        for place, block in self.blocks.items():
            if place[0] == space:
                block.quota = block.quota or quota > 0
        self._names_are_there()

    @precondition(lambda self: len(self.spaces) > 1)
    @rule(which=spaces)
    def delete_namespace(self, which: int) -> None:
        others = sorted(self.spaces.keys() - {"default"})
        space = others[which % len(others)]
        self.clients.pop(space).close()
        self._client("default").delete_namespace(space)
        del self.spaces[space]
        self._retire(space, range(len(LAYOUTS)))
        self._names_are_there()

    @rule(which=spaces, layout=layouts)
    def clear(self, which: int, layout: int) -> None:
        space = self._space(which)
        try:
            self._client(space).clear(LAYOUTS[layout])
        except halfstep.ConfigError as error:
            if "absent" not in str(error) or any(block.must for block in self._blocks(space, layout, range(len(NAMES)))):
                raise
        self._retire(space, [layout])

    # ---- the store ----

    @precondition(lambda self: self.fills < FILLS_MAX)
    @rule()
    def fill(self) -> None:
        """A quarter of the store in other blocks: after a few of them segments are reclaimed."""
        client = self._client("default")
        self.fills += 1
        for batch in range(FILLER_BATCHES):
            keys = [b"filler %d %d %d" % (self.fills, batch, number) for number in range(FILLER_BLOCKS)]
            for _ in range(FILLER_BLOCKS):
                self.oracle.log.offered(FILLER_BYTES)
            self._fair("fill", client.put(keys, FILLING, layout=FILLER))

    @precondition(lambda self: not self.waited and self._something_expires())
    @rule()
    def wait_for_expiry(self) -> None:
        """Once an example: it is the one rule that takes time."""
        self.waited = True
        ends = [
            put.expiry_high_s for block in self.blocks.values() for put in block.puts if put.expiry_high_s < time.time() + 5
        ]
        time.sleep(max(0.0, max(ends, default=0.0) + 1.1 - time.time()))

    @rule(cleanly=st.booleans())
    def restart(self, cleanly: bool) -> None:
        if cleanly:
            for block in self.blocks.values():
                self.oracle.stopped_cleanly(block)
            status = self.daemon.stop()
            assert status == 0, self.daemon.log_end()
        else:
            self.daemon.kill()
        for block in self.blocks.values():
            self.oracle.died(block)
        self.oracle.log.crashed()
        try:
            self.daemon.start()
        except halfstep.Unavailable as error:
            raise Broken(Rule.OPEN_REFUSED, str(error)) from None
        for client in self.clients.values():
            client.wait_ready(DEADLINE_MS)
        self._names_are_there()

    # ---- within ----

    def _space(self, which: int) -> str:
        return sorted(self.spaces)[which % len(self.spaces)]

    def _client(self, space: str) -> halfstep.Client:
        return self.clients[space]

    def _blocks(self, space: str, layout: int, numbers: Sequence[int]) -> list[Block]:
        blocks = []
        for number in numbers:
            name = f"{space}/{layout}/{NAMES[number]!r}"
            blocks.append(self.blocks.setdefault((space, layout, number), Block(name)))
            blocks[-1].quota = blocks[-1].quota or self.spaces[space] > 0
        return blocks

    def _content(self, block: Block, layout: int, number: int) -> npt.NDArray[np.uint8]:
        key = f"{number} of {block.name}".encode()
        group = LAYOUTS[layout].groups[0]
        return noise_of(key, group.block_bytes) if group.part_count else bytes_of(key, self.bytes_max)

    def _bytes_of_next(self, block: Block, layout: int) -> int:
        """What a target for a block that is not there has to have: a layout's blocks may all be of one length."""
        group = LAYOUTS[layout].groups[0]
        return group.block_bytes if group.part_count else block.bytes_last

    def _retire(self, space: str, of: Sequence[int]) -> None:
        for place, block in self.blocks.items():
            if place[0] == space and place[1] in of:
                self.oracle.retired(block)

    def _something_expires(self) -> bool:
        soon_s = time.time() + 5
        return any(put.expiry_high_s < soon_s for block in self.blocks.values() for put in block.puts)

    def _fair(self, what: str, result: Result) -> None:
        """Whatever else it says, nothing is at fault."""
        fine = np.isin(result.answers, (Answer.OK, Answer.MISS, Answer.THROTTLED))
        corrupt = [result.reason(item) for item in range(len(result.answers)) if "corrupt" in result.reason(item)]
        if not fine.all() or corrupt:
            raise Broken(Rule.WRONG_ANSWER, f"{what}: {result}")

    def _there(self, what: str, result: Result, blocks: list[Block]) -> list[bool]:
        """Judges an answer that says of each block whether it is there; returns which were ok."""
        self._fair(what, result)
        for block, answer in zip(blocks, result.answers, strict=True):
            if answer != Answer.THROTTLED:
                self.oracle.found(block, present=answer == Answer.OK)
        return [bool(ok) for ok in result.ok]

    def _names_are_there(self) -> None:
        there = {space.name: space.quota_bytes for space in self._client("default").namespaces()}
        if there != self.spaces:
            raise Broken(Rule.NAMES_LOST, f"{there} instead of {self.spaces}")

    def _lists_what_is_there(self, space: str) -> None:
        """What list says and what get brought, save for blocks that move meanwhile: so twice."""
        for last in (False, True):
            listed = [(entry.layout_id, entry.key) for entry in self._client(space).list() if entry.layout_id != FILLER.id]
            present = []
            for number, layout in enumerate(LAYOUTS):
                match = self._client(space).match(NAMES, layout=layout)
                present += [(layout.id, name) for name, ok in zip(NAMES, match.present, strict=True) if ok]
                self._blocks(space, number, range(len(NAMES)))
            if sorted(listed) == sorted(present):
                return
            if last:
                raise Broken(Rule.ACCOUNTING, f"{space}: list has {sorted(listed)}, match {sorted(present)}")
            time.sleep(0.5)


def _keys(numbers: Sequence[int]) -> list[bytes]:
    return [NAMES[number] for number in numbers]


@pytest.mark.integration
@pytest.mark.timeout(0 if EXAMPLES else 300)
class TestStore(StoreMachine.TestCase):  # type: ignore[misc,valid-type]
    """The sequences."""
