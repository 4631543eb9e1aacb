"""Tests of the page in a browser: offline use, search, filters, tokens and the keyboard, in both themes."""

import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import pytest
from browser import Watched
from checked_runs import recommit
from named_trainings import two_trainings
from PIL import Image

from opdkit.commands.compare import compare
from opdkit.commands.report.collect import collect
from opdkit.commands.report.page import make_page
from opdkit.commands.turns.view import STEPS, read_turn_views
from opdkit.config.compare import CompareConfig
from opdkit.config.extract import ExtractConfig
from opdkit.evaluate.conclusion import read_conclusion
from opdkit.evaluate.scores import score_rows
from opdkit.extract import stage as extract
from opdkit.store import reviews
from opdkit.store.reading import read_all
from opdkit.store.reviews import Review
from opdkit.train.data_summary import NEAR_ZERO

pytestmark = pytest.mark.slow

Opening = Callable[..., Watched]


def shown(watched: Watched) -> list[str]:
    found: list[str] = watched.page.evaluate("list.shown.map((turn) => turn.id)")
    return found


def test_it_opens_from_the_disk_with_every_section(report: Path, opened: Opening) -> None:
    """The fixture checks for every page that there is no console error, no request and no dialog."""
    watched = opened(report)
    for section, words in {
        "overview": "conversations in the logs", "feedback": "turns judged", "hints": "Length of the hints",
        "advantages": "tokens with a teacher's advantage", "shares": "Largest of 24 sessions", "turns": "turns",
        "training": "4 optimizer steps", "evaluation": "right replies, sampled", "configuration": "max_hint_chars",
    }.items():  # fmt: skip
        if section == "configuration":
            watched.page.get_by_text("All options").nth(1).click()
        watched.says(f"#{section}", words)
    assert watched.page.locator("canvas").count() > 5
    assert watched.page.locator("#list button").count() == 50


def test_it_opens_with_the_answer(report: Path, run: Path, opened: Opening) -> None:
    """The answer comes first. Each of its numbers links to that many turns, or to the section that counts them."""
    watched = opened(report)
    page, found = watched.page, read_conclusion(run)
    assert found is not None
    assert page.locator("main > section").first.get_attribute("id") == "answer"
    watched.says("#answer", found.sentence)
    watched.says("#answer", "nothing in the log follows the reply")
    watched.says("#evaluation", "More is better: right replies, sampled; right replies, greedy")
    assert page.evaluate("byId('answer').getBoundingClientRect().top") < 200
    page.evaluate("byId('accounts').open = false")
    links = page.locator("#answer li a")
    counted = 0
    for n in range(links.count()):
        number, target = links.nth(n).inner_text(), links.nth(n).get_attribute("href")
        links.nth(n).click()
        if target.startswith("#turns?"):
            watched.says("#found", f"{number.split()[0]} of ")
            assert f"{len(shown(watched))}" == number.split()[0]
            assert page.evaluate("location.hash") == target
            counted += 1
        else:
            assert page.locator(target).is_visible(), "a link into the accounts opens them"
    assert counted > 1
    page.click("#show-all")
    assert page.evaluate("location.hash") == "#turns"


