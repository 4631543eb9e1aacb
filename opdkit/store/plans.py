"""Plans: everything that decides the rows of a stage, pinned in its manifest before the first row is computed."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opdkit.config.command_line import quote
from opdkit.config.fields import JSON, StageConfig
from opdkit.config.shard import parse_shard
from opdkit.config.shared import TRAINING
from opdkit.config.wording import DEFAULTS
from opdkit.console import counted
from opdkit.errors import AnotherPlanError, ConfigError, OpdkitError
from opdkit.store.atomic import remove_folder, write_text
from opdkit.store.digests import digest_file
from opdkit.store.disk import disk_errors_explained

_BLOCKS, _BLOCK_BYTES = 64, 1 << 16  # of a large file of weights: only these blocks are digested
_OUTPUTS = ("model", "adapter", "epochs", "checkpoints")  # of a training, besides its tables
_NO_DATA = ("manifest.json", "lost+found")  # another shard may just have begun the stage, or a disk is mounted there
_ALL_SHARDS = "--overwrite removes the parts of all shards: overwrite once without --shard, then start the shards"
DRAW = "draw"  # key of a plan: a random id for each time it was begun; ignored when plans are compared


def stage_dir(run: Path, stage: str) -> Path:
    """Return the folder of a stage of a run. A named training has only train and eval; the others are its run's."""
    home = run
    if run.suffix != TRAINING and (run.name in ("", "..") or run.is_symlink()):  # "." or a link may be a training
        home = run.resolve()
    is_shared = home.suffix == TRAINING and stage not in ("train", "eval")
    return (home.parent if is_shared else run) / stage


def no_run_error(directory: Path) -> OpdkitError:
    """Return the error for a directory in which no stage was started: it may hold nights, runs, or jobs."""
    runs = " or ".join(str(path.parents[1]) for path in sorted(directory.glob("*/extract/manifest.json"))[:3])
    advice = f"is it {runs}?" if runs else f"start one with `opdkit extract {quote(directory)} LOGS...`"
    if (directory / "slurm" / "submit.sh").exists():
        advice = "none of its Slurm jobs has begun (`squeue --me` lists those in the queue)"
    if any(directory.glob("nights/[0-9]*/")):
        advice = f"each of its nights is one, and `opdkit models {quote(directory)}` lists them"
    return OpdkitError(f"{directory} holds no run: {advice}")


def has_stage(run: Path, stage: str) -> bool:
    """Return True if the stage has been started."""
    return (stage_dir(run, stage) / "manifest.json").exists()


def is_table(path: Path) -> bool:
    """Return True for the folder of a table, by its name."""
    from opdkit.store.tables import APPENDED, TABLES  # imported here: it imports pyarrow

    return path.name in TABLES or path.name in APPENDED


def check_own_folder(run: Path, stage: str) -> None:
    """Raise ConfigError for a stage that has not begun and whose folder is somebody else's, such as data to train on.

    The stage would write into it, and `--overwrite` would remove it.
    """
    folder, entries = stage_dir(run, stage), list[Path]()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        entries = [] if has_stage(run, stage) else sorted(folder.iterdir())
    own = _NO_DATA + (_OUTPUTS if any(map(is_table, entries)) else ())  # if it has tables, its manifest was removed
    others = (path.name for path in entries if not (path.name[0] == "." or is_table(path) or path.name in own))
    if other := next(others, None):
        raise ConfigError(f"{folder} is not a folder of opdkit: it holds {other}; move it away, or choose another run "
                          f"directory, such as {quote(run / 'run')}")  # fmt: skip


def checkpoints_dir(run: Path) -> Path:
    return stage_dir(run, "train") / "checkpoints"


def list_trainings(run: Path) -> dict[str, Path]:
    """Return the named trainings of a run, by name. Commands that read a training take its folder as RUN."""
    folders = sorted(path.parent.parent for path in run.glob(f"*{TRAINING}/train/manifest.json"))
    return {folder.stem: folder for folder in folders}


def name_runs(paths: Sequence[Path]) -> dict[str, Path]:
    """Return runs by the names of their trainings or folders, or by their paths if two have the same name."""
    names = [path.resolve().name.removesuffix(TRAINING) for path in paths]
    return {name if names.count(name) == 1 else str(path): path for name, path in zip(names, paths, strict=True)}


