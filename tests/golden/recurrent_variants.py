"""The variants of families whose layers keep a state of fixed size; see family_variants.py."""

import torch

from family_variants import BASE, EXPERTS, Variant, style_4
from predicted_tokens import with_nemotron_head, with_qwen_head

# Longer than a chunk of the delta rule, 64 tokens, and than several pages.
LONG = 100

DELTA_NET = {"num_hidden_layers": 3, "full_attention_interval": 3, "head_dim": 20,
             "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
             "linear_value_head_dim": 10}

STATE_SPACE = {"mamba_n_heads": 6, "mamba_d_head": 12, "mamba_d_state": 10, "mamba_n_groups": 2,
               "mamba_chunk_size": 16}

FALCON_H1 = {"embedding_multiplier": 3.0, "lm_head_multiplier": 0.4, "key_multiplier": 0.7,
             "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.2,
             "ssm_out_multiplier": 0.6, "ssm_multipliers": [0.9, 1.1, 0.8, 1.4, 0.7],
             "mlp_multipliers": [1.5, 0.5]}

KDA = {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
       "kv_lora_rank": 12, "qk_rope_head_dim": 6, "qk_nope_head_dim": 8, "v_head_dim": 10,
       "num_key_value_heads": 3, "first_k_dense_replace": 1}
SHORT_KDA = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
ROUTED = {**EXPERTS, "num_local_experts": 6, "n_group": 3, "topk_group": 2, "n_shared_experts": 1,
          "routed_scaling_factor": 1.5}


def released_kimi(config):
    """The linear layers' sizes and numbers in a part of their own, as releases have them."""
    types = config.pop("layer_types")
    config["linear_attn_config"] = {
        "full_attn_layers": [n + 1 for n, kind in enumerate(types) if kind == "full_attention"],
        "kda_layers": [n + 1 for n, kind in enumerate(types) if kind == "linear_attention"],
        "head_dim": config.pop("linear_head_dim"), "num_heads": config.pop("linear_num_heads"),
        "short_conv_kernel_size": config.pop("linear_conv_kernel_dim")}
    return config


def renamed_kimi(tensors):
    """Dense layers' feed-forwards have another name than experts in releases."""
    return {name if ".experts." in name or "shared_experts" in name or ".gate." in name
            else name.replace("block_sparse_moe", "mlp"): value for name, value in tensors.items()}


def with_exact_decays(tensors):
    """Tables of decays in float32, as Transformers computes them for a model without."""
    size = 16
    tables = dict(tensors)
    for name in [name for name in tensors if name.endswith("slope_rate")]:
        layer, heads = int(name.split(".")[2]), tensors[name].shape[0]
        slope = (1 / 2 ** (8 / heads)) ** (torch.arange(heads) + 1)
        slope = (slope * (1 - layer / (3 - 1 + 1e-5) + 1e-5))[:, None, None]
        place = torch.arange(size) + 1
        apart = place[:, None] - place[None, :]
        tables[name] = slope
        tables[name.replace("slope_rate", "query_decay")] = torch.exp(-slope * place[:, None])
        tables[name.replace("slope_rate", "key_decay")] = torch.exp(-slope * (size - place[:, None]))
        diagonal = torch.where(apart >= 0, -(slope * apart[None, None]), float("-inf"))
        tables[name.replace("slope_rate", "diagonal_decay")] = torch.exp(diagonal)
    return tables


