#!/usr/bin/env python3
"""Makes seeds of model_file_fuzz of model files: what describes the model, and one small tensor.

    python3 tests/fuzz/make_model_seeds.py NAME=MODEL.bin ...      (writes into corpus/model_file/)

A seed says of a feature what no other says: an EAGLE head, distances between tokens, several ropes.
The fuzzer makes the checksums right and the bytes after the table, so neither is in the file.
"""

import json
import struct
import sys
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus" / "model_file"
HEAD = struct.Struct("<8sIIQQQQQQ")  # src/model_file/layout.h
ENTRY = struct.Struct("<96sII4QQQQ96x")
TENSOR_BYTES = 16
TABLE_ALIGNMENT, TENSOR_ALIGNMENT = 64, 4096


def align_up(value, alignment):
    return -(-value // alignment) * alignment


def seed_of(model_file):
    data = Path(model_file).read_bytes()
    magic, version, _, header_bytes, *_ = HEAD.unpack_from(data)
    header = json.loads(data[HEAD.size : HEAD.size + header_bytes])
    text = json.dumps({"model": header["model"]}, separators=(",", ":"), ensure_ascii=False).encode()
    types = {entry[0].rstrip(b"\0"): entry[1] for entry in ENTRY.iter_unpack(table_of(data))}
    table = align_up(HEAD.size + len(text), TABLE_ALIGNMENT)
    offset = align_up(table + ENTRY.size, TENSOR_ALIGNMENT)
    head = HEAD.pack(magic, version, 1, len(text), table, offset + TENSOR_BYTES, 0, 0, 0)
    entry = ENTRY.pack(b"tokenizer", types[b"tokenizer"], 1, TENSOR_BYTES, 0, 0, 0, offset, TENSOR_BYTES, 0)
    return (head + text).ljust(table, b"\0") + entry


def table_of(data):
    _, _, n_tensors, _, table, *_ = HEAD.unpack_from(data)
    return data[table : table + n_tensors * ENTRY.size]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for argument in sys.argv[1:]:
        name, _, model_file = argument.partition("=")
        (CORPUS / name).write_bytes(seed_of(model_file))


if __name__ == "__main__":
    main()
