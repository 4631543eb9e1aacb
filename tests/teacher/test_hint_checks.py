"""Tests of opdkit/teacher/hint_checks.py: hints that do not change replies as they ask are dropped before scoring."""

import itertools
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import save_tiny_model
from http_server import Reply, completion, serving, unused_address
from judged_runs import HINT, one_part, prompts_of, talk, targets, three_parts, turn, verdict, write_run

from opdkit.chat.markup import visible
from opdkit.chat.template import Chat
from opdkit.commands.check.stage import examine
from opdkit.commands.export import command as export
from opdkit.commands.report.collect import collect
from opdkit.commands.turns.view import read_turn_view
from opdkit.config.export import ExportConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.rollout import RolloutConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge.prompts import defuse
from opdkit.judge.votes import Answer
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, sample
from opdkit.rollout import stage as rollout
from opdkit.store.part_writer import Stage
from opdkit.store.plans import manifest
from opdkit.store.reading import part_path, read_all
from opdkit.store.reviews import Review, append
from opdkit.store.tables import TABLES, VERDICTS
from opdkit.teacher import hint_checks
from opdkit.teacher import stage as teacher
from opdkit.teacher.hint_checks import (
    HELPS,
    NO_BETTER,
    NOT_JUDGED,
    NOT_NEEDED,
    REPLIES_CUT_OFF,
    WORSE,
    choose_hint_judge,
    decide_status,
)

OPTIONS = {"check_hints": 3, "max_new_tokens": 8, "top_k": 3}
YES, NO, UNCLEAR = r"\boxed{1}", r"\boxed{-1}", "I would rather not say."


def checks(run: Path) -> list[dict]:
    return list(read_all(run, "hint_checks"))


def findings(run: Path) -> list[tuple]:
    return [(f.table, f.part, f.what) for f in examine(run).findings if f.stage == "teacher"]


def reply_in(question) -> str:
    """Return the reply that a question to the judge is about."""
    asked = question.messages[-1]["content"]
    return re.sub(r"^\| ", "", asked.split("## Reply\n")[1].split("\n\n## Hint")[0], flags=re.MULTILINE)


@pytest.fixture
def judge(monkeypatch):
    """Return a function that makes `answer(question)` the judge, and returns the list of the questions asked."""

    def install(answer) -> list:
        questions: list = []

        def ask(asked):
            questions.extend(asked)
            return [[Answer(answer(question))] for question in asked]

        monkeypatch.setattr(hint_checks, "open_judge", lambda *_: ask)
        return questions

    return install


@pytest.mark.parametrize(
    ("pairs", "status"),
    [
        ([(True, False)] * 3, HELPS),
        ([(True, False)] + [(False, False)] * 2, HELPS),
        ([(True, False)] + [(False, False)] * 3, NO_BETTER),
        ([(False, False)] * 4, NO_BETTER),
        ([(True, True)] + [(False, False)] * 2, NO_BETTER),
        ([(True, True)] * 2 + [(False, False)] * 2, NOT_NEEDED),
        ([(True, True)] * 3 + [(False, True)], NOT_NEEDED),
        ([(True, True)] * 2 + [(False, True)] * 2, WORSE),
        ([(False, True), (False, False), (False, False)], WORSE),
        ([(None, True), (None, None), (True, None), (True, False)], NOT_JUDGED),
        ([(None, True), (None, None), (True, False), (True, False)], HELPS),
        ([], NOT_JUDGED),
    ],
)
def test_what_becomes_of_a_hint(pairs, status):
    assert decide_status(pairs) == status


@pytest.mark.parametrize("has_own_teacher", [False, True])
def test_replies_come_from_streams_of_their_own_with_the_hint_and_without(
    run, config, judge, tmp_path, tiny_model_dir, tiny_tokenizer, has_own_teacher
):
    """The student writes them, also if another model is the teacher."""
    questions, options = judge(lambda question: NO), dict(OPTIONS)
    if has_own_teacher:
        options |= {"teacher": (str(save_tiny_model(tmp_path / "other", tiny_tokenizer, seed=7)),)}
    teacher.run(config(run, **options))
    scorer = teacher.load_scorer(config(run, **options))
    chat, expected = scorer.student.chat, set()
    rows = checks(run)
    assert len(rows) == 6
    for row in rows:
        for ids in prompts_of(run, tiny_model_dir, row, "last-user"):
            for k in range(3):
                request = Request(ids, [make_random_stream(0, "check", row["turn_id"], k)])
                [[reply]] = sample(scorer.student.model, [request], temperature=1.0, max_new_tokens=8,
                                   stop_ids=chat.stop_ids, batch_tokens=999)  # fmt: skip
                text = chat.text(reply.ids[:-1] if reply.finish_reason == "stop" else reply.ids)
                expected.add(" ".join(defuse(visible(text, False)).split()))
    assert {" ".join(reply_in(question).split()) for question in questions} == expected - {""}


