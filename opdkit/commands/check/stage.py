"""Loop of `opdkit check`: part by part, each from the first stage to the last, then trainings, models, decisions."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from opdkit.commands.check import plans, weights
from opdkit.commands.check.finding import Finding, Report
from opdkit.commands.check.parts import Part, check_decisions, find_miscounts, find_unexpected, read_part_file
from opdkit.commands.check.rows import COLUMNS, Known, Seen, check_rows
from opdkit.config.check import CheckConfig
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.console import counted, is_screen, print_line, print_tsv, printable, progress, say, stdout
from opdkit.store.atomic import find_left_overs, remove_entries
from opdkit.store.counters import FILES_KEY, read_inputs
from opdkit.store.digests import forget_digest, read_digests
from opdkit.store.disk import disk_errors_explained
from opdkit.store.plans import list_redone_upstream, list_trainings, no_run_error, stage_dir
from opdkit.store.progress_marks import read_claim
from opdkit.store.reading import part_path
from opdkit.store.reviews import TRAINED_BEFORE, plan_inputs
from opdkit.store.tables import TABLES, TARGETS, Table

Gone = set[tuple[str, int]]  # (table, part)

_COLUMNS = ("stage", "table", "part", "row", "key", "what", "todo")
# Stage -> the tables that it reads. No stage reads `rejected`.
_READS = {
    "judge": {"sessions", "turns"},
    "teacher": {"sessions", "turns", "verdicts"},
    "train": {"sessions", "targets"},
    "eval": {"sessions", "verdicts", "targets", "metrics"},
}

_RESUMED_FROM = {"extract": "extract/.survey", "train": "train/checkpoints"}  # paths in a run


def run(config: CheckConfig) -> bool:
    """Print what is wrong with a run, one line per finding. Return True if nothing is.

    `deep` reads all weights of the trained model. `clean` removes what killed processes left, which is not damage.
    `recompute` removes damaged parts and those computed from them. Without these two, nothing is changed. Raises
    OpdkitError if the directory holds no run.
    """
    begin, directory = time.monotonic(), config.run
    report = examine(directory, deep=config.deep)
    left = find_all_left_overs(directory, report)
    if config.clean:
        remove_entries(left)
    removed, commands = remove_damaged(directory, report) if config.recompute else ([], [])
    if config.json:
        print_json(directory, report, removed, left)
    else:
        print_findings(report.findings)
    if removed or commands:
        parts = counted(len(removed), "part")
        say(f"removed {parts}, damaged or computed from one that is; now run again, in this order:")
        for command in commands:
            say(f"  {command}")
    for path in left:
        say(f"left by a killed process{', removed' if config.clean else ''}: {printable(str(path))}")
    if left and not config.clean:
        say(f"`opdkit check {quote(directory)} --clean` removes what is left")
    outcome = counted(len(report.findings), "finding") if report.findings else "nothing wrong"
    stages_done = ", ".join(f"{stage} {done} of {parts}" for stage, (done, parts) in report.parts.items())
    text = f"check: {outcome}; {counted(report.files, 'file')}, {counted(report.rows, 'row')}"
    say(f"{text}, parts done: {stages_done or 'none'}, {time.monotonic() - begin:.1f} s")
    return not report.findings


def remove_damaged(directory: Path, report: Report) -> tuple[list[Path], list[str]]:
    """Remove the damaged parts, and those computed from them. Return their files, and the commands to run, in order."""
    removed, commands = list[Path](), list[str]()
    for name, run in {"": directory, **list_trainings(directory)}.items():
        # Damage in the stages that all trainings share affects every training.
        own = [f for f in report.findings if f.stage in plans.BY_PART or f.stage.partition(" ")[2] == name]
        gone = parts_to_remove(own, plans.find_started_stages(run))
        with disk_errors_explained(run):
            removed += remove_parts(run, gone)
        stages = {TABLES[table].stage for table, _ in gone}
        manifests, _ = plans.read_plans(run, [stage for stage in plans.ORDER if stage in stages])
        commands += [plans.rebuild_command(run, stage, document) for stage, document in manifests.items()]
    return removed, list(dict.fromkeys(commands))


def print_json(directory: Path, report: Report, removed: list[Path], left: list[Path]) -> None:
    """Print the findings and what was removed, as one JSON object."""
    findings = [{name: getattr(finding, name) for name in _COLUMNS} for finding in report.findings]
    print(json.dumps({
        "run": str(directory),
        "stages": {stage: {"done": done, "parts": parts} for stage, (done, parts) in report.parts.items()},
        "files": report.files, "rows": report.rows,
        "findings": findings, "removed": [str(path) for path in removed], "left_over": list(map(str, left)),
    }, indent=2, ensure_ascii=True))  # fmt: skip


def print_findings(findings: list[Finding]) -> None:
    """Print the findings: as text on a terminal, else as tab-separated columns under a header line."""
    cells = [[getattr(finding, name) for name in _COLUMNS] for finding in findings]
    rows = [["" if cell is None else printable(" ".join(str(cell).split())) for cell in row] for row in cells]
    if not is_screen(stdout):
        if rows:
            print_tsv(_COLUMNS, rows)
        return
    for stage, table, part, place, key, what, todo in rows:
        numbers = [f"{name} {number}" for name, number in (("part", part), ("row", place)) if number]
        where = ", ".join(filter(None, ["/".join(filter(None, (stage, table))), *numbers, key]))
        print_line(f"{where}: {what}\n  {todo}")


def find_all_left_overs(run: Path, report: Report) -> list[Path]:
    """Return what killed processes left in a run: temporary files, and the resume files of finished stages."""
    trainings, left = list_trainings(run), list[Path]()
    for label, (done, parts) in report.parts.items():
        stage, _, name = label.partition(" ")
        if done == parts and stage in _RESUMED_FROM:
            path = trainings.get(name, run) / _RESUMED_FROM[stage]
            left += [path] if path.exists() else []
    for folder in [run, *sorted(path for path in run.rglob("*") if path.is_dir())]:
        if not {folder, *folder.parents} & set(left):
            left += find_left_overs(folder)
    return left


def examine(run: Path, *, deep: bool = False) -> Report:
    """Return everything that is wrong with a run. Holds the rows of one part of one table in memory."""
    stages = plans.find_started_stages(run)
    if not stages:
        raise no_run_error(run)
    manifests, findings = plans.read_plans(run, stages)
    walk = _Walk(run, manifests, Report(findings))
    walk.check_folders()
    by_part = [stage for stage in plans.BY_PART if stage in walk.count]
    total = max((walk.count[stage] for stage in by_part), default=0)
    size = weights.read_vocabulary_size(manifests["teacher"]) if "teacher" in manifests else None
    judged = manifests.get("judge", {}).get("plan", {})
    complete = judged.get("command") == "rollout" or judged.get("config", {}).get("limit") is None
    weighed = bool(judged.get("config", {}).get("weigh_votes"))
    for part in progress(range(total), "check", total, "parts"):
        known = Known(walk.seen, complete=complete, weighed=weighed, vocabulary=size)
        for stage in by_part:
            if part < walk.count[stage]:
                walk.check_part(stage, part, known)
    walk.check_training(deep)
    done, parts = walk.report.parts.get("extract", (0, 1))
    is_read = done == parts and not any(finding.stage == "extract" for finding in walk.report.findings)
    walk.report.findings += check_decisions(run, walk.seen.turns if is_read else None)
    for name, training in list_trainings(run).items():
        manifests, findings = plans.read_plans(training, plans.find_started_stages(training))
        walk.report.findings += [
            replace(f, stage=f"{f.stage} {name}") for f in findings if f.stage not in plans.BY_PART
        ]
        own = _Walk(training, manifests, walk.report, f" {name}")
        own.seen, own.decisions = walk.seen, walk.decisions
        own.check_folders()
        own.check_training(deep)
    return walk.report


class _Walk:
    """Pass over the parts of a run or, with a label, of a named training, whose BY_PART stages are those of its run."""

    def __init__(self, run: Path, manifests: dict[str, JSON], report: Report, label: str = "") -> None:
        self.run, self.manifests, self.report, self.label, self.seen = run, manifests, report, label, Seen()
        self.digests = {stage: read_digests(stage_dir(run, stage)) for stage in manifests}
        checked = [stage for stage in manifests if not label or stage not in plans.BY_PART]
        self.count = {stage: int(manifests[stage]["plan"]["parts"]) for stage in checked}
        self.finished: dict[str, Part] = {}  # stage -> last part of its primary table
        self.decisions: JSON = {}  # turn -> decision that the targets were computed from
        report.parts |= {stage + label: (0, parts) for stage, parts in self.count.items()}

    def check_folders(self) -> None:
        """Check that the folders of the tables hold their parts and nothing else."""
        for stage, parts in self.count.items():
            for table in plans.list_tables(stage):
                for name, what in find_unexpected(self.run, table, parts):
                    todo = f"move it out of {stage_dir(self.run, stage) / table.name}"
                    self.report.findings.append(Finding(stage + self.label, what, table.name, key=name, todo=todo))

    def check_training(self, deep: bool) -> None:
        """Check the stages train and eval, the decisions that training was computed from, and the trained model."""
        for stage in ("train", "eval"):
            if stage in self.count:
                self.check_part(stage, 0, Known(self.seen))
        if "train" in self.manifests and "teacher" in self.manifests:
            document = self.manifests["train"]
            if document["plan"]["inputs"].get("reviews") != plan_inputs(self.decisions).get("reviews"):
                todo = f"run `{plans.rebuild_command(self.run, 'train', document)} --overwrite`"
                finding = Finding(f"train{self.label}", TRAINED_BEFORE, key="manifest.json", todo=todo)
                self.report.findings.append(finding)
        if "train" in self.finished and part_path(self.run, "metrics", 0).exists():
            self.check_models(deep)

    def check_part(self, stage: str, part: int, known: Known) -> None:
        """Check one part of each table of a stage: files, then values, then counters."""
        schemas = self.manifests[stage]["plan"]["schemas"]  # some tables exist only with certain options
        tables = [table for table in plans.list_tables(stage) if table.name in schemas]
        primary, digests = tables[0].name, self.digests[stage]
        done = part_path(self.run, primary, part).exists()
        # Files that a process was about to move into place: it lives, or was killed then.
        claims = map(read_claim, (stage_dir(self.run, stage) / ".tmp").glob("*.parquet"))
        begun = {(claim.table, claim.part) for claim in claims if claim is not None}
        parts: dict[str, Part] = {}
        for table in tables:
            if not part_path(self.run, table.name, part).exists():
                # A part that is still to do is not damage. A missing part that others were computed from, or with, is.
                after = primary if done else self._find_computed_after(stage, part)
                if after:
                    self._add(stage, table.name, part, f"gone, although {after} has the part that goes with it")
                elif (table.name, part) in digests.keys() - begun:
                    self._add(stage, table.name, part, "gone: it was written once, or its writer was killed just then")
            elif done:  # without the primary table, the others were left by a kill and will be replaced
                read = read_part_file(self.run, table, part, self.manifests[stage], digests)
                self.report.files += 1
                if isinstance(read, Part):
                    parts[table.name] = read
                    self._check_rows(stage, table, part, known, read)
                else:
                    self._add(stage, table.name, part, read)
        command = self.manifests[stage]["plan"].get("command", stage)
        for name, what in find_miscounts(command, parts):
            self._add(stage, name, part, what)
        if done:
            label = stage + self.label
            self.report.parts[label] = (self.report.parts[label][0] + 1, self.count[stage])
        if primary in parts:
            self.finished[stage] = parts[primary]

    def _find_computed_after(self, stage: str, part: int) -> str | None:
        """Return a table that holds something computed from this part; None if there is none."""
        if stage not in plans.BY_PART:
            return None
        for later in plans.ORDER[plans.ORDER.index(stage) + 1 :]:
            primary = plans.list_tables(later)[0].name
            if later in self.count and part_path(self.run, primary, part if later in plans.BY_PART else 0).exists():
                return primary
        return None

    def _check_rows(self, stage: str, table: Table, part: int, known: Known, read: Part) -> None:
        try:
            with pq.ParquetFile(part_path(self.run, table.name, part), page_checksum_verification=True) as file:
                rows = file.read(columns=COLUMNS.get(table.name))
        except (pa.ArrowException, OSError) as error:
            self._add(stage, table.name, part, f"cannot be read: {str(error).splitlines()[0]}")
            return
        self.report.rows += read.rows
        if table is TARGETS:
            known.decisions = read_inputs(read.footer).get("reviews", {})
            self.decisions |= known.decisions
        for what, row, key in check_rows(table.name, rows, known):
            self._add(stage, table.name, part, what, row, key)

    def _add(
        self, stage: str, table: str, part: int, what: str, row: int | None = None, key: str | None = None
    ) -> None:
        """Add a finding. Its remedy is to compute the part again, or the whole stage if that is outdated."""
        todo, gone = self._remedy(stage, table)
        if gone and list_redone_upstream(self.manifests[stage]["plan"], self.manifests):
            todo = f"run `{plans.rebuild_command(self.run, stage, self.manifests[stage])} --overwrite`"
        self.report.findings.append(Finding(stage + self.label, what, table, part, row, key, todo, gone))

    def _remedy(self, stage: str, table: str) -> tuple[str, tuple[str, ...]]:
        """Return the remedy for a damaged part of a stage, and the tables whose part --recompute may remove."""
        is_of_night = any((folder / "night.json").exists() for folder in (self.run, self.run.parent))
        if is_of_night and stage in ("extract", "judge"):
            return "put it back from a copy: a night reads its logs once, so nothing computes it again", ()
        command = plans.rebuild_command(self.run, stage, self.manifests[stage])
        return f"run `opdkit check {quote(self.run)} --recompute`, then `{command}`", (table,)

    def check_models(self, deep: bool) -> None:
        """Check the folders of the trained model against the digests of their files in the footer of `metrics`."""
        pinned: JSON = json.loads(self.finished["train"].footer.get(FILES_KEY, b"{}"))  # none in older parts
        for folder in sorted({"model", *pinned}):
            path = stage_dir(self.run, "train") / folder
            for name, what in weights.check_folder(path, pinned.get(folder, {}), deep=deep):
                todo, gone = self._remedy("train", "metrics")
                key = f"{folder}/{name}"
                self.report.findings.append(Finding(f"train{self.label}", what, part=0, key=key, todo=todo, gone=gone))


def parts_to_remove(findings: list[Finding], started: list[str]) -> Gone:
    """Return the damaged parts, their primary tables (so that they count as missing), and what was computed from them.

    Each is (table, part). `started` are the stages with files in the run.
    """
    damaged: Gone = {(table, f.part) for f in findings if f.part is not None for table in f.gone}
    gone = set(damaged)
    for stage in (s for s in plans.ORDER if s in started):
        names = [table.name for table in plans.list_tables(stage)]
        read = {(part if stage in plans.BY_PART else 0) for table, part in damaged if table in _READS.get(stage, ())}
        computed = {(name, part) for name in names for part in read}
        damaged |= computed
        gone |= computed | {(names[0], part) for table, part in damaged if table in names}
    return gone


def remove_parts(run: Path, gone: Gone) -> list[Path]:
    """Remove parts and their digests, from the last stage to the first, but no model. Return the removed files.

    A part's primary table is removed first: if this is killed half-way, the part counts as missing.
    """
    removed = []
    place = {name: n for n, name in enumerate(TABLES)}
    order = {stage: n for n, stage in enumerate(plans.ORDER)}
    for table, part in sorted(gone, key=lambda one: (-order[TABLES[one[0]].stage], one[1], place[one[0]])):
        path = part_path(run, table, part)
        if path.is_file():
            path.unlink()
            removed.append(path)
        forget_digest(stage_dir(run, TABLES[table].stage), table, part)
    return removed
