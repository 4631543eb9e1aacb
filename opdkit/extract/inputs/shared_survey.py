"""What the first pass found out about each input, kept in the run, so that of many shards not every one reads all logs.

    RUN/extract/.survey/9f86d081884c7d659a2feaa0c55ad015.json

One file an input, named by a digest of all that it depends on: the file's path, size, time and inode, and the options.
Shards begin at different inputs, and look here before each: without a lock they share the inputs between them, and two
that read the same one at once write the same thing.
"""

import contextlib
import json
from pathlib import Path

import xxhash

from opdkit.config.fields import JSON
from opdkit.store.disk import replace_text
from opdkit.version import __version__


class SharedSurvey:
    """The files of one run. `first` of `of` shards is where this one begins."""

    def __init__(self, folder: Path, first: int, of: int) -> None:
        self.folder, self.first, self.of = folder, first, of

    def order(self, count: int) -> list[int]:
        """The inputs 0 ... count - 1, this shard's share of them first."""
        start = self.first * count // self.of
        return [*range(start, count), *range(start)]

    def get(self, *what: object) -> JSON | None:
        """What somebody found out, None where nobody has yet."""
        try:
            found: JSON = json.loads(self._path(what).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not there, or damaged: then it is found out once more
            return None
        return found

    def keep(self, found: JSON, *what: object) -> None:
        """For the others. A disk that cannot take it is no reason to stop: it saves work, nothing else."""
        path = self._path(what)
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_text(path, json.dumps(found))

    def _path(self, what: tuple[object, ...]) -> Path:
        name = xxhash.xxh3_128_hexdigest(json.dumps([__version__, *map(str, what)]).encode())
        return self.folder / f"{name}.json"
