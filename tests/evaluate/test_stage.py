"""Tests of eval, before and after on held-out prompts: the stage on tiny models, and its arithmetic by hand."""

import http.server
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chat_templates import QWEN
from conftest import save_tiny_model
from scored_runs import Said, Toy, toy_sessions, write_run

from opdkit.chat.template import Chat
from opdkit.config.evaluate import EvalConfig
from opdkit.config.train import TrainConfig
from opdkit.console import WordConsole
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate import stage as evaluate
from opdkit.evaluate.checks import read_prompts
from opdkit.evaluate.generation import generate
from opdkit.model.load import load_model, load_tokenizer
from opdkit.store.plans import manifest
from opdkit.store.reading import read_all
from opdkit.store.run_stage import run_stage
from opdkit.train import stage as train

ANYTHING = {"match": ["."]}


def prompts_file(folder: Path, **checks) -> Path:
    """Write two prompts in each domain, with the check of the domain."""
    path = folder / "prompts.jsonl"
    rows = [{"id": f"{domain}-{n}", "domain": domain, "prompt": f"say {domain} {n}", "check": check}
            for domain, check in checks.items() for n in range(2)]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory, plain_model_dir) -> Path:
    run = write_run(tmp_path_factory.mktemp("trained") / "run", plain_model_dir, toy_sessions(8))
    train.run(TrainConfig(run=run, model=str(plain_model_dir), objective="binary", batch_turns=4, epochs=4,
                          learning_rate=1e-2, device="cpu", validate=0))  # fmt: skip
    return run


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def config(run: Path, prompts: Path, **options) -> EvalConfig:
    return EvalConfig(run=run, prompts=str(prompts), device="cpu", **({"max_new_tokens": 8, "samples": 2} | options))


def test_prompts_of_conversations_that_were_trained_on_are_named(run, tmp_path, capsys) -> None:
    """As where the prompts of `--from-log` are passed for a training without `--holdout`."""
    path = prompts_file(tmp_path, a=ANYTHING)
    first, second = map(json.loads, path.read_text().splitlines())
    trained = next(read_all(run, "metrics"))["turn_ids"][0].rpartition(":")[0]
    (asked,) = (row["messages"][0]["content"] for row in read_all(run, "sessions") if row["session_id"] == trained)
    # In another log, another conversation may have the id.
    rows = [first | {"session": trained, "prompt": asked}, second | {"session": trained}]
    path.write_text("\n".join(map(json.dumps, rows)))
    evaluate.run(config(run, path, samples=0))
    assert "1 of 2 prompts, such as a-0, are from conversations that the model was trained on" in " ".join(
        capsys.readouterr().err.split()
    )
    evaluate.run(config(run, path, samples=0, trained=str(run / "train" / "model"), overwrite=True))
    assert "trained on" not in capsys.readouterr().err


def scores(run: Path) -> dict[tuple[str, str], dict]:
    return {(row["metric"], row["domain"]): row for row in read_all(run, "scores")}


def replies(run: Path) -> dict[tuple[str, str, int], dict]:
    return {(row["prompt_id"], row["model"], row["sample"]): row for row in read_all(run, "replies")}


# -- the stage ------------------------------------------------------------------------------------------------------


def test_a_trained_model_is_compared_with_the_one_before(run, tmp_path, capsys) -> None:
    prompts = prompts_file(tmp_path, easy=ANYTHING, never={"match": ["no model says this"]})
    summary = evaluate.run(config(run, prompts))
    assert len(replies(run)) == summary.counters.total("replies") == 4 * 3 * 2
    assert replies(run).keys() == {
        (f"{d}-{n}", m, k) for d in ("easy", "never") for n in range(2) for m in ("before", "after") for k in range(3)
    }
    found = scores(run)
    assert found["passed_sampled", "never"]["after"] == 0
    assert found["passed_sampled", "all"]["count"] == 4
    # It was trained on the rewards: good replies up, bad ones down, and other text moved too.
    assert found["logprob_good", "all"]["difference"] > 0
    assert found["logprob_bad", "all"]["difference"] < 0
    assert found["kl_neutral", "all"]["difference"] > 0
    assert found["kl_neutral", "all"]["before"] == 0.0
    assert found["kl_replies", "all"]["count"] == 4
    assert all(found["kl_replies", d]["difference"] > 0 == found["kl_replies", d]["before"] for d in ("easy", "never"))
    for row in found.values():
        if row["low"] is not None:
            assert row["low"] <= row["difference"] <= row["high"]
    captured = capsys.readouterr()
    assert "right replies, sampled" in captured.out
    assert "none were held out of training" in captured.err


