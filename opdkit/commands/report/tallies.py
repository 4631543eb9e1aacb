"""Votes, hints, advantages and shares of the turns of a run. Each tally sees every turn once."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow.compute as pc

from opdkit.commands.turns.hint_groups import HintGroups, Topics
from opdkit.commands.turns.line import signed
from opdkit.commands.turns.of_run import TRAINED, RunTurn
from opdkit.commands.turns.token_text import load_texts
from opdkit.commands.turns.view import STEPS
from opdkit.config.fields import JSON
from opdkit.store.counters import HINTS_CHECKED, Summary
from opdkit.store.reading import is_written, read_arrow, read_part
from opdkit.store.turn_ids import logged_session_id

T = TypeVar("T")
_EXAMPLES = 20  # dropped hints that are shown


@dataclass
class Largest(Generic[T]):
    """Collection that keeps the `most` added items with the largest keys, in O(most) memory."""

    most: int
    _added: int = 0
    _heap: list[tuple[Any, int, T]] = field(default_factory=list)

    def add(self, item: T, key: Any) -> None:
        """Add an item. Among items with equal keys, the first added counts as the largest."""
        self._added += 1
        heapq.heappush(self._heap, (key, -self._added, item))
        if len(self._heap) > self.most:
            heapq.heappop(self._heap)

    def items(self) -> list[T]:
        """Return the items, the largest first."""
        return [item for _, _, item in sorted(self._heap, reverse=True)]


class TurnCounts(Counter[str]):
    """Counts of turns: all, trainable, reviewed, changed, waiting for a verdict, with a reward, with a hint."""

    def __init__(self) -> None:
        super().__init__()
        # Reason -> turns that are not trainable. Footers also count turns that --good or --bad judged since.
        self.skipped = Counter[str]()

    def add(self, turn: RunTurn) -> None:
        """Count a turn; reward and hint are those of the verdict with the decision in force."""
        is_trainable, final = turn.skip_reason is None, turn.final_verdict
        self.skipped.update([turn.skip_reason] if turn.skip_reason else [])
        self.update(turns=1, trainable=int(is_trainable), reviewed=int(turn.review is not None),
                    waiting=int(is_trainable and turn.verdict is None))  # fmt: skip
        if turn.verdict is not None and final is not None:
            self.update(reward=int(final["reward"] is not None), hint=int(final["hint"] is not None),
                        changed=int(any(final[name] != turn.verdict[name] for name in ("reward", "hint"))))  # fmt: skip


class Verdicts:
    """Counts of votes, of rewards, and of hints: their lengths, the commonest groups, and why turns have no hint."""

    WIDTH, LAST = 20, 31  # characters per bar of the lengths; the last bar holds all longer hints

    def __init__(self, topics: Topics | None = None, *, voted: bool = False) -> None:
        """Begin with no turn. If `voted`, groups are of the hints of the votes, without the decisions of people."""
        self.groups, self._voted = HintGroups(topics), voted
        self._votes = {"reward": Counter[str](), "hint": Counter[str]()}
        self._rewards, self._statuses, self._errors = Counter[str](), Counter[str](), Counter[str]()
        self._agreement, self._hint_statuses = Counter[float](), Counter[str]()
        self._lengths = Counter[int]()

    def add(self, turn: RunTurn) -> None:
        """Count votes and reward as the judge gave them, and the hint after the decision in force."""
        verdict, final = turn.verdict, turn.final_verdict
        if verdict is None or final is None:
            return
        for question, value in (("reward", "score"), ("hint", "decision")):
            for vote in verdict[f"{question}_votes"]:
                if vote[value] is None:
                    self._errors[f"{question}: {(vote['error'] or 'no answer').partition(':')[0]}"] += 1
                else:
                    self._votes[question][signed(vote[value])] += 1
        self._rewards[signed(verdict["reward"])] += 1
        self._statuses[verdict["reward_status"]] += 1
        if verdict["reward_agreement"] is not None:
            self._agreement[round(verdict["reward_agreement"], 2)] += 1
        self._hint_statuses[final["hint_status"]] += 1
        said = verdict if self._voted else final
        if said["hint"] is not None:
            self.groups.add(turn, said)
        if (hint := final["hint"]) is not None:
            self._lengths[min(len(hint) // self.WIDTH, self.LAST)] += 1

    def summarize_votes(self) -> JSON:
        """Return the counts of votes and rewards, for the summary of the page."""
        voted = self._agreement.total()
        return {
            "judged": self._rewards.total(),
            "scores": dict(self._votes["reward"]),
            "decisions": dict(self._votes["hint"]),
            "rewards": dict(self._rewards),
            "statuses": self._statuses.most_common(),
            "errors": self._errors.most_common(20),
            "agreement": sorted(self._agreement.items()),
            "mean_agreement": sum(a * n for a, n in self._agreement.items()) / voted if voted else None,
            "unanimous": self._agreement[1.0] / voted if voted else None,
        }

    def summarize_hints(self, rejected: Counter[str], most: int) -> JSON:
        """Return the counts of hints, and at most `most` groups of hints that ask for similar things.

        `rejected`: the judge's counts of candidates that failed the filter, by reason.
        """
        return {
            "count": self._lengths.total(),
            "lengths": [[n * self.WIDTH, self._lengths[n]] for n in range(max(self._lengths, default=-1) + 1)],
            "width": self.WIDTH,
            "last": self.WIDTH * self.LAST,
            "statuses": self._hint_statuses.most_common(),
            "groups": self.groups.summarize(most),
            "rejected": rejected.most_common(),
        }


class Advantages:
    """Distribution of the teacher's advantages over tokens, and the number of tokens under each reward."""

    BAR, SHOWN, NEAR_ZERO = 0.25, 5.0, 0.01  # nats; the outermost bars hold all tokens beyond SHOWN

    def __init__(self) -> None:
        self._bars = np.zeros(round(2 * self.SHOWN / self.BAR), np.int64)
        self._tokens, self._sum, self._near = 0, 0.0, 0
        self._by_reward, self._overlaps, self._overlap = Counter[str](), 0, 0.0

    def add(self, turn: RunTurn) -> None:
        """Count the tokens of a turn's targets."""
        for target in turn.targets:
            self._by_reward[signed(target.reward)] += target.sampled
            if target.overlap is not None:
                self._overlaps, self._overlap = self._overlaps + 1, self._overlap + target.overlap
            if target.advantages is None:
                continue
            values = target.advantages[np.isfinite(target.advantages)]
            self._tokens += len(values)
            self._sum += float(values.sum(dtype=np.float64))
            self._near += int((np.abs(values) < self.NEAR_ZERO).sum())
            shown = np.clip(values, -self.SHOWN, self.SHOWN)
            self._bars += np.histogram(shown, len(self._bars), (-self.SHOWN, self.SHOWN))[0]

    def summarize(self) -> JSON:
        """Return the distribution: how many tokens are in each bar of 0.25 nats."""
        return {
            "tokens": self._tokens,
            "mean": self._sum / self._tokens if self._tokens else None,
            "near_zero": self._near / self._tokens if self._tokens else None,
            "bar": self.BAR,
            "bars": [[n * self.BAR - self.SHOWN, int(count)] for n, count in enumerate(self._bars)],
            "reward_tokens": dict(self._by_reward),
            "overlap": self._overlap / self._overlaps if self._overlaps else None,
        }


