"""NomicBERT with experts (arXiv:2502.07972), which Transformers' class has not: its published formulas in plain PyTorch.

Plain feed-forwards with biases; in every so many-th layer experts in their place, chosen by a softmax over all of
them, which is not normalized again. The experts' two matrices lie below one another in one tensor each, the second ones
transposed; the bias is one of their sum. Tensors and config.json are named as in modeling_hf_nomic_bert.py of
nomic-ai/nomic-bert-2048. make_encoders.py uses this file.
"""

import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel


class NomicBertMoeConfig(PretrainedConfig):
    model_type = "nomic_bert"
    attribute_map = {"hidden_size": "n_embd"}

    def __init__(self, vocab_size=58, n_embd=36, n_head=2, n_layer=4, n_inner=44, n_positions=80, num_experts=5, moe_top_k=2,
                 moe_every_n_layers=2, rotary_emb_base=1000, layer_norm_epsilon=1e-5, type_vocab_size=1, **others):
        self.vocab_size, self.n_embd, self.n_head, self.n_layer = vocab_size, n_embd, n_head, n_layer
        self.n_inner, self.n_positions, self.type_vocab_size = n_inner, n_positions, type_vocab_size
        self.num_experts, self.moe_top_k, self.moe_every_n_layers = num_experts, moe_top_k, moe_every_n_layers
        self.rotary_emb_base, self.layer_norm_epsilon = rotary_emb_base, layer_norm_epsilon
        released = {"activation_function": "gelu", "causal": False, "expert_choice_router": False, "ffn_div": 1,
                    "max_trained_positions": 2048, "mlp_fc1_bias": True, "mlp_fc2_bias": True,
                    "moe_normalize_expert_weights": False, "num_shared_experts": 0, "parallel_block": False, "prenorm": False,
                    "qkv_proj_bias": True, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
                    "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "use_rms_norm": None}
        super().__init__(**{**released, **others})


def rotated(states, theta):
    """states [heads, tokens, dim]: pairs are (i, i + dim / 2)."""
    dim = states.shape[-1]
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = torch.outer(torch.arange(states.shape[1], dtype=torch.float32), frequencies)
    first, second = states.chunk(2, -1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


class Experts(nn.Module):
    def __init__(self, config):
        super().__init__()
        rows = config.num_experts * config.n_inner
        self.mlp = nn.ParameterDict({"w1": torch.empty(rows, config.n_embd), "w2": torch.empty(rows, config.n_embd)})
        self.bias = nn.Parameter(torch.empty(config.n_embd))


class MixtureOfExperts(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.router = nn.ModuleDict({"layer": nn.Linear(config.n_embd, config.num_experts, bias=False)})
        self.experts = Experts(config)

    def forward(self, states):
        weights, chosen = torch.softmax(self.router["layer"](states), -1).topk(self.config.moe_top_k, -1)
        up, down = (self.experts.mlp[name].view(self.config.num_experts, self.config.n_inner, -1) for name in ("w1", "w2"))
        of_all = torch.einsum("tef,efh->teh", functional.gelu(torch.einsum("th,efh->tef", states, up)), down)
        of_chosen = of_all.gather(1, chosen[..., None].expand(-1, -1, states.shape[-1]))
        return (weights[..., None] * of_chosen).sum(1) + self.experts.bias


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(config.n_embd, config.n_inner), nn.Linear(config.n_inner, config.n_embd)

    def forward(self, states):
        return self.fc2(functional.gelu(self.fc1(states)))


class Layer(nn.Module):
    def __init__(self, config, has_experts):
        super().__init__()
        self.config = config
        hidden, eps = config.n_embd, config.layer_norm_epsilon
        self.attn = nn.ModuleDict({"Wqkv": nn.Linear(hidden, 3 * hidden), "out_proj": nn.Linear(hidden, hidden)})
        self.norm1, self.norm2 = nn.LayerNorm(hidden, eps), nn.LayerNorm(hidden, eps)
        self.mlp = MixtureOfExperts(config) if has_experts else FeedForward(config)

    def forward(self, states):
        tokens, hidden = states.shape
        q, k, v = self.attn["Wqkv"](states).view(tokens, 3, self.config.n_head, -1).permute(1, 2, 0, 3)
        q, k = (rotated(of_heads, self.config.rotary_emb_base) for of_heads in (q, k))
        scores = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(hidden / self.config.n_head), -1)
        states = self.norm1(states + self.attn["out_proj"]((scores @ v).transpose(0, 1).reshape(tokens, hidden)))
        return self.norm2(states + self.mlp(states))


class NomicBertModel(PreTrainedModel):
    """Reads one text."""

    config_class = NomicBertMoeConfig

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.ModuleDict({"word_embeddings": nn.Embedding(config.vocab_size, config.n_embd),
                                         "token_type_embeddings": nn.Embedding(config.type_vocab_size, config.n_embd)})
        self.emb_ln = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(
            Layer(config, n % config.moe_every_n_layers == 1) for n in range(config.n_layer))})
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, input_ids, output_hidden_states=False):
        states = self.embeddings["word_embeddings"](input_ids[0]) + self.embeddings["token_type_embeddings"].weight[0]
        states = self.emb_ln(states)
        for layer in self.encoder["layers"]:
            states = layer(states)
        return SimpleNamespace(last_hidden_state=states[None])
