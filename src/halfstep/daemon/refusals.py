"""Refusals of the native core as exceptions, by who can act, with the remedy that the core cannot know."""

from __future__ import annotations

from pathlib import Path

from halfstep.errors import ConfigError, DeviceError, HalfstepError, InternalError, Unavailable

# By the native core's code.
_ERRORS: dict[str, type[HalfstepError]] = {
    "invalid": ConfigError,
    "not_found": ConfigError,
    "too_large": ConfigError,
    "unsupported": ConfigError,
    "no_space": ConfigError,
    "throttled": Unavailable,
    "present": Unavailable,
    "io_error": DeviceError,
    "corrupt": DeviceError,
}


def error_of(refusal: Exception, store: Path | None = None) -> BaseException:
    """Of a `StartError` or a `StoreError`: (name of the code, sentence). A stop that was asked for is a KeyboardInterrupt.

    store: what was opened; a sentence about its header that does not name it is put behind its name.
    """
    code, sentence = refusal.args
    if "store header" in sentence and store is not None and str(store) not in sentence:
        sentence = f"{store}: {sentence}"
    if sentence.startswith("unix:") and sentence.endswith("another path"):
        # There is one by default, whatever --listen names.
        sentence += " with --unix, or none"
    if "ECANCELED" in sentence:
        # What io_uring answers where the kernel could start no worker for a request that blocks.
        sentence += (
            "; io_uring could start no thread: raise the limit of processes (ulimit -u, TasksMax=), or take --engine pread"
        )
    if sentence.endswith("EROFS (Read-only file system)"):
        sentence += "; mount it for writing, or name another store: serving writes"
    if code == "cancelled":
        return KeyboardInterrupt()
    return _ERRORS.get(code, InternalError)(sentence)
