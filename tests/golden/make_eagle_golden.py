#!/usr/bin/env python3
"""Makes small random heads of EAGLE-3 (arXiv:2503.01840) for the checkpoint in gqa/, and their logits.

    python3 tests/golden/make_eagle_golden.py    (writes beside itself, in eagle/)

Needs torch, transformers and safetensors; the versions used are in eagle/manifest.json. Transformers has no
such heads: its Llama gives the streams after some of its layers, and the head is computed from its formula,
in float32 on the weights as stored, which are float16. Each variant is a folder:

    config.json, model.safetensors   the head, laid out as one of those who publish heads does
    logits.f32   [rows, draft vocabulary] float32, little-endian: those of the prompt's last tokens but one,
                 then twice those after the likeliest token of the row before, of which the head reads its
                 own hidden state
"""

import json
from pathlib import Path

import safetensors
import safetensors.torch
import torch
import transformers

HERE = Path(__file__).resolve().parent
OUT = HERE / "eagle"
TARGET = HERE / "gqa"
ROWS = 4
FURTHER = 2
HIDDEN, FFN, VOCAB = 32, 48, 136

LAYER = {"model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": FFN,
         "num_attention_heads": 4, "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "vocab_size": VOCAB,
         "max_position_embeddings": 256}

# after: layers before each stream that the head reads.
VARIANTS = {
    # EAGLE's authors and SpecForge: places of layers from 0; the draft vocabulary is a part of the model's.
    "midlayer": {
        "config": {"architectures": ["LlamaForCausalLMEagle3"], **LAYER, "head_dim": 8, "num_key_value_heads": 2,
                   "draft_vocab_size": 50, "rope_theta": 5000.0, "tie_word_embeddings": False,
                   "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}},
        "after": [1, 2, 3], "layer": "midlayer."},
    # vLLM's speculators: layers before; the layer's input is normalized, and so is what the head reads of itself.
    "speculator": {
        "config": {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": 70,
                   "norm_before_fc": True, "norm_output": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
                   "transformer_layer_config": {**LAYER, "head_dim": 16, "num_key_value_heads": 4,
                                                "attention_bias": True}},
        "after": [0, 1, 2], "layer": "layers.0.", "embedding": True, "normed_stream": True, "norm_output": True,
        "norm": "whole"},
    # Two streams with a norm each, and the model's own output matrix.
    "norm_of_each": {
        "config": {"architectures": ["Eagle3LlamaForCausalLM"], **LAYER, "head_dim": 8, "num_key_value_heads": 1,
                   "fc_norm": True, "eagle_aux_hidden_state_layer_ids": [1, 2]},
        "after": [1, 2], "layer": "model.layers.0.", "norm": "each", "fc_bias": True, "head_norms": True},
}


def tensors_of(variant):
    config = variant["config"]
    layer = config.get("transformer_layer_config", config)
    n_heads, n_kv, dim = layer["num_attention_heads"], layer["num_key_value_heads"], layer["head_dim"]
    joined = HIDDEN * len(variant["after"])
    begin, base = variant["layer"], "model." if variant["layer"].startswith("model.") else ""
    shapes = {begin + "self_attn.q_proj.weight": (n_heads * dim, 2 * HIDDEN),
              begin + "self_attn.k_proj.weight": (n_kv * dim, 2 * HIDDEN),
              begin + "self_attn.v_proj.weight": (n_kv * dim, 2 * HIDDEN),
              begin + "self_attn.o_proj.weight": (HIDDEN, n_heads * dim),
              begin + "mlp.gate_proj.weight": (FFN, HIDDEN), begin + "mlp.up_proj.weight": (FFN, HIDDEN),
              begin + "mlp.down_proj.weight": (HIDDEN, FFN), base + "fc.weight": (HIDDEN, joined)}
    norms = {begin + "input_layernorm.weight": HIDDEN, begin + "hidden_norm.weight": HIDDEN,
             begin + "post_attention_layernorm.weight": HIDDEN, base + "norm.weight": HIDDEN}
    if layer.get("attention_bias"):
        shapes |= {begin + f"self_attn.{x}_proj.bias": (shapes[begin + f"self_attn.{x}_proj.weight"][0],) for x in "qkvo"}
    if variant.get("fc_bias"):
        shapes[base + "fc.bias"] = (HIDDEN,)
    if variant.get("head_norms"):
        norms |= {begin + f"self_attn.{x}_norm.weight": dim for x in "qk"}
    if variant.get("norm") == "whole":
        norms["input_norm.weight"] = joined
    elif variant.get("norm") == "each":
        norms |= {base + f"fc_norm.{n}.weight": HIDDEN for n in range(len(variant["after"]))}
    if variant.get("embedding"):
        shapes["embed_tokens.weight"] = (VOCAB, HIDDEN)
    if "draft_vocab_size" in config:
        shapes["lm_head.weight"] = (config["draft_vocab_size"], HIDDEN)
    tensors = {}
    for name, shape in shapes.items():
        scale = 1.0 if "embed" in name else 0.2 if "bias" in name else shape[-1] ** -0.5 * 1.5
        tensors[name] = torch.randn(shape) * scale
    for name, size in norms.items():
        tensors[name] = 1 + 0.2 * torch.randn(size)
    tensors = {name: tensor.half() for name, tensor in tensors.items()}
    if "draft_vocab_size" in config:
        rows = config["draft_vocab_size"]
        tokens = torch.randperm(VOCAB)[:rows].sort().values
        tensors["d2t"] = tokens - torch.arange(rows)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, tokens, True)
    return tensors