def test_the_same_model_twice_differs_in_nothing(run, tmp_path, plain_model_dir) -> None:
    """Both models use the same random streams, so that only the models can differ."""
    prompts = prompts_file(tmp_path, easy={"match": ["[a-m]"]})
    evaluate.run(config(run, prompts, model=str(plain_model_dir), trained=str(plain_model_dir)))
    rows = [(r["model"], (r["prompt_id"], r["sample"], r["reply"], r["passed"])) for r in read_all(run, "replies")]
    sides = {side: [row for model, row in rows if model == side] for side in ("before", "after")}
    assert sides["before"] == sides["after"]
    assert len({reply for _, _, reply, _ in sides["before"]}) > 2
    assert all(not row["difference"] for row in scores(run).values())


def test_the_same_plan_gives_the_same_rows_and_is_not_run_again(run, tmp_path, monkeypatch, capsys) -> None:
    prompts = prompts_file(tmp_path, easy=ANYTHING)
    evaluate.run(config(run, prompts))
    first = list(read_all(run, "replies")), list(read_all(run, "scores"))
    evaluate.run(config(run, prompts, overwrite=True))
    assert (list(read_all(run, "replies")), list(read_all(run, "scores"))) == first
    monkeypatch.setattr("opdkit.evaluate.stage.load_models", None)
    capsys.readouterr()
    evaluate.run(config(run, prompts))
    shown = capsys.readouterr().out
    assert "right replies" in shown
    console = WordConsole(force_terminal=True, color_system="truecolor", highlight=False)
    monkeypatch.setattr(evaluate, "stdout", console)
    evaluate.run(config(run, prompts, json=True))  # in no colours
    found = json.loads(capsys.readouterr().out)
    assert found["scores"] == first[1]
    assert " ".join(shown.split()).startswith(found["conclusion"]["sentence"])
    prompts.write_text(prompts.read_text().replace("say easy 0", "say easy 9"))
    with pytest.raises(ConfigError, match="prompts"):
        evaluate.run(config(run, prompts))


def test_a_reply_does_not_depend_on_the_other_prompts(run, tmp_path) -> None:
    evaluate.run(config(run, prompts_file(tmp_path, easy=ANYTHING, never={"match": ["q"]})))
    both = replies(run)
    evaluate.run(config(run, prompts_file(tmp_path, easy=ANYTHING), overwrite=True, max_prompts=1))
    alone = replies(run)
    assert len(alone) == 6
    assert all(both[key]["reply"] == row["reply"] for key, row in alone.items())


def test_held_out_sessions_are_measured_apart(tmp_path, plain_model_dir, capsys) -> None:
    run = write_run(tmp_path / "run", plain_model_dir, toy_sessions(10))
    train.run(TrainConfig(run=run, model=str(plain_model_dir), objective="binary", holdout=0.4, device="cpu",
                          validate=0))  # fmt: skip
    capsys.readouterr()
    evaluate.run(config(run, prompts_file(tmp_path, easy=ANYTHING), samples=0))
    found = scores(run)
    judged = found["logprob_good", "all"]["count"] + found["logprob_bad", "all"]["count"]
    assert 0 < judged < sum(said.reward in (1, -1) for toy in toy_sessions(10) for said in toy.replies)
    assert f"log-probs of {judged} judged replies in sessions held out" in capsys.readouterr().err
    assert ("passed_sampled", "all") not in found
    assert found["passed_greedy", "all"]["count"] == 2


