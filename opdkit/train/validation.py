"""On-policy validation: replies that the student writes now, under the hinted teacher and under itself before training.

What a training breaks shows in no logged reply: the student no longer writes those. So replies are sampled to prompts
of sessions that are kept out of training. After a prompt whose logged reply was complained of, the reply is compared
with the teacher that reads the hint; after one of a session without a complaint, with the student before training. The
mean KL per reply of both is the score; less is better. It is the loss of on-policy distillation (GKD, Agarwal et al.
2024), and the KL to the base that forgetting grows with (Shenfeld et al. 2025).
"""

import contextlib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from transformers import PreTrainedModel

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.markup import split_calls
from opdkit.chat.template import Chat, ChatError
from opdkit.config.fields import JSON
from opdkit.config.teacher_models import parse_teachers
from opdkit.config.train import TrainConfig
from opdkit.console import say
from opdkit.errors import OpdkitError
from opdkit.model.load import context_length, load_model, load_skeleton, load_template, token_generator
from opdkit.model.loops import ends_in_loop
from opdkit.model.memory import TooLargeError
from opdkit.model.sampling import Request, Sample, reply_room, sample
from opdkit.model.scoring import LogprobQuery, PromptResponse
from opdkit.model.tree_reading import logprobs_in_trees
from opdkit.store.plans import manifest, recorded_hint_text, stage_dir
from opdkit.store.stable_hash import stable_hash
from opdkit.store.template_args import template_args_of
from opdkit.store.turn_ids import conversation_id
from opdkit.train import checkpoints
from opdkit.train.best_state import best
from opdkit.train.objective.losses import divergence
from opdkit.train.policy import Policy
from opdkit.train.room import has_room
from opdkit.train.sharding import release_weights
from opdkit.train.student import autocast
from opdkit.train.targets import Turn, prompt_messages, with_sessions

# Shares and counts, beside the limit of --validate.
MOST_SHARE = 0.1  # of the turns of a kind are prompts of the validation, at most
MOST_APART = 0.2  # of all turns, and of all hints, are in the sessions that it keeps out of training, at most
MOST_CALM = 0.25  # of the turns in sessions without a complaint, at most
FEWEST = 3  # with fewer prompts than this of a kind there is no validation
COST = 0.07  # share of the training's tokens that validation may read and write; prompts with hints do not count
CHECKS = 3  # the fewest measurements during a training; the one before it is extra, and costs half
TOP = 20  # the student's most likely tokens at each position; the KL is over them and the rest
CAP, CAP_PER_TOKEN = 10.0, 0.25  # nats, the larger caps the KL of a reply: else one outlier of few decides the mean
LOST = 0.4  # of that cap: a reply to a prompt that nobody complained of is lost where its KL is above
FEW = 5  # of so many prompts without a complaint, a single one that is lost counts as chance
HINTS = 4  # of other turns: a reply that one of them explains is the wanted change, and not lost
POOL = 8  # times the most prompts: so many turns without a hint are drawn, and the most different of them taken
ROOM = 1.2  # times the student's weights: a teacher of up to this size is loaded beside it
LONGEST = 512  # tokens of a sampled reply, at most


@dataclass(frozen=True, eq=False)
class ValidationPrompt:
    """Prompt of a logged turn, and the prompts after which other models read the same reply.

    With a hint that is the prompt with it, for the teacher. Without, the first is the prompt itself, for the student
    before training; the others have hints of other turns, for the teacher: the student was to learn these.
    """

    turn_id: str
    prompt_ids: list[int]
    readings: list[list[int]]
    hinted: bool


