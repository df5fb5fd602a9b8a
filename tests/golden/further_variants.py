"""Variants of families that bring what no family before them has, by Transformers' own classes.
make_families.py uses this file.
"""

from functools import partial

import torch

from family_variants import Variant as AnyVariant, style_4

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


def with_mtp(tensors):
    """A head that predicts further tokens, beside the model."""
    return {**tensors, "model.mtp.layers.0.enorm.weight": torch.ones(4)}


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
            config={**MIMO, "mlp_layer_types": ["dense", "sparse", "sparse"]}, style=style_mimo, rename=with_mtp,
            unused=("model.mtp.*",)),
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
]
