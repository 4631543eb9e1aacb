"""Untrained models for what is timed: the time depends on sizes, not on values."""

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

# Hidden size, layers, heads, MLP: about 10 and 100 million weights beside the embeddings. `wide` is one
# of the 28 layers of a model of 0.6 billion (Qwen3-0.6B): how much of the work is attention depends on the width.
SIZES = {
    "1m": (128, 4, 4, 512),
    "10m": (320, 6, 8, 1280),
    "100m": (768, 12, 12, 2560),
    "wide": (1024, 1, 16, 3072),
}


def build(size: str, vocabulary: int, spread: float = 0.02) -> PreTrainedModel:
    """Build a random Qwen3 with two heads per key; a larger `spread` makes predictions less uniform."""
    hidden, layers, heads, mlp = SIZES[size]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = Qwen3Config(vocab_size=vocabulary, hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers,
                             num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=hidden // heads,
                             max_position_embeddings=1 << 16, tie_word_embeddings=True, initializer_range=spread,
                             )  # fmt: skip
        return Qwen3ForCausalLM(config).eval()


def weights(model: PreTrainedModel) -> str:
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million"
