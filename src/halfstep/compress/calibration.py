"""Which step each layer's K and V may have, found by asking the model once: `halfstep calibrate` without its options.

    told = calibrate(model, windows, others, prefix=384, goal=Goal(kl=1e-3))
    told.policy("mine")                     # as halfstep.compress.policy reads it

Square law: of each unit (a layer's K or V) the loss grows as the square of its step, and the losses of units add up. So one
run a unit, at PROBE_STEP, tells what any step of it costs. Steps are then chosen for the fewest bits within the goal; a second
run a unit, near the step chosen, checks the law, and a unit that breaks it is exact. Last the policy runs on other windows.

Invariants: what the policy is judged by were never the windows that it was solved for. Units of which the model hands nothing
to `recode` are in no rule, so they are exact. Deterministic where the model is.

Source: docs/compression.md, *Calibrated policies*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from halfstep.compress.allocation import Option, allocated
from halfstep.compress.policy import Choice, Plane, Policy, Predicted, Rule
from halfstep.compress.probe import Coded, Loss, Model, Recoder, Sampler, Terms, Tokens, UnitName, losses
from halfstep.errors import ConfigError

__all__ = ["Calibration", "Goal", "UnitFigures", "calibrate"]

PROBE_STEP = 0.35
# Quarter octaves around it, from 0.02 to 1.2: where the law was seen to hold.
STEPS: tuple[float, ...] = tuple(float(f"{PROBE_STEP * 2 ** (k / 4):.3g}") for k in range(-16, 8))
# A unit breaks the law whose loss is off by more, and weighs so much of the bound that this matters.
LAW_MAX = 3.0
_WEIGHS = 0.1  # of an equal share of the bound
# On other windows a policy that misses its goal is solved again for less, once.
_TIGHTER, _TIGHTEST = 0.9, 0.25
# Of each unit so many parts tell how many bits a step takes.
_SAMPLE_PARTS = 64
WINDOWS_MIN = 2
KL_MIN, KL_MAX = 1e-7, 1.0

Progress = Callable[[int, int], None]
Outcome = Literal["held", "tightened", "exact"]


@dataclass(frozen=True)
class Goal:
    """What the model's answers may lose: a divergence in nats a token, or a share of tokens whose first choice stays."""

    kl: float | None = None
    agreement: float | None = None

    def __post_init__(self) -> None:
        if (self.kl is None) == (self.agreement is None):
            raise ConfigError("goal: name one of kl and agreement, such as kl=1e-3")
        if self.kl is not None and not KL_MIN <= self.kl <= KL_MAX:
            raise ConfigError(f"kl={self.kl:g}: must be {KL_MIN:g} to {KL_MAX:g} nats a token, such as 1e-3")
        if self.agreement is not None and not 0.5 <= self.agreement < 1:
            raise ConfigError(f"agreement={self.agreement:g}: must be 0.5 or more and less than 1, such as 0.98")

    def held(self, loss: Loss) -> bool:
        """Whether a run keeps it."""
        return loss.kl <= self.kl if self.kl is not None else loss.agreement >= (self.agreement or 0)

    def excess(self, loss: Loss) -> float:
        """By what the divergence is too large."""
        if self.kl is not None:
            return loss.kl / self.kl
        return float(((1 - loss.agreement) / (1 - (self.agreement or 0))) ** 2)


@dataclass
class UnitFigures:
    """A layer's K or V.

    probe_kl: at PROBE_STEP, alone. law: at another step, what was measured by what the law says; None: not checked. fragile: it
    breaks the law. kl: of its choice, by the law. coded: what became of its parts on the other windows.
    """

    layer: int
    plane: Plane
    probe_kl: float
    law: float | None = None
    fragile: bool = False
    choice: Choice = field(default_factory=Choice)
    kl: float = 0.0
    coded: Coded = field(default_factory=Coded)
    # Where its loss was measured last, and the sizes of its parts at each of STEPS, exact ones last: of a value.
    at: tuple[float, float] = (PROBE_STEP, 0.0)
    sizes: tuple[float, ...] = ()
    values: int = 0

    def kl_at(self, step: float) -> float:
        """By the law, from where it was measured last."""
        return self.at[1] * (step / self.at[0]) ** 2


