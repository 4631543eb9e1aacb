"""Time of scoring and of a training step for many model families: a conversation read once, or turn by turn.

    python -m tests.benchmarks.families

The session is that of median length of tau-bench. Weights are random. Attention windows have 256 tokens, so that the
conversation is many times as long as a window.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from opdkit.model.tree_reading import PACK_TOKENS, check_tree_reading, plan_tree
from opdkit.train.policy import Policy

from . import scoring, training, usual
from .pairs import RESULTS, load, machine, save
from .sessions import taubench

SIZES = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1 << 16, "pad_token_id": 0}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
_WINDOW = {"sliding_window": 256}
_LINEAR = {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 4,
           "linear_num_value_heads": 4,
           "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2}  # fmt: skip
_MAMBA = {"mamba_n_heads": 12, "mamba_d_head": 32, "mamba_d_state": 32, "mamba_n_groups": 1}
# Family -> its configuration class in transformers, and the values that differ from SIZES and the class's defaults.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3": ("Qwen3Config", {}),
    "Qwen3, experts": ("Qwen3MoeConfig", _EXPERTS),
    "Llama": ("LlamaConfig", {}),
    "Phi-3": ("Phi3Config", {}),
    "OLMo 2": ("Olmo2Config", {}),
    "DeepSeek-V3": ("DeepseekV3Config", {
        "num_key_value_heads": 6, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}),
    "Mistral, window": ("MistralConfig", _WINDOW),
    "Gemma 2": ("Gemma2Config", {**_WINDOW, "query_pre_attn_scalar": 32}),
    "Gemma 3": ("Gemma3TextConfig", _WINDOW),
    "Gemma 4": ("Gemma4TextConfig", {**_WINDOW, "global_head_dim": 32, "num_kv_shared_layers": 2,
                                     "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
                                     "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 0}),
    "GPT-OSS": ("GptOssConfig", {**_WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2,
                                 "intermediate_size": 256}),
    "OLMo 3": ("Olmo3Config", _WINDOW),
    "Command R7B": ("Cohere2Config", _WINDOW),
    "Qwen3-Next": ("Qwen3NextConfig", {**_LINEAR, **_EXPERTS, "shared_expert_intermediate_size": 256}),
    "Qwen3.5": ("Qwen3_5TextConfig", _LINEAR),
    "OLMo hybrid": ("OlmoHybridConfig", _LINEAR),
    "LFM2": ("Lfm2Config", {"layer_types": ["conv", "conv", "full_attention"] * 2}),
    "Mamba-2": ("Mamba2Config", {"num_heads": 12, "head_dim": 32, "state_size": 32, "n_groups": 1}),
    "Nemotron-H": ("NemotronHConfig", {"layers_block_type": ["mamba", "mlp", "mamba", "attention", "mamba", "mlp"],
                                       "mamba_num_heads": 12, "mamba_head_dim": 32, "ssm_state_size": 32,
                                       "n_groups": 1}),
    "Granite hybrid": ("GraniteMoeHybridConfig", {
        **_MAMBA, "layer_types": ["mamba", "mamba", "attention"] * 2, "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 256}),
    "Falcon-H1": ("FalconH1Config", {**_MAMBA, "mamba_d_ssm": 384}),
    "Jamba": ("JambaConfig", {"num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 3,
                              "attn_layer_offset": 2, "use_mamba_kernels": False}),
}  # fmt: skip

ROUNDED = 1e-5  # gradients that differ by more, relative to their norm, are compared in float64, too
IN_FLOAT64 = "difference of the gradients in float64"  # name of this fact


def build(family: str, vocabulary: int) -> PreTrainedModel:
    name, extra = FAMILIES[family]
    own = {"vocab_size_per_layer_input": vocabulary} if "vocab_size_per_layer_input" in extra else {}
    ids = {"vocab_size": vocabulary, "bos_token_id": 1, "eos_token_id": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, name)(**(SIZES | ids | extra | own))
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    tokenizer, sessions = taubench()
    chosen = [sessions[len(sessions) // 2]]
    step = training.Step([t.student for t in chosen[0]], ["0"] * len(chosen[0]))
    path = options.results / "families.json"
    kept = {c.name: c for c in (load("families", options.results) if path.exists() else ())}
    if path.exists() and (before := json.loads(path.read_text(encoding="utf-8"))["machine"]) != machine():
        for comparison in kept.values():
            comparison.facts.setdefault("measured on", f"{before['cpu']}, torch {before['torch']}")
    for family in options.families:
        model = build(family, len(tokenizer)).to(options.device)
        tree = plan_tree(model, usual.samples(chosen[0]), PACK_TOKENS)
        facts = {"tokens read, ours": tree.tokens if check_tree_reading(model) else tree.tokens + tree.saved}
        scored = scoring.compare(f"{family}, scoring", model, chosen, options.pairs, facts)
        trained = training.compare(f"{family}, a training step", Policy(model), step, options.pairs, {})
        if float(trained.facts[training.APART]) > ROUNDED:
            exact = Policy(build(family, len(tokenizer)).to(options.device).double())
            trained.facts[IN_FLOAT64] = f"{training.difference(exact, step):.1g}"
        kept |= {scored.name: scored, trained.name: trained}
        # Saved after each family. Families that were not asked for keep their earlier figures.
        order = [f"{name}, {work}" for name in FAMILIES for work in ("scoring", "a training step")]
        path = save("families", [kept[name] for name in order if name in kept], options.results)
    print(path)


if __name__ == "__main__":
    main()
