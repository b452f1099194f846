"""Step and loss of each layer's K and V, as a picture."""

from __future__ import annotations

from pathlib import Path

from halfstep.compress.calibration import Calibration
from halfstep.tools.picture import save_picture


def plot(told: Calibration, title: str, path: Path) -> None:
    """Above the steps, below what each costs the answers at the probe's step: why they differ. Exact ones have no step."""
    # Without pyplot: no display, no state of the process.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(7.0, 0.2 * len(told.units)), 7), layout="constrained")
    steps, costs = figure.subplots(2, 1, sharex=True)
    for plane, style in (("k", "o-"), ("v", "s--")):
        units = [unit for unit in told.units if unit.plane == plane]
        layers = [unit.layer for unit in units]
        steps.plot(
            layers, [unit.choice.step if unit.choice.lossy else float("nan") for unit in units], style, label=plane.upper()
        )
        costs.plot(layers, [max(unit.probe_kl, 1e-9) for unit in units], style, label=plane.upper())
    for axes, said in ((steps, "step, of the deviation"), (costs, "KL alone at one step, nats a token")):
        axes.set_yscale("log")
        axes.set_ylabel(said)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")
    costs.set_xlabel("layer")
    steps.set_title(
        f"{title}: {told.bits:.2f} bits a value, KL {told.kl:.1e} predicted, {told.verified.kl:.1e} on other windows",
        fontsize="small",
        wrap=True,
    )
    save_picture(figure, path, "picture")
