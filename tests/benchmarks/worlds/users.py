"""Conversations of a world: users ask, react, correct, and sometimes talk about something else; tools answer calls."""

import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cache

from opdkit.chat.markup import split_reply
from opdkit.chat.messages import message
from opdkit.chat.openai_messages import Message
from opdkit.judge.reply_in_context import ReplyInContext
from opdkit.judge.rules import judge

from .small_talk import COMPLAINTS, SHRUGS, SMALL_TALK, THANKS
from .world import UNSEEN, Style, Topic, draw_style, passes, stable_hash

# Probabilities of reactions to a reply that is not as the user wants; otherwise the user moves on.
CORRECTS, COMPLAINS, SHRUGS_AT = 0.82, 0.06, 0.06
PRAISES, THANKS_AT = 0.5, 0.25  # how often users praise what they wanted, and give thanks for what is merely right
SMALL_TALK_RATE, TAUGHT_RATE = 0.3, 0.45  # share of small talk in the requests of logs and of pretraining


@dataclass(frozen=True)
class Label:
    """Truth about a turn: what a perfect judge reads in the next state, and whether the reply was right."""

    reward: int
    wish: str | None = None  # the style that the next state asks for
    irrelevant: bool = False  # the reaction has nothing to do with the reply
    right: bool = True


@dataclass
class Ask:
    """Request for the assistant's next reply: the conversation so far, and what the world knows about it."""

    messages: list[Message]
    topic: Topic
    item: str
    wanted: Style | None = None  # the user or tool has just asked for this style


@dataclass(frozen=True)
class Talk:
    """Settings of one conversation. `topics`: those to ask about. `wishes`: topic -> style that the user wants."""

    topics: tuple[Topic, ...]
    wishes: Mapping[str, str]
    turns: int
    irrelevant: float = 0.0
    taught: bool = False  # use only items and wordings of pretraining
    system: str | None = None
    small_talk: tuple[Topic, ...] = SMALL_TALK


@dataclass
class Next:
    """Continuation after a reply: its label, a tool's result, the user's words, and what the next reply is about.

    `topic` None: the user makes another request.
    """

    label: Label
    result: str | None = None
    said: str = ""
    topic: Topic | None = None
    item: str = ""
    wanted: Style | None = None


Labels = dict[int, Label]  # message index of the reply -> truth
Conversation = Generator[Ask, str, Labels]


@cache
def hint_of(wording: str, role: str = "user") -> str | None:
    """Return the hint that the rules judge writes for what a user, or a tool, says about a reply."""
    return judge(ReplyInContext([message("user", ""), message("assistant", "")], 1, [message(role, wording)])).hint


@cache
def taught_wordings(topic: Topic, style: Style) -> list[str]:
    """Return the wordings for a style that pretraining uses; the rules judge makes a hint of each."""
    role = "tool" if topic.corrected_by_tool else "user"
    return [w for w in style.wordings() if stable_hash("unseen", w) % UNSEEN and hint_of(w, role)]


def converse(talk: Talk, rng: random.Random) -> Conversation:
    """Ask about topics until the turns are used up. Each `send` takes a reply. Return the labels."""
    messages = [message("system", talk.system)] if talk.system else []
    labels: Labels = {}
    ask = _request(messages, "", talk, rng)
    for turn in range(talk.turns):
        reply = yield ask
        messages.append(reply_message(reply, len(messages)))
        index, last = len(messages) - 1, turn == talk.turns - 1
        follow = _follow(ask, reply, talk, rng)
        if follow.result is not None:
            messages.append(message("tool", follow.result, tool_call_id=messages[index]["tool_calls"][0]["id"]))
        if follow.topic:
            if follow.said:
                messages.append(message("user", follow.said))
            ask = Ask(messages, follow.topic, follow.item, follow.wanted)
        elif not last:
            ask = _request(messages, follow.said, talk, rng)
        elif follow.said:
            messages.append(message("user", follow.said))
        if len(messages) > index + 1:  # without a next state there is nothing to judge
            labels[index] = follow.label
    return labels


def reply_message(reply: str, number: int) -> Message:
    """Return a reply as a log stores it: thinking, calls and text apart."""
    reasoning, text, calls = split_reply(reply)
    named = [call | {"id": f"call_{number}_{k}"} for k, call in enumerate(calls)]
    return message("assistant", text or (None if named else ""), reasoning=reasoning, tool_calls=named)


def _request(messages: list[Message], said: str, talk: Talk, rng: random.Random) -> Ask:
    small = rng.random() < (TAUGHT_RATE if talk.taught else SMALL_TALK_RATE)
    topic = rng.choice(talk.small_talk if small else talk.topics)
    item = _item(topic, talk, rng)
    messages.append(message("user", f"{said} {rng.choice(topic.requests).format(item)}".strip()))
    return Ask(messages, topic, item)


def _item(topic: Topic, talk: Talk, rng: random.Random) -> str:
    """Return an item that may be asked about."""
    return rng.choice(topic.items if talk.taught and topic.known else topic.asked_items(held_out=False))


def _follow(ask: Ask, reply: str, talk: Talk, rng: random.Random) -> Next:
    """Return what follows a reply: first from the tool that it calls, then from the user."""
    wish, tool = talk.wishes.get(ask.topic.name), ask.topic.tool
    right = passes(ask.topic, ask.item, wish or ask.topic.styles[0].name, reply)
    if not tool or not ask.messages[-1]["tool_calls"]:
        return _react(ask, right, talk, rng)
    if right:
        return Next(Label(1), tool.run(ask.item), topic=tool.answer, item=ask.item)
    if not ask.topic.corrected_by_tool:  # the call does something wrong, and the user sees that
        follow = _react(ask, right, talk, rng)
        return Next(follow.label, tool.other, follow.said, follow.topic, follow.item, follow.wanted)
    wanted = ask.topic.style(wish or ask.topic.styles[0].name)
    error = rng.choice(taught_wordings(ask.topic, wanted) if talk.taught else wanted.wordings())
    return Next(Label(-1, wanted.name, right=False), error, topic=ask.topic, item=ask.item, wanted=wanted)


def _react(ask: Ask, right: bool, talk: Talk, rng: random.Random) -> Next:
    """Return what the user says to a reply."""
    topic, wish, draw = ask.topic, talk.wishes.get(ask.topic.name), rng.random()
    if right:
        said = rng.choice(THANKS) if draw < (PRAISES if wish else THANKS_AT) else ""
        follow = Next(Label(int(bool(said))), said=said)
    elif wish and draw < CORRECTS:
        wanted = topic.style(wish)
        said = rng.choice(taught_wordings(topic, wanted) if talk.taught else wanted.wordings())
        follow = Next(Label(-1, wish, right=False), None, said, topic, ask.item, wanted)
    elif draw < CORRECTS + COMPLAINS:
        follow = Next(Label(-1, right=False), None, rng.choice(COMPLAINTS), topic, ask.item)
    else:
        said = rng.choice(SHRUGS) if draw < CORRECTS + COMPLAINS + SHRUGS_AT else ""
        follow = Next(Label(0, right=False), said=said)
    if follow.said and rng.random() < talk.irrelevant:
        topic = rng.choice(talk.small_talk)
        item = _item(topic, talk, rng)
        words = rng.choice(topic.requests).format(item)
        return Next(Label(0, irrelevant=True, right=right), None, words, topic, item)
    return follow


def answer_by_habit(ask: Ask, rng: random.Random) -> str:
    """Return the reply that the model is taught: in the style just asked for, else in a style drawn by habit."""
    return (ask.wanted or draw_style(ask.topic, rng)).reply(ask.item)
