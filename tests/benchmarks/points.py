"""Points of a plot, to compare plots that different versions of matplotlib draw."""

import re
from pathlib import Path


def read_points(path: Path) -> list[float]:
    """Return the coordinates, in points, of the lines, bands and marks of an SVG file, without those of its legend.

    Versions 3.8 and 3.11 of matplotlib place the axes 0.6 points apart.
    """
    drawn = path.read_text(encoding="utf-8").partition('<g id="legend_1">')[0]
    shapes = re.findall(r'<path [^>]*?\bd="([^"]+)"|<use [^>]*?(x="[^"]+" y="[^"]+")', drawn)
    return [float(number) for shape in shapes for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", "".join(shape))]
