"""Behaviour policy: the model that wrote the log, and whether it is the student. Imports nothing heavy."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from opdkit.console import counted, verb
from opdkit.model.folder import weights_name

OTHER_MODEL = "sessions of another model"  # counter, labelled by the model's name
LONGEST_NAME = 80  # characters of a logged name that are kept
_WITH_DIGEST = re.compile(r".*(@[0-9a-f]{12})")


def student_names(model: str, files: Mapping[str, str]) -> frozenset[str]:
    """Return the names that a log may give the student: as passed, its folder's, its config.json's, its weights'.

    `files` are the digests of a folder's files, as `model_identity` returns them.
    """
    names: list[str | None] = [model, weights_name(model, files)]
    folder = Path(model)
    if folder.is_dir():
        names += [folder.resolve().name, _name_in(folder / "config.json")]
    return frozenset(_normalize(name) for name in names if name)


def is_other_model(logged: str | None, student: frozenset[str]) -> bool:
    """Return whether a log names another model than the student; False where it names none."""
    return bool(logged) and _normalize(logged or "") not in student


def off_policy_warning(sessions: Mapping[str, int], model: str) -> str | None:
    """Return a warning about sessions of other models (name -> number of sessions); None without any."""
    if not sessions:
        return None
    names = sorted(sessions, key=lambda name: (-sessions[name], name))
    listed = ", ".join(f"{name} ({sessions[name]:,})" for name in names[:3])
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    total = sum(sessions.values())
    return (
        f"according to the log, {counted(total, 'session')} {verb(total, 'was', 'were')} written by another model than "
        f"{model}: {listed}{more}. The student learns from replies that it would not have given (off-policy); where "
        "the log has no log-probs of that model, nothing corrects for it"
    )


def _normalize(name: str) -> str:
    """Return the last part of a name, lower case; of a name with a digest of the weights, the digest alone.

    So "Qwen/Qwen3-4B" and "models/qwen3-4b/" are one name.
    """
    bare = name.rstrip("/").rpartition("/")[2].casefold()
    with_digest = _WITH_DIGEST.fullmatch(bare)
    return with_digest[1] if with_digest else bare


def _name_in(config: Path) -> str | None:
    try:
        document = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    name = document.get("_name_or_path") if isinstance(document, dict) else None
    return name if isinstance(name, str) else None