def fingerprint(plan: JSON) -> str:
    """Return a short digest of a plan's canonical JSON."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:16]


def manifest(run: Path, stage: str) -> JSON:
    """Read the manifest of a stage. Raises OpdkitError if the stage has not been started or the manifest is damaged."""
    path = stage_dir(run, stage) / "manifest.json"
    try:
        document: JSON = json.loads(path.read_text(encoding="utf-8"))
        plan = document["plan"]
        kinds = [type(document["fingerprint"]), *(type(plan[key]) for key in ("config", "upstream", "parts"))]
    except FileNotFoundError:
        run = path.parents[1]
        raise OpdkitError(f"{run} has no {stage} stage yet: run `opdkit {stage} {quote(run)} ...` first") from None
    except (ValueError, LookupError, TypeError) as error:  # not UTF-8, not JSON, or another document
        raise OpdkitError(f"{path} is damaged ({error}); run `opdkit {stage}` again with --overwrite") from error
    if kinds != [str, dict, dict, int]:
        raise OpdkitError(f"{path} is damaged (it holds no plan); run `opdkit {stage}` again with --overwrite")
    return document


def find_command(run: Path, stage: str) -> str:
    """Return the command that writes a stage of a run: its own, unless the manifest names another."""
    return str(manifest(run, stage)["plan"].get("command", stage)) if has_stage(run, stage) else stage


def judge_kind(run: Path) -> str | None:
    """Return the `--judge` that wrote the verdicts of a run or, for a rollout, the hints that it answers."""
    document = manifest(run, "judge")
    options = document.get("configuration", document["plan"]["config"])  # "configuration" names the source run, too
    source = options.get("from_run")
    if source and has_stage(Path(source), "judge"):
        return judge_kind(Path(source))
    return str(options["judge"]) if "judge" in options else None


def read_hint_text(run: Path, *stages: str) -> str:
    """Return the words around a hint that a run's teacher recorded, else that its rollout did, else the default.

    `stages`: stages to look in, by default teacher and extract. The first that has been started counts.
    """
    stage = next((name for name in stages or ("teacher", "extract") if has_stage(run, name)), None)
    inputs = manifest(run, stage)["plan"].get("inputs", {}) if stage else {}
    # The inputs of an extract stage are its logs, by name, and a log may be called "wording".
    return str(inputs.get("wording", {}).get("teacher", DEFAULTS["teacher"])["hint"])


def list_redone_upstream(plan: JSON, manifests: Mapping[str, JSON]) -> list[str]:
    """Return the upstream stages in a plan that have another fingerprint now."""
    pins = plan["upstream"].items()
    return [stage for stage, pin in pins if stage in manifests and manifests[stage]["fingerprint"] != pin]


def find_redone_upstream(run: Path, stage: str) -> str | None:
    """Return the first stage done again since `stage` was computed from it. Raises OpdkitError if one is gone."""
    plan = manifest(run, stage)["plan"]
    return next(iter(list_redone_upstream(plan, {name: manifest(run, name) for name in plan["upstream"]})), None)


def find_upstream_change(run: Path, stage: str) -> str | None:
    """Return the stage that was done again since `stage` was computed from it, or "earlier" if one is gone, or None."""
    try:
        return find_redone_upstream(run, stage)
    except OpdkitError:
        return "earlier"


def explain_upstream_change(run: Path, stage: str) -> str | None:
    """Return a sentence if an upstream stage was done again since `stage` was computed from it. None if one is gone."""
    if (upstream := find_upstream_change(run, stage)) in (None, "earlier"):  # "earlier": use `opdkit check`
        return None
    was = f"{stage_dir(run, stage)}: computed from an older {upstream} stage than the one there now"
    return f"{was}; run it again, with --overwrite"


def check_upstream(run: Path, stages: Sequence[str]) -> None:
    """Raise OpdkitError if a stage that one of these stages was computed from has been done again since."""
    for stage in stages:
        if upstream := find_redone_upstream(run, stage):
            folder = stage_dir(run, stage)
            raise OpdkitError(
                f"{folder} was computed from an older {upstream} stage than the one there now: run `opdkit "
                f"{find_command(run, stage)} {quote(folder.parent)} ...` as before, with --overwrite"
            )


def write_or_check_manifest(config: StageConfig, plan: JSON) -> str:
    """Write the manifest of a stage, or check that the existing one pins the same plan. Return its fingerprint.

    An existing plan may differ in paths of the same files, in its draw, and in lacking options that are off. All other
    differences raise ConfigError, which lists them. `--overwrite` removes plan and parts first; with several shards it
    raises ConfigError. With `--dry-run` nothing is written or removed.
    """
    folder, digest = stage_dir(config.run, plan["stage"]), fingerprint(plan)
    path = folder / "manifest.json"
    if folder.parent != config.run:
        raise ConfigError(f"{config.run} is a training of {folder.parent}; the {plan['stage']} stage is that run's")
    check_own_folder(config.run, plan["stage"])
    if config.overwrite and parse_shard(config.shard)[1] > 1:
        raise ConfigError(_ALL_SHARDS)
    if config.overwrite and folder.exists():
        if config.is_dry_run:
            return digest
        from opdkit.store.tables import APPENDED  # imported here: it imports pyarrow

        with disk_errors_explained(folder):
            remove_folder(folder, keep=[table.name for table in APPENDED.values() if table.stage == plan["stage"]])
    # Look for parts first: another process writes its manifest before its parts.
    if any(folder.glob("*/part-*.parquet")) and not path.exists():
        raise ConfigError(f"{folder} holds parts but no manifest, so their plan is unknown; pass --overwrite")
    if config.is_dry_run and not path.exists():
        return digest
    document = {"fingerprint": digest, "plan": plan, "configuration": config.effective()}
    with disk_errors_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        if not path.exists() and write_text(path, text, replace=False):
            return digest
    old = manifest(config.run, plan["stage"])
    same_draw = {DRAW: plan[DRAW]} if DRAW in plan else {}
    changes = [] if old["fingerprint"] == digest else differences(*unify_model_names(old["plan"] | same_draw, plan))
    if not changes:
        return str(old["fingerprint"])
    raise _another_plan(config, plan["stage"], changes)


def record_usage(run: Path, stage: str, usage: JSON) -> None:
    """Write the tokens that the parts of a finished stage took, summed over their footers, into its manifest."""
    document = manifest(run, stage)
    if document.get("usage") != usage:
        path = stage_dir(run, stage) / "manifest.json"
        with disk_errors_explained(path):
            write_text(path, json.dumps(document | {"usage": usage}, indent=2, ensure_ascii=False) + "\n")


def check_options(config: StageConfig, stage: str, inputs: Mapping[str, Any] | None = None) -> None:
    """Raise ConfigError if a stage was begun with other options. This needs no input of the stage to be read.

    Raise OpdkitError if an upstream stage was done again since.
    `inputs`: those of its plan that are known already, None for one that it must lack. `--overwrite` skips the check.
    Also raise ConfigError if its folder is somebody else's.
    """
    check_own_folder(config.run, stage)
    if config.overwrite or not has_stage(config.run, stage):
        return
    plan, options = manifest(config.run, stage)["plan"], config.plan()
    changes = differences(plan["config"], options, "config")
    if changes:  # perhaps only a model was moved
        values = [one for value in options.values() for one in (value if isinstance(value, list) else [value])]
        words = {word for text in values if isinstance(text, str) for word in (text, *text.split("="))}
        models = [identify_model(word) for word in words if (Path(word) / "config.json").is_file()]
        old, new = unify_model_names(plan, {"config": options, "inputs": models})
        changes = differences(old["config"], new["config"], "config")
    given = dict(inputs or {})
    changes += differences({name: plan["inputs"][name] for name in given if name in plan["inputs"]}, given, "inputs")
    if changes:
        raise _another_plan(config, stage, changes)
    check_upstream(config.run, [stage])


def _another_plan(config: StageConfig, stage: str, changes: Sequence[str]) -> AnotherPlanError:
    """Return the error for a stage that was begun under another plan."""
    folder, is_sharded = stage_dir(config.run, stage), parse_shard(config.shard)[1] > 1
    written = len([*folder.glob("*/part-*.parquet"), *folder.glob("checkpoints/step-*.pt")])
    lines = "\n".join(f"  {change}" for change in changes)
    lost = f"to throw away what {stage} has written ({counted(written, 'file')})"
    return AnotherPlanError(
        f"{folder} was begun under another plan:\n{lines}",
        f"Choose another {'--name' if stage == 'train' else 'run directory'}, or pass --overwrite "
        f"{lost if written else '(nothing is lost)'}." + (f" ({_ALL_SHARDS}.)" if is_sharded else ""),
    )


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Return the differences between two plans, one line per field: "config.votes: 5 -> 7".

    An option that is off and that `old` lacks is none, so that a run that began before opdkit had it can be resumed.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(key for key in old.keys() | new.keys() if key in old or new[key] not in (None, False, 0, []))
        return [d for k in keys for d in differences(old.get(k), new.get(k), f"{where}.{k}" if where else k)]
    if _is_same(old, new):
        return []
    texts = (json.dumps(value, ensure_ascii=False) for value in (old, new))
    return [f"{where}: " + " -> ".join(text if len(text) <= 80 else text[:77] + "..." for text in texts)]


def unify_model_names(old: JSON, new: JSON) -> tuple[JSON, JSON]:
    """Return both plans with one name for models with the same files, wherever they are: the first name in `old`.

    A model on the hub has no files in a plan, and keeps its name.
    """
    first: dict[str, str] = {}
    for name, files in _list_models(old.get("inputs")):
        first.setdefault(files, name)
    one, other = (_rename(plan, {name: first.get(files, name) for name, files in _list_models(plan.get("inputs"))})
                  for plan in (old, new))  # fmt: skip
    return one, other


def _list_models(inputs: Any) -> Iterator[tuple[str, str]]:
    """Yield (name, digest of its files) for every model in the inputs of a plan."""
    if isinstance(inputs, dict) and inputs.keys() == {"name", "files"} and isinstance(inputs["name"], str):
        yield inputs["name"], fingerprint(inputs["files"])
    elif isinstance(inputs, (dict, list)):
        for value in inputs.values() if isinstance(inputs, dict) else inputs:
            yield from _list_models(value)


def _rename(value: Any, names: Mapping[str, str]) -> Any:
    """Return a plan, or a value in it, with models renamed: as values, as keys, and in NAME=PATH and PATH=SHARE."""
    if isinstance(value, dict):
        return {_rename(key, names): _rename(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [_rename(one, names) for one in value]
    if isinstance(value, str):
        return names.get(value) or "=".join(names.get(word, word) for word in value.split("="))
    return value


def _is_same(old: Any, new: Any) -> bool:
    """Return True for equal values and two spellings of one path."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_is_same, old, new))
    return bool(old == new or (isinstance(old, str) and isinstance(new, str) and is_same_path(old, new)))