@dataclass(frozen=True)
class Validation:
    """Prompts that the student is validated on, and its measurements in a training so far.

    `open_validation` leaves `checked` and `rows` to the training: they need the cost of a measurement.
    """

    prompts: Sequence[ValidationPrompt]
    cost: int  # tokens that a measurement reads and writes, where replies are as long as the logged ones
    max_new_tokens: int
    chat: Chat
    config: TrainConfig
    accelerator: Accelerator
    base: Any  # the student before training
    teacher: Any  # the model that reads the hints; often the same
    folder: Path  # of the checkpoints, where the best state is kept
    sharded: Policy | None = None  # the student, where the processes share its weights
    checked: Collection[int] = ()  # steps after which to measure
    rows: list[JSON] = field(default_factory=list)  # of the table `validations`

    def validate(self, student: nn.Module, step: int) -> JSON:
        """Add the row of the student after `step` steps to those of the training. Return it."""
        row = self.measure(student, step)
        self.rows.append(row)
        return row

    def keep_best(self, student: nn.Module) -> None:
        """Save the weights of the student if its row, the last one, is that of the best state so far."""
        if best(self.rows) is self.rows[-1]:
            checkpoints.save_best(self.folder, student, self.rows[-1]["step"], main=self.accelerator.is_main_process)

    def restore_best(self, student: nn.Module) -> int:
        """Load the weights of the best state into the student. Return the number of its steps."""
        step: int = best(self.rows)["step"]
        self.accelerator.wait_for_everyone()  # until the file is written
        checkpoints.restore_best(self.folder, student, step)
        return step

    def measure(self, student: nn.Module, step: int) -> JSON:
        """Return the row of the table `validations` for the student after `step` steps (0: before training).

        The random stream of a prompt's reply is always the same: only the student differs. Before training, prompts
        without a hint say nothing: the student is at no distance from itself.
        """
        accelerator = self.accelerator
        hinted = [prompt for prompt in self.prompts if prompt.hinted]
        prompts = hinted if hinted and not step else self.prompts
        with _evaluating(student) as model, autocast(self.config):
            if self.sharded is None:
                own = prompts[accelerator.process_index :: accelerator.num_processes]
                results, tokens = self._answer_twice(model, own)
            else:  # all processes run the same forwards, so each measures all prompts
                results, tokens = self.sharded.run(partial(self._answer_twice, model, prompts))
                release_weights(self.sharded)
                if not accelerator.is_main_process:
                    results, tokens = [], 0
        row = _row(gather_object(results), sum(gather_object([tokens])), step)
        return row if step or len(hinted) == len(self.prompts) else row | {"kept_kl": 0.0, "forgotten": 0.0}

    def _answer_twice(self, student: Any, prompts: Sequence[ValidationPrompt]) -> tuple[list[JSON], int]:
        """Return the results and tokens of `_answer`. A reply can be lost by chance: where one is, a second decides."""
        results, tokens = self._answer(student, prompts, 0)
        lost = [p for p in prompts if not p.hinted and results.get(p, {}).get("lost")]
        again, more = self._answer(student, lost, 1)
        for prompt in lost:
            results[prompt]["lost"] = again.get(prompt, {}).get("lost", True)
        return list(results.values()), tokens + more

    def _answer(
        self, student: Any, prompts: Sequence[ValidationPrompt], draw: int
    ) -> tuple[dict[ValidationPrompt, JSON], int]:
        """Return the result of a reply to each prompt, and the tokens that both models read and wrote for them.

        `draw` numbers the replies to a prompt. A reply that does not fit into memory counts as one that is lost: else
        a student would seem the better, the less of it can be measured.
        """
        if not prompts:
            return {}, 0
        size = self.config.micro_batch_tokens
        streams = [[token_generator(self.config.seed, "validation", p.turn_id, draw)] for p in prompts]
        requests = [Request(p.prompt_ids, own) for p, own in zip(prompts, streams, strict=True)]
        samples = sample(student, requests, temperature=1.0, max_new_tokens=self.max_new_tokens,
                         stop_ids=self.chat.stop_ids, batch_tokens=size, top=TOP)  # fmt: skip
        answered = [(p, reply) for p, (reply,) in zip(prompts, samples, strict=True) if reply.ids]
        tokens = sum(len(p.prompt_ids) for p in prompts) + sum(len(reply.ids) for _, reply in answered)
        kls, read = self._compare([(self.teacher if p.hinted else self.base, p.readings[0], r) for p, r in answered])
        lost = [i for i, (_, reply) in enumerate(answered) if kls[i] > LOST * _cap(reply)]
        again = [(i, ids) for i in lost for ids in answered[i][0].readings[1:]]
        others, read_again = self._compare([(self.teacher, ids, answered[i][1]) for i, ids in again])
        for (i, _), kl in zip(again, others, strict=True):
            kls[i] = min(kls[i], kl)
        results = {prompt: {
            "turn_id": prompt.turn_id,
            "hinted": prompt.hinted,
            "kl": min(kl, _cap(reply)),
            "lost": kl > LOST * _cap(reply),
            "ended": reply.finish_reason == "stop",
            "looped": ends_in_loop(np.array(reply.ids, np.int32)),
            "broke_call": "<tool_call>" in split_calls(self.chat.text(reply.ids))[0],  # one that cannot be read
        } for (prompt, reply), kl in zip(answered, kls, strict=True)}  # fmt: skip
        unmeasured = {"kl": CAP, "lost": True, "ended": False, "looped": False, "broke_call": False}
        results |= {p: {"turn_id": p.turn_id, "hinted": p.hinted} | unmeasured for p in prompts if p not in results}
        return results, tokens + read + read_again

    def _compare(self, replies: Sequence[tuple[Any, list[int], Sample]]) -> tuple[list[float], int]:
        """Return KL(student || another model, after another prompt) of replies, and the tokens that were read.

        `replies`: (model, prompt, reply). The KL is over the student's TOP most likely tokens at each position and the
        rest (nats per reply). One that is not finite is infinite, and so is one that does not fit into memory.
        """
        kls, tokens = [math.inf] * len(replies), 0
        for model in {id(model): model for model, _, _ in replies}.values():
            own = [i for i, (other, _, _) in enumerate(replies) if other is model]
            queries = [LogprobQuery((PromptResponse(prompt, reply.ids),), torch.tensor(reply.top_ids))
                       for _, prompt, reply in (replies[i] for i in own)]  # fmt: skip
            answers, read = logprobs_in_trees(model, queries, self.config.micro_batch_tokens, "validation")
            for k, answer in answers.items():
                kl = float(divergence(torch.tensor(replies[own[k]][2].top), answer.at, 1.0).sum())
                kls[own[k]] = kl if math.isfinite(kl) else math.inf
            tokens += read
        return kls, tokens


