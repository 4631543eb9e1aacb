"""Tests of `opdkit compare`: which training is better, from what eval stored; and on sample_data in three commands."""

import json
import shutil
from pathlib import Path

import pytest
from named_trainings import PROMPTS, eval_config, train_named, two_trainings, write_prompts
from sample_world import DATA, MODEL
from typer.testing import CliRunner

import opdkit
from opdkit.cli import app
from opdkit.commands.compare import compare
from opdkit.commands.compare import run as run_compare
from opdkit.commands.report.collect import collect
from opdkit.config.compare import CompareConfig
from opdkit.console import WordConsole
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate import comparison
from opdkit.evaluate import stage as evaluate
from opdkit.evaluate.comparison import Side
from opdkit.evaluate.conclusion import read_conclusion
from opdkit.store.reading import read_all


@pytest.fixture(scope="module")
def made(tmp_path_factory, plain_model_dir) -> Path:
    return two_trainings(tmp_path_factory.mktemp("compared"), plain_model_dir)


@pytest.fixture
def run(made, tmp_path) -> Path:
    """Return a copy of the run, beside a copy of its prompts."""
    shutil.copy(made.parent / "prompts.jsonl", tmp_path)
    return Path(shutil.copytree(made, tmp_path / "run"))


def opdkit_command(*words: object) -> str:
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.stderr
    return done.stdout


def names(run: Path, *others: str | Path, **options) -> list[str]:
    found = compare(CompareConfig(run=run, others=tuple(map(str, others)), **options))
    return [one["training"] for one in found.trainings]


def test_the_values_are_those_of_eval_and_the_differences_paired(made) -> None:
    found = compare(CompareConfig(run=made, others=("a", "b")))
    for name, side in (("a", "before"), ("b", "after")):
        stored = {(row["metric"], row["domain"]): row for row in read_all(made / f"{name}.training", "scores")}
        assert {row["domain"] for row in found.scores["b"]} == {"all", "corrected", "uncorrected", "even", "odd"}
        for row in found.scores["b"]:
            known = stored[row["metric"], row["domain"]]
            assert (row[side], row["count"]) == (pytest.approx(known["after"]), known["count"])
    replies = [{row["prompt_id"]: row for row in read_all(made / f"{name}.training", "replies")
                if (row["model"], row["sample"]) == ("after", 0)} for name in "ab"]  # fmt: skip
    differing = {name for name in replies[0] if replies[0][name]["reply"] != replies[1][name]["reply"]}
    assert {row["prompt_id"] for row in found.replies} == differing
    assert differing, "nothing to show"
    for row in found.replies:
        assert [one["reply"] for one in row["replies"].values()] == [
            side[row["prompt_id"]]["reply"] for side in replies
        ]
    greedy = {(row["metric"], row["domain"]): row for row in found.scores["b"]}["passed_greedy", "all"]
    passed = [sum(row["passed"] for row in side.values()) / PROMPTS for side in replies]
    assert greedy["difference"] == pytest.approx(passed[1] - passed[0])
    assert greedy["low"] <= greedy["difference"] <= greedy["high"]


def test_json_has_no_colours(made, capsys, monkeypatch) -> None:
    console = WordConsole(force_terminal=True, color_system="truecolor")
    monkeypatch.setattr("opdkit.commands.compare.stdout", console)
    run_compare(CompareConfig(run=made, json=True))
    assert json.loads(capsys.readouterr().out)["sentence"] == compare(CompareConfig(run=made)).sentence


def test_what_each_training_did_and_cost(made) -> None:
    found = compare(CompareConfig(run=made))
    for one in found.trainings:
        steps = list(read_all(Path(one["run"]), "metrics"))
        assert one["steps"] == len(steps)
        assert one["tokens_read"] == sum(row["tokens_read"] for row in steps)
        assert (one["first_loss"], one["last_loss"]) == (steps[0]["loss"], steps[-1]["loss"])
        assert one["options"] == {"objective": {"a": "binary", "b": "opd"}[one["training"]]}
        drift = next(
            r for r in read_all(Path(one["run"]), "scores") if (r["metric"], r["domain"]) == ("kl_replies", "all")
        )
        assert one["drift"] == drift["after"]


@pytest.mark.parametrize("others", ["ab", "ba"])
def test_a_model_that_another_run_trained_has_none_of_this_one_s_facts(run, tmp_path, others: str) -> None:
    other = str(run / "a.training" / "train" / "model")
    evaluate.run(eval_config(run, "b", tmp_path / "prompts.jsonl", overwrite=True, trained=other))
    facts = {one["training"]: one for one in compare(CompareConfig(run=run, others=tuple(others))).trainings}
    assert {"steps", "first_loss", "seconds"} <= facts["a"].keys()
    assert facts["b"].keys() == {"training", "run", "options", "drift", "reply_tokens"}
    assert facts["a"]["options"] == facts["b"]["options"] == {}, "the options of one training differ from no others"


