"""Tests that the colours of more and less differ for every kind of colour vision, in both themes."""

import re
from pathlib import Path

import numpy as np
import pytest

import opdkit.commands.report

STYLE = (Path(opdkit.commands.report.__file__).parent / "page" / "style.css").read_text(encoding="utf-8")
# How people who lack one kind of cone see linear RGB (Machado, Oliveira and Fernandes, 2009, severity 1).
VISION = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def colours(name: str) -> list[np.ndarray]:
    """Return the linear RGB of a colour in the light and in the dark theme."""
    found = re.search(rf"--{name}: light-dark\((#\w{{6}}), (#\w{{6}})\)", STYLE)
    assert found
    channels = [np.array([int(h[i : i + 2], 16) for i in (1, 3, 5)]) / 255 for h in found.groups()]
    return [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in channels]


def lab(linear: np.ndarray) -> np.ndarray:
    """Return CIE L*a*b*, white point D65, of linear sRGB."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.clip(to_xyz @ np.clip(linear, 0, 1), 0, None) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", list(VISION))
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_more_and_less_are_told_apart(vision: str, theme: int) -> None:
    """A distance of 2.3 is just noticeable (CIE 1976). Strong colours must be far apart, pale ones still visible."""
    for level, least in (("", 40), ("-1", 8), ("-2", 20), ("-3", 40)):
        more, less = (lab(VISION[vision] @ colours(f"{side}{level}")[theme]) for side in ("more", "less"))
        assert np.linalg.norm(more - less) > least, level
