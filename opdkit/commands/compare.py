"""`opdkit compare`: compare trainings of one run or of several on the same held-out prompts."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from opdkit.config.command_line import quote
from opdkit.config.compare import CompareConfig
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import did_you_mean, from_saved
from opdkit.console import say, stdout
from opdkit.errors import AnotherPlanError, ConfigError, OpdkitError
from opdkit.evaluate.checks import read_evaluated_prompts
from opdkit.evaluate.comparison import Comparison, compare_trainings, print_comparison
from opdkit.evaluate.conclusion import is_evaluated
from opdkit.store.plans import check_upstream, differences, has_stage, list_trainings, manifest, name_runs, stage_dir
from opdkit.store.run_stage import run_stage

# Options and inputs of eval, beside the models, that decide what is measured.
_MEASURED = ("max_prompts", "samples", "temperature", "max_new_tokens", "template_arg", "seed", "judge_model",
             "prompts", "check", "wording", "load_in_4bit")  # fmt: skip


def run(config: CompareConfig) -> None:
    """Print which training is better, its numbers, and replies that differ. Raises what `compare` raises."""
    comparison = compare(config)
    if config.json:
        print(json.dumps(asdict(comparison), indent=2))
    else:
        print_comparison(comparison, config.replies)


def compare(config: CompareConfig) -> Comparison:
    """Evaluate the trainings without an evaluation on `--prompts`, and compare all. Raises what the callees raise."""
    runs = choose_runs(config)
    for path in runs.values():
        if not is_evaluated(path):
            evaluate(path, config.prompts, next(filter(is_evaluated, runs.values()), None))
    return compare_runs(runs, config.prompts)


def choose_runs(config: CompareConfig) -> dict[str, Path]:
    """Return the trainings to compare, by name: those of RUN or, if RUN is itself a named training, of its run.

    RUN's own training, if any, is one of them if OTHERS is empty, is a single name, or holds only run directories. It
    is also known as `train`.
    Raises ConfigError if a name is unknown, or only one training is left.
    """
    home = stage_dir(config.run, "teacher").parent  # for a named training: the run whose targets it shares
    names = {name: path for name, path in list_trainings(home).items() if path.resolve() != config.run.resolve()}
    words = names | ({"train": home} if has_stage(home, "train") else {})  # its folder names the unnamed training
    train = f"`opdkit train {quote(home)} --name NAME ...` adds one"
    for word in config.others:
        if word not in words and not Path(word).is_dir():
            near = did_you_mean(word, list(words)) if words else train
            raise ConfigError(f"{word!r} is neither a training of {home} nor a run directory; {near}")
    has_only_folders = bool(config.others) and words.keys().isdisjoint(config.others)
    takes_part = has_only_folders or (len(config.others) < 2 and has_stage(config.run, "train"))
    others = [words.get(word, Path(word)) for word in config.others] or list(names.values())
    chosen = name_runs(list(dict.fromkeys([config.run, *others] if takes_part else others)))
    if len(chosen) < 2:
        trainings = ["a training without a name"] * has_stage(home, "train") + list(list_trainings(home))
        raise ConfigError(f"there is nothing to compare with: {home} has {', '.join(trainings) or 'no training'}; "
                          f"{train}. Or name another run directory")  # fmt: skip
    return chosen


def evaluate(path: Path, prompts: str | None, example: Path | None) -> None:
    """Evaluate a training with the options of the evaluation of `example`. Raises OpdkitError without `prompts`."""
    if prompts is None:
        raise OpdkitError(f"{path} has no evaluation: run `opdkit eval {quote(path)} --prompts FILE`, or pass "
                          "--prompts FILE here")  # fmt: skip
    saved = manifest(example, "eval")["configuration"] if example else {}
    others = "judge_url", "api_key_env", "neutral_text", "device", "dtype"
    options = {name: saved.get(name) for name in (*_MEASURED, *others)}
    evaluation = from_saved(EvalConfig, options, run=path, prompts=prompts)
    evaluation.check_inputs()
    say(f"evaluating {path}")
    with stdout.capture():  # hides eval's output, which the comparison repeats
        try:
            run_stage("eval", evaluation)
        except AnotherPlanError:  # an evaluation that was begun with other options, and not finished
            run_stage("eval", replace(evaluation, overwrite=True))


def compare_runs(runs: dict[str, Path], prompts: str | None = None) -> Comparison:
    """Compare evaluated trainings, given by name. `prompts` is the prompts file; by default the one that eval read.

    Raises OpdkitError, which says what to run, if the evaluations do not fit: a stage was run again after one, a
    training was evaluated with other prompts or options than the first, or the prompts file is gone or changed.
    """
    measured = {}
    for name, path in runs.items():
        check_upstream(path, ["eval"])
        plan = manifest(path, "eval")["plan"]
        measured[name] = {what: v for what, v in (plan["config"] | plan["inputs"]).items() if what in _MEASURED}
    (first, options), *others = measured.items()
    for other, own in others:
        if changes := differences(options, own):
            lines = "".join(f"\n  {change}" for change in changes)
            again = f"`opdkit eval {quote(runs[other])} --prompts FILE --overwrite`"
            raise OpdkitError(f"{first} and {other} were evaluated differently:{lines}\nRun {again} with the file and "
                              f"the options of {first}")  # fmt: skip
    remedy = "pass that as --prompts FILE, or run `opdkit eval` again for each, with --overwrite"
    return compare_trainings(runs, read_evaluated_prompts(runs[first], remedy, prompts), options["seed"])