def test_what_is_unusual_about_each_training_is_said(made, monkeypatch) -> None:
    """The training with more right replies may have hacks that the sentence does not show."""
    monkeypatch.setattr(comparison, "find_unusual", lambda rows: [f"{rows['cut_off', 'all']['metric']} is high"])
    assert compare(CompareConfig(run=made)).watch == ["a: cut_off is high", "b: cut_off is high"]


def test_who_is_compared(run, plain_model_dir, tmp_path) -> None:
    assert names(run) == names(run, "a", "b") == ["a", "b"]
    assert names(run, "b", "a") == ["b", "a"], "differences are to the first"
    assert names(run / "a.training", run / "b.training") == ["a", "b"]
    assert names(run / "b.training") == names(run / "b.training", "a") == ["b", "a"], "those beside it"
    train_named(run, plain_model_dir, None, "combine")
    evaluate.run(eval_config(run, None, tmp_path / "prompts.jsonl"))
    assert names(run) == ["run", "a", "b"]
    assert names(run, "a") == ["run", "a"]
    assert names(run, "a", "b") == ["a", "b"]
    assert names(run, "train", "a", "b") == ["run", "a", "b"]
    other = Path(shutil.copytree(run, tmp_path / "other" / "run"))
    assert names(run, other) == [str(run), str(other)], "two folders of one name"


@pytest.mark.parametrize("is_same", [True, False])
def test_validation_scores_are_side_by_side_if_the_prompts_were_the_same(made, is_same: bool, monkeypatch) -> None:
    def describe(side: Side) -> dict:
        turns = ("s:1",) if is_same or side.name == "a" else ("s:1", "s:3")
        return {"training": side.name, "options": {}, "best_score": 0.4, "best_step": 7, "validated": turns}

    monkeypatch.setattr(comparison, "describe_training", describe)
    found = compare(CompareConfig(run=made)).trainings
    assert [one["best_score"] for one in found] == [0.4 if is_same else None] * 2
    assert [one["best_step"] for one in found] == [7, 7]
    assert all("validated" not in one for one in found)


def test_wrong_names_are_refused(made, tmp_path) -> None:
    with pytest.raises(ConfigError, match="'c' is neither"):
        compare(CompareConfig(run=made, others=("a", "c")))
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare(CompareConfig(run=made, others=("a",)))
    with pytest.raises(ConfigError, match="opdkit train"):
        compare(CompareConfig(run=tmp_path / "nowhere", others=("a",)))
    with pytest.raises(ConfigError, match=f"opdkit train {tmp_path}/run --name"):
        compare(CompareConfig(run=tmp_path / "run" / "a.training"))
    (tmp_path / "alone/train").mkdir(parents=True)
    (tmp_path / "alone/train/manifest.json").touch()
    with pytest.raises(ConfigError, match="alone has a training without a name"):
        compare(CompareConfig(run=tmp_path / "alone"))
    (tmp_path / "alone/b.training").mkdir()
    (tmp_path / "alone/train").rename(tmp_path / "alone/b.training/train")
    with pytest.raises(ConfigError, match="alone has b;"):
        compare(CompareConfig(run=tmp_path / "alone/b.training"))


def test_what_is_not_evaluated_says_what_to_run_or_is_evaluated_alike(run, tmp_path, capsys) -> None:
    shutil.rmtree(run / "b.training" / "eval")
    with pytest.raises(OpdkitError, match=r"opdkit eval \S*b.training --prompts"):
        compare(CompareConfig(run=run, others=("a", "b")))
    prompts = str(tmp_path / "prompts.jsonl")
    found = compare(CompareConfig(run=run, others=("a", "b"), prompts=prompts))
    assert capsys.readouterr().out == "", "the comparison says it"
    rows = list(read_all(run / "b.training", "replies"))
    assert {row["sample"] for row in rows} == {0, 1}, "with the options of a, not with the defaults"
    assert found == compare(CompareConfig(run=run, others=("a", "b"), prompts=prompts))
    other = eval_config(run, "b", tmp_path / "prompts.jsonl", samples=2, overwrite=True)
    evaluate.run(other)
    for table in ("replies", "scores"):  # as if it had been killed
        shutil.rmtree(run / "b.training" / "eval" / table)
    assert found.scores == compare(CompareConfig(run=run, others=("a", "b"), prompts=prompts)).scores


def test_other_prompts_or_options_cannot_be_compared(run, tmp_path) -> None:
    for prompts, options, what in [
        (write_prompts(tmp_path / "other.jsonl", "sing"), {}, "prompts:"),
        (tmp_path / "prompts.jsonl", {"max_new_tokens": 5}, "max_new_tokens: 4 -> 5"),
    ]:
        evaluate.run(eval_config(run, "b", prompts, overwrite=True, **options))
        with pytest.raises(OpdkitError, match=rf"{what}(.|\n)*opdkit eval \S*b.training .*--overwrite"):
            compare(CompareConfig(run=run))


