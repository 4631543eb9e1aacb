"""Checks of manifests: that they exist, are readable and unchanged, and fit together."""

import json
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from opdkit.commands.check.finding import Finding
from opdkit.config.command_line import command_line, quote
from opdkit.config.commands import COMMANDS
from opdkit.config.fields import JSON
from opdkit.store.plans import fingerprint, has_stage, is_table, list_redone_upstream, stage_dir
from opdkit.store.tables import TABLES, Table

# In the order in which they are computed. (`opdkit rollout` writes the stages extract and judge.)
ORDER = ("extract", "judge", "teacher", "train", "eval")
BY_PART = ("extract", "judge", "teacher")  # their part k is computed from part k of the stage before


def list_tables(stage: str) -> list[Table]:
    """Return the tables of a stage, the primary one first."""
    return [table for table in TABLES.values() if table.stage == stage]


def find_started_stages(run: Path) -> list[str]:
    """Return the stages that have a manifest or tables in the run."""
    return [stage for stage in ORDER if has_stage(run, stage) or any(map(is_table, stage_dir(run, stage).glob("*")))]


def read_plans(run: Path, stages: list[str]) -> tuple[dict[str, JSON], list[Finding]]:
    """Return the valid manifests by stage, and findings about the others and about manifests that do not match."""
    manifests, findings = dict[str, JSON](), list[Finding]()
    for stage in stages:
        document = _read(run, stage)
        if isinstance(document, str):
            todo = f"run `opdkit {stage} {quote(run)} ...` again with --overwrite"
            findings.append(Finding(stage, document, key="manifest.json", todo=todo))
        else:
            manifests[stage] = document
    for stage in manifests:
        findings += _check_links(run, stage, manifests)
    return manifests, findings


def _read(run: Path, stage: str) -> JSON | str:
    """Return the manifest of a stage, or what is wrong with it."""
    path = stage_dir(run, stage) / "manifest.json"
    try:
        document: JSON = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "there is no manifest, so the plan of the parts is unknown"
    except (OSError, ValueError) as error:
        return f"the manifest cannot be read: {error}"
    plan = document.get("plan") if isinstance(document, dict) else None
    if not isinstance(plan, dict) or not isinstance(document.get("fingerprint"), str):
        return "the manifest holds no plan"
    if fingerprint(plan) != document["fingerprint"]:
        return f"the plan in the manifest was changed: its fingerprint is no longer {document['fingerprint']}"
    if plan.get("stage") != stage:
        return f"the manifest is that of the stage {plan.get('stage')}"
    parts = plan.get("parts")
    if not isinstance(parts, int) or parts < 1:
        return f"the manifest has {parts} parts"
    return document


def _check_links(run: Path, stage: str, manifests: dict[str, JSON]) -> Iterator[Finding]:
    """Yield what does not fit between a stage's plan and the plans of the stages that it was computed from."""
    document = manifests[stage]
    plan = document["plan"]
    todo = f"run `{rebuild_command(run, stage, document)} --overwrite`"
    finding = partial(Finding, stage, key="manifest.json", todo=todo)
    for table in list_tables(stage):
        version = plan["schemas"].get(table.name)
        if version is not None and version != table.version:
            what = f"version {version} of the table; this opdkit reads {table.version}"
            yield Finding(stage, what, table.name, todo=todo)
    changed = list_redone_upstream(plan, manifests)
    for upstream in changed:
        yield finding(f"computed from an older {upstream} stage than the one there now ({plan['upstream'][upstream]})")
    known = [upstream for upstream in plan["upstream"] if upstream in manifests and not changed]
    if outdated := [one for one in known if list_redone_upstream(manifests[one]["plan"], manifests)]:
        yield finding(f"computed from the {outdated[0]} stage, which is to be run again")
    for upstream in plan["upstream"]:
        if not has_stage(run, upstream):
            back = f"put {stage_dir(run, upstream)} back, or run `opdkit {upstream} {quote(run)} ...` again"
            yield finding(f"the {upstream} stage that it was computed from is gone", todo=back)
    first = next((s for s in BY_PART if s in manifests), stage)
    parts = manifests[first]["plan"]["parts"]
    if stage in BY_PART and plan["parts"] != parts:
        yield finding(f"{plan['parts']} parts, {first} has {parts}")
    if stage == "train" and "teacher" in manifests:
        models = (m["plan"]["inputs"].get("model", {}) for m in (document, manifests["teacher"]))
        student, scored = (model.get("files", model.get("name")) for model in models)
        if student != scored:
            yield finding("trained another model, or another tokenizer, than the teacher stage scored")


def rebuild_command(run: Path, stage: str, document: JSON) -> str:
    """Return the command that wrote a stage, with the options in its manifest."""
    command = document["plan"].get("command", stage)
    options = document.get("configuration") or {}
    path = stage_dir(run, stage).parent
    return shlex.join(command_line(command, COMMANDS[command].config, path, options, without=("overwrite", "shard")))
