#!/usr/bin/env python3
"""Makes the GGUF golden data of tests/golden/gguf/ with PyPI's gguf: blocks of every element type with
what they decode to, and golden checkpoints as GGUF files.

Run with gguf 0.19.0, numpy 2.4.6, torch, safetensors 0.8.0 and sentencepiece 0.2.3:

    tests/golden/make_gguf_golden.py

TYPE.blocks     blocks of the element type, random but for their scales
TYPE.f32        float32: what gguf.quants.dequantize makes of them
gqa-*.gguf      the checkpoint "gqa" in float32, in two parts
rope_llama3_q8_0.gguf   the checkpoint "rope_llama3", its matrices in Q8_0
"""

import json
import shutil
from pathlib import Path

import gguf
import numpy
import sentencepiece
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parent
OUT = HERE / "gguf"

# Where blocks keep their half-precision scales.
HALF_SCALES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
    Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.MXFP4: [],
}
# Usual ones, and the largest, the smallest normal and subnormal ones, and zeros of both signs.
SCALES = [0.0123, -0.0123, 65504, -65504, 6.104e-05, 5.96e-08, 0.0, -0.0]


def make_blocks(kind, generator):
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = generator.integers(0, 256, (len(SCALES), size), dtype=numpy.uint8)
    for number, offset in enumerate(HALF_SCALES[kind]):
        scales = numpy.roll(numpy.array(SCALES, numpy.float16), number)
        blocks[:, offset:offset + 2] = scales.reshape(-1, 1).view(numpy.uint8)
    if kind == Type.MXFP4:
        blocks[:, 0] = [0, 1, 2, 100, 127, 130, 253, 254]
    blocks.tofile(OUT / f"{kind.name}.blocks")
    gguf.quants.dequantize(blocks, kind).astype("<f4").tofile(OUT / f"{kind.name}.f32")


NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[rest]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def permuted(weight, heads):
    """The order of rows that llama.cpp's converter gives Q and K."""
    shape = (heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return numpy.ascontiguousarray(weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape))


def llama3_factors(rope, head_dim):
    """What llama.cpp's converter writes as rope_freqs.weight."""
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * numpy.pi * rope["rope_theta"] ** (i / head_dim)
        context, factor = rope["original_max_position_embeddings"], rope["factor"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if wavelength < context / high:
            factors.append(1)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return numpy.array(factors, numpy.float32)


def add_tokenizer(writer, path, config):
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    size = pieces.get_piece_size()
    types = [gguf.TokenType.UNKNOWN if pieces.is_unknown(i)
             else gguf.TokenType.CONTROL if pieces.is_control(i)
             else gguf.TokenType.BYTE if pieces.is_byte(i) else gguf.TokenType.NORMAL
             for i in range(size)]
    padding = range(size, config["vocab_size"])  # as llama.cpp's converter pads
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([pieces.id_to_piece(i) for i in range(size)]
                          + [f"[PAD{i}]" for i in padding])
    writer.add_token_scores([pieces.get_score(i) for i in range(size)] + [-1000.0 for _ in padding])
    writer.add_token_types(types + [gguf.TokenType.UNUSED for _ in padding])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages[0]['content'] }}")


def write_model(variant, path, kind, **split):
    folder = HERE / variant
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama", **split)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    add_tokenizer(writer, folder / "tokenizer.model", config)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, config["head_dim"]))
    for name, weight in load_file(folder / "model.safetensors").items():
        if "q_proj" in name:
            weight = permuted(weight, config["num_attention_heads"])
        if "k_proj" in name:
            weight = permuted(weight, config["num_key_value_heads"])
        if weight.ndim == 2 and kind != Type.F32:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    generator = numpy.random.default_rng(13)
    with numpy.errstate(over="ignore", invalid="ignore"):
        for kind in HALF_SCALES:
            make_blocks(kind, generator)
    write_model("gqa", OUT / "gqa.gguf", Type.F32, split_max_tensors=16)
    write_model("rope_llama3", OUT / "rope_llama3_q8_0.gguf", Type.Q8_0)


if __name__ == "__main__":
    main()
