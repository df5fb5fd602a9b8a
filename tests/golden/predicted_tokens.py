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
    """As Qwen 3.5 and Qwen3-Next have it, of the layer whose tensors' names begin so."""
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
