"""`--dry-run` of a stage that works part by part: prints on stdout what the stage would do."""

from collections.abc import Mapping

from opdkit.config.shared import parse_price
from opdkit.console import duration, is_main_process, print_facts
from opdkit.store.counters import Counters, Summary
from opdkit.store.part_writer import Stage
from opdkit.store.reading import part_path


def describe_costs(
    read: float, written: float, price: str | None, seconds: float | None, *, is_bound: bool
) -> dict[str, str]:
    """Return the lines on time and money for `read` and `written` tokens. `is_bound`: `written` is an upper bound.

    `price` is the value of --price. `seconds` is None if nothing was measured.
    """
    unknown = "not measured: --measure 8 tries 8 turns" if read else "none: nothing is left to do"
    lines = {"time": f"{duration(seconds)}, as measured" if seconds else unknown}
    if price is not None:
        amount = sum(p * n for p, n in zip(parse_price(price), (read, written), strict=True)) / 1e6
        lines["money, at most" if is_bound else "money, about"] = (
            f"{amount:{',.2f' if amount >= 1 else '.2g'}} at --price {price} per million tokens"
        )
    return lines


def print_dry_run(stage: Stage, counters: Counters, taken: str, work: Mapping[str, int | str]) -> Summary:
    """Print the parts that are done and to do, the rows in and dropped, `work`, and the files that would be written.

    `counters` are those of the parts to do. `taken` is the noun for their input rows. Return the closing line.
    """
    todo = stage.todo()
    done = 0 if stage.config.overwrite else sum(map(stage.is_done, range(stage.parts)))
    facts = [("parts", f"{stage.parts:,}, {done:,} done, {len(todo):,} to do"), (taken, f"{counters.rows_in:,}")]
    facts += [(f"  dropped: {reason}", f"{n:,}") for reason, n in counters.dropped.most_common()]
    facts += [(name, n if isinstance(n, str) else f"{n:,}") for name, n in work.items()]
    for table in stage.tables:
        first, *others = [str(part_path(stage.config.run, table.name, part)) for part in todo] or ["nothing"]
        facts.append(("would write", first + (f" and {len(others):,} more" if others else "")))
    if is_main_process():
        print_facts(facts)
    return Summary(f"{stage.name} --dry-run", counters, 0, 1, where=None)
