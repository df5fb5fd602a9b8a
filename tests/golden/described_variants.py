"""Variants of families that need no more than attention and experts as the description has them, by
Transformers' own classes. make_families.py uses this file.
"""

from functools import partial

import torch

from family_variants import EXPERTS, Variant as AnyVariant, style_4, yarn
from predicted_tokens import with_ernie_head, with_layer_behind, with_qwen_head

Variant = partial(AnyVariant, perturbs_routers=True)

# The names that DeepSeek V3 has given to what a router needs.
ROUTED = {"moe_intermediate_size": 20, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2,
          "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7, "norm_topk_prob": True}


def with_layers(number, n_layers):
    """Tensors of one layer more, as checkpoints have them whose heads predict further tokens."""
    prefix = f"model.layers.{number}."
    last = f"model.layers.{n_layers - 1}."

    def rename(tensors):
        more = {prefix + "enorm.weight": torch.ones(4)}
        more |= {name.replace(last, prefix): value.clone() for name, value in tensors.items()
                 if name.startswith(last + "self_attn.")}
        return {**tensors, **more}
    return rename


def with_mtp(tensors):
    """Heads that predict further tokens, beside the model."""
    return {**tensors, "mtp.0.norm.weight": torch.ones(4)}


def style_internlm3(config):
    config = style_4(config)
    config["architectures"] = ["InternLM3ForCausalLM"]
    config["qkv_bias"] = config.pop("attention_bias")
    config["bias"] = config.pop("mlp_bias")
    return config


VARIANTS = [
    Variant("glm4_moe", "half of a head rotated, Q and K normed by head, biases of Q, K and V; the first layer "
            "dense; experts in groups by corrected sigmoids, two shared; a head for further tokens",
            config={**ROUTED, "num_hidden_layers": 2, "first_k_dense_replace": 1, "use_qk_norm": True,
                    "attention_bias": True, "head_dim": 12},
            rename=with_layer_behind(2), unused=("model.layers.2.*",), style=style_4),
    Variant("solar_open", "experts in all layers, by corrected sigmoids",
            config={**ROUTED, "head_dim": 12, "num_hidden_layers": 1, "attention_bias": True,
                    "rope_parameters": yarn()}),
    Variant("dots1", "Q and K normed by head, a window in the last layer, experts by corrected sigmoids",
            config={**ROUTED, "norm_topk_prob": False, "first_k_dense_replace": 1, "attention_bias": True,
                    "sliding_window": 24, "max_window_layers": 1}),
    Variant("seed_oss", "biases of Q, K and V and of the feed-forward, head_dim 20",
            config={"head_dim": 20, "attention_bias": True, "attention_out_bias": True, "mlp_bias": True}),
    Variant("ernie4_5", "rope in pairs, biases everywhere, tied",
            config={"head_dim": 20, "use_bias": True, "tie_word_embeddings": True}),
    Variant("ernie4_5_moe", "experts by corrected softmax, two shared, in the second layer; rope in pairs; "
            "biases, of the output too; a head for further tokens",
            config={"use_bias": True, "moe_intermediate_size": 20, "moe_k": 3, "moe_num_experts": 6,
                    "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "tie_word_embeddings": False},
            rename=with_ernie_head, unused=("model.mtp_*",)),
    Variant("hunyuan_v1_dense", "Q and K normed after rope, whose base alpha raises; biases",
            config={"head_dim": 20, "attention_bias": True, "rope_parameters": {
                "rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0}}),
    Variant("hunyuan_v1_moe", "Q and K normed after rope, experts by softmax of all, one shared",
            config={"head_dim": 12, "num_experts": 5, "moe_topk": 2, "intermediate_size": 20}),
    Variant("exaone4", "norms after only, Q and K normed by head, a window and rope in three of four layers",
            config={"num_hidden_layers": 4, "sliding_window": 24, "intermediate_size": 20}),
    Variant("arcee", "a plain feed-forward with squared ReLU, biases",
            config={"attention_bias": True, "mlp_bias": True, "rope_parameters": yarn()}),
    Variant("nemotron", "layer norms of 1 + weight, half of a head rotated, squared ReLU, biases",
            config={"attention_bias": True, "mlp_bias": True, "head_dim": 12}, style=style_4),
    Variant("minimax_m2", "Q and K normed whole, half of a head rotated, experts by corrected sigmoids",
            config={"head_dim": 12, "intermediate_size": 20, "num_local_experts": 6, "num_experts_per_tok": 3,
                    "rotary_dim": 6}),
    Variant("flex_olmo", "norms after only, Q and K normed whole, experts by softmax of all, biases",
            config={"num_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 20,
                    "attention_bias": True, "norm_topk_prob": True}),
    Variant("helium", "rope in pairs, biases of Q, K and V and of the feed-forward",
            config={"head_dim": 12, "attention_bias": True, "mlp_bias": True}),
    Variant("internlm3", "biases, head_dim 20, dynamic rope within the context; names as released",
            config={"head_dim": 20, "attention_bias": True, "mlp_bias": True, "rope_parameters": {
                "rope_type": "dynamic", "rope_theta": 50000.0, "factor": 6.0}}, style=style_internlm3),
    Variant("jais2", "layer norms with biases, a plain feed-forward with squared ReLU, biases",
            config={"attention_bias": True, "mlp_bias": True}),
    Variant("apertus", "xIELU with numbers of each layer, Q and K normed by head, biases, llama3 rope",
            config={"attention_bias": True, "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0,
                "original_max_position_embeddings": 32, "low_freq_factor": 1.0, "high_freq_factor": 4.0}}),
    Variant("exaone_moe", "a window and rope in three of four layers, experts by corrected sigmoids but in the "
            "first layer; a head for further tokens", config={**ROUTED, "num_experts": 6, "num_shared_experts": 1, "n_group": 2,
                                   "topk_group": 1, "num_hidden_layers": 4, "sliding_window": 24,
                                   "moe_intermediate_size": 8, "num_experts_per_tok": 2,
                                   "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
                                   "intermediate_size": 20},
            rename=with_qwen_head("model.layers.2."), unused=("mtp.*",)),
    Variant("hy_v3", "Q and K normed by head, biases, experts by corrected sigmoids, one shared; a head for "
            "further tokens", config={"head_dim": 12, "attention_bias": True, "mlp_bias": True,
                                      "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 2,
                                      "moe_intermediate_size": 20, "router_scaling_factor": 1.7},
            rename=with_layers(2, 2), unused=("model.layers.2.*",)),
    Variant("llama4_text", "rope in pairs and blocks of positions in three of four layers, L2 norms of Q and K, a "
            "temperature in the fourth; experts whose input is weighed in every other layer, one shared",
            config={"head_dim": 12, "num_hidden_layers": 4, "attention_chunk_size": 20, "floor_scale": 8,
                    "attn_scale": 0.4, "attention_bias": True, "num_local_experts": 3, "num_experts_per_tok": 2,
                    "intermediate_size": 16, "intermediate_size_mlp": 20, "interleave_moe_layer_step": 2}),
    Variant("cwm", "a window in three of four layers, head_dim 20",
            config={"head_dim": 20, "num_hidden_layers": 4, "sliding_window": 24, "intermediate_size": 20,
                    "rope_parameters": {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0,
                                        "original_max_position_embeddings": 32, "low_freq_factor": 1.0,
                                        "high_freq_factor": 4.0}}),
    Variant("nanochat", "norms without weights, of the embedding too; heads turned the other way, normed after "
            "rope; squared ReLU; soft cap of logits",
            config={"attention_bias": True, "final_logit_softcapping": 6.0}),
    Variant("hyperclovax", "norms after the branches too, multipliers, biases",
            config={"embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.6,
                    "logits_scaling": 0.4, "attention_bias": True, "mlp_bias": True}),
    Variant("olmo", "layer norms without weights, biases", config={"attention_bias": True}),
    Variant("ministral", "a window in one of two layers",
            config={"head_dim": 20, "sliding_window": 24,
                    "layer_types": ["sliding_attention", "full_attention"]}),
    Variant("vaultgemma", "Gemma 2 without norms after the branches",
            config={"hidden_size": 40, "head_dim": 20, "num_attention_heads": 2, "sliding_window": 24,
                    "query_pre_attn_scalar": 12, "attn_logit_softcapping": 4.0,
                    "final_logit_softcapping": 6.0}),
    Variant("granitemoeshared", "Granite with experts by softmax over the chosen, one shared; tied",
            config={"num_local_experts": 5, "intermediate_size": 20, "shared_intermediate_size": 24,
                    "embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.6,
                    "logits_scaling": 2.5, "attention_bias": True, "tie_word_embeddings": True}),
    Variant("cohere2_moe", "parallel residual, a dense first layer with rope, windows and rope in one of two others; "
            "experts by sigmoids, averaged with a shared one; tied",
            config={"head_dim": 12, "num_hidden_layers": 3, "sliding_window": 24, "logit_scale": 0.4,
                    "attention_bias": True, "num_experts": 5, "num_experts_per_tok": 2, "num_shared_experts": 2,
                    "expert_selection_fn": "sigmoid", "intermediate_size": 14,
                    "prefix_dense_intermediate_size": 30, "first_k_dense_replace": 1,
                    "sliding_window_pattern": 2}),
    Variant("mellum", "two ropes, a window in one of two layers, Q and K normed by head, biases, a dense first layer",
            config={"head_dim": 12, "attention_bias": True, "sliding_window": 24, "num_experts": 6,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 20, "norm_topk_prob": False,
                    "layer_types": ["sliding_attention", "full_attention"],
                    "mlp_layer_types": ["dense", "sparse"], "rope_parameters": {
                        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                        "full_attention": yarn(attention_factor=1.3)}},
            rename=with_mtp, unused=("mtp.*",)),
    Variant("gpt_bigcode", "GPT-2 whose heads share a key and value, matrices [out, in]",
            config={"n_embd": 36, "n_layer": 2, "n_head": 3, "n_positions": 96, "n_inner": 44}),
    Variant("gptj", "parallel residual, half of a head rotated in pairs, biases but of attention",
            config={"n_embd": 36, "n_layer": 2, "n_head": 3, "n_positions": 512, "n_inner": 44,
                    "rotary_dim": 6}),
    Variant("afmoe", "gated attention, a window and rope in two of three layers, norms after the branches too, Q and K "
            "normed by head; a dense first layer, experts by corrected sigmoids, two shared; scaled embedding",
            config={"head_dim": 12, "num_hidden_layers": 3, "global_attn_every_n_layers": 3, "sliding_window": 24,
                    "num_experts": 5, "num_experts_per_tok": 2, "num_shared_experts": 2, "num_dense_layers": 1,
                    "moe_intermediate_size": 12, "route_scale": 1.7, "mup_enabled": True,
                    "intermediate_size": 30}),
]
