"""Tests of the report as the page of `opdkit review`: decisions by keyboard over the real server, and none is lost."""

import contextlib
import random
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import Watched
from fuzz.report import attacks
from judged_runs import message, session, turn, verdict, write_run
from labelled_runs import labelled_run
from report_runs import hostile_run, large_run

from opdkit.commands.report.page import make_page
from opdkit.commands.review.api import Api
from opdkit.commands.review.server import ReviewServer
from opdkit.store import reviews
from opdkit.store.reading import read_all

pytestmark = pytest.mark.slow

Opening = Callable[..., Watched]
# The page retries after seconds; here after at most 0.1 s.
IMPATIENT = "(() => { const wait = setTimeout; window.setTimeout = (f, ms) => wait(f, Math.min(ms, 100)); })()"


@contextmanager
def serving(run: Path, port: int = 0) -> Iterator[ReviewServer]:
    server = ReviewServer(Api(run, "tester"), port)
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
    """Wait until the server has every decision."""
    watched.page.evaluate("async () => { while (unsent.size || sending) await new Promise((r) => setTimeout(r, 10)); }")


def decided(run: Path) -> dict[str, dict]:
    return {name: review.decided for name, review in reviews.read_reviews_in_force(run).items()}


def press(watched: Watched, *keys: str) -> list[str]:
    """Press each key once its turn is shown. Return the ids of these turns."""
    turns = []
    for key in keys:
        turns.append(begin(watched))
        watched.page.keyboard.press(key)
    return turns


def begin(watched: Watched) -> str:
    """Wait until the chosen turn is shown. Return its id."""
    found: str = watched.page.evaluate("""async () => {
        while (!whole.view || !document.getElementById("panel")) await new Promise((r) => setTimeout(r, 10));
        return whole.turn.id;
    }""")
    return found


def search(watched: Watched, words: str) -> list[str]:
    """Search the list. Return the ids of the turns that are found."""
    found: list[str] = watched.page.evaluate(
        """(words) => {
        byId("search").value = words;
        refilter();
        return list.shown.map((turn) => turn.id);
    }""",
        words,
    )
    return found


def test_a_person_decides_with_the_keyboard(run: Path, server: ReviewServer, opened: Opening) -> None:
    """Least certain turns come first. A decision opens the next turn; reward and hint of a turn are one decision."""
    watched = opened(server.address)
    order = watched.page.evaluate("list.shown.map((turn) => turn.id)")
    hinted = set(watched.page.evaluate("list.turns.filter((turn) => turn.hint).map((turn) => turn.id)"))
    certainty = watched.page.evaluate("list.shown.slice(0, 30).map((turn) => turn.certainty)")
    assert certainty == sorted(certainty)
    expected = {}
    for turn_id, reward in zip(order, [{"+": 1}, {"0": 0}, {"-": -1}, {"+": 1}], strict=False):
        ((key, value),) = reward.items()
        expected[turn_id] = {"reward": value} | ({"hint": None} if turn_id in hinted else {})
        assert press(watched, key, *(["x"] if turn_id in hinted else [])) == [turn_id] * (1 + (turn_id in hinted))
    assert press(watched, "a", "X") == order[4:6]
    expected |= {order[4]: {}, order[5]: {"hint": None, "reward": None}}
    assert press(watched, "e") == [order[6]]
    watched.page.keyboard.insert_text("Say where the figure is from, n or no n.")
    press(watched, "Control+Enter")
    assert press(watched, "0") == [order[6]]
    settled(watched)
    written = decided(run)[order[6]]["hint"]
    assert written.endswith("Say where the figure is from, n or no n.")
    assert decided(run) == expected | {order[6]: {"reward": 0, "hint": written}}
    assert watched.page.evaluate("whole.turn.id") == order[7]
    # `w` withdraws a decision. The first `u` undoes that, the second one the reward decided before it.
    watched.page.evaluate(f"choose({5})")
    press(watched, "w")
    press(watched, "u", "u")
    settled(watched)
    assert "reward" not in decided(run)[order[6]]
    assert decided(run)[order[5]] == {"hint": None, "reward": None}
    # The list can be filtered by decision.
    watched.page.select_option("#filter-decision", label="struck")
    assert watched.page.evaluate("list.shown.map((turn) => turn.id)") == [order[5]]
    # The search finds decided hints.
    watched.page.select_option("#filter-decision", label="any")
    assert search(watched, '"n or no n"') == [order[6]]


