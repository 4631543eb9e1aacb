"""Tests of opdkit/commands/forecast.py: the expected gain, from replies with and without hints, and the costs."""

import json
import math
import re
from pathlib import Path

import pytest
from http_server import completion, serving
from judged_runs import judge_in_vain, message, one_part, session, turn, verdict, write_run
from typer.testing import CliRunner

from opdkit.api import Run
from opdkit.cli import app
from opdkit.commands import forecast
from opdkit.commands.forecast import HALF_LEARNED, SPREAD, UNSURE, expect, measure_skill, predict
from opdkit.config.forecast import ForecastConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.train import MOST_EPOCHS
from opdkit.errors import OpdkitError
from opdkit.judge import stage as judging
from opdkit.judge.votes import OUTCOME, Answer
from opdkit.store.reviews import Review, append
from opdkit.store.skip_reasons import NO_NEXT
from opdkit.teacher import hint_checks
from opdkit.teacher.hint_checks import HELPS, NO_BETTER, NOT_JUDGED, NOT_NEEDED


def known(yes: tuple[int, int], no: tuple[int, int]) -> dict[str, tuple[int, int]]:
    return {"follow": yes, "do not follow": no}


SURE = known((90, 90), (90, 90))
HINT = "Answer in one short sentence."


def talk(name: str) -> dict:
    """Return a session in which the user complains about the first reply and praises the second reply."""
    said = [("user", f"{name}?"), ("assistant", "A long and winding answer."), ("user", "Shorter."),
            ("assistant", "Short."), ("user", "Thanks!")]  # fmt: skip
    return session(name, *(message(role, text) for role, text in said))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    names = [f"s{k}" for k in range(8)]
    turns = [turn(f"{name}:{index}") for name in names for index in (1, 3)]
    verdicts = [v for name in names for v in (verdict(f"{name}:1", HINT, -1), verdict(f"{name}:3", None, 1))]
    return write_run(tmp_path / "run", one_part([talk(name) for name in names], turns, verdicts))


@pytest.fixture
def config(run, tiny_model_dir):
    return lambda **options: ForecastConfig(
        run=run, **({"model": str(tiny_model_dir), "device": "cpu", "max_new_tokens": 6} | options)
    )


@pytest.fixture
def judge(monkeypatch):
    """Return a function that installs a judge: `answer` gets a reply, and whether it was sampled with the hint."""

    def install(answer) -> None:
        hinted = set()
        visible_text = hint_checks._read_visible_text

        def spy(scorer, prompt_ids, reply):
            text = visible_text(scorer, prompt_ids, reply)
            if "hint / instruction" in scorer.student.chat.text(prompt_ids):
                hinted.add(" ".join((text or "").split()))
            return text

        def ask(questions):
            asked = (question.messages[-1]["content"].split("## Reply\n")[1] for question in questions)
            replies = (re.sub(r"^\| ", "", text.split("\n\n## Hint")[0], flags=re.MULTILINE) for text in asked)
            return [[Answer(answer(text, " ".join(text.split()) in hinted))] for text in replies]

        monkeypatch.setattr(hint_checks, "_read_visible_text", spy)
        monkeypatch.setattr(hint_checks, "open_judge", lambda *_: ask)

    return install


def yes_if(is_right: bool) -> str:
    return rf"\boxed{{{1 if is_right else -1}}}"


def rows(*shares: tuple[float, float], status: str = HELPS) -> list[dict]:
    return [{"turn_id": f"s{n}:1", "with_hint": a, "without_hint": b, "status": status}
            for n, (a, b) in enumerate(shares)]  # fmt: skip


def test_the_expected_gain_by_hand():
    found = expect(rows(*[(1.0, 0.25)] * 20), SURE, turns=2 * HALF_LEARNED)
    full, margin, least, most = (
        0.75 / measure_skill(SURE),
        1.645 * SPREAD * 0.8,
        4 / (4 + UNSURE**2),
        4 / (4 + UNSURE**-2),
    )
    assert found == pytest.approx((0.8 * full, least * full - margin, most * full + margin))


def test_hints_that_are_followed_anyway_count_and_dropped_ones_do_not(config, monkeypatch):
    """A student that already does most of what the hints ask for can gain little, but more than nothing."""
    tested = rows((1.0, 0.0)) + rows((1.0, 0.75), (1.0, 1.0), status=NOT_NEEDED) + rows((0.0, 0.0), status=NO_BETTER)
    monkeypatch.setattr(hint_checks, "check_hints", lambda *_: tested)
    monkeypatch.setattr(forecast, "measure_judge", lambda *_: known((1000, 1000), (1000, 1000)))
    found = predict(config())
    kept, turns = rows((1.0, 0.0), (1.0, 0.75), (1.0, 1.0)), found["hinted_turns"] * 3 / 4
    assert found["gain"] == pytest.approx(expect(kept, known((1000, 1000), (1000, 1000)), turns)[0])
    assert (found["with_hint"], found["without_hint"]) == (1.0, pytest.approx(1.75 / 3))


