"""Plots of docs/learning.md, from the results of the benchmark of worlds."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from opdkit.config.fields import JSON

from . import WORLDS, findings
from .benchmark import OBJECTIVES
from .findings import OURS, Results, mean
from .page import TITLES, title
from .ways import REACTION

_TEN = plt.get_cmap("tab10").colors
WORLD_COLOURS = dict(zip(WORLDS, (*_TEN, "black"), strict=True))
OBJECTIVE_COLOURS = dict(zip(OBJECTIVES, _TEN, strict=False))
WAY_COLOURS = dict(zip(TITLES, _TEN, strict=False))


def draw(document: JSON, folder: Path) -> None:
    """Write the SVG files, empty without data; the same results and version of matplotlib give the same bytes."""
    results = Results(document["cells"])
    mpl.rcParams.update({"svg.hashsalt": "opdkit", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                         "axes.spines.right": False})  # fmt: skip
    plots = {"default": _default, "worse": _worse, "alarm": _alarm, "score": _score, "noise": _noise,
             "forecast": _forecast, "ways": _ways}  # fmt: skip
    for name, plot in plots.items():
        figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
        plot(axes, results)
        figure.savefig(folder / f"worlds-{name}.svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _label(axes: Axes) -> None:
    """Draw the legend with each label once, if there are labels."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    if once:
        axes.legend(once.values(), once.keys(), loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _name_colours(axes: Axes, colours: dict[str, Any], names: Iterable[str]) -> None:
    """Put the names, which have dots in the plot, into the legend in the order of the colours."""
    there = set(names)
    for name, colour in colours.items():
        if name in there:
            axes.scatter([], [], color=colour, s=18, label=title(name) if name in WORLDS else name)


def _default(axes: Axes, results: Results) -> None:
    """Draw the corrected share of each world: before, with the default, with the best rate."""
    rows = findings.own_rates(results)
    for y, row in enumerate(rows):
        own = [change.after.corrected for change in row.own]
        before = mean(change.before.corrected for change in row.own)
        axes.plot([before, mean(own)], [y, y], color="lightgrey", linewidth=1.2, zorder=1)
        axes.plot([min(own), max(own)], [y, y], color="tab:blue", linewidth=4, alpha=0.35, solid_capstyle="butt")
        axes.scatter([before], [y], facecolors="white", edgecolors="grey", s=30, label="before", zorder=3)
        axes.scatter([mean(own)], [y], color="tab:blue", s=30, label="default, no rate given", zorder=3)
        if row.best:
            best = mean(change.after.corrected for change in row.best)
            axes.scatter([best], [y], color="tab:red", marker="|", s=120, label="best rate of the search", zorder=4)
    axes.set(xlabel="held-out replies as wanted, corrected", xlim=(0, 1.02), yticks=range(len(rows)),
             yticklabels=[title(row.world) for row in rows])  # fmt: skip
    axes.invert_yaxis()
    _label(axes)


def _worse(axes: Axes, results: Results) -> None:
    """Draw the change of both shares for each training; beyond a dotted line, a training is called worse."""
    rows = findings.trainings(results)
    for row in rows:
        axes.scatter([row.change.gain], [-row.change.forgotten], color=OBJECTIVE_COLOURS[row.objective], s=14,
                     marker="x" if row.refused else "o", alpha=0.7)  # fmt: skip
    for line in (axes.axhline, axes.axvline):
        line(-findings.WORSE, color="tab:red", linewidth=0.8, linestyle=":")
    _name_colours(axes, OBJECTIVE_COLOURS, (row.objective for row in rows))
    axes.set(xlabel="change of the corrected share (x: no model written)", ylabel="change of the uncorrected share")
    _label(axes)


def _alarm(axes: Axes, results: Results) -> None:
    """Draw the share of the loss that had happened before the alarm, for each path that breaks; 1: no alarm."""
    broken = [row for row in findings.paths(results) if row.breaks]
    for row in broken:
        lost = row.lost_before_alarm
        beside = (list(WORLDS).index(row.world) - (len(WORLDS) - 1) / 2) * 0.09
        axes.scatter([1.0 if lost is None else lost], [OBJECTIVES.index(row.objective) + beside], s=16,
                     color=WORLD_COLOURS[row.world], marker="x" if lost is None else "o")  # fmt: skip
    axes.axvline(0.5, color="tab:red", linewidth=0.8, linestyle=":")
    _name_colours(axes, WORLD_COLOURS, (row.world for row in broken))
    axes.set(xlabel="share of the loss before the alarm (x: no alarm)", xlim=(-0.03, 1.03),
             ylim=(len(OBJECTIVES) - 0.5, -0.5), yticks=range(len(OBJECTIVES)), yticklabels=OBJECTIVES)  # fmt: skip
    _label(axes)


def _score(axes: Axes, results: Results) -> None:
    """Draw the held-out error against the score of every checkpoint."""
    rows = findings.checkpoints(results)
    for world in results.worlds:
        mine = [row for row in rows if row.world == world]
        if mine:
            axes.scatter([row.score for row in mine], [row.error for row in mine], s=10, alpha=0.7,
                         color=WORLD_COLOURS[world], label=title(world))  # fmt: skip
    axes.set(xlabel="score of the validation", ylabel="held-out error", ylim=(-0.02, 1.02))
    axes.set_xscale("symlog", linthresh=0.01)
    axes.set_xlim(left=min([0.0, *(row.score for row in rows)]))
    _label(axes)


def _noise(axes: Axes, results: Results) -> None:
    """Draw the corrected share against the share of irrelevant reactions."""
    rows = findings.noises(results)
    for world in dict.fromkeys(row.world for row in rows):
        for name, style in (("judged", "-"), ("raw", "--")):
            mine = [(row.share, shares.corrected) for row in rows
                    if row.world == world and (shares := getattr(row, name)) is not None]  # fmt: skip
            what = "judged hints" if name == "judged" else TITLES[REACTION]
            axes.plot(*_columns(mine), linestyle=style, marker="o", color=WORLD_COLOURS[world],
                      label=f"{title(world)}: {what}")  # fmt: skip
    axes.set(xlabel="share of irrelevant reactions", ylabel="corrected", ylim=(0, 1.02))
    _label(axes)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _forecast(axes: Axes, results: Results) -> None:
    """Draw measured gains against forecast gains, with the forecasts' 90% intervals."""
    for row in findings.forecasts(results):
        colour = WORLD_COLOURS[row.world]
        if row.interval:
            axes.plot(row.interval, [row.measured] * 2, color=colour, linewidth=0.8, alpha=0.4)
        axes.scatter([row.gain], [row.measured], color=colour, s=18, label=title(row.world))
    axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="forecast gain, with its 90% interval", ylabel="measured gain")
    _label(axes)


def _ways(axes: Axes, results: Results) -> None:
    """Draw what each way forgets against what it gains: small dots are worlds, large dots means."""
    found = findings.ways(results)
    for name in TITLES:
        mine = [ways[name] for ways in found.values() if name in ways]
        if mine:
            axes.scatter([way.gain for way in mine], [way.forgotten for way in mine], color=WAY_COLOURS[name], s=10,
                         alpha=0.5)  # fmt: skip
            axes.scatter([mean(way.gain for way in mine)], [mean(way.forgotten for way in mine)], s=60,
                         color=WAY_COLOURS[name], marker="*" if name == OURS else "o", label=TITLES[name])  # fmt: skip
    axes.set(xlabel="gain of the corrected share", ylabel="forgotten of the uncorrected share")
    _label(axes)
