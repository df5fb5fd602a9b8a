"""Heads that predict further tokens, for golden checkpoints. Transformers has none, so there is nothing
to compute: the tensors of their layers are twice those of the model's last layer of that kind, which
tells one from the other; the others are random."""

import torch

HIDDEN = 36


def random(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(torch.bfloat16)


def twice(tensors, layer, head):
    """A layer's tensors, doubled, under other names."""
    return {head + name.removeprefix(layer): 2 * value for name, value in tensors.items()
            if name.startswith(layer)}


def with_qwen_head(layer):
    """As Qwen 3.5, Qwen3-Next and K-EXAONE have it, of the layer whose tensors' names begin so."""
    def rename(tensors):
        return {**tensors, **twice(tensors, layer, "mtp.layers.0."),
                "mtp.fc.weight": random((HIDDEN, 2 * HIDDEN), 1),
                "mtp.pre_fc_norm_embedding.weight": random((HIDDEN,), 2),
                "mtp.pre_fc_norm_hidden.weight": random((HIDDEN,), 3),
                "mtp.norm.weight": random((HIDDEN,), 4)}
    return rename


def with_layer_behind(number):
    """As DeepSeek V3 and GLM 4.5 have it: a layer more, with the model's embedding and output matrix once
    again."""
    layer, head = f"model.layers.{number - 1}.", f"model.layers.{number}."

    def rename(tensors):
        return {**tensors, **twice(tensors, layer, head),
                head + "eh_proj.weight": random((HIDDEN, 2 * HIDDEN), 1),
                head + "enorm.weight": random((HIDDEN,), 2),
                head + "hnorm.weight": random((HIDDEN,), 3),
                head + "shared_head.norm.weight": random((HIDDEN,), 4),
                head + "embed_tokens.weight": tensors["model.embed_tokens.weight"].clone(),
                head + "shared_head.head.weight": tensors["lm_head.weight"].clone()}
    return rename


def with_mimo_head(tensors):
    """As MiMo V2 has it: attention of the last layer, whose windows it shares, and the first one's plain
    feed-forward."""
    head = "model.mtp.layers.0."
    more = twice(tensors, "model.layers.2.self_attn.", head + "self_attn.")
    more |= twice(tensors, "model.layers.2.input_layernorm.", head + "input_layernorm.")
    more |= twice(tensors, "model.layers.0.post_attention_layernorm.", head + "pre_mlp_layernorm.")
    more |= twice(tensors, "model.layers.0.mlp.", head + "mlp.")
    return {**tensors, **more, head + "eh_proj.weight": random((HIDDEN, 2 * HIDDEN), 1),
            head + "enorm.weight": random((HIDDEN,), 2), head + "hnorm.weight": random((HIDDEN,), 3),
            head + "final_layernorm.weight": random((HIDDEN,), 4)}


def with_ernie_head(tensors):
    """As Ernie 4.5 has it: a layer like the model's first, whose output goes through the model's norm."""
    head = "model.mtp_"
    return {**tensors, **twice(tensors, "model.layers.0.", head + "block.0."),
            head + "linear_proj.0.weight": random((HIDDEN, 2 * HIDDEN), 1),
            head + "emb_norm.0.weight": random((HIDDEN,), 2), head + "hidden_norm.0.weight": random((HIDDEN,), 3)}


def with_longcat_head(tensors):
    """As LongCat Flash has it: one attention and one feed-forward, those of the last layer's second half."""
    head = "model.mtp.layers.0."
    more = twice(tensors, "model.layers.1.self_attn.1.", head + "self_attn.")
    more |= twice(tensors, "model.layers.1.mlps.1.", head + "transformer_layer.mlp.")
    for norm in ("input_layernorm", "post_attention_layernorm"):
        more |= twice(tensors, f"model.layers.1.{norm}.1.", head + norm + ".")
    return {**tensors, **more, head + "eh_proj.weight": random((HIDDEN, 2 * HIDDEN), 1),
            head + "enorm.m.weight": random((HIDDEN,), 2), head + "hnorm.m.weight": random((HIDDEN,), 3),
            "model.mtp.norm.weight": random((HIDDEN,), 4),
            "model.mtp.embed_tokens.weight": tensors["model.embed_tokens.weight"].clone()}


def with_nemotron_head(tensors):
    """As Nemotron-H has it: attention and experts, which are layers of their own."""
    head = "mtp.layers."
    more = twice(tensors, "backbone.layers.3.", head + "0.") | twice(tensors, "backbone.layers.4.", head + "1.")
    return {**tensors, **more, head + "0.eh_proj.weight": random((HIDDEN, 2 * HIDDEN), 1),
            head + "0.enorm.weight": random((HIDDEN,), 2), head + "0.hnorm.weight": random((HIDDEN,), 3),
            head + "1.final_layernorm.weight": random((HIDDEN,), 4)}
