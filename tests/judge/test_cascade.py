"""Tests of `--judge-first`: a small judge decides if its votes agree, and a large judge decides the rest."""

import random
import re
import shutil
from pathlib import Path

import pytest
from chaos_server import text_of
from http_server import Reply, completion, serving, unused_address
from runs import snapshot, talk, write_extract
from sample_world import DATA, labels

from opdkit.commands.calibrate.command import measure
from opdkit.commands.check.stage import examine
from opdkit.config.calibrate import CalibrateConfig
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract import stage as extract
from opdkit.judge import stage as judge
from opdkit.judge.parse import parse_reward
from opdkit.judge.votes import Answer, choose_reward
from opdkit.store.plans import manifest
from opdkit.store.reading import read_all
from opdkit.store.stable_hash import stable_hash

SESSIONS = {f"s{n}": talk(f"What is {n}?", "Far away.", f"In Celsius, case {n}", "Done", "ok") for n in range(12)}
VERDICT = ("turn_id", "hint_votes", "reward_votes", "reward", "reward_status", "hint", "hint_status")


@pytest.fixture(autouse=True)
def loopback(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def config(run: Path, first: str | None, url: str, **options) -> JudgeConfig:
    small = {"judge": "endpoint", "judge_url": url, "judge_model": "large", "shard": "0/1"}
    cascade = {"judge_first": "small", "judge_first_url": first} if first else {}
    return JudgeConfig(run=run, **(small | cascade | options))


def question_of(body: dict) -> str:
    return "hint" if "[HINT_START]" in body["messages"][-1]["content"] else "reward"


def number_of(body: dict) -> int:
    """Return the number of the session that a request is about."""
    return int(re.search(r"(?:What is|case) (\d+)", body["messages"][-1]["content"])[1])


def small(body: dict, _number: int) -> Reply:
    """Answer as a judge that is sure of sessions 0 to 3 (no hint, +1), sees a hint in 4 and 5, and wavers in others."""
    n, wavers = number_of(body), body["seed"] % 2
    if question_of(body) == "reward":
        return completion(r"\boxed{1}" if n < 6 or wavers else r"\boxed{-1}")
    return completion(r"\boxed{1} [HINT_START]Name small rivers.[HINT_END]" if n in (4, 5) or (n > 5 and wavers)
                      else r"\boxed{-1}")  # fmt: skip


def decides_all(body: dict, _number: int) -> Reply:
    """Answer as a judge whose votes on a question are all equal, and that sees no hint."""
    return completion(r"\boxed{1}" if question_of(body) == "reward" else r"\boxed{-1}")


def large(body: dict, _number: int) -> Reply:
    """Answer as a judge that disagrees: -1, and a hint of its own."""
    return completion(r"\boxed{-1}" if question_of(body) == "reward"
                      else r"\boxed{1} [HINT_START]Name large rivers.[HINT_END]")  # fmt: skip


def rows(run: Path, table: str = "verdicts") -> list[dict]:
    return list(read_all(run, table))


def by_session(run: Path, column: str) -> dict[int, set]:
    values: dict[int, set] = {}
    for row in rows(run):
        values.setdefault(int(row["turn_id"].partition(":")[0][1:]), set()).add(row[column])
    return values


def test_who_decides_what(tmp_path: Path) -> None:
    """The small judge's equal votes decide a reward, or that there is no hint; the large judge writes every hint."""
    run = write_extract(tmp_path / "run", SESSIONS, per_part=5)
    with serving(small) as first, serving(large) as second:
        summary = judge.run(config(run, first.url, second.url))
    assert {body["model"] for body in first.requests} == {"small"}
    assert len(first.requests) == 24 * 2 * 5, "all votes: three equal ones of five do not show that all agree"
    assert {body["model"] for body in second.requests} == {"large"}
    rewards, hints = by_session(run, "reward"), by_session(run, "hint")
    assert [rewards[n] for n in range(6)] == [{1}] * 6
    assert [hints[n] for n in range(4)] == [{None}] * 4
    assert [hints[n] for n in (4, 5)] == [{"Name large rivers."}] * 2
    asked = {(number_of(body), question_of(body)) for body in second.requests}
    assert {n for n, question in asked if question == "reward"} <= set(range(6, 12))
    assert {n for n, question in asked if question == "hint"} >= {4, 5}
    # The table `escalated` holds each question left open, with first votes that differ or all see a hint.
    escalated = {row["turn_id"]: row for row in rows(run, "escalated")}
    left = {
        (turn_id, name) for turn_id, row in escalated.items() for name in ("hint", "reward") if row[f"{name}_votes"]
    }
    for row in rows(run):
        for name, key in (("hint", "decision"), ("reward", "score")):
            own = [vote[key] for vote in row[f"{name}_votes"]]
            if (row["turn_id"], name) in left:
                votes = [vote[key] for vote in escalated[row["turn_id"]][f"{name}_votes"]]
                assert len(votes) == 5
                assert len(set(votes)) > 1 or (name == "hint" and set(votes) == {1})
                assert own == ([-1] * 3 if name == "reward" else [1] * 5), "the large judge's"
            else:
                assert own == ([-1] * 5 if name == "hint" else [1] * 5), "the small judge's"
    assert manifest(run, "judge")["usage"]["first judge"]["votes given"] == 240
    assert summary.counters.labels("questions decided") == {"first judge": 48 - len(left), "second judge": len(left)}
    assert summary.counters.labels("votes given") == {
        "first judge": 240, "second judge": sum(3 if name == "reward" else 5 for _, name in left)
    }  # fmt: skip
    assert not examine(run).findings


def test_failed_votes_agree_with_nobody_and_are_reported(tmp_path: Path, capsys) -> None:
    run = write_extract(tmp_path / "run", SESSIONS)
    with serving(lambda body, _: completion("I cannot say.")) as first, serving(large) as second:
        judge.run(config(run, first.url, second.url))
    assert {row["reward"] for row in rows(run)} == {-1}
    assert len(rows(run, "escalated")) == 24
    assert "240 of 240 votes of the first judge failed" in " ".join(capsys.readouterr().err.split())


def test_a_cascade_whose_first_judge_is_never_sure_equals_the_second_alone(tmp_path: Path) -> None:
    cascade, alone = (write_extract(tmp_path / name, SESSIONS) for name in ("cascade", "alone"))
    with (
        serving(lambda body, _: completion("no decision")) as first,
        serving(lambda b, _: completion(text_of(b))) as second,
    ):
        judge.run(config(cascade, first.url, second.url))
        judge.run(config(alone, None, second.url))
    assert [[row[name] for name in VERDICT] for row in rows(cascade)] == [
        [row[c] for c in VERDICT] for row in rows(alone)
    ]


# -- resume, plan, errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stops_at", ["first", "second"])
def test_no_answer_of_either_judge_is_asked_for_twice(stops_at: str, tmp_path: Path) -> None:
    """One judge's server fails within a part; the resumed run has the tables of a run that was not interrupted."""
    whole, broken = (write_extract(tmp_path / name, SESSIONS, per_part=6) for name in ("whole", "broken"))
    with serving(small) as first, serving(large) as second:
        judge.run(config(whole, first.url, second.url))
        needed = {"first": len(first.requests), "second": len(second.requests)}
    scripts = {"first": small, "second": large}
    half = needed[stops_at] // 2
    failing = scripts | {stops_at: lambda body, n: scripts[stops_at](body, n) if n < half else Reply(409, "no")}
    with serving(failing["first"]) as first, serving(failing["second"]) as second:
        with pytest.raises(OpdkitError, match="the first judge at" if stops_at == "first" else "the judge at"):
            judge.run(config(broken, first.url, second.url, concurrency=1))
        given = {"first": len(first.requests), "second": len(second.requests)}
    given[stops_at] -= 1  # the request that was refused
    with serving(small) as first, serving(large) as second:
        judge.run(config(broken, first.url, second.url))
        assert given["first"] + len(first.requests) == needed["first"]
        assert given["second"] + len(second.requests) == needed["second"]
    for table in ("verdicts", "escalated"):
        assert rows(broken, table) == rows(whole, table)
    assert not list((broken / "judge" / ".tmp").iterdir())


def test_shards_write_what_one_process_writes(tmp_path: Path) -> None:
    one, two = (write_extract(tmp_path / name, SESSIONS, per_part=5) for name in ("one", "two"))
    with serving(small) as first, serving(large) as second:
        judge.run(config(one, first.url, second.url))
        for shard in ("1/2", "0/2"):
            judge.run(config(two, first.url, second.url, shard=shard))
    for table in ("verdicts", "escalated"):
        assert rows(one, table) == rows(two, table)


def test_another_first_judge_is_another_plan(tmp_path: Path) -> None:
    run = write_extract(tmp_path / "run", SESSIONS)
    with serving(small) as first, serving(large) as second:
        judge.run(config(run, first.url, second.url))
        before = snapshot(run)
        for changed in ({"judge_first": "smaller"}, {"judge_first": None, "judge_first_url": None}):
            with pytest.raises(ConfigError, match=r"config\.judge_first"):
                judge.run(config(run, first.url, second.url, **changed))
        with pytest.raises(OpdkitError, match="the first judge at"):  # nothing is removed if a judge does not answer
            judge.run(config(run, unused_address(), second.url, overwrite=True, retries=0))
        assert snapshot(run) == before
        judge.run(config(run, first.url, second.url))  # resumes: nothing is left to do
        assert snapshot(run) == before


def test_answers_of_another_first_model_are_not_taken(tmp_path: Path) -> None:
    """The name that a server answers under is recorded per judge, so a new first model is refused."""
    run = write_extract(tmp_path / "run", SESSIONS)

    def named(script, name: str):
        return lambda body, n: Reply(body=script(body, n).body | {"model": name})

    with serving(named(small, "small-v1")) as first, serving(named(large, "large-v1")) as second:
        judge.run(config(run, first.url, second.url))
    assert {row["reward"] for row in rows(run)} == {1, -1}
    assert "small-v1" in (run / "judge/first-answers-as.json").read_text(encoding="utf-8")
    assert "large-v1" in (run / "judge/answers-as.json").read_text(encoding="utf-8")
    path = min((run / "judge/verdicts").glob("*.parquet"))
    path.unlink()
    with (
        serving(named(small, "small-v2")) as first, serving(named(large, "large-v1")) as second,
        pytest.raises(OpdkitError, match="the first judge"),
    ):  # fmt: skip
        judge.run(config(run, first.url, second.url, retries=0))
    assert not path.exists()


@pytest.mark.parametrize(("options", "flag"), [
    ({"judge": "batch", "judge_url": None, "out": Path("requests.jsonl")}, "--judge batch"),
    ({"judge": "rules", "judge_url": None, "judge_model": None}, "--judge rules"),
    ({"votes": 1}, "--votes"), ({"temperature": 0.0}, "--temperature"),
    ({"judge_first": None, "judge_first_url": None, "judge_first_price": "1,2", "dry_run": True},
     "--judge-first-price needs --judge-first"),
    ({"judge_first": "rules"}, "--judge-first"),
    ({"judge_first": None}, "--judge-first-url needs --judge-first"),
    ({"judge_first_url": "no address"}, "--judge-first-url"),
    ({"judge_first_price": "1,2"}, "--judge-first-price needs --dry-run"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(options: dict, flag: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(flag)):
        config(tmp_path, "http://localhost:1/v1", "http://localhost:2/v1", **options)


def test_an_error_of_the_first_judge_names_its_options(tmp_path: Path) -> None:
    run = write_extract(tmp_path / "run", SESSIONS)
    with serving(lambda *_: Reply(404, "no"), models=["smal"]) as first, pytest.raises(OpdkitError) as error:
        judge.run(config(run, first.url, unused_address()))
    assert "--judge-first is 'small'" in str(error.value)
    assert first.url in str(error.value)


def test_each_server_gets_its_own_key(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "large-key")
    monkeypatch.setenv("SMALL_KEY", "small-key")
    run = write_extract(tmp_path / "run", SESSIONS)
    with serving(small) as first, serving(large) as second:
        judge.run(config(run, first.url, second.url, judge_first_key_env="SMALL_KEY"))
    assert {headers["Authorization"] for headers in first.headers} == {"Bearer small-key"}
    assert {headers["Authorization"] for headers in second.headers} == {"Bearer large-key"}


def test_a_dry_run_says_what_is_known_and_once_measured_the_share(tmp_path: Path, capsys) -> None:
    def shown(**options) -> dict[str, str]:
        judge.run(config(run, first.url, second.url, dry_run=True, votes=3, **options))
        return dict(re.split(r"  +", line.strip().replace(",", ""), maxsplit=1)
                    for line in capsys.readouterr().out.splitlines())  # fmt: skip

    run = write_extract(tmp_path / "run", SESSIONS)
    before = snapshot(run)
    with serving(small) as first, serving(large) as second:
        bounds = shown(price="10,20", judge_first_price="1,2")
        assert not first.requests
        assert not second.requests
        measured = shown(measure=24)
        asked = len(second.requests)
        assert snapshot(run) == before
        judge.run(config(run, first.url, second.url, votes=3))
        sent = len(second.requests) - asked
    assert bounds["first: requests"] == measured["first: requests"] == str(24 * 2 * 3)
    assert bounds["requests at most"] == str(24 * 2 * 3)
    assert "not measured" in bounds["left to the second judge"]
    prices = [float(bounds[name].split()[0]) for name in ("money at most", "first: money at most")]
    assert prices[0] == pytest.approx(10 * prices[1], rel=0.1)
    left = len([vote for row in rows(run, "escalated") for vote in (row["hint_votes"], row["reward_votes"]) if vote])
    assert measured["left to the second judge"] == f"{left} of 48 questions as measured"
    assert int(measured["requests about"]) == pytest.approx(sent, abs=1)


def test_a_dry_run_whose_first_judge_decides_all_leaves_nothing_to_the_second(tmp_path: Path, capsys) -> None:
    run = write_extract(tmp_path / "run", SESSIONS)
    with serving(decides_all) as first, serving(large) as second:
        judge.run(config(run, first.url, second.url, dry_run=True, votes=3, measure=4))
        assert not second.requests
    shown = capsys.readouterr().out
    assert "0 of 8 questions" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["requests,", "about", "0"] in lines or not any(line[:1] == ["requests,"] for line in lines)
    assert not any(line[:2] == ["tokens", "to"] and line[-1] not in ("0", "about") for line in lines)


def test_a_dry_run_knows_what_a_local_second_judge_reads(tmp_path: Path, plain_model_dir: Path, capsys) -> None:
    """The first judge leaves one of the two questions about each turn, whose text is read all the same."""
    run = write_extract(
        tmp_path / "run", {f"s{n}": talk("Hi", "Hello " * 50, f"Case {n}") for n in range(6)}, per_part=6
    )
    with serving(lambda _body, _: completion(r"\boxed{1}")) as first:
        options = {"judge": "local", "judge_url": None, "judge_model": str(plain_model_dir), "max_new_tokens": 4}
        judge.run(config(run, first.url, "", dry_run=True, measure=6, **options))
        judge.run(config(run, first.url, "", **options))
    usage = manifest(run, "judge")["usage"]["second judge"]
    told = re.search(r"^tokens to read, about +([\d,]+)", capsys.readouterr().out, re.MULTILINE)
    read = usage["prompt tokens"] - usage["cached prompt tokens"]
    assert int(told[1].replace(",", "")) == pytest.approx(read, rel=0.02)


# -- on the labelled sample ---------------------------------------------------------------------------------------

HARD = 0.09  # share of turns on which the small judge wavers


def difficulty(turn_id: str, deceptive: float) -> str:
    drawn = random.Random(f"difficulty:{turn_id}").random()
    return "deceptive" if drawn < deceptive else "hard" if drawn < deceptive + HARD else "easy"


# How often a vote is right. On deceptive turns the small judge is sure and wrong, and the large judge often errs, too.
RIGHT = {
    "small": {"easy": 0.99, "hard": 0.6, "deceptive": 0.05},
    "large": {"easy": 0.995, "hard": 0.93, "deceptive": 0.7},
}


def majority_of(script, turn_id: str) -> int | None:
    """Return the reward that all votes of a `sample_judge` give a turn."""
    seeds = [stable_hash(0, turn_id, "reward", vote, bits=31) for vote in range(5)]
    texts = [script({"seed": seed}, 0).body["choices"][0]["message"]["content"] for seed in seeds]
    return choose_reward([parse_reward(Answer(text)).score for text in texts]).reward


def sample_judge(name: str, deceptive: float, votes: dict[int, tuple[str, str]], right: dict[str, dict]):
    """Return a judge that votes as the labels of sample_data say, with errors at the rates of `RIGHT`.

    `votes`: seed of a request -> turn and question.
    """

    def script(body: dict, _number: int) -> Reply:
        turn_id, question = votes[body["seed"]]
        drawn, label = random.Random(f"{name}:{body['seed']}"), right[turn_id]
        truth = (1 if label["wanted"] else -1) if question == "hint" else label["reward"]
        others = [value for value in ((1, -1) if question == "hint" else (1, 0, -1)) if value != truth]
        is_right = drawn.random() < RIGHT[name][difficulty(turn_id, deceptive)]
        vote = truth if is_right else random.Random(f"error:{turn_id}").choice(others)  # all errors on a turn agree
        hint = f" [HINT_START]The user wants {label['wanted']}.[HINT_END]" if vote == 1 and question == "hint" else ""
        return completion(rf"\boxed{{{vote}}}{hint}")

    return script


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("sample") / "run"
    extract.run(ExtractConfig(run=run, logs=(str(DATA / "logs"),), shard="0/1"))
    return run


@pytest.mark.parametrize(("deceptive", "limit"), [pytest.param(0.01, None, marks=pytest.mark.slow), (0.05, 16)])
def test_the_labelled_sample(deceptive: float, limit: int | None, extracted: Path, tmp_path: Path) -> None:
    """The cascade loses accuracy only on turns that the small judge decides, and decides wrongly.

    If these are rare, it stays within 0.01 of the large judge's accuracy, with at most 40% of its requests.
    """
    right = {label["turn_id"]: label for label in labels()}
    votes = {stable_hash(0, turn_id, question, vote, bits=31): (turn_id, question)
             for turn_id in right for question in ("hint", "reward") for vote in range(5)}  # fmt: skip
    assert len(votes) == len(right) * 10
    runs = {name: Path(shutil.copytree(extracted, tmp_path / name)) for name in ("cascade", "large")}
    scripts = {name: sample_judge(name, deceptive, votes, right) for name in RIGHT}
    sent: dict[str, int] = {}
    with serving(scripts["small"]) as first, serving(scripts["large"]) as second:
        judge.run(config(runs["cascade"], first.url, second.url, limit=limit))
        sent["cascade"], second.requests = len(second.requests), []
        judge.run(config(runs["large"], None, second.url, limit=limit))
        sent["large"] = len(second.requests)
    found = {name: measure(CalibrateConfig(run=run, labels=DATA / "labels.jsonl")) for name, run in runs.items()}
    rewards = {name: {row["turn_id"]: row["reward"] for row in rows(run)} for name, run in runs.items()}
    right = {turn_id: right[turn_id] for turn_id in rewards["large"]}
    rewards["small"] = {turn_id: majority_of(scripts["small"], turn_id) for turn_id in right}
    left = {row["turn_id"] for row in rows(runs["cascade"], "escalated") if row["reward_votes"]}
    for turn_id in right:  # each reward is that of the deciding judge alone
        assert rewards["cascade"][turn_id] == rewards["large" if turn_id in left else "small"][turn_id]
    is_right = {
        name: {turn_id: rewards[name][turn_id] == right[turn_id]["reward"] for turn_id in right} for name in rewards
    }
    lost = sum(is_right["large"][t] - is_right["small"][t] for t in right if t not in left) / len(right)
    accuracy = {name: one.accuracy for name, one in found.items()}
    assert accuracy["large"] - accuracy["cascade"] == pytest.approx(lost)
    share = sent["cascade"] / sent["large"]
    hints = {name: one.hints for name, one in found.items()}
    print(f"deceptive {deceptive}: accuracy {accuracy}, requests {sent}, {share:.3f}, hints {hints}")
    assert limit or (lost <= 0.01 and share <= 0.4)
    # What calibrate reports for a cascade only.
    cascade = found["cascade"].cascade
    both, alone, decided, first_there, second_there = cascade.scores
    assert both.accuracy == accuracy["cascade"]
    assert alone.accuracy == pytest.approx(sum(is_right["small"].values()) / len(right))
    assert (decided.answered, second_there.answered) == (len(right) - len(left), len(left))
    assert second_there.accuracy == pytest.approx(sum(is_right["large"][t] for t in left) / len(left))
    assert first_there.accuracy == pytest.approx(
        sum(is_right["small"][t] for t in left) / sum(rewards["small"][t] is not None for t in left)
    )
    assert cascade.votes == {"first judge": cascade.questions * 5, "second judge": sent["cascade"]}
    assert found["cascade"].curve == []
    assert found["large"].cascade is None
