"""The variants of families that Transformers has classes for: their configurations, and config.json and
tensors' names as releases have them where Transformers 5 writes others. make_families.py uses this file.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch


@dataclass
class Variant:
    name: str
    what: str
    family: str = ""  # Transformers' model_type; the name when empty
    config: dict = field(default_factory=dict)
    prompt: int = 44  # crosses a border of 32-token pages, and another with the greedy text
    style: Callable[[dict], dict] | None = None  # rewrites config.json as older versions wrote it
    rename: Callable[[dict], dict] | None = None  # rewrites the tensors' names likewise
    attention: str = "eager"
    greedy: bool = True
    unused: tuple[str, ...] = ()
    router_margin: float = 2e-3  # by which a choice of experts is clear, at least


BASE = {
    "vocab_size": 136,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 20}


def yarn(**more):
    return {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0,
            "original_max_position_embeddings": 24, "beta_fast": 1.0, "beta_slow": 0.25, **more}


def longrope(original):
    return {"rope_type": "longrope", "rope_theta": 10000.0,
            "short_factor": [1.0, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 2.5],
            "long_factor": [1.1, 1.3, 1.9, 2.6, 4.0, 7.0, 12.0, 18.0],
            "original_max_position_embeddings": original}


# --- config.json and tensors as released checkpoints have them, where Transformers 5 writes others ---

def style_4(config):
    """The keys of Transformers 4: rope_theta, rope_scaling and partial_rotary_factor by themselves."""
    if (rope := config.pop("rope_parameters", None)) is not None:
        config["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.46.0"
    return config


def style_phi3(config):
    """Phi-3's releases: the rope's kind under "type", the original context beside rope_scaling."""
    config = style_4(config)
    scaling = config["rope_scaling"]
    config["original_max_position_embeddings"] = scaling.pop("original_max_position_embeddings")
    config["rope_scaling"] = {"type": scaling.pop("rope_type"), "short_factor": scaling["short_factor"],
                              "long_factor": scaling["long_factor"]}
    return config


def style_gpt_neox(config):
    config = style_4(config)
    config["rotary_emb_base"] = config.pop("rope_theta")
    config["rotary_pct"] = config.pop("partial_rotary_factor")
    config.pop("rope_scaling")
    return config


def style_two_ropes(config):
    """OLMo 3's release: one rope_theta, and rope_scaling is that of the full layers."""
    rope = config["rope_parameters"]
    assert rope["sliding_attention"]["rope_theta"] == rope["full_attention"]["rope_theta"]
    return style_4({**config, "rope_parameters": rope["full_attention"]})


def style_gemma3(config):
    """Gemma 3's release: a pattern's length and two rope bases."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope["full_attention"].pop("rope_theta")
    config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    config["rope_scaling"] = rope["full_attention"]
    config["sliding_window_pattern"] = config.pop("_sliding_window_pattern")
    config.pop("layer_types")
    return config


def style_gemma3_wrapper(config):
    """As released: no more keys than differ from the class's defaults."""
    config["text_config"] = style_gemma3(config["text_config"])
    for key in ("sliding_window_pattern", "hidden_activation", "rms_norm_eps", "attention_bias",
                "attn_logit_softcapping", "final_logit_softcapping", "tie_word_embeddings",
                "use_bidirectional_attention"):
        config["text_config"].pop(key)
    config.pop("tie_word_embeddings")
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.50.0"
    return config


def style_cohere2(config):
    config = style_4(config)
    config.pop("layer_types")
    config["sliding_window_pattern"] = 4
    return config


def style_gpt2(config):
    """The first release had no key of the feed-forward's size or of tied tables."""
    return {key: value for key, value in config.items() if key not in ("n_inner", "tie_word_embeddings")}


def style_bloom(config):
    config = style_gpt2(config)
    config["n_embed"] = config.pop("hidden_size")
    config["num_attention_heads"] = config.pop("n_head")
    return config


def style_qwen3_moe(config):
    config = style_4(config)
    config["num_experts"] = config.pop("num_local_experts")
    return config


def without_prefix(prefix):
    return lambda tensors: {name.removeprefix(prefix): value for name, value in tensors.items()}


def with_output_table(tensors):
    """Falcon's releases store the tied table twice."""
    return {**tensors, "lm_head.weight": tensors["transformer.word_embeddings.weight"].clone()}


