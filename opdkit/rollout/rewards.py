"""Verdicts on fresh replies: the hint of the turn that they answer anew, and, where a judge is asked, a reward.

Nobody has reacted to these replies. What can be judged is whether they do what the hint asks, which is what somebody
wanted of the first one.
"""

from collections.abc import Sequence

from opdkit.chat.template import Chat
from opdkit.config.fields import JSON, parse_pairs
from opdkit.config.rollout import RolloutConfig
from opdkit.judge.criterion import hint_messages, open_criterion_judge, question_id, visible
from opdkit.judge.exchange import Ask, Question, RewardVote
from opdkit.judge.parse import parse_reward
from opdkit.judge.stage import count_reward, count_votes
from opdkit.judge.votes import Reward, reward_of
from opdkit.model.load import load_tokenizer
from opdkit.store import Counters, PartWriter, read_part
from opdkit.store.plans import stage_dir
from opdkit.store.reviews import Reviews, read_verdicts
from opdkit.store.turn_ids import answered_turn_id

NOT_JUDGED = Reward(None, "not_judged", None)
EMPTY = Reward(-1, "empty", None)  # rewarded, or left out, saying nothing would become a habit

Judged = tuple[list[RewardVote], Reward]


class Judge:
    """Asks the model of `--judge-model` about replies."""

    def __init__(self, config: RolloutConfig) -> None:
        self.ask: Ask = open_criterion_judge(config, stage_dir(config.run, "judge"))
        self.chat = Chat(load_tokenizer(config.model), parse_pairs(config.template_arg, "--template-arg"))

    def judged(self, sessions: Sequence[JSON], hints: Sequence[str]) -> list[Judged]:
        """The votes on the last message of each session and the reward that they add up to.

        Equal replies to one prompt are one question. What shows its reader nothing is not asked about: it is -1.
        """
        seen = [self._seen(session) for session in sessions]
        names = [question_id(answered_turn_id(s["session_id"]), text) for s, text in zip(sessions, seen, strict=True)]
        questions = {
            name: Question(name, "criterion", hint_messages(session["messages"][:-1], hint, text))
            for name, session, hint, text in zip(names, sessions, hints, seen, strict=True)
            if text
        }
        answers = self.ask(list(questions.values())) if questions else []
        votes = {name: [parse_reward(a) for a in some] for name, some in zip(questions, answers, strict=True)}
        return [
            (votes[name], reward_of([v.score for v in votes[name]])) if name in votes else ([], EMPTY) for name in names
        ]

    def _seen(self, session: JSON) -> str:
        *before, reply = session["messages"]
        thinking = self.chat.opens_thinking(self.chat.prompt_ids(before, session["tools"]))
        return visible(reply["content"] or "", thinking)


def write_verdicts(config: RolloutConfig, judge: Judge | None, part: int, reviews: Reviews, out: PartWriter) -> None:
    """The verdicts on one part of the replies, read from where they were committed."""
    sessions = read_part(config.run, "sessions", part)
    turns = read_part(config.run, "turns", part)
    carried = {v["turn_id"]: v for v in read_verdicts(config.from_run, part, reviews)}
    verdicts = [carried[answered_turn_id(session["session_id"])] for session in sessions]
    out.counters.rows_in = len(sessions)
    found: list[Judged] = [([], NOT_JUDGED)] * len(sessions)
    if judge is not None:
        found = judge.judged(sessions, [v["hint"] for v in verdicts])
        _count(found, out.counters)
    for turn, verdict, (votes, reward) in zip(turns, verdicts, found, strict=True):
        out.rows("verdicts", [verdict_row(turn["turn_id"], verdict, votes, reward)])


def verdict_row(turn_id: str, carried: JSON, votes: Sequence[RewardVote], reward: Reward) -> JSON:
    """The row of tables.VERDICTS: hints from the verdict that is carried over, a reward of its own."""
    return {
        "turn_id": turn_id,
        "hint_votes": [],
        "reward_votes": [vote.row() for vote in votes],
        "reward": reward.reward,
        "reward_status": reward.status,
        "reward_agreement": reward.agreement,
        "hints": carried["hints"],
        "hint": carried["hint"],
        "hint_status": carried["hint_status"],
    }


def _count(found: Sequence[Judged], counters: Counters) -> None:
    for votes, reward in found:
        count_votes(counters, votes)
        count_reward(counters, reward.reward)
        counters.count("empty replies", int(reward.status == EMPTY.status))