def test_turns_without_a_reaction_that_are_judged_do_not_make_the_log_smaller(tmp_path, tiny_model_dir, monkeypatch):
    """With `--good` and `--bad`, the last reply of a session is judged, although it is not trainable."""
    names = [f"s{k}" for k in range(4)]
    said = [("user", "Hi?"), ("assistant", "A long answer."), ("user", "Shorter."), ("assistant", "Short.")]
    sessions = [session(name, *(message(role, text) for role, text in said)) for name in names]
    last = {"next_count": 0, "next_role": None, "trainable": False, "skip_reason": NO_NEXT}
    turns = [row for name in names for row in (turn(f"{name}:1"), turn(f"{name}:3") | last)]
    verdicts = [v for name in names for v in (verdict(f"{name}:1", HINT, -1),
                                              verdict(f"{name}:3", None, 1) | {"reward_status": OUTCOME})]  # fmt: skip
    run = write_run(tmp_path / "run", one_part(sessions, turns, verdicts))
    monkeypatch.setattr(hint_checks, "check_hints", lambda *_: rows((1.0, 0.0)))
    monkeypatch.setattr(forecast, "measure_judge", lambda *_: SURE)
    found = predict(ForecastConfig(run=run, model=str(tiny_model_dir), device="cpu", max_new_tokens=6))
    assert (found["hinted_turns"], found["judged_turns"]) == (4, 8)


@pytest.mark.parametrize(("second", "share"), [(None, None), (1, 0.0), (-1, 1.0)])
def test_complaints_are_a_share_of_the_known_rewards(tmp_path, tiny_model_dir, monkeypatch, second, share):
    verdicts = [v for k in range(2) for v in (verdict(f"s{k}:1", HINT, None), verdict(f"s{k}:3", None, second))]
    turns = [turn(f"s{k}:{index}") for k in range(2) for index in (1, 3)]
    run = write_run(tmp_path / "run", one_part([talk("s0"), talk("s1")], turns, verdicts))
    monkeypatch.setattr(hint_checks, "check_hints", lambda *_: rows((1.0, 0.0)))
    monkeypatch.setattr(forecast, "measure_judge", lambda *_: SURE)
    options = ForecastConfig(run=run, model=str(tiny_model_dir), device="cpu", max_new_tokens=6)
    assert predict(options)["complaints"] == share


@pytest.mark.parametrize("turns", [2, 8, 1e9])
def test_the_interval_holds_an_expected_loss_too(turns):
    gain, low, high = expect(rows(*[(0.5, 1.0)] * 30), SURE, turns)
    assert low <= gain <= high


def test_few_and_different_turns_widen_the_interval_and_a_bad_judge_the_gain():
    shares = [(1.0, 0.0), (0.5, 0.0), (1.0, 0.5), (0.25, 0.0)]
    gain, low, high = expect(rows(*shares), SURE, 1e9)
    more, more_low, more_high = expect(rows(*shares * 10), SURE, 1e9)
    assert more == pytest.approx(gain)
    assert more_high - more_low < high - low
    assert expect(rows(*shares), known((80, 100), (80, 100)), 1e9)[0] > gain
    assert expect(rows(*shares), SURE, HALF_LEARNED)[0] == pytest.approx(gain / 2)
    # Every reply follows its hint, none does without it, and the judge errs on a tenth; the errors vary by chance.
    erring = known((900_000, 1_000_000), (900_000, 1_000_000))
    assert expect(rows((1.0, 0.1), (0.8, 0.1)), erring, 1e9)[0] == pytest.approx(1.0, abs=1e-3)
    assert expect(rows((1.0, 0.0)), known((50, 100), (50, 100)), 1e9)[0] == pytest.approx(1.0)
    assert expect([], SURE, 0.0)[0] == 0.0


def test_hints_that_help_are_a_go(config, judge):
    judge(lambda text, hinted: yes_if(hinted or text.startswith("Short.")))
    found = predict(config(hints=6))
    assert found["go"]
    assert found["gain"] > 0.3
    assert found["low"] < found["gain"] < found["high"]
    assert (sum(found["hints"].values()), found["judged_turns"], found["complaints"], found["hinted_turns"]) == (
        6,
        16,
        0.5,
        8,
    )
    assert found["judge"] == known((6, 6), (6, 6)), "the first reply was complained about, the second one praised"