def test_equal_replies_with_the_hint_and_without_have_one_vote(run, config, judge, monkeypatch):
    """So errors of the judge do not seem to be an effect of the hint."""
    monkeypatch.setattr(hint_checks, "_read_visible_text", lambda *_: "the same")
    answers = itertools.cycle((YES, NO))
    questions = judge(lambda question: next(answers))
    teacher.run(config(run, **OPTIONS))
    rows = checks(run)
    assert len(questions) == 3 * len(rows) > 0
    assert all(0 < row["with_hint"] == row["without_hint"] < 1 for row in rows)


def test_a_turn_without_its_hint_is_a_turn_that_never_had_one(tmp_path, run, config, judge):
    """The targets are bit-identical to those of turns judged without a hint; with no reward either, there is none."""
    judge(lambda question: NO)
    summary = teacher.run(config(run, **OPTIONS))
    parts = []
    for k in range(3):
        names = [f"s{k}a", f"s{k}b"]
        ids = [f"{name}:{index}" for name in names for index in (2, 4)]
        verdicts = [verdict(name, None, reward) for name, reward in zip(ids, (None, 1, -1, None), strict=True)]
        parts.append(([talk(n) for n in names], [turn(i) for i in ids], verdicts))
    other = write_run(tmp_path / "other", parts)
    plain = teacher.run(config(other, top_k=3))
    assert targets(run) == targets(other)
    assert summary.counters.dropped == plain.counters.dropped == Counter({"no signal": 6})
    assert summary.counters.labels("hints checked") == {NO_BETTER: 6}


def test_hints_that_help_stay_and_so_does_every_number(tmp_path, run, config, judge, tiny_model_dir, capsys):
    """The judge says yes exactly to replies sampled with the hint, so all hints stay and the targets do not change."""
    other = shutil.copytree(run, tmp_path / "other")
    teacher.run(config(other, top_k=3))
    hinted = Counter()
    seen = hint_checks._read_visible_text

    def spy(scorer, prompt_ids, reply):
        text = seen(scorer, prompt_ids, reply)
        if "hint / instruction" in scorer.student.chat.text(prompt_ids):
            hinted[" ".join(text.split())] += 1
        return text

    hint_checks._read_visible_text = spy
    try:
        judge(lambda question: YES if hinted[" ".join(reply_in(question).split())] else NO)
        summary = teacher.run(config(run, **OPTIONS))
    finally:
        hint_checks._read_visible_text = seen
    assert targets(run) == targets(other)
    rows = checks(run)
    assert {row["status"] for row in rows} == {HELPS}
    assert all(row["with_hint"] > row["without_hint"] and row["reply"] for row in rows)
    assert summary.counters.labels("hints checked") == {HELPS: 6}


def test_without_the_option_there_is_no_table(run, config):
    assert TABLES["hint_checks"].option == "--check-hints"
    teacher.run(config(run))
    with pytest.raises(OpdkitError, match="--check-hints"):
        checks(run)


def test_a_hint_that_cannot_be_judged_stays_and_is_counted(tmp_path, run, config, judge):
    other = shutil.copytree(run, tmp_path / "other")
    teacher.run(config(other, top_k=3))
    judge(lambda question: UNCLEAR)
    summary = teacher.run(config(run, **OPTIONS))
    assert targets(run) == targets(other)
    assert [(row["status"], row["judged"], row["with_hint"]) for row in checks(run)] == [(NOT_JUDGED, 0, None)] * 6
    assert any("--judge-model" in text for text in teacher.find_warnings(config(run, **OPTIONS), summary.counters))


def test_a_prompt_without_room_for_a_reply_is_not_tested(run, config, judge):
    judge(lambda question: NO)
    options = OPTIONS | {"max_new_tokens": 500}
    summary = teacher.run(config(run, **options, max_tokens=520))
    assert summary.counters.labels("hints checked") == {"not tested: too long": 6}
    assert {(row["samples"], row["reply"]) for row in checks(run)} == {(0, None)}
    assert sum(row["hint"] is not None for row in targets(run)) == 6


