"""NeoBERT (arXiv:2502.19587), which Transformers has no class for: its published formulas in plain PyTorch.

RMS norms before each branch, rotary pairs side by side, each head's queries, keys and values one after the other in
one product, a feed-forward with SwiGLU two thirds as wide as config.json says, rounded up to a multiple of 8. Tensors and
config.json are named as in model.py of chandar-lab/NeoBERT. make_encoders.py uses this file.
"""

import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel


class NeoBertConfig(PretrainedConfig):
    model_type = "neobert"

    def __init__(self, vocab_size=58, hidden_size=36, num_hidden_layers=3, num_attention_heads=2, intermediate_size=62,
                 norm_eps=1e-3, max_length=80, **others):
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.num_attention_heads, self.intermediate_size = num_attention_heads, intermediate_size
        self.norm_eps, self.longest = norm_eps, max_length
        super().__init__(**others)

    def to_dict(self):
        """Transformers 5 takes the authors' name for one of a generation's settings, and writes no such member."""
        members = super().to_dict()
        members["max_length"] = members.pop("longest", None)
        return members


def rotated(states):
    """states [heads, tokens, dim]: pairs are (2 i, 2 i + 1), as complex numbers."""
    dim = states.shape[-1]
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = torch.outer(torch.arange(states.shape[1], dtype=torch.float32), frequencies)
    pairs = torch.view_as_complex(states.reshape(*states.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        hidden, middle = config.hidden_size, 8 * math.ceil(int(2 * config.intermediate_size / 3) / 8)
        self.qkv, self.wo = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.ffn = nn.ModuleDict({"w12": nn.Linear(hidden, 2 * middle, bias=False),
                                  "w3": nn.Linear(middle, hidden, bias=False)})
        self.attention_norm = nn.RMSNorm(hidden, config.norm_eps)
        self.ffn_norm = nn.RMSNorm(hidden, config.norm_eps)

    def forward(self, states):
        tokens, hidden = states.shape
        of_heads = self.qkv(self.attention_norm(states)).view(tokens, self.heads, -1).transpose(0, 1)
        q, k, v = of_heads.chunk(3, -1)
        scores = torch.softmax(rotated(q) @ rotated(k).transpose(1, 2) / math.sqrt(hidden / self.heads), -1)
        states = states + self.wo((scores @ v).transpose(0, 1).reshape(tokens, hidden))
        gate, up = self.ffn["w12"](self.ffn_norm(states)).chunk(2, -1)
        return states + self.ffn["w3"](functional.silu(gate) * up)


class NeoBERT(PreTrainedModel):
    """Reads one text."""

    config_class = NeoBertConfig

    def __init__(self, config):
        super().__init__(config)
        self.encoder = nn.Embedding(config.vocab_size, config.hidden_size)
        self.transformer_encoder = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.layer_norm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, input_ids, output_hidden_states=False):
        states = self.encoder(input_ids[0])
        for layer in self.transformer_encoder:
            states = layer(states)
        return SimpleNamespace(last_hidden_state=self.layer_norm(states)[None])


class NeoBERTLMHead(PreTrainedModel):
    config_class = NeoBertConfig
    base_model_prefix = "model"

    def __init__(self, config):
        super().__init__(config)
        self.model = NeoBERT(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def _init_weights(self, module):
        pass


class NeoBERTForSequenceClassification(PreTrainedModel):
    config_class = NeoBertConfig
    base_model_prefix = "model"

    def __init__(self, config):
        super().__init__(config)
        self.model = NeoBERT(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, input_ids, output_hidden_states=False):
        states = self.model(input_ids).last_hidden_state
        logits = self.classifier(torch.tanh(self.dense(states[:, 0])))
        return SimpleNamespace(logits=logits, hidden_states=[states])