def _cap(reply: Sample) -> float:
    """Return the most nats that a reply counts."""
    return max(CAP, CAP_PER_TOKEN * len(reply.ids))


def _row(results: Sequence[JSON], tokens: int, step: int) -> JSON:
    """Return the row of `validations` from the results of all replies, for which `tokens` were read."""

    def mean(name: str, hinted: bool | None = None) -> float | None:
        values = [float(r[name]) for r in results if hinted is None or r["hinted"] == hinted]
        return sum(values) / len(values) if values else None

    hint_kl, kept_kl = mean("kl", hinted=True), mean("kl", hinted=False)
    lost = [bool(r["lost"]) for r in results if not r["hinted"]]
    is_chance = sum(lost) == 1 and len(lost) >= FEW
    forgotten = 0.0 if is_chance else mean("lost", hinted=False)
    hint_kls = [{"turn_id": r["turn_id"], "kl": r["kl"]} for r in results if r["hinted"]]
    return {"step": step, "replies": len(results), "hint_kl": hint_kl, "hint_kls": hint_kls, "kept_kl": kept_kl,
            "forgotten": forgotten, "score": (hint_kl or 0.0) + (kept_kl or 0.0), "ended": mean("ended"),
            "looped": mean("looped"), "broke_call": mean("broke_call"), "tokens_read": tokens}  # fmt: skip


@contextlib.contextmanager
def _evaluating(student: Any) -> Iterator[Any]:
    """Yield the model that is in training, without the wrapper of its adapters, in evaluation mode."""
    student.eval()
    try:
        yield student.get_base_model() if hasattr(student, "get_base_model") else student
    finally:
        student.train()


# -- turns ----------------------------------------------------------------------------------------------------------


