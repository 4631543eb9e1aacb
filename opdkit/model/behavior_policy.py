"""Checks of the behaviour policy (the model that wrote the log) and of its logged log-probs. No heavy imports."""

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opdkit.console import counted, verb
from opdkit.model.folder import name_weights

OTHER_MODEL = "sessions of another model"  # counter, labelled by the model's name
LONGEST_NAME = 80  # characters of a logged name that are kept
_WITH_DIGEST = re.compile(r".*(@[0-9a-f]{12})")


def list_student_names(model: str, files: Mapping[str, str], served_as: Sequence[str] = ()) -> frozenset[str]:
    """Return the names under which a log may list the student, normalized.

    These are the name as passed, the folder's name, `_name_or_path` in config.json, `name_weights`, and the
    `--served-as` names. `files` (file name -> digest) comes from `identify_model`.
    """
    folder, config = Path(model), None
    names: list[Any] = [model, name_weights(model, files), *served_as]
    if folder.is_dir():
        with contextlib.suppress(OSError, ValueError):
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        names += [folder.resolve().name, config.get("_name_or_path") if isinstance(config, dict) else None]
    return frozenset(_normalize(name) for name in names if isinstance(name, str) and name)


def find_unusable_reason(logprobs: Sequence[float], ids: Sequence[int] | None) -> str | None:
    """Return why logged log-probs of a reply cannot be used; None if they can.

    `ids` are the logged tokens, or None if the reply had to be encoded again. No policy is certain of every token of a
    reply. If all log-probs are exactly 0.0, a logger or server wrote 0.0 for "not recorded", or sampled greedily and
    logged each choice with probability 1. A single token can have probability 1, so a reply of one token passes.
    """
    if ids is None or len(logprobs) != len(ids):
        return "of other tokens"
    if not all(math.isfinite(x) and x <= 0 for x in logprobs):
        return "not log-probs"
    return "all 0.0, a filler" if len(logprobs) > 1 and not any(logprobs) else None


def is_other_model(logged: str | None, student: frozenset[str]) -> bool:
    """Return whether a log names a model other than the student; False if it names none."""
    return bool(logged) and _normalize(logged or "") not in student


def describe_off_policy(sessions: Mapping[str, int], model: str) -> str | None:
    """Return a warning about sessions of other models (name -> number of sessions); None if there are none."""
    if not sessions:
        return None
    names = sorted(sessions, key=lambda name: (-sessions[name], name))
    listed = ", ".join(f"{name} ({sessions[name]:,})" for name in names[:3])
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    total = sum(sessions.values())
    return (
        f"according to the log, {counted(total, 'session')} {verb(total, 'was', 'were')} written by a model other than "
        f"{model}: {listed}{more}. The student learns from replies that it would not have given (off-policy); where "
        "the log has no log-probs of that model, nothing corrects for it. If it is the student, pass --served-as NAME"
    )


def _normalize(name: str) -> str:
    """Return the last part of a name in lower case: "Qwen/Qwen3-4B" and "models/qwen3-4b/" are equal.

    For a name that ends with a digest of the weights, return only the digest.
    """
    bare = name.rstrip("/").rpartition("/")[2].casefold()
    with_digest = _WITH_DIGEST.fullmatch(bare)
    return with_digest[1] if with_digest else bare