@pytest.mark.parametrize("branch", ["", "#branch-{}", ":3/rollout-{}"])
@pytest.mark.parametrize("sessions", [1, 5, 6])
def test_hints_of_few_sessions_are_a_no_go(config, monkeypatch, sessions: int, branch: str):
    """All hints of one session may be of one kind and show no spread, so an interval needs six sessions."""
    tested = [row | {"turn_id": f"s{n % sessions}{branch.format(2 + n)}:{n}"}
              for n, row in enumerate(rows(*[(1.0, 0.0)] * 12))]  # fmt: skip
    tested += rows(*[(0.0, 0.0)] * 9, status=NO_BETTER)  # dropped: nothing is learned from these
    monkeypatch.setattr(hint_checks, "check_hints", lambda *_: tested)
    monkeypatch.setattr(forecast, "measure_judge", lambda *_: SURE)
    found = predict(config())
    assert found["go"] is (sessions >= 6)
    assert found["gain"] > 0.5
    assert (found["low"] is None, found["high"] is None) == (sessions < 6, sessions < 6)
    assert ("too few sessions to tell" in found["reason"]) is (sessions < 6)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda text, hinted: yes_if(text.startswith("Short.")), "gain"),  # no hint helps
        (lambda text, hinted: "Who knows.", "judge"),
        (lambda text, hinted: yes_if(hinted or "long" in text), "judge"),  # the judge is wrong about the log
    ],
)
def test_hints_that_do_not_help_and_judges_that_do_not_know_are_a_no_go(config, judge, answer, reason):
    judge(answer)
    found = predict(config())
    assert not found["go"]
    assert reason in found["reason"]


def test_hints_that_mostly_cannot_be_judged_are_a_no_go(config, judge, monkeypatch):
    """The judge read only some replies to each: there are shares, but of less than half of the pairs."""
    judge(lambda text, hinted: yes_if(hinted or text.startswith("Short.")))
    really = hint_checks.check_hints
    monkeypatch.setattr(hint_checks, "check_hints", lambda *given: [
        row | {"status": HELPS if n < 3 else NOT_JUDGED, "with_hint": 1.0, "without_hint": 0.0}
        for n, row in enumerate(really(*given))])  # fmt: skip
    found = predict(config())
    assert found["hints"] == {HELPS: 3, NOT_JUDGED: 5}
    assert not found["go"]
    assert "judge" in found["reason"]


def test_a_judge_on_a_server_needs_no_teacher_stage_and_leaves_nothing_there(run, config, monkeypatch):
    """The guide uses this order: a judge on a server, then forecast, and only then the teacher stage."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(lambda body, number: completion(yes_if("Short." in body["messages"][-1]["content"]))) as server:
        found = predict(config(judge_model="any", judge_url=server.url))
        assert server.requests
    assert sum(found["hints"].values()) == 8
    assert not (run / "teacher").exists()


def test_the_decision_comes_first_and_both_end_with_exit_code_0(run, tiny_model_dir, judge):
    words = ["forecast", str(run), "--model", str(tiny_model_dir), "--device", "cpu", "--max-new-tokens", "6"]
    for answer, decision in ((lambda text, hinted: yes_if(hinted or text.startswith("Short.")), "go "),
                             (lambda text, hinted: yes_if(False), "no-go ")):  # fmt: skip
        judge(answer)
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert done.stdout.startswith(decision)
        assert "cost of training, one cycle of at most 5 " in done.stdout
        document = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
        assert document["go"] == (decision == "go ")
    assert not (run / "forecast").exists()


def test_costs_are_those_of_the_stages(run, config, judge, tiny_model_dir):
    """They are of the size of the targets that the teacher stage reads and samples. The drawn turns stand for all."""
    judge(lambda text, hinted: yes_if(hinted))
    found = predict(config())
    summary = Run(run).teacher(model=str(tiny_model_dir), device="cpu", max_new_tokens=6)
    targets = list(Run(run).table("targets"))
    assert len(targets) == 24, "a reply of the teacher to each of 8 hinted turns"
    trained = sum(t["prompt_tokens"] + len(t["response_ids"]) for t in targets)
    assert MOST_EPOCHS * trained <= found["tokens"]["training"] <= MOST_EPOCHS * 1.35 * trained
    assert found["tokens"]["scoring"] == pytest.approx(summary.counters.total("tokens read"), rel=0.1)
    assert all(math.isfinite(s) and s >= 0 for s in found["seconds"].values())
    assert set(found["seconds"]) == {"judging", "testing the hints", "scoring", "training"}


def test_the_tokens_of_a_server_are_those_of_its_requests(run, config, judge, tiny_tokenizer, monkeypatch):
    """The drawn turns stand for all turns."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    answer = rf"[HINT_START]{HINT}[HINT_END] \boxed{{1}}"
    with serving(lambda body, number: completion(answer)) as server:
        judging.run(JudgeConfig(run=run, judge="endpoint", judge_model="any", judge_url=server.url, votes=2,
                                all_votes=True, overwrite=True))  # fmt: skip
    requests = [body for body in server.requests if body["messages"][-1]["content"].startswith("##")]
    assert len(requests) == 16 * 2 * 2
    judge(lambda text, hinted: yes_if(hinted))
    said = [m["content"] for body in requests for m in body["messages"]] + [answer] * len(requests)
    written = sum(len(tiny_tokenizer.encode(text, add_special_tokens=False)) for text in said)
    assert predict(config(hints=16))["tokens"]["judging"] == pytest.approx(written, rel=0.03)  # without the headings
    assert predict(config(hints=8))["tokens"]["judging"] == pytest.approx(written, rel=0.1)