def choose_turns(turns: Sequence[Turn], most: int, epochs: int) -> list[Turn]:
    """Return the turns whose prompts the student is validated on: at most `most` with a hint, and as many without.

    They come from whole sessions, drawn by a hash of their ids, which train on nothing. All turns of these sessions are
    at most MOST_APART of all turns, and their hints of all hints: a session that is too large for that is passed over.
    Turns without a hint are varied, and from sessions without a complaint, where there are enough: elsewhere the hints
    are likely to ask for a change of replies that nobody complained of, too. A kind with too few turns is left out, and
    the list is empty where that is the kind with hints. It is short enough that CHECKS measurements cost at most COST
    of the training's tokens, but has at least FEWEST turns of each kind.
    """
    logged = [turn for turn in turns if turn.written is None and turn.sampled.any()]
    hinted = [turn for turn in logged if turn.teacher_logprobs is not None]
    plain = [turn for turn in logged if turn.teacher_logprobs is None and (turn.reward or 0) >= 0]
    blamed = {conversation_id(t.session_id) for t in turns if t.teacher_logprobs is not None or (t.reward or 0) < 0}
    calm = [turn for turn in plain if conversation_id(turn.session_id) not in blamed]
    sizes, hints = (Counter(conversation_id(turn.session_id) for turn in members) for members in (logged, hinted))
    hinted_limit, plain_limit = (min(most, int(MOST_SHARE * len(members))) for members in (hinted, plain))
    # Turns without a hint are drawn first. `room` is how many turns all sessions drawn by then may have.
    hinted_room = plain_room = MOST_APART * len(logged)
    if (calm_limit := int(MOST_CALM * len(calm))) >= FEWEST:
        plain, plain_limit = calm, min(plain_limit, calm_limit)
        needed = hinted_limit * sum(sizes[name] for name in hints) / max(1, len(hinted))  # by the turns with hints
        plain_room -= min(needed, plain_room / 2)
    if hinted and hinted_limit < FEWEST:
        return []
    kinds = [kind for kind in ((plain, plain_limit, plain_room), (hinted, hinted_limit, hinted_room))
             if kind[1] >= FEWEST]  # fmt: skip
    mean_costs = [sum(map(_cost, members)) / len(members) for members, _, _ in kinds]
    tokens, chosen = COST * tokens_to_train(turns, epochs) / (CHECKS + 0.5), list[Turn]()
    for n, (members, limit, room) in enumerate(kinds):  # as many of both kinds; the second takes what the first leaves
        paid = tokens / sum(mean_costs[n:])  # turns of each kind
        count, taken = min(limit, max(FEWEST, int(paid))), list[Turn]()
        drawn = sorted(members, key=lambda t: stable_hash(f"validation:{conversation_id(t.session_id)}"))
        for turn in drawn if members is hinted else vary(drawn, POOL * most):
            apart = {conversation_id(each.session_id) for each in (*chosen, *taken, turn)}
            leaves_hints = sum(hints[name] for name in apart) <= MOST_APART * len(hinted)
            if leaves_hints and sum(sizes[name] for name in apart) <= room:
                taken.append(turn)
            if len(taken) == count or (len(taken) >= FEWEST and sum(map(_cost, taken)) >= paid * mean_costs[n]):
                break
        if len(taken) >= FEWEST:
            tokens, chosen = tokens - sum(map(_cost, taken)), taken + chosen
        elif members is hinted:
            return []
    return chosen


def vary(turns: Sequence[Turn], pool: int) -> Iterator[Turn]:
    """Yield the turns in another order: of the first `pool`, the one whose reply is least like those before is next.

    Replies are alike by the share of their tokens that they have in common (Jaccard). A few turns then show more kinds
    of replies than a plain draw: any of them can be forgotten, not only the frequent ones.
    """
    left = [(turn, frozenset(turn.response_ids.tolist())) for turn in turns[:pool]]
    alike = [0.0] * len(left)
    while left:
        chosen = min(range(len(left)), key=alike.__getitem__)
        (turn, tokens), _ = left.pop(chosen), alike.pop(chosen)
        yield turn
        alike = [max(old, len(own & tokens) / len(own | tokens)) for old, (_, own) in zip(alike, left, strict=True)]
    yield from turns[pool:]


def _cost(turn: Turn) -> int:
    """Return the tokens of a reply to the prompt of a turn: it is read and written, and read by another model."""
    return 2 * len(turn)


