"""Small models of several families with random weights, which differ in their attention."""

import torch
import transformers
from transformers import PreTrainedModel

SIZES = {"vocab_size": 360, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
         "initializer_range": 0.3, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
_MIXED = ["sliding_attention", "full_attention"]
# A token attends to all tokens before it, or to those in a window of 8 tokens.
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
                               "num_experts_per_tok": 2}),  # eager only
}  # fmt: skip
FAMILIES |= {
    "DeepSeek-V3": ("DeepseekV3Config", {
        "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}),
    "OLMo": ("OlmoConfig", {"pad_token_id": 0}),
    "OLMo 2": ("Olmo2Config", {"pad_token_id": 0}),
    "Phi": ("PhiConfig", {}),
    "Phi-3": ("Phi3Config", {"pad_token_id": 0}),
}  # fmt: skip
EAGER = ("eager", "capped window", "sinks")  # not on torch's own attention
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LINEAR = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 4, "linear_num_value_heads": 4,
           "layer_types": ["linear_attention", "full_attention"], "initializer_range": 0.1,
           "pad_token_id": 0}  # fmt: skip
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8,
          "pad_token_id": 0}  # fmt: skip
_CHUNKS = {"attention_chunk_size": 8, "num_local_experts": 2, "intermediate_size_mlp": 48, "num_hidden_layers": 4}
# Families with layers that keep a state instead of keys, or that attend within chunks; most have ordinary layers too.
STATES = {
    "Llama 4": ("Llama4TextConfig", {**_CHUNKS, "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
                                     "no_rope_layers": [1, 1, 1, 0]}),
    "Qwen3-Next": ("Qwen3NextConfig", {**_LINEAR, **_EXPERTS, "shared_expert_intermediate_size": 16}),
    "Qwen3.5": ("Qwen3_5TextConfig", _LINEAR),
    "OLMo hybrid": ("OlmoHybridConfig", _LINEAR),
    "Kimi linear": ("KimiLinearConfig", {**_LINEAR, "linear_head_dim": 8, "linear_num_heads": 4, "kv_lora_rank": 8,
                                         "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
                                         "q_lora_rank": None, "num_key_value_heads": 4, "num_experts": 4,
                                         "n_routed_experts": 4, "num_experts_per_tok": 2,
                                         "moe_intermediate_size": 16}),
    "Mamba-2": ("Mamba2Config", {"num_heads": 8, "state_size": 8, "n_groups": 1, "chunk_size": 8}),
    "Bamba": ("BambaConfig", {**_MAMBA, "attn_layer_indices": [1]}),
    "Nemotron-H": ("NemotronHConfig", {"layers_block_type": ["mamba", "attention", "mlp"], "mamba_num_heads": 8,
                                       "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8,
                                       "num_hidden_layers": 3}),
    "Granite hybrid": ("GraniteMoeHybridConfig", {**_MAMBA, "layer_types": ["mamba", "attention"],
                                                  "num_local_experts": 4, "num_experts_per_tok": 2,
                                                  "shared_intermediate_size": 16}),
    "Falcon-H1": ("FalconH1Config", {**_MAMBA, "mamba_d_ssm": 64}),
    "LFM2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    "Mamba": ("MambaConfig", {"state_size": 8}),
    "Jamba": ("JambaConfig", {"num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2,
                              "attn_layer_offset": 1, "mamba_d_state": 8, "use_mamba_kernels": False,
                              "pad_token_id": 0}),
}  # fmt: skip
# These cannot continue from a cache, or their positions depend on the number of tokens read.
PLAIN = {
    "states in the layers": ("RecurrentGemmaConfig", {"attention_window_size": 8, "lru_width": 32, "pad_token_id": 0}),
    "dynamic positions": ("LlamaConfig", {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, "max_position_embeddings": 512}),
    "LongRoPE": ("LlamaConfig", {"rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}, "max_position_embeddings": 512}),
}  # fmt: skip


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