def test_replies_that_end_before_they_say_anything_tell_nothing_of_a_hint(run, config, judge, monkeypatch):
    """If the model thinks for longer than --max-new-tokens, the hints stay and a warning says what to do."""
    monkeypatch.setattr(Chat, "visible_text", lambda *_: "")
    questions = judge(lambda question: NO)
    summary = teacher.run(config(run, **OPTIONS | {"max_new_tokens": 1}))
    assert {row["status"] for row in checks(run)} == {REPLIES_CUT_OFF}
    assert not questions
    assert sum(row["hint"] is not None for row in targets(run)) == 6
    warnings = teacher.find_warnings(config(run, **OPTIONS), summary.counters)
    assert sum("raise --max-new-tokens" in text for text in warnings) == 1


def by_parity(question) -> str:
    return YES if sum(map(str.isalpha, reply_in(question))) % 2 else NO


def test_shards_batches_and_resuming_give_the_same_rows(tmp_path, run, config, judge):
    other, third = (shutil.copytree(run, tmp_path / name) for name in ("other", "third"))
    judge(by_parity)
    teacher.run(config(run, **OPTIONS))
    for shard in ("1/2", "0/2"):
        teacher.run(config(other, shard=shard, **OPTIONS))
    teacher.run(config(third, **OPTIONS, batch_tokens=64))
    assert checks(run) == checks(other) == checks(third)
    assert len({row["status"] for row in checks(run)}) > 1
    assert [(r["turn_id"], r["hint"]) for r in targets(run)] == [(r["turn_id"], r["hint"]) for r in targets(other)]
    part_path(other, "targets", 1).unlink()  # killed between the two tables of a part
    questions = judge(lambda question: NO)
    teacher.run(config(other, **OPTIONS))
    assert checks(other) == checks(run)
    assert targets(other) == targets(run)
    assert not questions, "what was tested is not tested again"


def test_what_people_decide_is_not_dropped(run, config, judge):
    judge(lambda question: NO)
    teacher.run(config(run, **OPTIONS))
    append(run, [Review("s0a:2", hint_decided=True, hint="Say yes."), Review("s1a:2", reward_decided=True, reward=-1)])
    questions = judge(lambda question: NO)
    teacher.run(config(run, **OPTIONS))
    rows = {row["turn_id"]: row for row in targets(run)}
    assert (rows["s0a:2"]["hint"], rows["s0a:2"]["reward"]) == ("Say yes.", None)
    assert (rows["s1a:2"]["hint"], rows["s1a:2"]["reward"]) == (None, -1), "its hint was dropped, its reward is new"
    assert not questions
    assert findings(run) == []


def test_of_several_candidates_those_that_help_remain(tmp_path, config, judge):
    hints = ["Say red.", "Say green or blue."]
    row = verdict("a:2") | {"hints": hints, "hint": hints[0], "hint_status": "ok"}
    run = write_run(tmp_path / "run", one_part([talk("a", 1)], [turn("a:2")], [row]))
    questions = judge(lambda question: UNCLEAR if hints[1] in question.messages[-1]["content"] else NO)
    teacher.run(config(run, **OPTIONS, teacher_hint="overlap"))
    assert [(row["hint"], row["status"]) for row in checks(run)] == [(hints[0], NO_BETTER), (hints[1], NOT_JUDGED)]
    assert [row["hint"] for row in targets(run)] == [hints[1]]
    assert len({question.turn_id for question in questions}) == len(questions)