_UNFOLD = "document.querySelectorAll('main details').forEach((one) => { one.open = true; })"
# Clicks every link that is a count. Returns [its text, what it counts, the count that the list then shows, its hash].
_FOLLOW_COUNTS = """() => [...document.querySelectorAll('a[data-counts]')].map((link) => {
  link.click();
  const [, turns, sessions] = /^([\\d,]+) of .*; ([\\d,]+) sessions?(; only|$)/.exec(byId('found').textContent);
  return [link.textContent, link.dataset.counts, link.dataset.counts === 'turns' ? turns : sessions, link.hash];
})"""
# Numbers in tables that count turns or sessions, but are neither 0 nor a link: [section, column, number].
_UNLINKED = """() => [...document.querySelectorAll('table')].flatMap((table) => {
  const heads = [...table.querySelectorAll('thead tr > *')].map((th) => th.textContent);
  const counts = (head) => ['turns', 'sessions', 'judged', 'hints', '+1', '0', '−1', 'logged replies', 'trained turns',
                            'replies'].includes(head);
  const ofTokens = heads[1] === 'share' ? ['target tokens'] : [];
  return [...table.querySelectorAll('tbody tr')].flatMap((row) => [...row.children].map((cell, n) => [heads[n], cell])
    .filter(([head, cell]) => counts(head) && !ofTokens.includes(head) && cell.classList.contains('number') &&
                              cell.textContent !== '0' && !cell.querySelector('a[data-counts]'))
    .map(([head, cell]) => [table.closest('section').id, head, cell.textContent]));
})"""


def test_every_count_leads_to_what_it_counts(run: Path, tmp_path: Path, opened: Opening) -> None:
    """In every section, even after review decisions, a link leads to as many turns or sessions as it says."""
    reviewed = shutil.copytree(run, tmp_path / "run")
    hinted = [row["turn_id"] for row in read_all(run, "verdicts") if row["hint"]]
    reviews.append(
        reviewed,
        [
            Review(hinted[0], hint_decided=True, hint=None),
            Review(hinted[1], True, 1, True, "Answer in French, please."),
            Review(hinted[2]),
            Review(hinted[3], hint_decided=True, hint="Write it in French:\n" + "Bonjour ! " * 500),
        ],
    )
    path = tmp_path / "reviewed.html"
    path.write_text(make_page(reviewed), encoding="utf-8")
    watched = opened(path)
    watched.page.evaluate(_UNFOLD)
    for section, words in {
        "#feedback": ("4 turns reviewed by people, 3 of them changed", "One vote per turn: agreement says nothing"),
        "#hints": ("20 to 40", "620 or more"), "#advantages": ("below −4.75", "−4.75 to −4.50", "4.75 or more"),
    }.items():  # fmt: skip
        for one in words:
            watched.says(section, one)
    followed = watched.page.evaluate(_FOLLOW_COUNTS)
    assert [one for one in followed if one[0].split()[0] != one[2]] == []
    sections = watched.page.evaluate("[...document.querySelectorAll('section:has(a[data-counts])')].map((s) => s.id)")
    assert {"answer", "hints", "advantages", "feedback", "shares", "overview"} <= set(sections)
    assert len(followed) > 100
    assert watched.page.evaluate(_UNLINKED) == []
    kinds = {name for *_, address in followed for name in parse_qs(address.partition("?")[2])}
    assert kinds >= {"trainable", "judged", "rewarded", "hinted", "decided", "target", "voted", "vote", "agreement",
                     "hint", "length", "asks", "says", "tokens", "scored", "weighed", "source", "session",
                     "skip"}  # fmt: skip


def test_what_extract_left_out_is_counted_in_lines_or_sessions(tmp_path: Path, opened: Opening) -> None:
    log, said = tmp_path / "log.jsonl", ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."})
    lines = [json.dumps({"id": n, "messages": [*said, *said]}) for n in range(3)]
    log.write_text("\n".join(["broken", "torn", *lines]), encoding="utf-8")
    extract.run(ExtractConfig(run=tmp_path / "run", logs=(str(log),)))
    path = tmp_path / "report.html"
    path.write_text(make_page(tmp_path / "run"), encoding="utf-8")
    opened(path).says("#answer", "not JSON: 2 lines or sessions")


def test_going_back_takes_the_filters_away_and_the_link_to_the_section_keeps_them(
    report: Path, opened: Opening
) -> None:
    watched = opened(report)
    page = watched.page
    every = page.inner_text("#found")
    page.evaluate("document.querySelector('#hints a[data-counts]').click()")
    assert (filtered := page.inner_text("#found")) != every
    page.locator("#sections a", has_text="Turns").click()
    assert page.inner_text("#found") == filtered
    page.go_back()
    page.go_back()
    watched.says("#found", every)