def count_moved_tokens(run: Path, finished: Mapping[str, Summary]) -> list[JSON]:
    """Return the tokens that the hinted teacher finds clearly less likely, each with its preferred token and a count.

    The preferred token is the likeliest of those stored at the position. The commonest pairs come first, 12 at most.
    """
    pairs, tokens = Counter[tuple[int, int]](), ["response_ids", "response_mask", "old_logprobs", "teacher_logprobs"]
    for part in range(finished["teacher"].parts if "teacher" in finished else 0):
        if not is_written(run, "targets", part):
            continue
        rows = read_arrow(run, "targets", part, [*tokens, "support_ids", "support_teacher"])
        rows = rows.filter(pc.is_valid(rows["support_teacher"]))
        *values, stored, logprobs = (rows[name].combine_chunks().flatten() for name in rows.column_names)
        ids, mask, old, teacher = (column.to_numpy(zero_copy_only=False) for column in values)
        for n in np.flatnonzero(mask & (teacher - old <= -STEPS[1])).tolist():
            instead = stored[n].values[int(logprobs[n].values.to_numpy(zero_copy_only=False).argmax())].as_py()
            if instead != ids[n]:
                pairs[int(ids[n]), instead] += 1
    if not pairs:
        return []
    texts = load_texts(run)
    return [{"token": texts([a])[0], "instead": texts([b])[0], "count": number}
            for (a, b), number in pairs.most_common(12)]  # fmt: skip


