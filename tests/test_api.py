"""Tests of the Python interface: light to import, the command line's options, checks and errors, and docs/python.md."""

import functools
import html
import inspect
import linecache
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pytest
from labelled_runs import labelled_run
from runs import talk, write_extract
from scored_runs import Said, Toy, toy_sessions, write_run
from small_logs import chat, jsonl
from worker_jobs import read_chat

import opdkit
from opdkit.api import Run
from opdkit.commands.show import command as show
from opdkit.commands.show import tokens
from opdkit.commands.show.choose import choose_turns
from opdkit.config.commands import COMMANDS, STAGES
from opdkit.config.fields import PythonFunction, fields_of
from opdkit.config.judge import JudgeConfig
from opdkit.config.pipeline import make_configurations
from opdkit.config.run import RunConfig
from opdkit.config.show import ShowConfig
from opdkit.evaluate.checks import read_prompts
from opdkit.store.counters import Counters, Summary
from opdkit.store.plans import manifest
from opdkit.store.reading import part_path, read_all
from opdkit.store.reviews import Review, append

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(labelled_run(tmp_path_factory.mktemp("python") / "run", part_mb=0.05))


def test_import_is_light() -> None:
    """`import opdkit` is fast: neither the package nor `Run` imports the heavy libraries."""
    code = (
        "import sys, opdkit; assert 'opdkit.api' not in sys.modules; run = opdkit.Run('x'); repr(run)\n"
        "print([m for m in ('torch', 'transformers', 'pyarrow', 'datasets', 'numpy', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_modules_of_the_package_stay_what_they_are() -> None:
    import opdkit.extract.stage
    import opdkit.judge

    assert inspect.ismodule(opdkit.extract.stage)
    assert inspect.ismodule(opdkit.judge)
    assert {"Run", "OpdkitError", "ConfigError"} <= set(dir(opdkit))
    with pytest.raises(AttributeError, match="no attribute 'Runn'"):
        opdkit.Runn  # noqa: B018


WITHOUT_OPTIONS = (
    "init",
    "doctor",
    "review",
    "demo",
    "status",
    "night",
    "models",
    "forget",
)  # no method has options of these commands


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in WITHOUT_OPTIONS])
def test_the_named_arguments_of_a_method_are_options_of_its_command(command: str) -> None:
    method = getattr(Run, {"eval": "evaluate", "run": "pipeline", "show": "turns"}.get(command, command))
    fields = {field.name: field for field in fields_of(COMMANDS[command].config)}
    positional = [name for name, field in fields.items() if field.positional and name != "run"]
    parameters = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
    places = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert places == ([] if command == "show" else positional)
    keywords = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    printed = (
        {"json", "lines", "replies", "whole", "one_line", "logprobs"}
        if command in ("blame", "calibrate", "compare", "eval", "forecast", "gate", "show")
        else set()
    )
    expected = {name: field.default for name, field in fields.items() if name not in {"run", *positional, *printed}}
    more = {"config": None} if command in STAGES else {}
    assert keywords == expected | more | ({"check": None} if command == "eval" else {})
    assert set(expected) == set(re.findall(r"^    (\w+) \(", method.__doc__, re.MULTILINE))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"judge": "lokal"}, "--judge is 'lokal'"),
        ({"judge": "local"}, "--judge-model"),
        ({"votes": 0}, "--votes is 0"),
        ({"seed": 2**64}, "--seed is 18446744073709551616"),
        ({"votes": "many"}, "votes = 'many'"),
        ({"vote": 3}, "'vote'; did you mean 'votes'"),
        ({"base_url": "http://h/v1"}, "'judge_url'"),
        ({"config": "missing.toml"}, "missing.toml"),
    ],
)
def test_wrong_options_are_the_errors_of_the_command_line(options: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(opdkit.ConfigError, match=re.escape(words)):
        Run(tmp_path / "run").judge(**{"judge": "rules"} | options)
    assert not any(tmp_path.iterdir())


def test_a_run_below_the_home_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Run("~/runs/a").path == Run(Path("~/runs/a")).path == tmp_path / "home" / "runs" / "a"
    with pytest.raises(opdkit.ConfigError, match="RUN is '~nobody-here/a'"):
        Run("~nobody-here/a").extract("logs")
    with pytest.raises(opdkit.ConfigError, match="--from-run is '~/b'"):
        Run("a").rollout(from_run="~/b", model="m")
    assert not any(tmp_path.iterdir())


def test_a_run_and_a_turn_have_a_name(scored: Run) -> None:
    with pytest.raises(opdkit.ConfigError, match="RUN is an empty text"):
        Run("")
    with pytest.raises(opdkit.ConfigError, match="turn_id"):
        scored.show(None)  # type: ignore[arg-type]


def test_what_was_not_done_before_is_an_error_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(opdkit.OpdkitError, match="opdkit extract"):
        Run(tmp_path / "run").judge(judge="rules")
    with pytest.raises(TypeError):
        Run(tmp_path / "run").extract("a", "b")
    with pytest.raises(opdkit.ConfigError, match="LOGS is missing"):
        Run(tmp_path / "run").extract()
    with pytest.raises(opdkit.ConfigError, match="logs is empty"):  # once, this read all of the current folder
        Run(tmp_path / "run").extract("")


def test_python_values_become_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths and runs stand for text, one value for several, int for float, a dict for NAME=VALUE; a file is below."""
    seen = []
    monkeypatch.setattr("opdkit.store.run_stage.run_stage", lambda name, config: seen.append(config))
    monkeypatch.setattr("opdkit.api.load_function", lambda target: seen.append)
    (tmp_path / "opdkit.toml").write_text("[judge]\nvotes = 9\nseed = 4\n")
    made = Run(str(tmp_path / "run"))
    made.extract(tmp_path / "logs", part_mb=2)
    made.extract(["a", tmp_path / "b"])
    arguments = {"enable_thinking": False, "x": "y"}
    made.judge(judge="local", judge_model=tmp_path, temperature=1, template_arg=arguments, seed=5,
               config=tmp_path / "opdkit.toml")  # fmt: skip
    made.pipeline("logs", model=tmp_path, set=["judge.votes=7"], config=tmp_path / "opdkit.toml")
    made.rollout(from_run=Run(tmp_path / "other"), model="m")
    made.compare(Run("b"), tmp_path)
    one, several, judge, every, fresh, compared = seen
    assert (fresh.from_run, compared.others) == (tmp_path / "other", ("b", str(tmp_path)))
    assert (every.logs, every.set, every.config) == (("logs",), ("judge.votes=7",), tmp_path / "opdkit.toml")
    assert (one.logs, one.part_mb, type(one.part_mb)) == ((str(tmp_path / "logs"),), 2.0, float)
    assert several.logs == ("a", str(tmp_path / "b"))
    assert judge == JudgeConfig(
        run=tmp_path / "run", judge="local", judge_model=str(tmp_path), temperature=1.0, votes=9, seed=5,
        template_arg=("enable_thinking=false", "x=y"),
    )  # fmt: skip


# -- a function as the judge -------------------------------------------------------------------------------------------

SAID = {
    "trip": talk("Where?", "In Lyon.", "Say the street, too.", "Rue X.", "thanks"),
    "last": talk("2 + 2?", "5", "no"),
}


def strict(prompt: list[dict], reply: dict, next_state: list[dict]) -> tuple[int | None, str | None]:
    said = next_state[0]["content"]
    assert prompt[0]["content"] in ("Where?", "2 + 2?")
    prompt[0]["content"] = "changed"  # changes a copy: the next turn has the message, too
    if said == "no":
        return None, None
    return (1, " ") if said == "thanks" else (-1, f"Take care of this: {reply['content'][:2]}.")


def test_a_function_judges_every_turn(tmp_path: Path) -> None:
    made = Run(write_extract(tmp_path / "run", SAID, per_part=1))
    summary = made.judge(judge=strict)
    rows = {row["turn_id"]: row for row in made.table("verdicts")}
    assert {name: (row["reward"], row["reward_status"], row["hint"]) for name, row in rows.items()} == {
        "trip:1": (-1, "ok", "Take care of this: In."), "trip:3": (1, "ok", None), "last:1": (None, "failed", None)
    }  # fmt: skip
    assert summary.counters.total("failed votes") == 1
    judge = manifest(made.path, "judge")["plan"]["config"]["judge"]
    assert re.fullmatch(r"python:[0-9a-f]{16}:[\w.]*test_api\.strict", judge)
    assert judge in str(made.show("trip:1"))
    assert made.check() is True


def test_a_function_resumes_and_another_one_is_another_plan(tmp_path: Path) -> None:
    calls = []

    def judge(prompt: list[dict], reply: dict, next_state: list[dict]) -> tuple[int, None]:
        calls.append(reply["content"])
        if len(calls) == 3:
            raise RuntimeError("the network is gone")
        return 1, None

    made = Run(write_extract(tmp_path / "run", SAID, per_part=1))
    with pytest.raises(RuntimeError, match="network"):
        made.judge(judge=judge)
    assert made.judge(judge=judge).parts_done == 2
    assert calls == ["In Lyon.", "Rue X.", "5", "5"], "what was judged is not judged again"
    with pytest.raises(opdkit.ConfigError, match=r'config\.judge: "python:\w+:.* -> "python:\w+:.*strict"'):
        made.judge(judge=strict)
    first = manifest(made.path, "judge")["fingerprint"]
    made.judge(judge=judge, overwrite=True)
    assert manifest(made.path, "judge")["fingerprint"] != first, "a function may judge otherwise the next time"


def test_lost_votes_of_a_function_are_not_asked_for_again_under_targets(tmp_path: Path, tiny_model_dir: Path) -> None:
    made = Run(write_extract(tmp_path / "run", SAID))
    made.judge(judge=strict)
    made.teacher(model=tiny_model_dir, device="cpu")
    part_path(made.path, "verdicts", 0).unlink()
    with pytest.raises(opdkit.OpdkitError, match="--recompute"):
        made.judge(judge=strict)


def test_the_name_of_a_function_is_that_of_its_source() -> None:
    names: dict[str, PythonFunction] = {}
    for version, text in {"one": "1, None", "same": "1, None", "other": "0, None"}.items():
        source = f"def judge(prompt, reply, next_state):\n    return {text}\n"
        linecache.cache[f"<{version}>"] = (len(source), None, source.splitlines(keepends=True), f"<{version}>")
        scope: dict = {"__name__": "cell"}
        exec(compile(source, f"<{version}>", "exec"), scope)
        names[version] = PythonFunction(scope["judge"])
    assert names["one"] == names["same"] != names["other"]
    assert names["one"].endswith(":cell.judge")
    assert names["other"].call([], {}, []) == (0, None)


def test_a_judge_may_count_in_floats(tmp_path: Path) -> None:
    made = Run(write_extract(tmp_path / "run", SAID))
    made.judge(judge=lambda *_: (-1.0, None))
    assert {row["reward"] for row in read_all(made.path, "verdicts")} == {-1}


@pytest.mark.parametrize("answer", [1, (2, None), (True, None), (1, 2), (1, None, 3), "no", None])
def test_another_answer_of_a_judge_names_the_turn(answer: Any, tmp_path: Path) -> None:
    made = Run(write_extract(tmp_path / "run", SAID))
    with pytest.raises(opdkit.OpdkitError, match="trip:1"):
        made.judge(judge=lambda *_: answer)


def test_half_an_emoji_in_a_hint_of_a_function_is_replaced(tmp_path: Path) -> None:
    """No table can hold half an emoji; in the answer of a judge's server it is replaced, too."""
    made = Run(write_extract(tmp_path / "run", SAID))
    made.judge(judge=lambda *_: (-1, "Use metres \ud83d"))
    assert {row["hint"] for row in made.table("verdicts")} == {"Use metres ?"}


def test_slurm_reads_its_table_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text('[slurm]\nshards = 16\npartition = ["gpuq"]\n[judge]\njudge = "rules"\n')
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v"))
    Run(tmp_path / "run").slurm(log, model=str(ROOT / "sample_data" / "model"), config=file)
    script = (tmp_path / "run/slurm/judge.sbatch").read_text()
    assert "--array=0-15" in script
    assert "--partition=gpuq" in script


def test_where_a_function_cannot_judge(tmp_path: Path) -> None:
    made = Run(write_extract(tmp_path / "run", SAID))
    for without_source in (print, functools.partial(strict)):
        with pytest.raises(opdkit.ConfigError, match="source"):
            made.judge(judge=without_source)
    with pytest.raises(opdkit.ConfigError, match="--weigh-votes"):
        made.judge(judge=strict, weigh_votes=True)
    with pytest.raises(opdkit.ConfigError, match=r"--judge is 'python:.*batch job"):
        made.slurm("logs", model="m", judge=strict)
    with pytest.raises(opdkit.ConfigError, match="hint_select"):
        made.judge(judge="rules", hint_select=strict)
    stages = make_configurations(RunConfig(run=tmp_path, logs=("x",), model="m", judge=PythonFunction(strict)))
    assert stages["judge"].judge.call is strict, "the pipeline hands it on"


# -- a function as reader and as check ---------------------------------------------------------------------------------


def test_a_function_reads_a_log(tmp_path: Path) -> None:
    logged = [{"chat": chat(f"{n}?", str(n), "thanks"), "stars": n} for n in range(40)]
    log = jsonl(tmp_path / "log.jsonl", *logged, {"stars": 0}, {"chat": None, "stars": 1})
    plain = jsonl(tmp_path / "plain" / "log.jsonl", *(row["chat"] | {"stars": row["stars"]} for row in logged))
    one, two, same = (Run(tmp_path / name) for name in ("one", "two", "same"))
    summary = one.extract(log, format=read_chat, part_mb=1e-3)
    assert summary.counters.dropped == {"the reader failed": 2}
    assert {row["line"]: row["detail"] for row in one.table("rejected")} == {
        41: "KeyError: 'chat'", 42: "TypeError: unsupported operand type(s) for |: 'NoneType' and 'dict'"
    }  # fmt: skip
    two.extract(log, format=read_chat, part_mb=1e-3, workers=2)
    assert list(one.table("sessions")) == list(two.table("sessions"))
    same.extract(plain, format="openai")
    columns = ("session_id", "line", "messages", "metadata")
    assert [[row[c] for c in columns] for row in one.table("sessions")] == [
        [row[c] for c in columns] for row in same.table("sessions")
    ]
    with pytest.raises(opdkit.ConfigError, match=r"config\.format"):
        one.extract(log, format=lambda record: record["chat"], part_mb=1e-3)
    with pytest.raises(opdkit.ConfigError, match="workers"):
        one.extract(log, format=lambda record: record["chat"], part_mb=1e-3, workers=2, overwrite=True)
    assert len(one.table("sessions")) == 40, "nothing is removed for a function that workers cannot import"
    with pytest.raises(opdkit.OpdkitError, match="the reader failed"):
        Run(tmp_path / "none").extract(log, format=lambda record: [record])


@pytest.mark.parametrize(("more", "detail"), [
    ({"model": "\ud83d"}, "surrogates not allowed"), ({"price": Decimal(1)}, "decimal.Decimal"),
    ({"by": {1: 2}}, "key"),
])  # fmt: skip
def test_what_a_function_made_and_json_cannot_hold_costs_its_line_alone(more: Any, detail: str, tmp_path: Path) -> None:
    """One example is a text that was cut within an emoji, of which Python's own JSON parser leaves half."""
    log = jsonl(tmp_path / "log.jsonl", {"n": 0}, {"n": 1})
    made = Run(tmp_path / "run")
    made.extract(log, format=lambda record: chat("1?", "1", "thanks") | (more if record["n"] else {}))
    assert [row["line"] for row in made.table("sessions")] == [1]
    (rejected,) = made.table("rejected")
    assert (rejected["line"], rejected["reason"]) == (2, "the reader failed")
    assert detail in rejected["detail"]


def test_a_function_checks_replies(tmp_path: Path) -> None:
    def has_answer(reply: str, row: dict) -> Any:
        return row["answer"] in reply if row["answer"] else "maybe"

    rows = [{"id": "a", "prompt": "2 + 2?", "answer": "4"}, {"id": "b", "prompt": "x", "check": {"match": ["y"]}},
            {"id": "c", "prompt": "x", "answer": None}]  # fmt: skip
    asked, own, unsure = read_prompts(jsonl(tmp_path / "prompts.jsonl", *rows), check=PythonFunction(has_answer))
    assert [asked.check.passes(reply) for reply in ("it is 4", "it is 5", " ")] == [True, False, False]
    assert own.check.passes("y"), "the check of the row comes first"
    with pytest.raises(opdkit.OpdkitError, match="prompt c"):
        unsure.check.passes("z")


# -- what a notebook shows ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Run:
    hostile = Toy("<script>alert(1)</script>", [Said("Größe <b>", 1, "Say it in English letters.")])
    return Run(write_run(tmp_path_factory.mktemp("notebook") / "run", tiny_model_dir, [*toy_sessions(3), hostile]))


def test_turns_are_those_of_the_command_whole(scored: Run, capsys: pytest.CaptureFixture[str]) -> None:
    worst = scored.turns(worst=3)
    chosen = choose_turns(ShowConfig(run=scored.path, worst=3)).lines
    assert [turn["turn_id"] for turn in worst] == [line.turn_id for line in chosen]
    assert scored.show(chosen[1].turn_id) == worst[1]
    assert capsys.readouterr().out == "", "what is returned is not printed"
    show.run(ShowConfig(run=scored.path, turn_id=chosen[1].turn_id))
    assert capsys.readouterr().out.split() == str(worst[1]).split()
    assert scored.turns(grep="no such text") == []
    with pytest.raises(opdkit.OpdkitError, match="toy-0:1"):
        scored.show("toy-0:2")
    with pytest.raises(opdkit.OpdkitError, match="opdkit extract"):
        Run(scored.path / "none").turns()


def test_a_notebook_shows_the_heat_map(scored: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token has the colour of its advantage, for any terminal, and text of the log is escaped."""
    monkeypatch.setenv("NO_COLOR", "1")
    turn = max(scored.turns(), key=lambda turn: sum(map(abs, levels(turn))))
    shown: dict[str, str] = defaultdict(str)
    for colour, text in re.findall(r"background-color: (#\w+)[^>]*>([^<]*)</span>", turn._repr_html_()):
        shown[colour] += html.unescape(text)
    expected = {colour_of(n): "" for n in tokens._STYLES}
    for token in turn["targets"][0]["tokens"]:
        if n := tokens.level(token):
            expected[colour_of(n)] += token["text"]
    assert len(set(filter(None, expected.values()))) > 2, "the test needs tokens that are marked"
    legend = {colour_of(n): words for n, words in tokens._WORDS.items()}
    assert shown == {colour: text + legend[colour] for colour, text in expected.items()}
    (hostile,) = scored.turns(grep="script")
    assert "<script" not in hostile._repr_html_()
    assert "&lt;script&gt;" in hostile._repr_html_()
    assert scored.turns(max_turns=2)._repr_html_().count("<pre") == 2


def levels(turn: dict) -> list[int]:
    return [tokens.level(token) for target in turn["targets"] for token in target["tokens"]]


def colour_of(number: int) -> str:
    return tokens._STYLES[number].partition(" on ")[2]


def test_scores_before_there_are_any(scored: Run) -> None:
    with pytest.raises(opdkit.OpdkitError, match="opdkit eval"):
        scored.scores()


def test_tables_in_every_form_are_the_same_rows(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    table = run.table("turns")
    rows = list(read_all(run.path, "turns"))
    assert list(table) == list(table.rows()) == rows
    assert len(table) == len(rows) > 600
    arrow = table.arrow()
    assert isinstance(arrow, pa.Table)
    assert arrow.to_pylist() == rows
    assert list(table.dataset()) == rows
    frame = table.pandas(["turn_id", "message_index"])
    assert list(frame.columns) == ["turn_id", "message_index"]
    assert list(frame.turn_id) == [row["turn_id"] for row in rows]


def test_the_path_of_a_dataset_is_no_pattern(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    other = tmp_path / "runs [v1]*?"
    shutil.copytree(run.path / "extract", other / "extract")
    assert len(Run(other).table("turns").dataset()) == len(run.table("turns"))


def test_a_missing_reward_is_missing_in_pandas_too(run: Run) -> None:
    frame = run.table("verdicts").pandas()
    assert frame.reward.dtype == pd.Int8Dtype()
    assert set(frame.reward.dropna()) == {-1, 0, 1}


def test_scores_are_those_of_the_training_that_a_file_names(tmp_path, monkeypatch):
    def evaluated(stage, config, *more):
        return Summary(stage, Counters(), 1, 1, config.run / stage / "replies")

    monkeypatch.setattr("opdkit.store.run_stage.run_stage", evaluated)
    monkeypatch.setattr(Run, "scores", lambda self: self.path)
    file = tmp_path / "opdkit.toml"
    file.write_text('[eval]\nname = "b"\nfrom_log = true\n')
    assert Run(tmp_path).evaluate(config=file) == tmp_path / "b.training"
    assert Run(tmp_path).evaluate(config=file, name="c") == tmp_path / "c.training"


def test_what_it_shows(run: Run, tmp_path: Path) -> None:
    shown = repr(run)
    assert shown.startswith(
        f"Run({str(run.path)!r})\n  extract: 241 log sessions in, 240 sessions out, 1 line or session dropped (not "
        "JSON 1)"
    )
    assert "  judge: " in shown
    assert repr(Run(tmp_path)).endswith("nothing is done yet")
    assert "turn_id: string - session_id:message_index" in repr(run.table("turns"))
    assert "not there yet" in repr(run.table("targets"))
    with pytest.raises(opdkit.ConfigError, match="'turns'"):
        run.table("turn")
    with pytest.raises(opdkit.ConfigError, match="'reward'"):
        run.table("verdicts").arrow(["rewards"])
    with pytest.raises(opdkit.OpdkitError, match="opdkit teacher"):
        run.table("targets").arrow()


def test_decisions_of_people(tmp_path: Path) -> None:
    made = Run(labelled_run(tmp_path / "run"))
    assert made.decisions() == {}
    append(made.path, [Review("openai:1:1", reward_decided=True, reward=1)])
    assert made.decisions()["openai:1:1"].reward == 1
    assert next(made.table("verdicts").rows())["reward"] == -1


def test_commands_beside_the_stages(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = ROOT / "sample_data" / "labels.jsonl"
    assert run.calibrate(labels).accuracy == 1.0
    assert run.export(tmp_path / "sft.parquet", to="trl-sft").counters.rows_out == 341
    assert run.check() is not False
    run.status()
    assert "judge" in capsys.readouterr().out


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        name = f"<docs/python.md, block {number}>"  # as IPython does with a cell: functions in it have source
        linecache.cache[name] = (len(block), None, block.splitlines(keepends=True), name)
        exec(compile(block, name, "exec"), names)
    shown = capsys.readouterr().out
    for words in (
        "extract: 241 log sessions in",
        "judge: ",
        "mean advantage ",
        "accuracy 1.000",
        "train: ",
        "did you mean 'local'",
        "to the teacher a token is ",
        "Before and after training",
        " before, ",
        "Give temperatures in degrees Celsius.",
        "extract: 20 log sessions in, 20 sessions out",
        "sums: ",
    ):
        assert words in shown, words
    assert names["curve"]
    assert (tmp_path / "runs" / "try" / "kto.parquet").exists()
