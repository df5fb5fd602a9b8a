"""Writes a model of random weights for llama.cpp, of the shape that faststream-bench calls llama-1.1b.

    python3 random_gguf.py q8_0|q4_0|bf16 OUT.gguf

Needs numpy and gguf (0.19). The weights repeat a short random pattern: speeds do not depend on them. Types that gguf cannot
write, such as Q4_K_M, llama-quantize makes of the file in bf16.
"""

import sys

import gguf
import numpy as np

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 16, 2048, 32, 8, 64, 8192, 32000
TYPES = {
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
}

kind, path = sys.argv[1:]
weight_type, file_type = TYPES[kind]
pattern = np.random.default_rng(1).normal(0, 0.02, 1 << 20).astype(np.float32)
writer = gguf.GGUFWriter(path, "llama")


def weight(name, *shape):
    values = np.resize(pattern, shape)
    writer.add_tensor(name, gguf.quantize(values, weight_type), raw_dtype=weight_type)


def norm(name):
    writer.add_tensor(name, np.ones(HIDDEN, np.float32))


writer.add_block_count(LAYERS)
writer.add_context_length(4096)
writer.add_embedding_length(HIDDEN)
writer.add_feed_forward_length(FFN)
writer.add_head_count(HEADS)
writer.add_head_count_kv(KV_HEADS)
writer.add_rope_dimension_count(HEAD_DIM)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_vocab_size(VOCAB)
writer.add_file_type(file_type)
byte_tokens = [b"<0x%02X>" % byte for byte in range(256)]
other_tokens = [b"t%d" % i for i in range(VOCAB - 259)]
writer.add_tokenizer_model("llama")
writer.add_token_list([b"<unk>", b"<s>", b"</s>", *byte_tokens, *other_tokens])
writer.add_token_scores([0.0] * VOCAB)
writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(other_tokens))

weight("token_embd.weight", VOCAB, HIDDEN)
norm("output_norm.weight")
weight("output.weight", VOCAB, HIDDEN)
for layer in range(LAYERS):
    block = f"blk.{layer}."
    norm(block + "attn_norm.weight")
    weight(block + "attn_q.weight", HIDDEN, HIDDEN)
    weight(block + "attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
    weight(block + "attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
    weight(block + "attn_output.weight", HIDDEN, HIDDEN)
    norm(block + "ffn_norm.weight")
    weight(block + "ffn_gate.weight", FFN, HIDDEN)
    weight(block + "ffn_up.weight", FFN, HIDDEN)
    weight(block + "ffn_down.weight", HIDDEN, FFN)

writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