@dataclass
class RewardsByLength:
    """Rewards of logged replies by their length, in bins that double: 1, 2 to 3, 4 to 7 tokens, and so on."""

    _counts: Counter[tuple[int, int]] = field(default_factory=Counter)  # (tokens, reward) -> replies

    def add(self, turn: RunTurn) -> None:
        """Count the logged reply of a turn, if it has a reward and a token."""
        for target in turn.targets:
            if target.written is None and target.reward is not None and target.sampled:
                self._counts[target.sampled, target.reward] += 1

    def summarize(self) -> JSON | None:
        """Return the bins, and the mean lengths by reward; None without a reward."""
        if not self._counts:
            return None
        bins = [[2**n, 2 ** (n + 1) - 1, {"+1": 0, "0": 0, "-1": 0}] for n in range(max(self._counts)[0].bit_length())]
        for (tokens, reward), number in self._counts.items():
            bins[tokens.bit_length() - 1][2][signed(reward)] += number
        tokens_N, rewards_N, counts_N = np.array([(*key, n) for key, n in sorted(self._counts.items())]).T
        means = {signed(r): float(np.average(tokens_N[rewards_N == r], weights=counts_N[rewards_N == r]))
                 for r in (1, 0, -1) if r in rewards_N}  # fmt: skip
        return {"bins": bins, "means": means}


def read_hint_checks(run: Path, finished: Mapping[str, Summary]) -> tuple[JSON | None, dict[str, str]]:
    """Return what `--check-hints` found: hints by status, with examples of dropped ones; None without it.

    The second value is turn id -> status of its hint. It is {} if several hints of any turn were tested.
    """
    if "teacher" not in finished or not (statuses := finished["teacher"].counters.labels(HINTS_CHECKED)):
        return None, {}
    parts = (part for part in range(finished["teacher"].parts) if is_written(run, "hint_checks", part))
    checks, examples = dict[str, str](), list[JSON]()
    for row in (row for part in parts for row in read_part(run, "hint_checks", part)):
        checks[row["turn_id"]] = row["status"]
        if " than without" in row["status"] and len(examples) < _EXAMPLES:
            examples.append(row)
    found = {"statuses": statuses.most_common(), "examples": examples}
    return found, checks if len(checks) == statuses.total() else {}


class Shares:
    """Counts per source and per session, so that a dominant one is noticed.

    The turns of a session come one after the other, so only the largest sessions are kept in memory.
    """

    MOST = 20  # sources and sessions that are shown

    def __init__(self) -> None:
        self._sources = defaultdict[str, Counter[str]](Counter)
        self._session: tuple[str, str, Counter[str]] | None = None
        self._sessions: Largest[tuple[str, str, Counter[str]]] = Largest(self.MOST)

    def add(self, turn: RunTurn) -> None:
        """Count a turn for its source and for its session."""
        source, session = turn.session["source"], logged_session_id(turn.session_id)
        if self._session is None or self._session[:2] != (source, session):
            if self._session is not None:
                self._sessions.add(self._session, _rank_stages(self._session[2]))
            self._session = (source, session, Counter())
            self._sources[source]["sessions"] += 1
        verdict = turn.final_verdict
        counts = {"turns": 1, "judged": int(verdict is not None), "trained": int(turn.state == TRAINED)}
        if verdict is not None:
            counts |= {f"reward {signed(verdict['reward'])}": 1, "hints": int(verdict["hint"] is not None)}
        counts |= Counter("logged" if target.written is None else "written" for target in turn.targets)
        counts["tokens"] = sum(target.sampled for target in turn.targets)
        self._session[2].update(counts)
        self._sources[source].update(counts)

    def summarize(self) -> JSON:
        """Return the totals, and the largest sources and sessions. Call it once, after all turns."""
        if self._session is not None:
            self._sessions.add(self._session, _rank_stages(self._session[2]))
        sources = sorted(self._sources.items(), key=lambda item: _rank_stages(item[1]), reverse=True)
        total, rest = Counter[str](), Counter[str]()
        for place, (_, counts) in enumerate(sources):
            total.update(counts)
            if place >= self.MOST:
                rest.update(counts)
        sessions = self._sessions.items()
        return {
            "total": dict(total),
            "sources": [{"source": name, **counts} for name, counts in sources[: self.MOST]],
            "other_sources": {"count": len(sources) - self.MOST, **rest} if rest else None,
            "sessions": [{"source": source, "session": name, **counts} for source, name, counts in sessions],
            "session_count": total["sessions"],
        }


def _rank_stages(counts: Counter[str]) -> tuple[int, ...]:
    """Return the sort key of a source or session: its counts, that of the furthest stage first."""
    return counts["tokens"], counts["judged"], counts["turns"]
