"""Gemma 4's variants: make_families.py uses this file."""

import torch

from family_variants import BASE, Variant

ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.4, "rope_theta": 1000.0},
}


def layers(pattern):
    """"swf": windowed, windowed, full."""
    return ["full_attention" if kind == "f" else "sliding_attention" for kind in pattern]


def style_release(config):
    """As released: the wider heads under members of their own, no "per_layer_config"."""
    text = config["text_config"]
    heads = next(iter(text.pop("per_layer_config").values()))
    text["global_head_dim"] = heads["head_dim"]
    text["num_global_key_value_heads"] = heads.get("num_key_value_heads")
    return config


def with_keys_of_sharing_layers(prefix, first, end, widths):
    """Tensors that released checkpoints hold although layers that share keys do not use them."""
    def rename(tensors):
        for n in range(first, end):
            for name, shape in (("k_proj", (widths[n - first], 36)), ("v_proj", (widths[n - first], 36)),
                                ("k_norm", (widths[n - first],))):
                tensors[f"{prefix}{n}.self_attn.{name}.weight"] = torch.zeros(shape, dtype=torch.bfloat16)
        return tensors
    return rename


COMMON = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "global_head_dim": 20,
          "sliding_window": 24, "rope_parameters": ROPES, "intermediate_size": 28}
DENSE = {**COMMON, "hidden_size_per_layer_input": 0}
INPUTS = {**COMMON, "hidden_size_per_layer_input": 10, "vocab_size_per_layer_input": BASE["vocab_size"]}

VARIANTS = [
    Variant("gemma4", "windows beside wider heads whose keys are values, V normed, proportional rope, layer "
            "scales, soft cap, tied", "gemma4_text",
            {**DENSE, "num_hidden_layers": 3, "layer_types": layers("wff"), "attention_k_eq_v": True,
             "num_global_key_value_heads": 1, "final_logit_softcapping": 6.0}),
    Variant("gemma4_shared", "layers that read the keys and values of earlier ones, with a wider "
            "feed-forward; inputs of each layer; biases", "gemma4_text",
            {**INPUTS, "num_hidden_layers": 6, "num_kv_shared_layers": 3, "layer_types": layers("wfwfwf"),
             "use_double_wide_mlp": True, "attention_bias": True, "intermediate_size": 12}),
    Variant("gemma4_experts", "experts beside a feed-forward, each with norms of its own; the router reads "
            "the stream", "gemma4_text",
            {**DENSE, "num_hidden_layers": 2, "layer_types": layers("wf"), "attention_k_eq_v": True,
             "num_global_key_value_heads": 2, "enable_moe_block": True, "num_experts": 5,
             "top_k_experts": 2, "moe_intermediate_size": 12}),
    Variant("gemma4_multimodal", "Gemma 4 inside its multimodal wrapper, config.json as released, with the "
            "tensors that layers do not need", "gemma4",
            {"text_config": {**BASE, **INPUTS, "model_type": "gemma4_text", "num_hidden_layers": 4,
                             "num_kv_shared_layers": 2, "layer_types": layers("wfwf"),
                             "final_logit_softcapping": 6.0},
             "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                               "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
                               "position_embedding_size": 8, "patch_size": 4}},
            style=style_release,
            rename=with_keys_of_sharing_layers("model.language_model.layers.", 2, 4, (24, 40)),
            unused=("vision_tower.*", "embed_vision.*", "*.layers.[23].self_attn.[kv]_*")),
]
