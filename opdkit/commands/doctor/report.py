"""Loop of `opdkit doctor`: print all findings, one line each. Also makes the findings about the logs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from rich.markup import escape

from opdkit.chat.conversation import Unreadable
from opdkit.commands.doctor import machine, model, server
from opdkit.commands.doctor.finding import NOTE, OK, PROBLEM, Finding
from opdkit.config.doctor import DoctorConfig
from opdkit.console import counted, printable, say, stdout
from opdkit.errors import OpdkitError
from opdkit.extract.formats.detect import NO_LINES, SEVERAL, UNKNOWN
from opdkit.extract.inputs.archives import DAMAGED
from opdkit.extract.inputs.files import expand, scratch_folder
from opdkit.extract.inputs.first_pass import AUTO, begin_survey, find_format

_STYLE = {OK: "green", NOTE: "yellow", PROBLEM: "bold red"}
_LINE = 64_000_000  # bytes of the longest line that is read: the default of `extract --max-line-mb`


def run(config: DoctorConfig) -> bool:
    """Print every finding. Return False if something will not work."""
    findings = list(examine(config))
    if config.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=True))
    else:
        width = max(len(finding.topic) for finding in findings)
        for finding in findings:
            state, what = f"[{_STYLE[finding.state]}]{finding.state:7}[/]", escape(printable(finding.what))
            stdout.print(f"{state}  {finding.topic:{width}}  {what}", soft_wrap=True)
            if finding.remedy:
                stdout.print(f"{'':{width + 9}}  -> {escape(printable(finding.remedy))}", soft_wrap=True)
    problems = sum(finding.state == PROBLEM for finding in findings)
    say(counted(problems, "problem") if problems else "nothing is wrong with what was looked at")
    given = {"--model": config.model, "--judge-url": config.judge_url, "LOGS": config.logs, "--run": config.run}
    for option in (option for option, value in given.items() if not value):
        say(f"not looked at: {option}")
    return not problems


def examine(config: DoctorConfig) -> Iterator[Finding]:
    """Yield the findings, one topic after the other."""
    yield from machine.versions()
    yield from machine.devices(config.device)
    if config.run:
        yield from machine.room(config.run)
    if config.model:
        yield from model.examine(config.model, config.device, config.dtype, config.lora_rank, config.load_in_4bit)
    if config.judge_url and config.judge_model:
        yield from server.examine(config.judge_url, config.judge_model, config.api_key_env, config.timeout)
    yield from examine_logs(config.logs)


def examine_logs(logs: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding per input: its format, or why it is unreadable. `opdkit extract --dry-run` shows the contents."""
    remote = [source for source in logs if source == "-" or source.startswith("hf:")]
    for source in remote:
        yield Finding("logs", NOTE, f"{source} is not looked into", "opdkit extract reads it once")
    with scratch_folder() as scratch:
        try:
            inputs = expand([source for source in logs if source not in remote], scratch)
        except OpdkitError as error:
            yield Finding("logs", PROBLEM, str(error), "name log files, or folders that hold some")
            return
        left_out = 0
        for log in inputs:
            remedy = "a damaged or protected file: copy it again, or make it readable"
            try:
                surveyed = begin_survey(replace(log, given=False))  # so that a problem does not raise
                find_format(surveyed, AUTO, _LINE)
            except OSError as error:
                yield Finding("logs", PROBLEM, f"{log.source} cannot be read: {error}", remedy)
                continue
            problem = surveyed.problem or (None if surveyed.format else Unreadable(NO_LINES, "no record in it"))
            if problem is None:
                yield Finding("logs", OK, f"{log.source}: {surveyed.format}")
                continue
            state = PROBLEM
            if not log.given and problem.reason in (UNKNOWN, NO_LINES):  # such as users.json in an export of Claude.ai
                state, remedy = NOTE, "extract leaves it out, and reads the others"
                left_out += 1
            elif problem.reason in (UNKNOWN, SEVERAL):
                remedy = "--format names the format; docs/logs.md says which are read"
            elif log.problem is None and problem.reason != DAMAGED:
                remedy = "docs/logs.md says what is read"
            yield Finding("logs", state, f"{log.source}: {problem.reason} ({problem.detail})", remedy)
        if 0 < left_out == len(inputs):
            yield Finding("logs", PROBLEM, "none of these files holds a log", "docs/logs.md says what is read")