MINIMAX = {"num_hidden_layers": 3, "head_dim": 12, "num_local_experts": 3, "block_size": 16, "intermediate_size": 20,
           "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
# What releases with code of their own call it, and Transformers.
MINIMAX_NAMES = [(f"layernorm_{name}_{factor}", f"{branch}_{factor}_factor")
                 for name, branch in (("full_attention", "full_attn"), ("linear_attention", "linear_attn"), ("mlp", "mlp"))
                 for factor in ("alpha", "beta")]


def turned(tensors, config, order):
    """Rows of heads in another order, where they are rotated."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    return {name: value.reshape(heads[name.split(".")[-2]], -1, value.shape[-1])[:, order].reshape(value.shape)
            if name.endswith(("q_proj.weight", "k_proj.weight")) else value for name, value in tensors.items()}


def rotated_rows(config):
    """Where the first half of a head, rotated by itself, is if pairs are over all of it."""
    pairs = config["head_dim"] // 4
    return [*range(pairs), *range(2 * pairs, 3 * pairs), *range(pairs, 2 * pairs), *range(3 * pairs, 4 * pairs)]


def to_minimax_text(tensors, config):
    """As MiniMax-Text-01 was published: half of a head is rotated, by frequencies of its own length; without tables."""
    config = dict(config)
    types, theta = config.pop("layer_types"), config.pop("rope_parameters")["rope_theta"]
    config.update(architectures=["MiniMaxText01ForCausalLM"], model_type="minimax_text_01", postnorm=True,
                  rotary_dim=config["head_dim"] // 2, rope_theta=theta ** 0.5, shared_intermediate_size=0,
                  shared_moe_mode="sigmoid", attn_type_list=[int(kind == "full_attention") for kind in types])
    for released, ours in MINIMAX_NAMES:
        config[released] = config.pop(ours)
    tensors = {name: value for name, value in tensors.items() if not name.endswith(("slope_rate", "_decay"))}
    return turned(tensors, config, rotated_rows(config)), config


def from_minimax_text(tensors, config):
    config = dict(config)
    types, theta = config.pop("attn_type_list"), config.pop("rope_theta")
    config.update(architectures=["MiniMaxForCausalLM"], model_type="minimax",
                  layer_types=["full_attention" if kind else "linear_attention" for kind in types],
                  rope_parameters={"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": theta ** 2})
    for released, ours in MINIMAX_NAMES:
        config[ours] = config.pop(released)
    order = rotated_rows(config)
    tensors = turned(tensors, config, [order.index(n) for n in range(len(order))])
    rates = {f"model.layers.{n}.self_attn.slope_rate": torch.ones(config["num_attention_heads"], 1, 1)
             for n, kind in enumerate(types) if not kind}
    return with_exact_decays({**tensors, **rates}), config


ZAMBA = {"hidden_size": 30, "num_hidden_layers": 3, "num_key_value_heads": 3,
         "layers_block_type": ["hybrid", "hybrid", "hybrid"], "adapter_rank": 5, "n_mamba_heads": 6,
         "mamba_d_state": 10, "mamba_ngroups": 2, "mamba_expand": 2, "chunk_size": 16, "time_step_min": 0.2,
         "intermediate_size": 20}


def calm_zamba(tensors):
    """Blocks that move what mixers read less, lest rounding grow from layer to layer."""
    def factor(name):
        if name.endswith("linear.weight"):
            return 0.12
        return 0.3 if "self_attn.q_proj" in name or name.endswith(".1.weight") else 1.0

    return {name: value * factor(name) for name, value in tensors.items()}


def older_zamba(config):
    """The types of layers as Transformers 4 called them."""
    types = ["mamba" if kind == "linear_attention" else kind for kind in config["layers_block_type"]]
    return {**config, "layers_block_type": types}


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


OLMO = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 12,
        "linear_value_head_dim": 10}


def joined_olmo(tensors):
    """The names that Transformers' class has. (It saves the convolution in thirds, under others.)"""
    joined = {}
    for name, value in tensors.items():
        if "k_conv1d" in name or "v_conv1d" in name:
            continue
        if "q_conv1d" in name:
            value = torch.cat([tensors[name.replace("q_conv1d", f"{each}_conv1d")] for each in "qkv"])
            name = name.replace("q_conv1d", "conv1d")
        name = name.replace("feedforward_layer_norm", "post_attention_layernorm")
        joined[name.replace("attention_layer_norm", "input_layernorm")] = value
    return joined


def released_olmo(tensors):
    """The names of releases, and convolutions of queries, keys and values by themselves."""
    released = joined_olmo(tensors)
    for name in [name for name in released if "linear_attn.conv1d" in name]:
        for each, rows in zip("qkv", released.pop(name).split([36, 36, 30])):
            released[name.replace("conv1d", each + "_conv1d")] = rows.contiguous()
        layer = name.split("linear_attn")[0]
        for norm, name_of_release in (("input_layernorm", "attention_layer_norm"),
                                      ("post_attention_layernorm", "feedforward_layer_norm")):
            released[f"{layer}{name_of_release}.weight"] = released.pop(f"{layer}{norm}.weight")
    return released


RECURRENT_VARIANTS = [
    Variant("qwen3_5", "two gated delta nets, then attention with a gate, a quarter of a head rotated",
            "qwen3_5_text", DELTA_NET, prompt=LONG),
    Variant("qwen3_5_multimodal", "the same inside its wrapper, with heads for predicted tokens", "qwen3_5",
            {"text_config": {**BASE, **DELTA_NET, "num_hidden_layers": 2, "full_attention_interval": 2},
             "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
                               "out_hidden_size": 36, "num_position_embeddings": 4, "patch_size": 2}},
            rename=with_qwen_head("model.language_model.layers.1."), unused=("model.visual.*", "mtp.*")),
    Variant("qwen3_5_bias", "biases of attention; layer types named; a convolution of two tokens",
            "qwen3_5_text",
            {**DELTA_NET, "attention_bias": True,
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
            prompt=LONG, style=style_4, rename=with_qwen_head("model.layers.1."), unused=("mtp.*",)),
    Variant("olmo_hybrid", "delta nets of twice the strength; norms before them, after attention; no rotation",
            config={**OLMO, "rope_parameters": {"rope_type": "default", "rope_theta": None}},
            prompt=LONG, rename=released_olmo),
    Variant("olmo_hybrid_rope", "with rotation and biases, of strength 1; one convolution a layer",
            "olmo_hybrid", {**OLMO, "linear_allow_neg_eigval": False, "attention_bias": True},
            prompt=LONG, rename=joined_olmo),
    Variant("lfm2", "short convolutions with biases and attention; the feed-forward's size by its rule",
            config={"num_hidden_layers": 3, "conv_bias": True, "conv_L_cache": 4,
                    "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 10}),
    Variant("lfm2_moe", "experts after a dense layer; sigmoid scores with a correction", config={
        **EXPERTS, "num_hidden_layers": 3, "num_experts": 5, "num_dense_layers": 1,
        "layer_types": ["conv", "full_attention", "conv"], "routed_scaling_factor": 1.5},
        router_margin=2e-2),
    Variant("mamba2", "state spaces alone, whose steps are limited; two groups; biases", config={
        "num_heads": 6, "head_dim": 12, "state_size": 10, "n_groups": 2, "chunk_size": 16,
        "use_bias": True, "time_step_limit": [0.1, 1.5]}, prompt=LONG),
    Variant("bamba", "state spaces and attention, half of a head rotated; a bias of the feed-forward",
            config={**STATE_SPACE, "num_hidden_layers": 3, "attn_layer_indices": [1],
                    "mamba_d_conv": 3, "mlp_bias": True}, prompt=LONG),
    Variant("granitemoehybrid", "experts beside one that all use, no rotation, multipliers", config={
        **STATE_SPACE, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
        "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 20,
        "shared_intermediate_size": 28, "embedding_multiplier": 3.0, "attention_multiplier": 0.4,
        "residual_multiplier": 0.6, "logits_scaling": 2.5, "tie_word_embeddings": True}, prompt=LONG),
    Variant("granitemoehybrid_dense", "without experts, with rotation; biases of projections",
            "granitemoehybrid",
            {**STATE_SPACE, "layer_types": ["linear_attention", "full_attention"],
             "num_local_experts": 0, "shared_intermediate_size": 44, "mamba_proj_bias": True,
             "mamba_conv_bias": False, "position_embedding_type": "rope", "attention_multiplier": 0.3},
            prompt=LONG),
    Variant("nemotron_h", "each layer a mixer, a feed-forward or experts; squared ReLU; a head for further tokens", config={
        "layers_block_type": ["linear_attention", "linear_attention", "mlp", "full_attention", "moe"],
        "mamba_num_heads": 6, "mamba_head_dim": 12, "ssm_state_size": 10, "n_groups": 2,
        "chunk_size": 16, "head_dim": 20, "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
        "num_experts_per_tok": 2, "moe_intermediate_size": 20,
        "moe_shared_expert_intermediate_size": 28, "routed_scaling_factor": 1.5}, prompt=LONG,
        rename=with_nemotron_head, unused=("mtp.*",)),
]

# Behind all others, whose seeds are their places.
LATER_VARIANTS = [
    Variant("falcon_h1", "attention and a state space side by side, all multipliers, biases",
            config={**STATE_SPACE, "mamba_d_ssm": 72, "mamba_rms_norm": True, **FALCON_H1,
                    "mamba_proj_bias": True, "projectors_bias": True, "attention_bias": True,
                    "mlp_bias": True, "tie_word_embeddings": True}, prompt=LONG),
    Variant("falcon_h1_gated", "without a norm of sums, of another width than the hidden size's",
            "falcon_h1", {**STATE_SPACE, "mamba_d_ssm": 60, "mamba_d_head": 10, "mamba_conv_bias": False,
                          "time_step_limit": [0.1, 1.5], **FALCON_H1}, prompt=LONG),
    Variant("mamba", "selective scans alone; biases",
            config={"state_size": 6, "expand": 2, "conv_kernel": 3, "use_bias": True,
                    "time_step_rank": 5}, prompt=LONG),
    Variant("falcon_mamba", "with norms of steps, B and C that have no weights",
            config={"state_size": 6, "expand": 2, "use_conv_bias": False, "mixer_rms_eps": 1e-3,
                    "tie_word_embeddings": False}, prompt=LONG),
    Variant("jamba", "scans with norms, attention without rotation, experts in one layer of two",
            config={"num_hidden_layers": 3, "attn_layer_period": 2, "attn_layer_offset": 1,
                    "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 4,
                    "num_experts_per_tok": 2, "mamba_d_state": 5, "mamba_expand": 1,
                    "mamba_dt_rank": 4, "mamba_proj_bias": True}, prompt=LONG),
    Variant("kimi_linear", "channels that decay by themselves, latent attention without rotation, experts",
            config={**KDA, **ROUTED, "linear_head_dim": 10, "linear_num_heads": 2}, prompt=LONG,
            style=released_kimi, rename=renamed_kimi, perturbs_routers=True),
    Variant("bailing_hybrid", "the same with bounded decays; latent attention with rotation and gates of heads",
            config={**KDA, **ROUTED, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 10,
                    "num_mtp_layers": 0, "kda_lower_bound": -2.5, "attention_bias": True},
            prompt=LONG, perturbs_routers=True),
    Variant("bailing_hybrid_softplus", "with decays that have no bound; all layers dense", "bailing_hybrid",
            {**KDA, **ROUTED, **SHORT_KDA, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 10,
             "num_mtp_layers": 0, "kda_safe_gate": False, "intermediate_size": 46,
             "first_k_dense_replace": 9}, prompt=LONG),
    Variant("kimi_linear_saved", "as Transformers writes it; all layers dense", "kimi_linear",
            {**KDA, **ROUTED, **SHORT_KDA, "linear_head_dim": 10, "linear_num_heads": 2,
             "first_k_dense_replace": 9},
            prompt=LONG),
    Variant("minimax", "lightning attention and attention, what branches add to is normed, with factors",
            config={**MINIMAX, "full_attn_alpha_factor": 3.5, "full_attn_beta_factor": 1.2,
                    "linear_attn_alpha_factor": 2.5, "linear_attn_beta_factor": 0.8,
                    "mlp_alpha_factor": 3.0, "mlp_beta_factor": 1.1, "rms_norm_eps": 1e-3},
            prompt=LONG, rename=with_exact_decays),
    Variant("zamba2", "two shared blocks beside the stream that take turns, with adapters and rotation",
            config={**ZAMBA, "adapter_rank": 4, "num_mem_blocks": 2, "use_shared_attention_adapter": True,
                    "use_mem_rope": True}, prompt=LONG, rename=calm_zamba),
    Variant("zamba2_plain", "one block, adapters of its feed-forward alone, no rotation", "zamba2",
            {**ZAMBA, "num_mem_blocks": 1, "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
             "num_key_value_heads": 1},
            prompt=LONG, style=older_zamba, rename=calm_zamba),
    Variant("falcon_h1_released", "without biases; gates before the norm of sums", "falcon_h1",
            {**STATE_SPACE, "mamba_d_ssm": 72, "mamba_rms_norm": True, "mamba_norm_before_gate": False,
             **FALCON_H1}, prompt=LONG),
    Variant("minimax_released", "one factor of what all branches add to", "minimax",
            {**MINIMAX, "full_attn_alpha_factor": 3.5, "linear_attn_alpha_factor": 3.5, "mlp_alpha_factor": 3.5},
            prompt=LONG, rename=with_exact_decays),
    Variant("minimax_text_01", "as releases with code of their own have it; half of each head is rotated", "minimax",
            {**MINIMAX, "full_attn_alpha_factor": 3.5, "linear_attn_alpha_factor": 2.5, "mlp_alpha_factor": 3.0,
             "num_attention_heads": 4, "num_key_value_heads": 2,
             "rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 10000.0}},
            prompt=LONG, store=to_minimax_text, restore=from_minimax_text),
    Variant("nemotron_h_dense", "each layer a mixer or a feed-forward", "nemotron_h", {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention"],
        "mamba_num_heads": 6, "mamba_head_dim": 12, "ssm_state_size": 10, "n_groups": 2, "chunk_size": 16,
        "head_dim": 20, "num_nextn_predict_layers": 0}, prompt=LONG),
]
