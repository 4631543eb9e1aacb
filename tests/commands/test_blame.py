"""Tests of `opdkit blame` on a real training that made replies worse, and of a training without the turns it names."""

import copy
import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import save_tiny_model
from named_trainings import eval_config, train_named, write_prompts
from runs import talk, write_extract
from scored_runs import toy_sessions, write_run
from typer.testing import CliRunner
from validation_rows import validation_row

import opdkit
from opdkit.chat.messages import message
from opdkit.cli import app
from opdkit.commands.blame import (
    blame,
    choose_worst,
    count_left_out,
    group_sessions,
    leaves_out_worst,
    sum_groups,
    weigh_replies,
    write_commands,
    write_filter,
    write_sentence,
)
from opdkit.config.blame import BlameConfig
from opdkit.config.evaluate import EvalConfig
from opdkit.config.train import TrainConfig
from opdkit.console import escape_markdown
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate import stage as evaluate
from opdkit.evaluate.blame import WorsePrompt
from opdkit.evaluate.checks import Criterion, HeldOutPrompt
from opdkit.evaluate.models import load_chat
from opdkit.store.plans import manifest
from opdkit.store.reading import read_all, read_arrow, read_part, summary_of
from opdkit.train.targets import load_targets

SESSIONS, USERS = 6, ("ann|b", "cy*")


@pytest.fixture(scope="module")
def made(tmp_path_factory, plain_model_dir) -> Path:
    """Return training `a` on six sessions of two users, evaluated: its replies to most prompts got worse."""
    folder = tmp_path_factory.mktemp("blamed")
    metadata = {f"toy-{n}": {"user_id": USERS[n % 2], "tier": (5, 5.0)[n % 2]} for n in range(SESSIONS)}
    run = write_run(folder / "run", plain_model_dir, toy_sessions(SESSIONS), metadata=metadata)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opdkit.train.trust_region.MAX_RATE_TO_WEIGHTS", 0.01)  # together with a weak anchor, too much
        train_named(run, plain_model_dir, "a", "blend", anchor_weight=0.1)
    evaluate.run(eval_config(run, "a", write_prompts(folder / "prompts.jsonl"), samples=4))
    return run / "a.training"


def test_it_adds_up(made) -> None:
    answer = blame(BlameConfig(run=made, device="cpu"))
    fell = {row["domain"] for row in answer.domains}
    assert fell
    assert all(row["after"] < row["before"] and row["domain"] in answer.sentence for row in answer.domains)
    assert answer.by == "metadata.user_id"
    assert {row["value"] for row in answer.groups} == set(USERS)
    trained = load_targets(made)
    assert {row["turn_id"] for row in answer.turns} == {turn.turn_id for turn in trained}
    assert [row["turns"] for row in answer.groups] == [6, 6]
    assert [row["sessions"] for row in answer.groups] == [3, 3]
    for group in answer.groups:
        own = [row for row in answer.turns if row["value"] == group["value"]]
        assert sum(row["share"] for row in own) == pytest.approx(group["share"])
        assert set(group["hints"]) <= {row["hint"] for row in own}
    assert sum(max(0, row["share"]) for row in answer.groups) == pytest.approx(1)
    shares = [row["share"] for row in answer.turns]
    assert shares == sorted(shares, reverse=True)
    by_session = blame(BlameConfig(run=made, device="cpu", by="session"))
    assert [row["turn_id"] for row in by_session.turns] == [row["turn_id"] for row in answer.turns]
    assert len(by_session.groups) == SESSIONS
    by_tier = blame(BlameConfig(run=made, device="cpu", by="metadata.tier"))
    assert [row["sessions"] for row in by_tier.groups] == [3, 3]
    assert "--by session" in by_tier.sentence
    assert by_tier.commands == [], "a condition compares 5 and 5.0 as numbers"


@pytest.mark.parametrize(("distances", "taken_back", "taught"), [
    ((1.0, 0.5, 0.9), {}, [1]),
    ((1.0, 2.0, 0.5), {1: 0}, [2]),
])  # fmt: skip
def test_steps_that_did_not_lead_to_the_state_that_was_written_taught_nothing(
    made, monkeypatch, distances, taken_back, taught
) -> None:
    """Steps after the best state did not, and steps that the training took back did not."""
    steps = read_part(made, "metrics", 0)
    rows = [validation_row(n, distance, 0.0) | {"went_back_to": taken_back.get(n)}
            for n, distance in enumerate(distances)]  # fmt: skip
    monkeypatch.setattr("opdkit.commands.blame.read_part", lambda *_: rows)
    answer = blame(BlameConfig(run=made, device="cpu"))
    expected = {turn_id for step in taught for turn_id in steps[step - 1]["turn_ids"]}
    assert len(expected) < 12
    assert {row["turn_id"] for row in answer.turns} == expected
    assert sum(row["turns"] for row in answer.groups) == len(expected)


