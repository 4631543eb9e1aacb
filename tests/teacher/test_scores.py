"""Tests of opdkit/teacher/scores.py: supports, overlap and averaged teachers, against plain forwards per sequence."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from opdkit.model.scoring import Mixture, PromptResponse
from opdkit.teacher.scores import ReplyReadings, ScoreOptions, count_shared, score_session

SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "initializer_range": 0.3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}  # fmt: skip


def build(config_class, seed: int):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config_class(**SIZES), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def student():
    return build(Qwen3Config, 0)


@pytest.fixture(scope="module")
def other():
    return build(LlamaConfig, 1)


@torch.no_grad()
def full(model, sequence: PromptResponse) -> torch.Tensor:
    """Return the [R, V] log-softmax at every position of the response, from one plain forward pass."""
    logits = model(torch.tensor([sequence.prompt_ids + sequence.response_ids])).logits[0].float()
    return logits[len(sequence.prompt_ids) - 1 : -1].log_softmax(-1)


def after(prompt: list[int], sequence: PromptResponse) -> PromptResponse:
    return PromptResponse(prompt + sequence.prompt_ids, sequence.response_ids)


def before(sequence: PromptResponse, ids: list[int]) -> PromptResponse:
    """Return the sequence with `ids` right before the response, where they change more than at the beginning."""
    return PromptResponse(sequence.prompt_ids + ids, sequence.response_ids)


def plain(count: int = 4) -> list[PromptResponse]:
    draw = torch.Generator().manual_seed(2)

    def ids(low: int, high: int) -> list[int]:
        length = int(torch.randint(low, high, (), generator=draw))
        return torch.randint(0, 61, (length,), generator=draw).tolist()

    return [PromptResponse(ids(2, 12), ids(1, 9)) for _ in range(count)]


def targets(hints: int = 1) -> list[ReplyReadings]:
    """Return four targets with `hints` candidates each, except the third, which has none."""
    made = []
    for i, s in enumerate(plain()):
        hinted = tuple((after([7 + i] * (1 + 2 * h), s),) for h in range(hints))
        made.append(ReplyReadings(s, () if i == 2 else hinted, (s,)))
    return made


def close(actual, expected) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


# -- supports -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_tokens", [1, 1000])
@pytest.mark.parametrize("whose", ["student", "teacher"])
def test_supports_equal_a_plain_topk(student, other, whose, batch_tokens):
    """A support is the top K, most likely first, with both models' log-probs, before the cast to half precision."""
    for model in (student, other):
        scored = score_session(
            student, Mixture((model,)), targets(), ScoreOptions(top_k=5, top_k_of=whose), batch_tokens=batch_tokens
        )
        for actual, target in zip(scored, targets(), strict=True):
            ours = full(student, target.student)
            own = torch.tensor(target.student.response_ids)[:, None]
            close(actual.old, ours.gather(1, own)[:, 0])
            if not target.hinted:
                assert (actual.teacher, actual.chosen) == (None, None)
                if whose == "teacher":
                    assert actual.support is None
                    continue
                assert actual.support.teacher is None
                theirs = ours
            else:
                theirs = full(model, target.hinted[0][0])
                close(actual.teacher, theirs.gather(1, own)[:, 0])
                close(actual.support.teacher, theirs.gather(1, actual.support.ids))
            close(actual.support.old, ours.gather(1, actual.support.ids))
            leader = ours if whose == "student" else theirs
            close(leader.gather(1, actual.support.ids), leader.topk(5).values)


def test_a_support_of_the_whole_vocabulary_is_a_distribution(student):
    """Log-probs are over the full vocabulary, not renormalised over the support: 61 ids have mass 1, fewer less."""
    score_options = ScoreOptions(top_k=61)
    [actual, *_] = score_session(student, Mixture((student,)), targets(), score_options, batch_tokens=100)
    for side in (actual.support.old, actual.support.teacher):
        torch.testing.assert_close(side.exp().sum(1), torch.ones(len(side)), atol=1e-5, rtol=0)
        assert (side[:, :4].exp().sum(1) < 1).all()


@pytest.mark.parametrize("whose", ["student", "teacher"])
@pytest.mark.parametrize("overlap", [0, 6])
def test_without_a_difference_in_the_input_there_is_none_in_the_scores(student, whose, overlap):
    """A teacher with the student's model and prompt has exactly the student's log-probs, for any size of batch."""
    base = plain()
    same = [ReplyReadings(s, ((PromptResponse(list(s.prompt_ids), list(s.response_ids)),),)) for s in base]
    differing = [ReplyReadings(s, ((after([9] * 11, s),),)) for s in base]
    for batch_tokens in (1, 40, 10_000):
        score_options = ScoreOptions(top_k=6, top_k_of=whose, overlap=overlap)
        scored = score_session(student, Mixture((student,)), same + differing, score_options, batch_tokens=batch_tokens)
        for actual in scored[:4]:
            assert torch.equal(actual.old, actual.teacher)
            assert torch.equal(actual.support.old, actual.support.teacher)
            assert actual.overlap == (1.0 if overlap else None)
        assert not any(torch.equal(actual.old, actual.teacher) for actual in scored[4:])


# -- overlap --------------------------------------------------------------------------------------------------------


