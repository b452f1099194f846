"""`python -m halfstep.tools.demo`: saves, kills the daemon with SIGKILL, restarts it, restores; the exit status is the verdict.

Everything happens in a directory of its own and on a free port; nothing is left behind.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halfstep.errors import HalfstepError
from halfstep.tools.daemon_process import DaemonProcess

KINDS = {"gqa": "Qwen3 (GQA)", "mla": "DeepSeek-V3 (MLA)"}
WORKER_S = 240
# Four full blocks and a token to go on from, so that two blocks in between can be swapped; and the models' positions.
TOKENS_MIN, TOKENS_MAX = 65, 4096
# What --codec says, and the codec that it means.
CODECS = {"off": "", "exact": "bfx"}
# The smallest store; coded blocks have to be so many times the plain ones that it holds.
FILL_SIZE = "132MiB"
MORE_BLOCKS_MIN = 1.3


@dataclass
class Run:
    """What the processes of one model told, and what was concluded."""

    kind: str
    save: dict[str, Any]
    restore: dict[str, Any] = field(default_factory=dict)
    swap: dict[str, Any] = field(default_factory=dict)
    # Blocks that a full store of FILL_SIZE holds, plain and coded; where the demo runs with a codec.
    plain_blocks: int = 0
    coded_blocks: int = 0

    @property
    def more_blocks(self) -> float:
        """How many times as many coded blocks as plain ones; 0 where that was not asked."""
        return self.coded_blocks / self.plain_blocks if self.plain_blocks else 0.0

    @property
    def identical(self) -> bool:
        """The restored run went on with the very same tokens, and all of its prefix came from the tier."""
        whole = self.restore["hit_blocks"] == self.restore["asked_blocks"] == self.save["saved_blocks"] > 0
        return bool(whole and self.restore["tokens"] == self.save["tokens"])

    @property
    def varied(self) -> bool:
        """The tokens are no constant: a comparison of them can fail."""
        return len(set(self.save["tokens"])) > len(self.save["tokens"]) // 4

    @property
    def swap_differs(self) -> bool:
        """Two blocks in each other's place give other tokens: the comparison does see a wrong cache."""
        return bool(self.swap["hit_blocks"] == self.swap["asked_blocks"] and self.swap["tokens"] != self.save["tokens"])


