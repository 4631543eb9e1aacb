"""Replies of the models under evaluation, and their checks. Stored replies can be read without torch."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON
from opdkit.config.wording import DEFAULTS, read_wording
from opdkit.console import counted, warn
from opdkit.errors import OpdkitError
from opdkit.evaluate.checks import Criterion, HeldOutPrompt
from opdkit.evaluate.echoes import echo_of, index_hints
from opdkit.judge.criterion import FreshReply, judge_replies, open_criterion_judge

if TYPE_CHECKING:
    from opdkit.model.scoring import PromptResponse


@dataclass(frozen=True)
class Reply:
    """Reply of one model. Sample 0 is greedy."""

    prompt: HeldOutPrompt
    model: str  # before or after
    sample: int
    text: str
    seen: str  # the text without its thinking, for the checks
    sequence: "PromptResponse | None"  # prompt, and reply with its stop token; None: read from the table `replies`
    finish_reason: str
    passed: bool | None = None
    hint_echo: str | None = None  # words in it that echo a hint
    hollow: str | None = None  # QUESTION or CONFIRMATION if it is nothing else
    called: bool | None = None  # whether it calls a tool; None: no tools, or calls without tags

    def row(self) -> JSON:
        """Return the row of tables.REPLIES."""
        return {"prompt_id": self.prompt.id, "probe": self.prompt.probe, "domain": self.prompt.domain,
                "session": self.prompt.session, "model": self.model, "sample": self.sample, "reply": self.text,
                "finish_reason": self.finish_reason, "passed": self.passed, "hollow": self.hollow,
                "called": self.called, "hint_echo": self.hint_echo}  # fmt: skip


def find_right_replies(replies: Sequence[Reply], *, tags_calls: bool) -> list[tuple[HeldOutPrompt, str]]:
    """Return (prompt, right reply) for the prompts for which a right reply in words is known without a judge.

    It is the praised reply of the log, or the greedy reply if it passes patterns or a function. Unless `tags_calls`
    (see `Chat`), every reply may be a call where tools are at hand.
    """
    found = []
    for reply in (r for r in replies if not r.sample):
        prompt, check = reply.prompt, reply.prompt.check
        text = check.praised if isinstance(check, Criterion) else reply.seen if check.passes(reply.seen) else None
        may_call = not tags_calls and (prompt.tools or any(m["tool_calls"] for m in prompt.messages))
        if text and "<tool_call>" not in text and not may_call:
            found.append((prompt, text))
    return found


def choose_measured(replies: Sequence[Reply]) -> list[Reply]:
    """Return the sampled replies, or the greedy ones if there are no others."""
    return [reply for reply in replies if reply.sample] or list(replies)


def mark_echoes(
    replies: Sequence[Reply], hints: Iterable[str], hint_text: str = DEFAULTS["teacher"]["hint"]
) -> list[Reply]:
    """Return the replies with `hint_echo` set: text that echoes one of `hints`, or the teacher's `hint_text`."""
    index = index_hints(hints)
    prompts = {r.prompt.id: r.prompt.text() for r in replies}
    return [replace(r, hint_echo=echo_of(r.text, prompts[r.prompt.id], index, hint_text)) for r in replies]


def check_replies(replies: Sequence[Reply], config: EvalConfig) -> list[Reply]:
    """Return the replies with `passed` set by patterns, a function or a judge. The judge reads equal replies once.

    Raises OpdkitError if the votes on all replies that the judge read failed.
    """
    texts = read_wording(config.wording)["criterion"]
    asked = [FreshReply(r.prompt.id, r.prompt.messages, r.seen, check.text, check.hint, check.praised)
             for r in replies if isinstance(check := r.prompt.check, Criterion)]  # fmt: skip
    # The judge, perhaps a large model, is opened only if there is something to ask.
    judged = judge_replies(lambda questions: open_criterion_judge(config)(questions), asked, texts)
    verdicts = [reward.is_met for _, reward in judged]
    if judged and all(reward.reward is None for _, reward in judged):
        reason = next(vote.error for votes, _ in judged for vote in votes if vote.error)
        raise OpdkitError(f"the votes on {len(judged):,} of {counted(len(judged), 'reply')} failed, the first one with "
                          f"{reason}: once the judge answers, call the same command again. If it cannot judge, pass "
                          "--judge-model with another one, and --overwrite")  # fmt: skip
    if unknown := verdicts.count(None):
        kinds = Counter(vote.error.partition(":")[0] for votes, _ in judged for vote in votes if vote.error)
        why = f" (failed votes, most often: {kinds.most_common(1)[0][0]})" if kinds else ""
        replied = counted(len(verdicts), "reply")
        warn(f"the judge gave no verdict on {unknown:,} of {replied}{why}; they count neither way")
    checked, left = [], iter(verdicts)
    for reply in replies:
        check = reply.prompt.check
        passed = next(left) if isinstance(check, Criterion) else check.passes(reply.seen)
        if reply.prompt.probe and reply.finish_reason == "length":
            passed = None  # the missing rest may have been right
        # A right reply is not hollow: the user may have asked for a question or a mere confirmation.
        checked.append(replace(reply, passed=passed, hollow=None if passed else reply.hollow))
    return checked