def test_shared_by_hand():
    """{1, 2, 3} and {3, 4, 1} have 2 in common, {5, 6, 7} and {8, 9, 0} none, {1, 2, 3} and {3, 2, 1} all 3."""
    a = torch.tensor([[1, 2, 3], [5, 6, 7], [1, 2, 3]])
    b = torch.tensor([[3, 4, 1], [8, 9, 0], [3, 2, 1]])
    assert count_shared(a, b).tolist() == [2, 0, 3]


@pytest.mark.parametrize(("support", "whose"), [(0, "student"), (3, "student"), (3, "teacher")])
def test_overlap_takes_the_hint_with_the_largest_intersection(student, other, support, whose):
    """The choice is that of sets, position by position, and all other scores are those of the chosen hint."""
    top = support or 4
    score_options = ScoreOptions(support, whose, overlap=top)
    many = [
        ReplyReadings(s, tuple((before(s, [9 * h + i]),) for h in range(3 * (i != 2)))) for i, s in enumerate(plain(10))
    ]
    scored = score_session(student, Mixture((other,)), many, score_options, batch_tokens=50)
    chosen = []
    for actual, target in zip(scored, many, strict=True):
        if not target.hinted:
            assert (actual.chosen, actual.overlap, actual.teacher) == (None, None, None)
            continue
        ours = full(student, target.student).topk(top).indices.tolist()
        sums = []
        for (reading,) in target.hinted:
            theirs = full(other, reading).topk(top).indices.tolist()
            sums.append(sum(len(set(a) & set(b)) for a, b in zip(ours, theirs, strict=True)))
        chosen.append(actual.chosen)
        assert actual.chosen == sums.index(max(sums))
        assert actual.overlap == pytest.approx(max(sums) / (top * len(ours)))
        theirs = full(other, target.hinted[actual.chosen][0])
        close(actual.teacher, theirs.gather(1, torch.tensor(target.student.response_ids)[:, None])[:, 0])
        if support:
            close(actual.support.teacher, theirs.gather(1, actual.support.ids))
            close(actual.support.old, full(student, target.student).gather(1, actual.support.ids))
    assert len(set(chosen)) > 1  # otherwise the test would show nothing


def test_of_equal_overlaps_the_shortest_hint_wins(student):
    s = plain()[0]
    longer = after([5] * 6, s)
    [actual] = score_session(
        student,
        Mixture((student,)),
        [ReplyReadings(s, ((longer,), (longer,), (longer,)))],
        ScoreOptions(overlap=4),
        batch_tokens=50,
    )
    assert actual.chosen == 0


# -- several teachers, and teachers without the hint ----------------------------------------------------------------


@pytest.mark.parametrize("whose", ["student", "teacher"])
def test_averaged_teachers_by_hand(student, other, whose):
    """Reply and support have log(0.2 p + 0.8 q), here in float64, with each model after its own prompt."""
    pairs = [ReplyReadings(s, ((after([3], s), after([8, 9], s)),), (s, after([1], s))) for s in plain()]
    mixture = Mixture((student, other), (0.2, 0.8))
    scored = score_session(student, mixture, pairs, ScoreOptions(top_k=4, top_k_of=whose), batch_tokens=40)
    for actual, target in zip(scored, pairs, strict=True):
        own = torch.tensor(target.student.response_ids)[:, None]

        def mean(readings) -> torch.Tensor:
            p, q = (full(m, r).double().exp() for m, r in zip((student, other), readings, strict=True))
            return (0.2 * p + 0.8 * q).log().float()

        theirs = mean(target.hinted[0])
        close(actual.teacher, theirs.gather(1, own)[:, 0])
        close(actual.unhinted, mean(target.unhinted).gather(1, own)[:, 0])
        close(actual.support.teacher, theirs.gather(1, actual.support.ids))
        leader = theirs if whose == "teacher" else full(student, target.student)
        close(leader.gather(1, actual.support.ids), leader.topk(4).values)


def test_the_same_weights_without_the_hint_are_the_student_for_nothing(student, other):
    """The log-probs are bit-identical, and no additional position goes through the output layer."""
    rows: list[int] = []
    handle = student.lm_head.register_forward_hook(lambda module, args, output: rows.append(output.shape[1]))
    with_it = score_session(student, Mixture((student,)), targets(), ScoreOptions(top_k=3), batch_tokens=10)
    read = sum(rows)
    bare = [ReplyReadings(t.student, t.hinted) for t in targets()]
    without = score_session(student, Mixture((student,)), bare, ScoreOptions(top_k=3), batch_tokens=10)
    handle.remove()
    assert sum(rows) == 2 * read
    assert all(torch.equal(actual.unhinted, actual.old) for actual in with_it)
    assert [actual.unhinted for actual in without] == [None] * 4
    for actual, target in zip(
        score_session(student, Mixture((other,)), targets(), ScoreOptions(), batch_tokens=10), targets(), strict=True
    ):
        own = torch.tensor(target.student.response_ids)[:, None]
        close(actual.unhinted, full(other, target.student).gather(1, own)[:, 0])
        assert not torch.equal(actual.unhinted, actual.old)


def test_no_targets_are_no_scores(student):
    assert score_session(student, Mixture((student,)), [], ScoreOptions(top_k=3, overlap=3), batch_tokens=10) == []
