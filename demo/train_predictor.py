"""Trains a head that predicts further tokens (multi-token prediction, arXiv:2412.19437) on top of the demo model,
whose weights stay as they are, and writes both as a checkpoint.

    python3 demo/train_predictor.py --out DIR [--minutes 12]    # on a CPU

The head is a layer like the model's, which reads P [norm(embedding of the next token), norm(hidden state)] and goes
through a norm of its own to the model's output matrix. It learns to give the probabilities that the model gives for the
token after the next; and, fed with its own hidden states, those for the token after that. Names are those of GLM 4.5,
whose layers before the first with experts are the demo model's. It needs PyTorch, NumPy, SentencePiece and safetensors.
"""

import torch
import torch.nn.functional as F
from torch import nn

import tokens as text
from distill import compare, load_model, options, read, train, within_documents, write
from model import Layer, Norm


class Predictor(nn.Module):
    def __init__(self, model):
        super().__init__()
        s = model.shape
        self.model = [model]  # no part of it
        self.embedding_norm, self.hidden_norm, self.norm = (Norm(s.hidden, s.norm_eps) for _ in range(3))
        self.projection = nn.Linear(2 * s.hidden, s.hidden, bias=False)
        self.layer = Layer(s)
        self.layer.load_state_dict(model.layers[-1].state_dict())
        with torch.no_grad():  # at first the hidden state goes through
            nn.init.normal_(self.projection.weight, std=0.02)
            self.projection.weight[:, s.hidden:] += torch.eye(s.hidden)
            self.norm.weight.copy_(model.norm.weight)

    def forward(self, following, hidden, attend):
        """Hidden states, of which the model's output matrix gives the logits of the token after `following`."""
        model, length = self.model[0], following.shape[1]
        both = torch.cat((self.embedding_norm(model.embed(following)), self.hidden_norm(hidden)), dim=-1)
        x = self.layer(self.projection(both), model.cos[:length], model.sin[:length], attend)
        return self.norm(x)

    def tensors(self, number):
        """GLM 4.5's names, bf16."""
        s, layer, p = self.model[0].shape, self.layer, f"model.layers.{number}."
        q, k, v = layer.qkv.weight.split([s.n_heads * s.head_dim] + [s.n_kv_heads * s.head_dim] * 2)
        gate, up = layer.gate_up.weight.chunk(2)
        out = {"enorm": self.embedding_norm.weight, "hnorm": self.hidden_norm.weight, "eh_proj": self.projection.weight,
               "shared_head.norm": self.norm.weight, "input_layernorm": layer.attention_norm.weight,
               "self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": layer.out.weight,
               "post_attention_layernorm": layer.ffn_norm.weight, "mlp.gate_proj": gate, "mlp.up_proj": up,
               "mlp.down_proj": layer.down.weight}
        return {p + name + ".weight": t.detach().to(torch.bfloat16).contiguous().clone() for name, t in out.items()}


def losses(model, head, tokens, hidden, depths):
    """Of the token after the next, and at depth 2 the one after that."""
    documents = (tokens == text.BOS).cumsum(1)
    found = []
    states = hidden.float()
    for depth in range(1, depths + 1):
        following, known = tokens[:, depth:], tokens.shape[1] - depth
        states = head(following, states[:, :known], within_documents(tokens[:, :known]))
        # Nothing goes on from one document to the next.
        rows = (documents[:, :known] == documents[:, depth:]) & (following != text.UNK)
        found.append(compare(model, F.linear(states[rows], model.embed.weight), hidden[:, depth:][rows]))
    return found


def main():
    o = options()
    model, tensors = load_model()
    head, s = Predictor(model), model.shape

    def save():
        write(o.out, {**tensors, **head.tensors(s.n_layers)}, architectures=["Glm4MoeForCausalLM"],
              model_type="glm4_moe", partial_rotary_factor=1.0, use_qk_norm=False, first_k_dense_replace=s.n_layers,
              num_nextn_predict_layers=1, n_routed_experts=1, num_experts_per_tok=1, n_shared_experts=1,
              moe_intermediate_size=s.ffn_hidden, n_group=1, topk_group=1)

    train(head, lambda step, tokens, hidden: losses(model, head, tokens, hidden, 1 + step % 2), read(model, o), o, save)


if __name__ == "__main__":
    main()
