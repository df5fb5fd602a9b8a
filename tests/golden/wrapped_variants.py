"""Text models of multimodal checkpoints whose class they have of their own, and decoders that came last: variants of
Transformers' own classes. make_families.py uses this file.
"""

import json
import tempfile
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from family_variants import BASE, Variant as AnyVariant, yarn

Variant = partial(AnyVariant, perturbs_routers=True)

PARTIAL = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}
ROPE = {"rope_type": "default", "rope_theta": 1000.0}


def wrapped(model_type, vision, **text):
    return {"text_config": {**BASE, "model_type": model_type, **text}, "vision_config": vision}


def with_transposed_experts(tensors):
    """As released."""
    return {name: value.transpose(1, 2).contiguous() if name.endswith(("experts.gate_up_proj", "experts.down_proj"))
            else value for name, value in tensors.items()}


GLM_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4, "image_size": 8,
              "out_hidden_size": 36}
QWEN_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4,
               "out_hidden_size": 36, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
SPARSE = {"n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
LATENT = {"num_key_value_heads": 3, "q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8,
          "v_head_dim": 14}

STEP_VISION = {"width": 16, "layers": 1, "heads": 2, "patch_size": 4, "image_size": 8, "mlp_ratio": 1.0}
STEP = {"head_dim": 12, "num_hidden_layers": 3, "num_attention_heads": 2, "num_sliding_attention_heads": 4,
        "num_key_value_heads": 1, "n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "share_expert_dim": 20, "sliding_window": 24, "moe_router_scaling_factor": 1.7, "intermediate_size": 28,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"], "swiglu_limits": [0.0, 0.0, 0.8],
        "swiglu_limits_shared": [1.5, 0.5, 0.0]}
LAGUNA = {"head_dim": 12, "sliding_window": 24, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
          "shared_expert_intermediate_size": 20, "moe_routed_scaling_factor": 1.7,
          "layer_types": ["full_attention", "sliding_attention"],
          "rope_parameters": {"full_attention": yarn(partial_rotary_factor=0.5),
                              "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}}


def with_step_head(tensors):
    """A layer behind the model's, like its second one, as releases have it."""
    layer = {key.replace(".layers.1.", ".layers.3."): value.clone() for key, value in tensors.items()
             if key.startswith("model.layers.1.")}
    more = {"enorm": torch.zeros(36), "hnorm": torch.zeros(36), "eh_proj": torch.eye(36).repeat(1, 2),
            "transformer.shared_head.norm": tensors["model.norm.weight"].clone(),
            "transformer.shared_head.output": tensors["lm_head.weight"].clone()}
    layer |= {f"model.layers.3.{key}.weight": value.to(torch.bfloat16) for key, value in more.items()}
    return {**tensors, **layer}


def store_step(tensors, config):
    """Step 3.5: the text model alone, with the members and lists of its release."""
    text = config["text_config"]
    ropes = [text["rope_parameters"][kind] for kind in text["layer_types"]]
    released = {
        "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "num_nextn_predict_layers": 1,
        "num_attention_groups": text["num_key_value_heads"], "moe_num_experts": text["n_routed_experts"],
        "moe_top_k": text["num_experts_per_tok"], "moe_layers_enum": "2", "zero_centered": True,
        "rope_theta": [rope["rope_theta"] for rope in ropes] + [100.0], "rope_scaling": None,
        "partial_rotary_factors": [rope["partial_rotary_factor"] for rope in ropes] + [1.0],
        "attention_other_setting": {"attention_type": "sliding_attention", "head_dim": text["head_dim"],
                                    "num_attention_heads": text["num_sliding_attention_heads"]},
        "layer_types": text["layer_types"] + ["sliding_attention"],
        "swiglu_limits": text["swiglu_limits"] + [0.0],
        "swiglu_limits_shared": text["swiglu_limits_shared"] + [0.0],
    }
    same = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim", "vocab_size",
            "max_position_embeddings", "rms_norm_eps", "sliding_window", "moe_intermediate_size", "share_expert_dim",
            "moe_router_scaling_factor", "bos_token_id", "eos_token_id", "pad_token_id")
    released |= {key: text[key] for key in same}
    return {key: value for key, value in tensors.items() if not key.startswith("vi")}, released


def restore_step(tensors, config):
    """The text model inside a wrapper with a random tower, by Transformers' own reading of these members."""
    text = {key: value for key, value in config.items() if key != "architectures"}
    whole = {"architectures": ["Step3p7ForConditionalGeneration"], "model_type": "step3p7", "text_config": text,
             "vision_config": STEP_VISION}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(whole))
        AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
        tower = safetensors.torch.load_file(Path(folder) / "model.safetensors")
    return {**{key: value for key, value in tower.items() if key.startswith("vi")}, **tensors}, whole