def test_neutral_text_from_a_file(run, tmp_path) -> None:
    (tmp_path / "text").write_text("def main():\nhello world thanks\n")
    evaluate.run(config(run, prompts_file(tmp_path, easy=ANYTHING), neutral_text=str(tmp_path / "text")))
    assert scores(run)["kl_neutral", "all"]["count"] == 2


def test_forgetting_is_measured_on_what_the_model_before_said(run, tmp_path, plain_model_dir, plain_tokenizer) -> None:
    """Forgetting is KL(before || after) at each position of the replies sampled before training, by plain forwards."""
    prompts = prompts_file(tmp_path, easy=ANYTHING, never={"match": ["q"]})
    rows = [json.loads(line) | {"corrected": "easy" in line} for line in prompts.read_text().splitlines()]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    evaluate.run(config(run, prompts))
    found = scores(run)
    models = [load_model(str(path), device="cpu", dtype="float32") for path in (plain_model_dir, run / "train/model")]
    chat = Chat(plain_tokenizer, {})
    asked = [(p, chat.prompt_ids(p.messages, p.tools)) for p in read_prompts(prompts)]
    own = generate("before", models[0], chat, asked, config(run, prompts))
    for domains, name in (("all", "say"), ("corrected", "easy"), ("uncorrected", "never"), ("easy", "easy")):
        kl, tokens = 0.0, 0
        for reply in (r for r in own if r.sample and name in r.prompt.messages[0]["content"]):
            assert replies(run)[reply.prompt.id, "before", reply.sample]["reply"] == reply.text
            ids = torch.tensor([reply.sequence.prompt_ids + reply.sequence.response_ids])
            with torch.no_grad():
                rows_V = [m(ids).logits[0, len(reply.sequence.prompt_ids) - 1 : -1].double() for m in models]
            old, new = (torch.distributions.Categorical(logits=x) for x in rows_V)
            divergence = torch.distributions.kl_divergence(old, new)
            row = replies(run)[reply.prompt.id, "before", reply.sample]
            assert row["kl"] == pytest.approx(divergence.mean().item(), rel=1e-4)
            kl += divergence.sum().item()
            tokens += len(reply.sequence.response_ids)
        assert found["kl_replies", domains]["after"] == pytest.approx(kl / tokens, rel=1e-4)
    assert all((row["kl"] is None) == (m == "after" or not k) for (_, m, k), row in replies(run).items())


@pytest.mark.parametrize(("tag", "called"), [("<tool_call>", False), ("<function_call>", None)])
def test_calls_are_known_only_of_templates_that_write_them_as_they_are_read(
    run, tmp_path, plain_model_dir, tag, called
) -> None:
    tokenizer = load_tokenizer(str(plain_model_dir))
    tokenizer.chat_template = QWEN.replace("<tool_call>", tag).replace("</tool_call>", tag.replace("<", "</"))
    chat, model = Chat(tokenizer, {}), load_model(str(plain_model_dir), device="cpu", dtype="float32")
    rows = read_prompts(prompts_file(tmp_path, easy=ANYTHING))
    asked = [replace(rows[0], tools=json.dumps([{"type": "function", "function": {"name": "f"}}])), rows[1]]
    given = [(p, chat.prompt_ids(p.messages, p.tools)) for p in asked]
    found = generate("before", model, chat, given, config(run, tmp_path / "prompts.jsonl", samples=0))
    assert [reply.called for reply in found] == [called, None]


