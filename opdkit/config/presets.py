"""Chat template arguments of common models, so that prompts equal those that the model is served with.

Stop tokens need no preset: they are read from the model's files and from the text that its template writes after a
reply. The arguments are those that each family's published template reads. A test runs them through the templates that
are installed.
"""

from dataclasses import dataclass

NO_THINKING = ("enable_thinking=false",)
THINKING_TOKENS = 4096  # --max-new-tokens of a judge that thinks first, since a cut-off vote does not count


@dataclass(frozen=True)
class Preset:
    """Template arguments of a model family in one mode. `opdkit init` writes `note` into the TOML file."""

    models: str
    note: str
    template_arg: tuple[str, ...] = ()
    thinks: bool = False


PRESETS: dict[str, Preset] = {
    "qwen2.5": Preset("Qwen2.5 Instruct", "the template writes a system message of its own if the log has none"),
    "qwen3": Preset("Qwen3, Qwen3.5 and later, served without thinking", "an empty think block is part of the prompt",
                    NO_THINKING),
    "qwen3-thinking": Preset("Qwen3 and later, served with thinking", "thinking of earlier turns is not in the prompt",
                             ("enable_thinking=true",), thinks=True),
    "qwen3-2507": Preset("Qwen3 Instruct 2507", "never thinks, and its template takes no argument"),
    "llama3": Preset("Llama 3.1, 3.2, 3.3 Instruct", "the date in the system message stays that of the template's own "
                     "fallback; another: date_string=..."),
    "gpt-oss": Preset("gpt-oss", "say how the log's replies were served: reasoning_effort=low, medium or high",
                      ("reasoning_effort=medium",), thinks=True),
    "deepseek-r1": Preset("DeepSeek-R1 and its distilled models", "thinks always; thinking of earlier turns is not in "
                          "the prompt", thinks=True),
    "glm4": Preset("GLM-4.5 and later, served without thinking", "an empty think block ends the prompt", NO_THINKING),
    "glm4-thinking": Preset("GLM-4.5 and later, served with thinking", "thinking of earlier turns is not in the prompt",
                            ("enable_thinking=true",), thinks=True),
    "nemotron3": Preset("Nemotron 3, served without thinking", "an empty think block is part of the prompt",
                        NO_THINKING),
    "gemma3": Preset("Gemma 2 and 3", "there is no system role: the template puts it before the first user message"),
    "gemma4": Preset("Gemma 4, served without thinking", "", NO_THINKING),
    "phi3": Preset("Phi-3 and Phi-3.5", "never thinks, and its template takes no argument"),
}  # fmt: skip
