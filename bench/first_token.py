#!/usr/bin/env python3
"""Question: is restoring a prompt's KV cache faster than computing it, and what does a daemon that does not answer cost?

A model of Llama's shape with more than 100 million random parameters runs on this machine's CPU, in the dtype that it computes
faster, so that computing has the advantage; with --device cuda on its first GPU, in bfloat16. --model 8b has the shape of
Llama 3 of 8 billion parameters, 32b that of Qwen 2.5 of 32 billion. The time to the first token is that from the prompt's ids
to the most likely next token. Six ways, in turns, in an order that is drawn for each round:

    computed   one forward over the whole prompt, without the tier
    memory     all full blocks are restored from the daemon's memory, the rest is computed
    flash      the same with blocks that are on flash alone: the daemon was restarted
    stopped    the daemon is there and does not answer (SIGSTOP): the match misses its deadline, everything is computed
    cut        it stops between match and get: the get misses its deadline, everything is computed
    gone       it was killed: everything is computed

Each run has to show what it claims. The daemon's counters say where blocks came from, the kernel's say that the drive was read,
a restored cache is compared with the saved one bit for bit, and all ways have to end in the same token. The prompt's last token
is chosen so that this shows something: the next token is clearly ahead of the second, and is another one without the restored
blocks. A restore that is late although the daemon answers is counted and made again. Exit status 1 where a token or a byte
differs, or where restoring is not faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from script import header, positive, run, spread, spread_text

from halfstep.daemon.units import KIB, MIB
from halfstep.tools.imports import signals_wait
from halfstep.tools.picture import check_picture, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from tiered_model import Prompt, Run

TOKENS_MAX, BLOCK_TOKENS_MAX, DEADLINE_MS_MAX = 32_768, 256, 60_000
DTYPES = ("auto", "float32", "bfloat16")

WAYS = {
    "computed": "computed, no tier",
    "memory": "restored from memory",
    "flash": "restored from flash",
    "stopped": "daemon stopped",
    "cut": "daemon stopped after match",
    "gone": "daemon killed",
}


@dataclass(frozen=True)
class Verdict:
    """What one prompt came to. rounds: of each way one run."""

    prompt: Prompt
    rounds: list[dict[str, Run]]
    judged: bool

    @property
    def ways(self) -> list[str]:
        """That were measured, in the order of WAYS."""
        return [way for way in WAYS if way in self.rounds[0]]

    def ms(self, way: str) -> list[float]:
        return [one[way].ms for one in self.rounds]

    def restore_ms(self, way: str) -> list[float]:
        return [one[way].restore_ms for one in self.rounds]

    def of_computed(self, way: str) -> list[float]:
        """The time of each round, of that of the same round without the tier."""
        return [one[way].ms / one["computed"].ms for one in self.rounds]

    def more_ms(self, way: str) -> list[float]:
        """What each round cost over computing in the same round."""
        return [one[way].ms - one["computed"].ms for one in self.rounds]

    @property
    def wrong(self) -> list[str]:
        """What differs, one sentence each."""
        found = []
        for number, runs in enumerate(self.rounds):
            for one in runs.values():
                where = f"{self.prompt.tokens} tokens, round {number + 1}, {WAYS[one.way]}"
                if one.token != self.prompt.token:
                    found.append(f"{where}: token {one.token}, not {self.prompt.token}")
                if one.bytes_same is False:
                    found.append(f"{where}: the restored bytes differ from the saved ones")
        return found

    @property
    def slower(self) -> list[str]:
        """Ways of restoring that are not faster than computing."""
        restoring = [way for way, one in self.rounds[0].items() if one.hit_blocks]
        return [way for way in restoring if self.judged and statistics.median(self.of_computed(way)) >= 1]

    def as_json(self) -> dict[str, Any]:
        prompt = self.prompt
        about = {"tokens": prompt.tokens, "blocks": prompt.blocks, "bytes": prompt.bytes, "token": prompt.token}
        ways = {
            way: {
                "ms": spread(self.ms(way)),
                "of_computed": spread(self.of_computed(way)),
                "restore_ms": spread(self.restore_ms(way)),
                "runs": [asdict(one[way]) for one in self.rounds],
            }
            for way in self.ways
        }
        return {**about, "margin": prompt.margin, "logits_spread": prompt.spread, "ways": ways}

    def table(self) -> str:
        prompt = self.prompt
        lines = [
            f"{prompt.tokens:,} tokens; {prompt.blocks} blocks, {prompt.bytes / MIB:.1f} MiB; medians (lowest to highest)",
            f"{'':<28}{'first token, ms':>26}{'of computed':>24}{'in the tier, ms':>28}{'blocks':>8}{'from flash':>12}",
        ]
        for way in self.ways:
            title, runs = WAYS[way], [one[way] for one in self.rounds]
            read = max((one.counted.gets_read_bytes for one in runs if one.counted), default=0)
            tier = "" if way == "computed" else spread_text(self.restore_ms(way), ",.1f")
            lines.append(
                f"{title:<28}{spread_text(self.ms(way), ',.0f'):>26}{spread_text(self.of_computed(way), '.3f'):>24}"
                f"{tier:>28}{runs[0].hit_blocks:>8}{f'{read / MIB:.1f} MiB':>12}"
            )
        if late := sum(one.late for runs in self.rounds for one in runs.values()):
            lines.append(f"{late} restores were late though the daemon answers, and were made again: the machine is busy")
        return "\n".join(lines)


def plot(verdicts: Sequence[Verdict], title: str, path: Path) -> None:
    """A bar a way, a column a prompt: the time in the tier and that of computing, with the spread of their sum."""
    # Without pyplot: no display, no state of the process.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text as text: a third of the bytes of one that draws each letter.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure = Figure(figsize=(4.8 * len(verdicts) + 1.2, 3.2), layout="constrained")
        columns = figure.subplots(1, len(verdicts), squeeze=False, sharey=True)[0]
        for axes, verdict in zip(columns, verdicts, strict=True):
            _bars(axes, verdict)
        ways = verdicts[0].ways
        columns[0].set_yticks(range(len(ways)), [WAYS[way] for way in ways])
        columns[0].invert_yaxis()
        columns[0].legend(fontsize="small")
        figure.suptitle(title, fontsize="medium")
        save_picture(figure, path, "picture")


def _bars(axes: Axes, verdict: Verdict) -> None:
    for number, way in enumerate(verdict.ways):
        times = spread(verdict.ms(way))
        median = times["median"]
        tier = min(statistics.median(verdict.restore_ms(way)), median) if way != "computed" else 0.0
        axes.barh(number, tier, color="tab:orange", label="in the tier" if number == 0 else None)
        axes.barh(number, median - tier, left=tier, color="tab:blue", label="computing" if number == 0 else None)
        whiskers = [[median - times["lowest"]], [times["highest"] - median]]
        axes.errorbar(median, number, xerr=whiskers, color="black", capsize=2, linewidth=0.8)
        axes.annotate(f" {median:,.0f}", (times["highest"], number), va="center", fontsize="small")
    axes.set_title(f"{verdict.prompt.tokens:,} tokens", fontsize="medium")
    axes.set_xlabel("ms to the first token")
    axes.margins(x=0.15)
    axes.set_xlim(left=0)


def milliseconds(text: str) -> float:
    """Of a deadline, as an argument's type."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= DEADLINE_MS_MAX:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of milliseconds from 1 to {DEADLINE_MS_MAX}")
    return value