def with_names_of_transformers(tensors):
    names = {"mlp.experts.e_score": "mlp.gate.e_score", "mlp.shared_expert.": "mlp.shared_experts."}
    for old, new in names.items():
        tensors = {key.replace(old, new): value for key, value in tensors.items()}
    return tensors


def beside_speech(name):
    """How a thinker is stored in a model that speaks as well: (store, restore) for a class's name."""
    def store(tensors, config):
        whole = {"architectures": [f"{name}ForConditionalGeneration"], "thinker_config": config,
                 "model_type": config["model_type"].removesuffix("_thinker")}
        return {"thinker." + key: value for key, value in tensors.items()}, whole

    def restore(tensors, config):
        return {key.removeprefix("thinker."): value for key, value in tensors.items()}, config["thinker_config"]

    return {"store": store, "restore": restore}


def without(*modules):
    """Stored without the tensors of modules that are large whatever their configuration."""
    def store(tensors, config):
        return {key: value for key, value in tensors.items() if not any(module in key for module in modules)}, config

    def restore(tensors, config):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
            return {**safetensors.torch.load_file(Path(folder) / "model.safetensors"), **tensors}, config

    return {"store": store, "restore": restore}


AUDIO = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "num_mel_bins": 8,
         "max_source_positions": 8, "n_window": 4, "output_dim": 36}
