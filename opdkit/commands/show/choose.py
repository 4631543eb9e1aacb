"""Choice of the turns to show: filters first, then the worst, the best, a random draw, or the first of the run."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import regex

from opdkit.commands.report.tallies import Largest
from opdkit.commands.turns.line import TurnLine, join_messages, make_line, split_turn
from opdkit.commands.turns.of_run import RunTurn, read_turns
from opdkit.config.show import ShowConfig
from opdkit.errors import ConfigError
from opdkit.store.stable_hash import stable_hash

_PATIENCE = 2.0  # seconds per text that --grep searches


@dataclass
class Chosen:
    """Turns to show, and counts of the turns that they were chosen from."""

    lines: list[TurnLine] = field(default_factory=list)
    passed: int = 0  # turns that pass the filters
    seen: int = 0  # all turns
    statuses: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # of all turns, by column


def choose_turns(config: ShowConfig) -> Chosen:
    """Choose the turns to show. The verdict of a line has the decision in force applied.

    `--worst` and `--best` rank by the sum of the advantages over the logged reply's sampled tokens, and leave out turns
    without the teacher's log-probs. Raises ConfigError for a bad pattern.
    """
    try:
        pattern = None if config.grep is None else regex.compile(config.grep)
    except regex.error as error:
        raise ConfigError(f"--grep {config.grep!r} is not a regular expression: {error}") from error
    chosen = Chosen()
    largest = Largest[TurnLine](config.worst or config.best or config.random or config.max_turns)
    for turn in read_turns(config.run):
        line = make_line(chosen.seen, turn, turn.final_verdict)
        chosen.seen += 1
        statuses = {"reward_status": line.reward_status, "hint_status": line.hint_status}
        for column, status in statuses.items():
            if status is not None:
                chosen.statuses[column][status] += 1
        if config.status is not None and config.status not in statuses.values():
            continue
        if pattern is not None and not _matches(pattern, turn):
            continue
        chosen.passed += 1
        rank = _rank(config, line)
        if rank is not None:
            largest.add(line, rank)
    chosen.lines = largest.items()
    return chosen


def _rank(config: ShowConfig, line: TurnLine) -> float | None:
    """Return the rank of a turn; None for a turn without one. The turns with the largest ranks are shown."""
    if config.worst is not None:
        return None if line.advantage is None else -line.advantage
    if config.best is not None:
        return line.advantage
    if config.random is not None:  # a hash of (seed, turn) alone, so that other turns do not change the rank
        return -stable_hash(f"show:{config.seed}:{line.turn_id}")
    return -line.number


def _matches(pattern: regex.Pattern[str], turn: RunTurn) -> bool:
    """Return True if the pattern is found in the request, the reply or a hint of a turn."""
    request, reply, _ = split_turn(turn)
    verdict = turn.final_verdict or {"hints": [], "hint": None}
    texts = [join_messages(request), join_messages(reply).strip(), *verdict["hints"], verdict["hint"] or ""]
    try:
        return any(pattern.search(text, timeout=_PATIENCE) for text in texts)
    except TimeoutError:
        raise ConfigError(f"--grep {pattern.pattern!r} takes more than {_PATIENCE:g} seconds on turn {turn.turn_id}: "
                          "write it without a repetition inside a repetition") from None  # fmt: skip