def test_a_link_to_a_turn_that_the_list_lacks_names_the_command(report: Path, run: Path, opened: Opening) -> None:
    watched = opened(report)
    watched.page.evaluate("filterBy('#turns?turn=far+away:3')")
    assert watched.text("#whole") == f"far away:3 is not in this list: opdkit show {run} 'far away:3'"
    watched.page.keyboard.press("j")
    watched.says("#whole h3", shown(watched)[0])


def test_a_target_scored_before_the_decision_says_so(run: Path, tmp_path: Path, opened: Opening) -> None:
    reviewed = shutil.copytree(run, tmp_path / "run")
    changed, accepted = [row["turn_id"] for row in read_all(run, "targets") if row["hint"]][:2]
    reviews.append(reviewed, [Review(changed, hint_decided=True, hint=None), Review(accepted)])
    path = tmp_path / "reviewed.html"
    path.write_text(make_page(reviewed), encoding="utf-8")
    watched = opened(path)
    for turn_id in (changed, accepted):
        watched.page.evaluate(f"filterBy('#turns?turn={turn_id}')")
        watched.says("#whole h3", turn_id)
        assert ("Scored before the decision" in watched.text("#whole")) == (turn_id == changed)


def test_a_link_to_one_of_many_sources_leads_to_it(report: Path, opened: Opening) -> None:
    """The filter field has options only for the most frequent sources."""
    watched = opened(report)
    watched.page.evaluate("""() => {
        list.turns = Array.from({length: 400}, (_, n) => ({...list.turns[0], n, id: `t:${n}`, source: `log-${n}`}));
        byId("filters").replaceChildren();
        makeFilters(false);
    }""")
    for n in (7, 390):
        watched.page.evaluate(f"filterBy('#turns?source=log-{n}')")
        assert shown(watched) == [f"t:{n}"]
        assert watched.page.evaluate("String(held())") == f"source=log-{n}"


def test_a_bar_leads_to_its_turns(report: Path, opened: Opening) -> None:
    watched = opened(report)
    chart = watched.page.locator("#hints .chart").first
    chart.scroll_into_view_if_needed()
    bars = watched.page.evaluate("data.summary.hints.lengths")
    start, number = max(bars, key=lambda bar: bar[1])
    x = watched.page.evaluate("""(start) => {
        const {plot} = drawn.find((one) => one.place.closest("#hints"));
        return plot.valToPos(start, "x") + 2;
    }""", start)  # fmt: skip
    chart.locator(".u-over").click(position={"x": x, "y": 100})
    watched.says("#found", f"{number} of ")
    assert watched.page.evaluate("location.hash") == f"#turns?length={start}"
    watched.says("#found", f"only characters of the hint, from: {start}")
    watched.page.click("#show-all")
    assert len(shown(watched)) == watched.page.evaluate("list.turns.length")


def test_the_address_holds_search_and_filters(report: Path, run: Path, opened: Opening) -> None:
    watched = opened(report)
    page = watched.page
    page.fill("#search", '"in Celsius"')
    page.select_option("#filter-reward", label=page.locator("#filter-reward option", has_text="−1").inner_text())
    page.wait_for_function("location.hash.includes('reward=-1')")
    kept, address = shown(watched), page.evaluate("location.href")
    assert kept
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    with_turn = page.evaluate("location.href")
    for url in (address, with_turn):
        page.goto("about:blank")
        page.goto(url)
        page.wait_for_selector("html[data-ready]")
        assert shown(watched) == kept
        assert page.input_value("#search") == '"in Celsius"'
    assert watched.text("#whole h3") in kept
    assert page.locator("#list [aria-current=true]").count() == 1


