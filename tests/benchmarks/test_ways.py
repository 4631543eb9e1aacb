"""What a user would do instead: each way on the sample model and its log, and how values are chosen and summed up."""

import itertools
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from benchmarks.worlds import WORLDS, Built, ways
from benchmarks.worlds.measure import prepared
from benchmarks.worlds.ways import BASE, RATES, SEEDS, TUNING_SEEDS, WAYS, Outcome, run_way
from sample_world import DATA, MODEL

from opdkit.errors import OpdkitError
from opdkit.evaluate.checks import HeldOutPrompt, Patterns
from opdkit.model.load import load_model, load_tokenizer
from opdkit.store.reading import read_all

pytest.importorskip("trl", reason="TRL is not installed")

SESSIONS = 12


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return a world of the sample model with a few sessions of its log."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "model").symlink_to(MODEL)
    (folder / "logs").mkdir()
    with (DATA / "logs" / "openai.jsonl").open(encoding="utf-8") as log:
        (folder / "logs" / "log.jsonl").write_text("".join(islice(log, SESSIONS)), encoding="utf-8")
    prompts = (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "prompts.jsonl").write_text("\n".join(prompts[::12]) + "\n", encoding="utf-8")
    return Built(replace(WORLDS["habit"], samples=1, max_new_tokens=48), folder)


@pytest.fixture(scope="module")
def run(built: Built) -> Path:
    run = prepared(built, built.folder / "run")
    ways.prepare_ways(built, run)
    return run


def weights(folder: Path) -> list[float]:
    return [weight.sum().item() for weight in load_model(str(folder), device="cpu", dtype="float32").parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way in WAYS if way != "rules"])
def test_every_way_trains_another_model(built: Built, run: Path, way: str, tmp_path: Path) -> None:
    outcome = run_way(built, run, way, 3e-4, 0, tmp_path)
    assert weights(outcome.model) != weights(MODEL)
    assert outcome.system is None
    teachers = {"dpo": {"scored", "written"}, "everything": set(), "praised": set()}
    assert {name for name, number in outcome.tokens.items() if number} == {"trained"} | teachers.get(way, {"scored"})
    if way == "everything":
        assert outcome.tokens["trained"] == ways.EPOCHS * sum(
            len(ids_of(row, "completion")) for row in ways.everything_rows(run)
        )
    numbers = ways.measure_outcome(built, outcome, 0)
    assert 0 <= numbers["corrected"] <= 1
    assert numbers["prompt_tokens"] > numbers["reply_tokens"] > 0


def ids_of(row: dict, reply: str) -> list[int]:
    """Return the tokens of a row's prompt and reply, as a trainer renders them."""
    messages, tools = row["prompt"] + row[reply], json.loads(row["tools"] or "null")
    return load_tokenizer(str(MODEL)).apply_chat_template(messages, tools=tools)["input_ids"]


def test_everything_is_every_judged_reply(run: Path) -> None:
    judged = {row["turn_id"] for row in read_all(run, "verdicts")}
    assert len(judged) > SESSIONS
    assert {row["turn_id"] for row in ways.everything_rows(run)} == judged


def test_dpo_prefers_what_the_hinted_teacher_wrote(built: Built, run: Path) -> None:
    chat = ways._chat(built)
    run = ways._shared(run) / "written"
    rows = list(ways.dpo_rows(run, chat))
    hinted = [row for row in read_all(run, "verdicts") if row["hint"]]
    assert len(hinted) // 2 < len(rows) <= len(hinted)
    written = [row["response_ids"] for row in read_all(run, "targets") if row["written"] is not None]
    rendered = [ids_of(row, "chosen") for row in rows]
    assert all(any(ids[-len(reply) - 1 : -1] == list(reply) for reply in written) for ids in rendered)
    assert sum(row["chosen"][0]["content"] != row["rejected"][0].get("content") for row in rows) > len(rows) // 2


def test_rules_are_read_at_every_request(built: Built, run: Path, tmp_path: Path) -> None:
    few, all_of_them = (run_way(built, run, "rules", n, 0, tmp_path / str(n)) for n in (1, 20))
    assert few.model == all_of_them.model == built.model
    assert few.system is not None
    assert few.system.count("\n- ") == 0 < all_of_them.system.count("\n- ")
    lengths = [ways.measure_outcome(built, outcome, 0)["prompt_tokens"] for outcome in (Outcome(MODEL), few)]
    assert lengths[0] < lengths[1]


def test_where_the_rules_go() -> None:
    prompt = HeldOutPrompt("p", "d", [{"role": "user", "content": "Hi"}], None, Patterns((), ()))
    assert ways.with_system(prompt, None) is prompt
    once = ways.with_system(prompt, "- Be brief.")
    assert [(m["role"], m["content"]) for m in once.messages] == [("system", "- Be brief."), ("user", "Hi")]
    twice = ways.with_system(once, "- Be kind.")
    assert twice.messages[0]["content"] == "- Be brief.\n\n- Be kind."


def test_a_training_that_hands_out_no_model_leaves_the_one_before(built, run, tmp_path, monkeypatch) -> None:
    def refuse(config) -> None:
        raise OpdkitError("worse than before")

    monkeypatch.setattr(ways, "train", refuse)
    outcome = run_way(built, run, "default", 1e-2, 0, tmp_path)
    assert outcome.model == built.model
    assert outcome.tokens["scored"] > 0


def test_values_are_chosen_by_both_shares_and_reported_per_seed(tmp_path: Path) -> None:
    built = Built(WORLDS["habit"], tmp_path / "habit-0.3")
    numbers = {}
    for value, seed in itertools.product(RATES, TUNING_SEEDS):
        best = value == RATES[3] or (value == RATES[1] and seed == TUNING_SEEDS[0])  # one is best by luck
        numbers[ways.cell(built, "kto", value, seed).name] = {
            "corrected": 0.8 if best else 0.9, "uncorrected": 0.9 if best else 0.1}  # fmt: skip
    del numbers[ways.cell(built, "kto", RATES[6], TUNING_SEEDS[1]).name]
    assert set(ways.best_values(built, "kto", numbers, TUNING_SEEDS[:1])[:2]) == {RATES[1], RATES[3]}
    assert ways.best_values(built, "kto", numbers, TUNING_SEEDS)[0] == RATES[3]
    assert RATES[6] not in ways.best_values(built, "kto", numbers, TUNING_SEEDS)
    for seed in SEEDS:
        for name, value, corrected in ((BASE, 0.0, 0.2), ("kto", 1e-4, 0.7 + seed / 10)):
            numbers[ways.cell(built, name, value, seed).name] = {
                "corrected": corrected, "uncorrected": 1.0 if name == BASE else 0.95, "tokens": {"trained": 9},
                "prompt_tokens": 10.0, "reply_tokens": 2.0}  # fmt: skip
    row = ways.row_of(built, "kto", 1e-4, numbers)
    assert row["gain"] == pytest.approx([0.5, 0.6, 0.7])
    assert row["forgetting"] == pytest.approx([0.05] * 3)
    assert (row["world"], row["request_tokens"], row["tokens"]) == ("habit-0.3", 12.0, {"trained": 9})