def test_uncertain_turns_come_first_then_a_random_sample_and_a_decision_says_which(
    run: Path, server: ReviewServer, opened: Opening
) -> None:
    watched = opened(server.address)
    judged = [v["turn_id"] for v in read_all(run, "verdicts")]
    uncertain = press(watched, *["a"] * 30)
    assert max(votes_agree(run, uncertain)) <= min(votes_agree(run, set(judged) - set(uncertain)))
    drawn = press(watched, "a", "X", "a")
    assert drawn == [name for name in reviews.order_of_draw(judged) if name not in uncertain][:3]
    watched.page.locator("#list button").nth(40).click()
    (picked,) = press(watched, "X")
    settled(watched)
    watched.page.select_option("#filter-decision", label="undecided")  # a filtered turn is not random
    press(watched, "n")
    (filtered,) = press(watched, "X")
    settled(watched)
    watched.page.get_by_role("button", name="Show all").click()
    chosen = {name: review.chosen for name, review in reviews.read_reviews_in_force(run).items()}
    assert chosen == dict.fromkeys(uncertain, "uncertain") | dict.fromkeys(drawn, "random") | {
        picked: None, filtered: None
    }  # fmt: skip
    said = watched.text("#progress")
    assert said.startswith("35 of 60 judged turns reviewed: 30 least certain, 3 drawn at random.")
    kept = reviews.read_reviews_in_force(run)
    same = [r.voted_reward is not None for r in kept.values() if not r.decided]
    assert f"You agree with the judge on {sum(same)} of {sum(same)} rewards (100%)" in said, "none is no reward"
    shown, following = press(watched, "X", "X")  # the one on the screen, then the first of the sample that is left
    settled(watched)
    done = {*uncertain, *drawn, picked, filtered, shown}
    assert following == next(name for name in reviews.order_of_draw(judged) if name not in done)
    kept = reviews.read_reviews_in_force(run)
    assert (kept[shown].chosen, kept[following].chosen) == (None, "random")


def votes_agree(run: Path, turn_ids: Iterable[str]) -> list[float]:
    """Return the share of the reward votes that agree, for each turn. In this run, the votes on a hint always agree."""
    scores = {v["turn_id"]: [vote["score"] for vote in v["reward_votes"]] for v in read_all(run, "verdicts")}
    return [max((scores[name].count(one) for one in (-1, 0, 1)), default=0) / len(scores[name]) for name in turn_ids]


def test_undo_leaves_what_was_decided_since(run: Path, server: ReviewServer, opened: Opening) -> None:
    """Undo keeps later decisions: by a colleague on the same turn, or on this page on all turns of its hint."""
    watched = opened(server.address)
    (turn_id,) = press(watched, "X")
    settled(watched)
    reviews.append(run, [reviews.Review(turn_id, hint_decided=True, hint="Theirs.")], reviewer="another")
    watched.page.evaluate("lookAgain()")
    press(watched, "u")
    watched.says("#problem", "Nothing is undone")
    settled(watched)
    assert decided(run) == {turn_id: {"hint": "Theirs."}}
    members = turns_of(watched, 0)
    watched.page.evaluate(f"choose(list.shown.findIndex((turn) => turn.id === '{members[0]}'))")
    press(watched, "x")
    settled(watched)
    watched.page.evaluate("decideGroup(0, {action: 'set', hint: 'All of them.'})")
    settled(watched)
    press(watched, "u")
    watched.says("#problem", "Nothing to undo on this page.")
    settled(watched)
    assert {decided(run)[name]["hint"] for name in members} == {"All of them."}


HELD_UP = "(() => !dispatchEvent(new Event('beforeunload', {cancelable: true})))()"


