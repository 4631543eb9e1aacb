"""The behaviour policy: who wrote the log, and whether that is the student. Imports nothing heavy."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from opdkit.console import counted, verb
from opdkit.model.folder import weights_name

# Counted once per session, whatever is scored of it.
OTHER_MODEL, UNROUTED = "sessions of another model", "sessions without a teacher"
LONGEST_NAME = 80  # characters of a logged name that are kept
_WITH_DIGEST = re.compile(r".*(@[0-9a-f]{12})")


def student_names(model: str, files: Mapping[str, str]) -> frozenset[str]:
    """What a log may call the student: the name it was given, its folder's, the one in its config.json, its weights'.

    `files` are the digests of a folder's files, as `model_identity` finds them.
    """
    names: list[str | None] = [model, weights_name(model, files)]
    folder = Path(model)
    if folder.is_dir():
        names += [folder.resolve().name, _name_in(folder / "config.json")]
    return frozenset(_bare(name) for name in names if name)


def is_another(logged: str | None, student: frozenset[str]) -> bool:
    """Whether a log names another model than the student. A log that names none says nothing."""
    return bool(logged) and _bare(logged or "") not in student


def off_policy(found: Mapping[str, int], model: str) -> str | None:
    """Say that the log was written by other models than the student, `found` with their sessions; None without any."""
    if not found:
        return None
    named = ", ".join(f"{name} ({found[name]:,})" for name in sorted(found, key=lambda n: (-found[n], n))[:3])
    more = f" and {len(found) - 3:,} more" if len(found) > 3 else ""
    sessions = sum(found.values())
    return (
        f"{counted(sessions, 'session')} {verb(sessions, 'was', 'were')} written by another model than {model}, says "
        f"the log: {named}{more}. "
        "The student learns from replies that it would not have given (off-policy): where the log holds no log-probs "
        "of that model, nothing corrects for it"
    )


def _bare(name: str) -> str:
    """ "Qwen/Qwen3-4B" and "models/qwen3-4b/" are one name; of a name with a digest, the digest is what counts."""
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