@dataclass
class Calibration:
    """What was found. kl: predicted by the law. agreement: predicted from it. verified: measured on the other windows.

    outcome: held = the first policy kept its goal; tightened = one solved for less did; exact = none did, and all is exact.
    runs: of the model. disagreement: tokens that choose another, by the root of the divergence.
    """

    goal: Goal
    terms: Terms
    units: list[UnitFigures]
    kl: float
    agreement: float
    verified: Loss
    outcome: Outcome
    runs: int
    disagreement: float

    @property
    def bits(self) -> float:
        """Of a value, blocks of the first tokens not counted."""
        values = sum(unit.coded.values for unit in self.units)
        return sum(unit.coded.stored_bytes for unit in self.units) * 8 / values

    @property
    def ratio(self) -> float:
        """Raw bytes to stored ones, as `bits`."""
        return 16 / self.bits

    @property
    def choices(self) -> dict[UnitName, Choice]:
        """Of each unit."""
        return {(unit.layer, unit.plane): unit.choice for unit in self.units}

    def policy(self, name: str, model: str = "") -> Policy:
        """With what is predicted of it. model: what to call it there. Errors: ConfigError (the name)."""
        by_choice: dict[tuple[Plane, Choice], list[int]] = {}
        for unit in self.units:
            if unit.choice.lossy:
                by_choice.setdefault((unit.plane, unit.choice), []).append(unit.layer)
        rules = tuple(
            Rule(choice, (plane,), _runs(layers))
            for (plane, choice), layers in sorted(by_choice.items(), key=lambda one: (one[0][0], one[0][1].step))
        )
        predicted = Predicted(
            kl=self.kl,
            agreement=self.agreement,
            verified_kl=self.verified.kl,
            verified_agreement=self.verified.agreement,
            bits=self.bits,
            block_tokens=self.terms.block_tokens,
            model=model,
            error={plane: _by_layer([u for u in self.units if u.plane == plane]) for plane in ("k", "v")},
        )
        return Policy(name, rules, predicted)


def calibrate(
    model: Model,
    windows: npt.ArrayLike,
    others: npt.ArrayLike,
    *,
    prefix: int,
    goal: Goal,
    terms: Terms | None = None,
    batch: int = 16,
    progress: Progress = lambda _done, _total: None,
) -> Calibration:
    """Solve for a goal and verify. model: see halfstep.compress.probe.

    windows, others: token ids [windows, tokens], to solve for and to verify on; `prefix` tokens of each are stored, and what
    follows is answered. batch: windows of a run. progress: told of runs that are done, and of how many there will be.
    Errors: ConfigError.
    """
    found = _Finding(model, _checked("windows", windows, prefix), prefix, terms or Terms(), batch, progress)
    seen = _checked("others", others, prefix)
    if not len(found.terms.blocks(prefix)):
        raise ConfigError(
            f"prefix={prefix}: has no block of {found.terms.block_tokens} tokens behind the first, which is always exact"
        )
    if batch < 1:
        raise ConfigError(f"batch={batch}: must be at least 1")
    found.probe(len(seen))
    bound = goal.kl if goal.kl is not None else ((1 - (goal.agreement or 0)) / found.disagreement) ** 2
    found.solve(bound)
    found.check(bound)
    found.solve(bound)
    outcome: Outcome = "held"
    verified = found.verify(seen)
    if not goal.held(verified):
        outcome = "tightened"
        found.solve(bound * max(_TIGHTEST, _TIGHTER / goal.excess(verified)))
        verified = found.verify(seen)
    if not goal.held(verified):
        outcome = "exact"
        for unit in found.units:
            unit.choice, unit.kl = Choice(), 0.0
        verified = found.verify(seen)
    kl = sum(unit.kl for unit in found.units)
    agreement = max(0.0, 1 - found.disagreement * kl**0.5)
    return Calibration(goal, found.terms, found.units, kl, agreement, verified, outcome, found.runs, found.disagreement)