def test_a_hint_of_the_run_in_a_reply_is_an_echo(run, tmp_path, plain_model_dir) -> None:
    """The hint is a text that the model happens to say, so it is found exactly in the replies that say it."""
    options = {"model": str(plain_model_dir), "trained": str(plain_model_dir), "max_new_tokens": 24}
    prompts = prompts_file(tmp_path, easy=ANYTHING, other=ANYTHING)
    evaluate.run(config(run, prompts, **options))
    assert {row["hint_echo"] for row in replies(run).values()} == {None}
    said = max((row["reply"] for row in replies(run).values() if row["sample"]), key=lambda text: len(text.split()))
    toys = [Toy("toy", [Said("red", 1, said), Said("blue", -1, "Say blue")])]
    judged = write_run(tmp_path / "judged", plain_model_dir, toys)
    evaluate.run(config(judged, prompts, **options))
    echoes = {key: row["hint_echo"] for key, row in replies(judged).items()}
    assert {key for key, echo in echoes.items() if echo} == {k for k, r in replies(run).items() if said in r["reply"]}
    share = sum(echo is not None for (_, model, sample), echo in echoes.items() if model == "after" and sample) / 8
    assert scores(judged)["hint_echo", "all"]["after"] == scores(judged)["hint_echo", "all"]["before"] == share > 0
    assert "judge" in manifest(judged, "eval")["plan"]["upstream"]


def test_two_models_can_be_compared_without_any_logs(tmp_path, plain_model_dir, plain_tokenizer) -> None:
    other = save_tiny_model(tmp_path / "other", plain_tokenizer, seed=1)
    options = {"model": str(plain_model_dir), "trained": str(other)}
    evaluate.run(config(tmp_path / "bare", prompts_file(tmp_path, easy=ANYTHING), samples=0, **options))
    found = scores(tmp_path / "bare")
    assert found["kl_replies", "all"]["difference"] > 0  # of the greedy replies
    assert found["kl_replies", "all"]["count"] == 2
    assert not {"kl_neutral", "logprob_good", "passed_sampled"} & {metric for metric, _ in found}


# -- judged checks --------------------------------------------------------------------------------------------------


