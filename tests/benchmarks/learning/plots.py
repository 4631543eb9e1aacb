"""Plots of docs/sample-world.md, from the results file."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from .experiments import LONG, PRESETS, SHORT, VOTES, WRONG, mean_corrected
from .lookup import NOISE, Results, after_short, band, gain, seeds_of
from .noise import exact_reward_accuracy

COLOURS = dict(zip(PRESETS, plt.get_cmap("tab10").colors, strict=False))


def draw(results: dict[str, Any], folder: Path) -> None:
    """Write the SVG files; the same results and version of matplotlib give the same bytes."""
    found = Results(results)
    mpl.rcParams.update({"svg.hashsalt": "opdkit", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                         "axes.spines.right": False})  # fmt: skip
    for name, plot in (("epochs", _epochs), ("forgetting", _forgetting), ("noise", _noise)):
        figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
        plot(axes, found)
        figure.savefig(folder / f"learning-{name}.svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _epochs(axes: Axes, found: Results) -> None:
    """Draw the share of right first replies against epochs; the band is from the lowest to the highest seed."""
    base = found.base()
    for name in PRESETS:
        rows = [
            band([mean_corrected(seed["epochs"][e]) for seed in seeds_of(found, "long", name)]) for e in range(LONG)
        ]
        low, middle, high = ([base, *(row[k] for row in rows)] for k in range(3))
        axes.plot(range(LONG + 1), middle, color=COLOURS[name], label=name, linewidth=1.6)
        axes.fill_between(range(LONG + 1), low, high, color=COLOURS[name], alpha=0.15, linewidth=0)
    axes.set(xlabel="epochs", ylabel="held-out first replies as wanted", ylim=(0, 1.02), xlim=(0, LONG))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _forgetting(axes: Axes, found: Results) -> None:
    """Draw the KL on topics that nobody corrects against the gain on the corrected topics."""
    for name in PRESETS:
        x, y = gain(found, name), after_short(found, name, "kl_replies", "uncorrected")
        axes.scatter([x], [y], color=COLOURS[name], s=36)
        axes.annotate(name, (x, y), xytext=(5, 3), textcoords="offset points")
    axes.set(xlabel=f"gain on the corrected topics after {SHORT} epochs",
             ylabel="KL(before || after) on the others, nats per token", yscale="log")  # fmt: skip


def _noise(axes: Axes, found: Results) -> None:
    """Draw reward accuracy (measured and exact) and the trained model's accuracy against the number of votes."""
    for wrong, colour in zip(WRONG, ("tab:blue", "tab:red"), strict=True):
        exact = [exact_reward_accuracy(wrong, m) for m in VOTES]
        right = [found.noise(wrong, m, "rewards_right") for m in VOTES]
        passed = [found.noise(wrong, m, "passed") for m in VOTES]
        axes.plot(VOTES, exact, color=colour, linestyle=":", label=f"{wrong:.0%} wrong: rewards right, exact")
        axes.plot(VOTES, right, color=colour, linestyle="none", marker="o", label=f"{wrong:.0%} wrong: rewards right")
        axes.plot(VOTES, passed, color=colour, marker="s", label=f"{wrong:.0%} wrong: the trained model")
    axes.axhline(found.noise(*NOISE, "passed"), color="grey", linewidth=0.8, label="no vote wrong: the trained model")
    axes.set(xlabel="votes", ylabel="share", ylim=(0.5, 1.02), xticks=VOTES)
    axes.legend(frameon=False, loc="lower right")