def rms(x, weight, eps=1e-5):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Head:
    def __init__(self, variant, tensors, target):
        self.variant = variant
        self.config = variant["config"].get("transformer_layer_config", variant["config"])
        self.tensors = {name.removeprefix("model.").removeprefix("midlayer.").removeprefix("layers.0."): tensor.float()
                        for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
        self.tokens = tensors["d2t"] + torch.arange(len(tensors["d2t"])) if "d2t" in tensors else torch.arange(VOCAB)
        self.embedding = self.tensors.get("embed_tokens.weight", target.model.embed_tokens.weight)
        self.output = self.tensors.get("lm_head.weight", target.lm_head.weight)

    def join(self, states):
        """[tokens, hidden] of the streams after some layers, a list."""
        if self.variant.get("norm") == "each":
            states = [rms(state, self.tensors[f"fc_norm.{n}.weight"]) for n, state in enumerate(states)]
        joined = torch.cat(states, -1)
        if self.variant.get("norm") == "whole":
            joined = rms(joined, self.tensors["input_norm.weight"])
        return self.product("fc", joined)

    def product(self, name, x):
        y = x @ self.tensors[name + ".weight"].T
        return y + self.tensors[name + ".bias"] if name + ".bias" in self.tensors else y

    def heads(self, x, kind, count):
        """[heads, tokens, dim], normalized and rotated."""
        x = self.product(f"self_attn.{kind}_proj", x).view(len(x), count, self.config["head_dim"]).transpose(0, 1)
        norm = self.tensors.get(f"self_attn.{kind}_norm.weight")
        if norm is not None:
            x = rms(x, norm)
        if kind == "v":
            return x
        half = self.config["head_dim"] // 2
        frequencies = self.config.get("rope_theta", 10000.0) ** (-torch.arange(half) / half)
        angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float32), frequencies)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)

    def attention(self, x):
        n_heads, n_kv = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q = self.heads(x, "q", n_heads)
        k, v = (self.heads(x, kind, n_kv).repeat_interleave(n_heads // n_kv, 0) for kind in "kv")
        scores = q @ k.transpose(1, 2) * self.config["head_dim"] ** -0.5
        scores += torch.full(scores.shape[1:], -torch.inf).triu(1)
        return self.product("self_attn.o_proj", (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(x), -1))

    def run(self, tokens, hidden):
        """Logits after each token, which stands beside the hidden state of the one before; its own hidden states."""
        embedded = rms(self.embedding[tokens], self.tensors["input_layernorm.weight"])
        normed = rms(hidden, self.tensors["hidden_norm.weight"])
        x = normed if self.variant.get("normed_stream") else hidden
        x = x + self.attention(torch.cat((embedded, normed), -1))
        y = rms(x, self.tensors["post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(self.product("mlp.gate_proj", y))
        x = x + self.product("mlp.down_proj", gate * self.product("mlp.up_proj", y))
        last = rms(x, self.tensors["norm.weight"])
        return last @ self.output.T, last if self.variant.get("norm_output") else x


def streams_of(target, tokens, after):
    """The target's streams after so many layers, [tokens, hidden] each."""
    streams = {}
    hooks = [layer.register_forward_pre_hook(lambda _, args, n=n: streams.update({n: args[0][0]}))
             for n, layer in enumerate(target.model.layers)]
    last = len(target.model.layers)
    hooks.append(target.model.norm.register_forward_pre_hook(lambda _, args: streams.update({last: args[0][0]})))
    target(torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return [streams[n] for n in after]


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    torch.manual_seed(33)
    target = transformers.LlamaForCausalLM.from_pretrained(TARGET, dtype=torch.float32, attn_implementation="eager")
    tokens = torch.frombuffer(bytearray((TARGET / "tokens.i32").read_bytes()), dtype=torch.int32).tolist()
    for name, variant in VARIANTS.items():
        folder = OUT / name
        folder.mkdir(parents=True, exist_ok=True)
        tensors = tensors_of(variant)
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(variant["config"], indent=2) + "\n")
        head = Head(variant, tensors, target)
        hidden = head.join(streams_of(target, tokens, variant["after"]))[:-1]
        following = tokens[1:]
        logits, own = head.run(following, hidden)
        rows = [logits[-ROWS:]]
        for _ in range(FURTHER):
            following = following + [head.tokens[logits[-1].argmax()].item()]
            hidden = torch.cat((hidden, own[-1:]))
            logits, own = head.run(following, hidden)
            rows.append(logits[-1:])
        torch.cat(rows).numpy().astype("<f4").tofile(folder / "logits.f32")
        print(f"{name:14} {tuple(torch.cat(rows).shape)}  largest logit {torch.cat(rows).abs().max():.2f}")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "safetensors": safetensors.__version__}
    (OUT / "manifest.json").write_text(json.dumps({"made_with": versions, "rows": ROWS, "further": FURTHER}, indent=2) + "\n")


if __name__ == "__main__":
    main()
