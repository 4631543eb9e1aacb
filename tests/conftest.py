"""Settings of all tests, and a tiny chat model: byte-level BPE, a Qwen-style template, a random-weight Qwen3."""

import gc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from warm_opdkit import warm_opdkit

# Test processes run side by side, about one per core: more threads would only compete. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# pytest imports readline, which writes the terminal's size into the environment. opdkit would wrap its lines to it.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Hypothesis's current profile (a different one if CI is set), without a time limit per example.
settings.register_profile("no deadline", settings(), deadline=None)
settings.load_profile("no deadline")


def pytest_xdist_auto_num_workers() -> int:
    """Return the number of cores plus one: tests of servers, Slurm and browsers mostly wait."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow tests first, so that the other processes do not wait for a slow test at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from scanning torch's modules and six thousand tests at each collection."""
    gc.collect()
    gc.freeze()


TRAINING_TEXT = [
    "Please write the answer in short sentences, without bullet points.",
    "The tool returned an error: file not found. No, I said the other file.",
    "def main():\n    return {'name': 'value', 'count': 10}\n",
    "system user assistant tool hello world thanks that is right",
]


def build_tokenizer(template: str, special: Sequence[str], words: Sequence[str] = (), *, bos: str | None = None):
    """Build a byte-level BPE tokenizer (about 330 tokens). `special[0]` ends a reply; `words` are not special."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    backend.train_from_iterator(TRAINING_TEXT, trainer)
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in words])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=special[0], pad_token=special[0], bos_token=bos
    )
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="session")
def warm_path() -> Iterator[str]:
    """Yield a PATH whose `opdkit` starts at once (see warm_opdkit.py): the real command, in its own process."""
    with warm_opdkit() as folder:
        yield f"{folder}{os.pathsep}{os.environ['PATH']}"


CHATML_TOKENS = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
CHATML_WORDS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """Return a tokenizer with ChatML tokens and a Qwen3-style template (thinking, tools)."""
    from chat_templates import QWEN

    return build_tokenizer(QWEN, CHATML_TOKENS, CHATML_WORDS)


@pytest.fixture(scope="session")
def plain_tokenizer():
    """Return the same vocabulary with a plain ChatML template: no thinking, no tools."""
    from chat_templates import CHATML

    return build_tokenizer(CHATML, CHATML_TOKENS, CHATML_WORDS)


def save_tiny_model(folder: Path, tokenizer, seed: int = 0) -> Path:
    """Save a random-weight Qwen3 of two layers, and the tokenizer. Each seed gives another model."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        initializer_range=0.3,  # far from uniform, so that a shifted or swapped log-prob shows
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory, tiny_tokenizer) -> Path:
    """Return a model folder for AutoModelForCausalLM and AutoTokenizer, with the Qwen3-style template."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model", tiny_tokenizer)


@pytest.fixture(scope="session")
def plain_model_dir(tmp_path_factory, plain_tokenizer) -> Path:
    """Return a folder of the same weights with the plain ChatML template."""
    return save_tiny_model(tmp_path_factory.mktemp("plain") / "model", plain_tokenizer)
