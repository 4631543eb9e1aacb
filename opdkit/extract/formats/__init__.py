"""Log formats: one module each, a dict of readers, detection, and the opening of inputs."""

from opdkit.extract.formats import (
    anthropic,
    claude_code,
    langfuse,
    lmsys,
    openai,
    openclaw_rl,
    otel,
    pi,
    sharegpt,
    sweagent,
    wildchat,
)
from opdkit.extract.formats.reader import Reader

READERS: dict[str, Reader] = {
    m.READER.name: m.READER
    for m in (openai, anthropic, sharegpt, openclaw_rl, pi, claude_code, sweagent, wildchat, lmsys, langfuse, otel)
}
