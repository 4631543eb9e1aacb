"""Manifests: there, readable, what they were when they were written, and bound to each other."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opdkit.commands.check.finding import Finding
from opdkit.config.command_line import command_line, quote
from opdkit.config.commands import COMMANDS
from opdkit.config.fields import JSON
from opdkit.store import fingerprint
from opdkit.store.plans import stage_dir
from opdkit.store.tables import TABLES, Table

# In the order in which they are computed. (The stages that `rollout` writes are extract and judge.)
ORDER = ("extract", "judge", "teacher", "train", "eval")
_SAME_PARTS = ("extract", "judge", "teacher")  # part k is computed from part k


def tables_of(stage: str) -> list[Table]:
    """The tables of a stage, the primary one first."""
    return [table for table in TABLES.values() if table.stage == stage]


def started(run: Path) -> list[str]:
    """The stages that the run has anything of."""
    return [stage for stage in ORDER if any(path.name[0] != "." for path in stage_dir(run, stage).glob("*"))]


def read_plans(run: Path, stages: list[str]) -> tuple[dict[str, JSON], list[Finding]]:
    """The manifests that can be trusted, by stage, and what is wrong with the others."""
    manifests: dict[str, JSON] = {}
    findings: list[Finding] = []
    for stage in stages:
        document, wrong = _read(run, stage)
        if wrong is None and document is not None:
            manifests[stage] = document
        else:
            todo = f"run `opdkit {stage} {quote(run)} ...` again with --overwrite"
            findings.append(Finding(stage, str(wrong), key="manifest.json", todo=todo))
    for stage, document in manifests.items():
        findings += _links(run, stage, document, manifests)
    return manifests, findings


def _read(run: Path, stage: str) -> tuple[JSON | None, str | None]:
    """The manifest of a stage, or what is wrong with it."""
    path = stage_dir(run, stage) / "manifest.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, "there is no manifest, so nobody knows the plan of the parts"
    except (OSError, ValueError) as error:
        return None, f"the manifest cannot be read: {error}"
    plan = document.get("plan") if isinstance(document, dict) else None
    if not isinstance(plan, dict) or not isinstance(document.get("fingerprint"), str):
        return None, "the manifest holds no plan"
    if fingerprint(plan) != document["fingerprint"]:
        return None, f"the plan in the manifest was changed: its fingerprint is no longer {document['fingerprint']}"
    if plan.get("stage") != stage:
        return None, f"the manifest is that of the stage {plan.get('stage')}"
    parts = plan.get("parts")
    if not isinstance(parts, int) or parts < 1:
        return None, f"the manifest speaks of {parts} parts"
    return document, None


def _links(run: Path, stage: str, document: JSON, manifests: dict[str, JSON]) -> Iterator[Finding]:
    """What does not fit between the plan of a stage and the plans that it was bound to."""
    plan = document["plan"]
    todo = f"run `{again(run, stage, document)} --overwrite`"
    for table in tables_of(stage):
        version = plan["schemas"].get(table.name)
        if version is not None and version != table.version:
            yield Finding(stage, f"version {version} of the table; this opdkit reads {table.version}", table.name,
                          todo=todo)  # fmt: skip
    for before in of_another(stage, manifests):
        yield Finding(stage, f"computed from another {before} stage than is there now ({plan['upstream'][before]})",
                      key="manifest.json", todo=todo)  # fmt: skip
    for before in plan["upstream"]:
        if not (stage_dir(run, before) / "manifest.json").exists():
            yield Finding(stage, f"the {before} stage that it was computed from is gone", key="manifest.json",
                          todo=f"put {stage_dir(run, before)} back, or run `opdkit {before} {quote(run)} ...` "
                               "again")  # fmt: skip
    first = next((s for s in _SAME_PARTS if s in manifests), stage)
    if stage in _SAME_PARTS and plan["parts"] != manifests[first]["plan"]["parts"]:
        yield Finding(stage, f"{plan['parts']} parts, {first} has {manifests[first]['plan']['parts']}",
                      key="manifest.json", todo=todo)  # fmt: skip
    if stage == "train" and "teacher" in manifests:
        ours, theirs = (_model_files(d) for d in (document, manifests["teacher"]))
        if ours != theirs:
            yield Finding(stage, "trained another model, or another tokenizer, than the teacher stage scored",
                          key="manifest.json", todo=todo)  # fmt: skip


def of_another(stage: str, manifests: dict[str, JSON]) -> list[str]:
    """The stages that `stage` was computed from and that are other ones by now."""
    upstream = manifests[stage]["plan"]["upstream"] if stage in manifests else {}
    return [s for s, pinned in upstream.items() if s in manifests and manifests[s]["fingerprint"] != pinned]


def _model_files(document: JSON) -> Any:
    identity = document["plan"]["inputs"].get("model", {})
    return identity.get("files", identity.get("name"))


def again(run: Path, stage: str, document: JSON | None) -> str:
    """The command that wrote a stage, with its options, from the manifest."""
    if document is None:
        return f"opdkit {stage} {quote(run)} ..."
    command = document["plan"].get("command", stage)
    options = document.get("configuration") or {}
    return shlex.join(command_line(command, COMMANDS[command].config, run, options, without=("overwrite", "shard")))
