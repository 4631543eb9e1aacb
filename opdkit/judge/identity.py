"""Under which name the judge's server answers, so that one table holds the votes of one model."""

import json
from collections import Counter
from pathlib import Path

from opdkit.console import printable, say, warn
from opdkit.errors import OpdkitError
from opdkit.store.atomic import write_first
from opdkit.store.disk import disk_errors_explained

FILE = "answers-as.json"  # in the folder of the stage that the votes are for
_FIRST_ANSWERS = 3  # under one name that was not asked for, after which it is the judge's


class Identity:
    """The name that was asked for, or one that stands for it.

    Servers answer under another name for good reasons (an alias, a dated version, a path), so a name is taken for the
    judge's when it is the one asked for, or when the first few answers all bear it. From then on an answer under
    another name comes from another model: votes of two judges in one table could not be told apart, so it is no vote;
    it is asked for again. Where a server says no name there is nothing to compare.

    The name is kept in `folder`, where there is one: whoever goes on with the stage, or does another shard of it, takes
    no other. The first process to know it decides.
    """

    def __init__(self, asked: str, folder: Path | None = None) -> None:
        self.asked = asked
        self.file = folder / FILE if folder else None
        self.known = self._kept()
        self.others: Counter[str] = Counter()
        self.refused: set[str] = set()
        self.answered = False  # to this process, under the name that is known

    def admit(self, name: object) -> bool:
        """Count an answer under `name`, and return whether it is the judge's.

        Raises OpdkitError where the name cannot be kept.
        """
        if not isinstance(name, str) or not name:
            return True
        if self.known is None and name == self.asked:
            self._settle(name)
        if name == self.known:
            self.answered = True
            return True
        self.others[name] += 1
        if self.known is None and self.others.total() == self.others[name] == _FIRST_ANSWERS:
            self._settle(name)
            if name == self.known:
                say(f"{self.asked} answers as {_shown(name)}")
                self.others.clear()
                self.answered = True
                return True
        if self.known is not None and name not in self.refused:
            self.refused.add(name)
            self._warn(name, self.known)
        return False

    def _warn(self, name: str, known: str) -> None:
        if self.answered:
            warn(f"the judge's server answers as {_shown(name)}, too, not only as {_shown(known)}: another model's "
                 "answers are not counted, they are asked for again")  # fmt: skip
        else:
            warn(
                f"the judge's server answers as {_shown(name)}, and the votes that are there are by {_shown(known)}: "
                f"another model's answers are not counted; for {_shown(name)} to judge everything, pass --overwrite"
            )

    def _settle(self, name: str) -> None:
        """From here on the judge is called `name`, unless another process has found another name first."""
        first = self.file is None or write_first(self.file, json.dumps({"name": name}) + "\n")
        self.known = name if first else self._kept()

    def _kept(self) -> str | None:
        if self.file is None or not self.file.exists():
            return None
        try:
            with disk_errors_explained(self.file):
                return str(json.loads(self.file.read_text(encoding="utf-8"))["name"])
        except (ValueError, LookupError, TypeError):
            raise OpdkitError(f"{self.file} is damaged: remove it, or pass --overwrite to judge anew") from None


def _shown(name: str) -> str:
    return printable(name)[:100]
