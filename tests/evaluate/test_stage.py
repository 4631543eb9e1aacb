"""Before and after on held-out prompts: the whole stage on tiny models, and its arithmetic by hand."""

import http.server
import json
import shutil
import threading
from pathlib import Path

import pytest
from conftest import save_tiny_model
from scored_runs import toy_sessions, write_run

from opdkit import evaluate, train
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate.checks import HeldOutPrompt, Patterns
from opdkit.evaluate.replies import Reply
from opdkit.evaluate.stage import reply_scores
from opdkit.stages import EvalConfig, TrainConfig
from opdkit.store import read_all

ANYTHING = {"match": ["."]}


def prompts_file(folder: Path, **checks) -> Path:
    """Two prompts in each domain."""
    path = folder / "prompts.jsonl"
    rows = [{"id": f"{domain}-{n}", "domain": domain, "prompt": f"say {domain} {n}", "check": check}
            for domain, check in checks.items() for n in range(2)]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory, plain_model_dir) -> Path:
    run = write_run(tmp_path_factory.mktemp("trained") / "run", plain_model_dir, toy_sessions(8))
    train.run(TrainConfig(run=run, model=str(plain_model_dir), objective="binary", batch_turns=4, epochs=4,
                          learning_rate=1e-2, device="cpu"))  # fmt: skip
    return run


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def config(run: Path, prompts: Path, **options) -> EvalConfig:
    return EvalConfig(run=run, prompts=str(prompts), device="cpu", **({"max_new_tokens": 8, "samples": 2} | options))


def scores(run: Path) -> dict[tuple[str, str], dict]:
    return {(row["metric"], row["domain"]): row for row in read_all(run, "scores")}


# -- the stage ------------------------------------------------------------------------------------------------------


