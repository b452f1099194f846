"""The report of a started daemon: one line a fact, only facts in force, as the native core found them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from halfstep.daemon.units import format_bytes


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """One line per thing that an operator would ask for at three in the morning. `facts` is `_shard.Server.facts()`."""
    engine, backing, arena = facts["engine"], facts["backing"], facts["arena"]
    geometry, recovery = facts["geometry"], facts["recovery"]
    yield _engine(engine)
    direct = "O_DIRECT" if backing["direct"] else f"buffered: {backing['why_not_direct']}"
    direct = "its cache is its own" if backing["vhost_user"] else "gone when this ends" if backing["noop"] else direct
    yield f"store      {backing['path']}, {format_bytes(backing['bytes'])}{_kind(backing)}, {direct}"
    yield f"memory     arena {format_bytes(arena['bytes'])} {pages_of(arena)}; index {format_bytes(facts['index_bytes'])}"
    shards = facts["shards"]
    if (placed := _placed_alike(shards)) is not None:
        yield f"numa       {placed}"
    yield (
        f"capacity   {geometry['segments']} segments of {format_bytes(geometry['segment_bytes'])}, "
        f"blocks up to {format_bytes(geometry['block_bytes_max'])}, {geometry['shards']} shard(s)"
    )
    yield latency_of(facts["latency_goal_us"])
    yield _eviction(facts["eviction"])
    if backing["block_device"]:
        yield _discard(engine, backing, facts["eviction"]["discard_bytes_per_s"])
    rate = facts["scrub_bytes_per_s"]
    yield "scrub      " + (f"{format_bytes(rate)}/s" if rate else "off: what rots is found when it is read")
    yield _recovery(recovery, created=facts["created"])
    for note in recovery["notes"]:
        yield f"note       {note}"
    if facts["congestion_control"]:
        yield f"tcp        congestion control {facts['congestion_control']} on loopback"
        yield _zero_copy(on=facts["zero_copy"], possible=facts["zero_copy_possible"])
    if len(shards) == 1:
        for address in facts["listening"]:
            yield f"listening  {address}"
        return
    for number, shard in enumerate(shards):
        core = "" if shard["core"] is None else f", on core {shard['core']}"
        memory = "" if placed is not None else f", memory: {placed_on(shard['memory'])}"
        listening = ", ".join(shard["listening"])
        yield f"shard {number:<4} listens on {listening}{core}{memory}; {shard['recovery']['blocks']} blocks"


def _kind(backing: Mapping[str, Any]) -> str:
    if block := backing["nvme_block_path"]:
        return f", NVMe namespace, claimed through {block}"
    if backing["noop"]:
        return ", no-op device in memory"
    return ", block device" if backing["block_device"] else ", vhost-user target" if backing["vhost_user"] else ""


def latency_of(goal_us: int) -> str:
    """What gives way to gets, and when."""
    if goal_us == 0:
        return "latency    no goal: writes and background work do not give way to gets"
    goal = f"{goal_us / 1000:g} ms" if goal_us >= 1000 else f"{goal_us} us"
    return f"latency    goal {goal}: writes and background work give way to gets that read from the device for longer"


def pages_of(arena: Mapping[str, Any]) -> str:
    """In which pages the memory for blocks lies, and how much of it."""
    if not arena["large_bytes"]:
        return "on ordinary pages (no huge pages)"
    kind = "reserved" if arena["reserved"] else "transparent"
    share = "" if arena["large_bytes"] == arena["bytes"] else f", {format_bytes(arena['large_bytes'])} of it"
    return f"on 2 MiB pages ({kind}{share})"


def placed_on(memory: Mapping[str, Any]) -> str:
    """Which memory node a shard prefers, and how much of what was looked at is there."""
    node = memory["node"]
    if node is None:
        return f"no node preferred: {memory['why_no_node']}"
    if memory["why_no_pages"]:
        return f"node {node}, where pages really are is not known: {memory['why_no_pages']}"
    return f"node {node} ({', '.join(_there(memory[of], of, node) for of in ('arena', 'index'))} looked at)"


def _there(pages: Mapping[str, Any], of: str, node: int) -> str:
    by_node = pages["by_node"]
    return f"{of} {by_node.get(node, 0)} of {sum(by_node.values())} pages"


def _placed_alike(shards: Sequence[Mapping[str, Any]]) -> str | None:
    """What may be said of all shards at once; None where each has its own."""
    said = {placed_on(shard["memory"]) for shard in shards}
    alike = len(shards) == 1 or all(shard["memory"]["node"] is None for shard in shards)
    return said.pop() if alike and len(said) == 1 else None


def _engine(engine: Mapping[str, Any]) -> str:
    buffers = "registered" if engine["registered_buffers"] else "unregistered"
    features = f", {engine['ring_features']}" if engine["ring_features"] else ""
    text = f"engine     {engine['name']}, {buffers} buffers, queue depth {engine['queue_depth']}{features}"
    if most := engine["command_bytes_max"]:
        text += f", commands of up to {format_bytes(most)}"
    if ids := engine["placements"]:
        text += f", {ids} placement identifiers"
    return "; ".join([text, *filter(None, (engine[why] for why in ("why_fallback", "why_unregistered", "why_no_placements")))])


def _eviction(eviction: Mapping[str, Any]) -> str:
    daily = eviction["rewrite_bytes_per_day"]
    again = f"up to {eviction['rewrite_share']:.0%} of what is put may be written again to keep what is used"
    return f"eviction   {eviction['policy']}, {again}" + (
        f", or what users leave of {format_bytes(daily)} a day" if daily else ""
    )


def _discard(engine: Mapping[str, Any], backing: Mapping[str, Any], rate_bytes: int) -> str:
    if engine["discard"] == "none":
        return f"discard    none: {engine['why_no_discard'] or 'the device takes none'}"
    if rate_bytes == 0:
        return "discard    none: --discard-rate is 0"
    granule = format_bytes(backing["discard_granularity_bytes"])
    rate = f"up to {format_bytes(rate_bytes)} a second"
    return f"discard    of reclaimed segments by {engine['discard']}, granules of {granule}, {rate}"


def _zero_copy(*, on: bool, possible: bool) -> str:
    if not possible:
        return "zero copy  none: this kernel has no SO_ZEROCOPY; what is sent is copied"
    if not on:
        return "zero copy  off: what is sent is copied"
    return "zero copy  of large payload to other machines, for each connection whose network can"


def _recovery(recovery: Mapping[str, Any], *, created: bool) -> str:
    if created:
        return "recovery   none: the store is new"
    dropped = {
        "deleted": recovery["blocks_dropped_deleted"],
        "expired": recovery["blocks_dropped_expired"],
        "corrupt": recovery["blocks_dropped_corrupt"],
        "of retired scopes": recovery["blocks_dropped_dead_scope"],
        "for want of index": recovery["blocks_dropped_index_full"],
    }
    told = ", ".join(f"{count} {why}" for why, count in dropped.items() if count)
    left = recovery["segments_left"]
    return (
        f"recovery   {recovery['blocks']} blocks, {format_bytes(recovery['bytes'])} in {recovery['micros'] / 1e6:.3f} s from "
        f"{recovery['segments_by_footer']} footers and {recovery['segments_by_frames']} open segments"
        + (f"; left out: {told}" if told else "")
        + (f"; {recovery['segments_bad']} bad segments" if recovery["segments_bad"] else "")
        + (f"; {left} segments are still read while it serves: what is in them is a miss, puts are throttled" if left else "")
    )


def recovered(metrics: Mapping[str, Any]) -> str | None:
    """What is said when all that a start had left is read, from `_shard.Server.metrics()`; None as long as it is not."""
    totals: dict[str, float] = {}
    for name, _, value in metrics["gauges"]:
        totals[name] = totals.get(name, 0.0) + value
    if totals["halfstep_recovery_segments_left"]:
        return None
    blocks, size = int(totals["halfstep_recovery_blocks"]), format_bytes(int(totals["halfstep_recovery_bytes"]))
    return f"recovered  {blocks} blocks, {size} in {totals['halfstep_recovery_us'] / 1e6:.3f} s"
