"""Name under which the judge's server answers, so that one table holds the votes of one model."""

import json
from collections import Counter
from pathlib import Path

from opdkit.console import printable, say, warn
from opdkit.errors import OpdkitError
from opdkit.store.atomic import write_text
from opdkit.store.disk import disk_errors_explained

FILE = "answers-as.json"  # in the folder of the stage that the votes are for
_FIRST_ANSWERS = 3  # under one name that was not asked for, after which it is the judge's


class Identity:
    """Name of the judge: the one that was asked for, or one that stands for it.

    Servers answer under another name for good reasons (an alias, a dated version, a path), so a name is the judge's
    when it is the one asked for, or when the first few answers all bear it. From then on an answer under another name
    comes from another model: votes of two judges in one table could not be told apart, so it is not a vote; the
    question is asked again. A server that gives no name cannot be checked.

    The name is kept in `folder`, where there is one: resumed runs and other shards of the stage admit no other. The
    first process to know it decides. Raises OpdkitError where the file is damaged or cannot be written.
    """

    def __init__(self, asked: str, folder: Path | None = None) -> None:
        self.asked = asked
        self.file = folder / FILE if folder else None
        self.known = self._read()
        self.others: Counter[str] = Counter()
        self.refused: set[str] = set()
        self.answered = False  # to this process, under the name that is known

    def admit(self, name: object) -> bool:
        """Count an answer under `name`, and return whether it is the judge's."""
        if not isinstance(name, str) or not name:
            return True
        if self.known is None and name == self.asked:
            self._settle(name)
        elif self.known is None:
            self.others[name] += 1
            if self.others.total() == self.others[name] == _FIRST_ANSWERS:
                self._settle(name)
                if name == self.known:
                    say(f"{self.asked} answers as {printable(name)[:100]}")
        if name == self.known:
            self.answered = True
            return True
        if self.known is not None and name not in self.refused:
            self.refused.add(name)
            other, known = printable(name)[:100], printable(self.known)[:100]
            if self.answered:
                warn(f"the judge's server answers as {other}, too, not only as {known}: answers of another model are "
                     "not counted, the questions are asked again")  # fmt: skip
            else:
                warn(f"the judge's server answers as {other}, and the existing votes are by {known}: answers of "
                     f"another model are not counted; for {other} to judge everything, pass --overwrite")  # fmt: skip
        return False

    def _settle(self, name: str) -> None:
        """Make `name` the judge's from here on, unless another process has settled another name first."""
        first = True
        if self.file is not None:
            with disk_errors_explained(self.file):
                first = write_text(self.file, json.dumps({"name": name}) + "\n", replace=False)
        self.known = name if first else self._read()

    def _read(self) -> str | None:
        if self.file is None or not self.file.exists():
            return None
        try:
            with disk_errors_explained(self.file):
                return str(json.loads(self.file.read_text(encoding="utf-8"))["name"])
        except (ValueError, LookupError, TypeError):
            raise OpdkitError(f"{self.file} is damaged: remove it, or pass --overwrite to judge again") from None
