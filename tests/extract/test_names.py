"""Tests of `extract --redact-names` (opdkit/extract/names.py): a spaCy model finds people's names through presidio."""

import importlib
import json
import sys

import pytest
from small_logs import jsonl, run, tables

from opdkit.errors import ConfigError
from opdkit.extract import names
from opdkit.extract.redact import Redactor


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Save a pipeline that knows three people and a town, since no trained one can be downloaded; return its path."""
    spacy = pytest.importorskip("spacy")
    pytest.importorskip("presidio_analyzer")
    pipeline = spacy.blank("en")
    people = [{"label": "PERSON", "pattern": name} for name in ("Ada Lovelace", "Björn", "Bob")]
    pipeline.add_pipe("entity_ruler").add_patterns([*people, {"label": "GPE", "pattern": "Turin"}])
    pipeline.to_disk(folder := tmp_path_factory.mktemp("spacy") / "people")
    return str(folder)


def test_names_are_replaced_and_places_stay(model):
    redactor = Redactor(False, (), model)
    assert redactor.text("Ada Lovelace met Björn in Turin.") == "[name] met [name] in Turin."
    assert redactor.counts == {"name": 2}


def test_names_beside_the_other_rules(model):
    redactor = Redactor(True, (), model)
    assert redactor.text("Mail Björn at bjorn@example.com please") == "Mail [name] at [email] please"


def test_ids_and_names_of_fields_and_tools_are_not_shown_to_the_model(model):
    redactor = Redactor(False, (), model)
    assert redactor.text("Bob") == "Bob"
    assert redactor.value({"Bob": "Bob", "to": "Bob and Björn"}) == {"Bob": "Bob", "to": "[name] and [name]"}


def test_a_text_that_is_longer_than_spacy_reads(model, monkeypatch):
    monkeypatch.setattr(names, "CHUNK", 70)
    text = "Hello Ada Lovelace, how are you?\n" * 20
    assert Redactor(False, (), model).text(text) == text.replace("Ada Lovelace", "[name]")


def test_extract_writes_no_name(tmp_path, model):
    log = jsonl(tmp_path / "log.jsonl", {"messages": [
        {"role": "user", "content": "I am Ada Lovelace."}, {"role": "assistant", "content": "Hello Ada Lovelace!"},
        {"role": "user", "content": "Book Turin."}]})  # fmt: skip
    summary = run(tmp_path / "run", log, redact_names=model)
    written = json.dumps(tables(tmp_path / "run"))
    assert "Lovelace" not in written
    assert "Turin" in written
    assert summary.counters.labels("redacted") == {"name": 2}


def test_a_model_that_is_not_installed(tmp_path):
    pytest.importorskip("presidio_analyzer")
    with pytest.raises(ConfigError, match="en_core_web_xxl"):
        run(tmp_path / "run", jsonl(tmp_path / "log.jsonl", {"messages": []}), redact_names="en_core_web_xxl")
    assert not (tmp_path / "run").exists()


def test_without_presidio_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    with pytest.raises(ConfigError, match=r"opdkit\[pii\]"):
        importlib.reload(names).load_names("en_core_web_sm")
