"""The walk of `opdkit check` over a run: part by part, from the first stage to the last, then what is whole."""

import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.markup import escape
from rich.table import Table as RichTable

from opdkit.commands.check import decisions, plans, weights
from opdkit.commands.check.finding import Finding, Report
from opdkit.commands.check.parts import Part, digests_of, files_pinned, look, miscounted, missing, strangers
from opdkit.commands.check.recompute import Gone, doomed, remove
from opdkit.commands.check.rows import COLUMNS, Known, Seen, check_rows
from opdkit.config.check import CheckConfig
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.console import counted, printable, progress, say, stdout
from opdkit.errors import OpdkitError
from opdkit.store import part_path
from opdkit.store.disk import disk_errors_explained
from opdkit.store.footers import read_inputs
from opdkit.store.plans import stage_dir
from opdkit.store.tables import TABLES, TARGETS, Table

_BY_PART = ("extract", "judge", "teacher")
_COLUMNS = ("stage", "table", "part", "row", "key", "what", "todo")


def run(config: CheckConfig) -> bool:
    """Print what is wrong with a run, one line a finding; True when nothing is.

    `deep` reads all the weights of the trained model. `recompute` removes the damaged parts and those computed from
    them; without it nothing is changed. Raises OpdkitError when the directory holds no run.
    """
    begin, directory = time.monotonic(), config.run
    report = examine(directory, deep=config.deep)
    removed: list[Path] = []
    gone: Gone = set()
    if config.recompute:
        gone = doomed(report.findings, plans.started(directory))
        with disk_errors_explained(directory):
            removed = remove(directory, gone)
    if config.json:
        print(json.dumps(_document(directory, report, removed), indent=2, ensure_ascii=True))
    elif report.findings:
        _show(report.findings)
    if gone:
        say(
            f"removed {counted(len(removed), 'part')}, damaged or computed from one that is; now run again, in this "
            "order:"
        )
        stages = {TABLES[table].stage for table, _ in gone}
        manifests, _ = plans.read_plans(directory, [stage for stage in plans.ORDER if stage in stages])
        for command in dict.fromkeys(plans.again(directory, stage, manifests.get(stage)) for stage in manifests):
            say(f"  {command}")
    say(_closing(report, time.monotonic() - begin))
    return not report.findings


def examine(run: Path, *, deep: bool = False) -> Report:
    """Everything that is wrong with a run. Reads each file once, and holds the rows of one part at a time."""
    stages = plans.started(run)
    if not stages:
        raise OpdkitError(f"{run} holds no run: start one with `opdkit extract {quote(run)} LOGS...`")
    manifests, findings = plans.read_plans(run, stages)
    walk = _Walk(run, manifests, Report(findings))
    walk.tables()
    walk.parts()
    walk.reviews()
    if "train" in walk.finished and part_path(run, "metrics", 0).exists():
        walk.model(deep)
    return walk.report