def worker(role: str, kind: str, url: str, tokens: int, new_tokens: int, codec: str) -> dict[str, Any]:
    """Runs one client process. Errors: SystemExit with what it said."""
    command = [sys.executable, "-m", "halfstep.tools.demo.worker", role, kind, url, str(tokens), str(new_tokens), codec]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WORKER_S, check=False)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{role} of {KINDS[kind]} did not end within {WORKER_S} s; is the machine very busy?") from None
    if done.returncode != 0:
        raise SystemExit(f"{role} of {KINDS[kind]} failed:\n{done.stderr[-4000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def held_blocks(kind: str, tokens: int, codec: str) -> int:
    """How many of the model's blocks the smallest store holds when it is full."""
    with (
        tempfile.TemporaryDirectory(prefix="halfstep-demo-") as directory,
        DaemonProcess(Path(directory), "--size", FILL_SIZE, "--arena", "64MiB") as process,
    ):
        return int(worker("fill", kind, process.url, tokens, 1, codec)["held_blocks"])


def run(tokens: int, new_tokens: int, codec: str) -> tuple[list[Run], dict[str, Any]]:
    """The whole story; says each step as it begins."""
    runs: list[Run] = []
    with (
        tempfile.TemporaryDirectory(prefix="halfstep-demo-") as directory,
        DaemonProcess(Path(directory), "--size", "512MiB", "--arena", "128MiB") as process,
    ):
        say(f"daemon at {process.url}, {process.facts['engine']['name']} engine")
        for kind, name in KINDS.items():
            say(f"{name}: a process prefills {tokens} tokens and saves them")
            runs.append(Run(kind, worker("save", kind, process.url, tokens, new_tokens, codec)))
        say("kill -9 of the daemon")
        process.end(signal.SIGKILL)
        process.start()
        recovery = process.facts["recovery"]
        say(f"restarted: {recovery['blocks']} blocks recovered in {recovery['micros'] / 1e3:.0f} ms")
        for one in runs:
            say(f"{KINDS[one.kind]}: another process restores and goes on")
            one.restore = worker("restore", one.kind, process.url, tokens, new_tokens, codec)
            say(f"{KINDS[one.kind]}: a third one restores with two blocks swapped")
            one.swap = worker("swap", one.kind, process.url, tokens, new_tokens, codec)
        status = process.end(signal.SIGTERM)
        if status != 0:
            raise SystemExit(f"the daemon ended with status {status} on SIGTERM; 0 was expected")
        facts = process.facts
    for one in runs if codec else ():
        say(f"{KINDS[one.kind]}: a store of {FILL_SIZE} is filled with plain blocks, another one with coded blocks")
        one.plain_blocks = held_blocks(one.kind, tokens, "")
        one.coded_blocks = held_blocks(one.kind, tokens, codec)
    return runs, facts


def table(runs: list[Run]) -> list[tuple[str, list[str]]]:
    """Rows of the report: a label and a cell per model."""

    def row(label: str, cell: Any) -> tuple[str, list[str]]:
        return label, [cell(one) for one in runs]

    return [
        row("", lambda r: KINDS[r.kind]),
        row("prompt tokens", lambda r: f"{r.save['prompt_tokens']}"),
        row("blocks restored / saved", lambda r: f"{r.restore['hit_blocks']} / {r.save['saved_blocks']}"),
        row("bytes", lambda r: f"{r.restore['bytes']:,}"),
        row("save", lambda r: f"{r.save['save_bytes_per_s'] / 1e9:.2f} GB/s"),
        row("restore", lambda r: f"{r.restore['restore_bytes_per_s'] / 1e9:.2f} GB/s"),
        row("prefill without the tier", lambda r: f"{r.save['prefill_s'] * 1e3:.0f} ms"),
        row("prefill while saving", lambda r: f"{r.save['prefill_with_save_s'] * 1e3:.0f} ms"),
        row("prefill with the tier", lambda r: f"{r.restore['prefill_with_tier_s'] * 1e3:.0f} ms"),
        row("tokens identical", lambda r: "yes" if r.identical else "NO"),
        row("swapped blocks give other tokens", lambda r: "yes" if r.swap_differs else "NO"),
        *(
            [
                row(f"blocks in {FILL_SIZE}, plain / coded", lambda r: f"{r.plain_blocks} / {r.coded_blocks}"),
                row("times as many", lambda r: f"{r.more_blocks:.2f}"),
            ]
            if any(one.plain_blocks for one in runs)
            else []
        ),
    ]


def verdict(runs: list[Run]) -> list[str]:
    """What is wrong, one sentence each; empty when all is well."""
    wrong = []
    for one in runs:
        name = KINDS[one.kind]
        if not one.varied:
            wrong.append(f"{name}: the generated tokens hardly vary, so comparing them proves nothing")
        if not one.identical:
            wrong.append(f"{name}: the restored run differs ({one.restore['reason'] or 'other tokens'})")
        if not one.swap_differs:
            wrong.append(f"{name}: swapped blocks went unnoticed ({one.swap['reason'] or 'the same tokens'})")
        if one.restore["decode_failures"]:
            wrong.append(f"{name}: {one.restore['decode_failures']} parts did not decode")
        if one.plain_blocks and one.more_blocks < MORE_BLOCKS_MIN:
            wrong.append(f"{name}: {one.more_blocks:.2f} times the blocks in the same store, less than {MORE_BLOCKS_MIN}")
        if one.save["refused_blocks"]:
            wrong.append(f"{name}: {one.save['refused_blocks']} blocks were not saved ({one.save['reason']})")
    return wrong


def remarks(runs: list[Run]) -> Iterator[str]:
    """Where the numbers need words."""
    for one in runs:
        without, with_tier = one.save["prefill_s"], one.restore["prefill_with_tier_s"]
        if with_tier < without:
            yield f"{KINDS[one.kind]}: the tier saved {1 - with_tier / without:.0%} of the prefill."
        else:
            yield f"{KINDS[one.kind]}: too small a model for the tier to win time: its prefill costs less than a round trip."
    yield "The models are tiny and random; what is shown is that the bytes are right, not how fast a real model gets."


def say(text: str) -> None:
    """One step, as it begins; on stderr, so that --json is alone on stdout."""
    print(f"demo: {text}", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """0 when the tokens are identical and swapped blocks are noticed, for both models; 1 otherwise."""
    parser = argparse.ArgumentParser(prog="halfstep.tools.demo", description=__doc__)
    parser.add_argument("--tokens", type=int, default=1000, help="prompt length (default 1000)")
    parser.add_argument("--new-tokens", type=int, default=32, help="tokens to generate (default 32)")
    parser.add_argument("--codec", choices=CODECS, default="off", help="exact: blocks are stored coded (default off)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args(argv)
    if options.tokens < TOKENS_MIN or options.new_tokens < 1 or options.tokens + options.new_tokens > TOKENS_MAX:
        parser.error(f"--tokens must be at least {TOKENS_MIN}, --new-tokens at least 1, both together at most {TOKENS_MAX}")
    started = time.perf_counter()
    runs, facts = run(options.tokens, options.new_tokens, CODECS[options.codec])
    wrong = verdict(runs)
    if options.json:
        results = [
            one.__dict__ | {"identical": one.identical, "swap_differs": one.swap_differs, "more_blocks": one.more_blocks}
            for one in runs
        ]
        print(json.dumps({"results": results, "daemon": facts, "wrong": wrong}))
        return 1 if wrong else 0
    print()
    for label, cells in table(runs):
        print(f"{label:<38}" + "".join(f"{cell:>20}" for cell in cells))
    print()
    for remark in remarks(runs):
        print(remark)
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    print(f"{'all is well' if not wrong else 'FAILED'}, {time.perf_counter() - started:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except HalfstepError as error:
        sys.exit(f"demo: {error}")
