"""Compares GGUF's element types, decoded, with PyPI's gguf on random blocks.

    python3 tests/peers/gguf_elements.py BUILD [ROWS]

For every type an embedding table of ROWS (4,096 if not given) rows of 256 random elements is converted to f32; the model
file must hold exactly the floats that gguf.quants.dequantize gives. Scales are any finite number in half precision. Needs
gguf and numpy.
"""

import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
from gguf import GGMLQuantizationType as Type
from gguf_models import write_llama

HIDDEN = 256
HALF_SCALES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
    Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.MXFP4: [],
}


def random_blocks(kind, rows, generator):
    n_elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (rows * HIDDEN // n_elements, size), dtype=numpy.uint8)
    for offset in HALF_SCALES[kind]:
        infinite = blocks[:, offset + 1] & 0x7C == 0x7C
        blocks[infinite, offset + 1] ^= 0x40
    if kind == Type.MXFP4:
        blocks[:, 0] = numpy.minimum(blocks[:, 0], 250)  # no infinity
    return blocks.reshape(rows, -1)


def add_tokenizer(writer, rows):
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>"] + [f"t{i}" for i in range(3, rows)])
    writer.add_token_scores([0.0] * rows)
    writer.add_token_types([2, 3, 3] + [1] * (rows - 3))


def main():
    build = pathlib.Path(sys.argv[1])
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 4096
    generator = numpy.random.default_rng()
    failed = False
    for kind in HALF_SCALES:
        blocks = random_blocks(kind, rows, generator)
        expected = gguf.quants.dequantize(blocks, kind).astype("<f4")
        with tempfile.TemporaryDirectory() as folder:
            source, model = pathlib.Path(folder) / "m.gguf", pathlib.Path(folder) / "m.bin"
            write_llama(source, rows, HIDDEN, lambda writer: add_tokenizer(writer, rows),
                        (blocks, kind))
            subprocess.run([build / "faststream-convert", source, "-o", model, "--dtype", "f32",
                            "--quiet"], check=True)
            equal = expected.tobytes() in model.read_bytes()
        print(f"{kind.name}: {expected.size} elements, {'equal' if equal else 'DIFFERENT'}")
        failed = failed or not equal
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
