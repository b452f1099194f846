"""The SPDK target behind a daemon's store: made ready before the store is opened, and again whenever it came back without.

Invariants: a thread of its own, between begin() and end(); serving goes on whatever the target says, and each trouble is told
once. samples() never waits for the target: it has what the last look saw. Any thread may ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from halfstep.daemon.config import ServeConfig
from halfstep.daemon.log import Log
from halfstep.errors import ConfigError, HalfstepError
from halfstep.io.probe import VHOST_USER
from halfstep.io.spdk.config import read_config
from halfstep.io.spdk.target import State, Target

LOOK_S = 2.0

# As `_shard.Server.metrics()` has them: name, labels, value.
Sample = tuple[str, Mapping[str, str], float]
Snapshot = Callable[[], Mapping[str, Any]]


def ready_target(config: ServeConfig) -> Target | None:
    """The target of a daemon that names one, with all that its file wants. Errors: ConfigError, Unavailable, ProtocolError."""
    if not config.spdk:
        return None
    target = Target(read_config(Path(config.spdk)))
    check_socket(str(config.store), target.ensure())
    return target


def check_socket(store: str, state: State) -> None:
    """Errors: ConfigError where the store is on another socket than the controller's."""
    named = store.removeprefix(VHOST_USER)
    if state.socket and Path(state.socket).resolve() != Path(named).resolve():
        raise ConfigError(
            f"store={store}: SPDK's controller {state.controller} listens at {state.socket}; name that, or another controller"
        )


class Keeper:
    """Looks at the target every LOOK_S, and makes what is missing."""

    def __init__(self, target: Target, notes: Log, look_s: float = LOOK_S) -> None:
        self._target = target
        self._notes = notes
        self._look_s = look_s
        self._told = ""
        self._seen: Mapping[str, Any] = {}  # the drive's words at the last look that it answered
        self._answers = True  # it was made ready before
        self._made = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="halfstep-spdk", daemon=True)

    def begin(self) -> None:
        """A process that has no thread left serves all the same, and says so."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._notes.say(
                f"note       {error}: an SPDK target that restarts is not set up again; raise ulimit -u or TasksMax="
            )

    def end(self) -> None:
        """One that waits for a target is left behind."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(1.0)

    def look(self) -> None:
        """Once; what was made, or is wrong, is told."""
        try:
            state = self._target.ensure()
        except HalfstepError as error:
            told = str(error)
            self._answers = False
        else:
            told = ""
            if state.made:
                self._notes.say(f"note       SPDK came back without its store: made again by {', '.join(state.made)}")
                self._made += 1
            self._hear(state.drive)
            self._answers = True
        if told and told != self._told and not self._ended.is_set():
            self._notes.say(f"note       {told}")
        self._told = told

    def _hear(self, drive: Mapping[str, Any]) -> None:
        """Errors of its media that are new are told."""
        before, now = (_number(words, "media_errors") for words in (self._seen, drive))
        if self._seen and now is not None and now > (before or 0):
            self._notes.say(
                f"note       SPDK's drive: {now:.0f} media errors, {now - (before or 0):.0f} of them new; plan its end"
            )
        if drive:
            self._seen = drive

    def samples(self) -> dict[str, list[Sample]]:
        """Counters and gauges, for the metrics port."""
        counters: list[Sample] = [("halfstep_spdk_made_again_total", {}, float(self._made))]
        gauges: list[Sample] = [("halfstep_spdk_answers", {}, float(self._answers))]
        if (errors := _number(self._seen, "media_errors")) is not None:
            counters.append(("halfstep_spdk_drive_media_errors_total", {}, errors))
        if (used := _number(self._seen, "percentage_used")) is not None:
            gauges.append(("halfstep_spdk_drive_used_ratio", {}, used / 100))
        return {"counters": counters, "gauges": gauges}

    def beside(self, snapshot: Snapshot) -> Snapshot:
        """A daemon's own samples, and these."""

        def both() -> Mapping[str, Any]:
            own, ours = snapshot(), self.samples()
            return {**own, **{kind: [*own[kind], *samples] for kind, samples in ours.items()}}

        return both

    def _run(self) -> None:
        while not self._ended.wait(self._look_s):
            self.look()


def _number(words: Mapping[str, Any], key: str) -> float | None:
    """What another process says is not trusted to be a number."""
    told = words.get(key)
    return float(told) if isinstance(told, int) and not isinstance(told, bool) and told >= 0 else None
