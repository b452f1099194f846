"""What a step of vLLM's scheduler and worker costs, in calls of ours: by module, for each step.

A profile function sees each call of a Python function. Whoever reaches the daemon, or takes a lock that another thread may
hold, goes through a function of halfstep.client; so a step that calls none sends nothing and waits for nobody.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any, Self

OURS = "halfstep."


class Watch:
    """While it is entered: `steps`, one for each time that the scheduler plans.

    tokens: that the step computes. calls: of functions of ours, by module.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.steps: list[dict[str, Any]] = []
        self._calls: Counter[str] = Counter()

    def __enter__(self) -> Self:
        plan = self._scheduler.schedule

        def planning(*arguments: Any, **named: Any) -> Any:
            self._calls = Counter()
            step: dict[str, Any] = {"tokens": 0, "calls": self._calls}
            self.steps.append(step)
            planned = plan(*arguments, **named)
            step["tokens"] = planned.total_num_scheduled_tokens
            return planned

        self._scheduler.schedule = planning
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        del self._scheduler.schedule

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := frame.f_globals.get("__name__", "")).startswith(OURS):
            self._calls[name] += 1
