"""Tests that no text of a log, a judge or a reviewer becomes markup or a script."""

import base64
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from browser import Watched
from fuzz.report import attacks, look_at_everything
from report_runs import hostile_run

from opdkit.commands.report.page import make_page


@pytest.mark.slow
def test_an_attack_in_every_text(tmp_path: Path, opened: Callable[..., Watched]) -> None:
    """No text of a user runs as a script, makes an element, or causes a dialog or a request."""
    run = tmp_path / "run"
    assert hostile_run(run, 30, attacks(random.Random(0))) > 1_000
    html = make_page(run)
    (run / "report.html").write_text(html, encoding="utf-8")
    watched = opened(run / "report.html")
    look_at_everything(watched)
    assert watched.page.evaluate("window.pwned") is None
    assert watched.page.locator("body :is(script, img, iframe, object, svg, form[action], base, link, a[href^=java])"
                                ":not(#data, #data ~ script)").count() == 0  # fmt: skip


def test_the_file_holds_no_text_of_a_log_as_it_is(tmp_path: Path) -> None:
    """The markup is the same for every run, and the data is encoded in base64."""
    shells = []
    for seed in (1, 2):
        run = tmp_path / str(seed)
        hostile_run(run, 3, attacks(random.Random(seed)))
        html = make_page(run)
        data = re.search(r'<script id="data" type="application/json">([^<]*)</script>', html)
        assert data
        base64.b64decode(data[1], validate=True)
        shells.append(html.replace(data[1], ""))
    assert shells[0] == shells[1]


def test_the_policy_lets_nothing_else_run(report: Path, opened: Callable[..., Watched], browser: object) -> None:
    """Even in the page itself, the policy refuses a foreign script or style, any connection, and markup from text."""
    watched = Watched(browser)
    html = report.read_text(encoding="utf-8")
    bad = report.with_name("bad.html")
    bad.write_text(html.replace("</main>", "</main><script>window.pwned = 1</script>"
                                "<img src=x onerror='window.pwned=1'>"
                                "<style>body { display: none }</style>"), encoding="utf-8")  # fmt: skip
    watched.open(bad)
    assert watched.page.evaluate("window.pwned") is None
    assert watched.page.evaluate("getComputedStyle(document.body).display") == "block"
    refused = "fetch('https://example.org/').then(() => 'sent', () => 'refused')"
    assert watched.page.evaluate(refused) == "refused"
    with_markup = "(() => { try { document.body.innerHTML = '<p>x'; return 'made'; } catch { return 'refused'; } })()"
    assert watched.page.evaluate(with_markup) == "refused"
    watched.close()


def test_hidden_characters_are_shown(calculating: Watched) -> None:
    shown = "el('p', {}, said('pay\\u202e001\\u0000\\u200b\\u{e0041}\\nnext \\u{1f469}\\u200d\\u{1f4bb}')).textContent"
    assert calculating.page.evaluate(shown) == "payU+202E001U+0000U+200BU+E0041\nnext \U0001f469\u200d\U0001f4bb"


def test_a_command_to_paste_is_one_word_of_a_shell(calculating: Watched) -> None:
    assert calculating.page.evaluate("shellWord(\"a';touch x;'$(id)\")") == "'a'\\'';touch x;'\\''$(id)'"
    assert calculating.page.evaluate("shellWord('openai:50:1')") == "openai:50:1"
