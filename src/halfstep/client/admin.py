"""The operators' half of a client: what is in a daemon, why, and who may have how much of it.

Unlike the data path, these calls raise what went wrong: whoever administers wants to know. Thread: any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from halfstep import _peer
from halfstep.arguments import unsigned
from halfstep.client.coding import NONE, floor_units, policy_number, refuse_below
from halfstep.client.entries import Entry, Namespace, counters_by_shard, entry_of, namespaces_of, totals_of
from halfstep.client.explain import explanation_of, question_of
from halfstep.client.numbers import (
    OP_CLEAR,
    OP_EXPLAIN,
    OP_LIST,
    OP_NAMESPACE_CREATE,
    OP_NAMESPACE_DELETE,
    OP_NAMESPACE_LIMIT,
    OP_STAT,
)
from halfstep.client.url import DEFAULT_NAMESPACE, namespace_fault
from halfstep.errors import ConfigError
from halfstep.layout import Layout

_LIST_PAGE = 1024


class Admin:
    """`client.admin`. Of the namespace and the layout that the client was connected with, unless a call names others."""

    def __init__(self, operate: Callable[[str, _peer.Batch], None], space: str, layout: Layout) -> None:
        """operate: sends a batch, and raises what went wrong with it, which its first argument names."""
        self._operate = operate
        self._space = space
        self._layout = layout

    def list(self, *, limit: int | None = None) -> Iterator[Entry]:
        """The namespace's blocks, in no order, page by page; one that is put or deleted meanwhile may or may not be among them.

        Errors: Unavailable, ProtocolError.
        """
        cursor, left = 0, None if limit is None else unsigned("limit", limit, 63)
        while left is None or left > 0:
            batch = _peer.Batch(OP_LIST)
            batch.set_list(cursor, _LIST_PAGE if left is None else min(left, _LIST_PAGE))
            self._operate("list", batch)
            page = [entry_of(record, key) for record, key in batch.records][:left]
            yield from page
            left = None if left is None else left - len(page)
            cursor = batch.cursor
            if cursor == 0:
                return

    def stat(self) -> dict[str, float]:
        """The daemon's counters by their metric names, of all its shards. Errors: Unavailable, ProtocolError."""
        return totals_of(self.stat_by_shard().values())

    def stat_by_shard(self) -> dict[int, dict[str, float]]:
        """The counters of each shard, by its number. What the whole store has, such as a quota, is among those of shard 0.

        Errors: Unavailable, ProtocolError.
        """
        batch = _peer.Batch(OP_STAT)
        self._operate("stat", batch)
        return counters_by_shard(batch.records)

    def explain(self, key: bytes, components: Sequence[range] = (range(1),), *, every_group: bool = True) -> dict[str, Any]:
        """What the daemon knows of a key in this namespace, in all of its layouts: docs/wire-protocol.md, Explanation.

        components: which to look up; with every_group cells of group 0, which stand for those of every group. Components that
        a remembered event tells of are found besides. Errors: Unavailable, ConfigError (a bound, or a daemon without it).
        """
        batch = _peer.Batch(OP_EXPLAIN)
        batch.set_question(question_of(key, components, every_group=every_group))
        self._operate("explain", batch)
        return explanation_of(batch.records)

    def clear(self, layout: Layout | bytes | None = None) -> None:
        """Drop all blocks of a layout in this namespace, at once and for good; clients that use it go on with an empty one.

        layout: a Layout, the 16 bytes of a layout id, or by default the client's own.
        Errors: Unavailable, ConfigError (the namespace has no such layout).
        """
        layout_id = layout if isinstance(layout, bytes) else (layout or self._layout).id
        batch = _peer.Batch(OP_CLEAR)
        batch.set_layout_id(layout_id)
        self._operate(f"clear layout {layout_id.hex()} of namespace {self._space!r}", batch)

    def namespaces(self) -> tuple[Namespace, ...]:
        """The namespaces, their limits and what they use: all of them to an operator, to others their own.

        Errors: Unavailable, ProtocolError.
        """
        return tuple(namespaces_of(self.stat()))

    def create_namespace(
        self,
        name: str,
        quota_bytes: int = 0,
        *,
        pin_budget_bytes: int = 0,
        default_ttl_s: int = 0,
        sliding_ttl: bool = False,
        policy: str | None = None,
        floor: str | None = None,
    ) -> None:
        """Make a namespace. quota_bytes 0: no limit but the store's. pin_budget_bytes 0: no persistent holds.

        default_ttl_s: of puts that name none, 0 = never; with sliding_ttl it counts from a block's last use (get, touch, or a
        put that finds it there). policy: of clients that have none of their own, a built-in one. floor: the lossiest that may
        be put, a built-in policy or a step (docs/compression.md). Errors: Unavailable, ConfigError (refused, is there already).
        """
        coding = None if policy is None and floor is None else (policy or NONE, floor or NONE)
        self._namespace(OP_NAMESPACE_CREATE, name, quota_bytes, pin_budget_bytes, default_ttl_s, sliding_ttl, coding)

    def limit_namespace(
        self,
        name: str,
        *,
        quota_bytes: int | None = None,
        pin_budget_bytes: int | None = None,
        default_ttl_s: int | None = None,
        sliding_ttl: bool | None = None,
        policy: str | None = None,
        floor: str | None = None,
    ) -> None:
        """Change a namespace's limits; None = as it is. Over a new quota it loses its oldest blocks, soon.

        Errors: Unavailable, ConfigError (refused, unknown).
        """
        known = [space for space in self.namespaces() if space.name == name]
        if not known:
            raise ConfigError(
                f"namespace {name!r} does not exist, or is not this connection's to see; `halfstep namespace ls` shows which do"
            )
        self._namespace(
            OP_NAMESPACE_LIMIT,
            name,
            known[0].quota_bytes if quota_bytes is None else quota_bytes,
            known[0].pin_budget_bytes if pin_budget_bytes is None else pin_budget_bytes,
            known[0].default_ttl_s if default_ttl_s is None else default_ttl_s,
            known[0].sliding_ttl if sliding_ttl is None else sliding_ttl,
            # Else it is not said, and an older daemon, which has neither, goes on.
            None
            if policy is None and floor is None
            else (known[0].policy if policy is None else policy, known[0].floor if floor is None else floor),
        )

    def delete_namespace(self, name: str) -> None:
        """Remove a namespace and all of its blocks. Errors: Unavailable, ConfigError (refused, unknown)."""
        if name == DEFAULT_NAMESPACE:
            raise ConfigError(
                f"namespace {name!r}: every daemon has it, so it cannot be deleted; delete its blocks, or clear layouts"
            )
        self._namespace(OP_NAMESPACE_DELETE, name, 0, 0, 0, sliding_ttl=False)

    def _namespace(
        self,
        operation: int,
        name: str,
        quota_bytes: int,
        pin_budget_bytes: int,
        default_ttl_s: int,
        sliding_ttl: bool,
        coding: tuple[str, str] | None = None,
    ) -> None:
        if problem := namespace_fault(name):
            raise ConfigError(f"namespace {name!r} {problem}")
        batch = _peer.Batch(operation)
        batch.set_namespace(
            name,
            unsigned("quota_bytes", quota_bytes, 64),
            unsigned("pin_budget_bytes", pin_budget_bytes, 64),
            unsigned("default_ttl_s", default_ttl_s, 32),
            sliding_ttl,
        )
        if coding is not None:
            policy, floor = policy_number(coding[0]), floor_units(coding[1])
            refuse_below(coding[0], floor)
            batch.set_coding(policy, floor)
        verb = {OP_NAMESPACE_CREATE: "create", OP_NAMESPACE_LIMIT: "limit", OP_NAMESPACE_DELETE: "delete"}[operation]
        self._operate(f"{verb} namespace {name!r}", batch)
