"""Rows of `validations`, for tests of what a training does with them."""

from opdkit.config.fields import JSON


def validation_row(step: int, hint_kl: float | None, kept_kl: float | None) -> JSON:
    """Return the columns that decide which state is the best; with a high `kept_kl`, many replies are lost."""
    hint_kls = [] if hint_kl is None else [{"turn_id": "log:1:1", "kl": hint_kl}]
    forgotten = 0.5 if (kept_kl or 0.0) > 2.5 else 0.1
    score = (hint_kl or 0.0) + (kept_kl or 0.0)
    return {"step": step, "hint_kl": hint_kl, "hint_kls": hint_kls, "kept_kl": kept_kl, "forgotten": forgotten,
            "score": score, "went_back_to": None}  # fmt: skip