def test_what_is_typed_stays_with_its_turn_and_holds_up_the_closing(
    run: Path, server: ReviewServer, opened: Opening
) -> None:
    watched = opened(server.address)
    (first,) = press(watched, "e")
    assert not watched.page.evaluate(HELD_UP)
    watched.page.fill("#panel textarea", "A long wording")
    assert watched.page.evaluate(HELD_UP)
    watched.page.evaluate("choose(list.at + 1)")
    begin(watched)
    assert watched.page.locator("#panel textarea").count() == 0
    watched.page.evaluate("choose(list.at - 1)")
    assert begin(watched) == first
    assert watched.page.input_value("#panel textarea") == "A long wording"
    assert watched.page.evaluate("document.activeElement.tagName") != "TEXTAREA"
    watched.page.get_by_role("button", name="Save").click()
    settled(watched)
    assert decided(run) == {first: {"hint": "A long wording"}}
    assert not watched.page.evaluate(HELD_UP)
    watched.page.evaluate("choose(list.shown.findIndex((turn) => !list.decisions[turn.id]))")
    begin(watched)
    watched.page.fill("#note", "ask the team")
    assert watched.page.evaluate(HELD_UP)
    press(watched, "Escape", "a")
    settled(watched)
    assert not watched.page.evaluate(HELD_UP)


def test_a_note_goes_with_the_decision_and_is_shown(run: Path, server: ReviewServer, opened: Opening) -> None:
    watched = opened(server.address)
    (turn_id,) = press(watched, "m")
    watched.page.keyboard.insert_text("ask the team: 40°?")
    watched.page.keyboard.press("Enter")
    assert decided(run) == {}, "a note alone decides nothing"
    press(watched, "a")
    settled(watched)
    assert reviews.read_reviews_in_force(run)[turn_id].note == "ask the team: 40°?"
    again = opened(server.address)
    assert "ask the team: 40°?" in again.text("#list")
    assert search(again, '"The Team: 40°"') == [turn_id]
    search(again, "")
    again.page.evaluate(f"choose(list.shown.findIndex((turn) => turn.id === '{turn_id}'))")
    again.page.wait_for_selector("#panel")
    assert again.page.input_value("#note") == "ask the team: 40°?"
    again.page.fill("#note", "clear now")
    again.page.keyboard.press("Enter")
    settled(again)
    assert reviews.read_reviews_in_force(run)[turn_id].note == "clear now"


def test_a_click_right_after_typing_a_note_counts(run: Path, server: ReviewServer, opened: Opening) -> None:
    """Pressing the mouse button saves the note and redraws the panel; releasing it still clicks."""
    watched = opened(server.address)
    (turn_id,) = press(watched, "a")
    watched.page.evaluate(f"choose(list.shown.findIndex((turn) => turn.id === '{turn_id}'))")
    begin(watched)
    watched.page.click("#note")
    watched.page.keyboard.type("why")
    watched.page.locator("#panel button", has_text="+1").hover()
    watched.page.mouse.down()
    settled(watched)
    watched.page.mouse.up()
    settled(watched)
    assert reviews.read_reviews_in_force(run)[turn_id].note == "why"
    assert decided(run) == {turn_id: {"reward": 1}}


def test_a_pressed_button_keeps_the_focus(run: Path, server: ReviewServer, opened: Opening) -> None:
    watched = opened(server.address)
    focused = "document.activeElement.textContent"
    for name, place in (("−1", "#panel"), ("Accept", "#panel"), ("Keep", "#groups"), ("Later", "#pages")):
        begin(watched)
        button = watched.page.locator(f"{place} button", has_text=name).first
        button.focus()
        watched.page.keyboard.press("Enter")
        settled(watched)
        begin(watched)
        assert watched.page.evaluate(focused).startswith(name)
    watched.page.locator("#groups button", has_text="Reword").first.focus()
    for key in ("Enter", "Escape"):
        watched.page.keyboard.press(key)
    assert watched.page.evaluate(focused) == "Reword"


def test_a_typed_hint_is_not_left_behind_by_the_next_decision(run: Path, server: ReviewServer, opened: Opening) -> None:
    watched = opened(server.address)
    watched.page.evaluate("choose(list.shown.findIndex((turn) => !turn.hint && turn.hintStatus !== null))")
    turns = press(watched, "e")
    watched.page.keyboard.insert_text("In metric units.")
    for name in ("−1", "Accept"):
        watched.page.locator("#panel button", has_text=name).click()
        settled(watched)
        turns.append(begin(watched))
        watched.says("#problem", "The typed hint is not saved.")
    watched.page.locator("#panel button", has_text="Save").click()
    settled(watched)
    assert decided(run) == {turns[0]: {"reward": -1, "hint": "In metric units."}}
    assert turns == turns[:1] * 3
    assert begin(watched) != turns[0]


