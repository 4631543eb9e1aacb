"""Untrained models for time measurements: the time depends on sizes, not on values."""

import argparse

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

# Hidden size, layers, heads, MLP: about 1, 10 and 100 million weights without the embeddings. `wide` is one of the 28
# layers of Qwen3-0.6B: attention's share of the work depends on the width.
SIZES = {
    "1m": (128, 4, 4, 512),
    "10m": (320, 6, 8, 1280),
    "100m": (768, 12, 12, 2560),
    "wide": (1024, 1, 16, 3072),
}
# Two published sizes of Qwen3, for a GPU.
PUBLISHED_VOCABULARY = 151_936
PUBLISHED = {
    "0.6b": {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 3072},
    "4b": {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 9728},
}


def add_model_options(parser: argparse.ArgumentParser, size: str = "10m") -> None:
    """Add the options of the model that is timed: size, device and precision."""
    gpu = torch.cuda.is_available()
    parser.add_argument("--size", choices=(*SIZES, *PUBLISHED), default=size)
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--dtype", default="bfloat16" if gpu else "float32")


def build_for(options: argparse.Namespace, vocabulary: int) -> PreTrainedModel:
    """Build the model that `add_model_options` describes."""
    return build(options.size, vocabulary, device=options.device).to(getattr(torch, options.dtype))


def build(size: str, vocabulary: int, spread: float = 0.02, device: str = "cpu") -> PreTrainedModel:
    """Build a random Qwen3 in float32; a larger `spread` makes predictions less uniform."""
    sizes = PUBLISHED.get(size, {}) | {"num_key_value_heads": 8, "head_dim": 128}
    if size in SIZES:
        hidden, layers, heads, mlp = SIZES[size]
        sizes = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers,
                 "num_attention_heads": heads, "num_key_value_heads": heads // 2,
                 "head_dim": hidden // heads}  # fmt: skip
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        config = Qwen3Config(vocab_size=vocabulary, max_position_embeddings=1 << 16, tie_word_embeddings=True,
                             initializer_range=spread, **sizes)  # fmt: skip
        return Qwen3ForCausalLM(config).eval()


def weights(model: PreTrainedModel) -> str:
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million"
