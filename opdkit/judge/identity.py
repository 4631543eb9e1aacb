"""Name under which a judge's server answers: votes of another model are not counted."""

import json
from collections import Counter
from pathlib import Path

from opdkit.console import printable, say, warn
from opdkit.errors import OpdkitError
from opdkit.store.atomic import write_text
from opdkit.store.disk import disk_errors_explained

NAME_FILE = "answers-as.json"  # in the folder of the stage that the votes are for
FIRST_ANSWERS = 3  # answers that all have one other name; after these, it is the judge's name


class Identity:
    """Name under which the judge answers: the requested name, or another name for the same model.

    Servers answer under another name for good reasons (an alias, a dated version, a path). So a name becomes the
    judge's if it is the requested one, or if the first few answers all have it. From then on, an answer under another
    name comes from another model. It is not a vote, since a table of votes does not say which model gave which. The
    question is asked again, at first without using up a retry. A server that gives no name cannot be checked.

    The name is stored in `folder`, if there is one: resumed runs and other shards of the stage accept no other. The
    first process to know it decides. Raises OpdkitError if the file is damaged or cannot be written.
    """

    def __init__(
        self, asked: str, folder: Path | None = None, name_file: str = NAME_FILE, who: str = "the judge"
    ) -> None:
        self.asked, self.who = asked, who
        self.file = folder / name_file if folder else None
        self.known = self._read()
        self.others: Counter[str] = Counter()
        self.rejected: set[str] = set()
        self.answered = False  # this process has had an answer under the known name

    def is_judge(self, name: object) -> bool:
        """Return True for an answer under the judge's name or without a name."""
        return not isinstance(name, str) or not name or name == self.known

    def register_answer(self, name: object) -> None:
        """Count an answer under `name`: the first answers settle the judge's name. Warn once about each other name."""
        if not isinstance(name, str) or not name:
            return
        if self.known is None:
            self.others[name] += 1
            if name == self.asked or self.others.total() == self.others[name] == FIRST_ANSWERS:
                self.settle(name)
        if name == self.known:
            self.answered = True
        elif self.known is not None and name not in self.rejected:
            self.rejected.add(name)
            other, known = printable(name)[:100], printable(self.known)[:100]
            if self.answered:
                warn(f"{self.who}'s server answers as {other}, too, not only as {known}: answers of another model are "
                     "not counted, the questions are asked again")  # fmt: skip
            else:
                warn(f"{self.who}'s server answers as {other}, and the existing votes are by {known}: answers of "
                     f"another model are not counted; for {other} to judge everything, pass --overwrite")  # fmt: skip

    def settle(self, name: str) -> None:
        """Set and store the judge's name, unless another process has stored one already: that one then holds."""
        self.known = name
        if self.file is not None:
            with disk_errors_explained(self.file):
                if not write_text(self.file, json.dumps({"name": name}) + "\n", replace=False):
                    self.known = self._read()
        if name == self.known != self.asked:
            say(f"{self.asked} answers as {printable(name)[:100]}")

    def _read(self) -> str | None:
        if self.file is None or not self.file.exists():
            return None
        try:
            with disk_errors_explained(self.file):
                return str(json.loads(self.file.read_text(encoding="utf-8"))["name"])
        except (ValueError, LookupError, TypeError):
            raise OpdkitError(f"{self.file} is damaged: remove it, or pass --overwrite to judge again") from None
