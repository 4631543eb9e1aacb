"""Tests of opdkit/commands/night/steps.py: a night's tests, when it trains, and what its evaluation decides."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from checked_runs import whole_run
from night_logs import PROMPTS, judged_night
from night_logs import night_options as options
from night_logs import options as log_options
from sample_world import MODEL
from small_logs import chat, jsonl

from opdkit.commands.night import steps
from opdkit.commands.night.home import KEPT, PROMOTED, WAITS, Home, Night
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON
from opdkit.config.gate import GateConfig
from opdkit.config.night import NightConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import ConfigError
from opdkit.evaluate.checks import read_prompts
from opdkit.evaluate.gate import Decision
from opdkit.store.part_writer import Stage
from opdkit.store.tables import REPLIES, TARGETS, to_arrow


def test_a_gain_is_more_than_chance_where_users_corrected_the_model() -> None:
    def gains(better: int, worse: int, same: int, corrected: bool = True, per_session: int = 0) -> bool:
        sides = [(False, True)] * better + [(True, False)] * worse + [(True, True)] * same
        fields = {"domain": "d", "sample": 0, "kl": None, "probe": None, "hollow": None, "called": None, "reply": "r",
                  "finish_reason": "stop", "hint_echo": None}  # fmt: skip
        rows = [{"prompt_id": f"{n}", "session": f"log:{n // per_session}" if per_session else None, "model": model,
                 "passed": passed} | fields for n, pair in enumerate(sides)
                for model, passed in zip(("before", "after"), pair, strict=True)]  # fmt: skip
        unknown = [row | {"prompt_id": f"unknown-{row['prompt_id']}", "passed": None} for row in rows]
        others = [row | {"prompt_id": f"other-{row['prompt_id']}"} for row in rows]
        ids = [str(row["prompt_id"]) for row in [*rows, *unknown]] if corrected else []
        return steps.has_gained(steps.sum_known(to_arrow(REPLIES, [*rows, *unknown, *others]), ids))

    assert not gains(1, 0, 99), "of so few changes, the bootstrap interval ends at 0"
    assert not gains(4, 0, 96)
    assert gains(5, 0, 95)
    assert not gains(5, 1, 94)
    assert gains(6, 0, 0)
    assert not gains(5, 0, 0), "too few prompts"
    assert not gains(0, 6, 0)
    assert not gains(20, 0, 0, corrected=False), "what nobody complained about is no gain"
    assert gains(20, 0, 80, per_session=2)
    assert not gains(20, 0, 80, per_session=5), "four sessions are better: one gain each, not twenty"
    assert not gains(20, 0, 0, per_session=4), "too few sessions"


def test_separators_in_messages_and_a_bom_do_not_break_the_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python's splitlines() breaks at U+2028, U+2029 and U+0085, but a file of JSON lines may contain them."""
    rows = [{"id": f"{k}", "prompt": f"When?{separator}Now", "check": {"match": ["now"]}}
            for k, separator in enumerate("\u2028\u2029\u0085")]  # fmt: skip
    by_model, written = {"id": "m", "prompt": "When?", "check": {"judge": "It is now."}}, tmp_path / "from-log.jsonl"
    written.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [*rows, by_model]))
    own = [row | {"id": f"own-{row['id']}"} for row in rows] + [rows[1] | {"prompt": "edited", "session": "log:1"}]
    prompts = tmp_path / "prompts.jsonl"
    lines = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in own)
    prompts.write_text(lines + '\n{"prompt": "no id", "check": {"match": ["x"]}}\n', encoding="utf-8-sig")
    own.append({"id": "line-8", "prompt": "no id", "check": {"match": ["x"]}})
    with prompts.open("a") as out:
        out.write(json.dumps(by_model | {"id": "own-by-model"}))
    monkeypatch.setattr(steps, "write_log_prompts", lambda *_: written)
    monkeypatch.setattr(steps, "read_judge_options", lambda _: {})
    night = Home(tmp_path / "home").night(1)
    night.folder.mkdir(parents=True)
    tests = steps.write_tests(options(tmp_path, prompts=str(prompts)), EvalConfig(run=night.folder), "m", 0.2)
    assert tests is not None
    expected = [rows[0], rows[2], *own]  # a prompt that the user edited is there once
    assert [json.loads(line) for line in tests.read_text().rstrip("\n").split("\n")] == expected
    assert [prompt.id for prompt in read_prompts(tests)] == [row["id"] for row in expected]
    assert "2 tests need a model as the judge: left out" in capsys.readouterr().err, "one is from the log"