class _Walk:
    """One pass over the parts of a run."""

    def __init__(self, run: Path, manifests: dict[str, JSON], report: Report) -> None:
        self.run, self.manifests, self.report, self.seen = run, manifests, report, Seen()
        self.digests = {stage: digests_of(run, stage) for stage in manifests}
        self.count = {stage: int(document["plan"]["parts"]) for stage, document in manifests.items()}
        self.finished: dict[str, Part] = {}  # stage -> its primary table's last part
        self.taken: JSON = {}  # turn -> what people decided, as the targets took it
        report.parts = {stage: (0, parts) for stage, parts in self.count.items()}

    def tables(self) -> None:
        """What does not belong into the tables' folders."""
        for stage, parts in self.count.items():
            for table in plans.tables_of(stage):
                for name, what in strangers(self.run, table, parts):
                    todo = f"move it out of {stage_dir(self.run, stage) / table.name}"
                    self.report.add(Finding(stage, what, table.name, key=name, todo=todo))

    def parts(self) -> None:
        """Every part, with what the parts before it in the chain say."""
        stages = [stage for stage in _BY_PART if stage in self.count]
        total = max((self.count[stage] for stage in stages), default=0)
        size = weights.vocabulary(self.manifests["teacher"]) if "teacher" in self.manifests else None
        for part in progress(range(total), "check", total, "parts"):
            known = Known(self.seen, complete=self._judged_whole(), vocabulary=size)
            for stage in stages:
                if part < self.count[stage]:
                    self.part(stage, part, known)
        for stage in ("train", "eval"):
            if stage in self.count:
                self.part(stage, 0, Known(self.seen))

    def _judged_whole(self) -> bool:
        plan = self.manifests.get("judge", {}).get("plan", {})
        return plan.get("command") == "rollout" or plan.get("config", {}).get("limit") is None

    def part(self, stage: str, part: int, known: Known) -> None:
        """One part of all tables of a stage: files, then values, then counters."""
        tables = plans.tables_of(stage)
        done = part_path(self.run, tables[0].name, part).exists()
        found: dict[str, Part] = {}
        for table in tables:
            if not part_path(self.run, table.name, part).exists():
                after = tables[0].name if done else self._after(stage, part)
                what = missing(self.run, table, part, self.digests[stage], after)
            elif done:  # without the primary table the others are what a kill left, and are replaced
                result = look(self.run, table, part, self.manifests[stage], self.digests[stage], self.report)
                self.report.files += 1
                what = result if isinstance(result, str) else None
                if isinstance(result, Part):
                    found[table.name] = result
                    self._rows(stage, table, part, known, result)
            else:
                what = None
            if what:
                self._wrong(stage, table.name, part, what)
        command = self.manifests[stage]["plan"].get("command", stage)
        for name, what in miscounted(stage, command, found):
            self._wrong(stage, name, part, what)
        if done:
            self.report.parts[stage] = (self.report.parts[stage][0] + 1, self.count[stage])
        if tables[0].name in found:
            self.finished[stage] = found[tables[0].name]

    def _after(self, stage: str, part: int) -> str | None:
        """A table that holds something computed from this part."""
        later = plans.ORDER[plans.ORDER.index(stage) + 1 :]
        for other in (s for s in later if s in self.count):
            primary = plans.tables_of(other)[0].name
            if stage in _BY_PART and part_path(self.run, primary, part if other in _BY_PART else 0).exists():
                return primary
        return None

    def _rows(self, stage: str, table: Table, part: int, known: Known, result: Part) -> None:
        path = part_path(self.run, table.name, part)
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                rows = file.read(columns=COLUMNS.get(table.name))
        except (pa.ArrowException, OSError) as error:
            self._wrong(stage, table.name, part, f"cannot be read: {str(error).splitlines()[0]}")
            return
        self.report.rows += result.rows
        if table is TARGETS:
            known.decided = read_inputs(result.footer).get("reviews", {})
            self.taken |= known.decided
        for wrong in check_rows(table.name, rows, known):
            self._wrong(stage, table.name, part, wrong.text(), wrong.row, wrong.key)

    def _wrong(
        self, stage: str, table: str, part: int, what: str, row: int | None = None, key: str | None = None
    ) -> None:
        command = plans.again(self.run, stage, self.manifests[stage])
        todo = f"run `opdkit check {quote(self.run)} --recompute`, then `{command}`"
        if plans.of_another(stage, self.manifests):  # then all of it is to do again
            todo = f"run `{command} --overwrite`"
        self.report.add(Finding(stage, what, table, part, row, key, todo, gone=(table,)))

    def reviews(self) -> None:
        """What people decided, and whether the training saw what the targets show now."""
        whole = self.report.parts.get("extract", (0, 1))
        read = whole[0] == whole[1] and not any(finding.stage == "extract" for finding in self.report.findings)
        for finding in decisions.wrong(self.run, self.seen.turns if read else None):
            self.report.add(finding)
        if "train" in self.manifests and "teacher" in self.manifests:
            self.report.findings += decisions.unseen(self.run, self.manifests["train"], self.taken)

    def model(self, deep: bool) -> None:
        """The folders of the trained model."""
        pinned = files_pinned(self.finished["train"])
        for folder in sorted({"model", *pinned}):
            for name, what in weights.broken(stage_dir(self.run, "train") / folder, pinned.get(folder, {}), deep=deep):
                command = plans.again(self.run, "train", self.manifests["train"])
                todo = f"run `opdkit check {quote(self.run)} --recompute`, then `{command}`"
                self.report.add(Finding("train", what, part=0, key=f"{folder}/{name}", todo=todo, gone=("metrics",)))


# -- what is shown --------------------------------------------------------------------------------------------------


def _show(findings: list[Finding]) -> None:
    """A table for a person; lines of tab-separated values for a pipe."""
    rows = [[_cell(finding.to_json()[name]) for name in _COLUMNS] for finding in findings]
    if stdout.is_terminal:
        table = RichTable(*_COLUMNS)
        for row in rows:
            table.add_row(*map(escape, row))  # a log must not be able to format our table
        stdout.print(table)
        return
    print("\t".join(_COLUMNS))
    for row in rows:
        print("\t".join(row))


def _cell(value: object) -> str:
    return "" if value is None else printable(" ".join(str(value).split()))


def _document(run: Path, report: Report, removed: list[Path]) -> JSON:
    return {
        "run": str(run),
        "stages": {stage: {"done": done, "parts": parts} for stage, (done, parts) in report.parts.items()},
        "files": report.files,
        "rows": report.rows,
        "without_digest": report.without_digest,
        "findings": [finding.to_json() for finding in report.findings],
        "removed": [str(path) for path in removed],
    }


def _closing(report: Report, seconds: float) -> str:
    stages = ", ".join(f"{stage} {done} of {parts}" for stage, (done, parts) in report.parts.items())
    found = counted(len(report.findings), "finding") if report.findings else "nothing wrong"
    text = f"check: {found}; {counted(report.files, 'file')}, {counted(report.rows, 'row')}"
    text += f", parts done: {stages or 'none'}, {seconds:.1f} s"
    if report.without_digest:
        text += f"; {counted(report.without_digest, 'file')} of before digests were recorded, only known to be readable"
    return text
