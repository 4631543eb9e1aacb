"""Home of a series of nights: its folders, which model is promoted, and what each night decided.

Its layout:

    HOME/ledger.sqlite         what has been read from the logs, so that each night reads only what is new
    HOME/nights/0001/          a run: what night 1 trained on, its model, its evaluation
    HOME/nights/0001/log/      a run: the new log records of that night, judged
    HOME/nights/0001/night.json
    HOME/nights/0001/options/  the options of a finished night; if it is redone, it uses them
    HOME/options/              the options of the last call
    HOME/forgotten.json        what `opdkit forget` took out
    HOME/promoted              a link to the model that the next night trains and that a server serves
    HOME/promotions.jsonl      one line per promotion
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opdkit.config.command_line import quote
from opdkit.config.fields import JSON, from_saved
from opdkit.config.night import NightConfig
from opdkit.console import warn
from opdkit.errors import OpdkitError
from opdkit.store.atomic import make_owned_name, replaced_folder, write_text
from opdkit.store.disk import disk_errors_explained

# Decisions of a night: its model is promoted; the model before stays promoted; no training; an earlier night's model is
# promoted.
PROMOTED, KEPT, WAITS, RETESTED = "promoted", "kept", "waits", "retested"

_COPIES = {"config": "config.toml", "prompts": "prompts.jsonl"}  # options that are files, and the names of their copies
MOST_PENDING = 10  # trained nights that a later night learns from again, at most; older ones are only replayed


def utc_now() -> str:
    """Return the current UTC time in the format of night.json and promotions.jsonl: ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_json(path: Path, remedy: str) -> Any:
    """Return the content of a JSON file. Raises OpdkitError that names the remedy if the file is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise OpdkitError(f"{path} is damaged ({error}): {remedy}") from error


@dataclass(frozen=True)
class Night:
    """Night of a series. Number 0 stands for the model before the first night, and has no folder."""

    folder: Path
    number: int

    @property
    def log(self) -> Path:
        """Run with the new log records of this night."""
        return self.folder / "log"

    @property
    def news(self) -> Path:
        """Copy of the new log records, until they are extracted."""
        return self.folder / "news"

    @property
    def model(self) -> Path:
        return self.folder / "train" / "model"

    @property
    def record(self) -> JSON:
        """Content of night.json: `parent` (a number), `learns` (numbers), `decision` and more; {} before it is written.

        `decision` is null until the night is over.
        """
        path = self.folder / "night.json"
        return read_json(path, "remove it, and run `opdkit night` again") if path.exists() else {}

    def write(self, record: JSON) -> None:
        write_text(self.folder / "night.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Home:
    """Home of a series of nights."""

    path: Path

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.sqlite"

    def night(self, number: int) -> Night:
        return Night(self.path / "nights" / f"{number:04}", number)

    def list_nights(self) -> list[Night]:
        """Return all nights that have begun (that have copied or extracted their new log records), in order."""
        numbers = sorted(int(path.name) for path in (self.path / "nights").glob("[0-9]*") if path.name.isdecimal())
        return [night for night in map(self.night, numbers) if night.news.exists() or night.log.exists()]

    def keep_options(self, folder: Path, config: NightConfig) -> None:
        """Write the options to a folder, with copies of the files of `--config` and `--prompts`, which may change."""
        options = config.effective() | {"home": None}
        with disk_errors_explained(folder), replaced_folder(folder) as temporary:
            for name, copy in _COPIES.items():
                if options[name] is not None:
                    shutil.copyfile(options[name], temporary / copy)
                    options[name] = copy
            write_text(temporary / "options.json", json.dumps(options, indent=2) + "\n")

    def read_options(self, folder: Path) -> NightConfig:
        """Return the options that `keep_options` wrote to a folder. Raises OpdkitError if there are none."""
        path = folder / "options.json"
        if not path.exists():
            raise OpdkitError(f"{folder} has no options: run `opdkit night` once with yours, then repeat this command")
        options = read_json(path, "correct what you changed in it, or put a copy back")
        options |= {name: str(folder / copy) for name, copy in _COPIES.items() if (folder / copy).exists()}
        return from_saved(NightConfig, options, home=self.path)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the home, so that no other night runs. The lock ends with the process, even after a kill.

        Raises OpdkitError if another process holds the lock, or the file system has no locks.
        """
        with disk_errors_explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OpdkitError(f"another `opdkit night` works in {self.path}: wait until it is done") from None
            except OSError as error:
                raise OpdkitError(f"{self.path} cannot be locked ({error.strerror}): choose a folder on a file system "
                                  "with locks; Lustre has them where it is mounted with flock") from error  # fmt: skip
            yield
        finally:
            os.close(handle)

    def read_promotions(self) -> list[JSON]:
        """Return the lines of promotions.jsonl: `time`, `night`, `by` and perhaps `during`, see `promote`."""
        path = self.path / "promotions.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]  # a kill cuts lines

    def find_promoted(self) -> int:
        """Return the number of the night whose model is promoted; 0 for the model before the first night.

        Raises OpdkitError if HOME/promoted is not a link to a night's model: `cp -L` and scp replace it by a folder.
        """
        link = self.path / "promoted"
        match link.readlink().parts[-4:] if link.is_symlink() else ():
            case ("nights", number, "train", "model") if number.isdecimal():
                return int(number)
        if not os.path.lexists(link):
            return 0
        raise OpdkitError(f"{link} is not a link to the model of a night: remove it, and promote the last night of "
                          f"promotions.jsonl again: `opdkit models {quote(self.path)} --promote N`")  # fmt: skip

    def promote(self, number: int, by: str, during: int | None = None) -> None:
        """Promote the model of a night by one rename: at any time, HOME/promoted leads to the old or to the new model.

        `by`: "night", "hand" or "forget". `during`: the later night that promotes it, if any. Raises OpdkitError if the
        night has no model.
        """
        link = self.path / "promoted"
        if number and not (self.night(number).model / "config.json").exists():
            raise OpdkitError(f"night {number} has no model: `opdkit models {quote(self.path)}` lists those that do")
        if not link.is_symlink():
            self.find_promoted()  # raises for a folder
        with disk_errors_explained(self.path):
            if number:
                temporary = self.path / make_owned_name(".promoted")
                temporary.symlink_to(self.night(number).model.relative_to(self.path))
                temporary.replace(link)
            else:
                link.unlink(missing_ok=True)
            if (self.read_promotions() or [{"night": 0}])[-1]["night"] != number:
                line = {"time": utc_now(), "night": number, "by": by} | ({"during": during} if during else {})
                with (self.path / "promotions.jsonl").open("a", encoding="utf-8") as out:
                    out.write(f"\n{json.dumps(line)}\n")  # the first "\n" ends a line that a kill cut

    def list_learned(self, number: int) -> list[int]:
        """Return the nights that the model of a night has learned from, in order; none for night 0."""
        learned: set[int] = set()
        while number:
            if not (record := self.night(number).record):
                raise OpdkitError(f"{self.night(number).folder} has no night.json, but the promoted model learned from "
                                  f"it: `opdkit models {quote(self.path)} --promote N` goes back further")  # fmt: skip
            learned.update(record["learns"])
            number = record["parent"]
        return sorted(learned)

    def find_pending(self, nights: Sequence[Night]) -> list[int]:
        """Return the numbers of the `nights` that the promoted model has not learned from.

        Nights older than all that its last training learned from are left out. If MOST_PENDING of the rest have trained
        already (without success, or their model was taken back), nights before the last MOST_PENDING of these are, too.
        """
        promoted = self.find_promoted()
        learned = self.list_learned(promoted)
        oldest = min(self.night(promoted).record["learns"], default=0) if promoted else 0
        unknown = [night for night in nights if night.number not in learned and night.number >= oldest]
        tried = [night.number for night in unknown if night.record.get("decision") in (KEPT, PROMOTED)]
        first = tried[-MOST_PENDING] if len(tried) >= MOST_PENDING else 0
        return [night.number for night in unknown if night.number >= first]

    def find_promoted_by(self, night: Night) -> int | None:
        """Return the night whose model an interrupted night had promoted: itself or an earlier one; else None."""
        began = night.record["began"]
        promotions = [line["night"] for line in self.read_promotions() if line["time"] >= began
                      and (line.get("during") or line["night"], line["by"]) == (night.number, "night")]  # fmt: skip
        return promotions[-1] if promotions else None

    def find_candidate(self, night: Night) -> Night | None:
        """Return the last earlier night that trained, if its model passed the gate, but gained too little; else None.

        Its model must exist, have the same parent as this night, and not have been promoted before this night.
        """
        numbers = (number for number in sorted(night.record["earlier"], reverse=True) if number < night.number)
        trained = next((n for n in map(self.night, numbers) if n.record.get("decision") in (KEPT, PROMOTED)), None)
        if trained is None or not (trained.model / "config.json").exists():
            return None
        record = trained.record
        has_passed = (record["decision"], record["parent"], record.get("gate", {}).get("ship")) == (
            KEPT, night.record["parent"], True)  # fmt: skip
        was_promoted = any(line["night"] == trained.number and line.get("during") != night.number
                           for line in self.read_promotions())  # fmt: skip
        return trained if has_passed and not was_promoted else None

    def go_back(self, night: Night) -> None:
        """Promote what was promoted when a night began, and remove the later promotions from promotions.jsonl."""
        began, promotions = night.record.get("began"), self.read_promotions()
        kept = [line for line in promotions if (line.get("during") or line["night"]) < night.number
                and (line["by"] != "hand" or began is None or line["time"] <= began)]  # fmt: skip
        for line in (line for line in promotions if line["by"] == "hand" and line not in kept):
            warn(f"night {line['night']} was promoted by hand on {line['time']}; to keep it promoted, promote it again")
        if kept != promotions:
            write_text(self.path / "promotions.jsonl", "".join(f"\n{json.dumps(line)}\n" for line in kept))
        last = before = kept[-1]["night"] if kept else 0
        while before and not (self.night(before).model / "config.json").exists():
            before = self.night(before).record.get("parent", 0)
        if before != last:
            used = f"the model of night {before}" if before else "the model before the first night"
            warn(f"the model of night {last} was removed: the nights from {night.number} on begin with {used}")
        self.promote(before, by="forget")
