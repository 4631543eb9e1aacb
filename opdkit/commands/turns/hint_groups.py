"""Groups of a run's hints that ask for similar things, and facts about each group."""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from opdkit.commands.turns.line import join_messages
from opdkit.commands.turns.of_run import RunTurn
from opdkit.commands.turns.view import STEPS
from opdkit.config.fields import JSON
from opdkit.evaluate.conclusion import PASSED, by_name
from opdkit.judge.claims import contradicts, find_claims, group_alike
from opdkit.judge.words import split_words
from opdkit.store.joined_turns import all_joined_turns
from opdkit.store.reading import read_part
from opdkit.store.reviews import REVIEWED, InvalidDecisionError

TEXTS = 300  # number of the commonest hints, which are grouped; the others are in no group
_CHARS = 600  # of a hint, in the result
_HINTS = {"turns": ["turn_id", "session_id"], "sessions": ["session_id"], "verdicts": ["turn_id", "hint", "hints"],
          "hint_checks": None}  # fmt: skip


def group_commonest(counts: Counter[str]) -> list[list[tuple[str, int]]]:
    """Return the TEXTS commonest texts with their counts, in groups that ask for similar things, the largest first."""
    return group_alike(sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:TEXTS])


def read_hints_of_group(run: Path, name: object) -> dict[str, str]:
    """Return turn_id -> the judge's hint, for all turns of the group whose commonest wording is `name`.

    Hints that `--check-hints` dropped are in no group, as in the report. Raises InvalidDecisionError without such a
    group.
    """
    turns = defaultdict[str, list[str]](list)
    for turn in all_joined_turns(run, _HINTS, reviews={}, partial=True):
        if turn.verdict is not None and turn.verdict["hint"] is not None:
            turns[turn.verdict["hint"]].append(turn.turn_id)
    for members in group_commonest(Counter({hint: len(of_hint) for hint, of_hint in turns.items()})):
        if members[0][0][:_CHARS] == name:
            return {turn_id: text for text, _ in members for turn_id in turns[text]}
    raise InvalidDecisionError(f"no group of hints has the commonest wording {name!r:.200}")


class Topics:
    """Domains of the prompts of `opdkit eval`; `find` recognises the domain of a reply by its words."""

    def __init__(self, run: Path) -> None:
        """Read the replies of the model before training, which wrote the log, and the shares of right replies."""
        replies = [row for row in read_part(run, "replies", 0) if row["model"] == "before" and not row["probe"]]
        self._number = Counter(row["domain"] for row in replies)
        self.counts = defaultdict[str, Counter[str]](Counter)  # word -> domain -> replies with it
        for row in replies:
            for word in set(split_words(row["reply"])):
                self.counts[word][row["domain"]] += 1
        scores = by_name(read_part(run, "scores", 0))
        found = ((metric, domain) for metric in reversed(PASSED) for domain in self._number)
        self.scores = {domain: scores[metric, domain] for metric, domain in found if (metric, domain) in scores}

    def find(self, reply: str) -> str | None:
        """Return the domain whose replies have most words in common with this one; None without a clear winner.

        A word adds p_d^2 / sum(p) to d's score; p_d: share of d's replies with it. A winner has over twice the second.
        """
        found = Counter[str]()
        for word in sorted(self.counts.keys() & split_words(reply)):  # in a fixed order, as sums are rounded
            shares = {domain: number / self._number[domain] for domain, number in self.counts[word].items()}
            found.update({domain: share**2 / sum(shares.values()) for domain, share in shares.items()})
        (domain, most), (_, second) = [*found.most_common(2), (None, 0.0), (None, 0.0)][:2]
        return domain if most > 2 * second else None


class HintGroups:
    """Turns, effect, sources and contradictions of hints, counted by text and summarized by group."""

    def __init__(self, topics: Topics | None) -> None:
        self._topics, self._counts = topics, Counter[str]()
        self.number_of = dict[str, int]()  # hint -> number of its group in the result
        # Per hint: counts of its turns, of their sources and domains, and the sum of their mean |advantages|.
        self._facts, self._sources = defaultdict[str, Counter[str]](Counter), defaultdict[str, Counter[str]](Counter)
        self._domains, self._effects = defaultdict[str, Counter[str | None]](Counter), defaultdict[str, float](float)

    def add(self, turn: RunTurn, verdict: JSON) -> None:
        """Count a turn with a hint. `verdict`: of the votes alone, or with the decision in force applied."""
        hint = verdict["hint"]
        facts = self._facts[hint]
        self._counts[hint] += 1
        facts["rewarded"] += verdict["reward"] == 1
        facts["split"] += any(vote["decision"] == -1 for vote in verdict["hint_votes"])
        facts["reviewed"] += turn.review is not None
        self._sources[hint]["a person" if verdict["hint_status"] == REVIEWED else turn.session["source"]] += 1
        for target in turn.targets:
            if target.written is None and target.advantages is not None and len(target.advantages):
                sizes = np.abs(target.advantages)
                facts["scored"] += 1
                facts["still"] += not (sizes >= STEPS[0]).any()
                self._effects[hint] += float(sizes.mean())
        if self._topics is not None:
            self._domains[hint][self._topics.find(join_messages([turn.session["messages"][turn.index]]))] += 1

    def summarize(self, most: int) -> list[JSON]:
        """Return the `most` largest groups of the commonest texts, with what is known of each."""
        groups = group_commonest(self._counts)[:most]
        self.number_of = {text: number for number, members in enumerate(groups) for text, _ in members}
        claims = [find_claims(members[0][0]) for members in groups]
        denied = [{(word, not wanted) for word, wanted in claimed} for claimed in claims]
        rows = []
        for number, members in enumerate(groups):
            turns, texts = sum(times for _, times in members), [text for text, _ in members]
            facts, sources = (sum((counts[text] for text in texts), Counter[str]())
                              for counts in (self._facts, self._sources))  # fmt: skip
            domains = sum((self._domains[text] for text in texts), Counter[str | None]())
            domain = next((name for name, n in domains.items() if 2 * n > turns), None)
            rows.append({
                "turns": turns,
                "texts": len(members),
                "wordings": [[text[:_CHARS], times] for text, times in members],
                **{name: facts[name] for name in ("scored", "still", "rewarded", "split", "reviewed")},
                "effect": sum(self._effects[text] for text in texts) / facts["scored"] if facts["scored"] else None,
                "sources": [[source, n] for source, n in sources.most_common()],
                "opposed": [other[0][0][:_CHARS] for n, other in enumerate(groups)
                            if not denied[number].isdisjoint(claims[n]) and contradicts(claims[number], claims[n])],
                "topic": self._topics.scores.get(domain) if self._topics and domain is not None else None,
            })  # fmt: skip
        return rows
