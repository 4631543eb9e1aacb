"""Tests of --wording: the file, the plans that hold its texts, and the stages that use or look for these texts."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import save_tiny_model
from http_server import Reply as Answer
from http_server import completion, serving
from judged_runs import HINT, plain, prompts_of, targets, three_parts, write_run
from runs import talk as said
from runs import write_extract
from sample_world import MODEL
from small_logs import run as extract
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from opdkit.chat.messages import message
from opdkit.chat.template import Chat
from opdkit.cli import app
from opdkit.config.evaluate import EvalConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.pipeline import make_configurations
from opdkit.config.rollout import RolloutConfig
from opdkit.config.run import RunConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.wording import DEFAULTS, read_wording
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate import stage as evaluate
from opdkit.evaluate.checks import Criterion, HeldOutPrompt
from opdkit.evaluate.echoes import echo_of
from opdkit.evaluate.replies import Reply, check_replies
from opdkit.judge import stage as judge
from opdkit.model.load import load_tokenizer
from opdkit.model.scoring import PromptResponse
from opdkit.rollout import stage as rollout
from opdkit.store.plans import manifest, read_hint_text
from opdkit.store.reading import read_all
from opdkit.teacher import stage as teacher

OWN = r"""
[judge]
system = 'You are a nurse on night duty.'
hint = 'What should it have said? \boxed{1} [HINT_START] ... [HINT_END], or \boxed{-1}.'
reward = 'Could you work with it? Say \boxed{1} for yes, else \boxed{-1}.'
[criterion]
system = 'You read one reply.'
question = 'Is it so: {criterion} Say \boxed{1} or \boxed{-1}.'
follows_hint = 'It heeds the hint.'
[teacher]
hint = '(Note to the assistant: {hint})'
"""


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    return path


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_default_texts_are_these() -> None:
    """Other texts make another judge: votes, hints and figures of the docs were made with these texts."""
    digest = hashlib.sha256(json.dumps(DEFAULTS, sort_keys=True).encode()).hexdigest()
    assert digest[:16] == "b065bb64221821a6"


def test_what_a_file_leaves_out_stays(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[teacher]\nhint = '''\n\n  Note:\n{hint}\n'''\n", encoding="utf-8")
    assert read_wording(path) == DEFAULTS | {"teacher": {"hint": "Note:\n{hint}"}}
    assert read_wording(None) == DEFAULTS


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[judge", ["not TOML"]),
        ("[juge]\nhint = 'x'", ["[juge]", "judge"]),
        ("judge = 'x'", ["[judge]"]),
        ("[judge]\nhints = 'x'", ["[judge]", "'hints'", "hint"]),
        ("[judge]\nsystem = 5", ["[judge] system", "5"]),
        ("[criterion]\nsystem = ' '", ["[criterion] system"]),
        ("[teacher]\nhint = 'Note.'", ["[teacher] hint", "{hint}"]),
        ("[criterion]\nquestion = '\\boxed{1} \\boxed{-1}'", ["[criterion] question", "{criterion}"]),
        ("[judge]\nreward = 'Is it good? \\boxed{1}'", ["[judge] reward", r"\boxed{-1}"]),
        ("[judge]\nhint = '\\boxed{1} \\boxed{-1} [HINT_START]'", ["[judge] hint", "[HINT_END]"]),
        ('[judge]\nreward = "\\boxed{1} or \\boxed{-1}"', ["[judge] reward", r"\boxed{1}", "single quotes"]),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(text: str, named: list[str], tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        read_wording(path)
    assert all(name in str(refused.value) for name in ["--wording", str(path), *named])


@pytest.mark.parametrize("command", ["judge", "teacher", "eval", "rollout", "run"])
def test_a_missing_file_is_refused_before_anything_begins(command: str, tmp_path: Path) -> None:
    more = {"judge": ["--judge", "rules"], "teacher": ["--model", "m"], "eval": ["--prompts", str(tmp_path / "p")],
            "rollout": ["--from-run", "r", "--model", "m"],
            "run": ["logs", "--judge", "rules", "--model", str(MODEL)]}  # fmt: skip
    (tmp_path / "p").touch()
    done = CliRunner().invoke(app, [command, str(tmp_path / "run"), *more[command], "--wording", "nowhere.toml"])
    assert done.exit_code == 2
    assert "--wording nowhere.toml" in done.stderr
    assert not (tmp_path / "run").exists()


def test_run_gives_the_file_to_judge_and_teacher(own: Path, tmp_path: Path) -> None:
    stages = make_configurations(RunConfig(run=tmp_path, logs=("x",), model="m", judge="rules", wording=own))
    assert {name: stage.effective().get("wording") for name, stage in stages.items()} == {
        "extract": None, "judge": str(own), "teacher": str(own), "train": None,
    }  # fmt: skip


# -- the judge ---------------------------------------------------------------------------------------------------------


def judged(run: Path, url: str, **fields) -> list[dict]:
    config = JudgeConfig(run=run, judge="endpoint", judge_model="m", judge_url=url, votes=1, shard="0/1", **fields)
    judge.run(config)
    return list(read_all(run, "verdicts"))


def test_the_judge_asks_in_own_words_which_the_plan_holds(own: Path, tmp_path: Path) -> None:
    run = write_extract(tmp_path / "run", {"a": said("Hi", "Hello", "thanks")})
    rules, no = r"Say \boxed{1} for yes, else \boxed{-1}.", r"\boxed{-1}"
    with serving(lambda body, _: completion(rules if rules in body["messages"][1]["content"] else no)) as server:
        (row,) = judged(run, server.url, wording=own)
        assert row["reward_votes"][0]["error"] == "repeats the rules"  # the rules of `own`, not the default rules
        texts = read_wording(own)["judge"]
        asked = {body["messages"][1]["content"].rpartition("## Question\n")[2] for body in server.requests}
        assert asked == {texts["hint"], texts["reward"]}
        assert {body["messages"][0]["content"] for body in server.requests} == {texts["system"]}
        assert manifest(run, "judge")["plan"]["inputs"]["wording"] == {"judge": texts}
        elsewhere = Path(shutil.copy(own, tmp_path / "copy.toml"))
        judged(run, server.url, wording=elsewhere)  # the same texts: resumes
        elsewhere.write_text("[judge]\nsystem = 'You are a pilot.'")
        for other in (elsewhere, None):
            with pytest.raises(ConfigError, match=r"inputs\.wording"):
                judged(run, server.url, wording=other)
        assert len(server.requests) == 2


def test_texts_of_other_stages_are_not_in_the_plan(tmp_path: Path) -> None:
    run, path = write_extract(tmp_path / "run", {"a": said("Hi", "Hello", "thanks")}), tmp_path / "own.toml"
    path.write_text("[teacher]\nhint = 'Note: {hint}'")
    judge.run(JudgeConfig(run=run, judge="rules", wording=path))
    judge.run(JudgeConfig(run=run, judge="rules"))
    assert "wording" not in manifest(run, "judge")["plan"]["inputs"]


# -- the criterion of the reward ---------------------------------------------------------------------------------------

ENDING = r"End with exactly one of \boxed{1}, \boxed{-1}, \boxed{0}."


def test_a_criterion_changes_the_verdicts_and_the_manifest(tmp_path: Path) -> None:
    """One of two replies has a number, as the criterion asks. A judged run is judged again only with --overwrite."""
    run = write_extract(
        tmp_path / "run", {"a": said("How warm?", "12 C.", "thanks"), "b": said("And now?", "Cold.", "I see")}
    )
    criterion = tmp_path / "criterion.txt"
    criterion.write_text("+1: the reply has a number.\n-1: it has none.\n", encoding="utf-8")

    def answer(body: dict, *_) -> Answer:
        common, _, question = body["messages"][-1]["content"].rpartition("## Question\n")
        if not common or "[HINT_START]" in question:  # the test question before --overwrite removes votes
            return completion(r"\boxed{-1}")
        wants_number = question == f"+1: the reply has a number.\n-1: it has none.\n{ENDING}"
        assert wants_number or question == DEFAULTS["judge"]["reward"]
        return completion(r"\boxed{1}" if not wants_number or "| 12 C." in common else r"\boxed{-1}")

    with serving(answer) as server:
        command = ["judge", str(run), "--judge", "endpoint", "--judge-model", "m", "--judge-url", server.url,
                   "--votes", "1", "--shard", "0/1"]  # fmt: skip

        def rewards(*more: str) -> list[int | None]:
            done = CliRunner().invoke(app, [*command, *more])
            assert done.exit_code == 0, done.stderr
            return [row["reward"] for row in read_all(run, "verdicts")]

        assert rewards() == [1, 1]
        assert "wording" not in manifest(run, "judge")["plan"]["inputs"]
        refused = CliRunner().invoke(app, [*command, "--criterion", str(criterion)])
        assert refused.exit_code == 2
        assert "--overwrite" in refused.stderr
        assert "inputs.wording" in refused.stderr
        assert rewards("--criterion", str(criterion), "--overwrite") == [1, -1]
        texts = manifest(run, "judge")["plan"]["inputs"]["wording"]["judge"]
        assert texts == DEFAULTS["judge"] | {"reward": f"{criterion.read_text().strip()}\n{ENDING}"}
        asked = len(server.requests)
        elsewhere = Path(shutil.copy(criterion, tmp_path / "copy.txt"))
        assert rewards("--criterion", str(elsewhere)) == [1, -1]  # the same text: resumes
        assert len(server.requests) == asked


def test_a_criterion_of_run_is_the_judges(tmp_path: Path) -> None:
    path = tmp_path / "criterion.txt"
    config = RunConfig(run=tmp_path, logs=("x",), model="m", judge="local", criterion=path)
    assert {name: stage.effective().get("criterion") for name, stage in make_configurations(config).items()} == {
        "extract": None, "judge": str(path), "teacher": None, "train": None,
    }  # fmt: skip


@pytest.mark.parametrize("written", [None, b"", b" \n", b"\xff\xfe\x00", "own"])
def test_a_criterion_that_cannot_be_used_is_refused(written: bytes | str | None, own: Path, tmp_path: Path) -> None:
    """The file is absent, empty or not text, or a --wording file has a question about the reward as well."""
    path = tmp_path / "criterion.txt"
    if written:
        path.write_bytes(b"+1: good." if written == "own" else written)
    elif written is not None:
        path.touch()
    judge_options = ["--judge", "local", "--judge-model", str(MODEL), "--criterion", str(path)]
    done = CliRunner().invoke(
        app, ["judge", str(tmp_path / "run"), *judge_options, *(["--wording", str(own)] if written == "own" else [])]
    )
    assert done.exit_code == 2
    assert f"--criterion {path}" in " ".join(done.stderr.split())
    assert (str(own) in done.stderr) == (written == "own")


def test_a_judge_that_reads_no_text_has_no_criterion(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--criterion"):
        JudgeConfig(run=tmp_path, judge="rules", criterion=tmp_path / "criterion.txt")


# -- the teacher, and what comes after it ------------------------------------------------------------------------------


@pytest.fixture
def scored(own: Path, tmp_path: Path, tiny_model_dir: Path) -> Path:
    run = write_run(tmp_path / "run", three_parts())
    teacher.run(TeacherConfig(run=run, model=str(tiny_model_dir), device="cpu", teacher_samples=0, wording=own))
    return run


def test_the_teacher_reads_the_hint_in_own_words(scored: Path, tiny_model_dir: Path) -> None:
    """The teacher's log-probs equal those of a plain forward pass over a prompt that is rendered here."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()
    chat = Chat(load_tokenizer(str(tiny_model_dir)), {})
    sessions = {s["session_id"]: s["messages"] for s in read_all(scored, "sessions")}
    hinted = [row for row in targets(scored) if row["hint"]]
    assert len(hinted) == 6
    for row in hinted:
        name, _, index = row["turn_id"].rpartition(":")
        before = [dict(message) for message in sessions[name][: int(index)]]
        before[-1]["content"] += f"\n\n(Note to the assistant: {row['hint']})"
        expected = plain(model, chat.prompt_ids(before), row["response_ids"])
        assert row["teacher_logprobs"] == pytest.approx(expected, abs=1e-5)
        usual = plain(model, prompts_of(scored, tiny_model_dir, row, "last-user")[1], row["response_ids"])
        assert row["teacher_logprobs"] != pytest.approx(usual, abs=1e-3)


