"""JinaBERT (arXiv:2310.19923), which Transformers has no class for: its published formulas in plain PyTorch.

Embeddings of tokens and segments without positions, ALiBi by the distance in both directions, a gated feed-forward
whose first product has no bias. Tensors and config.json are named as in modeling_bert.py of
jinaai/jina-bert-implementation. make_encoders.py uses this file.
"""

import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, BertConfig, PreTrainedModel


def alibi_slopes(heads):
    """Train Short, Test Long: a geometric sequence; beyond a power of two every other one of the next."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return torch.tensor((slopes + between)[:heads])


class SelfAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.heads = heads

    def forward(self, states):
        tokens, hidden = states.shape
        q, k, v = (product(states).view(tokens, self.heads, -1).transpose(0, 1)
                   for product in (self.query, self.key, self.value))
        positions = torch.arange(tokens)
        distances = (positions[:, None] - positions[None, :]).abs()
        scores = q @ k.transpose(1, 2) / math.sqrt(hidden / self.heads)
        scores = scores - alibi_slopes(self.heads)[:, None, None] * distances
        return (torch.softmax(scores, -1) @ v).transpose(0, 1).reshape(tokens, hidden)


class Layer(nn.Module):
    def __init__(self, hidden, middle, heads, eps):
        super().__init__()
        self.attention = nn.ModuleDict({
            "self": SelfAttention(hidden, heads),
            "output": nn.ModuleDict({"dense": nn.Linear(hidden, hidden), "LayerNorm": nn.LayerNorm(hidden, eps)})})
        self.mlp = nn.ModuleDict({"gated_layers": nn.Linear(hidden, 2 * middle, bias=False),
                                  "wo": nn.Linear(middle, hidden), "layernorm": nn.LayerNorm(hidden, eps)})

    def forward(self, states):
        output, mlp = self.attention["output"], self.mlp
        states = output["LayerNorm"](states + output["dense"](self.attention["self"](states)))
        gate, up = mlp["gated_layers"](states).chunk(2, -1)
        return mlp["layernorm"](states + mlp["wo"](functional.gelu(gate) * up))


class JinaBertConfig(BertConfig):
    model_type = "jina_bert"
    position_embedding_type: str = "alibi"
    feed_forward_type: str = "geglu"


class JinaBertForMaskedLM(PreTrainedModel):
    """Without the head. Reads one text."""

    config_class = JinaBertConfig

    def __init__(self, config):
        super().__init__(config)
        hidden, eps = config.hidden_size, config.layer_norm_eps
        self.embeddings = nn.ModuleDict({
            "word_embeddings": nn.Embedding(config.vocab_size, hidden),
            "token_type_embeddings": nn.Embedding(config.type_vocab_size, hidden),
            "LayerNorm": nn.LayerNorm(hidden, eps)})
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(
            Layer(hidden, config.intermediate_size, config.num_attention_heads, eps)
            for _ in range(config.num_hidden_layers))})
        self.post_init()

    def forward(self, input_ids, token_type_ids, output_hidden_states=False):
        parts = self.embeddings
        states = parts["word_embeddings"](input_ids[0]) + parts["token_type_embeddings"](token_type_ids[0])
        states = parts["LayerNorm"](states)
        for layer in self.encoder["layer"]:
            states = layer(states)
        return SimpleNamespace(last_hidden_state=states[None])


AutoConfig.register(JinaBertConfig.model_type, JinaBertConfig)
AutoModel.register(JinaBertConfig, JinaBertForMaskedLM)
