"""Log formats: one module each, a dict of readers, detection, and the opening of inputs."""

from opdkit.logs import openai, openclaw_rl, pi, sharegpt
from opdkit.logs.conversation import Reader

READERS: dict[str, Reader] = {m.READER.name: m.READER for m in (openai, sharegpt, openclaw_rl, pi)}
