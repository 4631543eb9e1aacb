"""Chat templates of six model families with the control tokens of each, as their tokenizers declare them.

The templates are those of the models themselves, as the package `trl` ships them.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from opdkit.chat.template import Chat


@dataclass(frozen=True)
class Family:
    """Model family. `special[0]` ends a reply; `words` are added tokens that are not special."""

    template: str  # the file's name in trl
    special: tuple[str, ...]
    words: tuple[str, ...] = ()
    system: bool = True
    tools: bool = True
    bos: str | None = None


_THINK = ("<think>", "</think>")
FAMILIES = {
    "qwen": Family("qwen3", ("<|im_end|>", "<|im_start|>", "<|endoftext|>"), (
        *_THINK, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")),
    "llama": Family("llama3_1", ("<|eot_id|>", "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                                 "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>"), bos="<|begin_of_text|>"),
    "gemma": Family("gemma3", ("<end_of_turn>", "<bos>", "<eos>", "<start_of_turn>", "<start_of_image>"), system=False,
                    tools=False, bos="<bos>"),
    "phi": Family("phi3_5", ("<|end|>", "<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>"), tools=False),
    "deepseek": Family("deepseekv3", ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"), (
        *_THINK, "<｜User｜>", "<｜Assistant｜>", "<｜tool▁sep｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>",
        "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"), bos="<｜begin▁of▁sentence｜>"),
    "harmony": Family("gptoss", ("<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>",
                                 "<|constrain|>", "<|startoftext|>")),
}  # fmt: skip
CONTROL_TOKENS = sorted({token for family in FAMILIES.values() for token in (*family.special, *family.words)})


def templates() -> Path | None:
    """Return the folder of trl's templates without importing trl; None if it is not installed."""
    found = importlib.util.find_spec("trl")
    folder = Path(found.origin).parent / "chat_templates" if found and found.origin else None
    return folder if folder and folder.is_dir() else None


def tokenizer_of(family: Family, template: str) -> PreTrainedTokenizerBase:
    """Return a byte-level tokenizer without merges, since only the added tokens matter here."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in family.special])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in family.words])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=family.special[0], bos_token=family.bos)
    tokenizer.chat_template = template
    return tokenizer


def chats() -> dict[str, Chat]:
    """Return a Chat of every family. Raises FileNotFoundError without trl."""
    folder = templates()
    if folder is None:
        raise FileNotFoundError("the chat templates come with trl: pip install trl")
    read = {
        name: (folder / f"{family.template}.jinja").read_text(encoding="utf-8") for name, family in FAMILIES.items()
    }
    return {name: Chat(tokenizer_of(FAMILIES[name], text), {}) for name, text in read.items()}