def test_another_text_is_another_plan_of_the_teacher(scored: Path, own: Path, tiny_model_dir: Path) -> None:
    config = {"run": scored, "model": str(tiny_model_dir), "device": "cpu", "teacher_samples": 0}
    assert manifest(scored, "teacher")["plan"]["inputs"]["wording"] == {"teacher": read_wording(own)["teacher"]}
    for other in ("[teacher]\nhint = '{hint}'", ""):
        own.write_text(other)
        with pytest.raises(ConfigError, match=r"inputs\.wording"):
            teacher.run(TeacherConfig(**config, wording=own))


def test_an_export_has_the_words_of_the_teacher(scored: Path, tmp_path: Path) -> None:
    usual = write_run(tmp_path / "usual", three_parts())
    for run, context in ((scored, f"(Note to the assistant: {HINT})"), (usual, f"[user's hint / instruction]\n{HINT}")):
        out = tmp_path / f"{run.name}.jsonl"
        done = CliRunner().invoke(app, ["export", str(run), str(out), "--to", "trl-sdft"])
        assert done.exit_code == 0, done.stderr
        assert json.loads(out.read_text().splitlines()[0])["privileged_context"] == context


def test_an_echo_of_the_teachers_words_is_found() -> None:
    own, reply = "(Note to the assistant: {hint})", "As the *note to the  Assistant:* says, 12 C."
    assert echo_of(reply, "How warm?", {}, own) == "note to the assistant"
    assert echo_of(reply, "How warm?", {}) is None
    assert echo_of("[user's hint / instruction] 12 C", "How warm?", {}, own) is None
    assert echo_of("Note: 12 C", "How warm?", {}, "Note: {hint}") is None  # a single word may be chance
    assert echo_of("12 C", "How warm?", {}, "{hint}") is None