VARIANTS = [
    Variant("emu3", "the text model inside the wrapper", config={
        "text_config": {**BASE, "rope_parameters": ROPE}, "vocabulary_map": {"<image>": 3},
        "vq_config": {"codebook_size": 4, "embed_dim": 4, "base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1,
                      "attn_resolutions": [], "hidden_size": 32, "temporal_downsample_factor": 2}},
            unused=("*vqmodel.*",), **without("vqmodel.")),
    Variant("phi4_multimodal", "Phi 3's layers, half of a head rotated, beside encoders of pictures and sounds", config={
        "rope_parameters": PARTIAL, "sliding_window": 24,
        "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                          "image_size": 8, "patch_size": 4, "crop_size": 8},
        "audio_config": {"hidden_size": 16, "intermediate_size": 16, "num_blocks": 2, "num_attention_heads": 2,
                         "ext_pw_out_channel": 16, "depthwise_separable_out_channel": 16, "nemo_conv_channels": 16,
                         "input_size": 16, "bias_max_distance": 8}},
            unused=("*embed_tokens_extend.*",)),
    Variant("qwen2_5_omni", "Qwen 2's layers, which think beside others that speak", "qwen2_5_omni_thinker", {
        "text_config": {**BASE, "rope_parameters": {**ROPE, "mrope_section": [2, 2, 2]}},
        "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4,
                          "out_hidden_size": 36, "fullatt_block_indexes": [0]}, "audio_config": AUDIO},
            unused=("visual.*", "audio_tower.*"), **beside_speech("Qwen2_5Omni")),
    Variant("qwen3_omni_moe", "Qwen 3's experts, likewise", "qwen3_omni_moe_thinker", {
        "text_config": {**BASE, "head_dim": 12, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
                        "rope_parameters": {**ROPE, "mrope_section": [2, 2, 2]}},
        "vision_config": QWEN_VISION, "audio_config": {**AUDIO, "downsample_hidden_size": 8}},
            unused=("visual.*", "audio_tower.*"), **beside_speech("Qwen3OmniMoe")),
    Variant("granite4_vision", "Granite's multipliers inside the wrapper", config={
        "text_config": {**BASE, "embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.6,
                        "logits_scaling": 2.5, "rope_parameters": ROPE},
        "deepstack_layer_map": [], "spatial_target_layers": [], "downsample_rate": "1/2",
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 16, "num_hidden_layers": 2,
                          "num_attention_heads": 2, "image_size": 8, "patch_size": 4}},
            unused=("*image_newline*",), **without("vision_tower.", "projector")),
    Variant("granite_docling", "the same, with pictures in several layers", config={
        "text_config": {**BASE, "embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.6,
                        "logits_scaling": 2.5, "rope_parameters": ROPE, "tie_word_embeddings": False},
        "tie_word_embeddings": False,
        "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                          "image_size": 16, "patch_size": 4, "out_hidden_size": 36, "deepstack_visual_indexes": [0]}},
            unused=("*vision*", "*connector*")),
    Variant("glm4v", "norms after the branches, biases of Q, K and V, half of a head rotated, inside the wrapper",
            config=wrapped("glm4v_text", GLM_VISION, rope_parameters={**PARTIAL, "mrope_section": [1, 1, 1]}),
            unused=("*visual.*",)),
    Variant("glm_ocr", "the same without biases, heads of their own width",
            config=wrapped("glm_ocr_text", GLM_VISION, head_dim=16,
                           rope_parameters={**ROPE, "mrope_section": [4, 2, 2]}),
            unused=("*visual.*",)),
    Variant("glm4v_moe", "experts by corrected sigmoids in groups, one layer dense, inside the wrapper",
            config=wrapped("glm4v_moe_text", GLM_VISION, head_dim=12, n_group=3, topk_group=2, routed_scaling_factor=1.7,
                           rope_parameters={**PARTIAL, "mrope_section": [1, 1, 1]}, **SPARSE),
            unused=("*visual.*",)),
    Variant("qwen3_vl_moe", "experts of one tensor, transposed, inside the wrapper",
            config=wrapped("qwen3_vl_moe_text", QWEN_VISION, head_dim=20, num_experts=6, num_experts_per_tok=2,
                           moe_intermediate_size=12, mlp_only_layers=[0],
                           rope_parameters={**ROPE, "mrope_section": [4, 3, 3]}),
            rename=with_transposed_experts, unused=("*visual.*",)),
    Variant("hunyuan_vl", "Q and K normed after rope by head, a base that the rule of long texts scales, tied; inside the "
            "wrapper, without a name before the text model's tensors",
            config=wrapped("hunyuan_vl_text", {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16,
                                               "num_attention_heads": 2, "patch_size": 4, "max_image_size": 8, "out_hidden_size": 36},
                           head_dim=16, rope_parameters={"rope_type": "dynamic", "rope_theta": 1000.0, "alpha": 50.0,
                                                         "factor": 1.0, "mrope_section": [2, 2, 2, 2]}),
            unused=("vit.*", "model.vit.*")),
    Variant("paddleocr_vl", "Ernie 4.5 whose rope turns halves, biases, inside the wrapper",
            config=wrapped("paddleocr_vl_text", {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16,
                                                 "num_attention_heads": 2, "patch_size": 4, "image_size": 8},
                           head_dim=16, use_bias=True, rope_parameters={**ROPE, "mrope_section": [4, 2, 2]}),
            unused=("visual.*", "mlp_AR.*")),
    Variant("aria_text", "experts of one tensor, transposed, with names of their own, softmax over the chosen, two shared",
            config={"moe_num_experts": 5, "moe_topk": 2, "moe_num_shared_experts": 2, "intermediate_size": 12,
                    "attention_bias": True, "mlp_bias": True}),
    Variant("mllama", "layers that attend to pictures, left out, inside the wrapper",
            config=wrapped("mllama_text_model", {
                "hidden_size": 16, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 2,
                "intermediate_size": 16, "vision_output_dim": 32, "image_size": 8, "patch_size": 4,
                "intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1]], "max_num_tiles": 1},
                num_hidden_layers=4, num_attention_heads=3, cross_attention_layers=[1, 3], intermediate_size=28,
                rope_parameters={"rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0,
                                 "high_freq_factor": 4.0, "original_max_position_embeddings": 24}),
            unused=("*vision_model.*", "*multi_modal_projector.*", "*.layers.[13].*")),
    Variant("deepseek_ocr2", "DeepSeek V2's experts after plain attention, inside the wrapper",
            config={"text_config": {**BASE, "num_attention_heads": 3, "num_key_value_heads": 3, **SPARSE,
                                    "mlp_layer_types": ["dense", "sparse"], "routed_scaling_factor": 1.7,
                                    "topk_method": "greedy", "rope_parameters": ROPE},
                    "vision_config": {
                        "sam_config": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 16,
                                       "output_channels": 4, "image_size": 16, "patch_size": 4,
                                       "global_attn_indexes": [0], "downsample_channels": [4, 16]},
                        "encoder_config": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                                           "num_key_value_heads": 1, "intermediate_size": 16}}},
            unused=("*sam_model.*", "*qwen2_model.*", "*projector.*", "*view_sep*")),
    Variant("gemma4_unified", "wider heads where all positions are seen, K = V, layer scales, a cap", "gemma4_unified_text",
            {"num_hidden_layers": 3, "head_dim": 12, "global_head_dim": 20, "num_attention_heads": 2,
             "num_global_key_value_heads": 2, "attention_k_eq_v": True, "sliding_window": 24,
             "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
             "final_logit_softcapping": 6.0, "num_kv_shared_layers": 0}),
    Variant("axk1", "DeepSeek V3 with a norm after experts, without a correction",
            config={**LATENT, **SPARSE, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.7,
                    "mlp_layer_types": ["dense", "sparse"],
                    "rope_parameters": yarn(mscale=1.0, mscale_all_dim=1.0)}),
    Variant("mistral4", "latent attention, YaRN of a share of heads, softmax in groups, normalized; a text within the "
            "original context",
            config={**LATENT, **SPARSE, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.7,
                    "first_k_dense_replace": 1, "rope_parameters": {
                        **yarn(mscale=1.0, mscale_all_dim=1.0), "original_max_position_embeddings": 96,
                        "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 8 / 18}}),
    Variant("lfm3", "convolutions of seven taps, windows with a rope of their own, norms after, gates of heads, biases",
            config={"num_hidden_layers": 3, "head_dim": 12, "sliding_window": 24, "conv_bias": True,
                    "attention_bias": True, "layer_types": ["conv", "sliding_attention", "full_attention"],
                    "intermediate_size": 28, "rope_parameters": {
                        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                        "full_attention": {"rope_type": "proportional", "rope_theta": 1000.0,
                                           "partial_rotary_factor": 0.5}}}),
    Variant("codegen", "one module for Q, K and V of four parts, attention beside the feed-forward",
            config={"n_positions": 96, "n_embd": 40, "n_head": 4, "n_layer": 2, "n_inner": 44, "rotary_dim": 6}),
    Variant("gpt_neox_japanese", "one bias, of the last attention's output; a norm before each branch; tied",
            config={"intermediate_multiple_size": 1, "rope_parameters": {
                "rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}}),
    Variant("xglm", "positions that are computed, from the second on, a scaled embedding, biases, tied",
            config={"d_model": 36, "attention_heads": 3, "num_layers": 2, "ffn_dim": 44}),
    Variant("ctrl", "positions that are computed, sines before cosines, a scaled embedding, biases, tied",
            config={"n_embd": 36, "n_head": 3, "n_layer": 2, "dff": 44, "n_positions": 96}),
    Variant("cohere_compass", "attention beside the feed-forward, windows with a rope, other layers without",
            "cohere_compass_text",
            {"head_dim": 12, "sliding_window": 24, "logit_scale": 0.5, "attention_bias": True,
             "layer_types": ["sliding_attention", "full_attention"],
             "rope_parameters": {"sliding_attention": {**ROPE, "mrope_section": [2, 2, 2]}, "full_attention": None}}),
    Variant("ernie4_5_vl_moe", "experts for texts beside others for pictures, routers that are transposed, inside the "
            "wrapper",
            config=wrapped("ernie4_5_vl_moe_text", {
                "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4},
                head_dim=12, use_bias=True, moe_num_experts=4, moe_k=2, moe_num_shared_experts=1,
                moe_intermediate_size=[12, 8], mlp_layer_types=["dense", "sparse"],
                rope_parameters={**ROPE, "mrope_section": [2, 2, 2]}),
            unused=("vision_model.*", "model.vision_model.*", "model.resampler_model.*", "*.gate.weight_1",
                    "*.experts.[4567].*")),
    Variant("step3p7", "more heads in windowed layers, each with a gate, two ropes, Q and K normed by head, 1 + w; a "
            "dense first layer, experts by corrected sigmoids; activated gates and what they multiply cut at limits that "
            "differ by layer; biases; inside the wrapper, tensors as released",
            config=wrapped("step3p5", STEP_VISION, **STEP, attention_bias=True, mlp_bias=True,
                           rope_parameters={"full_attention": yarn(partial_rotary_factor=0.5),
                                            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}),
            unused=("vision_model.*", "vit_large_projector.*")),
    Variant("step3p5", "config.json and tensors as released, with a head for further tokens", "step3p7",
            wrapped("step3p5", STEP_VISION, **{
                **STEP, "mlp_layer_types": ["dense", "dense", "sparse"], "swiglu_limits_shared": [1.5, 0.0, 0.5]},
                rope_parameters={
                    "full_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}}),
            rename=with_step_head, store=store_step, restore=restore_step, unused=("model.layers.3.*",)),
    Variant("laguna", "heads by layer, each with a gate by softplus, windows, two ropes, Q and K normed by head; a dense first "
            "layer, experts by corrected sigmoids, one shared; biases",
            config={**LAGUNA, "num_attention_heads_per_layer": [3, 4], "attention_bias": True,
                    "num_key_value_heads": 1}),
    Variant("laguna_elements", "gates of elements, a soft cap of the router's logits, tensors as Transformers calls them",
            "laguna", {**LAGUNA, "gating": "per-element", "moe_router_logit_softcapping": 4.0, "num_hidden_layers": 1,
                       "layer_types": ["sliding_attention"], "mlp_layer_types": ["sparse"]}, rename=with_names_of_transformers),
    Variant("kolibri1", "experts by corrected logits, weighed by sigmoids, one shared; windows with a rope, other layers "
            "without, norms after the branches too, Q and K normed by head",
            config={"head_dim": 12, "sliding_window": 24, "num_experts": 6, "num_experts_per_tok": 3,
                    "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20, "norm_topk_prob": True,
                    "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": ROPE}),
    Variant("beam", "a stream whose variance stays, gates of elements with a bias for each head, queries by a power of their "
            "positions in layers without a rope, norms after the branches too; experts in groups by corrected sigmoids, a "
            "soft cap; biases",
            config={"head_dim": 12, "sliding_window": 24, "num_experts": 6, "num_experts_per_tok": 2, "n_group": 3,
                    "topk_group": 2, "moe_intermediate_size": 12, "final_logit_softcapping": 6.0, "attention_bias": True,
                    "layer_types": ["sliding_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"],
                    "rope_parameters": {"sliding_attention": ROPE, "full_attention": None}}),
]
