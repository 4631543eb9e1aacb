"""What people decided: files that can be read, turns that there are, and a training that saw what the targets show."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from opdkit.commands.check.finding import Finding
from opdkit.commands.check.plans import again
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.store import reviews
from opdkit.store.tables import REVIEWS


def wrong(run: Path, turns: set[int] | None) -> Iterator[Finding]:
    """What is wrong with the files of decisions, and with what is in them.

    `turns` are the hashes of the turns that there are; null where some could not be read.
    """
    where = reviews.reviews_dir(run)
    for path in reviews.unexpected_files(run):
        yield _finding("not a file of decisions, but every reader of the folder takes it for one", path.name,
                       f"move it out of {where}")  # fmt: skip
    readable: list[reviews.Review] = []
    for path in reviews.files(run):
        try:
            found = reviews.read_file(path)
            if not pq.read_schema(path).equals(REVIEWS.schema):
                raise OpdkitError("other columns than the table has")
        except OpdkitError as error:
            yield _finding(str(error), path.name, "put it back from a copy, or move it away and decide again")
            continue
        readable += found
    for review in readable:
        if (what := reviews.find_problem(review)) is not None:
            yield _finding(what, review.turn_id, f"decide on it again, `opdkit review {quote(run)}`")
    for name in sorted({review.turn_id for review in readable}):
        if turns is not None and hash(name) not in turns:
            yield _finding("a decision on a turn that is not there", name, "it changes nothing: extract the logs that "
                           f"it was made on, or move its file out of {where}")  # fmt: skip


def unseen(run: Path, document: JSON, taken: JSON) -> Iterator[Finding]:
    """Whether the training, by its manifest, was computed from targets with other decisions than those `taken`."""
    if document["plan"]["inputs"].get("reviews") != reviews.plan_inputs(taken).get("reviews"):
        yield Finding("train", "trained on targets of before the decisions that they show now", key="manifest.json",
                      todo=f"run `{again(run, 'train', document)} --overwrite`")  # fmt: skip


def _finding(what: str, key: str, todo: str) -> Finding:
    return Finding(REVIEWS.stage, what, REVIEWS.name, key=key, todo=todo)
