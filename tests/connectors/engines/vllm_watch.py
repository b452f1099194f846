"""What a step of vLLM's scheduler and worker costs, in calls of ours (our_calls.py): by module, for each step."""

from __future__ import annotations

from typing import Any, Self

from our_calls import OurCalls


class Watch:
    """While it is entered: `steps`, one for each time that the scheduler plans.

    tokens: that the step computes. calls: of functions of ours, by module.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.steps: list[dict[str, Any]] = []
        self._ours = OurCalls()

    def __enter__(self) -> Self:
        plan = self._scheduler.schedule

        def planning(*arguments: Any, **named: Any) -> Any:
            step: dict[str, Any] = {"tokens": 0, "calls": self._ours.anew()}
            self.steps.append(step)
            planned = plan(*arguments, **named)
            step["tokens"] = planned.total_num_scheduled_tokens
            return planned

        self._scheduler.schedule = planning
        self._ours.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.stop()
        del self._scheduler.schedule
