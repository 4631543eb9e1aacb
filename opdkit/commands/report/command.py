"""`opdkit report`: write the page of a run to a file."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.commands.report.page import make_page
from opdkit.config.report import ReportConfig
from opdkit.store.atomic import replaced_file


@dataclass(frozen=True)
class WrittenReport:
    """File of a report."""

    path: Path
    size: int  # bytes

    def text(self) -> str:
        return f"report: {self.path}, {self.size / 1e6:.2f} MB; it opens in a browser, offline"


def run(config: ReportConfig) -> WrittenReport:
    """Write the report. Raises OpdkitError if there is nothing to report, or it cannot be written."""
    path = config.out or config.run / ("report-redacted.html" if config.redacted else "report.html")
    with replaced_file(path) as temporary:
        html = make_page(config.run, turns=config.turns, rows=config.list_size, max_mb=config.max_mb,
                    redacted=config.redacted)  # fmt: skip
        temporary.write_text(html, encoding="utf-8")
    return WrittenReport(path, len(html.encode()))
