"""Verdicts on fresh replies: the hint of the turn that they answer and, where a judge is asked, a reward.

Nobody has reacted to these replies. A judge can say whether they do what the hint asks, which is what somebody missed
in the logged reply.
"""

from collections.abc import Iterator, Sequence

from opdkit.chat.template import Chat
from opdkit.config.fields import JSON
from opdkit.config.rollout import RolloutConfig
from opdkit.config.wording import read_wording
from opdkit.judge.criterion import EMPTY, FreshReply, judge_replies
from opdkit.judge.failures import count_votes
from opdkit.judge.votes import NOT_JUDGED, Ask, Reward, RewardVote, vote_columns
from opdkit.rollout.replies import hinted_turns
from opdkit.store.part_writer import PartWriter
from opdkit.store.reading import read_part
from opdkit.store.reviews import Reviews
from opdkit.store.turn_ids import answered_turn_id


def write_verdicts(
    config: RolloutConfig, judge: tuple[Ask, Chat] | None, part: int, reviews: Reviews, out: PartWriter
) -> None:
    """Write the verdicts on one part of the replies, which are read from where they were committed.

    `judge`: the model of `--judge-model`, and the chat template of the student; without one there are no rewards.
    """
    sessions, turns = read_part(config.run, "sessions", part), read_part(config.run, "turns", part)
    logged = {turn.turn_id: verdict for turn, verdict in hinted_turns(config, part, reviews)}
    verdicts = [logged[answered_turn_id(session["session_id"])] for session in sessions]
    out.counters.rows_in = len(sessions)
    judged: Sequence[tuple[list[RewardVote], Reward]] = [([], NOT_JUDGED)] * len(sessions)
    if judge is not None:
        texts = read_wording(config.wording)["criterion"]
        (ask, chat), hints = judge, [verdict["hint"] for verdict in verdicts]
        judged = judge_replies(ask, list(fresh_replies(chat, sessions, hints, texts["follows_hint"])), texts)
        for votes, reward in judged:
            count_votes(out.counters, votes, reward)
            out.counters.count("empty replies", int(reward.status == EMPTY.status))
    for turn, verdict, (votes, reward) in zip(turns, verdicts, judged, strict=True):
        hint = {name: verdict[name] for name in ("hints", "hint", "hint_status")}
        out.rows("verdicts", [vote_columns(turn["turn_id"], ([], votes)) | reward.columns() | hint])


def fresh_replies(chat: Chat, sessions: Sequence[JSON], hints: Sequence[str], criterion: str) -> Iterator[FreshReply]:
    """Yield the last message of each session, as the reader of it sees it; `chat` is the student's template."""
    for session, hint in zip(sessions, hints, strict=True):
        *before, reply = session["messages"]
        text = chat.visible_text(reply["content"] or "", chat.prompt_ids(before, session["tools"]))
        yield FreshReply(answered_turn_id(session["session_id"]), before, text, criterion, hint)