def test_answers_of_a_server_are_kept_until_the_part_is_committed(run, config, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    options = OPTIONS | {"judge_model": "any"}
    with serving(lambda body, number: completion(YES)) as server:
        teacher.run(config(run, **options, judge_url=server.url))
    total = len(server.requests)
    shutil.rmtree(run / "teacher")
    failing = Reply(401, "")
    with (
        serving(lambda body, number: completion(YES) if number < total - 3 else failing) as server,
        pytest.raises(OpdkitError, match="401"),
    ):
        teacher.run(config(run, **options, judge_url=server.url))
    (file,) = (run / "teacher/.tmp").glob("targets-*.answers")
    kept = {json.loads(line)[3] for line in file.read_bytes().strip().split(b"\n")}  # the seeds of the votes
    with serving(lambda body, number: completion(YES)) as server:
        teacher.run(config(run, **options, judge_url=server.url))
    assert 3 <= len(server.requests) < total, "those under way at the 401 are lost"
    assert kept
    assert not kept & {request["seed"] for request in server.requests}
    assert not list((run / "teacher/.tmp").iterdir())


def test_the_dry_run_counts_the_work(run, config, judge, capsys):
    questions = judge(lambda question: NO)
    teacher.run(config(run, **OPTIONS, dry_run=True))
    facts = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert not questions
    assert (facts["hints to check"], facts["replies to sample"]) == ("6", "36")
    assert int(facts["tokens to write, at most"]) == 36 * 8
    teacher.run(config(run, **OPTIONS))
    assert 0 < len(questions) <= int(facts["votes of the judge, at most"]) == 36


def test_the_dry_run_after_a_review_tests_no_hint_again(run, config, judge, capsys):
    judge(lambda question: NO)
    teacher.run(config(run, **OPTIONS))
    append(run, [Review("s1a:2", hint_decided=True, hint="Say yes.")])
    capsys.readouterr()
    summary = teacher.run(config(run, **OPTIONS, dry_run=True))
    assert "hints to check" not in capsys.readouterr().out
    assert summary.counters.total("with a hint") == 1, "the others are dropped"
    judge(lambda question: pytest.fail("asked"))
    teacher.run(config(run, **OPTIONS))
    rows = [row for row in targets(run) if row["turn_id"].startswith("s1")]
    assert (sum(row["hint"] is not None for row in rows), len(rows)) == (1, summary.counters.rows_out)


def test_overwrite_deletes_nothing_where_the_judge_is_not_there(run, config):
    teacher.run(config(run, top_k=3))
    before, nobody = targets(run), unused_address()
    with pytest.raises(OpdkitError, match=re.escape("127.0.0.1")):
        teacher.run(config(run, **OPTIONS, judge_model="any", judge_url=nobody, overwrite=True))
    assert targets(run) == before


def test_overwrite_deletes_nothing_where_a_local_judge_cannot_be_loaded(run, config, tiny_model_dir, tmp_path):
    teacher.run(config(run, top_k=3))
    before, broken = targets(run), shutil.copytree(tiny_model_dir, tmp_path / "judge")
    (broken / "tokenizer.json").unlink()
    with pytest.raises(OpdkitError, match="tokenizer"):
        teacher.run(config(run, **OPTIONS, judge_model=str(broken), overwrite=True))
    assert targets(run) == before


def test_the_judge_of_the_run_is_asked_as_it_was(run, config, monkeypatch):
    """Template arguments, length and temperature are the judge stage's or, if the student judges, the teacher's."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("JUDGE_KEY", "k")
    path = run / "judge/manifest.json"
    document, how = json.loads(path.read_text()), {"temperature": 0.25, "max_new_tokens": 77}
    with serving(lambda body, number: completion(YES)) as server:
        judge = JudgeConfig(run=run, judge="endpoint", judge_model="any", judge_url=server.url,
                            template_arg=("enable_thinking=false",), api_key_env="JUDGE_KEY", **how)  # fmt: skip
        document["configuration"] = json.loads(json.dumps(judge.effective()))
        path.write_text(json.dumps(document))
        teacher.run(config(run, **OPTIONS))
        assert {(body["temperature"], body["max_tokens"]) for body in server.requests} == {(0.25, 77)}
        assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in server.requests)
    own = config(run, check_hints=1, judge_model=config(run).model, template_arg=("enable_thinking=false",))
    opened: list[JudgeConfig] = []
    monkeypatch.setattr("opdkit.judge.local.LocalJudge.__init__", lambda self, judge, model: opened.append(judge))
    hint_checks.open_criterion_judge(own)
    assert (opened[0].template_arg, opened[0].max_new_tokens) == (("enable_thinking=false",), 512)
    monkeypatch.setattr("opdkit.judge.endpoint.Endpoint.__init__", lambda self, judge, *_, **__: opened.append(judge))
    hint_checks.open_criterion_judge(config(run, check_hints=1, judge_model="any", judge_url="http://moved:1/v1"))
    assert (opened[1].template_arg, opened[1].max_new_tokens) == (("enable_thinking=false",), 77)
    assert opened[1].api_key_env == "OPENAI_API_KEY", "the key of one server is not sent to another"


def test_a_server_judges_in_the_words_of_the_plan(run, config, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    wording = tmp_path / "words.toml"
    wording.write_text("[criterion]\nhelps = 'It heeds the hint.'\n", encoding="utf-8")
    with serving(lambda body, number: completion(NO)) as server:
        options = OPTIONS | {"judge_model": "any", "judge_url": server.url, "wording": wording}
        teacher.run(config(run, **options))
        assert {body["model"] for body in server.requests} == {"any"}
        assert all("It heeds the hint." in body["messages"][-1]["content"] for body in server.requests)
    assert {row["status"] for row in checks(run)} == {NO_BETTER}
    plan = manifest(run, "teacher")["plan"]
    assert plan["config"]["judge_model"] == "any"
    assert plan["inputs"]["criterion"]["helps"] == "It heeds the hint."


def test_the_judge_of_the_run_is_the_default(run, config):
    assert choose_hint_judge(config(run)) == {}
    assert choose_hint_judge(config(run, check_hints=2, judge_model="x")) == {}
    assert choose_hint_judge(config(run, check_hints=2)) == {"judge_model": config(run).model}, (
        "rules cannot judge a reply"
    )
    path = run / "judge/manifest.json"
    document = json.loads(path.read_text())
    document["configuration"] |= {"judge": "endpoint", "judge_model": "big", "judge_url": "http://a/v1"}
    path.write_text(json.dumps(document))
    assert choose_hint_judge(config(run, check_hints=2)) == {"judge_model": "big", "judge_url": "http://a/v1"}


def test_the_student_judges_itself_without_a_second_copy(run, config, monkeypatch):
    loaded = []
    load = teacher.load_scorer
    monkeypatch.setattr("opdkit.judge.local.load_model", lambda *args, **options: pytest.fail("loaded again"))
    monkeypatch.setattr(teacher, "load_scorer", lambda config: loaded.append(1) or load(config))
    teacher.run(config(run, **(OPTIONS | {"check_hints": 1})))
    assert loaded == [1]
    assert {row["status"] for row in checks(run)} <= {NOT_JUDGED, REPLIES_CUT_OFF}, (
        "a model of random weights does not vote"
    )


def test_the_report_shows_examples(run, config, judge):
    judge(lambda question: NO)
    teacher.run(config(run, **OPTIONS))
    tests = collect(run, 10).summary["hint_checks"]
    assert tests["statuses"] == [(NO_BETTER, 6)]
    example = tests["examples"][0]
    assert example["hint"].startswith(HINT)
    assert (example["with_hint"], example["without_hint"], example["status"]) == (0, 0, NO_BETTER)


def test_check_finds_what_does_not_fit(run, config, judge):
    judge(lambda question: NO)
    teacher.run(config(run, **OPTIONS))
    assert findings(run) == []
    part_path(run, "hint_checks", 1).unlink()
    assert findings(run) == [("hint_checks", 1, "gone, although targets has the part that goes with it")]


# -- exports and rollouts -------------------------------------------------------------------------------------------


NOT_HELPING = f"{HINT} (1)"  # of the turn s1b:2


@pytest.fixture
def checked(run, config, judge) -> Path:
    """Return the run after the teacher stage has dropped one hint of six."""
    judge(lambda question: NO if "(1)" in question.messages[-1]["content"] else UNCLEAR)
    teacher.run(config(run, **OPTIONS))
    assert {row["turn_id"] for row in checks(run) if row["status"] == NO_BETTER} == {"s1b:2"}
    return run


def export_rows(run: Path, **options) -> tuple[list[dict], Counter]:
    summary = export.run(ExportConfig(run=run, **({"to": "trl-sdft"} | options), overwrite=True))
    return pq.read_table(summary.where).to_pylist(), summary.counters.dropped


def test_show_says_that_a_hint_was_dropped(checked):
    verdict = read_turn_view(checked, "s1b:2")["verdict"]
    assert (verdict["hint"], verdict["hint_status"]) == (None, NO_BETTER)
    assert verdict["candidates"] == [{"hint": NOT_HELPING, "status": f"left out by --check-hints: {NO_BETTER}"}]
    assert read_turn_view(checked, "s0a:2")["verdict"]["hint_status"] == "ok"


def test_exports_leave_a_dropped_hint_out(tmp_path, run, checked):
    rows, dropped = export_rows(checked)
    assert [row["turn_id"] for row in rows] == ["s0a:2", "s0b:2", "s1a:2", "s2a:2", "s2b:2"]
    assert dropped == {"no hint (none)": 6, f"no hint ({NO_BETTER})": 1}
    rows, dropped = export_rows(checked, to="verl", out=tmp_path / "verl.parquet")
    assert "s1b:2" not in {row["extra_info"]["turn_id"] for row in rows}
    summary = export.run(ExportConfig(run=checked, to="rules"))
    assert "(1)" not in summary.where.read_text() + summary.where.with_suffix(".jsonl").read_text()
    assert summary.counters.dropped[f"no hint ({NO_BETTER})"] == 1


def test_exports_take_what_people_decide_about_a_dropped_hint(checked):
    append(checked, [Review("s1b:2", reward_decided=True, reward=1)])
    assert export_rows(checked)[1][f"no hint ({NO_BETTER})"] == 1, "nobody decided its hint"
    append(checked, [Review("s1b:2", hint_decided=True, hint=NOT_HELPING)])
    rows, dropped = export_rows(checked)
    assert [row["turn_id"] for row in rows if NOT_HELPING in row["privileged_context"]] == ["s1b:2"]
    assert set(dropped) == {"no hint (none)"}


def test_of_several_candidates_a_tested_one_is_exported(tmp_path, config, judge):
    hints = ["Say red.", "Say green or blue."]
    row = verdict("a:2") | {"hints": hints, "hint": hints[0], "hint_status": "ok"}
    run = write_run(tmp_path / "run", one_part([talk("a", 1)], [turn("a:2")], [row]))
    judge(lambda question: UNCLEAR if hints[1] in question.messages[-1]["content"] else NO)
    teacher.run(config(run, **OPTIONS, teacher_hint="overlap"))
    [row], _ = export_rows(run)
    assert hints[1] in row["privileged_context"]
    assert hints[0] not in row["privileged_context"]


def test_tests_of_other_verdicts_drop_nothing(checked):
    other = JudgeConfig(run=checked, judge="rules", max_hint_chars=99, overwrite=True)
    judging = Stage.open(other, "judge", [VERDICTS], parts=3, upstream=["extract"])
    for part, (_, _, verdicts) in enumerate(three_parts()):
        with judging.writing(part) as out:
            out.add_rows("verdicts", verdicts)
    assert export_rows(checked)[1] == {"no hint (none)": 6}


def test_a_part_whose_hints_are_not_tested_yet_is_an_error_that_names_it(checked, tmp_path, config):
    for table in ("targets", "hint_checks"):
        part_path(checked, table, 2).unlink()
    with pytest.raises(OpdkitError, match="hint_checks/part-00002"):
        export_rows(checked)
    with pytest.raises(OpdkitError, match="hint_checks/part-00002"):
        rollout.run(RolloutConfig(run=tmp_path / "new", from_run=checked, model=config(checked).model, device="cpu"))


def test_a_rollout_answers_no_turn_whose_hint_was_dropped(checked, tmp_path, config, judge):
    student = {"from_run": checked, "model": config(checked).model, "device": "cpu", "samples": 2, "max_new_tokens": 4}
    summary = rollout.run(RolloutConfig(run=tmp_path / "new", **student))
    assert (summary.counters.rows_in, summary.counters.dropped) == (6, {f"hint {NO_BETTER}": 1})
    answered = {row["turn_id"].partition("/")[0]: row["hint"] for row in read_all(tmp_path / "new", "verdicts")}
    assert answered == {row["turn_id"]: row["hint"] for row in checks(checked) if row["status"] != NO_BETTER}
    assert examine(tmp_path / "new").findings == []
    teacher.run(config(checked, **OPTIONS, overwrite=True, seed=1))
    with pytest.raises(ConfigError, match=r"inputs\.from\.teacher"):
        rollout.run(RolloutConfig(run=tmp_path / "new", **student))
    judge(lambda question: NO)
    teacher.run(config(checked, **OPTIONS, overwrite=True))
    with pytest.raises(OpdkitError, match="check-hints"):
        rollout.run(RolloutConfig(run=tmp_path / "other", **student))


@pytest.mark.parametrize("options", [{"judge_model": "m"}, {"check_hints": 2, "device_map": "auto"}])
def test_options_that_do_not_go_together(run, config, options):
    with pytest.raises(ConfigError, match="check-hints"):
        config(run, **options)