def test_the_tokens_of_a_local_judge_are_those_of_its_dry_run(run, config, judge, tiny_model_dir, capsys):
    """Turns and questions are read once, for any number of votes; the number of votes comes from the table."""
    options = {"judge": "local", "judge_model": str(tiny_model_dir), "device": "cpu", "votes": 3, "max_new_tokens": 5}
    judging.run(JudgeConfig(run=run, **options, overwrite=True, dry_run=True))
    facts = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in capsys.readouterr().out.splitlines())
    judge_in_vain(JudgeConfig(run=run, **options, overwrite=True))
    append(run, [Review("s0:1", hint_decided=True, hint=HINT)])  # random weights give no hint
    judge(lambda text, hinted: yes_if(hinted))
    found = predict(config(hints=50))["tokens"]["judging"]
    written = 16 * 2 * 3 * 5
    assert found == pytest.approx(int(facts["tokens to read"].replace(",", "")) + written, rel=0.1)


def test_rules_read_no_tokens_and_what_a_rollout_asked_is_not_known(run, config, judge):
    judge(lambda text, hinted: yes_if(hinted))
    assert predict(config())["tokens"]["judging"] == 0
    path = run / "judge/manifest.json"
    document = json.loads(path.read_text())
    del document["plan"]["config"]["judge"]
    path.write_text(json.dumps(document))
    assert set(predict(config())["tokens"]) == {"scoring", "training"}


def test_nothing_is_foreseen_without_hints(tmp_path, tiny_model_dir):
    run = write_run(tmp_path / "none", one_part([talk("a")], [turn("a:1")], [verdict("a:1", None, -1)]))
    with pytest.raises(OpdkitError, match="hint"):
        predict(ForecastConfig(run=run, model=str(tiny_model_dir), device="cpu"))


def test_the_python_method_returns_it(run, judge, tiny_model_dir):
    judge(lambda text, hinted: yes_if(hinted))
    found = Run(run).forecast(model=str(tiny_model_dir), hints=6, device="cpu", max_new_tokens=6)
    assert {"go", "gain", "low", "high", "tokens", "seconds"} <= found.keys()


def test_a_reply_that_cannot_be_rendered_is_left_out(tmp_path, tiny_model_dir, judge):
    """The hint is about a greeting, which has no prompt before it. The other turns are forecast."""
    judge(lambda text, hinted: yes_if(hinted))
    greeting = session("greet", message("assistant", "Welcome!"), message("user", "Greet me formally."))
    part = one_part([greeting, talk("a")], [turn("greet:0"), turn("a:1"), turn("a:3")],
                    [verdict("greet:0", HINT, -1), verdict("a:1", HINT, -1), verdict("a:3", None, 1)])  # fmt: skip
    run = write_run(tmp_path / "greeting", part)
    found = predict(ForecastConfig(run=run, model=str(tiny_model_dir), device="cpu", max_new_tokens=6))
    assert found["replies_left_out"] == {"no prompt": 1}
    assert found["hints"] == {HELPS: 1, "not tested: no user message": 1}
    assert found["judge"]["do not follow"] == (1, 1)


def test_turns_that_are_all_too_long_end_with_their_reason(tmp_path, tiny_model_dir, judge):
    judge(lambda text, hinted: yes_if(hinted))
    long = session("a", message("user", "long " * 3000), message("assistant", "Yes."), message("user", "Shorter."))
    run = write_run(tmp_path / "long", one_part([long], [turn("a:1")], [verdict("a:1", HINT, -1)]))
    with pytest.raises(OpdkitError, match="too long"):
        predict(ForecastConfig(run=run, model=str(tiny_model_dir), device="cpu", max_new_tokens=6))


def test_hints_without_room_for_replies_do_not_blame_the_judge(config, judge):
    judge(lambda text, hinted: yes_if(hinted))
    found = predict(config(max_new_tokens=10**6))
    assert found["hints"] == {"not tested: too long": 8}
    assert not found["go"]
    assert "--max-new-tokens" in found["reason"]
    assert "judge" not in found["reason"]
