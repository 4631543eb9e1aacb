"""How soon a preference holds: sessions until it is met several times in a row."""

from collections.abc import Sequence


def sessions_until(passed: Sequence[Sequence[bool]], in_a_row: int = 3) -> int | None:
    """Logged sessions it takes until `in_a_row` held-out replies in a row satisfy the preference; None for never.

    `passed[s]` is what the model trained on the first s sessions got on its held-out replies, in an order that is the
    same for every s; `passed[0]` is the model before any. The answer is the smallest s whose first `in_a_row` replies
    all pass. This is the metric of OpenClaw-RL v2, sessions until the preference holds three times in a row, with
    held-out requests in place of the user's next ones. Fewer than `in_a_row` replies never hold. Raises ValueError
    for `in_a_row` under 1.
    """
    if in_a_row < 1:
        raise ValueError(f"in_a_row is {in_a_row}; it must be at least 1")
    held = (s for s, replies in enumerate(passed) if len(replies) >= in_a_row and all(replies[:in_a_row]))
    return next(held, None)
