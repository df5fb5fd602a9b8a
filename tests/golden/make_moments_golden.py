#!/usr/bin/env python3
"""Writes moments.json: mean squares of what the bundled model's matrices are multiplied with over a text, in plain
NumPy float64 from the formulas of Llama (RMSNorm, rotary pairs in halves, grouped queries, SwiGLU).

    make_moments_golden.py BUILD      has faststream-run, which only turns the text into tokens

NumPy 2.4.6. Of each matrix there are the sum over all columns and the first four columns.
"""
import json
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = (ROOT / "demo/eval/heldout.txt").read_text()[:600]


def tensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    for name, info in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        assert info["dtype"] == "BF16"
        bits = np.frombuffer(data[8 + size + begin:8 + size + end], np.uint16).astype(np.uint32) << 16
        yield name, bits.view(np.float32).astype(np.float64).reshape(info["shape"])


def main():
    build = pathlib.Path(sys.argv[1])
    model = build / "moments-demo.bin"
    subprocess.run([build / "faststream-convert", ROOT / "demo", "-o", model, "--force", "-q"], check=True)
    printed = subprocess.run([build / "faststream-run", "-m", model, "--tokenize", "-p", TEXT],
                             check=True, capture_output=True, text=True).stdout
    model.unlink()
    ids = json.loads(printed)
    config = json.loads((ROOT / "demo/config.json").read_text())
    weights = dict(tensors(ROOT / "demo/model.safetensors"))
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    count = len(ids)

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weights[name + ".weight"]

    angles = np.outer(np.arange(count), config["rope_theta"] ** (-np.arange(0, dim, 2) / dim))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def rotate(x):  # [tokens, heads, dim]
        a, b = x[..., :dim // 2], x[..., dim // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    moments = {}

    def multiply(x, name, *sources):
        squares = (x * x).mean(0)
        moments[name] = {"sum": squares.sum(), "first": squares[:4].tolist()}
        return [x @ weights[source].T for source in sources]

    x = weights["model.embed_tokens.weight"][ids]
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        q, k, v = multiply(norm(x, layer + "input_layernorm"), f"layers.{n}.attention_qkv",
                           *(f"{layer}self_attn.{each}_proj.weight" for each in "qkv"))
        q = rotate(q.reshape(count, heads, dim))
        k = np.repeat(rotate(k.reshape(count, kv_heads, dim)), heads // kv_heads, 1)
        v = np.repeat(v.reshape(count, kv_heads, dim), heads // kv_heads, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        scores[:, np.triu(np.ones((count, count), bool), 1)] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        sums = np.einsum("hqk,khd->qhd", scores, v).reshape(count, heads * dim)
        x = x + multiply(sums, f"layers.{n}.attention_out", layer + "self_attn.o_proj.weight")[0]
        gate, up = multiply(norm(x, layer + "post_attention_layernorm"), f"layers.{n}.ffn_gate_up",
                            layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight")
        middle = gate / (1 + np.exp(-gate)) * up
        x = x + multiply(middle, f"layers.{n}.ffn_down", layer + "mlp.down_proj.weight")[0]
    multiply(norm(x, "model.norm"), "output")
    golden = {"text": TEXT, "tokens": count, "moments": moments}
    path = pathlib.Path(__file__).with_name("moments.json")
    path.write_text(json.dumps(json.loads(json.dumps(golden), parse_float=lambda s: float(f"{float(s):.6g}")),
                               ensure_ascii=False, indent=1) + "\n")


main()
