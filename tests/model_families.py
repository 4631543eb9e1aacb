"""Small models of several families with random weights: which attention each has is what differs."""

import torch
import transformers
from transformers import PreTrainedModel

SIZES = {"vocab_size": 360, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
         "initializer_range": 0.3, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
_MIXED = ["sliding_attention", "full_attention"]
# A token sees all that comes before it, or all in a window of 8 tokens.
FAMILIES = {
    "grouped queries": ("Qwen3Config", {}),
    "one key for all": ("LlamaConfig", {"num_key_value_heads": 1}),
    "a key a query": ("LlamaConfig", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "eager": ("Qwen3Config", {"attn_implementation": "eager"}),
    "scaled logits": ("GraniteConfig", {"logits_scaling": 4.0, "embedding_multiplier": 2.0}),
    "experts": ("Qwen3MoeConfig", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "learned positions": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024}),
    "window": ("MistralConfig", {"sliding_window": 8}),
    "window, then all": ("Gemma3TextConfig", {"sliding_window": 8, "layer_types": _MIXED}),
    "keys of other layers": ("Gemma4TextConfig", {
        "sliding_window": 8, "layer_types": _MIXED * 2, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 360, "global_head_dim": 8}),
    "capped window": ("Gemma2Config", {"sliding_window": 8, "query_pre_attn_scalar": 8}),  # eager by default
    "sinks": ("GptOssConfig", {"sliding_window": 8, "layer_types": _MIXED, "num_local_experts": 4,
                               "num_experts_per_tok": 2}),  # eager alone
}  # fmt: skip
EAGER = ("eager", "capped window", "sinks")  # cannot be packed
# Layers of other kinds.
PLAIN = {
    "chunks": ("Llama4TextConfig", {"attention_chunk_size": 8, "num_local_experts": 2, "intermediate_size_mlp": 48}),
    "states": ("Mamba2Config", {"num_heads": 8, "state_size": 8, "n_groups": 1, "chunk_size": 8}),
    "convolutions": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
}


def build(name: str, extra: dict, seed: int = 0) -> PreTrainedModel:
    sizes = {k: SIZES[k] for k in ("vocab_size", "initializer_range")} if name == "GPT2Config" else SIZES
    extra = dict(extra)
    attention = extra.pop("attn_implementation", None)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = getattr(transformers, name)(**(sizes | extra))
        return transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=attention
        ).eval()
