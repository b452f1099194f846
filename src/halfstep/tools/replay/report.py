"""What came out: results as JSON and as tables, with what qualifies them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from halfstep import build_info
from halfstep.daemon.config import format_bytes
from halfstep.tools.replay.account import CAUSES, amplification, true_bytes
from halfstep.tools.replay.plan import Plan
from halfstep.tools.replay.run import Result
from halfstep.tools.replay.trace import Trace

# Whose hit ratio the others are set against.
YARDSTICK = "leaf-lru"

Columns = list[str | tuple[str, str]]


@dataclass
class Report:
    """`interrupted`: not everything that was asked for is among the results."""

    plan: Plan
    trace: Trace
    results: list[Result] = field(default_factory=list)
    interrupted: bool = False

    @property
    def sound(self) -> bool:
        """Every block that was read had the bytes that were written."""
        return not any(result.tally.blocks_wrong for result in self.results)

    def to_yardstick(self, result: Result) -> float | None:
        """Its hit ratio against leaf-LRU's at the same capacity, where that was asked for."""
        for other in self.results:
            if other.policy == YARDSTICK and other.capacity == result.capacity and other.blocks_hit:
                return result.hit_ratio / other.hit_ratio
        return None

    def as_json(self) -> dict[str, Any]:
        """The whole document."""
        plan, trace = self.plan, self.trace
        return {
            "header": {
                **build_info(),
                "trace": trace.name,
                "requests": trace.requests,
                "blocks_requested": len(trace.blocks),
                "unique_blocks": trace.unique_blocks,
                "hit_ratio_infinite": trace.hit_ratio_max,
                "trace_seconds": int(trace.times_us[-1]) / 1e6,
                "block_bytes": plan.block_bytes,
                "clock": "real" if plan.real_clock else "simulated",
                "parents": "given" if plan.tell_parents else "withheld",
                "store": str(plan.store) if plan.store else "memory",
                "dram_bytes": plan.dram_bytes,
                "rewrite_share": plan.rewrite_share,
                "seed": plan.seed,
            },
            "interrupted": self.interrupted,
            "results": [self._result(result) for result in self.results],
        }

    def _result(self, result: Result) -> dict[str, Any]:
        tally = result.tally
        by_cause = self._by_cause(result)
        return {
            "policy": result.policy,
            "real_store": result.is_store,
            "capacity": result.capacity_blocks_asked / self.trace.unique_blocks,
            "capacity_asked": result.capacity.text,
            "capacity_blocks_asked": result.capacity_blocks_asked,
            "capacity_blocks": result.capacity_blocks,
            "hit_ratio": result.hit_ratio,
            "hit_ratio_dram": result.hit_ratio_dram,
            "hit_ratio_flash": result.hit_ratio_flash if result.is_store else None,
            "hit_ratio_to_leaf_lru": self.to_yardstick(result),
            "orphan_share": result.orphan_share,
            "write_amplification": amplification(by_cause),
            "rewrite_amplification": amplification(by_cause, ("user", "rewrite")),
            "bytes": by_cause,
            "bytes_on_scaled_device": tally.device_bytes,
            "evictions": tally.evicted,
            "requests": result.requests,
            "blocks_requested": result.blocks_requested,
            "blocks_hit": result.blocks_hit,
            "blocks_written": tally.blocks_written,
            "blocks_rewritten": tally.blocks_rewritten,
            "blocks_refused": tally.blocks_refused,
            "blocks_missed": tally.blocks_missed,
            "blocks_wrong": tally.blocks_wrong,
            "blocks_peak": tally.blocks_peak if result.is_store else None,
            "scaled_device": tally.sizing,
            "seconds": result.seconds,
        }

    def _by_cause(self, result: Result) -> dict[str, int]:
        if result.is_store:
            return true_bytes(result.tally, self.plan.block_bytes)
        return {**dict.fromkeys(CAUSES, 0), "user": result.tally.blocks_written * self.plan.block_bytes}

    def columns(self) -> Columns:
        """Of the table of hits."""
        tiers = ("from dram", "from flash") if self.plan.dram_bytes else ()
        numbers = ("blocks", "hit ratio", *tiers, f"to {YARDSTICK}", "orphans", "(user+rewrite)/user", "evicted", "seconds")
        return ["policy", ("capacity", "right"), *((title, "right") for title in numbers)]

    def rows(self) -> Iterator[list[str]]:
        """One per result."""
        for result in self.results:
            ratio = self.to_yardstick(result)
            rewrite = amplification(self._by_cause(result), ("user", "rewrite"))
            tiers = [f"{result.hit_ratio_dram:.4f}", f"{result.hit_ratio_flash:.4f}"] if result.is_store else ["-", "-"]
            evicted = ", ".join(f"{count:,} {reason}" for reason, count in result.tally.evicted.items() if count)
            yield [
                result.policy,
                result.capacity.text,
                f"{result.capacity_blocks:,}",
                f"{result.hit_ratio:.4f}",
                *(tiers if self.plan.dram_bytes else ()),
                "-" if ratio is None else f"{ratio:.3f}",
                f"{result.orphan_share:.3f}",
                f"{rewrite:.3f}" if result.is_store else "-",
                evicted or "-",
                f"{result.seconds:.1f}",
            ]

    def write_columns(self) -> Columns:
        """Of the table of what was written."""
        numbers = (*CAUSES, "all/user", "of it metadata, padding", "on the scaled device")
        return ["policy", ("capacity", "right"), *((title, "right") for title in numbers)]

    def write_rows(self) -> Iterator[list[str]]:
        """One per result of the real store."""
        for result in filter(lambda result: result.is_store, self.results):
            by_cause = self._by_cause(result)
            total = sum(by_cause.values()) or 1
            beside = (by_cause["metadata"] + by_cause["padding"]) / total
            yield [
                result.policy,
                result.capacity.text,
                *(format_bytes(by_cause[cause]) for cause in CAUSES),
                f"{amplification(by_cause):.3f}",
                f"{beside:.4%}",
                f"{amplification(result.tally.device_bytes):.3f}",
            ]

    def remarks(self) -> Iterator[str]:
        """What a reader has to know to read the tables rightly."""
        trace, plan = self.trace, self.plan
        yield (
            f"{trace.name}: {trace.requests:,} requests for {len(trace.blocks):,} blocks, {trace.unique_blocks:,} of them "
            f"different, in {int(trace.times_us[-1]) / 1e6:,.0f} s; without eviction the hit ratio is {trace.hit_ratio_max:.4f}"
        )
        for result in self.results:
            if result.is_store:
                sizing = result.tally.sizing
                yield (
                    f"{result.policy} {result.capacity.text}: {sizing['segments']} segments of {sizing['blocks_per_segment']} "
                    f"blocks; a block of {format_bytes(plan.block_bytes)} stands as {format_bytes(sizing['block_bytes'])}; at "
                    f"most {result.tally.blocks_peak:,} blocks at once"
                    + (f"; {sizing['dram_blocks']:,} blocks in memory" if sizing["dram_blocks"] else "")
                )
        if any(result.is_store for result in self.results):
            yield "bytes are those of the true blocks; the scaled device's are in --json, and weigh metadata too much"
        for result in self.results:
            tally = result.tally
            where = f"{result.policy} {result.capacity.text}"
            if tally.blocks_wrong:
                yield f"{where}: {tally.blocks_wrong} WRONG blocks"
            if tally.blocks_missed or tally.blocks_refused:
                yield f"{where}: {tally.blocks_missed} blocks could not be read, {tally.blocks_refused} found no room"
        if self.interrupted:
            wanted = len(plan.policies) * len(plan.capacities)
            yield f"interrupted: {len(self.results)} of {wanted} results"
