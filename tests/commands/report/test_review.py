"""Report as the page of `opdkit review`: decisions by keyboard, over the real server, none of them lost."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import Watched
from fuzz.report import attacks
from report_runs import hostile_run, large_run

from opdkit.commands.review.api import Api
from opdkit.commands.review.server import ReviewServer
from opdkit.store import reviews

pytestmark = pytest.mark.slow

Opening = Callable[..., Watched]
# The page tries again after seconds; here after tenths of one.
IMPATIENT = "(() => { const wait = setTimeout; window.setTimeout = (f, ms) => wait(f, Math.min(ms, 100)); })()"


@contextmanager
def serving(run: Path, port: int = 0, token: str | None = None) -> Iterator[ReviewServer]:
    server = ReviewServer(Api(run, "tester"), port)
    server.token = token or server.token
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return large_run(tmp_path / "run", 60, tokens=8)


@pytest.fixture
def server(run: Path) -> Iterator[ReviewServer]:
    with serving(run) as found:
        yield found


def settled(watched: Watched) -> None:
    """Wait until the server has everything."""
    watched.page.evaluate("async () => { while (unsent.size || sending) await new Promise((r) => setTimeout(r, 10)); }")


def decided(run: Path) -> dict[str, dict]:
    return {name: review.decided for name, review in reviews.reviews_in_force(run).items()}


def test_a_person_decides_with_the_keyboard(run: Path, server: ReviewServer, opened: Opening) -> None:
    watched = opened(server.address)
    press = watched.page.keyboard.press
    ids = watched.page.evaluate("list.shown.map((turn) => turn.id)")
    for key in ("a", "+", "0", "-", "x", "X"):
        press("n")
        watched.page.wait_for_selector("#panel")
        press(key)
    press("n")
    watched.page.wait_for_selector("#panel")
    press("e")
    watched.page.keyboard.insert_text("Say where the figure is from, n or no n.")
    press("Control+Enter")
    settled(watched)
    assert decided(run) == dict(zip(ids, [
        {}, {"reward": 1}, {"reward": 0}, {"reward": -1}, {"hint": None}, {"hint": None, "reward": None},
        {"hint": watched.page.evaluate(f"list.decisions['{ids[6]}'].hint")},
    ], strict=False))  # fmt: skip
    assert "Say where the figure is from, n or no n." in decided(run)[ids[6]]["hint"]
    press("j")
    watched.page.wait_for_selector("#panel")
    press("+")
    press("x")  # a second decision on a turn adds to the first
    settled(watched)
    assert decided(run)[ids[7]] == {"reward": 1, "hint": None}
    press("u")
    settled(watched)
    assert decided(run)[ids[7]] == {"reward": 1}
    press("u")
    settled(watched)
    assert ids[7] not in decided(run)
    # The list shows them, and can be filtered by them.
    assert [watched.page.locator("#list .decided").nth(n).inner_text() for n in range(7)] == [
        "accepted", "edited", "edited", "edited", "edited", "struck", "edited"
    ]  # fmt: skip
    watched.page.select_option("#filter-decision", label="struck")
    assert watched.page.evaluate("list.shown.map((turn) => turn.id)") == [ids[5]]


def test_any_turn_is_fetched_whole_and_decisions_are_there_again(
    run: Path, server: ReviewServer, opened: Opening
) -> None:
    first = opened(server.address)
    first.page.keyboard.press("j")
    first.page.wait_for_selector("#panel")
    first.page.keyboard.press("-")
    settled(first)
    first.page.locator("#list button").nth(30).click()
    first.page.wait_for_selector("#whole .message.reply")
    assert first.text("#whole h3") == first.page.evaluate("list.shown[30].id")
    again = opened(server.address)
    again.page.keyboard.press("j")
    again.page.wait_for_selector("#panel")
    assert again.text("#decision") == "edited"
    assert "by tester" in again.text("#panel")
    assert again.page.locator('#panel [aria-pressed="true"]').inner_text().startswith("−1")


def test_nothing_is_lost_while_the_server_is_gone(run: Path, opened: Opening, browser: object) -> None:
    """It says so, keeps what was decided, and sends it when the server is there again."""
    with serving(run) as server:
        port, token = server.server_port, server.token
        watched = Watched(browser)
        watched.page.add_init_script(IMPATIENT)
        watched.open(server.address)
        watched.page.evaluate("choose(0)")
        watched.page.wait_for_selector("#panel")
    watched.page.keyboard.press("+")
    watched.page.keyboard.press("x")
    watched.page.wait_for_selector("#unsent:not([hidden])")
    assert "1 decision not saved yet" in watched.text("#unsent")
    assert "not saved" in watched.text("#list .badges")
    with serving(run, port, token):
        settled(watched)
        turn_id = watched.page.evaluate("list.shown[0].id")
        assert decided(run) == {turn_id: {"reward": 1, "hint": None}}
        assert not watched.page.locator("#unsent").is_visible()
    assert all("ERR_CONNECTION_REFUSED" in words for words in watched.wrong)
    watched.close()


def test_what_the_server_refuses_is_said_and_stays_to_be_edited(
    run: Path, server: ReviewServer, browser: object
) -> None:
    watched = Watched(browser)
    watched.open(server.address)
    watched.page.keyboard.press("j")
    watched.page.wait_for_selector("#panel")
    watched.page.keyboard.press("e")
    for times, words in ((1_000, "hint must be text of"), (10_000, "a decision is too long")):
        watched.page.fill("#panel textarea", "far too long " * times)
        watched.page.keyboard.press("Control+Enter")
        watched.page.locator("#problem").get_by_text(words).wait_for()
        assert len(watched.page.input_value("#panel textarea")) == 13 * times - 1
    assert watched.text("#decision") == "undecided"
    assert watched.page.locator("#unsent").is_visible()
    assert decided(run) == {}
    watched.page.fill("#panel textarea", "Short enough.")
    watched.page.keyboard.press("Control+Enter")
    settled(watched)
    assert [found["hint"] for found in decided(run).values()] == ["Short enough."]
    assert not watched.page.locator("#unsent").is_visible()
    watched.close()


def test_what_another_reviewer_decides_is_seen_on_coming_back(run: Path, server: ReviewServer, opened: Opening) -> None:
    watched = opened(server.address)
    watched.page.keyboard.press("j")
    watched.page.wait_for_selector("#panel")
    turn_id = watched.page.evaluate("list.shown[0].id")
    reviews.append(run, [reviews.Review(turn_id, reward_decided=True, reward=0)], reviewer="another")
    watched.page.evaluate("lookAgain()")
    assert watched.text("#decision") == "edited"
    assert "by another" in watched.text("#panel")
    assert "edited" in watched.text("#list .badges")


def test_a_hostile_run_runs_nothing_here_either(tmp_path: Path, opened: Opening) -> None:
    """No text of a user runs as a script: turn ids in addresses, views, notes and names of reviewers."""
    run = tmp_path / "hostile"
    bad = attacks(random.Random(3))
    hostile_run(run, 8, bad)
    with serving(run) as server:
        watched = opened(server.address)
        for place in range(8):
            watched.page.evaluate(f"choose({place})")
            watched.page.wait_for_selector("#whole .message")
            watched.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        turn_id = watched.page.evaluate("list.turns.find((turn) => turn.state !== 'not trainable').id")
        reviews.append(run, [reviews.Review(turn_id, hint_decided=True, hint=bad(), note=bad())], reviewer=bad())
        watched.open(server.address)
        watched.page.evaluate("choose(list.shown.findIndex((turn) => turn.id in list.decisions))")
        watched.page.wait_for_selector("#panel")
        assert watched.page.evaluate("window.pwned") is None
