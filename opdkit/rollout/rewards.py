"""Verdicts on fresh replies: the hint of the turn that they answer and, where a judge is asked, a reward.

Nobody has reacted to these replies. A judge can say whether they do what the hint asks, which is what somebody missed
in the logged reply.
"""

from collections.abc import Sequence
from dataclasses import asdict

from opdkit.chat.template import Chat
from opdkit.config.fields import JSON
from opdkit.config.rollout import RolloutConfig
from opdkit.config.wording import DEFAULTS, Texts, read_wording
from opdkit.judge.criterion import criterion_messages, question_id, visible
from opdkit.judge.parse import parse_reward
from opdkit.judge.stage import count_votes
from opdkit.judge.votes import NOT_JUDGED, Ask, Question, Reward, RewardVote, reward_of
from opdkit.store.part_writer import PartWriter
from opdkit.store.reading import read_part
from opdkit.store.reviews import Reviews, read_verdicts
from opdkit.store.turn_ids import answered_turn_id

EMPTY = Reward(-1, "empty", None)  # rewarded, or left out, saying nothing would become a habit


def write_verdicts(
    config: RolloutConfig, judge: tuple[Ask, Chat] | None, part: int, reviews: Reviews, out: PartWriter
) -> None:
    """Write the verdicts on one part of the replies, which are read from where they were committed.

    `judge`: the model of `--judge-model`, and the chat template of the student; without one there are no rewards.
    """
    sessions, turns = read_part(config.run, "sessions", part), read_part(config.run, "turns", part)
    logged = {verdict["turn_id"]: verdict for verdict in read_verdicts(config.from_run, part, reviews)}
    verdicts = [logged[answered_turn_id(session["session_id"])] for session in sessions]
    out.counters.rows_in = len(sessions)
    judged: Sequence[tuple[list[RewardVote], Reward]] = [([], NOT_JUDGED)] * len(sessions)
    if judge is not None:
        texts = read_wording(config.wording)["criterion"]
        judged = judge_replies(*judge, sessions, [verdict["hint"] for verdict in verdicts], texts)
        for votes, reward in judged:
            count_votes(out.counters, votes, reward)
            out.counters.count("empty replies", int(reward.status == EMPTY.status))
    for turn, verdict, (votes, reward) in zip(turns, verdicts, judged, strict=True):
        row = {
            "turn_id": turn["turn_id"],
            "hint_votes": [],
            "reward_votes": [asdict(vote) for vote in votes],
            "reward": reward.reward,
            "reward_status": reward.status,
            "reward_agreement": reward.agreement,
            **{name: verdict[name] for name in ("hints", "hint", "hint_status")},
        }
        out.rows("verdicts", [row])


def judge_replies(
    ask: Ask, chat: Chat, sessions: Sequence[JSON], hints: Sequence[str], texts: Texts = DEFAULTS["criterion"]
) -> list[tuple[list[RewardVote], Reward]]:
    """Return the votes on the last message of each session, and the reward that they add up to.

    `chat` is the template of the student. Equal replies to one prompt are one question. A reply that shows its reader
    nothing is not asked about: it gets -1.
    """
    names: list[str] = []  # of the question about each session
    questions: dict[str, Question] = {}
    for session, hint in zip(sessions, hints, strict=True):
        *before, reply = session["messages"]
        thinking = chat.opens_thinking(chat.prompt_ids(before, session["tools"]))
        text = visible(reply["content"] or "", thinking)
        name = question_id(answered_turn_id(session["session_id"]), text)
        names.append(name)
        if text:
            messages = criterion_messages(before, texts["follows_hint"], text, hint, texts)
            questions[name] = Question(name, "criterion", messages)
    answers = ask(list(questions.values())) if questions else []
    judged: dict[str, tuple[list[RewardVote], Reward]] = {}
    for name, of_question in zip(questions, answers, strict=True):
        votes = [parse_reward(answer, texts["question"]) for answer in of_question]
        judged[name] = votes, reward_of([vote.score for vote in votes])
    return [judged.get(name, ([], EMPTY)) for name in names]
