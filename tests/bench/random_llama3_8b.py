"""Writes a checkpoint of random weights with the shape of Llama-3-8B, and requests for it, to measure batches with.

    python3 tests/bench/random_llama3_8b.py FOLDER
    faststream-convert FOLDER -o l8.bin --dtype int8
    faststream-run -m l8.bin --batch FOLDER/short.jsonl -o out.jsonl --device cuda --ignore-eos

short.jsonl: 1,000 requests of 128 tokens, 128 asked for each. mixed.jsonl: 1,000 of 128 to 1,024, 32 to 512 asked for.
long.jsonl: 16 of 7,000, 256 asked for. A word is a token. Needs torch and safetensors.
"""

import json
import pathlib
import random
import sys

import torch
from safetensors.torch import save_file

HIDDEN, LAYERS, HEADS, KV_HEADS, MIDDLE, VOCAB = 4096, 32, 32, 8, 14336, 128256
HEAD_DIM = HIDDEN // HEADS

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
pattern = torch.randn(1 << 22, generator=torch.Generator().manual_seed(1)).mul(0.02).bfloat16()


def weights(*shape):
    size = torch.Size(shape).numel()
    return pattern.repeat(size // len(pattern) + 1)[:size].reshape(shape).contiguous()


shards = {}


def write(name, tensors):
    save_file(tensors, folder / name, metadata={"format": "pt"})
    shards.update(dict.fromkeys(tensors, name))


write("ends.safetensors", {
    "model.embed_tokens.weight": weights(VOCAB, HIDDEN),
    "lm_head.weight": weights(VOCAB, HIDDEN),
    "model.norm.weight": torch.ones(HIDDEN).bfloat16(),
})
for layer in range(LAYERS):
    at = f"model.layers.{layer}."
    write(f"layer-{layer}.safetensors", {
        at + "self_attn.q_proj.weight": weights(HIDDEN, HIDDEN),
        at + "self_attn.k_proj.weight": weights(KV_HEADS * HEAD_DIM, HIDDEN),
        at + "self_attn.v_proj.weight": weights(KV_HEADS * HEAD_DIM, HIDDEN),
        at + "self_attn.o_proj.weight": weights(HIDDEN, HIDDEN),
        at + "mlp.gate_proj.weight": weights(MIDDLE, HIDDEN),
        at + "mlp.up_proj.weight": weights(MIDDLE, HIDDEN),
        at + "mlp.down_proj.weight": weights(HIDDEN, MIDDLE),
        at + "input_layernorm.weight": torch.ones(HIDDEN).bfloat16(),
        at + "post_attention_layernorm.weight": torch.ones(HIDDEN).bfloat16(),
    })
(folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
(folder / "config.json").write_text(json.dumps({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "intermediate_size": MIDDLE, "vocab_size": VOCAB,
    "max_position_embeddings": 8192, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "eos_token_id": 1}))
(folder / "tokenizer.json").write_text(json.dumps({
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": None,
    "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(VOCAB)}, "unk_token": "w0"}}))

generator = random.Random(1)


def request(n_prompt, n_new):
    prompt = " ".join(f"w{generator.randrange(2, VOCAB)}" for _ in range(n_prompt))
    return json.dumps({"prompt": prompt, "max_tokens": n_new}) + "\n"


def write_requests(name, sizes):
    (folder / name).write_text("".join(request(*size) for size in sizes))


write_requests("short.jsonl", [(128, 128)] * 1000)
write_requests("mixed.jsonl", [(generator.randint(128, 1024), generator.randint(32, 512)) for _ in range(1000)])
write_requests("long.jsonl", [(7000, 256)] * 16)
