#!/usr/bin/env python3
"""Makes the golden checkpoints: small random Llamas and the logits that Transformers gives for them.

    python3 tests/golden/make_golden.py            (writes beside itself)

Needs torch, transformers, sentencepiece and safetensors; the versions used are in manifest.json. The
results are committed, so only a change of this file needs Python. Each variant is a folder:

    config.json, *.safetensors, tokenizer.model    a checkpoint as a user would have it
    tokens.i32      the prompt's token ids, int32, little-endian
    logits.f32      [tokens, vocab] float32, little-endian: eager attention, float32 arithmetic on the
                    weights as stored (16-bit checkpoints are rounded first)
    greedy.i32      some variants: the 48 ids with the largest logit that follow the prompt
"""

import io
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import safetensors
import sentencepiece
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).resolve().parent
GREEDY_TOKENS = 48
# A greedy choice must be clear enough that rounding cannot turn it.
SMALLEST_GREEDY_MARGIN = 5e-3


@dataclass
class Variant:
    name: str
    what: str
    config: dict = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    style: int = 5  # config.json as this major version of Transformers writes it
    shard: str = "1GB"
    prompt: int = 70  # crosses two borders of 32-token pages
    greedy: bool = False
    byte_fallback: bool = False


LLAMA3_ROPE = {  # wavelengths of head_dim 16 fall into all three bands of a context of 64
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

VARIANTS = [
    Variant("mha", "as many key/value heads as heads; byte-fallback tokenizer", {"vocab_size": 304},
            greedy=True, byte_fallback=True),
    Variant("gqa", "two heads share a key/value head; 200 tokens",
            {"num_key_value_heads": 2, "num_hidden_layers": 3}, prompt=200, greedy=True),
    Variant("tied", "the output matrix is the embedding table", {"tie_word_embeddings": True}),
    Variant("rope_linear", "linear rope scaling, rope_parameters",
            {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    Variant("rope_linear_v4", "linear rope scaling, rope_scaling with the key \"type\"",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 20000.0}},
            style=4),
    Variant("rope_llama3", "llama3 rope scaling, rope_parameters",
            {"head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
             "eos_token_id": [2, 6],
             "rope_parameters": {**LLAMA3_ROPE, "rope_theta": 10000.0}}, prompt=100),
    Variant("rope_llama3_v4", "llama3 rope scaling, rope_scaling and rope_theta",
            {"head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 2,
             "rope_parameters": {**LLAMA3_ROPE, "rope_theta": 50000.0}}, style=4, prompt=100),
    Variant("head_dim", "head_dim is not hidden / heads", {"head_dim": 16}),
    Variant("head_dim_20", "head_dim 20, four heads over one key/value head",
            {"head_dim": 20, "num_key_value_heads": 1}),
    Variant("sharded", "bfloat16 in several files", {"num_key_value_heads": 2},
            dtype=torch.bfloat16, shard="24KB"),
    Variant("f16", "float16, config.json of Transformers 4", {"num_key_value_heads": 2},
            dtype=torch.float16, style=4),
    Variant("attention_bias", "biases of all four attention projections",
            {"num_key_value_heads": 2, "attention_bias": True}),
    Variant("odd_vocab", "a vocabulary that is no multiple of 8; rms_norm_eps 1e-6",
            {"vocab_size": 131, "rms_norm_eps": 1e-6}),
]

BASE = {
    "vocab_size": 136,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def randomize(model, generator):
    """Weights of a size that makes attention uneven and logits of a few units."""
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 0.5 + torch.rand(weight.shape, generator=generator)
        elif name.endswith(".bias"):
            value = 0.3 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            value = 0.5 * noise
        else:
            value = 1.3 * noise / weight.shape[1] ** 0.5
        weight.data.copy_(value)


def as_transformers_4(config):
    """Rewrites a config.json of Transformers 5 as version 4 wrote it."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.get("rope_type", "default")
    if kind == "linear":  # the key's name before 4.43
        rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.46.0"
    return config


def greedy_tokens(model, prompt):
    ids, margin = list(prompt), float("inf")
    for _ in range(GREEDY_TOKENS):
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        best = torch.topk(logits, 2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        ids.append(best.indices[0].item())
    return ids[len(prompt):], margin


def make_tokenizer(vocab, byte_fallback):
    numbers = "one two three four five six seven eight nine ten".split()
    text = [f"{a} and {b} make {c}, said the {d}." for a in numbers for b in numbers
            for c in ("more", "less") for d in ("cat", "dog", "Bird")]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=model, vocab_size=vocab, model_type="bpe",
        byte_fallback=byte_fallback, character_coverage=1.0, normalization_rule_name="identity",
        remove_extra_whitespaces=False, num_threads=1, minloglevel=2)
    return model.getvalue()


def make(variant, index):
    folder = HERE / variant.name
    shutil.rmtree(folder, ignore_errors=True)
    config = LlamaConfig(**{**BASE, **variant.config})
    generator = torch.Generator().manual_seed(1000 + index)
    with torch.device("cpu"):
        model = LlamaForCausalLM(config)
    randomize(model, generator)
    model.to(variant.dtype).save_pretrained(folder, max_shard_size=variant.shard)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if variant.style == 4:
        path = folder / "config.json"
        path.write_text(json.dumps(as_transformers_4(json.loads(path.read_text())), indent=2,
                                   sort_keys=True) + "\n")
    tokenizer = make_tokenizer(300 if variant.byte_fallback else 90, variant.byte_fallback)
    (folder / "tokenizer.model").write_bytes(tokenizer)

    # From the files, so that the golden logits are those of what was stored.
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                             attn_implementation="eager").eval()
    vocab = model.config.vocab_size
    for attempt in range(200):
        tokens = [1] + torch.randint(0, vocab, (variant.prompt - 1,), generator=generator).tolist()
        if not variant.greedy:
            break
        continuation, margin = greedy_tokens(model, tokens)
        if margin > SMALLEST_GREEDY_MARGIN and len(set(continuation)) > GREEDY_TOKENS // 3:
            numpy.array(continuation, "<i4").tofile(folder / "greedy.i32")
            break
    else:
        raise SystemExit(f"{variant.name}: no prompt has a clear greedy continuation")
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    assert logits.shape == (variant.prompt, vocab) and logits.dtype == torch.float32
    numpy.array(tokens, "<i4").tofile(folder / "tokens.i32")
    logits.numpy().astype("<f4").tofile(folder / "logits.f32")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{variant.name:16} {size:8} bytes  largest logit {logits.abs().max():.2f}")
    return {"name": variant.name, "what": variant.what, "tokens": variant.prompt, "vocab": vocab,
            "greedy": GREEDY_TOKENS if variant.greedy else 0,
            "dtype": str(variant.dtype).removeprefix("torch."), "config_style": variant.style}


def main():
    torch.set_num_threads(1)
    manifest = {
        "made_by": "tests/golden/make_golden.py",
        "versions": {module.__name__: module.__version__
                     for module in (torch, transformers, sentencepiece, safetensors, numpy)},
        "variants": [make(variant, index) for index, variant in enumerate(VARIANTS)],
    }
    (HERE / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main()
