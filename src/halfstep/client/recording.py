"""Whether the clients of a process are recorded, and where: $HALFSTEP_RECORD, asked when a client is made.

Thread: any.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from halfstep.record import VARIABLE, checked_folder

if TYPE_CHECKING:
    from halfstep.client.recorder import Recorder
    from halfstep.client.tally import Tally


# Of this process, and what named its folder then.
_recorder: Recorder | None = None
_recorded_path = ""
_left_out = ContextVar("halfstep_left_out", default=False)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Clients that are made within count nothing: an operator's command is no load of the tier."""
    before = _left_out.set(True)
    try:
        yield
    finally:
        _left_out.reset(before)


def tally_of(namespace: str, mode: str) -> Tally | None:
    """Where a client of this process counts; None: nowhere.

    Errors: ConfigError ($HALFSTEP_RECORD names no folder). One that has gone since the process's first client is no error: an
    engine that opens another client goes on, and the recorder says that nothing is recorded.
    """
    path = os.environ.get(VARIABLE)
    if not path or _left_out.get() or mode == "off":
        return None
    # Here: who records nothing does not need it.
    from halfstep.client.recorder import Recorder

    global _recorder, _recorded_path
    recorder = _recorder
    if recorder is None or _recorded_path != path:
        recorder = Recorder(checked_folder(path))
        _recorder, _recorded_path = recorder, path
    return recorder.tally(namespace, mode)
