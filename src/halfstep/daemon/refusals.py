"""What the native core refuses, as the error of whoever can act."""

from __future__ import annotations

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


def error_of(refusal: Exception) -> BaseException:
    """Of a `StartError` or a `StoreError`: (name of the code, sentence). A stop that was asked for is a KeyboardInterrupt."""
    code, sentence = refusal.args
    if code == "cancelled":
        return KeyboardInterrupt()
    return _ERRORS.get(code, InternalError)(sentence)