def test_a_trained_model_is_compared_with_the_one_before(run, tmp_path, capsys) -> None:
    prompts = prompts_file(tmp_path, easy=ANYTHING, never={"match": ["no model says this"]})
    summary = evaluate.run(config(run, prompts))
    replies = list(read_all(run, "replies"))
    assert len(replies) == summary.counters.extra["replies"] == 4 * 3 * 2
    assert {(r["prompt_id"], r["model"], r["sample"]) for r in replies} == {
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
    for row in found.values():
        if row["low"] is not None:
            assert row["low"] <= row["difference"] <= row["high"]
    captured = capsys.readouterr()
    assert "share passed, sampled" in captured.out
    assert "none were held out of training" in captured.err


def test_the_same_model_twice_differs_in_nothing(run, tmp_path, plain_model_dir) -> None:
    """Common random streams: what differs between before and after is the model and nothing else."""
    prompts = prompts_file(tmp_path, easy={"match": ["[a-m]"]})
    evaluate.run(config(run, prompts, model=str(plain_model_dir), trained=str(plain_model_dir)))
    rows = [(r["model"], (r["prompt_id"], r["sample"], r["reply"], r["passed"])) for r in read_all(run, "replies")]
    sides = {side: [row for model, row in rows if model == side] for side in ("before", "after")}
    assert sides["before"] == sides["after"]
    assert len({reply for _, _, reply, _ in sides["before"]}) > 2
    assert all(row["difference"] == 0 for row in scores(run).values())


def test_the_same_plan_gives_the_same_rows_and_is_not_run_again(run, tmp_path, monkeypatch, capsys) -> None:
    prompts = prompts_file(tmp_path, easy=ANYTHING)
    evaluate.run(config(run, prompts))
    first = list(read_all(run, "replies")), list(read_all(run, "scores"))
    evaluate.run(config(run, prompts, overwrite=True))
    assert (list(read_all(run, "replies")), list(read_all(run, "scores"))) == first
    monkeypatch.setattr("opdkit.evaluate.stage._load", None)
    capsys.readouterr()
    evaluate.run(config(run, prompts))
    assert "share passed" in capsys.readouterr().out
    prompts.write_text(prompts.read_text().replace("say easy 0", "say easy 9"))
    with pytest.raises(ConfigError, match="prompts"):
        evaluate.run(config(run, prompts))


def test_a_reply_does_not_depend_on_the_other_prompts(run, tmp_path) -> None:
    evaluate.run(config(run, prompts_file(tmp_path, easy=ANYTHING, never={"match": ["q"]})))
    both = {(r["prompt_id"], r["model"], r["sample"]): r["reply"] for r in read_all(run, "replies")}
    evaluate.run(config(run, prompts_file(tmp_path, easy=ANYTHING), overwrite=True, limit=1))
    alone = {(r["prompt_id"], r["model"], r["sample"]): r["reply"] for r in read_all(run, "replies")}
    assert len(alone) == 6
    assert all(both[key] == reply for key, reply in alone.items())


def test_held_out_sessions_are_measured_apart(tmp_path, plain_model_dir, capsys) -> None:
    run = write_run(tmp_path / "run", plain_model_dir, toy_sessions(10))
    train.run(TrainConfig(run=run, model=str(plain_model_dir), objective="binary", holdout=0.4, device="cpu"))
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
    evaluate.run(config(run, prompts_file(tmp_path, easy=ANYTHING), neutral=str(tmp_path / "text")))
    assert scores(run)["kl_neutral", "all"]["count"] == 2


# -- judged checks --------------------------------------------------------------------------------------------------


class _Yes(http.server.BaseHTTPRequestHandler):
    """A server that says yes to everything but one prompt."""

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


def test_a_judge_that_makes_no_sense_gives_no_verdict(run, tmp_path, plain_model_dir, capsys) -> None:
    """pitfall 14: a failed vote is null, and counts neither way."""
    prompts = prompts_file(tmp_path, tone={"judge": "It is polite."})
    evaluate.run(config(run, prompts, judge_model=str(plain_model_dir), samples=0))
    assert {r["passed"] for r in read_all(run, "replies") if r["reply"].strip()} == {None}
    row = scores(run)["passed_greedy", "all"]
    assert (row["before"], row["after"], row["count"]) == (None, None, 0)
    assert "no verdict" in capsys.readouterr().err


# -- the arithmetic -------------------------------------------------------------------------------------------------


def reply(prompt_id: str, model: str, sample: int, passed: bool | None, domain: str = "d") -> Reply:
    prompt = HeldOutPrompt(prompt_id, domain, [], None, Patterns((), ()))
    return Reply(prompt, model, sample, "x", "x", 10 if model == "after" else 5, "stop", passed)


def test_shares_are_means_over_prompts_worked_by_hand() -> None:
    replies = [reply("a", "before", k, p) for k, p in ((1, False), (2, False))]
    replies += [reply("a", "after", k, p) for k, p in ((1, True), (2, None))]  # a null vote leaves one reply
    replies += [reply("b", "before", k, p, "e") for k, p in ((1, True), (2, False))]
    replies += [reply("b", "after", k, p, "e") for k, p in ((1, True), (2, True))]
    replies += [reply("c", "before", 1, None), reply("c", "after", 1, True)]  # nothing to compare with
    rows = {(r["metric"], r["domain"]): r for r in reply_scores(replies, seed=0)}
    row = rows["passed_sampled", "all"]
    assert (row["before"], row["after"], row["difference"], row["count"]) == (0.25, 1.0, 0.75, 2)
    assert (row["low"], row["high"]) == (0.5, 1.0)
    assert rows["passed_sampled", "e"]["difference"] == 0.5
    assert rows["passed_sampled", "e"]["low"] is None  # one prompt says nothing about the spread
    assert rows["reply_tokens", "all"]["difference"] == 5
    assert ("passed_greedy", "all") not in rows


# -- what it refuses ------------------------------------------------------------------------------------------------


def test_what_cannot_be_evaluated_is_refused(run, tmp_path, plain_model_dir) -> None:
    prompts = prompts_file(tmp_path, tone={"judge": "It is polite."})
    with pytest.raises(ConfigError, match="--judge-model"):
        evaluate.run(config(run, prompts))
    with pytest.raises(ConfigError, match="--judge-url needs"):
        evaluate.run(config(run, prompts, judge_url="http://localhost:1/v1"))
    easy = prompts_file(tmp_path, easy=ANYTHING)
    with pytest.raises(ConfigError, match="--max-new-tokens 3000"):
        evaluate.run(config(run, easy, max_new_tokens=3000))
    assert not (run / "eval").exists()  # it binds nobody
    shutil.rmtree(run / "train/metrics")
    with pytest.raises(OpdkitError, match="no finished training"):
        evaluate.run(config(run, easy, max_new_tokens=9))


def test_models_with_other_tokens_are_refused(run, tmp_path, plain_tokenizer, plain_model_dir) -> None:
    """pitfall 12: the same size, other ids."""
    from chat_templates import CHATML
    from conftest import CHATML_TOKENS, CHATML_WORDS, build_tokenizer

    swapped = build_tokenizer(CHATML, CHATML_TOKENS, CHATML_WORDS[::-1])
    assert len(swapped) == len(plain_tokenizer)
    other = save_tiny_model(tmp_path / "other", swapped)
    with pytest.raises(ConfigError, match="other ids"):
        evaluate.run(config(run, prompts_file(tmp_path, easy=ANYTHING), trained=str(other)))