class _Finding:
    """The units of a model, and what is known of them so far."""

    def __init__(self, model: Model, windows: Tokens, prefix: int, terms: Terms, batch: int, progress: Progress) -> None:
        self._model, self._windows, self._prefix, self._batch = model, windows, prefix, batch
        self.terms = terms
        self._progress = progress
        self.units: list[UnitFigures] = []
        self.runs = 0
        self._runs_expected = 0
        self._squares: list[tuple[float, float]] = []

    @property
    def disagreement(self) -> float:
        """Tokens that choose another, by the root of the divergence; by least squares over all runs so far."""
        weight = sum(kl for kl, _ in self._squares)
        return max(1e-6, sum(kl**0.5 * (1 - agreed) for kl, agreed in self._squares) / weight) if weight else 1.0

    def probe(self, others: int) -> None:
        """One run a unit, at PROBE_STEP. others: windows that it will be verified on."""
        found = Sampler(self.terms, 0)
        self._model(self._windows[:1], self._prefix, found)
        if not found.parts:
            raise ConfigError("model: handed no K or V to recode; a layer without them is not covered")
        names = sorted(found.parts)
        batches = -(-len(self._windows) // self._batch)
        self._runs_expected = 1 + 2 * batches * (1 + len(names)) + 2 * -(-others // self._batch)
        self._tick()
        sampled = Sampler(self.terms, -(-_SAMPLE_PARTS // batches))
        probed = self._measure(dict.fromkeys(names, PROBE_STEP), sampled)
        for layer, plane in names:
            loss = probed[layer, plane]
            parts = sampled.parts[layer, plane]
            sizes = tuple(_bits(parts, self.terms, choice) for choice in [Choice("ubq", step) for step in STEPS] + [Choice()])
            unit = UnitFigures(layer, plane, loss.kl, at=(PROBE_STEP, loss.kl), sizes=sizes, values=parts[0].shape[-1])
            self.units.append(unit)

    def solve(self, bound: float) -> None:
        """Choices for the fewest bits with a loss of no more, by the law."""
        options = []
        for unit in self.units:
            exact = Option(unit.sizes[-1] * unit.values, 0.0)
            lossy = zip(STEPS, unit.sizes, strict=False)
            each = [] if unit.fragile else [Option(bits * unit.values, unit.kl_at(step)) for step, bits in lossy]
            options.append([*each, exact])
        for unit, at, of_unit in zip(self.units, allocated(options, bound), options, strict=True):
            exact_at = len(of_unit) - 1
            unit.choice = Choice() if at == exact_at else Choice("ubq", STEPS[at])
            unit.kl = of_unit[at].loss

    def check(self, bound: float) -> None:
        """One more run a lossy unit, at its step or, where that was the probe's, at half of it."""
        steps = {}
        for unit in self.units:
            if unit.choice.lossy:
                near = abs(np.log2(unit.choice.step / PROBE_STEP)) < 0.5
                steps[unit.layer, unit.plane] = PROBE_STEP / 2 if near else unit.choice.step
        self._runs_expected -= (len(self.units) - len(steps)) * -(-len(self._windows) // self._batch)
        measured = self._measure(steps)
        matters = bound / len(self.units) * _WEIGHS
        for unit in self.units:
            step = steps.get((unit.layer, unit.plane))
            if step is None:
                continue
            kl, said = measured[unit.layer, unit.plane].kl, unit.kl_at(step)
            unit.law = kl / said if said else float("inf") if kl else 1.0
            if not 1 / LAW_MAX <= unit.law <= LAW_MAX and max(kl, said) >= matters:
                unit.fragile = True
            unit.at = step, kl

    def verify(self, others: Tokens) -> Loss:
        """All choices together, on windows that they were not solved for."""
        recoder = Recoder(self.terms, {(unit.layer, unit.plane): unit.choice for unit in self.units})
        # A second time it is more than was expected.
        self._runs_expected = max(self._runs_expected, self.runs + 2 * -(-len(others) // self._batch))
        (loss,) = losses(self._model, others, self._prefix, [recoder], batch=self._batch, tick=self._tick)
        for unit in self.units:
            unit.coded = recoder.coded[unit.layer, unit.plane]
        return loss

    def _measure(self, steps: Mapping[UnitName, float], exact: Any = None) -> dict[UnitName, Loss]:
        """Of each unit alone at its step."""
        recoders = [Recoder(self.terms, {name: Choice("ubq", step)}) for name, step in steps.items()]
        told = losses(self._model, self._windows, self._prefix, recoders, batch=self._batch, exact=exact, tick=self._tick)
        self._squares += [(loss.kl, loss.agreement) for loss in told]
        return dict(zip(steps, told, strict=True))

    def _tick(self) -> None:
        self.runs += 1
        self._progress(self.runs, self._runs_expected)


def _bits(parts: Sequence[npt.NDArray[Any]], terms: Terms, choice: Choice) -> float:
    coded = Coded()
    for part in parts:
        coded.add(part, terms.element, choice)
    return coded.bits


def _by_layer(units: Sequence[UnitFigures]) -> tuple[float, ...]:
    """The error of each layer's part, from layer 0 on; 0 where there is none."""
    errors = {unit.layer: unit.coded.error for unit in units}
    return tuple(errors.get(layer, 0.0) for layer in range(1 + max(errors, default=-1)))


def _runs(layers: Sequence[int]) -> tuple[str, ...]:
    """Layers as a policy's file has them: "0-2", "5"."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return tuple(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _checked(name: str, given: npt.ArrayLike, prefix: int) -> Tokens:
    tokens = np.asarray(given)
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu":
        raise ConfigError(f"{name}: shape {tokens.shape} of {tokens.dtype}; must be token ids [windows, tokens]")
    if len(tokens) < WINDOWS_MIN:
        raise ConfigError(f"{name}: {len(tokens)} windows; must be at least {WINDOWS_MIN}, and 16 are better: give more text")
    if not 0 < prefix < tokens.shape[1]:
        raise ConfigError(f"prefix={prefix}: windows have {tokens.shape[1]} tokens; some must follow the prefix")
    return tokens.astype(np.int64)