def is_same_path(one: str, other: str) -> bool:
    """Return True if both are paths of the same existing file or folder."""
    with contextlib.suppress(OSError, ValueError):  # not a path, or it does not exist
        return Path(one).samefile(other)
    return False


def check_model_path(model: str) -> None:
    """Raise ConfigError unless `model` is a folder or may be on the hub: not ORG/NAME if ORG is a folder here."""
    path = Path(model)
    is_beside = path.parent.name and path.parent.is_dir()
    if not path.is_dir() and (is_beside or model.startswith((".", "/", "~")) or model.count("/") > 1):
        folders = ", ".join(sorted(one.name for one in path.parent.glob("*/"))[:5]) if is_beside else ""
        beside = f" (in {path.parent}: {folders or 'no folder'})" if is_beside else ""
        raise ConfigError(f"{model} does not exist: no folder {path.absolute()}{beside}; a model is a folder in "
                          "Hugging Face format or a name on the hub")  # fmt: skip


def identify_model(name: str) -> JSON:
    """Return what pins a model in a plan: its name and, for a folder, sizes and digests of its files.

    Weights are sampled (64 blocks of 64 KiB per file), so that pinning a 100 GB model takes a moment; training changes
    every block. Raises ConfigError for a path without a folder.
    """
    check_model_path(name)
    folder = Path(name)
    if not folder.is_dir():
        return {"name": name}
    files = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".json", ".jinja", ".model", ".txt"))
    return {"name": name, "files": {p.name: identify_file(p) for p in files}}


def identify_file(path: Path) -> str:
    """Return "size:digest" of one of a model's files, as `identify_model` pins it."""
    size = path.stat().st_size
    if size <= _BLOCKS * _BLOCK_BYTES:
        return f"{size}:{digest_file(path)[:16]}"
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        for i in range(_BLOCKS):
            handle.seek(i * (size - _BLOCK_BYTES) // (_BLOCKS - 1))
            digest.update(handle.read(_BLOCK_BYTES))
    return f"{size}:{digest.hexdigest()[:16]}"
