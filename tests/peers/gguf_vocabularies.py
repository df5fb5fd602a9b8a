"""Compares tokenizers of GGUF files with llama.cpp's own tests, the ids that its repository keeps for its vocabularies.

    pip download --no-binary :all: --no-deps llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz
    python3 tests/peers/gguf_vocabularies.py llama_cpp_python-*/vendor/llama.cpp/models BUILD

Each ggml-vocab-NAME.gguf is put into a small model, which faststream-convert packs; every text of its .inp must give the
ids of its .out. Vocabularies without texts must convert. Needs gguf. Nothing of the vocabularies is part of this project.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
from gguf_models import write_llama

SEPARATOR = "\n__ggml_vocab_test__\n"
# The texts are tokenized without special tokens around them.
AROUND = {"add_bos_token", "add_eos_token", "add_sep_token"}


def add_tokenizer(writer, fields):
    for key, field in fields.items():
        if key.startswith("tokenizer.") and key.rsplit(".", 1)[-1] not in AROUND:
            kind = field.types[0]
            element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, element)
    for name in AROUND:
        writer.add_bool(f"tokenizer.ggml.{name}", False)


def convert(vocabulary, build, folder):
    fields = gguf.GGUFReader(vocabulary).fields
    size = len(fields["tokenizer.ggml.tokens"].data)
    source, model = folder / "m.gguf", folder / "m.bin"
    write_llama(source, size, 32, lambda writer: add_tokenizer(writer, fields))
    run = subprocess.run([build / "faststream-convert", source, "-o", model, "--force", "--quiet"],
                         capture_output=True, text=True, check=False)
    return model if run.returncode == 0 else run.stderr.strip()


def tokenize(build, model, text, folder):
    path = folder / "text"
    path.write_bytes(text.encode() + b"\n")  # one newline at the end is dropped
    command = [build / "faststream-run", "-m", model, "-f", path, "--tokenize"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(run.stdout) if run.returncode == 0 else run.stderr.strip()


def differences(vocabulary, build, folder):
    """How many texts differ, and how many there are."""
    model = convert(vocabulary, build, folder)
    if isinstance(model, str):
        print(f"  {model}")
        return 1, 0
    texts_path = pathlib.Path(f"{vocabulary}.inp")
    if not texts_path.exists():
        return 0, 0
    texts = texts_path.read_bytes().decode().split(SEPARATOR)
    expected = pathlib.Path(f"{vocabulary}.out").read_text().split("\n")
    n_different = 0
    for text, line in zip(texts, expected):
        ids = tokenize(build, model, text, folder)
        if ids != [int(word) for word in line.split()]:
            print(f"  {text!r}: {ids} instead of {line}")
            n_different += 1
    return n_different, len(texts)


def main():
    models, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    total = 0
    for vocabulary in sorted(models.glob("ggml-vocab-*.gguf")):
        with tempfile.TemporaryDirectory() as folder:
            n_different, n = differences(vocabulary, build, pathlib.Path(folder))
        print(f"{vocabulary.name}: {n} texts, {n_different} different")
        total += n_different
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
