"""Which turns are shown: filters first, then the worst, the best, a draw, or the first of the run."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice

import regex

from opdkit.commands.report.joined import JoinedTurn, joined_turns
from opdkit.config.fields import JSON, did_you_mean
from opdkit.config.show import ShowConfig
from opdkit.errors import ConfigError
from opdkit.judge.votes import OUTCOME
from opdkit.store.reviews import REVIEWED

# Those of the tables; a run may hold more.
STATUSES = {"ok", "tie", "no_quorum", "failed", OUTCOME, "empty", "not_judged", "none", "outvoted", "too_short",
            "too_long", "empty_judgement", "leak", REVIEWED}  # fmt: skip
_CHARS = 200  # of a text in a list
_PATIENCE = 2.0  # seconds for one turn


@dataclass(frozen=True)
class ListedTurn:
    """One line of the list. The verdict is as the decision in force leaves it."""

    turn_id: str
    state: str  # trained, target, judged, trainable or not trainable
    skip_reason: str | None
    reward: int | None
    reward_status: str | None
    agreement: float | None
    hint_status: str | None
    reviewed: bool
    tokens: int | None  # sampled ones of the logged reply's target
    advantage: float | None  # their sum (nats)
    request: str
    reply: str
    hint: str | None

    def to_json(self) -> JSON:
        return asdict(self)


@dataclass
class Chosen:
    """The turns that are shown, and what there was to choose from."""

    turns: list[ListedTurn] = field(default_factory=list)
    total: int = 0  # turns that pass the filters
    seen: int = 0  # all turns
    reward_statuses: Counter[str] = field(default_factory=Counter)  # of all turns
    hint_statuses: Counter[str] = field(default_factory=Counter)


def picks(config: ShowConfig) -> bool:
    """Whether a number of turns is picked out of all that fit, instead of the first of them."""
    return any(number is not None for number in (config.worst, config.best, config.random))


def shows_whole(config: ShowConfig) -> bool:
    """Whoever asks for the worst turn wants to see it; a line each is for many.

    Raises ConfigError for log-probs of lines.
    """
    whole = config.turn_id is not None or config.whole or (picks(config) and not config.one_line)
    if config.logprobs and not whole:
        remedy = "leave out --one-line" if config.one_line else "add --whole, or name a turn"
        raise ConfigError(f"--logprobs is for turns shown whole, and these would be rows: {remedy}")
    return whole


def chosen_turns(config: ShowConfig) -> Chosen:
    """The chosen turns.

    `--worst` and `--best` go by the sum of the advantages over the logged reply's sampled tokens: the turns without a
    teacher's log-probs have none. Raises ConfigError for a status that there is not, and for a bad pattern.
    """
    found = Chosen()

    def filtered() -> Iterator[ListedTurn]:
        matches = None if config.grep is None else _Grep(config.grep)
        for joined in joined_turns(config.run):
            turn = _listed(joined)
            found.seen += 1
            found.reward_statuses.update([turn.reward_status] if turn.reward_status is not None else [])
            found.hint_statuses.update([turn.hint_status] if turn.hint_status is not None else [])
            if config.status is not None and config.status not in (turn.reward_status, turn.hint_status):
                continue
            if matches is None or matches(joined):
                found.total += 1
                yield turn

    found.turns = _chosen(config, filtered())
    known = sorted({*found.reward_statuses, *found.hint_statuses} | STATUSES)
    if config.status is not None and config.status not in known:
        raise ConfigError(f"--status is {config.status!r}; {did_you_mean(config.status, known)}")
    return found


def _chosen(config: ShowConfig, turns: Iterator[ListedTurn]) -> list[ListedTurn]:
    if config.worst is not None:
        return heapq.nsmallest(config.worst, _with_advantage(turns), key=_advantage)
    if config.best is not None:
        return heapq.nlargest(config.best, _with_advantage(turns), key=_advantage)
    if config.random is not None:
        return heapq.nsmallest(config.random, turns, key=lambda turn: _draw(config.seed, turn.turn_id))
    first = list(islice(turns, config.max_turns))
    for _ in turns:  # to be counted, and to know which statuses there are
        pass
    return first


def _with_advantage(turns: Iterator[ListedTurn]) -> Iterator[ListedTurn]:
    return (turn for turn in turns if turn.advantage is not None)


def _advantage(turn: ListedTurn) -> float:
    assert turn.advantage is not None
    return turn.advantage


def _draw(seed: int, turn_id: str) -> bytes:
    """A number that depends on (seed, turn) alone: the draw is the same whatever other turns there are."""
    return hashlib.sha256(f"show:{seed}:{turn_id}".encode()).digest()


class _Grep:
    """Whether a turn's request, reply or hints match a pattern."""

    def __init__(self, pattern: str) -> None:
        try:
            self.pattern = regex.compile(pattern)
        except regex.error as error:
            raise ConfigError(f"--grep {pattern!r} is no regular expression: {error}") from error

    def __call__(self, joined: JoinedTurn) -> bool:
        decided = joined.decided or {"hints": [], "hint": None}
        texts = [*_said(joined), *decided["hints"], *([decided["hint"]] if decided["hint"] else [])]
        try:
            return any(self.pattern.search(text, timeout=_PATIENCE) for text in texts)
        except TimeoutError:
            raise ConfigError(
                f"--grep {self.pattern.pattern!r} takes more than {_PATIENCE:g} seconds on turn {joined.turn_id}: "
                "write it without a repetition inside a repetition"
            ) from None


def _said(joined: JoinedTurn) -> tuple[str, str]:
    """The request, which is the last user message of the prompt, and the reply; its calls belong to it."""
    messages, index = joined.session["messages"], joined.turn["message_index"]
    request = next((m["content"] or "" for m in reversed(messages[:index]) if m["role"] == "user"), "")
    calls = [f"{call['name']}({call['arguments']})" for call in messages[index]["tool_calls"]]
    return request, "\n".join([messages[index]["content"] or "", *calls]).strip()


def _listed(joined: JoinedTurn) -> ListedTurn:
    decided = joined.decided or {}
    target = next((target for target in joined.targets if target.written is None), None)
    advantages = None if target is None else target.advantages
    request, reply = _said(joined)
    hint = decided.get("hint")
    return ListedTurn(
        turn_id=joined.turn_id,
        state=joined.state,
        skip_reason=joined.turn["skip_reason"],
        reward=decided.get("reward"),
        reward_status=decided.get("reward_status"),
        agreement=decided.get("reward_agreement"),
        hint_status=decided.get("hint_status"),
        reviewed=joined.review is not None,
        tokens=None if target is None else target.sampled,
        advantage=None if advantages is None else float(advantages.sum()),
        request=_short(request),
        reply=_short(reply),
        hint=None if hint is None else _short(hint),
    )


def _short(text: str) -> str:
    text = " ".join(text[: 4 * _CHARS].split())
    return text if len(text) <= _CHARS else text[: _CHARS - 1] + "…"