def test_in_a_narrow_window_a_decision_leaves_the_panel_on_the_screen(
    run: Path, server: ReviewServer, opened: Opening
) -> None:
    watched = opened(server.address, width=640, height=450)
    begin(watched)
    watched.page.evaluate("byId('panel').scrollIntoView({block: 'center', behavior: 'instant'})")
    for _ in range(8):
        watched.page.locator("#panel button", has_text="Accept").dispatch_event("click")
        settled(watched)
        begin(watched)
        top = watched.page.evaluate("byId('panel').getBoundingClientRect().top")
        assert 0 <= top < 450
    list_top, row_top = watched.page.evaluate("""["#list", "#list [aria-current=true]"].map(
        (name) => document.querySelector(name).getBoundingClientRect().top)""")
    assert list_top <= row_top < list_top + 0.6 * 450, "the list has scrolled to the turn"


def test_a_held_key_decides_on_one_turn(run: Path, server: ReviewServer, opened: Opening) -> None:
    watched = opened(server.address)
    turns = []
    for key in ("a", "Enter"):
        turns.append(begin(watched))
        if key == "Enter":
            watched.page.locator("#panel button", has_text="Accept").focus()
        for _ in range(4):
            watched.page.keyboard.down(key)
            begin(watched)
        watched.page.keyboard.up(key)
        settled(watched)
    assert list(decided(run)) == turns
    place = watched.page.evaluate("list.at")
    for _ in range(3):
        watched.page.keyboard.down("j")
    watched.page.keyboard.up("j")
    assert watched.page.evaluate("list.at") == place + 3, "moving goes on"


def test_all_turns_of_a_hint_are_decided_on_at_once(tmp_path: Path, opened: Opening) -> None:
    run = labelled_run(tmp_path / "run")
    hints = {v["turn_id"]: v["hint"] for v in read_all(run, "verdicts") if v["hint"]}
    with serving(run) as server:
        watched = opened(server.address)
        rows = watched.page.locator("#groups tbody tr")
        assert rows.count() == watched.page.evaluate("data.summary.hints.groups.length") <= 15
        for n, button in enumerate(["Keep", "Strike", "Reword"]):
            rows.nth(n).get_by_role("button", name=button).click()
            if button == "Reword":
                watched.page.fill("#groups textarea", "Always a numbered list.")
                watched.page.keyboard.press("Control+Enter")
            settled(watched)
        names = watched.page.evaluate("data.summary.hints.groups.map((group) => group.wordings[0][0])")
        wanted = [{"hint": names[0]}, {"hint": None}, {"hint": "Always a numbered list."}]
        expected = {name: decision for group, decision in enumerate(wanted)
                    for name in turns_of(watched, group)}  # fmt: skip
        assert set(turns_of(watched, 0)) == {k for k, v in hints.items() if v == names[0]}
        assert decided(run) == expected
        counts = [watched.text(f"#groups tbody tr:nth-child({n}) td p") for n in (1, 2, 3)]
        assert [words.split()[1] for words in counts] == ["kept", "struck", "reworded"]
        rows.nth(1).get_by_role("button", name="Withdraw").click()
        settled(watched)
        assert decided(run) == {k: v for k, v in expected.items() if v != {"hint": None}}
        # A number links to its turns.
        rows.nth(2).get_by_role("link").first.click()
        assert watched.page.evaluate("list.shown.map((turn) => turn.asks)") == [2] * sum(
            v == {"hint": "Always a numbered list."} for v in expected.values()
        )