def test_one_legend_explains_all_replies_of_a_turn(report: Path, opened: Opening) -> None:
    page = opened(report).page
    assert page.locator("#whole .legend").count() == 1
    page.evaluate("""() => {
        const view = whole.views.get(whole.turn.id), targets = [...view.targets, {...view.targets[0], written: 0}];
        byId("whole").replaceChildren(...viewed({...view, targets}));
    }""")
    assert page.locator("#whole .tokens").count() == 2
    assert page.locator("#whole .legend").count() == 1


def test_the_teachers_token_stands_above_a_strongly_marked_one(report: Path, run: Path, opened: Opening) -> None:
    watched = opened(report)
    marked = watched.page.locator("#whole .token.corrected").first
    above = marked.locator(".instead").inner_text().strip()
    (token,) = [one for view in read_turn_views(run, [typical(run)]) for target in view["targets"]
                for one in target["tokens"] if one["likely"] and one["advantage"] <= -STEPS[1]
                and one["likely"]["teacher"][0][0] != one["text"]][:1]  # fmt: skip
    spelled = "(text) => el('span', {}, spelled(text)).textContent"  # a control character has a name
    assert above == watched.page.evaluate(spelled, token["likely"]["teacher"][0][0]).strip()
    marked.click()
    for model in ("student", "teacher"):
        for text, _ in token["likely"][model]:
            watched.says(".likely", watched.page.evaluate(spelled, text).strip())


def test_the_figures_have_their_numbers_beside_them(report: Path, run: Path, opened: Opening) -> None:
    """Tables give reward by length, and drift with its largest reply; a small screen shows them too."""
    watched = opened(report, width=390)
    rewarded = sum(row["reward"] is not None for row in read_all(run, "targets"))
    tables = watched.page.locator("#advantages table", has_text="mean reward")
    cells = tables.locator("tbody td:nth-child(2)").all_inner_texts()
    assert sum(map(int, cells)) == rewarded > 0
    assert tables.locator("tbody tr").count() == tables.locator("div.shares").count()
    assert watched.page.locator("#advantages canvas").count() == 1
    watched.says("#evaluation", "The drift (KL, nats per token) of each reply that the model before wrote")
    watched.says("#evaluation", "is the mean over the tokens of all these replies")
    assert "mean over replies" not in watched.text("#evaluation")
    watched.says("#evaluation", "maximum")
    largest = watched.page.locator("#evaluation table", has_text="reply of the model before").locator("tbody tr")
    assert largest.first.inner_text().split("\t") == ["a", "1", "0.5000", "Yes.", "Yes."]


def test_validations_are_drawn_with_the_step_that_was_handed_out(report: Path, opened: Opening) -> None:
    watched = opened(report)
    watched.says("#training", "step 2: the best state, which became the model (hint_kl 0.25, kept_kl 0.12)")
    chart = watched.page.locator("#training .chart").first
    chart.scroll_into_view_if_needed()
    assert chart.locator(".u-legend .u-label").all_inner_texts() == ["step", "hint_kl", "kept_kl"]
    # Share of canvas rows with the text's colour near each step: only step 2 has the dashed line.
    dark = watched.page.evaluate("""() => {
        const {plot} = drawn.find((one) => one.place.closest("#training")), {left, top, width, height} = plot.bbox;
        const {data} = plot.ctx.getImageData(left, top, width, height);
        const isDark = (x, y) => data[4 * (y * width + x)] === 20 && data[4 * (y * width + x) + 3] === 255;
        const xs = [0, 2, 4].map((step) => Math.round(plot.valToPos(step, "x", true) - left));
        return xs.map((x) => Array.from({length: height}, (_, y) => y).filter((y) =>
            [x - 2, x - 1, x, x + 1].some((near) => near >= 0 && near < width && isDark(near, y))).length / height);
    }""")
    assert dark[1] > 0.3 > 0.1 > max(dark[0], dark[2])
    watched.page.locator("#training").get_by_text("As a table").first.click()
    watched.says("#training .scroll", "the model")
    rows = watched.page.locator("#training .scroll").first.locator("tbody tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["0", "0.75", "0", ""], ["2", "0.25", "0.125", "the model"], ["4", "0.125", "0.5", ""]
    ]  # fmt: skip


