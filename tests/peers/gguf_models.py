"""Small GGUF files of the architecture llama around a vocabulary or a matrix, for the scripts here."""

import gguf
import numpy


def write_llama(path, vocab, hidden, add_tokenizer, embedding=None):
    """One layer of zeros. `add_tokenizer` adds the metadata; `embedding`: raw bytes of the matrix
    [vocab, hidden] and their type, or zeros in F16."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    add_tokenizer(writer)
    if embedding is None:
        embedding = (numpy.zeros((vocab, hidden), numpy.float16), None)
    writer.add_tensor("token_embd.weight", embedding[0], raw_dtype=embedding[1])
    shapes = {"attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_q": (hidden, hidden),
              "attn_k": (hidden, hidden), "attn_v": (hidden, hidden), "attn_output": (hidden, hidden),
              "ffn_gate": (32, hidden), "ffn_up": (32, hidden), "ffn_down": (hidden, 32)}
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", numpy.zeros(shape, numpy.float32))
    writer.add_tensor("output_norm.weight", numpy.zeros(hidden, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
