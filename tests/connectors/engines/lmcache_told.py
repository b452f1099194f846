"""LMCache's client of a daemon as configuration loads it, but what it has counted is in the file $HALFSTEP_COUNTS."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from told import tell_after

from halfstep.connectors.lmcache import HalfstepClient

__all__ = ["HalfstepClient"]

HOOKS = ("submit_batch_set", "submit_batch_get", "submit_batch_exists", "submit_batch_delete", "drain_completions")

tell_after(HalfstepClient, HOOKS, lambda client: asdict(client.counts), Path(os.environ["HALFSTEP_COUNTS"]))