def test_several_trainings_have_a_section_and_one_has_none(
    report: Path, tmp_path: Path, plain_model_dir: Path, opened: Opening
) -> None:
    assert opened(report).page.locator("#comparison").count() == 0
    made = two_trainings(tmp_path, plain_model_dir)
    found = compare(CompareConfig(run=made))
    path = tmp_path / "several.html"
    path.write_text(make_page(made), encoding="utf-8")
    watched = opened(path)
    watched.says("#answer", found.sentence)  # the run itself has no training
    for said in (found.sentence, *(f"Look: {line}." for line in found.watch)):
        watched.says("#comparison", said)
    watched.says("#sections", "Trainings")
    watched.says("#comparison", "--objective")
    watched.page.locator("#comparison summary").click()
    watched.says("#comparison", "right replies")  # this part is written when it opens
    rows = watched.page.locator("#comparison .scroll").nth(1).locator("tbody tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == score_rows(found.scores["b"])[1:]
    path.write_text(make_page(made, redacted=True), encoding="utf-8")
    opened(path).says("#answer", "have names, which are left out")


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
    assert shown(watched)[0] == typical(run)
    watched.page.select_option("#sort", "strength")
    assert shown(watched)[0] == strongest(run)
    watched.page.select_option("#sort", "log")
    assert shown(watched) == [row["turn_id"] for row in read_all(run, "turns")]


def strongest(run: Path) -> str:
    def mean(row: dict) -> float:
        pairs = zip(row["teacher_logprobs"] or [], row["old_logprobs"], strict=False)
        values = [abs(teacher - old) for teacher, old in pairs]
        return sum(values) / len(values) if values else 0.0

    rows = list(read_all(run, "targets"))
    assert rows
    found: str = max(rows, key=mean)["turn_id"]
    return found


def typical(run: Path) -> str:
    """Return the turn at the median of the summed |advantages| among the -1 replies of the largest hint group."""
    hints = {text for text, _ in collect(run, 1).summary["hints"]["groups"][0]["wordings"]}
    sizes = {row["turn_id"]: sum(abs(np.subtract(row["teacher_logprobs"], row["old_logprobs"])))
             for row in read_all(run, "targets") if row["hint"] in hints and row["reward"] == -1}  # fmt: skip
    median = np.median(list(sizes.values()))
    return min(sizes, key=lambda turn_id: abs(sizes[turn_id] - median))


def test_it_opens_with_a_typical_turn(report: Path, run: Path, opened: Opening) -> None:
    """The turn opens beside the list, without scrolling. If a filter hides it, the next key opens the first listed."""
    watched = opened(report)
    assert watched.text("#whole h3") == typical(run) == shown(watched)[0]
    assert watched.page.locator("#whole .tokens .token").count() > 0
    assert watched.page.locator("#list [aria-current=true]").count() == 1
    assert watched.page.evaluate("[scrollY, location.hash]") == [0, ""]
    watched.page.select_option("#filter-reward", label=watched.page.locator("#filter-reward option",
                               has_text="+1").inner_text())  # fmt: skip
    assert typical(run) not in shown(watched)
    assert watched.page.locator("#list [aria-current=true]").count() == 0
    watched.page.evaluate("document.activeElement.blur()")
    watched.page.keyboard.press("j")
    assert watched.text("#whole h3") == shown(watched)[0]


def test_a_run_without_a_teacher_promises_no_tokens(run: Path, tmp_path: Path, opened: Opening) -> None:
    judged = shutil.copytree(run, tmp_path / "run")
    for stage in ("teacher", "train", "eval"):
        shutil.rmtree(judged / stage)
    path = tmp_path / "judged.html"
    path.write_text(make_page(judged), encoding="utf-8")
    watched = opened(path)
    assert "tokens" not in watched.page.locator("#list .badge").all_inner_texts()
    assert watched.text("#whole") == "Choose a turn in the list, or press j, to see it here."
    assert shown(watched) == [row["turn_id"] for row in read_all(judged, "turns")]
    watched.page.keyboard.press("j")
    assert watched.text("#whole h3") == shown(watched)[0]
    assert "token by token" not in watched.text("#turns")


def test_the_effect_of_a_hint_has_a_unit_and_a_scale(calculating: Watched) -> None:
    """Unit and scale are above the table. The limit for nearly nothing is that below which `train` warns."""
    heads = calculating.page.locator("#groups thead th").all_inner_texts()
    assert "effect (nats per token)" in heads
    said = calculating.text("#groups > p")
    assert f"Under {NEAR_ZERO} the hint changes nearly nothing, {STEPS[0]} is small" in said
    assert f"from {STEPS[1]} on it is large" in said


def test_numbers_are_those_of_the_terminal(calculating: Watched) -> None:
    """A value exactly in the middle is rounded to the even digit, as Python does."""
    draw = random.Random(3)
    numbers = [n / 2**k for n in range(-40, 41) for k in range(5)] + [draw.uniform(-3, 3) for _ in range(300)]
    numbers += [1.0005, 2.675, 1e6 + 0.5, 0.1, 1e-9]
    for digits in range(4):
        found = calculating.page.evaluate("([xs, digits]) => xs.map((x) => fixed(x, digits))", [numbers, digits])
        assert [text.replace("−", "-") for text in found] == [f"{x:z.{digits}f}" for x in numbers]
    assert calculating.page.evaluate("[[573, 575], [2, 575], [0, 5], [5, 5], [1, 2], [99999, 1e5], [1, 1e5], [1, 0]]"
                                 ".map(([part, whole]) => share(part, whole))") == [
        "99.7%", "0.3%", "0%", "100%", "50%", "over 99.9%", "under 0.1%", "–"
    ]  # fmt: skip


@pytest.mark.parametrize(("metric", "low", "high", "kind"), [
    ("passed_sampled", 0.1, 0.3, "better"), ("passed_sampled", -0.3, -0.1, "worse"),
    ("passed_sampled", -0.1, 0.3, "neither"), ("logprob_bad", -0.4, -0.3, "better"),
    ("logprob_bad", 0.3, 0.4, "worse"), ("logprob_good", -0.4, -0.3, "worse"), ("cut_off", -0.2, -0.1, "better"),
    ("hint_echo", 0.1, 0.2, "worse"), ("kl_replies", 0.1, 0.2, "neither"), ("kl_neutral", 0.1, 0.2, "neither"),
    ("reply_tokens", 2, 3, "neither"), ("logprob_neutral", -0.2, -0.1, "neither"), ("constructor", 1, 2, "neither"),
    ("passed_greedy", None, None, "neither"),
])  # fmt: skip
def test_a_change_is_good_or_bad_by_the_direction_of_its_metric(
    metric: str, low: float | None, high: float | None, kind: str, calculating: Watched
) -> None:
    row = {"metric": metric, "domain": "all", "before": 0.5, "after": 0.6, "low": low, "high": high, "count": 3,
           "difference": (low + high) / 2 if low is not None and high is not None else 0.1,
           "chance": None if low is None or high is None else 0.01 if low * high > 0 else 0.4}  # fmt: skip
    calculating.page.evaluate(
        "(row) => byId('evaluation').replaceChildren(...comparison(data.summary.evaluation, [row]))", row
    )
    assert calculating.page.locator("#evaluation .interval .change").get_attribute("class") == f"change {kind}"
    words = calculating.text("#evaluation tbody")
    assert [word for word in ("better", "worse") if word in words] == ([] if kind == "neither" else [kind])


def test_changes_of_one_unit_are_drawn_on_one_scale(calculating: Watched) -> None:
    ends = {"kl_replies": 0.006, "logprob_bad": -1.2, "cut_off": 0.5}
    rows = [{"metric": metric, "domain": "all", "count": 1, "before": 0}
            | dict.fromkeys(("after", "difference", "low", "high"), end) for metric, end in ends.items()]  # fmt: skip
    draw = "(rows) => byId('evaluation').replaceChildren(...comparison(data.summary.evaluation, rows))"
    calculating.page.evaluate(draw, rows)
    places = calculating.page.evaluate("[...document.querySelectorAll('.interval .change')].map((b) => b.style.left)")
    assert [float(place.rstrip("%")) for place in places] == pytest.approx([50.23, 4, 96])
    assert "from −1.20 to +1.20 (nats per token), from −0.50 to +0.50 (share)" in calculating.text("#evaluation")


def test_tables_fit_and_legends_wait_for_the_pointer(report: Path, opened: Opening) -> None:
    watched = opened(report, width=1280)
    wide = "[...document.querySelectorAll('#feedback .scroll')].filter((e) => e.scrollWidth > e.clientWidth).length"
    assert watched.page.evaluate(wide) == 0
    assert not watched.page.locator(".u-legend").first.is_visible()
    watched.page.locator(".u-over").first.hover()
    watched.page.locator(".u-legend").first.wait_for(state="visible")


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


def test_a_vote_that_failed_shows_what_the_judge_wrote(run: Path, tmp_path: Path, opened: Opening) -> None:
    failed = shutil.copytree(run, tmp_path / "run")

    def fail(rows: list[dict]) -> None:
        for row in rows:
            row["reward_votes"] = [{"score": None, "raw": "It was fine,\x1b[31m I think.", "error": "no decision"},
                                   {"score": 1, "raw": "Fine.", "error": None, "confidence": 0.5}]  # fmt: skip
            row |= {"reward": None, "reward_status": "failed", "reward_agreement": None}

    for part in range(3):
        recommit(failed, "verdicts", part, fail)
    path = tmp_path / "failed.html"
    path.write_text(make_page(failed), encoding="utf-8")
    watched = opened(path)
    watched.page.locator("#verdict summary").click()
    watched.says("#verdict", "no vote: no decision")
    watched.says("#verdict", "It was fine,U+001B[31m I think.")
    watched.says("#verdict", "(50%)")  # the confidence of the other vote


def test_the_keyboard_alone(report: Path, opened: Opening) -> None:
    watched = opened(report)
    press = watched.page.keyboard.press
    press("j")  # the first turn is already open
    second = shown(watched)[1]
    assert watched.text("#whole h3") == second
    press("k")
    assert watched.text("#whole h3") == shown(watched)[0]
    press("/")
    assert watched.page.evaluate("document.activeElement.id") == "search"
    watched.page.keyboard.type("j?")  # in a field, a key types its letter
    assert watched.page.input_value("#search") == "j?"
    press("Escape")
    press("?")
    assert watched.page.evaluate("document.getElementById('help').open")
    assert "orange, less likely" in watched.text("#help")
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
    """Nothing overflows sideways, every text has the contrast of WCAG AA, and a screenshot is written to look at."""
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_axe_finds_nothing(report: Path, opened: Opening, scheme: str, width: int, height: int) -> None:
    """axe is run with everything unfolded, and again with the help open."""
    watched = opened(report, scheme=scheme, width=width, height=height)
    watched.page.evaluate(_UNFOLD)
    watched.says("#overview", "trainable")
    assert watched.accessibility_findings() == []
    watched.page.click("#help-button")
    assert watched.accessibility_findings() == []


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_the_conclusion_is_on_the_first_screen(report: Path, opened: Opening, width: int, height: int) -> None:
    watched = opened(report, width=width, height=height)
    bottoms = watched.page.evaluate("""['.sentence', '.facts', '.next'].map((kind) =>
        document.querySelector('#answer ' + kind).getBoundingClientRect().bottom)""")
    assert max(bottoms) <= height


# Elements whose content overflows: [element, visual cue, whether the keyboard can scroll it (or it has an ellipsis)].
_OVERFLOWS = """() => [...document.querySelectorAll('body *')].filter((one) => one.checkVisibility()).flatMap((one) => {
  const style = getComputedStyle(one), name = `${one.tagName} ${one.className} #${one.id}`;
  const over = (kind) => (kind === 'X' ? one.scrollWidth - one.clientWidth : one.scrollHeight - one.clientHeight) > 1;
  return ['X', 'Y'].filter((kind) => style['overflow' + kind] !== 'visible' && one.clientWidth > 1 && over(kind))
    .map((kind) => {
      const shade = style.backgroundAttachment.includes('local') && style.backgroundImage.includes('linear-gradient'),
        after = getComputedStyle(one, '::after'),
        cue = style.webkitLineClamp !== 'none' ? 'ellipsis' : shade ? 'shade' :
              after.position === 'sticky' && after.backgroundImage.includes('linear-gradient') ? 'shade' : null;
      return [name, cue, cue === 'ellipsis' || one.tabIndex >= 0 || one.querySelector('a, button') !== null];
    });
})"""
# Elements that extend beyond the screen and are in no scrolling container.
_BEYOND = """() => [...document.querySelectorAll('main *, header *')].filter((one) => one.checkVisibility() &&
  one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.scroll, nav, .skip, .u-over, .u-wrap'))
  .map((one) => `${one.tagName} ${one.className}`)"""


def test_what_overflows_on_a_phone_shows_it(report: Path, opened: Opening) -> None:
    """The cue is an ellipsis, or a shade on each side with more content, which is gone at that end."""
    watched = opened(report, width=390, height=844)
    watched.page.evaluate(_UNFOLD)
    watched.says("#overview", "trainable")
    found = watched.page.evaluate(_OVERFLOWS)
    assert len(found) > 5
    assert [one for one in found if one[1] is None or not one[2]] == []
    assert watched.page.evaluate(_BEYOND) == []
    table = watched.page.locator("#evaluation .scroll").first
    assert table.evaluate("(one) => one.scrollWidth > one.clientWidth")
    shades = []
    for place in (0, 10_000):
        table.evaluate("(one, place) => { one.scrollLeft = place; }", place)
        pixels = np.asarray(Image.open(io.BytesIO(table.screenshot())).convert("L"))
        shades.append([np.quantile(strip, 0.25) for strip in (pixels[:, :4], pixels[:, -4:])])
    (left_at_first, right_at_first), (left_at_last, right_at_last) = shades
    assert right_at_first < 220 < left_at_first
    assert left_at_last < 220 < right_at_last


# Elements with text of their own whose contrast with their background is under 4.5 (WCAG 2.2, 1.4.3).
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
    """To stay below `max_mb`, the page shows fewer whole turns, shorter texts and fewer lines."""
    sizes = {}
    for most in (0.24, 3.0):
        html = make_page(run, turns=5, rows=20, max_mb=most)
        sizes[most] = len(html.encode())
        assert sizes[most] <= most * 1e6
    path = tmp_path / "small.html"
    path.write_text(html, encoding="utf-8")
    watched = opened(path)
    total = len(list(read_all(run, "turns")))
    assert f"20 of 20 turns, of {total} in the run" in watched.text("#found")
    # Of the reasons why a reply is no target, the list knows only one, and a sample cannot tell by their number.
    linked = "(why) => lostLink({name: 'targets'}, why, 3) instanceof Node"
    assert [watched.page.evaluate(linked, why) for why in ("no signal", "too long")] == [True, False]
    watched.page.select_option("#filter-whole", label="in the list only (15)")
    watched.page.keyboard.press("Escape")
    watched.page.locator("#list button").first.click()
    assert "opdkit show" in watched.text("#whole pre")
