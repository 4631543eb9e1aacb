"""Texts that opdkit writes into prompts: the judge's questions, its criterion, and the words around a hint.

`wording.toml` beside this file holds the defaults. A file of the same form (`--wording`) replaces some of them.
"""

import tomllib
from pathlib import Path

from opdkit.config.fields import JSON, did_you_mean, read_text, read_toml
from opdkit.errors import ConfigError

Texts = dict[str, str]

_DECISIONS = (r"\boxed{1}", r"\boxed{-1}")
# Table and key -> what the text must hold.
_NEEDED = {
    ("judge", "hint"): (*_DECISIONS, "[HINT_START]", "[HINT_END]"),
    ("judge", "reward"): _DECISIONS,
    ("judge", "edited"): ("{reply}",),
    ("judge", "kept"): ("{reply}",),
    ("criterion", "question"): ("{criterion}", *_DECISIONS),
    ("probe", "planted_error"): ("{request}", "{claim}"),
    ("teacher", "hint"): ("{hint}",),
}


def _strip(document: JSON) -> dict[str, Texts]:
    return {table: {key: text.strip() for key, text in texts.items()} for table, texts in document.items()}


DEFAULTS = _strip(tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")))


def read_wording(path: Path | None, defaults: dict[str, Texts] = DEFAULTS) -> dict[str, Texts]:
    """Return table -> key -> text: those of the file, and the defaults for all others.

    Raises ConfigError that names the file, the table and the key: for an unknown one, for a value that is not text, and
    for a text that lacks what opdkit fills in or the parser of the votes looks for.
    """
    document = read_toml(path, "--wording") if path else {}
    for table, texts in document.items():
        where = f"--wording {path}: [{table}]"
        if table not in DEFAULTS or not isinstance(texts, dict):
            raise ConfigError(f"{where} is not a table of texts; the tables are {', '.join(DEFAULTS)}")
        for key, text in texts.items():
            if key not in DEFAULTS[table]:
                raise ConfigError(f"{where} has no text {key!r}; {did_you_mean(key, list(DEFAULTS[table]))}")
            if not isinstance(text, str) or not text.strip():
                raise ConfigError(f"{where} {key} is {text!r}; it must be a text")
            if missing := [part for part in _NEEDED.get((table, key), ()) if part not in text]:
                # Between double quotes TOML reads "\b" as one character.
                remedy = "; between single quotes a backslash stays one" if "\b" in text else ""
                raise ConfigError(f"{where} {key} lacks {', '.join(missing)}{remedy}")
    own = _strip(document)
    return {table: texts | own.get(table, {}) for table, texts in defaults.items()}


def judge_texts(wording: Path | None, criterion: Path | None) -> Texts:
    """Return the judge's texts: those of `--wording`, with the question about the reward that `--criterion` words.

    That is plain text, which says what +1, -1 and 0 mean; the last line of the default question follows it. Raises what
    `read_wording` raises, and ConfigError for no text, or where both files word that question.
    """
    texts = read_wording(wording)["judge"]
    if criterion is None:
        return texts
    where, text = f"--criterion {criterion}", read_text(criterion, "--criterion").strip()
    if not text:
        raise ConfigError(f"{where} is empty; it must say which reply is +1, which is -1 and which is 0")
    if texts["reward"] != DEFAULTS["judge"]["reward"]:
        raise ConfigError(f"{where}: the question about the reward is in --wording {wording}, too; leave one of them")
    return texts | {"reward": f"{text}\n{DEFAULTS['judge']['reward'].splitlines()[-1]}"}


def make_wording_inputs(tables: dict[str, Texts]) -> JSON:
    """Return the texts of these tables as an input of a stage's plan, without those that are the defaults."""
    own = {table: texts for table, texts in tables.items() if texts != DEFAULTS[table]}
    return {"wording": own} if own else {}