class _Yes(http.server.BaseHTTPRequestHandler):
    """Handler of a server that says yes to everything except one prompt."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][-1]["content"]
        answer = "\\boxed{-1}" if "say tone 1" in asked else "\\boxed{1}"
        body = json.dumps({"choices": [{"message": {"content": answer}, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args) -> None:
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Yes) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/v1"
        running.shutdown()


def test_a_server_judges_criteria(run, tmp_path, server) -> None:
    prompts = prompts_file(tmp_path, tone={"judge": "It is polite."}, easy=ANYTHING)
    evaluate.run(config(run, prompts, judge_model="any", judge_url=server))
    passed = {r["prompt_id"]: r["passed"] for r in read_all(run, "replies") if r["reply"].strip()}
    assert passed["tone-0"] is True
    assert passed["tone-1"] is False


def test_a_judge_that_makes_no_sense_is_an_error_and_another_one_can_be_asked(
    run, tmp_path, plain_model_dir, server
) -> None:
    prompts = prompts_file(tmp_path, tone={"judge": "It is polite."})
    with pytest.raises(OpdkitError, match=r"20 of 20 replies failed.*--judge-model .*--overwrite"):
        evaluate.run(config(run, prompts, judge_model=str(plain_model_dir), samples=0))
    assert not [*(run / "eval").rglob("part-*")]
    evaluate.run(config(run, prompts, judge_model="any", judge_url=server, samples=0, overwrite=True))
    assert scores(run)["passed_greedy", "all"]["count"] > 0


def test_a_server_that_is_not_there_is_found_before_replies_are_sampled(
    run, tmp_path, server, monkeypatch, capsys
) -> None:
    prompts = prompts_file(tmp_path, tone={"judge": "It is polite."})
    monkeypatch.setattr("opdkit.model.server.traffic.FIRST_PAUSE", 0.001)
    monkeypatch.setattr("opdkit.evaluate.stage.generate", lambda *_: pytest.fail("replies were sampled"))
    with pytest.raises(OpdkitError, match=r"http://127\.0\.0\.1:1/v1"):
        evaluate.run(config(run, prompts, judge_model="any", judge_url="http://127.0.0.1:1/v1"))
    said = capsys.readouterr().err
    assert "trying again" in said
    assert "--retries" not in said, "an option of judge alone"
    monkeypatch.undo()
    evaluate.run(config(run, prompts, judge_model="any", judge_url=server, samples=0))  # the failed start left no plan
    assert scores(run)["passed_greedy", "all"]["count"] > 0
    elsewhere = config(run, prompts, judge_model="any", judge_url="http://127.0.0.1:2/v1", samples=0)
    evaluate.run(elsewhere)  # a judge at another address is the same, and is not asked again


def test_a_local_judge_that_is_none_is_found_before_replies_are_sampled(run, tmp_path, plain_model_dir, monkeypatch):
    prompts, judge = prompts_file(tmp_path, tone={"judge": "It is polite."}), tmp_path / "judge"
    shutil.copytree(plain_model_dir, judge)
    (judge / "tokenizer.json").unlink()
    monkeypatch.setattr("opdkit.evaluate.stage.generate", lambda *_: pytest.fail("replies were sampled"))
    with pytest.raises(OpdkitError, match="tokenizer"):
        evaluate.run(config(run, prompts, judge_model=str(judge)))
    assert not (run / "eval").exists()


@pytest.mark.parametrize(("rank", "parts"), [(None, 1), (0, 1), (1, 0)])
def test_a_task_of_a_slurm_array_does_the_whole_evaluation(run, tmp_path, monkeypatch, rank, parts) -> None:
    """Only the processes of a launcher share it: the first one does it."""
    values = {f"SLURM_ARRAY_TASK_{name}": value for name, value in {"ID": 1, "COUNT": 4, "MIN": 0, "MAX": 3}.items()}
    for name, value in (values | ({} if rank is None else {"RANK": rank, "WORLD_SIZE": 2})).items():
        monkeypatch.setenv(name, str(value))
    prompts = prompts_file(tmp_path, easy=ANYTHING)
    assert run_stage("eval", config(run, prompts, samples=0, overwrite=rank is None)).parts_done == parts


# -- what it refuses ------------------------------------------------------------------------------------------------


def test_what_cannot_be_evaluated_is_refused(run, tmp_path, plain_model_dir) -> None:
    prompts = prompts_file(tmp_path, tone={"judge": "It is polite."})
    with pytest.raises(ConfigError, match="--judge-model"):
        evaluate.run(config(run, prompts))
    with pytest.raises(ConfigError, match="--judge-url needs --judge-model"):
        config(run, prompts, judge_url="http://localhost:1/v1")
    with pytest.raises(ConfigError, match="--api-key-env") as refused:
        config(run, prompts, judge_model="m", judge_url="http://user:secret@localhost:1/v1")
    assert "secret" not in str(refused.value)
    easy = prompts_file(tmp_path, easy=ANYTHING)
    with pytest.raises(ConfigError, match="--max-new-tokens 3000"):
        evaluate.run(config(run, easy, max_new_tokens=3000))
    assert not (run / "eval").exists()  # no plan was written
    shutil.rmtree(run / "train/metrics")
    with pytest.raises(OpdkitError, match="no finished training"):
        evaluate.run(config(run, easy, max_new_tokens=9))


def test_models_with_other_tokens_are_refused(run, tmp_path, plain_tokenizer, plain_model_dir) -> None:
    """A vocabulary of the same size is not the same vocabulary."""
    from chat_templates import CHATML
    from conftest import CHATML_TOKENS, CHATML_WORDS, build_tokenizer

    swapped = build_tokenizer(CHATML, CHATML_TOKENS, CHATML_WORDS[::-1])
    assert len(swapped) == len(plain_tokenizer)
    other = save_tiny_model(tmp_path / "other", swapped)
    with pytest.raises(ConfigError, match="</tool_response>"):
        evaluate.run(config(run, prompts_file(tmp_path, easy=ANYTHING), trained=str(other)))


def test_it_says_which_replies_are_greedy_and_which_are_sampled(run, tmp_path, capsys) -> None:
    for samples, said in ((2, "before: 1 greedy and 2 sampled replies to each"), (0, "before: 1 greedy reply to each")):
        evaluate.run(config(run, prompts_file(tmp_path, easy=ANYTHING), samples=samples, overwrite=True))
        assert said in capsys.readouterr().err