def understood() -> argparse.Namespace:
    """The arguments. What cannot be measured is refused before a model is made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=positive, nargs="+", default=[1000, 4000], help="of each prompt (1000 4000)")
    parser.add_argument("--rounds", type=positive, default=5, help="of all ways in turns (5)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="those alone; computed is always (all)")
    parser.add_argument("--block-tokens", type=positive, default=16, help="of a block (16)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what computes (cpu)")
    parser.add_argument("--model", choices=("140m", "8b", "32b"), default="140m", help="its size (140m)")
    parser.add_argument("--transport", choices=("tcp", "shm"), default="tcp", help="between client and daemon (tcp)")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="auto: the one that computes faster here")
    # What connect() has without being told.
    parser.add_argument("--match-deadline-ms", type=milliseconds, default=20.0, help="of a match: the client's (20)")
    parser.add_argument("--deadline-ms", type=milliseconds, default=2000.0, help="of a get: the client's (2000)")
    parser.add_argument("--directory", type=Path, help="of the store: on the drive in question")
    parser.add_argument("--small", action="store_true", help="a tiny model, for a test of this script: no time is judged")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the table: .svg or .png")
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    options = parser.parse_args()
    if options.block_tokens > BLOCK_TOKENS_MAX:
        parser.error(f"--block-tokens {options.block_tokens}: must be 1 to {BLOCK_TOKENS_MAX}")
    for tokens in options.tokens:
        if not options.block_tokens < tokens <= TOKENS_MAX:
            bounds = f"{options.block_tokens + 1}, a full block and a token, to {TOKENS_MAX}"
            parser.error(f"--tokens {tokens}: must be {bounds}")
    if len(set(options.tokens)) < len(options.tokens):
        parser.error("--tokens: each length once")
    if options.picture:
        check_picture(options.picture, "picture")
    return options


def main() -> int:
    options = understood()
    try:
        with signals_wait():
            from tiered_model import cuda_seen, measure  # here: nothing that was refused above waits for torch
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        remedy = "in the checkout of Halfstep: pip install '.[transformers]', or `make demo` once"
        raise SystemExit(f"{error.name}: not installed; {remedy}") from None
    if options.device == "cuda" and not cuda_seen():
        raise SystemExit("--device cuda: torch sees no CUDA device here")
    head = header(
        rounds=options.rounds,
        block_tokens=options.block_tokens,
        match_deadline_ms=options.match_deadline_ms,
        deadline_ms=options.deadline_ms,
    )
    verdicts = [
        Verdict(prompt, rounds, not options.small)
        for prompt, rounds in measure(options, [way for way in WAYS if way in {"computed", *options.ways}], head)
    ]
    head["load_average_end"] = os.getloadavg()[0]
    where = head["gpu"] or f"{head['threads']} threads"
    about = f"{head['parameters'] / 1e6:,.0f} million parameters, {head['dtype']}, {where}"
    if options.picture:
        plot(verdicts, f"{about}; {head['cpu']}, {head['device']}", options.picture)
    if options.json:
        print(json.dumps({"header": head, "prompts": [verdict.as_json() for verdict in verdicts]}))
    else:
        print(f"halfstep {head['version']}, commit {head['commit']}; {head['cpu']}, kernel {head['kernel']}, {head['device']}")
        print(f"{about}, torch {head['torch']}; {head['kv_bytes_per_token'] / KIB:g} KiB of KV a token, {head['path']}")
        for verdict in verdicts:
            print(verdict.table())
        print(f"load {head['load_average']:.1f} at the start, {head['load_average_end']:.1f} at the end")
        if not any(verdict.wrong for verdict in verdicts):
            print("tokens identical in all ways; restored bytes identical to the saved ones")
    wrong = [sentence for verdict in verdicts for sentence in verdict.wrong]
    wrong += [
        f"{verdict.prompt.tokens} tokens, {WAYS[way]}: not faster than computing"
        for verdict in verdicts
        for way in verdict.slower
    ]
    for sentence in wrong:
        print(f"WRONG: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    run(main)