def tokens_to_train(turns: Sequence[Turn], epochs: int) -> int:
    """Estimate the tokens that a training reads: turns of a session share almost all of their beginnings."""
    longest: dict[str, int] = {}
    for turn in turns:
        longest[turn.session_id] = max(longest.get(turn.session_id, 0), len(turn))
    return epochs * (sum(longest.values()) + sum(len(turn.response_ids) for turn in turns) // 2)


def open_validation(turns: Sequence[Turn], chat: Chat, config: TrainConfig, accelerator: Accelerator) -> Validation:
    """Render the prompts of `turns`, and load the student before training and the teacher beside the one in training.

    Prompts that leave no room for a reply, or that a template cannot render, are left out. Raises TooLargeError where
    memory does not hold a second model.
    """
    room, prompts = reply_room(max(len(turn.response_ids) for turn in turns), LONGEST), list[ValidationPrompt]()
    try:
        base = load_model(config.model, device=config.device, dtype=config.dtype, load_in_4bit=config.load_in_4bit)
    except TooLargeError:
        what = "the student before training, a second copy that validation needs,"
        raise TooLargeError(what, "try --lora-rank, --dtype bfloat16 or --validate 0") from None
    scored = manifest(config.run, "teacher")["plan"]["config"]
    teacher, teacher_chat = load_teacher(config, scored, base, chat)
    context = min(context_length(base), context_length(teacher))
    hint_text = recorded_hint_text(config.run)
    known = list(dict.fromkeys(turn.hint for turn in sorted(turns, key=lambda t: t.turn_id) if turn.hint))[:HINTS]
    for session, turn in with_sessions(config.run, turns):
        messages, hinted, readings = prompt_messages(session, turn), turn.hint is not None, list[list[int]]()
        with contextlib.suppress(ChatError):
            plain = chat.prompt_ids(messages, session["tools"])
            readings += [] if hinted else [plain]
            for text in [turn.hint] if turn.hint else known:
                with contextlib.suppress(ChatError):  # such as a prompt that another turn's hint has no place in
                    prompt = with_hint(messages, text, scored["hint_placement"], hint_text)
                    readings.append(teacher_chat.prompt_ids(prompt, session["tools"]))
            readings = [ids for ids in readings if len(ids) + room <= context]
            if readings and len(plain) + room <= context:
                prompts.append(ValidationPrompt(turn.turn_id, plain, readings, hinted))
    folder = stage_dir(config.run, "train") / "checkpoints"
    return Validation(prompts, sum(map(_cost, turns)), room, chat, config, accelerator, base, teacher, folder)


def load_teacher(config: TrainConfig, scored: JSON, base: PreTrainedModel, chat: Chat) -> tuple[PreTrainedModel, Chat]:
    """Return the model that read the hints in the teacher stage, and its template.

    `scored`: the options of the teacher stage. A training may have no room for a larger teacher, or for several, and
    some may no longer be there: then the student before training reads the hints in their place.
    """
    paths = set(parse_teachers(scored["teacher"]).values())
    if paths <= {config.model}:
        return base, chat
    found, teacher, fits = None, None, False
    with contextlib.suppress(OpdkitError, ValueError):  # ValueError: there are several
        (path,) = paths
        found = load_template(path, template_args_of(config.run, "teacher", config.template_arg), chat)
        skeleton = load_skeleton(path)
        size, most = (model.num_parameters() for model in (skeleton, base))
        vocabulary, needed = (model.get_input_embeddings().weight.shape[0] for model in (skeleton, base))
        fits = size <= ROOM * most and vocabulary >= needed and has_room(base, size, config)
    # All processes have the same teacher.
    if all(gather_object([fits])):
        with contextlib.suppress(OpdkitError):  # not enough memory
            teacher = load_model(path, device=config.device, dtype=config.dtype, load_in_4bit=config.load_in_4bit)
        if all(gather_object([teacher is not None])) and teacher and found:
            return teacher, found
    say(f"validation reads hints with the student before training, not with {', '.join(sorted(paths))}")
    return base, chat


def steps_to_check(steps: int, tokens: int, cost: int) -> set[int]:
    """Return the steps after which to validate, the last one among them: as many as `tokens` of training pay for.

    `cost` are the tokens of one measurement.
    """
    count = min(max(round(COST * tokens / max(cost, 1) - 0.5), CHECKS), 20, steps)
    return {round(steps * n / count) for n in range(1, count + 1)}
