"""Verdicts on fresh replies: the hint of the turn that they answer and, if a judge is asked, a reward.

Nobody has reacted to these replies. But a judge can say whether they do what the hint asks: what somebody missed in
the logged reply.
"""

from collections.abc import Sequence

from opdkit.chat.template import Chat
from opdkit.config.rollout import RolloutConfig
from opdkit.config.wording import read_wording
from opdkit.judge.criterion import EMPTY, FreshReply, judge_replies
from opdkit.judge.votes import NOT_JUDGED, Ask, Reward, RewardVote, Votes
from opdkit.judge.warnings import count_votes
from opdkit.rollout.replies import hinted_turns
from opdkit.store.part_writer import PartWriter
from opdkit.store.reading import read_part
from opdkit.store.reviews import Reviews
from opdkit.store.turn_ids import answered_turn_id


def write_verdicts(
    config: RolloutConfig, judge: tuple[Ask, Chat] | None, part: int, reviews: Reviews, out: PartWriter
) -> None:
    """Write the verdicts on one part of the replies, which must be committed already.

    `judge`: the model of `--judge-model`, and the chat template of the student; without one there are no rewards.
    """
    sessions, turns = read_part(config.run, "sessions", part), read_part(config.run, "turns", part)
    logged = {turn.turn_id: verdict for turn, verdict in hinted_turns(config, part, reviews)}
    verdicts = [logged[answered_turn_id(session["session_id"])] for session in sessions]
    out.counters.rows_in = len(sessions)
    judged: Sequence[tuple[list[RewardVote], Reward]] = [([], NOT_JUDGED)] * len(sessions)
    if judge is not None:
        (ask, chat), texts = judge, read_wording(config.wording)["criterion"]
        replies = []
        for session, verdict in zip(sessions, verdicts, strict=True):
            *before, reply = session["messages"]
            seen = chat.visible_text(reply["content"] or "", chat.prompt_ids(before, session["tools"]))
            answered = answered_turn_id(session["session_id"])
            replies.append(FreshReply(answered, before, seen, texts["follows_hint"], verdict["hint"]))
        judged = judge_replies(ask, replies, texts)
        for votes, reward in judged:
            count_votes(out.counters, votes, reward)
            out.counters.count("empty replies", int(reward.status == EMPTY.status))
    for turn, verdict, (votes, reward) in zip(turns, verdicts, judged, strict=True):
        hint = {name: verdict[name] for name in ("hints", "hint", "hint_status")}
        out.add_rows("verdicts", [Votes([], votes).columns(turn["turn_id"]) | reward.columns() | hint])