def test_decisions_made_before_the_answer_to_a_group_s_keep_its_hint(tmp_path: Path, opened: Opening) -> None:
    run = labelled_run(tmp_path / "run")
    with serving(run) as server:
        watched = opened(server.address)
        members = turns_of(watched, 0)
        rewarded, own, older = members[:3]
        watched.page.evaluate(f"save(list.byId.get('{older}'), {{hint: 'An older wording.'}})")
        settled(watched)
        watched.page.evaluate("""([rewarded, own, older, accepted, undone]) => {
            const decide = (id, change) => save(list.byId.get(id), change);
            decideGroup(0, {action: "set", hint: null});
            decide(rewarded, {reward: 1});
            decide(accepted, {});
            decide(own, {hint: "A wording of its own."});
            decide(own, {reward: 0});
            decide(older, {reward: -1});
            decide(undone, {reward: 1});
            undo();
        }""", members[:5])  # fmt: skip
        settled(watched)
        expected = {name: {"hint": None} for name in members}
        expected[rewarded] |= {"reward": 1}
        expected[own] = {"hint": "A wording of its own.", "reward": 0}
        expected[older] |= {"reward": -1}
        assert decided(run) == expected
        shown = watched.page.evaluate("(ids) => ids.map((id) => list.decisions[id].hint)", members)
        assert shown == [expected[name]["hint"] for name in members]


def test_an_edited_hint_is_told_from_a_kept_one_where_the_list_cuts_both(tmp_path: Path, opened: Opening) -> None:
    hint, names = "Answer in metric units. " * 20, ["edited:1", "accepted:1"]
    said = [session(name[:-2], message("user", "hi"), message("assistant", "ho")) for name in names]
    run = write_run(tmp_path / "run", [(said, list(map(turn, names)), [verdict(name, hint, -1) for name in names])])
    for name, decided_on in zip(names, (hint + "Always!", hint), strict=True):
        reviews.append(run, [reviews.Review(name, hint_decided=True, hint=decided_on)])
    words = "Object.fromEntries(list.turns.map((turn) => [turn.hintLength, decisionWord(turn.id)]))"
    expected = {str(len(hint)): "accepted", str(len(hint) + 7): "edited"}
    for n, redacted in enumerate((False, True)):
        path = tmp_path / f"{n}.html"
        path.write_text(make_page(run, redacted=redacted), encoding="utf-8")
        assert opened(path).page.evaluate(words) == expected
    with serving(run) as server:
        assert opened(server.address).page.evaluate(words) == expected


def test_rewording_begins_with_the_whole_hint(tmp_path: Path, opened: Opening) -> None:
    hint = "Answer in metric units. " * 30 + "Always."
    said = [session("a", message("user", "hi"), message("assistant", "ho"))]
    run = write_run(tmp_path / "run", [(said, [turn("a:1")], [verdict("a:1", hint, -1)])])
    with serving(run) as server:
        watched = opened(server.address)
        watched.page.locator("#groups button", has_text="Reword").click()
        assert watched.page.input_value("#groups textarea") == hint
        watched.page.locator("#groups button", has_text="Save").click()
        settled(watched)
        assert decided(run) == {"a:1": {"hint": hint}}


def test_rewards_that_speak_against_a_hint_lead_to_the_turns_that_they_count(tmp_path: Path, opened: Opening) -> None:
    """A review counts the rewards of the votes, a report those after decisions."""
    names = ["a:1", "b:1", "c:1"]
    said = [session(name[:-2], message("user", "hi"), message("assistant", "ho")) for name in names]
    verdicts = [verdict(name, "Answer in French.", reward) for name, reward in zip(names, (1, 1, -1), strict=True)]
    run = write_run(tmp_path / "run", [(said, list(map(turn, names)), verdicts)])
    reviews.append(run, [reviews.Review(name, reward_decided=True, reward=-1) for name in names[1:]])
    path = tmp_path / "report.html"
    path.write_text(make_page(run), encoding="utf-8")
    with serving(run) as server:
        for target, counted in ((path, names[:1]), (server.address, names[:2])):
            watched = opened(target)
            watched.page.locator("#groups a", has_text="turn").click()
            assert watched.text("#groups a:has-text('turn')").startswith(f"{len(counted)} turn")
            assert sorted(watched.page.evaluate("list.shown.map((turn) => turn.id)")) == counted


def turns_of(watched: Watched, group: int) -> list[str]:
    found: list[str] = watched.page.evaluate("(number) => list.groups[number].map((turn) => turn.id)", group)
    return found


