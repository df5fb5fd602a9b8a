"""What learns from the demo model, whose weights stay as they are: its hidden states over text of the corpus, computed
once, and a loop of training on these. Needs PyTorch, NumPy, SentencePiece and safetensors."""

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
from model import Llama, Shape

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
    found = parser.parse_args()
    os.makedirs(found.out, exist_ok=True)
    torch.manual_seed(found.seed)
    return found


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


def within_documents(tokens):
    documents = (tokens == text.BOS).cumsum(1)
    mask = (documents[:, None, :, None] == documents[:, None, None, :]).tril()
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def hidden_states(model, tokens, attend):
    x = model.embed(tokens)
    for layer in model.layers:
        x = layer(x, model.cos[:tokens.shape[1]], model.sin[:tokens.shape[1]], attend)
    return model.norm(x)


def read(model, o):
    """Batches of tokens and the model's hidden states of them, as many as there is time for."""
    rows = text.make_rows((os.path.join(DEMO, "tokenizer.model"), o.seed, 0, o.documents))[0]
    data = torch.from_numpy(rows).long().reshape(-1, LENGTH)
    data = data[torch.randperm(len(data), generator=torch.Generator().manual_seed(o.seed))]
    start, batches = time.time(), []
    while time.time() - start < 60 * o.minutes * o.reading and (len(batches) + 1) * o.rows <= len(data):
        tokens = data[len(batches) * o.rows:][:o.rows]
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            batches.append((tokens, hidden_states(model, tokens, within_documents(tokens)).bfloat16()))
    print(f"{len(batches)} batches of {data.numel():,} tokens, {time.time() - start:.0f} s", flush=True)
    return batches


def compare(model, logits, hidden):
    """Cross entropy with the probabilities that the model gives where its hidden states are these, and the share of
    rows where both find the same token likeliest."""
    with torch.no_grad():
        wanted = F.linear(hidden, model.embed.weight).float()
    same = (logits.argmax(-1) == wanted.argmax(-1)).float().mean()
    return F.cross_entropy(logits.float(), wanted.softmax(-1)), same


def train(learner, losses, batches, o, save):
    """`losses(step, tokens, hidden)` gives pairs as compare() does; `save()` is called now and then, and at the end."""
    print(f"{sum(p.numel() for p in learner.parameters()):,} parameters", flush=True)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=o.lr, betas=(0.9, 0.95), weight_decay=0.01)
    start, step, minutes = time.time(), 0, o.minutes * (1 - o.reading)
    while (done := (time.time() - start) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = o.lr * min((step + 1) / 20, 1.0, 2 * (1 - done))
        with torch.autocast("cpu", torch.bfloat16):
            found = losses(step, *batches[torch.randint(len(batches), ()).item()])
        sum(loss for loss, _ in found).backward()
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 20 == 0:
            print(f"step {step}  {100 * done:.0f}%  losses {', '.join(f'{loss:.3f}' for loss, _ in found)}  "
                  f"same token {', '.join(f'{100 * same:.1f}%' for _, same in found)}", flush=True)
            save()
    save()
    print(f"{step} steps of {o.rows * LENGTH:,} tokens, {time.time() - start:.0f} s")


def write(out, tensors, **changes):
    """A checkpoint with the demo model's tokenizer, and its description but for `changes`."""
    for name in ("tokenizer.model", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(DEMO, name), out)
    with open(os.path.join(DEMO, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config.update(changes)
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
