"""Several clients with the same workload at once, a process each (--numjobs). Run as a program this file is one of them.

The parent writes (method, arguments) of a Driver to a clone's stdin and reads an answer from its stdout, both pickled; the one
that ends its stdin ends the clone. Invariants: a clone's failure is the parent's, with its words; whatever happens, Ctrl-C
included, no clone outlives Clones.
"""

from __future__ import annotations

import os
import pickle
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO, Any, Self

import numpy as np

from halfstep import errors
from halfstep.errors import HalfstepError, InternalError
from halfstep.tools.bench.arrivals import Rate
from halfstep.tools.bench.content import Content, Numbers
from halfstep.tools.bench.driver import Driven, Driver, bench_client
from halfstep.tools.bench.plan import Plan
from halfstep.tools.bench.workload import Layers, Outcome, Side, Timing
from halfstep.tools.together import ending_with_us

_END_S = 10.0
# Between the word and the start, so that it has reached all of them.
_NOTICE_NS = 50_000_000


class Clones:
    """plan.numjobs processes, each a client in the namespace of `url`, on one of `cores` in turn where there are any."""

    own_blocks = False

    def __init__(self, plan: Plan, url: str, block_bytes: int, cores: Sequence[int]) -> None:
        self._plan = plan
        self._url = url
        self._block_bytes = block_bytes
        self._cores = cores
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sound = False

    def begin(self, scenario: str, depth: int, blocks: int, puts: int) -> None:
        """In all of them at once."""
        self._all("begin", scenario, depth, blocks, puts)

    def drive(self, seconds: float) -> Driven:
        """All in the same time, which begins at the same moment; see merged()."""
        return merged(self._all("drive", seconds, time.perf_counter_ns() + _NOTICE_NS))

    def stored(self) -> list[Numbers]:
        """Of all of them."""
        return [numbers for some in self._all("stored") for numbers in some]

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._end)
            for clone in range(self._plan.numjobs):
                # Ctrl-C at a terminal is for the parent, which ends them. When it is killed their pipes end, but who waits for
                # a daemon that is gone, too, does not read his.
                process = subprocess.Popen(
                    ending_with_us([sys.executable, "-P", "-m", "halfstep.tools.bench.clones"]),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
                self._processes.append(process)
                core = self._cores[clone % len(self._cores)] if self._cores else None
                self._say(clone, (self._plan, self._url, self._block_bytes, clone, core))
            self._answers()
            undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._sound = kind is None
        self._end()

    def _all(self, method: str, *arguments: object) -> list[Any]:
        for clone in range(len(self._processes)):
            self._say(clone, (method, arguments))
        return self._answers()

    def _say(self, clone: int, what: object) -> None:
        pipe = self._processes[clone].stdin
        assert pipe is not None
        try:
            pickle.dump(what, pipe)
            pipe.flush()
        except BrokenPipeError:
            raise self._why_ended(clone) from None

    def _answers(self) -> list[Any]:
        """One of each, in their order; the first failure at once, however long the others would take."""
        answers: dict[int, Any] = {}
        with selectors.DefaultSelector() as selector:
            for clone, process in enumerate(self._processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, clone)
            while len(answers) < len(self._processes):
                for key, _ in selector.select():
                    selector.unregister(key.fileobj)
                    answers[key.data] = self._answer(key.data)
        return [answers[clone] for clone in sorted(answers)]

    def _answer(self, clone: int) -> Any:
        pipe = self._processes[clone].stdout
        assert pipe is not None
        try:
            failure, answer = pickle.load(pipe)  # noqa: S301 -- our own process
        except (EOFError, pickle.UnpicklingError):
            raise self._why_ended(clone) from None
        if failure:
            kind, text = failure
            known = getattr(errors, kind, None)
            if isinstance(known, type) and issubclass(known, HalfstepError):
                raise known(f"{self._name(clone)}: {text}")
            raise InternalError(f"{self._name(clone)}: {kind}: {text}")
        return answer

    def _name(self, clone: int) -> str:
        return f"client process {clone + 1} of {self._plan.numjobs}"

    def _why_ended(self, clone: int) -> HalfstepError:
        try:
            status = self._processes[clone].wait(_END_S)
        except subprocess.TimeoutExpired:
            return InternalError(f"{self._name(clone)} neither answers nor ends; start it again")
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return InternalError(f"{self._name(clone)} ended {how} before its time; what it said stands above; start it again")

    def _end(self) -> None:
        for process in self._processes:
            if not self._sound:
                process.terminate()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # what was still to be said has no listener
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()


def merged(driven: Sequence[Driven]) -> Driven:
    """All blocks in the time until the last was done, every latency, those of one after those of another."""
    timings = [one.timing for one in driven]
    outcome = Outcome()
    for timing in timings:
        outcome.add(timing.outcome)
    layers = [timing.layers for timing in timings if timing.layers is not None]
    timing = Timing(
        max(timing.seconds for timing in timings),
        np.concatenate([timing.latencies_us for timing in timings]),
        outcome,
        Layers(np.concatenate([one.first_us for one in layers]), np.concatenate([one.each_us for one in layers]))
        if layers
        else None,
        _merged_sides([timing.reads for timing in timings if timing.reads is not None]),
        _merged_sides([timing.writes for timing in timings if timing.writes is not None]),
    )
    rates = [one.rate for one in driven if one.rate is not None]
    waits = [one.waited_s for one in driven]
    waited_s = None if None in waits else sum(wait for wait in waits if wait is not None)
    return Driven(timing, sum(one.cpu_s for one in driven), _merged_rates(rates), waited_s)


def _merged_sides(sides: Sequence[Side]) -> Side | None:
    if not sides:
        return None
    outcome = Outcome()
    for side in sides:
        outcome.add(side.outcome)
    return Side(np.concatenate([side.latencies_us for side in sides]), outcome)


def _merged_rates(rates: Sequence[Rate]) -> Rate | None:
    """Of all together: who came late for the start had less time, and the time of the others is that of the run."""
    if not rates:
        return None
    counts = ((rate.due, rate.begun, rate.made) for rate in rates)
    return Rate(max(rate.seconds for rate in rates), *(sum(of) for of in zip(*counts, strict=True)))


def _serve(asks: IO[bytes], answers: IO[bytes]) -> None:
    """The clone: until the parent ends."""

    def answer(failure: tuple[str, str] | None, value: object = None) -> None:
        pickle.dump((failure, value), answers)
        answers.flush()

    try:
        plan, url, block_bytes, clone, core = pickle.load(asks)  # noqa: S301 -- our own parent
        if core is not None:
            os.sched_setaffinity(0, {core})
        with bench_client(plan, url) as client:
            driver = Driver(plan, client, Content(block_bytes, plan.seed), clone, plan.numjobs)
            answer(None)
            while True:
                method, arguments = pickle.load(asks)  # noqa: S301 -- our own parent
                answer(None, getattr(driver, method)(*arguments))
    except EOFError:
        return
    except BrokenPipeError:
        os._exit(1)  # the parent is gone; at an ordinary end the interpreter would try to tell it the rest
    except Exception as error:
        answer((type(error).__name__, str(error)))


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