@pytest.mark.parametrize("mine", [True, False])
def test_a_second_window_that_is_out_of_date_shows_both_decisions_and_overwrites_none(
    run: Path, server: ReviewServer, browser: object, mine: bool
) -> None:
    first, second = (Watched(browser).open(server.address) for _ in range(2))
    ids = [watched.page.evaluate("whole.turn.id") for watched in (first, second)]
    assert ids[0] == ids[1]
    begin(first)
    begin(second)
    first.page.keyboard.press("X")
    settled(first)
    second.page.keyboard.press("-")
    settled(second)
    conflict = second.text("#conflicts")
    assert decided(run)[ids[0]] == {"hint": None, "reward": None}, "nothing is overwritten"
    assert "Yours: reward −1" in conflict
    assert "by tester: reward none, no hint" in conflict
    button = "Put yours in its place" if mine else "Leave the newer"
    second.page.get_by_role("button", name=button).click()
    settled(second)
    assert not second.page.locator("#conflicts").is_visible()
    assert decided(run)[ids[0]] == ({"reward": -1} if mine else {"hint": None, "reward": None})
    assert second.page.evaluate(f"list.decisions['{ids[0]}'].reward") == (-1 if mine else None)
    # A decision on all turns of a hint does not overwrite newer ones either.
    theirs = [reviews.Review(turn_id, hint_decided=True, hint="Theirs.") for turn_id in turns_of(second, 0)]
    reviews.append(run, theirs)
    second.page.locator("#groups tbody tr").first.get_by_role("button", name="Strike").click()
    settled(second)
    assert "Theirs." in second.text("#conflicts")
    assert "Theirs." in [found.get("hint") for found in decided(run).values()]
    for watched in (first, second):
        assert all("409" in words for words in watched.wrong)
        watched.page.evaluate("conflicts.clear()")
        watched.close()


def test_a_new_decision_takes_the_notice_of_the_refused_one_away(
    run: Path, server: ReviewServer, browser: object
) -> None:
    watched = Watched(browser).open(server.address)
    turn_id, group = begin(watched), turns_of(watched, 0)
    reviews.append(run, [reviews.Review(name, hint_decided=True, hint="Theirs.") for name in {turn_id, *group}])
    for old, new in (("save(whole.turn, {reward: -1})", "save(whole.turn, {reward: 1})"),
                     ("decideGroup(0, {action: 'set', hint: null})", "decideGroup(0, {action: 'keep'})")):  # fmt: skip
        watched.page.evaluate(f"seen = -1; {old}")
        settled(watched)
        assert watched.page.locator("#conflicts").is_visible()
        watched.page.evaluate(new)
        settled(watched)
        assert not watched.page.locator("#conflicts").is_visible()
    assert decided(run)[turn_id]["reward"] == 1
    assert "Theirs." not in [decided(run)[name]["hint"] for name in group]
    watched.close()


def test_any_turn_is_fetched_whole_and_decisions_are_there_again(
    run: Path, server: ReviewServer, opened: Opening
) -> None:
    first = opened(server.address)
    (decided_on,) = press(first, "-")
    settled(first)
    first.page.locator("#list button").nth(30).click()
    first.page.wait_for_selector("#whole .message.reply")
    assert first.text("#whole h3") == first.page.evaluate("list.shown[30].id")
    again = opened(server.address)
    again.page.evaluate(f"choose(list.shown.findIndex((turn) => turn.id === '{decided_on}'))")
    again.page.wait_for_selector("#panel")
    assert again.text("#decision") == "edited"
    assert "by tester" in again.text("#panel")
    assert again.page.locator('#panel [aria-pressed="true"]').inner_text().startswith("−1")