def test_the_commands_train_without_the_worst(made) -> None:
    answer = opdkit.Run(made).blame(device="cpu")
    worst = answer.groups[0]["value"]
    train, measure, compare = map(shlex.split, answer.commands)
    for words in (train, measure, compare):
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, done.stderr
    without = made.parent / f"{train[train.index('--name') + 1]}.training"
    counters = summary_of(without, "train").counters
    assert (counters.rows_in, counters.rows_out) == (12, 6)
    assert sum(counters.dropped.values()) == 6
    assert all(reason.startswith("filtered: ") for reason in counters.dropped)
    plans = [manifest(run, "train")["plan"]["config"] for run in (made, without)]
    (condition,) = plans[1]["filter"]
    assert plans[1] == plans[0] | {"filter": [condition]}
    assert condition == "metadata.user_id!=" + worst.replace("|", "?").replace("*", "?")
    assert {row["prompt_id"] for row in read_all(without, "replies")} == {
        row["prompt_id"] for row in read_all(made, "replies")
    }


def test_the_command_prints_tables_or_json(made) -> None:
    shown = CliRunner().invoke(app, ["blame", str(made), "--lines", "2", "--device", "cpu"])
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.count("| toy-") == 2
    assert "opdkit train" in shown.stdout
    answer = json.loads(CliRunner().invoke(app, ["blame", str(made), "--json", "--device", "cpu"]).stdout)
    assert escape_markdown(answer["sentence"]) in shown.stdout
    assert len(answer["turns"]) == 12


def test_what_cannot_be_blamed(made, tmp_path, plain_model_dir) -> None:
    with pytest.raises(ConfigError, match="--domain"):
        blame(BlameConfig(run=made, domain="evn"))
    with pytest.raises(ConfigError, match=r"--by metadata\.team"):
        blame(BlameConfig(run=made, by="metadata.team"))
    with pytest.raises(ConfigError, match="--by"):
        BlameConfig(run=made, by="user")
    for name in ("user id", "a=b", "user\n"):
        with pytest.raises(ConfigError, match="--by"):
            BlameConfig(run=made, by=f"metadata.{name}")
    run = Path(shutil.copytree(made.parent, tmp_path / "run"))
    with pytest.raises(OpdkitError, match=r"opdkit eval \S*run --prompts"):
        blame(BlameConfig(run=run))
    fine = run / "a.training"
    prompts = write_prompts(tmp_path / "fine.jsonl")
    prompts.write_text(prompts.read_text().replace("[a-m]", "(?s).*"))
    evaluate.run(eval_config(fine, None, prompts, overwrite=True))
    answer = blame(BlameConfig(run=fine))
    assert (answer.groups, answer.commands) == ([], [])
    assert "did not fall" in answer.markdown()
    prompts.unlink()
    train_named(run, plain_model_dir, "a", "combine", overwrite=True)
    with pytest.raises(OpdkitError, match=r"older train stage(.|\n)*opdkit eval"):
        blame(BlameConfig(run=fine))


def test_a_domain_without_a_verdict_is_a_domain_and_nothing_is_known_of_it(made, monkeypatch) -> None:
    """This happens, for example, if the judge's votes on its replies failed."""
    replies = read_arrow(made, "replies", 0)
    (number,) = [n for n, name in enumerate(replies.column_names) if name == "passed"]
    unknown = replies.set_column(number, "passed", pa.nulls(len(replies), pa.bool_()))
    monkeypatch.setattr("opdkit.commands.blame.read_arrow", lambda *_: unknown)
    domain = replies["domain"][0].as_py()
    for named, where in ((domain, domain), (None, "any domain")):
        assert blame(BlameConfig(run=made, domain=named)).sentence.endswith(f"verdict on both models in {where}.")
    with pytest.raises(ConfigError, match=f"--domain is 'evn'.*{domain}"):
        blame(BlameConfig(run=made, domain="evn"))


def test_replies_end_as_the_template_ends_them(tmp_path, plain_tokenizer) -> None:
    tokenizer = copy.deepcopy(plain_tokenizer)
    stop, tokenizer.eos_token = tokenizer.eos_token_id, "<|im_start|>"
    model = save_tiny_model(tmp_path / "model", tokenizer)
    config = EvalConfig(run=tmp_path, model=str(model), trained=str(model), prompts="p")
    prompt = HeldOutPrompt("a", "d", [message("user", "say")], None, Criterion("It is old."))
    rows = [{"reply": "old", "finish_reason": reason} for reason in ("stop", "length")]
    ended, cut_off = weigh_replies([WorsePrompt("a", "d", 1.0, rows[:1], rows[1:])], {"a": prompt}, config)[::-1]
    assert ended.sequence.response_ids == [*cut_off.sequence.response_ids, stop]


