"""The variants of families whose layers keep a state of fixed size; see family_variants.py."""

import torch

from family_variants import EXPERTS, Variant, style_4

# Longer than a chunk of the delta rule, 64 tokens, and than several pages.
LONG = 100

DELTA_NET = {"num_hidden_layers": 3, "full_attention_interval": 3, "head_dim": 20,
             "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
             "linear_value_head_dim": 10}


def joined_experts(tensors):
    """Experts as releases have them: one tensor of a layer for the gates and ups, one for the downs."""
    joined = {name: value for name, value in tensors.items() if ".experts." not in name}
    for layer in {name.split(".experts.")[0] for name in tensors if ".experts." in name}:
        count = len({name for name in tensors if name.startswith(layer + ".experts.")}) // 3

        def stack(module, layer=layer, count=count):
            return torch.stack([tensors[f"{layer}.experts.{e}.{module}.weight"] for e in range(count)])

        joined[layer + ".experts.gate_up_proj"] = torch.cat([stack("gate_proj"), stack("up_proj")], 1)
        joined[layer + ".experts.down_proj"] = stack("down_proj")
    return joined


def style_wrapped(config):
    """Without the vision model, which the text does not need."""
    config["vision_config"] = {"model_type": "qwen3_5_vision"}
    return config


def only_text(tensors):
    """A few tensors stand for the vision model, and some for predicted tokens."""
    kept = {name: value for name, value in tensors.items() if "visual" not in name}
    first = next(value for name, value in tensors.items() if "visual" in name)
    return {**kept, "model.visual.some.weight": first[:4].clone(), "mtp.norm.weight": first[:2].clone()}


RECURRENT_VARIANTS = [
    Variant("qwen3_5", "two gated delta nets, then attention with a gate, a quarter of a head rotated",
            "qwen3_5_text", DELTA_NET, prompt=LONG),
    Variant("qwen3_5_bias", "biases of attention, tied; layer types named; a convolution of two tokens",
            "qwen3_5_text",
            {**DELTA_NET, "attention_bias": True, "tie_word_embeddings": True,
             "linear_conv_kernel_dim": 2, "linear_num_key_heads": 3, "linear_num_value_heads": 3,
             "layer_types": ["linear_attention", "full_attention", "linear_attention"]}, prompt=LONG),
    Variant("qwen3_5_moe", "experts and a shared one with its gate, in one tensor a layer",
            "qwen3_5_moe_text",
            {**DELTA_NET, **EXPERTS, "num_hidden_layers": 2, "full_attention_interval": 2,
             "num_experts": 5, "shared_expert_intermediate_size": 28}, prompt=LONG,
            rename=joined_experts),
    Variant("qwen3_next", "projections by key head; experts in one layer of two",
            config={**DELTA_NET, **EXPERTS, "num_hidden_layers": 2, "full_attention_interval": 2,
                    "num_experts": 5, "shared_expert_intermediate_size": 28, "mlp_only_layers": [1]},
            prompt=LONG, style=style_4),
    Variant("lfm2", "short convolutions with biases and attention; the feed-forward's size by its rule",
            config={"num_hidden_layers": 3, "conv_bias": True, "conv_L_cache": 4,
                    "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 10}),
    Variant("lfm2_moe", "experts after a dense layer; sigmoid scores with a correction", config={
        **EXPERTS, "num_hidden_layers": 3, "num_experts": 5, "num_dense_layers": 1,
        "layer_types": ["conv", "full_attention", "conv"], "routed_scaling_factor": 1.5}),
]
