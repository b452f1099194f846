"""Halfstep: KV cache of large language models on flash nodes.

    client = halfstep.connect("halfstep://127.0.0.1:7350/default")
    client.put([b"key"], block)
    client.get([b"key"], target).ok

Importing it needs numpy alone; daemon, command line and connectors are imported by name.
"""

import halfstep.address_space  # noqa: F401 - before anything that imports numpy
from halfstep._peer import build_info
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
    connect,
)
from halfstep.errors import ConfigError, DeviceError, HalfstepError, InternalError, ProtocolError, Unavailable
from halfstep.layout import Group, Layout, component

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
