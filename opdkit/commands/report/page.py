"""HTML of the page: opdkit's own files, the charting library, and the run's data as inert base64.

No text of a log is ever part of the markup. The content security policy in the page's head lets the browser run only
these scripts, load nothing, and turn no text into markup (Trusted Types).
"""

import base64
import hashlib
import sys
from pathlib import Path
from string import Template

import orjson

from opdkit.commands.report.collect import Collected, collect
from opdkit.commands.report.compressed import Packed, shorten_view
from opdkit.commands.report.redact import Names, redact_columns, redact_summary
from opdkit.commands.report.turn_list import choose_whole, make_columns
from opdkit.commands.turns.line import CHARS
from opdkit.commands.turns.view import read_turn_views
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError

_FOLDER = Path(__file__).parent
STYLES = ("vendor/uPlot.min.css", "page/style.css", "page/turns.css")
_PARTS = ("base", "links", "charts", "sections", "hints", "results", "compare", "list", "tokens", "whole", "queue",
          "panel", "review", "start")  # fmt: skip
SCRIPTS = ("vendor/uPlot.iife.min.js", *(f"page/{name}.js" for name in _PARTS))
_CUTS = (CHARS, 200, 140, 90, 50, 20, 0)  # characters of each text in the list
_REVIEW_MB = 300.0  # megabytes of a reviewers' page: texts are cut only in runs of hundreds of thousands of turns
_LIST_SHARE = 0.65  # share of the room that the list may take if turns are shown whole as well


def make_page(run: Path, review: JSON | None = None, *, turns: int = 200, rows: int = 10_000, max_mb: float = 3.0,
         redacted: bool = False) -> str:  # fmt: skip
    """Return the report of a run as HTML of at most `max_mb` megabytes.

    It lists up to `rows` turns, with texts as long as fit, and shows up to `turns` of them whole. If `redacted`, it has
    no text of users, and shows no turn whole. With `review` ({"token", "reviewer"}) it is the page of `opdkit review`.
    That lists all turns regardless of these limits, fetches whole turns from its server, and sends decisions there.

    Raises OpdkitError if the run holds nothing to report, or `max_mb` is too little for the page without a turn.
    """
    reviewing = review is not None
    turns, rows, max_mb = (0, sys.maxsize, _REVIEW_MB) if reviewing else (0 if redacted else turns, rows, max_mb)
    collected = collect(run, rows, reviewing=reviewing)
    collected.summary["review"] = review
    shell = _fill_shell(reviewing=reviewing)
    room = round(max_mb * 1e6) - len(shell.template.encode())
    packed = _pack_list(collected, room, _LIST_SHARE if turns else 1.0, reviewing=reviewing, redacted=redacted)
    if packed is None:
        raise OpdkitError(f"--max-mb is {max_mb:g}: not even the summary of {run} fits; give it more")
    chosen = choose_whole(collected.lines, turns, collected.groups)
    views = {view["turn_id"]: shorten_view(view) for view in read_turn_views(run, chosen)}
    separator = b""
    for turn_id in chosen:  # the most important first: not all may fit
        if packed.add(separator + orjson.dumps(views[turn_id], option=orjson.OPT_NON_STR_KEYS)):
            separator = b","
    return shell.substitute(data=packed.text(b"]}"))


def _pack_list(collected: Collected, room: int, share: float, *, reviewing: bool, redacted: bool) -> Packed | None:
    """Pack `{"summary": ..., "rows": ..., "views": [` into `share` of the room; None if not even the summary fits.

    Texts are cut as little as possible; turns are left out only if even a list without texts does not fit.
    """
    packed, lines, names = Packed(room), collected.lines, Names()
    content = redact_summary(collected.summary, names) if redacted else collected.summary
    summary = orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)
    while True:
        for chars in (0,) if redacted else _CUTS:
            listed = make_columns(lines, chars, collected.groups, collected.checks, reviewing=reviewing)
            listed["chars"] = chars
            rows = orjson.dumps(redact_columns(listed, names) if redacted else listed)
            if packed.add(b'{"summary":' + summary + b',"rows":' + rows + b',"views":[', share):
                return packed
        if not lines:
            return None
        lines = lines[: len(lines) // 2]


def _fill_shell(reviewing: bool) -> Template:
    """Return the page as a template in which only `$data` is left to fill in."""
    policy, html = ["default-src 'none'"], (_FOLDER / "page/index.html").read_text(encoding="utf-8").strip()
    for tag, names in (("script", SCRIPTS), ("style", STYLES)):
        texts = [(_FOLDER / name).read_text(encoding="utf-8").strip() for name in names]
        digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
        policy.append(f"{tag}-src " + " ".join(f"'sha256-{digest}'" for digest in digests))
        html = html.replace(f"@{tag}s@", "\n".join(f"<{tag}>{text}</{tag}>" for text in texts))
    policy.append("img-src data:")  # the empty icon, so that no browser asks a server for one
    policy += ["connect-src 'self'"] if reviewing else []
    policy += ["base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"]
    html = html.replace("@policy@", "; ".join(policy))
    return Template(html.replace("$", "$$").replace("@data@", "${data}"))
