"""Results of a replay as JSON and as tables, with their reservations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from halfstep import build_info
from halfstep.daemon.units import format_bytes
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
            same = other.capacity == result.capacity and other.block == result.block
            if other.policy == YARDSTICK and same and other.blocks_hit:
                return result.hit_ratio / other.hit_ratio
        return None

    def to_plain(self, result: Result) -> float | None:
        """A coded result's hit ratio against that of plain blocks in the same bytes."""
        for other in self.results:
            same = other.policy == result.policy and other.capacity == result.capacity
            if same and result.block.coded and not other.block.coded and other.blocks_hit:
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
                "codec_ratio": plan.codec_ratio,
                "flash_ratio": plan.stored[-1].flash_ratio,
                "dram_bytes": plan.dram_bytes,
                "rewrite_share": plan.rewrite_share,
                "hints": list(plan.hints),
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
            "codec_ratio": result.block.ratio,
            "stored_bytes": result.block.stored_bytes,
            "extent_bytes": result.block.extent_bytes,
            "capacity": result.capacity_blocks_asked / self.trace.unique_blocks,
            "capacity_asked": result.capacity.text,
            "capacity_blocks_asked": result.capacity_blocks_asked,
            "capacity_blocks": result.capacity_blocks,
            "hit_ratio": result.hit_ratio,
            "hit_ratio_dram": result.hit_ratio_dram,
            "hit_ratio_flash": result.hit_ratio_flash if result.is_store else None,
            "hit_ratio_to_leaf_lru": self.to_yardstick(result),
            "hit_ratio_to_plain": self.to_plain(result),
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
            "blocks_overtaken": tally.blocks_overtaken,
            "blocks_wrong": tally.blocks_wrong,
            "blocks_peak": tally.blocks_peak if result.is_store else None,
            "scaled_device": tally.sizing,
            "seconds": result.seconds,
        }

    def _by_cause(self, result: Result) -> dict[str, int]:
        if result.is_store:
            return true_bytes(result.tally, result.block)
        return {**dict.fromkeys(CAUSES, 0), "user": result.tally.blocks_written * result.block.stored_bytes}

    def columns(self) -> Columns:
        """Of the table of hits."""
        tiers = ("from dram", "from flash") if self.plan.dram_bytes else ()
        coded = ("to plain",) if self._has_codec else ()
        numbers = (
            "blocks",
            "hit ratio",
            *coded,
            *tiers,
            f"to {YARDSTICK}",
            "orphans",
            "(user+rewrite)/user",
            "evicted",
            "seconds",
        )
        return [*self._named_columns(), *((title, "right") for title in numbers)]

    @property
    def _has_codec(self) -> bool:
        return len(self.plan.stored) > 1

    def _named_columns(self) -> Columns:
        """Which result a row tells of."""
        named: Columns = ["policy", ("capacity", "right")]
        return [*named, ("codec", "right")] if self._has_codec else named

    def _name(self, result: Result) -> list[str]:
        """The cells of those."""
        codec = [f"{result.block.ratio:g}" if result.block.coded else "none"] if self._has_codec else []
        return [result.policy, result.capacity.text, *codec]

    def rows(self) -> Iterator[list[str]]:
        """One per result."""
        for result in self.results:
            ratio = self.to_yardstick(result)
            rewrite = amplification(self._by_cause(result), ("user", "rewrite"))
            tiers = [f"{result.hit_ratio_dram:.4f}", f"{result.hit_ratio_flash:.4f}"] if result.is_store else ["-", "-"]
            evicted = ", ".join(f"{count:,} {reason}" for reason, count in result.tally.evicted.items() if count)
            to_plain = self.to_plain(result)
            yield [
                *self._name(result),
                f"{result.capacity_blocks:,}",
                f"{result.hit_ratio:.4f}",
                *(["-" if to_plain is None else f"{to_plain:.3f}"] if self._has_codec else ()),
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
        return [*self._named_columns(), *((title, "right") for title in numbers)]

    def write_rows(self) -> Iterator[list[str]]:
        """One per result of the real store."""
        for result in filter(lambda result: result.is_store, self.results):
            by_cause = self._by_cause(result)
            total = sum(by_cause.values()) or 1
            beside = (by_cause["metadata"] + by_cause["padding"]) / total
            yield [
                *self._name(result),
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
        if self._has_codec:
            coded = plan.stored[-1]
            yield (
                f"codec {plan.codec_ratio:g}: a block of {format_bytes(plan.block_bytes)} takes "
                f"{format_bytes(coded.extent_bytes)} on flash, trailer and padding included; where a plain one stands, "
                f"{coded.flash_ratio:.3f} of them do"
            )
        for result in self.results:
            if result.is_store:
                sizing = result.tally.sizing
                yield (
                    f"{' '.join(self._name(result))}: {sizing['segments']} segments of {sizing['blocks_per_segment']} "
                    f"blocks; a block of {format_bytes(plan.block_bytes)} stands as {format_bytes(sizing['block_bytes'])}; at "
                    f"most {result.tally.blocks_peak:,} blocks at once"
                    + (f"; {sizing['dram_blocks']:,} blocks in memory" if sizing["dram_blocks"] else "")
                )
        if any(result.is_store for result in self.results):
            yield "bytes are those of the true blocks; the scaled device's are in --json, and weigh metadata too much"
        for result in self.results:
            tally = result.tally
            where = " ".join(self._name(result))
            if tally.blocks_wrong:
                yield f"{where}: {tally.blocks_wrong} WRONG blocks"
            if tally.blocks_missed or tally.blocks_refused:
                yield f"{where}: {tally.blocks_missed} blocks could not be read, {tally.blocks_refused} found no room"
            if tally.blocks_overtaken:
                yield f"{where}: {tally.blocks_overtaken} blocks were evicted between match and read of their request: misses"
        if plan.hints:
            yield f"hints: {', '.join(plan.hints)}, taken from the whole trace, its future included: what they bring at most"
        if self.interrupted:
            yield f"interrupted: {len(self.results)} of {plan.results} results"
