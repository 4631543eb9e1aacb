"""Checks of the decisions of people: readable files, existing turns, and training on the decisions in the targets."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from opdkit.commands.check.finding import Finding
from opdkit.config.command_line import quote
from opdkit.errors import OpdkitError
from opdkit.store import reviews
from opdkit.store.tables import REVIEWS


def check_decisions(run: Path, turns: set[int] | None) -> Iterator[Finding]:
    """Yield what is wrong with the files of decisions, and with the decisions in them.

    `turns` are the hashes of the run's turns, None if some could not be read.
    """
    where = reviews.reviews_dir(run)
    stage, table = REVIEWS.stage, REVIEWS.name
    for path in sorted(where.iterdir()) if where.is_dir() else ():
        if reviews.FILE_NAME.fullmatch(path.name) or path.name.startswith("."):  # hidden files are left by kills
            continue
        yield Finding(stage, "not a file of decisions, but every reader of the folder takes it for one", table,
                      key=path.name, todo=f"move it out of {where}")  # fmt: skip
    readable: list[reviews.Review] = []
    for path in reviews.files(run):
        try:
            decisions = reviews.read_file(path)
            if not pq.read_schema(path).equals(REVIEWS.schema):
                raise OpdkitError("other columns than the table has")
        except OpdkitError as error:
            yield Finding(stage, str(error), table, key=path.name,
                          todo="put it back from a copy, or move it away and decide again")  # fmt: skip
            continue
        readable += decisions
    for review in readable:
        if (problem := reviews.find_problem(review)) is not None:
            yield Finding(stage, problem, table, key=review.turn_id,
                          todo=f"decide on it again, `opdkit review {quote(run)}`")  # fmt: skip
    for name in sorted({review.turn_id for review in readable}):
        if turns is not None and hash(name) not in turns:
            yield Finding(stage, "a decision on a turn that is not there", table, key=name,
                          todo="it changes nothing: extract the logs that it was made on, or move its file out of "
                          f"{where}")  # fmt: skip
