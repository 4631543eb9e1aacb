"""Alternatives to opdkit (TRL's trainers, raw reactions, rules in the prompt), on the sample model and its log."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from benchmarks.worlds import WORLDS, Built, built_in, ways
from benchmarks.worlds.measure import measure_model, prepared, with_system
from benchmarks.worlds.ways import REACTION, TRL, measure_way, train_trl, way_cell
from sample_world import DATA, MODEL

from opdkit.evaluate.checks import HeldOutPrompt, Patterns
from opdkit.model.load import load_model, load_tokenizer
from opdkit.store.reading import read_all

pytest.importorskip("trl", reason="TRL is not installed")

SESSIONS = 12


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder with a world of the sample model and a few sessions of its log."""
    work = tmp_path_factory.mktemp("work")
    folder = work / "worlds" / "habit"
    (folder / "logs").mkdir(parents=True)
    (folder / "model").symlink_to(MODEL)
    with (DATA / "logs" / "openai.jsonl").open(encoding="utf-8") as log:
        (folder / "logs" / "log.jsonl").write_text("".join(islice(log, SESSIONS)), encoding="utf-8")
    prompts = (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "prompts.jsonl").write_text("\n".join(prompts[::12]) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(WORLDS, "habit", replace(WORLDS["habit"], samples=1, max_new_tokens=48))
        yield work


@pytest.fixture
def built(work: Path) -> Built:
    return built_in(work, "habit")


@pytest.fixture(scope="module")
def run(work: Path) -> Path:
    built = built_in(work, "habit")
    run = prepared(built, built.folder / "run")
    ways.prepare_reaction(built, run)
    ways.prepare_trl(run)
    return run


def weights(folder: Path) -> list[float]:
    return [weight.sum().item() for weight in load_model(str(folder), device="cpu", dtype="float32").parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("way", TRL)
def test_every_trainer_trains_another_model(
    built: Built, run: Path, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "fit_epochs", lambda steps: 2)
    tokens = train_trl(built, run, way, 3e-4, 0, tmp_path)
    assert weights(tmp_path / "model") != weights(MODEL)
    teachers = {"dpo": {"scored", "written"}, "kto": {"scored"}}
    assert {name for name, number in tokens.items() if number} == {"trained"} | teachers.get(way, set())
    if way == "everything":
        assert tokens["trained"] == 2 * sum(len(ids_of(row, "completion")) for row in ways.everything_rows(run))
    numbers = measure_model(built, tmp_path / "model", 0)
    assert 0 <= numbers["corrected"] <= 1
    assert numbers["prompt_tokens"] > numbers["reply_tokens"] > 0


def test_raw_reactions_are_the_hints_of_a_training_of_opdkit(work: Path, run: Path) -> None:
    cell = way_cell("habit", REACTION, 1e-3, 0)
    targets = list(read_all(built_in(work, "habit").folder / cell.settings["source"], "targets"))
    said = {m["content"] for row in read_all(run, "sessions") for m in row["messages"] if m["role"] != "assistant"}
    assert {row["hint"] for row in targets if row["hint"]} <= said
    numbers = cell.measure(work, **cell.settings)
    assert numbers["model"] is False or numbers["tokens"]["trained"] > 0


def ids_of(row: dict, reply: str) -> list[int]:
    """Return the token ids of a row's prompt and reply, as a trainer renders them."""
    messages, tools = row["prompt"] + row[reply], json.loads(row["tools"] or "null")
    return load_tokenizer(str(MODEL)).apply_chat_template(messages, tools=tools)["input_ids"]


def test_everything_is_every_judged_reply(run: Path) -> None:
    judged = {row["turn_id"] for row in read_all(run, "verdicts")}
    assert len(judged) > SESSIONS
    assert {row["turn_id"] for row in ways.everything_rows(run)} == judged


def test_rules_are_read_at_every_request(work: Path, run: Path) -> None:
    plain = measure_model(built_in(work, "habit"), MODEL, 0)
    few, many = (measure_way(work, "habit", "rules", n, 0) for n in (1, 20))
    assert plain["prompt_tokens"] < few["prompt_tokens"] < many["prompt_tokens"]
    assert few["tokens"] == many["tokens"] == {}
    assert not list((work / "ways").iterdir())


def test_where_the_rules_go() -> None:
    prompt = HeldOutPrompt("p", "d", [{"role": "user", "content": "Hi"}], None, Patterns((), ()))
    assert with_system(prompt, None) is prompt
    once = with_system(prompt, "- Be brief.")
    assert [(m["role"], m["content"]) for m in once.messages] == [("system", "- Be brief."), ("user", "Hi")]
    twice = with_system(once, "- Be kind.")
    assert twice.messages[0]["content"] == "- Be brief.\n\n- Be kind."
