"""The page in a browser: it opens offline, searches, filters, shows tokens, obeys the keyboard, in both themes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import Watched

from opdkit.report import page
from opdkit.store import read_all

Opening = Callable[..., Watched]


def shown(watched: Watched) -> list[str]:
    found: list[str] = watched.page.evaluate("list.shown.map((turn) => turn.id)")
    return found


def test_it_opens_from_the_disk_with_every_section(report: Path, opened: Opening) -> None:
    """No error on the console, no request, no dialog: the fixture says so of every page."""
    watched = opened(report)
    for section, words in {
        "overview": "conversations in the logs", "feedback": "turns judged", "hints": "Length of the hints",
        "advantages": "tokens with a teacher's advantage", "shares": "Largest of 24 sessions", "turns": "turns",
        "training": "4 optimizer steps", "evaluation": "share passed, sampled", "configuration": "max_hint_chars",
    }.items():  # fmt: skip
        if section == "configuration":
            watched.page.get_by_text("All options").nth(1).click()
        assert words in watched.text(f"#{section}"), section
    assert watched.page.locator("canvas").count() > 5
    assert watched.page.locator("#list button").count() == 50


def test_search_filters_and_order(report: Path, run: Path, opened: Opening) -> None:
    watched = opened(report)
    verdicts = {v["turn_id"]: v for v in read_all(run, "verdicts")}
    watched.page.select_option("#filter-reward", label=watched.page.locator("#filter-reward option",
                               has_text="−1").inner_text())  # fmt: skip
    negative = {i for i, v in verdicts.items() if v["reward"] == -1}
    assert set(shown(watched)) == negative
    assert watched.text("#found").startswith(f"{len(negative)} of ")
    watched.page.fill("#search", "Celsius")
    watched.page.wait_for_selector("#list mark")
    replies = {s["session_id"]: s["messages"] for s in read_all(run, "sessions")}
    for turn_id in shown(watched):
        session, _, index = turn_id.rpartition(":")
        assert any("celsius" in (m["content"] or "").lower() for m in replies[session][: int(index) + 3])
    assert "Celsius" in watched.page.locator("mark").first.inner_text()
    watched.page.click("#show-all")
    assert len(shown(watched)) == len(list(read_all(run, "turns")))
    watched.page.select_option("#sort", "strength")
    assert shown(watched)[0] == strongest(run)


def strongest(run: Path) -> str:
    def mean(row: dict) -> float:
        pairs = zip(row["teacher_logprobs"] or [], row["old_logprobs"], strict=False)
        values = [abs(teacher - old) for teacher, old in pairs]
        return sum(values) / len(values) if values else 0.0

    rows = list(read_all(run, "targets"))
    assert rows
    found: str = max(rows, key=mean)["turn_id"]
    return found


def test_a_click_shows_the_turn_token_by_token(report: Path, run: Path, opened: Opening) -> None:
    watched = opened(report)
    watched.page.select_option("#sort", "strength")
    watched.page.locator("#list button").first.click()
    turn_id = shown(watched)[0]
    target = next(t for t in read_all(run, "targets") if t["turn_id"] == turn_id)
    assert watched.text("#whole h3") == turn_id
    assert watched.page.locator("#whole .tokens .token").count() == len(target["response_ids"])
    watched.page.locator("#whole .tokens .token").nth(0).click()
    assert f"id {target['response_ids'][0]}" in watched.text(".active-token")
    watched.page.locator(".tokens").focus()
    if len(target["response_ids"]) > 1:
        watched.page.keyboard.press("ArrowRight")
        assert f"id {target['response_ids'][1]}" in watched.text(".active-token")
    verdict = next(v for v in read_all(run, "verdicts") if v["turn_id"] == turn_id)
    assert verdict["hint"] in watched.text("#verdict")


def test_the_keyboard_alone(report: Path, opened: Opening) -> None:
    watched = opened(report)
    press = watched.page.keyboard.press
    press("j")
    press("j")
    second = shown(watched)[1]
    assert watched.text("#whole h3") == second
    press("k")
    assert watched.text("#whole h3") == shown(watched)[0]
    press("/")
    assert watched.page.evaluate("document.activeElement.id") == "search"
    watched.page.keyboard.type("j?")  # a letter in a field is a letter
    assert watched.page.input_value("#search") == "j?"
    press("Escape")
    press("?")
    assert watched.page.evaluate("document.getElementById('help').open")
    press("Escape")
    press("t")
    assert watched.page.evaluate("document.documentElement.dataset.theme") == "light"
    press("Tab")
    assert watched.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_an_address_names_a_turn(report: Path, opened: Opening, browser: object) -> None:
    first = opened(report)
    first.page.keyboard.press("j")
    url = first.page.evaluate("location.href")
    again = Watched(browser)
    again.allowed = (url.partition("#")[0],)
    again.page.goto(url)
    again.page.wait_for_selector("#whole h3")
    assert again.text("#whole h3") == first.text("#whole h3")
    again.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_screens_of_both_themes_and_of_a_phone(
    report: Path, opened: Opening, tmp_path: Path, scheme: str, width: int
) -> None:
    """Nothing sticks out sideways, every text has the contrast of WCAG AA, and the screens can be looked at."""
    watched = opened(report, scheme=scheme, width=width)
    watched.page.select_option("#sort", "strength")
    watched.page.keyboard.press("Escape")
    watched.page.evaluate("document.activeElement.blur()")
    watched.page.keyboard.press("j")
    watched.page.keyboard.press("v")
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    assert watched.page.evaluate(_LOW_CONTRAST) == []
    screen = tmp_path / f"report-{scheme}-{width}.png"
    watched.page.screenshot(path=screen, full_page=True)
    assert screen.stat().st_size > 50_000


# Every element with text of its own whose colour is too near to what is behind it (WCAG 2.2, 1.4.3).
_LOW_CONTRAST = """() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const found = parse(getComputedStyle(e).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility() || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push([e.className, e.textContent.slice(0, 40)]);
  }
  return low;
}"""


def test_long_runs_fit_and_say_what_was_left_out(run: Path, tmp_path: Path, opened: Opening) -> None:
    """Fewer turns whole, cut texts, fewer lines: whatever it takes."""
    sizes = {}
    for most in (0.24, 3.0):
        html = page(run, turns=5, rows=20, max_mb=most)
        sizes[most] = len(html.encode())
        assert sizes[most] <= most * 1e6
    path = tmp_path / "small.html"
    path.write_text(html, encoding="utf-8")
    watched = opened(path)
    total = len(list(read_all(run, "turns")))
    assert f"20 of 20 turns, of {total} in the run" in watched.text("#found")
    watched.page.select_option("#filter-whole", label="in the list only (15)")
    watched.page.keyboard.press("Escape")
    watched.page.locator("#list button").first.click()
    assert "opdkit show" in watched.text("#whole pre")
