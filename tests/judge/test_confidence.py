"""Tests of vote confidences, from a model's logits or a server's log-probs, and of votes that are weighed by them."""

import math
import os
import re
from collections import defaultdict
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import pytest
import torch
from chat_templates import CHATML
from http_server import Reply, completion, serving
from hypothesis import given
from hypothesis import strategies as st
from runs import talk, write_extract
from sample_world import MODEL
from small_logs import run as extract
from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from opdkit.chat.template import Chat
from opdkit.cli import app
from opdkit.commands.check.stage import examine
from opdkit.config.judge import JudgeConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge import local
from opdkit.judge import stage as judge
from opdkit.judge.endpoint import read_confidence
from opdkit.judge.hints import choose_hint
from opdkit.judge.parse import find_decision_span, parse_hint, parse_reward
from opdkit.judge.votes import Answer, choose_reward, compute_confidence, list_confidences
from opdkit.model.load import load_model, load_tokenizer
from opdkit.model.sampling import sample
from opdkit.model.server import traffic
from opdkit.store.part_writer import Stage
from opdkit.store.reading import read_all
from opdkit.store.tables import VERDICTS

LOGS = MODEL.parent / "logs" / "openai.jsonl"


def rows_of(run: Path) -> list[dict]:
    return list(read_all(run, "verdicts"))


def votes_of(rows: list[dict]) -> list[dict]:
    return [vote for row in rows for vote in (*row["hint_votes"], *row["reward_votes"])]


def decision_of(vote: dict) -> int | None:
    return vote.get("decision", vote.get("score"))


# -- the local judge: the probability of the sampled tokens ------------------------------------------------------------


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[tuple[list[int], list[int]]]]]:
    """Return three sessions judged at a high temperature, and raw text of a vote -> [(prompt ids, sampled ids)]."""
    run = tmp_path_factory.mktemp("confidence") / "run"
    extract(run, LOGS, limit=3)
    chat, drawn = Chat(load_tokenizer(str(MODEL)), {}), defaultdict(list)

    def recorded(model, requests, **options):
        samples = sample(model, requests, **options)
        for request, group in zip(requests, samples, strict=True):
            for one in group:
                ids = one.ids[:-1] if one.finish_reason == "stop" else one.ids
                drawn[chat.text(ids)].append((request.prompt_ids, ids))
        return samples

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "sample", recorded)
        judge.run(local_config(run))
    return run, drawn


def local_config(run: Path, **fields) -> JudgeConfig:
    small = {"votes": 5, "temperature": 1.8, "max_new_tokens": 48, "device": "cpu"}
    return JudgeConfig(run=run, judge="local", judge_model=str(MODEL), **(small | fields))


def test_the_confidence_is_the_softmax_of_a_plain_forward(judged) -> None:
    """A confidence is the probability of the decision's tokens, recomputed in one forward pass over prompt and vote."""
    run, drawn = judged
    model, chat = load_model(str(MODEL), device="cpu", dtype="float32"), Chat(load_tokenizer(str(MODEL)), {})
    compared, low = 0, 1.0
    votes = {vote["raw"]: vote for vote in votes_of(rows_of(run))}.values()
    for vote in sorted(votes, key=lambda vote: vote["confidence"] or 2.0)[:24]:
        assert (vote["confidence"] is None) == (decision_of(vote) is None)
        if vote["confidence"] is None:
            continue
        first, end = list(re.finditer(r"\\boxed(\{-?\d)\}", vote["raw"]))[-1].span(1)
        expected = []
        for prompt, ids in drawn[vote["raw"]]:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 :].double()
            ends = [len(chat.text(ids[: n + 1])) for n in range(len(ids))]
            starts = [0, *ends[:-1]]
            decisive = [n for n in range(len(ids)) if ends[n] > first and starts[n] < end]
            rows = torch.stack([logits[n] for n in decisive]).softmax(-1)
            expected.append(math.prod(row[ids[n]].item() for n, row in zip(decisive, rows, strict=True)))
        assert any(vote["confidence"] == pytest.approx(value, rel=1e-4) for value in expected)
        compared, low = compared + 1, min(low, vote["confidence"])
    assert compared >= 10
    assert low < 0.9  # confidences that are all near 1 would prove nothing