def test_prompts_that_changed_or_moved(run, tmp_path) -> None:
    evaluated = Path(shutil.move(tmp_path / "prompts.jsonl", tmp_path / "moved.jsonl"))
    write_prompts(tmp_path / "prompts.jsonl", "sing")
    for name in "ab":  # the manifest names the file of the fixture
        path = run / f"{name}.training" / "eval" / "manifest.json"
        document = json.loads(path.read_text())
        document["configuration"]["prompts"] = str(tmp_path / "prompts.jsonl")
        path.write_text(json.dumps(document))
    for file in (None, str(tmp_path / "nowhere.jsonl")):
        with pytest.raises(OpdkitError, match="--prompts"):
            compare(CompareConfig(run=run, prompts=file))
    assert names(run, prompts=str(evaluated)) == ["a", "b"]
    shutil.copy(evaluated, run / "a.training" / "prompts.jsonl")
    assert names(run) == ["a", "b"], "a run that was moved still has prompts that were written into it"


def test_an_evaluation_of_before_another_training_does_not_count(run, plain_model_dir) -> None:
    train_named(run, plain_model_dir, "b", "combine", overwrite=True)
    with pytest.raises(OpdkitError, match=r"older train stage(.|\n)*opdkit eval"):
        compare(CompareConfig(run=run))


def test_it_is_printed_in_80_columns_as_json_and_from_python(made) -> None:
    printed = CliRunner().invoke(app, ["compare", str(made), "--replies", "2"], env={"COLUMNS": "80"}).stdout
    found = opdkit.Run(made).compare("a", "b")
    first, _, rest = printed.partition("\n\n")
    assert " ".join(first.split()) == " look: ".join([found.sentence, *found.watch])
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert "--objective" in rest
    assert rest.count("\n  a (") == 2
    assert json.loads(opdkit_command("compare", made, "--json"))["sentence"] == found.sentence
    assert found.sentence in " ".join(repr(found).split())
    assert found._repr_html_().startswith("<pre>")


def test_evaluate_returns_the_scores_of_the_training_that_is_named(run, tmp_path) -> None:
    options = {"prompts": tmp_path / "prompts.jsonl", "device": "cpu", "max_new_tokens": 4, "samples": 1,
               "overwrite": True}  # fmt: skip
    found = {name: opdkit.Run(run).evaluate(name=name, **options) for name in "ab"}
    for name, scores in found.items():
        assert list(scores) == list(opdkit.Run(run).training(name).scores())
    assert list(found["a"]) != list(found["b"])
    assert not (run / "eval").exists()


def test_the_report_of_several_has_the_comparison_without_texts(made, run) -> None:
    found = collect(made, 10).summary["comparison"]
    compared = compare(CompareConfig(run=made))
    assert found["sentence"] == compared.sentence
    assert [row[0] for row in found["tables"][0]][:2] == ["", "--objective"]
    assert found["tables"][1][0] == ["metric", "domain", "a", "b", "change", "95% interval", "n"]
    assert len(found["tables"][1]) == len(compared.scores["b"]) + 1
    assert "p0" not in json.dumps(found)
    assert collect(made / "a.training", 10).summary["comparison"] is None, "the report of one"
    shutil.rmtree(run / "b.training" / "eval")
    assert collect(run, 10).summary["comparison"] == {
        "sentence": f"a: {read_conclusion(run / 'a.training').sentence}", "tables": []
    }, "the only one that is left to say whether it got better"  # fmt: skip


@pytest.mark.slow
def test_two_objectives_on_sample_data_in_three_commands(tmp_path) -> None:
    """The second training needs no judging and no scoring: no file of extract, judge and teacher changes."""
    run, prompts = tmp_path / "run", tmp_path / "prompts.jsonl"
    rows = (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts.write_text("\n".join(rows[::6]), encoding="utf-8")  # twelve prompts, from every domain
    opdkit_command("extract", run, DATA / "logs", "--limit", 24)
    opdkit_command("judge", run, "--judge", "rules")
    opdkit_command("teacher", run, "--model", MODEL)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.rglob("*") if path.is_file()}
    small = ("--model", MODEL, "--validate", 0, "--epochs", 2)
    opdkit_command("train", run, "--name", "opd", "--objective", "opd", *small)
    opdkit_command("train", run, "--name", "binary", "--objective", "binary", *small)
    printed = opdkit_command("compare", run, "opd", "binary", "--prompts", prompts)
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before}
    assert after == before
    assert {path.name for path in run.iterdir()} == {"extract", "judge", "teacher", "opd.training", "binary.training"}
    assert "where users corrected the model" in " ".join(printed.split())
    assert "tokens read" in printed