def test_eval_looks_for_the_words_that_the_teacher_recorded(
    scored: Path, own: Path, tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge of the checks is asked with the texts of --wording, too."""
    asked = []
    monkeypatch.setattr(evaluate, "mark_echoes", lambda replies, hints, text: asked.append(text) or list(replies))
    after = save_tiny_model(tmp_path / "after", load_tokenizer(str(tiny_model_dir)), seed=1)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "How warm?", "check": {"judge": "It is short."}}) + "\n")
    with serving(lambda *_: completion(r"\boxed{1}")) as server:
        evaluate.run(EvalConfig(run=scored, prompts=str(prompts), model=str(tiny_model_dir), trained=str(after),
                                device="cpu", samples=1, max_new_tokens=8, judge_model="m", judge_url=server.url,
                                wording=own))  # fmt: skip
    assert asked == ["(Note to the assistant: {hint})"]
    requests = server.requests[1:]  # the first request only tests that a judge answers
    questions = {body["messages"][1]["content"].rpartition("## Question\n")[2] for body in requests}
    own_words = ("It is short.", "It heeds the hint.")  # the check of the prompt, and of replies to the log's turns
    assert questions == {rf"Is it so: {words} Say \boxed{{1}} or \boxed{{-1}}." for words in own_words}
    assert {body["messages"][0]["content"] for body in requests} == {"You read one reply."}
    assert manifest(scored, "eval")["plan"]["inputs"]["wording"]["criterion"] == read_wording(own)["criterion"]


def test_a_rollout_is_judged_in_own_words(own: Path, tmp_path: Path, tiny_model_dir: Path) -> None:
    source = write_run(tmp_path / "source", three_parts()[:1])
    with serving(lambda *_: completion(r"\boxed{1}")) as server:
        rollout.run(RolloutConfig(run=tmp_path / "new", from_run=source, model=str(tiny_model_dir), device="cpu",
                                  max_new_tokens=8, judge_model="m", judge_url=server.url, wording=own))  # fmt: skip
    questions = {body["messages"][1]["content"].rpartition("## Question\n")[2] for body in server.requests}
    assert questions == {r"Is it so: It heeds the hint. Say \boxed{1} or \boxed{-1}."}
    assert manifest(tmp_path / "new", "judge")["plan"]["inputs"]["wording"]["criterion"]
    assert "wording" not in manifest(tmp_path / "new", "extract")["plan"]["inputs"]


def test_who_repeats_the_criterions_own_words_does_not_vote(own: Path, tmp_path: Path, tiny_model_dir: Path) -> None:
    rules = r"\boxed{1} means yes, \boxed{-1} means no."
    own.write_text(f"[criterion]\nquestion = '{{criterion}} {rules}'")
    source = write_run(tmp_path / "source", three_parts()[:1])
    with serving(lambda *_: completion(rules)) as server:
        rollout.run(RolloutConfig(run=tmp_path / "new", from_run=source, model=str(tiny_model_dir), device="cpu",
                                  max_new_tokens=8, judge_model="m", judge_url=server.url, wording=own))  # fmt: skip
    votes = [vote for row in read_all(tmp_path / "new", "verdicts") for vote in row["reward_votes"]]
    assert votes
    assert {vote["error"] for vote in votes} == {"repeats the rules"}


def test_eval_takes_no_vote_from_who_repeats_its_question(own: Path, tmp_path: Path, capsys) -> None:
    rules = r"\boxed{1} means yes, \boxed{-1} means no."
    own.write_text(f"[criterion]\nquestion = '{{criterion}} {rules}'")
    prompt = HeldOutPrompt("p", "d", [message("user", "Hi")], None, Criterion("It is polite."))
    reply = Reply(prompt, "after", 0, "Hello", "Hello", PromptResponse([1], [2]), "stop")
    with serving(lambda *_: completion(rules)) as server:
        config = EvalConfig(run=tmp_path, prompts="unused", judge_model="m", judge_url=server.url, wording=own)
        with pytest.raises(OpdkitError, match=r"1 of 1 reply failed.*repeats the rules"):
            check_replies([reply], config)
        known = replace(reply, prompt=replace(prompt, id="q"), seen="")  # no visible text: judged without a vote
        assert [one.passed for one in check_replies([reply, known], config)] == [None, False]
    (warning,) = " ".join(capsys.readouterr().err.split()).split("warning: ")[1:]
    assert "1 of 2 replies" in warning
    assert "repeats the rules" in warning


def test_a_rollout_hands_the_words_of_the_teacher_on(
    scored: Path, own: Path, tmp_path: Path, tiny_model_dir: Path
) -> None:
    """The second round's teacher uses the wording of the first round's teacher, unless it is given another."""
    model, text = str(tiny_model_dir), {"teacher": {"hint": "(Note to the assistant: {hint})"}}
    rollout.run(RolloutConfig(run=tmp_path / "new", from_run=scored, model=model, device="cpu", max_new_tokens=8))
    teacher.run(TeacherConfig(run=tmp_path / "new", model=model, device="cpu", teacher_samples=0))
    assert manifest(tmp_path / "new", "teacher")["plan"]["inputs"]["wording"] == text
    own.write_text("[judge]\nsystem = 'You are a pilot.'")  # no [teacher] text: the same plan, so it resumes
    teacher.run(TeacherConfig(run=tmp_path / "new", model=model, device="cpu", teacher_samples=0, wording=own))
    own.write_text("[teacher]\nhint = '\\{hint}/'")
    teacher.run(TeacherConfig(run=tmp_path / "new", model=model, device="cpu", teacher_samples=0, wording=own,
                              overwrite=True))  # fmt: skip
    assert read_hint_text(tmp_path / "new") == "\\{hint}/"


def test_a_log_may_be_called_wording(tmp_path: Path) -> None:
    """The plan of extract holds its logs by name in the place where the plan of a rollout holds the wording."""
    log = tmp_path / "wording.jsonl"
    spoken = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}] * 2
    log.write_text(json.dumps({"messages": spoken}))
    extract(tmp_path / "run", log)
    assert "wording" in manifest(tmp_path / "run", "extract")["plan"]["inputs"]
    assert read_hint_text(tmp_path / "run", "extract") == DEFAULTS["teacher"]["hint"]