def test_prompts_of_a_json_array_are_tests_of_a_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"prompt": f"When is {n}?", "check": {"match": ["now"]}} for n in "ab"]
    (tmp_path / "prompts.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    (tmp_path / "from-log.jsonl").write_text("", encoding="utf-8")
    monkeypatch.setattr(steps, "write_log_prompts", lambda *_: tmp_path / "from-log.jsonl")
    monkeypatch.setattr(steps, "read_judge_options", lambda _: {})
    night = Home(tmp_path / "home").night(1)
    night.folder.mkdir(parents=True)
    config = options(tmp_path, prompts=str(tmp_path / "prompts.json"))
    tests = steps.write_tests(config, EvalConfig(run=night.folder), "m", 0.2)
    assert tests is not None
    written = list(map(json.loads, tests.read_text().splitlines()))
    assert written == [row | {"id": f"line-{n}"} for n, row in enumerate(rows, 1)]


def test_a_stage_whose_input_was_written_again_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for the training of a night that failed later if somebody has decided on one of its turns since."""
    run, done = whole_run(tmp_path / "run"), list[tuple[str, bool]]()
    monkeypatch.setattr(steps, "run_stage", lambda name, config, *_: done.append((name, config.overwrite)))
    train = TrainConfig(run=run, model=str(MODEL))
    steps.run_step("train", train)
    teacher = TeacherConfig(run=run, model=str(MODEL), top_k=4, overwrite=True, shard="0/1")
    Stage.open(teacher, "teacher", [TARGETS], parts=3, upstream=["extract", "judge"])
    steps.run_step("train", train)
    assert done == [("train", False), ("train", True)]


def test_a_model_that_was_taken_back_is_not_trained_again_at_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    wrong = [chat(f"Please describe car {n} in short", f"It is {n}.", "Please use French instead.", "Oui.", "Thanks!")
             for n in range(40)]  # fmt: skip
    judged_night(home, 1, *wrong, decision=PROMOTED)
    night = judged_night(home, 2, *wrong[:3], learns=[1, 2])
    record = steps.learn(home, night, log_options(home), {})
    assert record["decision"] == WAITS
    assert "since night 1, whose model was taken back" in record["sentence"]


def test_tests_are_made_with_the_template_arguments_of_the_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, given = Home(tmp_path), list[tuple[str, ...]]()

    def write_tests(_: NightConfig, evaluation: EvalConfig, *__: object) -> None:
        given.append(evaluation.template_arg)

    monkeypatch.setattr(steps, "write_run", lambda *_: None)
    monkeypatch.setattr(steps, "count_trained", lambda *_: (40, 0))
    monkeypatch.setattr(steps, "write_tests", write_tests)
    wrong = [chat(f"Describe car {n}", f"It is {n}.", "Please use French instead.", "Oui.", "Thanks!")
             for n in range(40)]  # fmt: skip
    night = judged_night(home, 1, *wrong, learns=[1])
    for own, expected in (((), ("thinking=false",)), (("thinking=true",), ("thinking=true",))):
        stages = {"extract": None, "judge": None, "train": TrainConfig(run=tmp_path, model="m"),
                  "teacher": TeacherConfig(run=tmp_path, model="m", template_arg=("thinking=false",)),
                  "eval": EvalConfig(run=tmp_path, template_arg=own)}  # fmt: skip
        record = steps.learn(home, night, log_options(home, served_as=("m",)), stages)
        assert record["decision"] == WAITS
        assert given.pop() == expected


def test_a_model_is_tested_again_once_the_sessions_since_are_half_as_many_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, tested = Home(tmp_path), list[int]()

    def decide(night: Night, *_: object) -> tuple[bool, JSON]:
        tested.append(night.number)
        return False, {"sentence": "No gain beyond chance."}

    monkeypatch.setattr(steps, "decide", decide)
    monkeypatch.setattr(steps, "write_run", lambda *_: None)
    monkeypatch.setattr(steps, "write_tests", lambda *_, **__: tmp_path)
    stages = {"extract": None, "judge": None, "train": TrainConfig(run=tmp_path, model="m"),
              "teacher": TeacherConfig(run=tmp_path, model="m"), "eval": EvalConfig(run=tmp_path)}  # fmt: skip
    candidate = judged_night(home, 1, chat("Hello, who is there?", "It is me.", "Thanks!"), decision=KEPT)
    for number, chats in ((2, 8), (3, 3), (4, 1), (5, 5)):
        wrong = [chat(f"Describe car {number}.{n}", f"It is {n}.", "Please use French instead.", "Oui.", "Thanks!")
                 for n in range(chats)]  # fmt: skip
        night = judged_night(home, number, *wrong)
        current = [session for n in range(1, number + 1) for session in steps.read_sessions(home.night(n), 0.2)]
        assert steps.retest(home, night, candidate, current, log_options(home, served_as=("m",)), stages) is None
    assert tested == [2, 4], "with 8 and 12 sessions, and not with 11 and 17"


@pytest.mark.parametrize(("complaints", "chances"), [(3, [0.05]), (8, [0.025, 0.025])])
def test_a_training_has_half_the_chance_only_if_an_earlier_model_is_compared_in_its_night(
    complaints: int, chances: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, given = Home(tmp_path), list[float]()

    def decide(night: Night, config: NightConfig, evaluation: EvalConfig, new: object, chance: float) -> object:
        given.append(chance)
        return False, {"sentence": "No gain beyond chance."}

    monkeypatch.setattr(steps, "decide", decide)
    monkeypatch.setattr(steps, "write_run", lambda *_: None)
    monkeypatch.setattr(steps, "write_tests", lambda *_, **__: tmp_path)
    monkeypatch.setattr(steps, "count_trained", lambda *_: (complaints, 0))
    monkeypatch.setattr(steps, "run_step", lambda *_: SimpleNamespace(line=str))
    monkeypatch.setattr(steps, "read_prompts", lambda _: [SimpleNamespace(unit=n, corrected=True) for n in range(6)])
    stages = {"extract": None, "judge": None, "train": TrainConfig(run=tmp_path, model="m"),
              "teacher": TeacherConfig(run=tmp_path, model="m"), "eval": EvalConfig(run=tmp_path)}  # fmt: skip
    candidate = judged_night(home, 1, chat("Hello, who is there?", "It is me.", "Thanks!"), decision=KEPT,
                             gate={"ship": True})  # fmt: skip
    candidate.model.mkdir(parents=True)
    (candidate.model / "config.json").touch()
    night = judged_night(home, 2, *(
        chat(f"Describe car {n}", f"It is {n}.", "Please use French instead.", "Oui.", "Thanks!")
        for n in range(complaints)), learns=[1, 2])  # fmt: skip
    assert home.find_candidate(night) == candidate
    assert steps.learn(home, night, log_options(home, served_as=("m",), least_hints=1), stages)["decision"] == KEPT
    assert given == chances


def test_the_gate_of_a_night_allows_what_the_user_allows_and_gate_md_has_the_nights_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night, seen = Home(tmp_path / "home").night(7), list[GateConfig]()
    night.folder.mkdir(parents=True)
    (night.folder / "tests.jsonl").write_bytes(b"".join(PROMPTS))

    def decide_gate(config: GateConfig) -> Decision:
        seen.append(config)
        return Decision(False, "Do not ship: in Use <b>, right replies fell.", [], [], [], 0)

    for name, stub in {"run_step": lambda *_: None, "gate": decide_gate, "read_arrow": lambda *_: replies_of({}),
                       "write_report": lambda *_: None, "read_part": lambda *_: []}.items():  # fmt: skip
        monkeypatch.setattr(steps, name, stub)
    config = options(tmp_path, allow=("length",))
    is_better, record = steps.decide(night, config, EvalConfig(run=night.folder), set())
    assert not is_better
    assert seen[0].allow == ("length",)
    assert record["sentence"] == "Do not ship: in Use <b>, right replies fell."
    first, _, gate = (night.folder / "gate.md").read_text().partition("\n\n")
    assert first == r"Night 7: kept. Do not ship: in Use \<b\>, right replies fell.", "a hint is no markup"
    assert gate.startswith("The gate: **Do not ship:**")
    with pytest.raises(ConfigError, match="--allow"):
        NightConfig(home=config.home, model="m", judge="rules", allow=("lenght",))


def replies_of(sides: dict[str, tuple[bool | None, bool | None]]) -> pa.Table:
    """Return the table of replies; `sides`: prompt -> whether the replies before and after training are right."""
    fields = {"domain": "d", "sample": 0, "kl": None, "probe": None, "hollow": None, "called": None, "reply": "r",
              "finish_reason": "stop", "hint_echo": None, "session": None}  # fmt: skip
    rows = [fields | {"prompt_id": name, "model": model, "passed": passed} for name, pair in sides.items()
            for model, passed in zip(("before", "after"), pair, strict=True)]  # fmt: skip
    return to_arrow(REPLIES, rows)


WRONG, RIGHT, GAIN, LOSS, UNKNOWN = (False, False), (True, True), (False, True), (True, False), (None, None)


def decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: list[tuple], old: list[tuple], own: list[tuple],
    praised: Sequence[tuple] = ((True, True),),
) -> tuple[bool, JSON]:  # fmt: skip
    """Return what a night decides from replies to new complaints, old complaints, own prompts and new praise."""
    row = {"messages": [{"role": "user", "content": "hi"}], "check": {"match": ["x"]}, "corrected": True}
    rows = [row | {"id": f"{kind}-{n}", "session": f"{kind}:{n}"} for kind, sides in
            (("new", new), ("old", old), ("own", own)) for n in range(len(sides))]  # fmt: skip
    calm = [row | {"id": f"calm-{n}", "session": f"new:{10 + n}", "corrected": False} for n in range(len(praised))]
    night = Home(tmp_path / "home").night(7)
    jsonl(night.folder / "tests.jsonl", *rows, *calm)
    jsonl(tmp_path / "own.jsonl", *rows[len(new) + len(old) :], *calm[:1])
    names = (one["id"] for one in (*rows, *calm))
    replies = replies_of(dict(zip(names, [*new, *old, *own, *praised], strict=True)))
    stubs = {"gate": lambda _: Decision(True, "Ship: well.", [], [], [], 0), "read_arrow": lambda *_: replies,
             "read_part": lambda *_: [], "run_step": lambda *_: None, "write_report": lambda *_: None}  # fmt: skip
    for name, stub in stubs.items():
        monkeypatch.setattr(steps, name, stub)
    config = options(tmp_path, prompts=str(tmp_path / "own.jsonl"))
    return steps.decide(night, config, EvalConfig(run=night.folder), {f"new:{n}" for n in range(50)})


@pytest.mark.parametrize(("new", "old", "own", "is_better", "words"), [
    ([GAIN] * 6, [WRONG] * 40, [], True, "on new prompts, 100% (14% before)"),
    ([WRONG] * 6, [GAIN] * 30, [], False, "No gain beyond chance: on new prompts, 14% (14% before)"),
    ([WRONG] * 4, [GAIN] * 30, [], True, "More replies are right"),
    ([GAIN] * 5, [WRONG], [GAIN], True, "on new prompts, 100% (14% before)"),
    ([GAIN] * 6, [LOSS] * 6, [], False, "it lost where users corrected the model: on new prompts, 100% (14% before)"),
    ([UNKNOWN] * 6, [GAIN] * 30, [], True, "More replies are right"),
    ([UNKNOWN] * 9, [GAIN] * 4, [], False, "No gain beyond chance"),
])  # fmt: skip
def test_new_prompts_and_own_ones_with_a_verdict_show_whether_a_model_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: list[tuple], old: list[tuple], own: list[tuple],
    is_better: bool, words: str,
) -> None:  # fmt: skip
    """If such prompts are fewer than six, all decide. In any case, more replies to corrected prompts must be right."""
    found, record = decided(tmp_path, monkeypatch, new, old, own)
    assert found is is_better
    assert words in record["sentence"]


def test_complaints_alone_do_not_show_that_a_model_is_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complaints are about what the present model got wrong. A model that fails as often elsewhere is no better."""
    found, record = decided(tmp_path / "other", monkeypatch, [GAIN] * 6, [RIGHT], [], [LOSS] * 6)
    assert not found
    assert "No gain beyond chance: on new prompts, 50% (50% before)" in record["sentence"]
    assert decided(tmp_path / "better", monkeypatch, [GAIN] * 6, [], [], [RIGHT] * 6)[0]
