"""What people decided: files that can be read, turns that there are, and a training that saw what the targets show."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from opdkit import reviews
from opdkit.check.finding import Finding
from opdkit.check.plans import again
from opdkit.config import JSON
from opdkit.errors import OpdkitError
from opdkit.stages import home
from opdkit.store import parts_of_turns
from opdkit.tables import REVIEWS


def wrong(run: Path) -> Iterator[Finding]:
    """What is wrong with the files of decisions, and with what is in them."""
    where = reviews.folder(run)
    for path in reviews.strangers(run):
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
        if (what := reviews.invalid(review)) is not None:
            yield _finding(what, review.turn_id, f"decide on it again, `opdkit review {run}`")
    known = parts_of_turns(run, {review.turn_id for review in readable}) if _extracted(run) else {}
    for name in sorted({review.turn_id for review in readable} - known.keys()) if _extracted(run) else ():
        yield _finding("a decision on a turn that is not there", name, f"it changes nothing; strike it in {where}, or "
                       "extract the logs that it was made on")  # fmt: skip


def unseen(run: Path, document: JSON, taken: JSON) -> Iterator[Finding]:
    """Whether the training, by its manifest, was computed from targets with other decisions than those `taken`."""
    if document["plan"]["inputs"].get("reviews") != reviews.plan_inputs(taken).get("reviews"):
        yield Finding("train", "trained on targets of before the decisions that they show now", key="manifest.json",
                      todo=f"run `{again(run, 'train', document)} --overwrite`")  # fmt: skip


def _extracted(run: Path) -> bool:
    return (home(run, "extract") / "manifest.json").exists()


def _finding(what: str, key: str, todo: str) -> Finding:
    return Finding(REVIEWS.stage, what, REVIEWS.name, key=key, todo=todo)
