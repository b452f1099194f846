"""A namespace's default policy and its floor: as people name them, and as the wire numbers them.

Source: docs/compression.md, *A namespace's default and floor*.
"""

from __future__ import annotations

import math

from halfstep.compress import STEP_MAX, STEP_MIN
from halfstep.compress.policy import BUILT_IN, Policy
from halfstep.errors import ConfigError

__all__ = ["NONE", "floor_text", "floor_units", "policy_number", "policy_text", "refuse_below"]

# Of a namespace without a default or a floor.
NONE = "none"
_POLICIES = (NONE, "exact", "high", "balanced", "compact", "off")
# A floor is a step in these; one of them is finer than any step, so that it lets exact blocks alone pass.
_UNITS = 10_000
_EXACT = 1


def policy_number(name: str) -> int:
    """Errors: ConfigError (none of the built-in ones: a daemon knows no files)."""
    if name not in _POLICIES:
        raise ConfigError(f"policy={name!r}: must be {', '.join(_POLICIES)}; a daemon knows no files")
    return _POLICIES.index(name)


def policy_text(number: int) -> str:
    """A number that this build does not know is none."""
    return _POLICIES[number] if 0 <= number < len(_POLICIES) else NONE


def coarsest_step(policy: Policy) -> float:
    """Of its rules; 0 where all of them are exact."""
    return max((rule.choice.step for rule in policy.rules if rule.choice.lossy), default=0.0)


def floor_units(floor: str) -> int:
    """floor: "none", a built-in policy, whose coarsest step it is, or a step such as "0.1". Errors: ConfigError."""
    if floor == NONE:
        return 0
    if floor in BUILT_IN:
        return _units(coarsest_step(BUILT_IN[floor])) or _EXACT
    try:
        step = float(floor)
    except ValueError:
        step = math.nan
    if not STEP_MIN <= step <= STEP_MAX:
        raise ConfigError(f"floor={floor!r}: must be none, {', '.join(BUILT_IN)}, or a step of {STEP_MIN} to {STEP_MAX:g}")
    return _units(step)


def floor_text(units: int) -> str:
    """As floor_units takes it."""
    if units == 0:
        return NONE
    return "exact" if units == _EXACT else f"{units / _UNITS:g}"


def refuse_below(policy: str, floor: int) -> None:
    """Errors: ConfigError (a namespace's default is lossier than its own floor, in units)."""
    step = coarsest_step(BUILT_IN[policy]) if policy in BUILT_IN else 0.0
    if floor and _units(step) > floor:
        raise ConfigError(
            f"policy={policy!r}: its coarsest step is {step:g}, and the floor is {floor_text(floor)}; "
            "choose a finer policy, or a lower floor"
        )


def _units(step: float) -> int:
    return round(step * _UNITS)
