"""Writes a Llama checkpoint of Hugging Face, of one file in bf16 and with a SentencePiece tokenizer as a GGUF file in F32, for peers that read nothing else.

    python3 tests/peers/llama_gguf.py demo/ demo.gguf

It needs gguf and sentencepiece.
"""

import json
import pathlib
import sys

import gguf
import numpy
import sentencepiece

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def interleaved(matrix, heads):
    """Rows of a head's halves by turns, as GGUF has Llama's queries and keys."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", f"{name}: {entry['dtype']}"
        begin, end = entry["data_offsets"]
        bits = numpy.frombuffer(data[8 + size + begin:8 + size + end], numpy.uint16).astype(numpy.uint32) << 16
        yield name.removesuffix(".weight"), bits.view(numpy.float32).reshape(entry["shape"])


def add_tokenizer(writer, folder):
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    kinds = [(pieces.IsUnknown, gguf.TokenType.UNKNOWN), (pieces.IsControl, gguf.TokenType.CONTROL),
             (pieces.IsByte, gguf.TokenType.BYTE)]
    ids = range(pieces.GetPieceSize())
    writer.add_tokenizer_model("llama")
    writer.add_token_list([pieces.IdToPiece(i) for i in ids])
    writer.add_token_scores([pieces.GetScore(i) for i in ids])
    writer.add_token_types([next((kind for is_kind, kind in kinds if is_kind(i)), gguf.TokenType.NORMAL) for i in ids])
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())


def main():
    folder = pathlib.Path(sys.argv[1])
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(sys.argv[2], "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    add_tokenizer(writer, folder)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, values in tensors(folder / "model.safetensors"):
        if name.startswith("model.layers."):
            layer, rest = name.removeprefix("model.layers.").split(".", 1)
            kind = NAMES[rest]
            writer.add_tensor(f"blk.{layer}.{kind}.weight",
                              interleaved(values, heads[kind]) if kind in heads else values)
        else:
            short = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
            writer.add_tensor(f"{short[name]}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
