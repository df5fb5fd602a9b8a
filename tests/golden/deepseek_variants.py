"""The variants with latent attention: DeepSeek's models and those like them. make_families.py uses this file."""

import torch
from family_variants import BASE, Variant, style_4, yarn
from predicted_tokens import with_layer_behind

LATENT = {
    "num_key_value_heads": 3, "num_hidden_layers": 3, "q_lora_rank": 20, "kv_lora_rank": 16,
    "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 14, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
}
INDEXER = {"index_topk": 80, "index_head_dim": 12, "index_n_heads": 2}
BLOCK = (16, 24)
LARGEST_FP8 = 448.0


def style_release(config):
    """As DeepSeek's own code writes it: Transformers 4, and the rule's kind under "type"."""
    config = style_4(config)
    if config["rope_scaling"] is not None:
        config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
    for key in ("head_dim", "qk_head_dim", "mlp_layer_types"):
        config.pop(key, None)
    return config


def with_predictions(config):
    """One layer more, which predicts the token after the next."""
    return {**config, "num_nextn_predict_layers": 1}


def blocks_of(value):
    """Its rows and columns padded to whole blocks, [blocks, rows, blocks, columns]."""
    rows, columns = (-size % block for size, block in zip(value.shape, BLOCK))
    padded = torch.nn.functional.pad(value.float(), (0, columns, 0, rows))
    return padded.reshape(padded.shape[0] // BLOCK[0], BLOCK[0], padded.shape[1] // BLOCK[1], BLOCK[1])


def is_in_fp8(name):
    return name.endswith("proj.weight") or name.endswith("kv_a_proj_with_mqa.weight")


def to_fp8(tensors, config):
    """Matrices of layers as DeepSeek V3's: E4M3, and for each block a factor in *_scale_inv; the last blocks
    of rows and of columns are smaller."""
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": list(BLOCK)}
    packed = {}
    for name, value in tensors.items():
        if not is_in_fp8(name):
            packed[name] = value
            continue
        blocks = blocks_of(value)
        scales = blocks.abs().amax((1, 3)) / LARGEST_FP8
        scaled = (blocks / scales[:, None, :, None]).flatten(2).flatten(0, 1)
        packed[name] = scaled[: value.shape[0], : value.shape[1]].to(torch.float8_e4m3fn).contiguous()
        packed[name + "_scale_inv"] = scales
    return packed, config


def from_fp8(tensors, config):
    """What these stand for, by plain arithmetic: Transformers' own decoding splits ragged matrices wrongly."""
    config.pop("quantization_config")
    plain = {}
    for name, value in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        if (scales := tensors.get(name + "_scale_inv")) is not None:
            rows = scales.repeat_interleave(BLOCK[0], 0)[: value.shape[0]]
            value = value.float() * rows.repeat_interleave(BLOCK[1], 1)[:, : value.shape[1]]
        plain[name] = value.float()
    return plain, config


def router_margin(module, logits):
    """How clearly a router of these models chooses, groups and experts."""
    softmax = hasattr(module, "topk_method")
    scores = logits if softmax else logits.sigmoid() + module.e_score_correction_bias
    margins = []
    limited = not softmax or module.topk_method == "group_limited_greedy"
    if limited and module.topk_group < module.num_group:
        groups = scores.reshape(len(scores), module.num_group, -1)
        of_groups = groups.amax(-1) if softmax else groups.topk(2).values.sum(-1)
        best = of_groups.topk(module.topk_group + 1)
        margins.append(best.values[:, -2] - best.values[:, -1])
        kept = torch.zeros_like(of_groups).scatter(1, best.indices[:, :-1], 1).bool()
        scores = groups.masked_fill(~kept[:, :, None], -100.0).flatten(1)
    best = scores.topk(module.top_k + 1).values
    margins.append(best[:, -2] - best[:, -1])
    return min(margin.min().item() for margin in margins)


DEEPSEEK_VARIANTS = [
    Variant("deepseek_v2", "latent attention with latents of queries, biases; experts in groups by their best; YaRN",
            config={**LATENT, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
                    "routed_scaling_factor": 2.5, "attention_bias": True, "mlp_bias": True,
                    "rope_parameters": yarn(mscale=1.0, mscale_all_dim=0.5)}),
    Variant("deepseek_v2_lite", "queries of the input, two experts of all, YaRN; config.json as released",
            "deepseek_v2",
            {**LATENT, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
             "num_experts_per_tok": 2, "rope_parameters": yarn(mscale=0.707, mscale_all_dim=0.707)},
            style=style_release),
    Variant("deepseek_v3", "experts in groups by their two best, corrected; YaRN; FP8 in blocks; a layer that predicts",
            config={**LATENT, "n_group": 4, "topk_group": 2, "n_shared_experts": 1,
                    "rope_parameters": yarn(mscale=1.0, mscale_all_dim=1.0)},
            style=lambda config: with_predictions(style_release(config)),
            rename=with_layer_behind(LATENT["num_hidden_layers"]), store=to_fp8, restore=from_fp8,
            unused=("model.layers.3.*",), router_margin=4e-3),
    Variant("glm4_moe_lite", "values wider than keys' parts, one group; a plain rope",
            config={**LATENT, "qk_nope_head_dim": 12, "v_head_dim": 18, "num_experts_per_tok": 2,
                    "n_shared_experts": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    Variant("deepseek_v32", "an indexer whose budget no text passes; YaRN",
            config={**LATENT, **INDEXER, "n_group": 1, "topk_group": 1,
                    "rope_parameters": yarn(mscale=1.0, mscale_all_dim=1.0)},
            unused=("model.layers.*.self_attn.indexer.*",)),
    Variant("glm_moe_dsa", "an indexer in one layer, which others share; a plain rope",
            config={**LATENT, **INDEXER, "index_topk_freq": 3,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            unused=("model.layers.*.self_attn.indexer.*",)),
]
assert all(variant.config["num_key_value_heads"] == BASE["num_attention_heads"] for variant in DEEPSEEK_VARIANTS)