def test_weighing_changes_no_draw_and_decides_by_the_column(judged, tmp_path: Path) -> None:
    run, _ = judged
    other = tmp_path / "run"
    extract(other, LOGS, limit=3)
    judge.run(local_config(other, weigh_votes=True))
    plain, weighed = rows_of(run), rows_of(other)
    assert votes_of(weighed) == votes_of(plain)
    for row in weighed:
        totals = oracle([(v["score"], v["confidence"]) for v in row["reward_votes"]])
        assert row["reward"] == totals
    assert not examine(other).findings


# -- where the decision stands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "question", "shown"),
    [
        (r"It did. \boxed{1}.", "reward", "{1"),
        (r"\boxed{-1}", "reward", "{-1"),
        (r"\boxed{ - 1 }", "reward", " - 1"),
        (r"\boxed{\text{0.0}}", "reward", "{0"),
        (r"\boxed{1}, no: \boxed{-1}", "reward", "{-1"),
        (r"<think>\boxed{-1}</think>So \boxed{1}", "reward", "{1"),
        (r"\boxed{1} [HINT_START]Write \boxed{0} there.[HINT_END]", "hint", "{1"),
        (r"[HINT_START]One, \boxed{0}.[HINT_END] é [HINT_START]Two.[HINT_END] \boxed{-1}", "hint", "{-1"),
        ("\\boxed{\u22121}", "reward", "{\u22121"),
        ("no decision", "reward", None),
        (r"\boxed{yes}", "reward", None),
    ],
)
def test_where_the_decision_stands(text: str, question: str, shown: str | None) -> None:
    span = find_decision_span(Answer(text), question)
    assert (span and text[slice(*span)]) == shown
    if span is not None:
        assert span[0] == text.rindex(shown)


def test_tokens_are_found_by_the_characters_they_decode_to(plain_tokenizer) -> None:
    """The decision's tokens are found although characters of several tokens, each a byte or more, precede them."""
    chat = Chat(plain_tokenizer, {})
    text = "Très bien 🙂🙂 摄氏 \\boxed{-1} 好"
    ids = plain_tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) > len(text)
    start = text.index("{")
    found = chat.find_tokens_between(ids, start, start + 3)
    assert chat.text(ids[found.start : found.stop]) == "{-1"
    every = [chat.find_tokens_between(ids, i, i + 1) for i in range(len(text))]
    assert [n for tokens in every for n in tokens] == sorted(n for tokens in every for n in tokens)
    assert set().union(*every) == set(range(len(ids)))


