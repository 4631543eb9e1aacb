"""Texts that opdkit writes into prompts: the judge's questions, criteria, probes, and the words around a hint.

`wording.toml` in this folder holds the defaults. A file of the same form (`--wording`) replaces some of them.
"""

import tomllib
from pathlib import Path

from opdkit.config.fields import JSON, did_you_mean, read_text, read_toml
from opdkit.errors import ConfigError

Texts = dict[str, str]

_DECISIONS = (r"\boxed{1}", r"\boxed{-1}")
# (table, key) -> what the text must contain.
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
    """Return table -> key -> text: the texts of the file, and defaults for the others.

    Raises ConfigError, which names the file, table and key. Reasons are an unknown table or key, a value that is not
    text, and a text without a placeholder that opdkit fills in or a mark that the parser of votes looks for.
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
                # In double quotes, TOML reads "\b" as a single control character.
                remedy = "; between single quotes a backslash stays one" if "\b" in text else ""
                raise ConfigError(f"{where} {key} lacks {', '.join(missing)}{remedy}")
    own = _strip(document)
    return {table: texts | own.get(table, {}) for table, texts in defaults.items()}


def judge_texts(wording: Path | None, criterion: Path | None) -> Texts:
    """Return the judge's texts: those of `--wording`, with the question about the reward taken from `--criterion`.

    The criterion is plain text that says what +1, -1 and 0 mean; the last line of the default question is appended.
    Raises what `read_wording` raises, and ConfigError if the text is empty, or if both files hold this question.
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
    """Return the tables of texts that differ from the defaults, as an input of a stage's plan."""
    own = {table: texts for table, texts in tables.items() if texts != DEFAULTS[table]}
    return {"wording": own} if own else {}
