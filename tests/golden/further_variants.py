"""Variants of families that bring what no family before them has, by Transformers' own classes.
make_families.py uses this file.
"""

from functools import partial

import torch

from family_variants import BASE, Variant as AnyVariant, style_4, yarn
from predicted_tokens import with_longcat_head, with_mimo_head

Variant = partial(AnyVariant, perturbs_routers=True)

HALF_ROTATED = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}


def style_phimoe(config):
    """As released: Transformers 4, and the rope's original context beside it."""
    config = style_4(config)
    rope = config["rope_scaling"]
    config["original_max_position_embeddings"] = rope.pop("original_max_position_embeddings")
    rope["type"] = rope.pop("rope_type")
    return config


MIMO = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 18, "v_head_dim": 10, "num_hidden_layers": 3,
        "sliding_window": 24, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True}


def style_mimo(config):
    """As released: flags in the place of types, and the windows' sizes beside the others'."""
    config = {key: value for key, value in config.items() if key != "rope_parameters"}
    config["hybrid_layer_pattern"] = [int(kind == "sliding_attention") for kind in config.pop("layer_types")]
    config["moe_layer_freq"] = [int(kind == "sparse") for kind in config.pop("mlp_layer_types")]
    config |= {"sliding_window_size": config["sliding_window"] - 1, "swa_num_key_value_heads": 2,
               "swa_head_dim": config["head_dim"], "swa_v_head_dim": config["v_head_dim"],
               "swa_num_attention_heads": config["num_attention_heads"], "rope_theta": 5e6,
               "swa_rope_theta": 1e4, "partial_rotary_factor": 0.334, "routed_scaling_factor": None,
               "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False}
    return config


MINICPM = {"embedding_multiplier": 3.0, "residual_multiplier": 1.4 / 2 ** 0.5, "logits_scaling": 1.5,
           "attention_multiplier": 12 ** -0.5}


def style_minicpm(config):
    """As released, with multipliers of its own for Granite's."""
    config = style_4({key: value for key, value in config.items() if key not in MINICPM})
    config |= {"architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm", "scale_emb": 3, "scale_depth": 1.4,
               "dim_model_base": 24}
    if config["rope_scaling"]:
        config["sparse_config"] = {"dense_len": 200, "topk": 64, "block_size": 64, "window_size": 128}
    return config


def granite_of_minicpm(tensors, config):
    """Which is the same."""
    known = {key: value for key, value in config.items()
             if key not in ("sparse_config", "scale_emb", "scale_depth", "dim_model_base")}
    return tensors, known | MINICPM | {"architectures": ["GraniteForCausalLM"], "model_type": "granite"}


GEMMA3N = {"num_hidden_layers": 6, "head_dim": 12, "intermediate_size": [44, 44, 52, 52, 44, 44], "sliding_window": 24,
           "layer_types": ["sliding_attention", "full_attention"] * 3, "num_kv_shared_layers": 2,
           "vocab_size_per_layer_input": 100, "hidden_size_per_layer_input": 6, "altup_num_inputs": 3,
           "laurel_rank": 5, "final_logit_softcapping": 6.0,
           "activation_sparsity_pattern": [0.5, 0.5, 0.3, 0.0, 0.0, 0.3]}
WRAPPED = "model.language_model."


def style_gemma3n(config):
    """As released: inside the multimodal wrapper, and the ropes' bases."""
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope["full_attention"]["rope_theta"], "rope_scaling": None,
               "rope_local_base_freq": rope["sliding_attention"]["rope_theta"]}
    return {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n",
            "eos_token_id": config["eos_token_id"], "text_config": config}


def with_wrapper(tensors):
    """Names of a multimodal checkpoint, and a tensor of another part."""
    wrapped = {name.replace("model.", WRAPPED, 1): value for name, value in tensors.items()}
    return {**wrapped, "model.vision_tower.conv.weight": torch.ones(4)}


def without_wrapper(tensors, config):
    plain = {name.replace(WRAPPED, "model."): value for name, value in tensors.items()}
    del plain["model.vision_tower.conv.weight"]
    return plain, {**config["text_config"], "architectures": ["Gemma3nForCausalLM"]}


def style_modernbert(config):
    """As released: how often a layer has no window, and the ropes' bases."""
    config["global_attn_every_n_layers"] = 3
    rope = config.pop("rope_parameters")
    config.pop("layer_types")
    return config | {"global_rope_theta": rope["full_attention"]["rope_theta"],
                     "local_rope_theta": rope["sliding_attention"]["rope_theta"]}


GRANITE = {"embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.6, "logits_scaling": 2.5,
           "attention_bias": True}
LATENT = {"num_key_value_heads": 3, "q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8,
          "v_head_dim": 14}
MROPE = {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 2, 2]}


