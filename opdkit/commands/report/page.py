"""The page: our own files and the charting library in one HTML text, and the run's data as inert base64.

Nothing that a log says is ever part of the markup. The policy in the page's head lets the browser run these very
scripts and no other, load nothing, and turn no text into markup (Trusted Types).
"""

import base64
import hashlib
from pathlib import Path
from string import Template

from opdkit.commands.report.collect import Collected, collect
from opdkit.commands.report.listed import CHARS, columns, shown_whole
from opdkit.commands.report.packing import Packed
from opdkit.commands.report.whole import fitted
from opdkit.commands.turn_view import turn_views
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError

_HERE = Path(__file__).parent
STYLES = ("vendor/uPlot.min.css", "page/style.css", "page/turns.css")
SCRIPTS = ("vendor/uPlot.iife.min.js", "page/base.js", "page/charts.js", "page/sections.js", "page/results.js",
           "page/list.js", "page/tokens.js", "page/whole.js", "page/review.js", "page/start.js")  # fmt: skip
_CUTS = (CHARS, 200, 140, 90, 50, 20, 0)  # characters of each text in the list
_LIST_SHARE = 0.65  # of the room, where turns are shown whole as well


def page(run: Path, review: JSON | None = None, *, turns: int = 200, rows: int = 10_000, max_mb: float = 3.0) -> str:
    """The report of a run as HTML of at most `max_mb` megabytes.

    `rows` turns are listed and up to `turns` of them shown whole. With `review` ({"token": ...}) it is the page of
    `opdkit review`: it fetches any turn from the server that it came from, and sends decisions there.

    Raises OpdkitError when the run holds nothing to report, or `max_mb` is too little for the page without a turn.
    """
    collected = collect(run, rows)
    collected.summary["review"] = review
    return assemble(run, collected, 0 if review else turns, round(max_mb * 1e6))


def assemble(run: Path, collected: Collected, turns: int, most: int) -> str:
    """The page of `most` bytes: the list with texts as long as fit, and then turns shown whole until it is full."""
    shell = _shell(reviewing=collected.summary["review"] is not None)
    room = most - len(shell.template.encode())
    packed = _with_list(collected, room, turns)
    if packed is None:
        raise OpdkitError(f"--max-mb is {most / 1e6:g}: not even the summary of {run} fits; give it more")
    wanted = shown_whole(collected.rows, turns)
    views = {view["turn_id"]: fitted(view) for view in turn_views(run, wanted)}
    for turn_id in wanted:  # those first that matter most: not all may fit
        packed.view(views[turn_id])
    return shell.substitute(data=packed.text())


def _with_list(collected: Collected, room: int, turns: int) -> Packed | None:
    """The summary and the list: texts cut as little as can be, then fewer turns."""
    wanted = len(collected.rows)
    share = _LIST_SHARE if turns else 1.0
    while True:
        for chars in _CUTS:
            rows = columns(collected.rows[:wanted], chars) | {"chars": chars}
            within = Packed(round(room * share))
            if within.head(collected.summary, rows):
                packed = Packed(room)
                packed.head(collected.summary, rows)
                return packed
        if not wanted:
            return None
        wanted //= 2


def _shell(reviewing: bool) -> Template:
    """The page with everything but `$data` in its place."""
    styles, scripts = ([_read(name) for name in names] for names in (STYLES, SCRIPTS))
    policy = [
        "default-src 'none'",
        f"script-src {' '.join(map(_hash, scripts))}",
        f"style-src {' '.join(map(_hash, styles))}",
        "img-src data:",  # the empty icon, so that no browser asks a server for one
        *(["connect-src 'self'"] if reviewing else []),
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
    filled = _read("page/index.html")
    for name, text in (
        ("policy", "; ".join(policy)),
        ("styles", "\n".join(f"<style>{style}</style>" for style in styles)),
        ("scripts", "\n".join(f"<script>{script}</script>" for script in scripts)),
    ):
        filled = filled.replace(f"@{name}@", text)
    return Template(filled.replace("$", "$$").replace("@data@", "${data}"))


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