def with_frequencies(tensors):
    """Old Llamas stored each layer's rope frequencies."""
    names = [name.replace("q_proj.weight", "rotary_emb.inv_freq") for name in tensors
             if name.endswith("q_proj.weight")]
    return {**tensors, **{name: torch.arange(6).float() for name in names}}


def with_causal_masks(prefix, n_positions, dtype):
    """Older releases stored each layer's causal mask."""
    def rename(tensors):
        tensors = without_prefix("transformer.")(tensors) if prefix == "h.{}.attn." else dict(tensors)
        mask = torch.ones(n_positions, n_positions).tril().to(dtype).reshape(1, 1, n_positions, -1)
        layer = 0
        while any(name.startswith(prefix.format(layer)) for name in tensors):
            tensors[prefix.format(layer) + "bias"] = mask.clone()
            tensors[prefix.format(layer) + "masked_bias"] = torch.tensor(-1e9)
            layer += 1
        return tensors
    return rename


VARIANTS = [
    Variant("llama", "biases of attention and feed-forward; one key/value head, head_dim 20",
            config={"head_dim": 20, "attention_bias": True, "mlp_bias": True}),
    Variant("llama_yarn", "YaRN past the original context, attention factor by its rule", "llama",
            {"rope_parameters": yarn()}),
    Variant("llama_dynamic", "dynamic rope past the context", "llama",
            {"max_position_embeddings": 32, "rope_parameters":
                {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
            style=style_4, rename=with_frequencies, greedy=False,
            unused=("model.layers.*.self_attn.rotary_emb.inv_freq",)),
    Variant("mistral", "a window in all layers", config={"head_dim": 20, "sliding_window": 24}),
    Variant("ministral3", "YaRN with mscale, queries scaled by position, a window",
            config={"head_dim": 20, "sliding_window": 40, "rope_parameters":
                    yarn(mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4)}),
    Variant("ministral3_multimodal", "Ministral 3's text inside Mistral 3's wrapper", "mistral3",
            {"text_config": {**BASE, "model_type": "ministral3", "head_dim": 20, "rope_parameters":
                             yarn(mscale=1.0, mscale_all_dim=0.5, llama_4_scaling_beta=0.4)},
             "tie_word_embeddings": False,
             "vision_config": {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16,
                               "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
                               "patch_size": 14}},
            unused=("vision_tower.*", "multi_modal_projector.*")),
    Variant("qwen2", "biases of Q, K and V; a window from the second layer on; tied",
            config={"hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 24,
                    "max_window_layers": 1, "tie_word_embeddings": True}),
    Variant("qwen2_v4", "no window, although sliding_window is set; config.json of Transformers 4", "qwen2",
            {"hidden_size": 40, "num_attention_heads": 2, "num_key_value_heads": 1,
             "use_sliding_window": False, "max_window_layers": 1},
            style=lambda config: {**{key: value for key, value in style_4(config).items()
                                     if key != "layer_types"}, "sliding_window": 24}),
    Variant("qwen3", "Q and K normed by head; biases; a window from the second layer on",
            config={"head_dim": 20, "num_hidden_layers": 3, "attention_bias": True,
                    "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    Variant("gemma", "1 + weight in the norms, scaled embedding, GELU tanh, tied",
            config={"hidden_size": 40, "head_dim": 20, "num_attention_heads": 2},
            style=lambda config: {**style_4(config), "hidden_act": "gelu"}),  # means the tanh form here
    Variant("gemma2", "soft caps of scores and logits, norms before and after, window in every other layer",
            config={"head_dim": 20, "num_hidden_layers": 3, "sliding_window": 24,
                    "query_pre_attn_scalar": 12, "attn_logit_softcapping": 4.0,
                    "final_logit_softcapping": 6.0}),
    Variant("gemma3_text", "two ropes, Q and K normed, window in two of three layers, soft cap of logits",
            config={"head_dim": 20, "num_hidden_layers": 4, "sliding_window": 24,
                    "sliding_window_pattern": 3, "query_pre_attn_scalar": 12,
                    "final_logit_softcapping": 6.0}),
    Variant("gemma3_text_v4", "linear rope scaling of the full layers; config.json of Transformers 4",
            "gemma3_text",
            {"head_dim": 20, "num_hidden_layers": 3, "sliding_window": 24, "sliding_window_pattern": 3,
             "query_pre_attn_scalar": 12, "rope_parameters": {
                 "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                 "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}},
            style=lambda config: style_4(style_gemma3(config))),
    Variant("gemma3_multimodal", "Gemma 3 inside its multimodal wrapper, config.json as released", "gemma3",
            {"text_config": {**BASE, "head_dim": 20, "num_hidden_layers": 6, "intermediate_size": 36,
                             "sliding_window": 24, "query_pre_attn_scalar": 12, "rope_parameters": {
                                 "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                                 "full_attention": {"rope_type": "linear", "factor": 8.0,
                                                    "rope_theta": 1e6}}},
             "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 16,
                               "intermediate_size": 16, "num_hidden_layers": 1,
                               "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
                               "vision_use_head": False},
             "mm_tokens_per_image": 4, "boi_token_index": 130, "eoi_token_index": 131,
             "image_token_index": 132},
            style=style_gemma3_wrapper, unused=("vision_tower.*", "multi_modal_projector.*")),
    Variant("phi3_short", "longrope within the original context; joined Q|K|V and gate|up; a window", "phi3",
            {"hidden_size": 48, "sliding_window": 24, "original_max_position_embeddings": 128,
             "rope_parameters": longrope(128)}, style=style_phi3),
    Variant("phi3_long", "longrope past the original context", "phi3",
            {"hidden_size": 48, "sliding_window": 24, "original_max_position_embeddings": 32,
             "rope_parameters": longrope(32)}, style=style_phi3),
    Variant("phi4_mini", "three quarters of a head rotated, longrope past the original context, tied",
            "phi3",
            {"hidden_size": 48, "original_max_position_embeddings": 32, "tie_word_embeddings": True,
             "rope_parameters": {**longrope(32), "partial_rotary_factor": 0.75,
                                 "short_factor": [1.0, 1.05, 1.1, 1.2, 1.4, 1.7],
                                 "long_factor": [1.1, 1.3, 1.9, 4.0, 7.0, 12.0]}},
            style=style_phi3),
    Variant("glm", "half of a head rotated in pairs; joined gate|up",
            config={"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20,
                    "eos_token_id": [2, 6]}, style=style_4),
    Variant("glm4", "as GLM, with norms after attention and feed-forward",
            config={"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20,
                    "eos_token_id": [2, 6]}),
    Variant("granite", "multipliers of embedding, attention, residual and logits; biases; tied",
            config={"embedding_multiplier": 3.0, "attention_multiplier": 0.4,
                    "residual_multiplier": 0.6, "logits_scaling": 2.5, "attention_bias": True,
                    "mlp_bias": True, "tie_word_embeddings": True}),
    Variant("smollm3", "no rope in every third layer, which has a window; biases; tied",
            config={"num_hidden_layers": 3, "no_rope_layer_interval": 3, "use_sliding_window": True,
                    "sliding_window": 24, "attention_bias": True, "mlp_bias": True}, style=style_4),
    Variant("olmo2", "norms after only; Q and K normed whole; biases", config={"attention_bias": True}),
    Variant("olmo3", "window and plain rope in three of four layers, YaRN in the fourth",
            config={"num_hidden_layers": 4, "sliding_window": 24, "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "full_attention": yarn(attention_factor=1.3)}}, style=style_two_ropes),
    Variant("stablelm", "layer norms, a quarter of a head rotated, biases of Q, K and V",
            config={"hidden_size": 48, "use_qkv_bias": True}, style=style_4),
    Variant("stablelm_parallel", "parallel residual, Q and K layer-normed with weights of each head",
            "stablelm", {"hidden_size": 48, "use_parallel_residual": True, "qk_layernorm": True}),
    Variant("cohere", "parallel residual, rope in pairs, Q and K layer-normed, scaled logits, tied",
            config={"use_qk_norm": True, "logit_scale": 0.4, "attention_bias": True}),
    Variant("cohere2", "a window and rope in three of four layers, no rope in the fourth",
            config={"num_hidden_layers": 4, "sliding_window": 24, "logit_scale": 0.4},
            style=style_cohere2),
    Variant("starcoder2", "layer norms, biases everywhere, plain GELU tanh, a window, tied",
            config={"sliding_window": 24}),
    Variant("gpt2", "learned positions, transposed weights; scores divided by the layer's number",
            config={"n_positions": 96, "n_embd": 36, "n_head": 3, "n_layer": 2, "n_inner": 44,
                    "scale_attn_by_inverse_layer_idx": True}),
    Variant("gpt2_released", "names and stored masks of the first release; feed-forward 4 times as wide",
            "gpt2", {"n_positions": 80, "n_embd": 24, "n_head": 3, "n_layer": 2}, style=style_gpt2,
            rename=with_causal_masks("h.{}.attn.", 80, torch.uint8),
            unused=("h.*.attn.bias", "h.*.attn.masked_bias")),
    Variant("gpt_neox", "parallel residual with two norms, a quarter of a head rotated",
            config={"hidden_size": 48}, style=style_gpt_neox,
            rename=with_causal_masks("gpt_neox.layers.{}.attention.", 80, torch.bool),
            unused=("gpt_neox.layers.*.attention.bias", "gpt_neox.layers.*.attention.masked_bias")),
    Variant("gpt_neox_sequential", "one residual after the other", "gpt_neox",
            {"use_parallel_residual": False, "rope_parameters":
                {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    Variant("opt", "learned positions from 2 on, ReLU, biases, tied",
            config={"ffn_dim": 44, "max_position_embeddings": 96}),
    Variant("opt_350m", "350m's form: norms after the branches, narrower embeddings, tied", "opt",
            {"ffn_dim": 44, "max_position_embeddings": 96, "word_embed_proj_dim": 20,
             "do_layer_norm_before": False}),
    Variant("falcon", "7B's form: parallel residual with one norm, one key/value head, tied",
            config={"ffn_hidden_size": 44}, rename=with_output_table, unused=("lm_head.weight",)),
    Variant("falcon_40b", "40B's form: two norms, key/value heads in groups", "falcon",
            {"hidden_size": 40, "num_attention_heads": 4, "num_kv_heads": 2,
             "new_decoder_architecture": True},
            style=style_4),
    Variant("falcon_11b", "11B's form: groups, and one norm of both branches", "falcon",
            {"hidden_size": 40, "num_attention_heads": 4, "num_kv_heads": 2, "new_decoder_architecture": True,
             "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 44}),
    # Eager attention adds the ALiBi twice in Transformers 5.23; the other adds it once, as published.
    Variant("falcon_alibi", "1B's form: ALiBi before the scale, biases, one residual after the other",
            "falcon", {"hidden_size": 40, "num_attention_heads": 4, "alibi": True, "multi_query": False,
                       "parallel_attn": False, "bias": True}, attention="sdpa"),
    Variant("bloom", "ALiBi of three heads, embedding norm, biases, tied; names of the first release",
            config={"n_layer": 2, "n_head": 3}, style=style_bloom, rename=without_prefix("transformer.")),
    Variant("mixtral", "two of five experts, weights normalised; a window",
            config={"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24,
                    "intermediate_size": 20}),
    Variant("qwen2_moe", "experts in two layers of six, a shared expert with its gate, windows",
            config={**EXPERTS, "num_hidden_layers": 6, "num_experts": 5,
                    "shared_expert_intermediate_size": 28, "decoder_sparse_step": 2,
                    "mlp_only_layers": [3], "norm_topk_prob": False, "use_sliding_window": True,
                    "sliding_window": 24, "max_window_layers": 4}),
    Variant("qwen3_moe", "three of eight experts, weights normalised", config={
        **EXPERTS, "head_dim": 20, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True},
        style=style_qwen3_moe),
    Variant("qwen3_moe_window", "weights not normalised; a dense layer; biases; a window", "qwen3_moe",
            {**EXPERTS, "head_dim": 20, "num_hidden_layers": 3, "num_experts": 5,
             "norm_topk_prob": False, "mlp_only_layers": [1], "attention_bias": True,
             "use_sliding_window": True, "sliding_window": 24}),
    Variant("olmoe", "two of six experts, weights not normalised; Q and K normed whole",
            config={"intermediate_size": 20, "num_experts": 6, "num_experts_per_tok": 2}),
    Variant("granitemoe", "softmax over the chosen experts; multipliers; tied",
            config={"intermediate_size": 20, "num_local_experts": 5, "num_experts_per_tok": 2,
                    "embedding_multiplier": 3.0, "attention_multiplier": 0.4,
                    "residual_multiplier": 0.6, "logits_scaling": 2.5, "tie_word_embeddings": True}),
    Variant("gpt_oss", "sinks, clamped SwiGLU experts in MXFP4 with biases, YaRN, every other layer windowed",
            config={"hidden_size": 64, "intermediate_size": 32, "head_dim": 20, "num_hidden_layers": 2,
                    "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24,
                    "rope_parameters": yarn(truncate=False)},
            style=style_4),
]

# After the remote families, so that the seeds of those before stay what they are.
LATER_VARIANTS = [
    Variant("phi", "parallel residual with one norm, half of a head rotated, biases, one of the output"),
]
