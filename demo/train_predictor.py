"""Trains a head that predicts further tokens (multi-token prediction, arXiv:2412.19437) on top of the demo model,
whose weights stay as they are, and writes both as a checkpoint.

    python3 demo/train_predictor.py --out DIR [--minutes 12]    # on a CPU

The head is a layer like the model's, which reads P [norm(embedding of the next token), norm(hidden state)] and goes
through a norm of its own to the model's output matrix. It learns to give the probabilities that the model gives for the
token after the next; and, fed with its own hidden states, those for the token after that. Names are those of GLM 4.5,
whose layers before the first with experts are the demo model's. It needs PyTorch, NumPy, SentencePiece and safetensors.
"""

import argparse
import json
import os
import shutil
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import tokens as text
from model import Layer, Llama, Norm, Shape

DEMO = os.path.dirname(os.path.abspath(__file__))
LENGTH = 256  # tokens that are trained on at a time: of a row of 1,024


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--reading", type=float, default=0.3, help="the part of it for the model's hidden states")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=8, help="of 256 tokens, a step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


def load_model():
    shape, tensors = Shape(), load_file(os.path.join(DEMO, "model.safetensors"))
    model = Llama(shape)
    names = {"attention_norm": ("input_layernorm",), "out": ("self_attn.o_proj",), "down": ("mlp.down_proj",),
             "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
             "ffn_norm": ("post_attention_layernorm",), "gate_up": ("mlp.gate_proj", "mlp.up_proj")}
    with torch.no_grad():
        model.embed.weight.copy_(tensors["model.embed_tokens.weight"])
        model.norm.weight.copy_(tensors["model.norm.weight"])
        for i, layer in enumerate(model.layers):
            for own, others in names.items():
                parts = [tensors[f"model.layers.{i}.{other}.weight"] for other in others]
                getattr(layer, own).weight.copy_(torch.cat(parts))
    return model.requires_grad_(False), tensors


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


def within_documents(tokens):
    documents = (tokens == text.BOS).cumsum(1)
    mask = (documents[:, None, :, None] == documents[:, None, None, :]).tril()
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def hidden_states(model, tokens, attend):
    x = model.embed(tokens)
    for layer in model.layers:
        x = layer(x, model.cos[:tokens.shape[1]], model.sin[:tokens.shape[1]], attend)
    return model.norm(x)


def losses(model, head, tokens, hidden, depths):
    """Of the token after the next, and at depth 2 the one after that: cross entropies with the model's own
    probabilities, and the shares of rows where both find the same token likeliest."""
    documents = (tokens == text.BOS).cumsum(1)
    found, shares = [], []
    states = hidden.float()
    for depth in range(1, depths + 1):
        following, known = tokens[:, depth:], tokens.shape[1] - depth
        states = head(following, states[:, :known], within_documents(tokens[:, :known]))
        # Nothing goes on from one document to the next.
        rows = (documents[:, :known] == documents[:, depth:]) & (following != text.UNK)
        logits = F.linear(states[rows], model.embed.weight).float()
        with torch.no_grad():
            wanted = F.linear(hidden[:, depth:][rows], model.embed.weight).float()
        found.append(F.cross_entropy(logits, wanted.softmax(-1)))
        shares.append((logits.argmax(-1) == wanted.argmax(-1)).float().mean())
    return found, shares


def write(head, tensors, out):
    s = head.model[0].shape
    for name in ("tokenizer.model", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(DEMO, name), out)
    with open(os.path.join(DEMO, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config.update(architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", partial_rotary_factor=1.0,
                  use_qk_norm=False, first_k_dense_replace=s.n_layers, num_nextn_predict_layers=1, n_routed_experts=1,
                  num_experts_per_tok=1, n_shared_experts=1, moe_intermediate_size=s.ffn_hidden, n_group=1, topk_group=1)
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    save_file({**tensors, **head.tensors(s.n_layers)}, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})


def main():
    o = options()
    os.makedirs(o.out, exist_ok=True)
    torch.manual_seed(o.seed)
    begin = time.time()
    model, tensors = load_model()
    head = Predictor(model)
    rows = text.make_rows((os.path.join(DEMO, "tokenizer.model"), o.seed, 0, o.documents))[0]
    data = torch.from_numpy(rows).long().reshape(-1, LENGTH)
    data = data[torch.randperm(len(data), generator=torch.Generator().manual_seed(o.seed))]
    print(f"{sum(p.numel() for p in head.parameters()):,} parameters, {data.numel():,} tokens, "
          f"{time.time() - begin:.0f} s", flush=True)
    # The model's own work is done once; the head's as often as there is time for.
    start, seen, hidden = time.time(), [], []
    while time.time() - start < 60 * o.minutes * o.reading and (len(seen) + 1) * o.rows <= len(data):
        seen.append(data[len(seen) * o.rows:][:o.rows])
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            hidden.append(hidden_states(model, seen[-1], within_documents(seen[-1])).bfloat16())
    print(f"{len(seen)} batches, {time.time() - start:.0f} s", flush=True)
    optimizer = torch.optim.AdamW(head.parameters(), lr=o.lr, betas=(0.9, 0.95), weight_decay=0.01)
    step = 0
    while (done := (time.time() - start) / (60 * o.minutes)) < 1:
        at = torch.randint(len(seen), ()).item()
        for group in optimizer.param_groups:
            group["lr"] = o.lr * min((step + 1) / 20, 1.0, 2 * (1 - done))
        with torch.autocast("cpu", torch.bfloat16):
            found, shares = losses(model, head, seen[at], hidden[at], 1 + step % 2)
        sum(found).backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 20 == 0:
            print(f"step {step}  {100 * done:.0f}%  losses {', '.join(f'{x:.3f}' for x in found)}  "
                  f"same token {', '.join(f'{100 * x:.1f}%' for x in shares)}", flush=True)
            write(head, tensors, o.out)
    write(head, tensors, o.out)
    print(f"{step} steps of {o.rows * LENGTH:,} tokens, {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
