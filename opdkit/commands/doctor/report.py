"""`opdkit doctor`: all findings, one line each."""

import json
from collections.abc import Iterator
from dataclasses import asdict

from rich.markup import escape

from opdkit.commands.doctor import logs, machine, model, server
from opdkit.commands.doctor.finding import NOTE, OK, PROBLEM, Finding
from opdkit.config.doctor import DoctorConfig
from opdkit.console import counted, printable, say, stdout

_STYLE = {OK: "green", NOTE: "yellow", PROBLEM: "bold red"}


def run(config: DoctorConfig) -> bool:
    """Print every finding. Return False if something will not work."""
    findings = list(examine(config))
    if config.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=True))
    else:
        _show(findings)
    problems = sum(finding.state == PROBLEM for finding in findings)
    say(counted(problems, "problem") if problems else "nothing is wrong with what was looked at")
    for flag in ("model", "judge_url", "logs", "run"):
        if not getattr(config, flag):
            option = "LOGS" if flag == "logs" else "--" + flag.replace("_", "-")
            say(f"not looked at: {option}")
    return not problems


def examine(config: DoctorConfig) -> Iterator[Finding]:
    """Yield the findings, one topic after the other."""
    yield from machine.versions()
    yield from machine.devices(config.device)
    if config.run:
        yield from machine.room(config.run)
    if config.model:
        yield from model.examine(config.model, config.device, config.dtype, config.lora_rank)
    if config.judge_url and config.judge_model:
        yield from server.examine(config.judge_url, config.judge_model, config.api_key_env, config.timeout)
    yield from logs.examine(config.logs)


def _show(findings: list[Finding]) -> None:
    """Print one line per finding and, under it, the remedy."""
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        what = escape(printable(finding.what))
        stdout.print(f"[{_STYLE[finding.state]}]{finding.state:7}[/]  {finding.topic:{width}}  {what}", soft_wrap=True)
        if finding.remedy:
            stdout.print(f"{'':{width + 9}}  -> {escape(printable(finding.remedy))}", soft_wrap=True)
