"""Parts of a world: topics with items, styles of answering, the words in which users ask for a style, and the users.

A topic that the logs correct has several styles: the assistant answers by its habit, the users want another style. In
the other topics the first style is right.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from opdkit.chat.markup import visible
from opdkit.chat.openai_messages import Message
from opdkit.config.fields import JSON
from opdkit.store.stable_hash import stable_hash

UNSEEN = 4  # one wording of 4 occurs only in logs
# Sentences that ask for something that a noun phrase names.
FRAMES = (
    "I wanted {}.", "I asked for {}.", "No, I wanted {}.", "Use {}, please.", "Please use {}.", "I'd prefer {}.",
    "I was hoping for {}.", "I was expecting {}.", "I meant {}.", "No, I meant {}.", "Just {}, please.",
    "Switch to {}.", "Stick to {}, please.", "Give it to me as {}.", "Can you rewrite it as {}?",
    "Could you do it as {}?", "That is not what I asked for. I wanted {}.", "I said {}.", "From now on, {}, please.",
    "Next time {}, please.", "I would prefer {}, thanks.", "Please give it as {}.", "Not quite. I'd rather have {}.",
    "Sorry, I really wanted {}.", "Hm, I asked for {}.", "Try {} instead.", "Can you use {} instead?",
    "Actually, I wanted {}.",
)  # fmt: skip


@dataclass(frozen=True)
class Style:
    """Style of answering: what a reply looks like, and the noun phrases by which users name it."""

    name: str
    reply: Callable[[str], str]  # item -> reply
    phrases: tuple[str, ...] = ()
    frames: tuple[str, ...] = FRAMES

    def wordings(self) -> list[str]:
        """Return every way in which a user asks for the style."""
        return [frame.format(phrase) for frame in self.frames for phrase in self.phrases]


@dataclass(frozen=True)
class Tool:
    """Tool that a topic's replies call. `run(item)`: result of a right call; `other`: result of a wrong call."""

    name: str
    run: Callable[[str], str]
    answer: "Topic"  # what the assistant then tells the user
    other: str = ""


@dataclass(frozen=True)
class Topic:
    """Requests of one kind: a wording with an item in it."""

    name: str
    items: tuple[str, ...]
    requests: tuple[str, ...]
    styles: tuple[Style, ...]
    habit: tuple[float, ...]  # how often the model answers in each style before training
    check: Callable[[str, str], JSON]  # item, style -> the check that only a right reply in this style passes
    about: str = ""  # what the users want, in words
    tool: Tool | None = None
    corrected_by_tool: bool = False  # a wrong call fails, and the error says what was wrong
    known: bool = False  # pretraining has every item: a model cannot know a name or a fact that it never saw
    held_out_share: float = 0.25  # of the items
    held_out: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        shuffled = sorted(self.items, key=lambda item: stable_hash("held out", self.name, item))
        object.__setattr__(self, "held_out", frozenset(shuffled[: int(len(self.items) * self.held_out_share)]))

    def style(self, name: str) -> Style:
        return next(style for style in self.styles if style.name == name)

    def asked_items(self, *, held_out: bool) -> list[str]:
        """Return the items that are held out, or those that are not."""
        return [item for item in self.items if (item in self.held_out) == held_out]


@dataclass(frozen=True)
class Group:
    """Users with the same wishes: topic -> style. `systems` are their system prompts.

    `topics`: what they ask about, besides small talk; None: every topic of the world.
    """

    wishes: Mapping[str, str]
    systems: tuple[str | None, ...] = (None,)
    topics: tuple[Topic, ...] | None = None


@dataclass(frozen=True)
class World:
    """World of the benchmark. `size` is its default size; any world can be built at any size."""

    name: str
    about: str
    size: str  # small, medium or large
    max_new_tokens: int  # enough for its replies
    topics: tuple[Topic, ...]
    groups: tuple[Group, ...]
    searched: bool = True  # every objective is trained in it, at every rate
    aside: bool = False  # nobody looked at it while anything was chosen
    tools: tuple[Message, ...] = ()
    turns: tuple[int, ...] = (1, 2, 2, 3, 4)  # numbers of replies per session, drawn at random
    sessions: int = 200
    samples: int = 4  # replies per held-out prompt, for a standard error of 0.03
    pretraining: float = 1.0  # steps, as a multiple of the size's
    writer: "World | None" = None  # world whose model wrote the log, if not the student
    small_talk: tuple[Topic, ...] = ()  # topics that nobody corrects; empty: those of `small_talk.py`

    @property
    def systems(self) -> list[str | None]:
        """Return the system prompts of all users."""
        return [system for group in self.groups for system in group.systems]


def styles_of(
    texts: Mapping[str, tuple[str, tuple[str, ...]]], slots: Callable[[str], Mapping[str, str]]
) -> tuple[Style, ...]:
    """Return a style for each text with slots and its phrases; `slots` returns an item's values for the slots."""
    return tuple(
        Style(name, lambda item, text=text: text.format(**slots(item)), phrases)  # type: ignore[misc]
        for name, (text, phrases) in texts.items()
    )


def habit_of(styles: Sequence[Style], habit: str, wanted: str) -> tuple[float, ...]:
    """Return the share of each style in the replies before training: most by habit, some as wanted, few others."""
    return tuple({habit: 0.73, wanted: 0.17}.get(style.name, 0.10 / (len(styles) - 2)) for style in styles)


def exactly(styles: Sequence[Style]) -> Callable[[str, str], JSON]:
    """Return the check of a topic in which only the exact reply of a style passes."""
    replies = {style.name: style.reply for style in styles}
    return lambda item, style: {"match": [rf"\A{re.escape(replies[style](item))}\Z"]}


@cache
def passes(topic: Topic, item: str, style: str, reply: str) -> bool:
    """Return whether a reply is right and in this style."""
    seen, check = visible(reply, thinking=False), topic.check(item, style)
    found, unwanted = ([re.search(p, seen) for p in check.get(name, [])] for name in ("match", "absent"))
    return all(found) and not any(unwanted)


def draw_style(topic: Topic, rng: random.Random) -> Style:
    """Draw a style as the model does before training."""
    return rng.choices(topic.styles, topic.habit)[0]