def style_qwen2_vl(config):
    """As released: the text model's members beside all others."""
    text = style_4({"dtype": config.pop("dtype"), **config.pop("text_config")})
    text["rope_scaling"] = {"type": "mrope", "mrope_section": MROPE["mrope_section"]}
    return {**text, **config, "model_type": "qwen2_vl"}


def without_parts(tensors):
    return {name.replace(WRAPPED, "model.").replace("model.visual.", "visual."): value
            for name, value in tensors.items()}


VARIANTS = [
    Variant("phi_head_norms", "layer norms of heads with biases", "phi",
            {"qk_layernorm": True, "rope_parameters": HALF_ROTATED}),
    Variant("persimmon", "Q, K and V by head, layer norms of heads with biases, half of a head rotated, a plain "
            "feed-forward with squared ReLU, biases", config={"rope_parameters": HALF_ROTATED}),
    # Of its LongRoPE Transformers 5.23 takes the short factors alone: the text stays within these.
    Variant("phimoe", "layer norms, biases, of the output too, a window, LongRoPE with a factor of its own; experts "
            "by SparseMixer", config={
                "attention_bias": True, "lm_head_bias": True, "sliding_window": 24, "intermediate_size": 20,
                "num_local_experts": 5, "router_jitter_noise": 0.2, "rope_parameters": {
                    "rope_type": "longrope", "rope_theta": 1000.0, "original_max_position_embeddings": 128,
                    "short_factor": [1.0, 1.05, 1.2, 1.5, 2.0, 2.5],
                    "long_factor": [1.1, 1.9, 2.6, 4.0, 7.0, 12.0], "short_mscale": 1.2, "long_mscale": 1.2}},
            style=style_phimoe),
    Variant("mimo_v2", "windows with sinks and twice the KV heads, values narrower than keys and scaled, a third of a "
            "head rotated, by two ropes; experts by corrected sigmoids in groups; biases", "mimo_v2_flash",
            {**MIMO, "attention_bias": True, "attention_value_scale": 0.6, "n_group": 3, "topk_group": 2,
             "routed_scaling_factor": 1.7, "rope_parameters": {
                 "full_attention": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.45},
                 "sliding_attention": {"rope_type": "default", "rope_theta": 1e2, "partial_rotary_factor": 0.334}}}),
    Variant("mimo_v2_flash", "config.json as released, with a head for further tokens",
            config={**MIMO, "mlp_layer_types": ["dense", "sparse", "sparse"]}, style=style_mimo,
            rename=with_mimo_head,
            unused=("model.mtp.*",)),
    Variant("longcat_flash", "layers of two latent attentions, whose latents are scaled, and two feed-forwards; experts by "
            "corrected softmax, some of which do nothing, beside the first and added after the second; biases; YaRN",
            config={"num_layers": 2, "num_key_value_heads": 3, "q_lora_rank": 20, "kv_lora_rank": 16,
                    "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 14, "head_dim": 8,
                    "n_routed_experts": 4, "zero_expert_num": 3, "moe_topk": 3, "ffn_hidden_size": 20,
                    "expert_ffn_hidden_size": 12, "routed_scaling_factor": 1.7, "attention_bias": True,
                    "rope_parameters": yarn(mscale=1.0, mscale_all_dim=1.0)},
            rename=with_longcat_head, unused=("model.mtp.*", "*.mlp.experts.[456].*")),
    Variant("gemma3n", "three streams that alternate, a learned residual, few gates in four layers, inputs of layers for "
            "fewer ids, keys and values of earlier layers, V normed, windows, two ropes, soft cap, biases, tied",
            "gemma3n_text", {**GEMMA3N, "attention_bias": True, "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}}),
    Variant("gemma3n_multimodal", "two streams without a scale, inside the multimodal wrapper, config.json as released",
            "gemma3n_text", {**GEMMA3N, "altup_num_inputs": 2, "altup_correct_scale": False,
                             "num_hidden_layers": 4, "num_kv_shared_layers": 2, "intermediate_size": 44,
                             "layer_types": ["sliding_attention", "full_attention"] * 2,
                             "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.5]},
            style=style_gemma3n, rename=with_wrapper, restore=without_wrapper,
            unused=("*vision_tower*", "*.altup.correct_output_scale")),
    Variant("openai_gpt", "learned positions, transposed weights, norms of the stream", "openai-gpt",
            {"n_positions": 96, "n_embd": 36, "n_head": 3, "n_layer": 2}),
    Variant("gpt_neo", "learned positions, a window in every other layer, no scale of scores, tied",
            config={"num_layers": 2, "num_heads": 3, "attention_types": [[["global", "local"], 1]], "window_size": 24,
                    "max_position_embeddings": 96}),
    Variant("mpt", "ALiBi of three heads, layer norms without biases, a scale of scores, tied",
            config={"d_model": 36, "n_heads": 3, "n_layers": 2, "max_seq_len": 96,
                    "attn_config": {"alibi": True, "softmax_scale": 0.4}}),
    Variant("biogpt", "learned positions from 2 on, a scaled embedding, biases, tied",
            config={"max_position_embeddings": 96}),
    Variant("granite_swa", "Granite with sinks, windows in two of three layers, and a rope of each",
            config={"num_hidden_layers": 3, "sliding_window": 24, "layer_rope_theta": [1000.0, 0, 100.0],
                    "intermediate_size": 28, **GRANITE}),
    Variant("granitemoe_swa", "the same with experts",
            config={"num_hidden_layers": 2, "sliding_window": 24, "num_local_experts": 5, "num_experts_per_tok": 2,
                    "intermediate_size": 20, **GRANITE}),
    Variant("flint", "sinks, windows and rope in one of two layers, Q and K normed by head, experts by sigmoids, one shared; "
            "biases", config={"head_dim": 12, "attention_bias": True, "sliding_window": 24, "num_experts": 5,
                              "num_experts_per_tok": 2, "moe_intermediate_size": 12, "mlp_only_layers": [0],
                              "shared_expert_intermediate_size": 16, "intermediate_size": 30,
                              "layer_types": ["full_attention", "sliding_attention"]}),
    Variant("youtu", "latent attention, no experts, biases, tied",
            # Transformers makes the padding's row of the embedding zero as it loads.
            config={**LATENT, "attention_bias": True, "mlp_bias": True, "pad_token_id": None}),
    Variant("minicpm3", "latent attention whose rope turns halves; multipliers; tied",
            config={**LATENT, "scale_emb": 3.0, "scale_depth": 0.9, "dim_model_base": 18, "attention_bias": True}),
    Variant("qwen2_5_vl", "the text model of a multimodal checkpoint, as Transformers 5 stores it",
            config={"text_config": {**BASE, "model_type": "qwen2_5_vl_text", "rope_parameters": MROPE},
                    "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
                                      "patch_size": 4, "out_hidden_size": 36, "fullatt_block_indexes": [0]}},
            unused=("*visual.*",)),
    Variant("qwen2_vl", "the same as released: config.json without parts",
            config={"text_config": {**BASE, "model_type": "qwen2_vl_text", "rope_parameters": MROPE},
                    "vision_config": {"depth": 1, "embed_dim": 16, "hidden_size": 36, "mlp_ratio": 1, "num_heads": 2,
                                      "patch_size": 4}},
            style=style_qwen2_vl, rename=without_parts, unused=("visual.*",)),
    Variant("qwen3_vl", "the text model of a multimodal checkpoint, Q and K normed by head",
            config={"text_config": {**BASE, "model_type": "qwen3_vl_text", "head_dim": 20, "rope_parameters": {
                        **MROPE, "mrope_section": [4, 3, 3]}},
                    "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
                                      "patch_size": 4, "out_hidden_size": 36, "num_position_embeddings": 16,
                                      "deepstack_visual_indexes": [0]}},
            unused=("*visual.*",)),
    Variant("gemma3n_released", "four streams, inputs of layers for all ids, no biases", "gemma3n_text",
            {**GEMMA3N, "altup_num_inputs": 4, "vocab_size_per_layer_input": BASE["vocab_size"],
             "num_hidden_layers": 4, "intermediate_size": [44, 44, 52, 52],
             "layer_types": ["sliding_attention", "full_attention"] * 2,
             "activation_sparsity_pattern": [0.5, 0.3, 0.0, 0.0]}),
    Variant("minicpm3_released", "the multipliers of the release, no biases", "minicpm3", {**LATENT, "v_head_dim": 12}),
    Variant("modernbert_decoder", "ModernBERT's layers, windows with a rope of their own, a product and a norm before "
            "the output, biases, tied", "modernbert-decoder",
            {"num_hidden_layers": 3, "local_attention": 48, "layer_types": ["full_attention"] + ["sliding_attention"] * 2,
             "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True, "rope_parameters": {
                 "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
                 "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}}),
    Variant("modernbert_decoder_released", "without biases, config.json as released", "modernbert-decoder",
            {"num_hidden_layers": 4, "local_attention": 49, "classifier_activation": "silu", "decoder_bias": False,
             "tie_word_embeddings": False}, style=style_modernbert),
    Variant("bitnet", "norms of what the last products read, squared ReLU, biases of attention",
            config={"attention_bias": True}),
    Variant("minicpm", "multipliers by depth and width; biases of attention; tied", "granite",
            {**MINICPM, "attention_bias": True, "tie_word_embeddings": True}, style=style_minicpm, restore=granite_of_minicpm),
    Variant("minicpm4", "likewise; LongRoPE by the factors of long texts alone, an end before sparse attention", "granite",
            {**MINICPM, "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 1000.0, "short_factor": [1.0, 1.05, 1.1, 1.2, 1.4, 1.7],
                "long_factor": [1.1, 1.3, 1.9, 2.6, 4.0, 7.0], "original_max_position_embeddings": 24}},
            style=style_minicpm, restore=granite_of_minicpm),
]
