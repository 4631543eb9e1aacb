"""Redaction of people's names. No pattern can match names, so a spaCy model finds them, through presidio."""

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

from opdkit.errors import ConfigError

CHUNK = 100_000  # most characters per call of the model, cut at a line break if possible; spaCy's limit is a million


@cache
def load_names(model: str) -> Callable[[str, Counter[str]], str]:
    """Return a function that replaces people's names in a text by [name] and counts them.

    `model` is the name of an installed spaCy pipeline, or its folder. It finds names in its own language only.
    Raises ConfigError if presidio or the model is missing. Neither is ever downloaded here.
    """
    try:
        import spacy
        from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
        from presidio_analyzer.nlp_engine import SpacyNlpEngine
        from presidio_analyzer.predefined_recognizers import SpacyRecognizer
    except ImportError as error:
        raise ConfigError(f"--redact-names needs presidio ({error}): pip install 'opdkit[pii]'") from None
    if not (spacy.util.is_package(model) or (Path(model) / "meta.json").is_file()):
        raise ConfigError(f"--redact-names {model}: no spaCy model of this name is installed, and it is not a folder "
                          f"with meta.json: python -m spacy download {model}")  # fmt: skip
    language = cast("dict[str, str]", spacy.info(model))["lang"]
    registry = RecognizerRegistry([SpacyRecognizer(language)], supported_languages=[language])
    engine = SpacyNlpEngine([{"lang_code": language, "model_name": model}])
    analyzer = AnalyzerEngine(registry, engine, supported_languages=[language])

    def replace_names(text: str, counts: Counter[str]) -> str:
        pieces = []
        for piece in re.findall(rf"(?s).{{1,{CHUNK}}}(?:\n|\Z)|.{{1,{CHUNK}}}", text):
            names = analyzer.analyze(piece, language, entities=["PERSON"])
            for name in sorted(names, key=lambda name: -name.start):  # from the end, so that offsets before stay valid
                if not set("[]") & set(piece[name.start : name.end]):  # a placeholder is not a name
                    piece = f"{piece[: name.start]}[name]{piece[name.end :]}"
                    counts["name"] += 1
            pieces.append(piece)
        return "".join(pieces)

    return replace_names
