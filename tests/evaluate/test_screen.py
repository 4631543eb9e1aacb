"""Tests of the scores on the screen: what is shown, and that it fits."""

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from opdkit.evaluate import scores as score_table
from opdkit.evaluate.scores import METRICS as EVERY_METRIC
from opdkit.evaluate.scores import STREAKS

METRICS = {name: metric for name, metric in EVERY_METRIC.items() if name not in STREAKS}
POOLED = ("all", "corrected", "uncorrected")


def rows(domains: tuple[str, ...], **values: float) -> list[dict]:
    """Return every metric in every domain; `values`: metric -> its value before and after, else 0.25 and 0.5."""
    return [
        {"metric": metric, "domain": domain, "before": values.get(metric, 0.25), "after": values.get(metric, 0.5),
         "difference": 0.25, "low": -123.456, "high": 0.5, "count": 1234}
        for metric in METRICS for domain in domains
    ]  # fmt: skip


def shown(
    monkeypatch: pytest.MonkeyPatch, scores: list[dict], replies: Sequence[dict] = (), width: int = 80
) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    monkeypatch.setattr(score_table, "stdout", console)
    score_table.print_scores(scores, replies)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 100])
def test_a_row_is_a_line(monkeypatch, width) -> None:
    lines = shown(monkeypatch, rows((*POOLED, "weather", "trains", "orders")), width=width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 2 + len(METRICS) * 3 + 3 * 3 + 1
    assert all(any(line.startswith(words) for line in lines) for words, _, _ in METRICS.values())
    assert sum("weather" in line for line in lines) == 3


def test_a_long_or_odd_name_is_shown_whole_and_drives_nothing(monkeypatch) -> None:
    name = "[bold]" + "a-domain-of-a-very-long-name" * 2 + "\x1b[31m"
    lines = shown(monkeypatch, rows(("all", name, "b")))
    assert max(map(len, lines)) <= 80
    text = "".join("".join(line.split()) for line in lines)
    assert "[bold]" in text
    assert "\x1b" not in text


def test_a_table_of_texts_has_names_as_they_are() -> None:
    """Such a table is for the report, which does not read Rich's markup."""
    assert score_table.score_rows(rows(("[draft] first",)))[1][1] == "[draft] first"


def test_one_domain_is_everything(monkeypatch) -> None:
    assert not any("weather" in line for line in shown(monkeypatch, rows(("all", "weather"))))


def test_what_never_happens_is_one_line(monkeypatch) -> None:
    """The line counts the replies that were measured: the sampled ones, or the greedy ones if none was sampled."""
    sampled = [{"model": m, "sample": k, "probe": None} for m in ("before", "after") for k in range(5)]
    lines = shown(
        monkeypatch,
        rows(POOLED, hint_echo=0.0, cut_off=0.0),
        [*sampled, {"model": "after", "sample": 1, "probe": None}],
    )
    assert lines[-3:-1] == [
        "cut off by the limit: 0 of 5 replies, before 0 of 4",
        "hint echo: 0 of 5 replies, before 0 of 4",
    ]
    greedy = [{"model": m, "sample": 0, "probe": None} for m in ("before", "after")]
    assert "hint echo: 0 of 1 reply, before 0 of 1" in shown(monkeypatch, rows(POOLED, hint_echo=0.0), greedy)
    assert sum(line.startswith("hint echo") for line in shown(monkeypatch, rows(POOLED))) == 1


def test_too_few_for_an_interval_is_said(monkeypatch) -> None:
    few = rows(("all",), hint_echo=0.0)[0] | {"low": None, "high": None, "count": 5}
    assert shown(monkeypatch, [few])[-1] == "no interval: n under 6 (a session counts once), or all changes are equal."
    assert not any("no interval" in line for line in shown(monkeypatch, [few | {"low": 0.0, "high": 0.5}]))


def test_nothing_to_compare_is_a_dash(monkeypatch) -> None:
    row = rows(("all",))[0] | {"before": None, "after": None, "difference": None, "low": None, "high": None, "count": 0}
    (line,) = [line for line in shown(monkeypatch, [row]) if "right replies" in line]
    assert line.split()[3:] == ["all", "-", "-", "-", "-", "0"]


def test_a_streak_is_one_line_with_both_sides_and_never_in_words(monkeypatch) -> None:
    logged = {"metric": "log_streak", "domain": "all", "before": 1234.0, "after": None, "difference": None, "low": None,
              "high": None, "count": 1234}  # fmt: skip
    hinted = logged | {"metric": "hint_streak", "before": 64.0, "after": 0.0, "difference": -64.0, "count": 64}
    lines = shown(monkeypatch, [*rows(POOLED), logged, hinted])
    assert "sessions until 3 in a row are right, in the log: never, of 1,234 sessions" in lines
    assert "sessions until 3 in a row follow the hint: 0, before never, of 64 sessions" in lines
    card = score_table.format_scores([logged, hinted])
    assert "| sessions until 3 in a row follow the hint | never | 0 | -64 | - | 64 |" in card
    assert "| never | - | - | - | 1,234 |" in card
