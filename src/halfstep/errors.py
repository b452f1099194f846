"""Errors, by who can act on them.

A miss, a late answer, a throttle and a rejection are none of them: they are values in results. What is raised is either a
mistake in how the library was called, or a call that has no result to put the truth into.
"""

from __future__ import annotations


class HalfstepError(Exception):
    """The base of all errors raised here."""


class ConfigError(HalfstepError, ValueError):
    """The operator or the caller: a wrong argument, a refused layout, an unknown namespace, a closed client."""


class Unavailable(HalfstepError):
    """Retry: no daemon answered a call that needs one (`connect(required=True)`, `stat`, `list`, namespaces)."""


class DeviceError(HalfstepError):
    """Replace: a disk, or what stands for one."""


class ProtocolError(HalfstepError):
    """The peer: what it said does not follow the protocol."""


class InternalError(HalfstepError):
    """Us: a mistake in this library. Please report it."""