def test_nothing_is_lost_while_the_server_is_gone(run: Path, opened: Opening, browser: object) -> None:
    """The page says that the server is gone, keeps the decisions, and sends them to the new server's address."""
    with serving(run) as server:
        port = server.server_port
        watched = Watched(browser)
        watched.page.add_init_script(IMPATIENT)
        watched.open(server.address)
        watched.page.evaluate("choose(list.shown.findIndex((turn) => turn.hint))")
        watched.page.wait_for_selector("#panel")
        turn_id = watched.page.evaluate("whole.turn.id")
    watched.page.keyboard.press("+")
    watched.page.keyboard.press("x")
    watched.page.wait_for_selector("#unsent:not([hidden])")
    assert "1 decision not saved yet" in watched.text("#unsent")
    assert "not saved" in watched.text("#list")
    assert f"--port {port}" in watched.text("#unsent")
    with serving(run, port) as server:
        field = watched.page.locator("#unsent input")
        field.focus()
        watched.page.wait_for_timeout(300)  # it tries again meanwhile
        assert field.evaluate("(field) => field === document.activeElement")
        assert "1 decision not saved yet" in watched.text("#unsent")
        watched.page.keyboard.insert_text(server.address)
        settled(watched)
        assert decided(run) == {turn_id: {"reward": 1, "hint": None}}
        assert not watched.page.locator("#unsent").is_visible()
        assert server.token in watched.page.url
    assert all("ERR_CONNECTION_REFUSED" in words or "403" in words for words in watched.wrong)
    watched.close()


def test_what_the_server_refuses_is_said_and_stays_to_be_edited(
    run: Path, server: ReviewServer, browser: object
) -> None:
    watched = Watched(browser)
    watched.open(server.address)
    begin(watched)
    watched.page.fill("#note", "why")
    watched.page.keyboard.press("Escape")
    watched.page.keyboard.press("e")
    for times, words in ((1_000, "hint must be text of"), (10_000, "a decision is too long")):
        watched.page.fill("#panel textarea", "far too long " * times)
        watched.page.keyboard.press("Control+Enter")
        watched.page.locator("#problem").get_by_text(words).wait_for()
        assert len(watched.page.input_value("#panel textarea")) == 13 * times - 1
        assert watched.page.input_value("#note") == "why"
    assert watched.text("#decision") == "undecided"
    assert watched.page.locator("#unsent").is_visible()
    assert decided(run) == {}
    watched.page.fill("#panel textarea", "Short enough.")
    watched.page.keyboard.press("Control+Enter")
    settled(watched)
    (kept,) = reviews.read_reviews_in_force(run).values()
    assert (kept.hint, kept.note) == ("Short enough.", "why")
    assert not watched.page.locator("#unsent").is_visible()
    watched.close()


def test_what_another_reviewer_decides_is_seen_on_coming_back(run: Path, server: ReviewServer, opened: Opening) -> None:
    watched = opened(server.address)
    begin(watched)
    turn_id = watched.page.evaluate("whole.turn.id")
    reviews.append(run, [reviews.Review(turn_id, reward_decided=True, reward=0)], reviewer="another")
    watched.page.evaluate("lookAgain()")
    assert watched.text("#decision") == "edited"
    assert "by another" in watched.text("#panel")
    assert "edited" in watched.text("#list .badges")


class Tunnel(socketserver.StreamRequestHandler):
    """Handler that forwards a connection to a local port, as `ssh -L` does."""

    to = 0

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.to)) as other:
            threading.Thread(target=self.answer, args=(other,), daemon=True).start()
            while data := self.request.recv(1 << 16):
                other.sendall(data)

    def answer(self, other: socket.socket) -> None:
        with contextlib.suppress(OSError):  # `handle` closes both when the browser leaves
            while data := other.recv(1 << 16):
                self.request.sendall(data)
            self.request.shutdown(socket.SHUT_RDWR)


def test_it_works_through_a_tunnel_from_another_port(run: Path, server: ReviewServer, opened: Opening) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), type("To", (Tunnel,), {"to": server.server_port})) as tunnel:
        tunnel.daemon_threads = True
        thread = threading.Thread(target=tunnel.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        port = tunnel.server_address[1]
        assert port != server.server_port
        watched = opened(server.address.replace(f":{server.server_port}/", f":{port}/"))
        (turn_id,) = press(watched, "X")
        settled(watched)
        assert decided(run) == {turn_id: {"hint": None, "reward": None}}
        watched.page.goto("about:blank")
        tunnel.shutdown()
        thread.join()


def test_a_hostile_run_runs_nothing_here_either(tmp_path: Path, opened: Opening) -> None:
    """No text of a user runs as a script, in turn ids in addresses, views, notes or names of reviewers."""
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
