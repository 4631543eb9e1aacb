"""Tests of opdkit/model/tree_reading.py: a tree gives the numbers of every turn read from its beginning."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import chat_templates
import pytest
import torch
from conftest import CHATML_TOKENS, CHATML_WORDS, build_tokenizer
from model_families import FAMILIES, PLAIN, STATES, build

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.template import Chat
from opdkit.errors import OpdkitError
from opdkit.model import packed_reading, scoring, tree_reading
from opdkit.model.load import load_model, load_tokenizer
from opdkit.model.memory import find_budget, find_state
from opdkit.model.scoring import LogprobQuery, Mixture, PromptResponse
from opdkit.model.tree_reading import check_tree_reading, logprobs_in_trees
from opdkit.teacher.scores import ReplyReadings, ReplyScores, ScoreOptions, score_session


@pytest.fixture(scope="module")
def student():
    return build(*FAMILIES["grouped queries"])


@pytest.fixture(scope="module")
def other():
    return build("LlamaConfig", {}, seed=1)


def conversation(turns: int = 4, seed: int = 0) -> list[ReplyReadings]:
    """Return a session as token ids: turns that continue each other, three of four with two hints after the user."""
    draw = torch.Generator().manual_seed(seed)

    def ids(low: int, high: int) -> list[int]:
        length = int(torch.randint(low, high, (), generator=draw))
        return torch.randint(0, 360, (length,), generator=draw).tolist()

    history, made = ids(20, 30), []
    for turn in range(turns):
        user, opening, reply = ids(5, 15), ids(2, 3), ids(1, 12)
        plain = PromptResponse(history + user + opening, reply)
        hints = [[9, 9, *ids(3, 6)] for _ in range(2 * (turn % 4 != 2))]
        hinted = tuple((PromptResponse(history + user + hint + opening, reply),) for hint in hints)
        made.append(ReplyReadings(plain, hinted, (plain,)))
        history = history + user + opening + reply
    return made


def token_ids(session: list[ReplyReadings]) -> list[list[int]]:
    return [s.prompt_ids + s.response_ids for r in session for s in (r.student, *(hinted for [hinted] in r.hinted))]


def plainly(*args, **kwargs) -> list[ReplyScores]:
    return score_session(*args, **kwargs, whole=False)


def numbers(scores: ReplyScores) -> list[torch.Tensor]:
    support = [scores.support.old, scores.support.teacher] if scores.support else []
    return [x for x in (scores.old, scores.teacher, scores.unhinted, *support) if x is not None]


def alike(actual: list[ReplyScores], expected: list[ReplyScores], atol: float = 1e-5) -> None:
    for x, y in zip(actual, expected, strict=True):
        assert (x.chosen, x.overlap) == (y.chosen, y.overlap)
        assert (x.support is None) == (y.support is None)
        assert x.support is None or torch.equal(x.support.ids, y.support.ids)
        for a, b in zip(numbers(x), numbers(y), strict=True):
            torch.testing.assert_close(a, b, atol=atol, rtol=0)


def worst(actual: list[ReplyScores], expected: list[ReplyScores]) -> float:
    pairs = [p for x, y in zip(actual, expected, strict=True) for p in ((x.old, y.old), (x.teacher, y.teacher))]
    return max(float((a - b).abs().max()) for a, b in pairs if a is not None)


# -- the same numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_gives_the_numbers_of_plain_reading(family):
    """This holds for every family of models, and more than half of the tokens are not read."""
    model, counted = build(*FAMILIES[family]), Counter()
    arguments = (model, Mixture((model,)), conversation(), ScoreOptions(top_k=5))
    actual = score_session(*arguments, batch_tokens=10_000, counted=counted)
    alike(actual, plainly(*arguments, batch_tokens=10_000))
    assert check_tree_reading(model)
    assert counted["tokens saved"] > counted["tokens read"]


@pytest.mark.parametrize("family", STATES)
def test_states_give_the_numbers_of_plain_reading(family):
    """This holds for 20 sessions, and at most a tenth of the tokens is read twice."""
    model, counted = build(*STATES[family]), Counter()
    sessions = [conversation(2 + seed % 2, seed) for seed in range(20)]
    arguments = (model, Mixture((model,)), [reply for session in sessions for reply in session], ScoreOptions())
    actual = score_session(*arguments, batch_tokens=10_000, counted=counted)
    assert worst(actual, plainly(*arguments, batch_tokens=10_000)) < 1e-4
    nodes = {tuple(ids[: i + 1]) for session in sessions for ids in token_ids(session) for i in range(len(ids))}
    assert len(nodes) <= counted["tokens read"] <= 1.1 * len(nodes)
    assert counted["tokens saved"] > counted["tokens read"]


@pytest.mark.parametrize("family", ["Qwen3-Next", "Jamba", "Falcon-H1", "Llama 4"])
def test_states_whatever_the_budget(family, monkeypatch):
    """This holds for any cut of the branches, also if a trunk is read in pieces."""
    model = build(*STATES[family])
    arguments = (model, Mixture((model,)), conversation(4), ScoreOptions(top_k=5))
    expected = plainly(*arguments, batch_tokens=10_000)
    for pack, chunk in ((1, 16), (40, 4096)):
        monkeypatch.setattr(tree_reading, "PACK_TOKENS", pack)
        monkeypatch.setattr(tree_reading, "_CHUNK", chunk)
        monkeypatch.setattr(tree_reading, "_LEAST", 16)
        alike(score_session(*arguments, batch_tokens=40), expected, atol=1e-4)


@pytest.mark.parametrize("pack", [1, 12, 40, 512])
@pytest.mark.parametrize("batch_tokens", [1, 30, 10_000])
def test_the_budget_changes_no_number(student, pack, batch_tokens, monkeypatch):
    """This holds for any cut of the branches, and for any chunks of rows in the output layer."""
    arguments = (student, Mixture((student,)), conversation(6), ScoreOptions(top_k=5))
    expected = plainly(*arguments, batch_tokens=10_000)
    monkeypatch.setattr(tree_reading, "PACK_TOKENS", pack)
    monkeypatch.setattr(scoring, "_LOGITS", 360 * 7)
    alike(score_session(*arguments, batch_tokens=batch_tokens), expected)


@pytest.mark.parametrize("whose", ["student", "teacher"])
@pytest.mark.parametrize("overlap", [0, 6])
@pytest.mark.parametrize("teachers", [("student",), ("other",), ("student", "other")])
def test_supports_overlaps_and_averages_are_the_same(student, other, whose, overlap, teachers):
    models = tuple({"student": student, "other": other}[name] for name in teachers)
    mixture = Mixture(models, (1.0,) if len(models) == 1 else (0.3, 0.7))
    targets = [
        ReplyReadings(t.student, tuple(r * len(models) for r in t.hinted), t.unhinted * len(models))
        for t in conversation()
    ]
    arguments = (student, mixture, targets, ScoreOptions(4, whose, overlap))
    actual = score_session(*arguments, batch_tokens=10_000)
    alike(actual, plainly(*arguments, batch_tokens=10_000))
    assert all(scores.unhinted is not None for scores in actual)


@pytest.mark.parametrize("seed", range(5))
def test_of_any_conversation(student, seed):
    arguments = (student, Mixture((student,)), conversation(8, seed), ScoreOptions(top_k=3))
    alike(score_session(*arguments, batch_tokens=200), plainly(*arguments, batch_tokens=200))


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.25), (torch.float16, 0.05)])
def test_half_precision_rounds_either_way_alike(dtype, most):
    """Tree and plain reading differ only by rounding, and the tree is not twice as far from float32."""
    exact = build(*FAMILIES["grouped queries"])
    half = build(*FAMILIES["grouped queries"]).to(dtype)
    targets, score_options = conversation(), ScoreOptions()
    expected = score_session(exact, Mixture((exact,)), targets, score_options, batch_tokens=10_000)
    actual = score_session(half, Mixture((half,)), targets, score_options, batch_tokens=10_000)
    plain = plainly(half, Mixture((half,)), targets, score_options, batch_tokens=10_000)
    assert check_tree_reading(half)
    assert 0 < worst(actual, plain) < most
    assert worst(actual, expected) < 2 * worst(plain, expected) + 1e-3


# -- templates ------------------------------------------------------------------------------------------------------

HINT = "Answer in one sentence."
SAID = [
    {"role": "user", "content": "hello, write the answer"},
    {"role": "assistant", "content": "hello", "reasoning": "The user asks for the answer."},
    {"role": "user", "content": "No, I said the other file."},
    {"role": "assistant", "content": "def main(): return 10", "reasoning": "The other file, then."},
    {"role": "user", "content": "Please write short sentences, without bullet points."},
    {"role": "assistant", "content": "Thanks. That is right.", "reasoning": None},
]
TEMPLATES = {
    "CHATML": (CHATML_TOKENS, CHATML_WORDS, None),
    "QWEN": (CHATML_TOKENS, CHATML_WORDS, None),
    "OPENS_THINKING": (CHATML_TOKENS, CHATML_WORDS, None),
    "LLAMA3": (("<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|bos|>"), (), "<|bos|>"),
    "GEMMA": (("<end_of_turn>", "<bos>", "<start_of_turn>"), (), "<bos>"),
}  # fmt: skip


def targets_of(chat: Chat, messages: list[dict], placement: str, *, logged_ids: bool = False) -> list[ReplyReadings]:
    actual = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        # As logged, because a template that opens the thinking itself does not render what was sampled.
        said = f"{message['reasoning'] or ''}</think>{message['content']}"
        logged = chat.tokenizer(said)["input_ids"] if logged_ids else None
        before, reply = messages[:index], chat.reply(messages, index, token_ids=logged).ids
        plain, hinted = (chat.prompt_ids(m) for m in (before, with_hint(before, HINT, placement)))
        actual.append(ReplyReadings(PromptResponse(plain, reply), ((PromptResponse(hinted, reply),),)))
    return actual


def message(fields: dict) -> dict:
    empty = {"content": None, "reasoning": None, "name": None, "tool_call_id": None, "tool_calls": []}
    return empty | fields


@pytest.mark.parametrize("placement", ["last-user", "tail", "system"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_fork_where_their_ids_do(student, name, placement):
    """This includes templates that remove the thinking from earlier turns, which then have other ids later."""
    special, words, bos = TEMPLATES[name]
    chat = Chat(build_tokenizer(getattr(chat_templates, name), special, words, bos=bos), {})
    if name == "GEMMA" and placement == "system":
        pytest.skip("the template has no system role")
    messages, counted = [message(m) for m in SAID], Counter()
    if placement == "system":
        messages.insert(0, message({"role": "system", "content": "You are hello world."}))
    targets = targets_of(chat, messages, placement, logged_ids=name == "OPENS_THINKING")
    arguments = (student, Mixture((student,)), targets, ScoreOptions(top_k=5))
    actual = score_session(*arguments, batch_tokens=10_000, counted=counted)
    alike(actual, plainly(*arguments, batch_tokens=10_000))
    assert counted["tokens saved"] > 0


@pytest.mark.parametrize("placement", ["last-user", "tail", "system"])
def test_sessions_of_the_sample_log(placement):
    root = Path(__file__).parents[2] / "sample_data"
    model = load_model(str(root / "model"), device="cpu", dtype="float32")
    chat = Chat(load_tokenizer(str(root / "model")), {})
    lines = (root / "logs/openai.jsonl").read_text(encoding="utf-8").splitlines()[:4]
    for line in lines:
        messages = [message(m) for m in json.loads(line)["messages"]]
        targets = targets_of(chat, messages, placement)
        arguments = (model, Mixture((model,)), targets, ScoreOptions(top_k=20))
        actual = score_session(*arguments, batch_tokens=16_384)
        expected = plainly(*arguments, batch_tokens=16_384)
        assert worst(actual, expected) < 1e-4
        for x, y in zip(actual, expected, strict=True):
            torch.testing.assert_close(x.support.old, y.support.old, atol=1e-4, rtol=0)
    assert check_tree_reading(model)


# -- what is read ---------------------------------------------------------------------------------------------------


def test_the_layers_read_what_the_plan_says(student):
    """Each token of the tree is read once, with student and teacher in the same passes."""
    seen, counted = [], Counter()
    assert check_tree_reading(student)
    handle = student.get_decoder().layers[0].register_forward_hook(lambda module, args, out: seen.append(args[0].shape))
    score_session(
        student, Mixture((student,)), conversation(), ScoreOptions(top_k=5), batch_tokens=10_000, counted=counted
    )
    handle.remove()
    assert sum(length for _, length, _ in seen) == counted["tokens read"]
    given = [s for t in conversation() for s in (t.student, *(r for [r] in t.hinted))]
    assert sum(counted.values()) == sum(map(len, given))
    assert counted["tokens read"] == len({
        tuple(ids[: i + 1]) for ids in (s.prompt_ids + s.response_ids for s in given) for i in range(len(ids))
    })  # fmt: skip


def test_what_has_nothing_in_common_is_read_in_batches(student):
    one, two = PromptResponse([1, 2, 3], [4, 5]), PromptResponse([6, 2, 3], [4, 5, 6])
    counted = Counter()
    score_session(
        student,
        Mixture((student,)),
        [ReplyReadings(one), ReplyReadings(two)],
        ScoreOptions(),
        batch_tokens=99,
        counted=counted,
    )
    assert counted == {"tokens read": 11, "tokens saved": 0}


def test_a_hint_that_changes_nothing_changes_no_bit(student):
    """This also holds in a tree that other turns share."""
    targets = conversation(5)
    same = [
        ReplyReadings(t.student, ((PromptResponse(list(t.student.prompt_ids), t.student.response_ids),),))
        for t in targets
    ]
    for actual in score_session(student, Mixture((student,)), targets + same, ScoreOptions(4), batch_tokens=50)[5:]:
        assert torch.equal(actual.old, actual.teacher)
        assert torch.equal(actual.support.old, actual.support.teacher)


def test_the_same_session_gives_the_same_bits(student, other):
    arguments = (student, Mixture((student, other), (0.5, 0.5)))
    targets = [ReplyReadings(t.student, tuple(r * 2 for r in t.hinted)) for t in conversation()]
    first = score_session(*arguments, targets, ScoreOptions(4), batch_tokens=60)
    score_session(*arguments, targets[:2], ScoreOptions(4), batch_tokens=60)  # another session between them
    for x, y in zip(first, score_session(*arguments, targets, ScoreOptions(4), batch_tokens=60), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(numbers(x), numbers(y), strict=True))


def test_numbers_that_are_not_finite_stay_with_their_turn():
    """In a tree, a NaN could spread to the branches that are read with it."""
    model, targets = build(*FAMILIES["grouped queries"]), conversation()
    assert check_tree_reading(model)
    read = [t.student for t in targets]
    bad = next(i for i in range(360) if not any(i in s.prompt_ids + s.response_ids for s in read))
    read.append(PromptResponse([*read[0].prompt_ids, bad], read[0].response_ids))
    with torch.no_grad():
        model.model.embed_tokens.weight[bad] = float("nan")
    *good, last = score_session(
        model, Mixture((model,)), [ReplyReadings(s) for s in read], ScoreOptions(), batch_tokens=10_000
    )
    assert torch.isnan(last.old).all()
    assert all(torch.isfinite(scores.old).all() for scores in good)


# -- models that read plainly ---------------------------------------------------------------------------------------


def test_layers_that_cannot_go_on_read_plainly(capsys):
    """The numbers are those of plain reading, bit for bit, and the reason is printed once per model."""
    model, counted = build(*PLAIN["states in the layers"]), Counter()
    arguments = (model, Mixture((model,)), conversation(), ScoreOptions(top_k=5))
    for _ in range(2):
        actual = score_session(*arguments, batch_tokens=10_000, counted=counted)
    expected = plainly(*arguments, batch_tokens=10_000)
    for x, y in zip(actual, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(numbers(x), numbers(y), strict=True))
    assert counted["tokens saved"] == 0
    assert " ".join(capsys.readouterr().err.split()).count("with a mask and a cache") == 1


def test_attention_without_a_mask_reads_plainly(capsys):
    model = build("LlamaConfig", {})
    model.config._attn_implementation = "flash_attention_2"
    assert not check_tree_reading(model)
    assert "attention (flash_attention_2)" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_length_read_plainly(kind, capsys):
    """A turn read beside a longer turn would get the frequencies of the longer turn."""
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 32}
    model = build("LlamaConfig", {"rope_parameters": rope, "max_position_embeddings": 64})
    assert not check_tree_reading(model)
    assert "position embeddings depend" in capsys.readouterr().err


def test_a_model_that_takes_no_notice_of_the_mask_is_found_out(monkeypatch, capsys):
    model = build("LlamaConfig", {})
    real = tree_reading._make_mask
    monkeypatch.setattr(tree_reading, "_make_mask", lambda *each: torch.ones_like(real(*each)))
    counted = Counter()
    score_session(model, Mixture((model,)), conversation(), ScoreOptions(), batch_tokens=10_000, counted=counted)
    assert counted["tokens saved"] == 0
    assert "log-probs would differ by" in capsys.readouterr().err


def test_a_window_that_the_layers_do_not_have_is_found_out(monkeypatch, capsys):
    """The made-up sequences of the check are longer than the window."""
    model = build(*FAMILIES["window, then all"])
    monkeypatch.setattr(tree_reading, "within", lambda window, queries, keys: queries - keys < 7)
    assert not check_tree_reading(model)
    assert "log-probs would differ by" in capsys.readouterr().err


def test_a_model_that_keeps_nothing_is_found_out(monkeypatch, capsys):
    model = build("LlamaConfig", {})
    body = type(model.get_decoder())
    real = body.forward
    monkeypatch.setattr(body, "forward", lambda self, **k: real(self, **(k | {"past_key_values": None})))
    assert not check_tree_reading(model)
    assert "reads each turn from its beginning" in capsys.readouterr().err


def test_a_check_that_runs_out_of_memory_leaves_the_model_as_it_was(monkeypatch):
    model = build("LlamaConfig", {})

    def fail(*_):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as context:
        context.setattr(tree_reading, "TreeStates", fail)
        with pytest.raises(torch.OutOfMemoryError):
            check_tree_reading(model)
    assert model.config._attn_implementation == "sdpa"
    assert check_tree_reading(model)


def test_queries_that_do_not_fit_together_are_read_in_halves(student, monkeypatch):
    """A query that does not fit by itself has no result."""
    queries = [LogprobQuery((reply.student,)) for reply in conversation(5)]
    whole, tokens = logprobs_in_trees(student, queries, 10_000, "a test")
    real, longest = tree_reading.read_trees, max(len(query.sequences[0]) for query in queries)

    def read(readings, limit):
        ((_, sequences),) = readings
        if sum(map(len, sequences)) >= longest:
            raise torch.OutOfMemoryError
        return real(readings, limit)

    monkeypatch.setattr(tree_reading, "read_trees", read)
    find_budget(student, "another").max_tokens = 10_000
    halves, more = logprobs_in_trees(student, queries, 10_000, "another")
    assert [k for k in whole if k not in halves] == [4], "the longest one"
    for k, answer in halves.items():
        torch.testing.assert_close(answer.logprobs, whole[k].logprobs, atol=1e-5, rtol=0)
    assert sum(map(len, (query.sequences[0] for query in queries[:4]))) >= more
    assert tokens < sum(len(query.sequences[0]) for query in queries)


# -- the first session of a run is read both ways -------------------------------------------------------------------


def wrong_mask(monkeypatch) -> None:
    """Make a model see too much in long blocks only, which the check's made-up sequences do not have."""
    real = packed_reading._plan_blocks

    def blocks(*given):
        for block in real(*given):
            is_wrong = block.mask is not None and block.mask.shape[-1] > 200
            yield replace(block, mask=torch.ones_like(block.mask)) if is_wrong else block

    monkeypatch.setattr(packed_reading, "_plan_blocks", blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_numbers_on_the_first_session_stop_the_run(dtype, monkeypatch):
    model = build("LlamaConfig", {"initializer_range": 0.6}).to(dtype)
    arguments = (model, Mixture((model,)), conversation(8), ScoreOptions())
    wrong_mask(monkeypatch)
    assert check_tree_reading(model)
    for _ in range(2):
        with pytest.raises(OpdkitError, match=r"--turn-by-turn.*--validate 0"):
            score_session(*arguments, batch_tokens=10_000)
    assert all(torch.isfinite(scores.old).all() for scores in plainly(*arguments, batch_tokens=10_000))


def test_the_first_session_is_read_both_ways_and_no_other(student, monkeypatch):
    find_state(student).tree_compared = False
    read = []
    handle = student.get_decoder().layers[0].register_forward_hook(lambda module, args, out: read.append(args[0].shape))
    arguments = (student, Mixture((student,)), conversation(6), ScoreOptions())
    tokens = []
    for _ in range(2):
        score_session(*arguments, batch_tokens=10_000)
        tokens.append(sum(rows * length for rows, length, _ in read))
        read.clear()
    handle.remove()
    assert tokens[1] < tokens[0] <= tokens[1] + tree_reading._COMPARED_TOKENS


@pytest.mark.parametrize(
    ("room", "lengths"), [(1, [3]), (8, [3, 5]), (11, [3, 8]), (16, [3, 8, 5]), (99, [3, 8, 7, 5])]
)
def test_what_is_compared_is_bounded(room, lengths):
    """The shortest sequence is always compared, and others only within the room."""
    sequences = [PromptResponse([1] * (n - 1), [2]) for n in (5, 8, 3, 7)]
    assert [len(s) for s in tree_reading._choose_compared(sequences, room)] == lengths


def test_what_fits_is_read_in_one_forward(student, monkeypatch):
    """One forward reads trunks, branches and several sessions; more is read in several, with the same numbers."""
    sessions = [reply for seed in range(3) for reply in conversation(4, seed)]
    arguments = (student, Mixture((student,)), sessions, ScoreOptions())
    check_tree_reading(student)
    monkeypatch.setattr(tree_reading, "PACK_TOKENS", 40)
    monkeypatch.setattr(tree_reading, "_CHUNK", 16)
    monkeypatch.setattr(tree_reading, "_LEAST", 16)
    forwards, found = [], []
    handle = student.get_decoder().layers[0].register_forward_hook(lambda *_: forwards.append(1))
    for batch_tokens in (10_000, 60):
        find_state(student).tree_compared = True
        found.append(score_session(*arguments, batch_tokens=batch_tokens))
        assert (len(forwards) == 1) == (batch_tokens == 10_000)
        forwards.clear()
    handle.remove()
    alike(*found)


def test_a_trunk_longer_than_the_budget_is_read_in_pieces(student, monkeypatch):
    """Only a trunk's keys and values grow with its length; a piece has 4,096 tokens, here 16."""
    monkeypatch.setattr(tree_reading, "_CHUNK", 16)
    monkeypatch.setattr(tree_reading, "_LEAST", 16)
    longest, targets = [], conversation(6)
    check_tree_reading(student)
    score_session(student, Mixture((student,)), targets, ScoreOptions(), batch_tokens=10_000)
    handle = (
        student.get_decoder()
        .layers[0]
        .register_forward_hook(lambda module, args, out: longest.append(args[0].shape[1]))
    )
    actual = score_session(student, Mixture((student,)), targets, ScoreOptions(), batch_tokens=40)
    handle.remove()
    assert max(longest) <= 40 < max(len(t.student) for t in targets)
    alike(actual, plainly(student, Mixture((student,)), targets, ScoreOptions(), batch_tokens=40))


def test_sessions_are_read_together_as_they_are_alone(student):
    """Short sessions are read in one pass, in which each sees only itself."""
    sessions = [conversation(2, seed) for seed in range(4)]
    passes = []
    handle = student.get_decoder().layers[0].register_forward_hook(lambda *_: passes.append(1))
    actual = score_session(
        student, Mixture((student,)), [t for s in sessions for t in s], ScoreOptions(3), batch_tokens=5000
    )
    together = len(passes)
    alone = [
        x for s in sessions for x in score_session(student, Mixture((student,)), s, ScoreOptions(3), batch_tokens=5000)
    ]
    handle.remove()
    alike(actual, alone)
    assert together < len(passes) - together


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_on_a_gpu(family):
    model = build(*FAMILIES[family]).cuda()
    arguments = (model, Mixture((model,)), conversation(), ScoreOptions(top_k=5))
    actual = score_session(*arguments, batch_tokens=10_000)
    assert worst(actual, plainly(*arguments, batch_tokens=10_000)) < 1e-3
    assert check_tree_reading(model)
