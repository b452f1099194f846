"""The SPDK target behind a daemon's store: made ready before the store is opened, and again whenever it came back without.

Invariants: a thread of its own, between begin() and end(); serving goes on whatever the target says, and each trouble is told
once.
"""

from __future__ import annotations

import threading
from pathlib import Path

from halfstep.daemon.config import ServeConfig
from halfstep.daemon.log import Log
from halfstep.errors import ConfigError, HalfstepError
from halfstep.io.probe import VHOST_USER
from halfstep.io.spdk.config import read_config
from halfstep.io.spdk.target import State, Target

LOOK_S = 2.0


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
            made = self._target.ensure().made
        except HalfstepError as error:
            told = str(error)
        else:
            told = ""
            if made:
                self._notes.say(f"note       SPDK came back without its store: made again by {', '.join(made)}")
        if told and told != self._told and not self._ended.is_set():
            self._notes.say(f"note       {told}")
        self._told = told

    def _run(self) -> None:
        while not self._ended.wait(self._look_s):
            self.look()
