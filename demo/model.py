"""The demo model: a Llama decoder in plain PyTorch, and its export in Hugging Face format."""

import json
import math
import os
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Shape:
    vocab: int = 4096
    hidden: int = 256
    n_layers: int = 8
    n_heads: int = 8
    n_kv_heads: int = 4
    head_dim: int = 32
    ffn_hidden: int = 768
    context: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


class Norm(nn.Module):
    def __init__(self, hidden, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):
    """Rotary position embedding in Hugging Face's pairing: element i with element i + head_dim / 2."""
    a, b = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-b, a), dim=-1) * sin).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.attention_norm = Norm(s.hidden, s.norm_eps)
        self.qkv = nn.Linear(s.hidden, (s.n_heads + 2 * s.n_kv_heads) * s.head_dim, bias=False)
        self.out = nn.Linear(s.n_heads * s.head_dim, s.hidden, bias=False)
        self.ffn_norm = Norm(s.hidden, s.norm_eps)
        self.gate_up = nn.Linear(s.hidden, 2 * s.ffn_hidden, bias=False)
        self.down = nn.Linear(s.ffn_hidden, s.hidden, bias=False)

    def forward(self, x, cos, sin, attend):
        s, (rows, length, _) = self.s, x.shape
        qkv = self.qkv(self.attention_norm(x)).view(rows, length, -1, s.head_dim).transpose(1, 2)
        q, k, v = qkv.split([s.n_heads, s.n_kv_heads, s.n_kv_heads], dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = s.n_heads // s.n_kv_heads
        y = attend(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, -1))
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = s = shape
        self.embed = nn.Embedding(s.vocab, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.n_layers))
        self.norm = Norm(s.hidden, s.norm_eps)
        frequencies = s.rope_theta ** (-torch.arange(0, s.head_dim, 2).float() / s.head_dim)
        angles = torch.outer(torch.arange(s.context).float(), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        for name, p in self.named_parameters():
            if p.ndim == 2 and "embed" not in name:
                into_residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=p.shape[1] ** -0.5 / (math.sqrt(2 * s.n_layers) if into_residual else 1))

    def forward(self, tokens, attend=causal):
        """tokens [rows, length] -> logits [rows, length, vocab]."""
        x = self.embed(tokens)
        cos, sin = self.cos[:tokens.shape[1]], self.sin[:tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        return F.linear(self.norm(x), self.embed.weight)

    def hf_tensors(self):
        """Hugging Face's names, bf16."""
        s, out = self.shape, {"model.embed_tokens.weight": self.embed.weight, "model.norm.weight": self.norm.weight}
        for i, layer in enumerate(self.layers):
            p = f"model.layers.{i}."
            q, k, v = layer.qkv.weight.split([s.n_heads * s.head_dim] + [s.n_kv_heads * s.head_dim] * 2)
            gate, up = layer.gate_up.weight.chunk(2)
            out.update({p + "input_layernorm.weight": layer.attention_norm.weight,
                        p + "self_attn.q_proj.weight": q, p + "self_attn.k_proj.weight": k,
                        p + "self_attn.v_proj.weight": v, p + "self_attn.o_proj.weight": layer.out.weight,
                        p + "post_attention_layernorm.weight": layer.ffn_norm.weight,
                        p + "mlp.gate_proj.weight": gate, p + "mlp.up_proj.weight": up,
                        p + "mlp.down_proj.weight": layer.down.weight})
        return {name: t.detach().to("cpu", torch.bfloat16).contiguous().clone() for name, t in out.items()}

    @torch.no_grad()
    def round_to_bf16(self):
        for p in self.parameters():
            p.copy_(p.bfloat16().float())


CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}"
    "{% if message['role'] == 'system' %}{{ 'System: ' + message['content'] }}"
    "{% elif message['role'] == 'user' %}{{ 'User: ' + message['content'] }}"
    "{% else %}{{ 'Assistant: ' + message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\nAssistant:' }}{% endif %}")


def write_settings(folder, s):
    """config.json, generation_config.json and tokenizer_config.json."""
    settings = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": s.vocab, "hidden_size": s.hidden,
            "intermediate_size": s.ffn_hidden, "num_hidden_layers": s.n_layers, "num_attention_heads": s.n_heads,
            "num_key_value_heads": s.n_kv_heads, "head_dim": s.head_dim, "max_position_embeddings": s.context,
            "rope_theta": s.rope_theta, "rms_norm_eps": s.norm_eps, "hidden_act": "silu", "attention_bias": False,
            "mlp_bias": False, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
            "torch_dtype": "bfloat16"},
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "do_sample": True, "temperature": 0.8,
                                   "top_p": 0.95, "max_length": s.context},
        "tokenizer_config.json": {
            "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
            "add_bos_token": True, "add_eos_token": False, "legacy": True, "clean_up_tokenization_spaces": False,
            "model_max_length": s.context, "chat_template": CHAT_TEMPLATE},
    }
    for name, content in settings.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(content, f, indent=2)
            f.write("\n")