def test_tokens_of_a_vocabulary_that_falls_back_to_bytes() -> None:
    """As in SentencePiece, unknown characters are byte tokens; incomplete runs decode to replacement characters."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁So.\\box{-1}ed", "bo", "box", "{-", "1}"]
    vocabulary = {piece: n for n, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("b", "o"), ("bo", "x"), ("{", "-"), ("1", "}")]
    backend = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<|im_end|>", "<|im_start|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", unk_token="<unk>")
    tokenizer.chat_template = CHATML
    chat, text = Chat(tokenizer, {}), "So 🙂好 \\boxed{-1}, 好é \\boxed{1} 🙂"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert chat.text(ids) == text
    for decision, tokens in (("{-1", ["{-", "1}"]), ("{1", ["{", "1}"])):
        start = text.index(decision)
        found = chat.find_tokens_between(ids, start, start + len(decision))
        assert tokenizer.convert_ids_to_tokens(ids[found.start : found.stop]) == tokens


@pytest.mark.parametrize("parse", [parse_hint, parse_reward])
def test_no_vote_has_no_confidence(parse) -> None:
    assert parse(Answer(r"\boxed{1}", "stop", confidence=0.7)).confidence == 0.7
    for text, reason in ((r"\boxed{1}", "length"), (r"\boxed{7}", "stop"), (r"\boxed{1} or \boxed{-1}", "stop")):
        vote = parse(Answer(text, reason, confidence=0.7))
        assert vote.error
        assert vote.confidence is None


@pytest.mark.parametrize("logprobs", [[], [math.nan], [-0.1, math.nan], [-math.inf], [0.5]])
def test_what_is_no_log_prob_gives_no_confidence(logprobs: list[float]) -> None:
    assert compute_confidence(logprobs) is None
    assert compute_confidence([-0.5, 1e-9]) == pytest.approx(math.exp(-0.5))


# -- a server's log-probs ----------------------------------------------------------------------------------------------

SAID = r"So. \boxed{-1}"


def token(text: str, probability: float, **more) -> dict:
    return {"token": text, "logprob": math.log(probability), "bytes": list(text.encode()), **more}


TOKENS = [token("So. \\", 0.9), token("boxed", 0.99), token("{-", 0.5), token("1", 0.8), token("}", 1.0)]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (TOKENS, 0.4),
        ([*TOKENS, token("<|im_end|>", 1.0)], 0.4),
        ([token("<think>\\boxed{1", 0.1), token("}</think>\n", 0.1), *TOKENS], 0.4),  # content without the thinking
        ([t | {"bytes": None} for t in TOKENS], 0.4),  # as some servers send it
        ([token("So. \\boxed", 1.0), token("{", 0.5), token("-1}", 0.25)], 0.125),
        (TOKENS[:-2], None),
        ([t | {"logprob": None} for t in TOKENS], None),
        ([t | {"logprob": "0"} | {"token": 7, "bytes": None} for t in TOKENS], None),
        ([t | {"logprob": 0.5} for t in TOKENS], None),
        ([t | {"logprob": -math.inf} for t in TOKENS], None),
        ([t | {"logprob": math.nan} for t in TOKENS], None),
        ([t | {"logprob": 10**400} for t in TOKENS], None),
        ([t | {"bytes": [300]} for t in TOKENS], None),
        ([t | {"bytes": 10**18} for t in TOKENS], 0.4),
        ([], None),
        (None, None),
        (5, None),
    ],
)
def test_server_confidence(tokens, expected: float | None) -> None:
    found = read_confidence({"content": tokens}, SAID, *find_decision_span(Answer(SAID), "reward"))
    assert found == (expected if expected is None else pytest.approx(expected, rel=1e-6))


@pytest.mark.parametrize("logprobs", [None, 5, [], {}, "no", {"content": {"a": 1}}])
def test_what_is_no_list_of_tokens_is_no_confidence(logprobs) -> None:
    assert read_confidence(logprobs, SAID, 9, 12) is None


@pytest.fixture
def extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(traffic, "FIRST_PAUSE", 0.01)
    monkeypatch.setitem(os.environ, "NO_PROXY", "127.0.0.1")
    return write_extract(tmp_path / "run", {"a": talk("Hi", "Hello", "thanks"), "b": talk("How?", "So.", "No.")})


def server_config(run: Path, url: str, **fields) -> JudgeConfig:
    small = {"votes": 3, "all_votes": True, "concurrency": 2, "retries": 1, "shard": "0/1", "weigh_votes": True}
    return JudgeConfig(run=run, judge="endpoint", judge_model="m", judge_url=url, **(small | fields))


def answered(body: dict, number: int) -> Reply:
    """Answer every question with votes 1, 1 and -1: two of low confidence against one of high confidence."""
    score, probability = ((1, 0.4), (1, 0.45), (-1, 0.9))[number % 3]
    hint = "[HINT_START]Answer in two short sentences.[HINT_END]" if score == 1 else ""
    pieces = [token("\\boxed", 1.0), token("{", 1.0), token(str(score), probability), token("}" + hint, 1.0)]
    reply = completion("".join(piece["token"] for piece in pieces))
    if body.get("logprobs"):
        reply.body["choices"][0]["logprobs"] = {"content": pieces}
    return reply


def test_a_servers_log_probs_weigh_its_votes(extracted: Path) -> None:
    with serving(answered) as server:
        summary = judge.run(server_config(extracted, server.url, concurrency=1))
    assert all(body["logprobs"] is True for body in server.requests)
    rows = rows_of(extracted)
    assert [[round(v["confidence"], 2) for v in row["reward_votes"]] for row in rows] == [[0.4, 0.45, 0.9]] * 2
    assert [(row["reward"], row["reward_status"]) for row in rows] == [(-1, "ok")] * 2
    assert [(row["hint"], row["hint_status"]) for row in rows] == [(None, "outvoted")] * 2
    assert summary.counters.total("questions not weighed") == 0
    assert not examine(extracted).findings


def test_without_the_option_nothing_is_asked_for_and_votes_are_equal(extracted: Path) -> None:
    with serving(answered) as server:
        judge.run(server_config(extracted, server.url, concurrency=1, weigh_votes=False))
    assert not any("logprobs" in body for body in server.requests)
    rows = rows_of(extracted)
    assert {vote["confidence"] for vote in votes_of(rows)} == {None}
    assert [row["reward"] for row in rows] == [1, 1]
    assert all(row["hint"] for row in rows)


@pytest.mark.parametrize("status", [None, 400, 403, 422])
def test_a_server_without_log_probs_gives_equal_votes_and_is_named_once(
    extracted: Path, status: int | None, capsys
) -> None:
    """`status` None: the server leaves log-probs out; else it refuses a request for them."""

    def script(body: dict, number: int) -> Reply:
        if status and "logprobs" in body:
            return Reply(status, {"error": {"message": "Extra inputs are not permitted"}})
        reply = answered(body, number)
        reply.body["choices"][0].pop("logprobs", None)
        return reply

    with serving(script) as server:
        summary = judge.run(server_config(extracted, server.url, concurrency=1))
    assert sum("logprobs" in body for body in server.requests) == (1 if status else 12)
    assert {vote["confidence"] for vote in votes_of(rows_of(extracted))} == {None}
    assert all(decision_of(vote) is not None for vote in votes_of(rows_of(extracted)))
    assert summary.counters.labels("questions not weighed") == {"hint": 2, "reward": 2}
    said = capsys.readouterr().err
    assert said.count("gives no log-probs") == 1
    assert "4 questions" in said
    assert not examine(extracted).findings


def test_a_request_that_is_wrong_anyhow_is_refused(extracted: Path) -> None:
    with (
        serving(
            lambda body, number: Reply(400, {"error": {"message": "no such thing", "param": "temperature"}})
        ) as server,
        pytest.raises(OpdkitError, match="HTTP 400"),
    ):
        judge.run(server_config(extracted, server.url, concurrency=1))
    assert len(server.requests) == 2


# -- counting ----------------------------------------------------------------------------------------------------------

CONFIDENCE = st.integers(0, 1 << 20).map(lambda n: n / (1 << 20))  # sums of these are exact
WEIGHED = st.lists(st.tuples(st.sampled_from([1, 0, -1, None]), CONFIDENCE), min_size=1, max_size=7)


def oracle(votes: list[tuple[int | None, float | None]]) -> int | None:
    """Return the value with the largest exact sum of weights, 0 for a tie, None without a quorum."""
    valid = [(score, Fraction(weight)) for score, weight in votes if score is not None]
    if not valid or 2 * len(valid) < len(votes):
        return None
    sums = {value: sum(w for score, w in valid if score == value) for value in {score for score, _ in valid}}
    best = [value for value, total in sums.items() if total == max(sums.values())]
    return best[0] if len(best) == 1 else 0


def weighed(votes: list[tuple[int | None, float | None]]):
    return choose_reward([score for score, _ in votes], list_confidences(votes))


@pytest.mark.parametrize(
    ("votes", "reward", "status", "agreement"),
    [
        ([(1, 0.4), (1, 0.5), (-1, 0.95)], -1, "ok", 1 / 3),
        ([(1, 0.5), (1, 0.5), (-1, 0.95)], 1, "ok", 2 / 3),
        ([(1, 0.25), (1, 0.5), (-1, 0.75)], 0, "tie", 0.0),
        ([(1, 0.25), (0, 0.5), (-1, 0.5)], 0, "tie", 1 / 3),
        ([(1, 1.0), (None, None), (None, None)], None, "no_quorum", None),  # a quorum counts votes, not confidences
        ([(None, None), (None, None)], None, "failed", None),
        ([(1, 0.9), (-1, 0.1), (-1, None), (0, 0.9)], -1, "ok", 0.5),  # a vote has no confidence: each counts as one
        ([(1, 0.9), (-1, 0.1), (-1, 0.1), (None, None)], 1, "ok", 1 / 3),  # a failed vote needs no confidence
        ([(1, 0.0), (1, 0.0)], 1, "ok", 1.0),
    ],
)
def test_worked_by_hand(votes, reward, status, agreement) -> None:
    found = weighed(votes)
    assert (found.reward, found.status) == (reward, status)
    assert found.agreement == (agreement if agreement is None else pytest.approx(agreement))


@given(WEIGHED)
def test_the_reward_is_the_exact_weighed_majority(votes) -> None:
    assert weighed(votes).reward == oracle(votes)


@given(WEIGHED)
def test_the_order_of_weighed_votes_does_not_matter(votes) -> None:
    assert len({weighed(list(order)) for order in permutations(votes[:5])}) == 1


@given(st.lists(st.sampled_from([1, 0, -1, None]), min_size=1, max_size=9), st.floats(0.01, 1.0))
def test_equal_confidences_are_the_plain_majority(scores, confidence: float) -> None:
    assert weighed([(score, confidence) for score in scores]) == choose_reward(scores)


HINT = "Answer in two short sentences."


@pytest.mark.parametrize(
    ("votes", "status"),
    [
        ([(1, 0.4), (1, 0.45), (-1, 0.9)], "outvoted"),
        ([(1, 0.9), (-1, 0.3), (-1, 0.3)], "ok"),
        ([(1, 0.5), (-1, 0.5)], "outvoted"),
        ([(1, 0.9), (None, None), (None, None)], "no_quorum"),
        ([(1, 0.9), (-1, 0.3), (-1, None)], "outvoted"),
    ],
)
def test_hints_are_chosen_by_weight(votes, status: str) -> None:
    pairs = [(decision, HINT if decision == 1 else None) for decision, _ in votes]
    choice = choose_hint(pairs, "", select="consensus", min_chars=11, max_chars=600, weights=list_confidences(votes))
    assert (choice.status, choice.hint) == (status, HINT if status == "ok" else None)


# -- the command line --------------------------------------------------------------------------------------------------


def test_rules_cannot_be_weighed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--weigh-votes"):
        JudgeConfig(run=tmp_path, judge="rules", weigh_votes=True)


def test_show_prints_the_confidence(judged) -> None:
    run, _ = judged
    row = rows_of(run)[0]
    shown = CliRunner().invoke(app, ["show", str(run), row["turn_id"]])
    assert shown.exit_code == 0
    assert all(f"({vote['confidence']:.2f})" in shown.stdout for vote in row["reward_votes"] if not vote["error"])


def test_check_finds_a_reward_that_is_not_the_weighed_majority(extracted: Path) -> None:
    votes = [{"score": s, "raw": "", "error": None, "confidence": c} for s, c in ((1, 0.4), (1, 0.45), (-1, 0.9))]
    row = {"hint_votes": [], "reward_votes": votes, "reward_status": "ok", "reward_agreement": 1 / 3, "hints": [],
           "hint": None, "hint_status": "none"}  # fmt: skip
    found = {}
    for reward in (-1, 1):
        config = server_config(extracted, "http://127.0.0.1:1/v1", overwrite=True)
        stage = Stage.open(config, "judge", [VERDICTS], parts=1, upstream=["extract"])
        with stage.writing(0) as out:
            out.counters.rows_in = 2
            out.add_rows("verdicts", [row | {"turn_id": name, "reward": reward} for name in ("a:1", "b:1")])
        found[reward] = bool(examine(extracted).findings)
    assert found == {-1: False, 1: True}