def test_replies_weigh_by_the_fall_of_their_prompt_and_bad_ones_against_good_ones(tmp_path, plain_model_dir) -> None:
    model = str(plain_model_dir)
    config = EvalConfig(run=tmp_path, model=model, trained=model, prompts="p")
    prompts = {name: HeldOutPrompt(name, "d", [message("user", "say")], None, Criterion("It is old.")) for name in "ab"}
    texts = {"a": (["red", "blue"], ["old"]), "b": (["say"], ["user"])}  # of failing and of passing replies
    failing, passing = ({name: [{"reply": text, "finish_reason": "length"} for text in both[side]]
                         for name, both in texts.items()} for side in (0, 1))  # fmt: skip
    worse = [WorsePrompt(name, "d", share, passing[name], failing[name]) for name, share in (("a", 0.75), ("b", 0.25))]
    chat = load_chat(config, {"before": model, "after": model})[0]
    found = [(chat.text(reply.sequence.response_ids).strip(), reply.weight)
             for reply in weigh_replies(worse, prompts, config)]  # fmt: skip
    assert found == [("red", 0.375), ("blue", 0.375), ("old", -0.75), ("say", 0.25), ("user", -0.25)]


def rows_of(*rows: tuple[str, str | None, float, str | None]) -> list[dict[str, object]]:
    return [dict(zip(("turn_id", "value", "share", "hint"), row, strict=True)) for row in rows]


def test_shares_worked_out() -> None:
    rows = rows_of(("a:1:1", "x", 3.0, "Be brief."), ("a:1:3", "x", -1.0, "Be long."), ("a:2:1", "x", 1.0, None),
                   ("b:1:1", "y", -2.0, "Be kind."), ("c:1:1", None, 1.0, None))  # fmt: skip
    groups = sum_groups(rows)
    assert groups == [
        {"value": "x", "sessions": 2, "turns": 3, "share": 0.75, "hints": ["Be brief."]},
        {"value": None, "sessions": 1, "turns": 1, "share": 0.25, "hints": []},
        {"value": "y", "sessions": 1, "turns": 1, "share": -0.5, "hints": []},
    ]
    assert [row["share"] for row in rows] == [0.75, 0.25, 0.25, -0.25, -0.5]


@pytest.mark.parametrize(("logged", "values", "is_exact"), [
    ((True, False), ["true", "false"], True),
    ((1234567890123456789, 1234567890123456788), ["1234567890123456789", "1234567890123456788"], True),
    ((1.5, "1.50"), ["1.5", "1.50"], True),
    (("ann", " ann "), ["ann", " ann "], True), ((" ann\n", "bob"), [" ann\n", "bob"], True),
    (("\x1b[2Jann", "bob"), ["\x1b[2Jann", "bob"], True),
    ((["ann", "ann"], "bob"), ["ann", "bob"], True),
    (("a|b", "a-b"), ["a|b", "a-b"], False), (("a", ["b", "a"]), ["a", None], True),
    (({"id": 1}, "bob"), [None, "bob"], True), (([{"id": 1}], "bob"), [None, "bob"], True),
    (([], "bob"), [None, "bob"], True),
])  # fmt: skip
def test_the_filter_leaves_out_whom_it_names(tmp_path, logged: tuple, values: list, is_exact: bool) -> None:
    names, by = ["s0", "s1", "s2", "s3"], "metadata.user"
    users = dict(zip(names, [*logged, "third", "fourth"], strict=True))
    run = write_extract(tmp_path / "run", dict.fromkeys(names, talk("hello", "hi", "thanks")),
                        metadata={name: {"user": user} for name, user in users.items()})  # fmt: skip
    found, field = group_sessions(BlameConfig(run=run))
    assert (field, list(found.values())) == (by, [*values, "third", "fourth"])
    shares = zip(names, (3.0, 1.0, 0.0, 0.0), strict=True)
    rows = rows_of(*((f"{name}:1", found[name], share, None) for name, share in shares))
    groups = [row for row in sum_groups(rows) if row["value"]]
    worst = choose_worst(groups)
    condition = write_filter(by, worst)
    assert condition.isprintable()
    left_out = count_left_out(run, condition, rows)
    assert left_out[values[0] or values[1]] == 1
    assert leaves_out_worst(worst, left_out) is is_exact
    sentence = write_sentence([{"domain": "a", "before": 1, "after": 0}], by, groups, worst, left_out)
    assert ("--by session" in sentence) is not is_exact


@pytest.mark.parametrize(
    ("shares", "filtered"),
    [([0.6, 0.3, 0.1, 0.0], "x0|x1"), ([0.9, 0.1], "x0"), ([0.5, 0.5], "x0"), ([1.0], None), ([-0.1, -0.2], None)],
)
def test_who_is_left_out(shares: Sequence[float], filtered: str | None) -> None:
    groups = [{"value": f"x{n}", "share": share, "turns": 5} for n, share in enumerate(shares)]
    config = TrainConfig(run=Path("runs/a"), model="m", filter=("language=en",))
    worst = choose_worst(groups)
    if filtered is None:
        assert worst == []
    else:
        evaluated = EvalConfig(run=Path("runs/a"), prompts="p")
        commands = write_commands(Path("runs/a"), config, evaluated, "session", worst)
        words = shlex.split(commands[0])
        assert [words[n + 1] for n, word in enumerate(words) if word == "--filter"] == [
            "language=en", f"session!={filtered}"]  # fmt: skip
