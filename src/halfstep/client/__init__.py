"""The client: connect, batches, results, queues, registered memory."""

from halfstep.client.arrays import PARENT_ROOT, PARENT_UNKNOWN
from halfstep.client.client import Client
from halfstep.client.connect import connect
from halfstep.client.entries import Entry, Namespace
from halfstep.client.facts import ClientFacts, CodingFacts, GpuFacts, ShardLoad
from halfstep.client.queue import Queue
from halfstep.client.region import Addresses, PartDescriptor, Region, Rows, Template
from halfstep.client.results import (
    Answer,
    ChangeResult,
    DeleteResult,
    GetResult,
    MatchResult,
    PrefetchResult,
    PutResult,
    ReleaseResult,
)
from halfstep.client.sections import Section
from halfstep.client.session import Session
from halfstep.client.ticket import Event, Ticket

__all__ = [
    "PARENT_ROOT",
    "PARENT_UNKNOWN",
    "Addresses",
    "Answer",
    "ChangeResult",
    "Client",
    "ClientFacts",
    "CodingFacts",
    "DeleteResult",
    "Entry",
    "Event",
    "GetResult",
    "GpuFacts",
    "MatchResult",
    "Namespace",
    "PartDescriptor",
    "PrefetchResult",
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
    "connect",
]
