"""Halfstep: KV cache of large language models on flash nodes.

    client = halfstep.connect("halfstep://127.0.0.1:7350/default")
    client.put([b"key"], block)
    client.get([b"key"], target).ok

Importing it needs numpy alone; daemon, command line and connectors are imported by name.
"""

import importlib
from typing import TYPE_CHECKING

import halfstep.address_space  # noqa: F401 - before anything that imports numpy
from halfstep._peer import build_info
from halfstep.errors import ConfigError, DeviceError, HalfstepError, InternalError, ProtocolError, Unavailable
from halfstep.layout import Group, Layout, component

if TYPE_CHECKING:
    from halfstep.client import (
        PARENT_ROOT,
        PARENT_UNKNOWN,
        Addresses,
        Answer,
        ChangeResult,
        Client,
        ClientFacts,
        DeleteResult,
        Entry,
        Event,
        GetResult,
        MatchResult,
        Namespace,
        PartDescriptor,
        PrefetchResult,
        PutResult,
        Queue,
        Region,
        ReleaseResult,
        Rows,
        Section,
        Session,
        ShardLoad,
        Template,
        Ticket,
    )
    from halfstep.client.connect import connect

__version__: str = build_info()["version"]

__all__ = [
    "PARENT_ROOT",
    "PARENT_UNKNOWN",
    "Addresses",
    "Answer",
    "ChangeResult",
    "Client",
    "ClientFacts",
    "ConfigError",
    "DeleteResult",
    "DeviceError",
    "Entry",
    "Event",
    "GetResult",
    "Group",
    "HalfstepError",
    "InternalError",
    "Layout",
    "MatchResult",
    "Namespace",
    "PartDescriptor",
    "PrefetchResult",
    "ProtocolError",
    "PutResult",
    "Queue",
    "Region",
    "ReleaseResult",
    "Rows",
    "Section",
    "Session",
    "ShardLoad",
    "Template",
    "Ticket",
    "Unavailable",
    "__version__",
    "build_info",
    "component",
    "connect",
]


if not TYPE_CHECKING:  # there every name is known

    def __getattr__(name: str) -> object:
        """The client and numpy are 0.4 s of CPU time, and a daemon and most commands need neither."""
        if name not in __all__ and name != "client":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        client = importlib.import_module("halfstep.client")
        globals().update({known: getattr(client, known) for known in client.__all__ if known in __all__})
        return client if name == "client" else globals()[name]


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
