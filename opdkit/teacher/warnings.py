"""Warnings about the targets as a whole."""

from opdkit.config.teacher import TeacherConfig
from opdkit.console import counted, verb
from opdkit.model.behavior_policy import OTHER_MODEL, describe_off_policy
from opdkit.store.counters import HINTS_CHECKED, Counters, mostly_dropped
from opdkit.teacher import hint_checks

UNROUTED = "sessions without a teacher"  # counter


def find_warnings(config: TeacherConfig, counters: Counters) -> list[str]:
    messages = mostly_dropped("teacher", counters)
    if counters.rows_in and counters.total(UNROUTED) and not counters.rows_out:
        messages.append(
            f"no session's metadata field {config.teacher_route!r} names a teacher: give each as NAME=PATH with a "
            "name that stands in that field (the column `metadata` of the sessions table shows what does)"
        )
    if long := counters.dropped["too long"]:
        remedy = ", even without the beginnings of their conversations"
        if config.too_long == "drop":
            remedy = "; --too-long cut leaves out the beginnings of such conversations"
        messages.append(
            f"{counted(long, 'reply')} {verb(long, 'does', 'do')} not fit into the model's context with the prompt"
            + remedy
        )
    unread, checked = counters.labels(HINTS_CHECKED)[hint_checks.NOT_JUDGED], counters.total(HINTS_CHECKED)
    if cut_off := counters.labels(HINTS_CHECKED)[hint_checks.REPLIES_CUT_OFF]:
        messages.append(f"--check-hints: {cut_off:,} of {counted(checked, 'hint')} could not be tested and are kept: "
                        "the replies are cut off before they say anything; raise --max-new-tokens")  # fmt: skip
    if 2 * unread > checked:
        messages.append(f"--check-hints: {unread:,} of {counted(checked, 'hint')} could not be judged and are kept: is "
                        f"--judge-model {config.judge_model} a chat model that follows instructions?")  # fmt: skip
    off_policy = describe_off_policy(counters.labels(OTHER_MODEL), config.model)
    return [*messages, off_policy] if off_policy else messages
