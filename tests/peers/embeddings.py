"""Compares an encoder's vectors, and the time they take, with sentence-transformers and CTranslate2.

    python3 tests/peers/embeddings.py BUILD FOLDER [TEXTS] [RUNS]

FOLDER is a checkpoint as sentence-transformers has them, such as all-MiniLM-L6-v2; TEXTS a file of lines (by default
1,000 sentences of mixed lengths, made of demo/eval/heldout.txt). The f32 vectors must be within 1e-5 of those of
sentence-transformers in float32, and those of bf16 must have a cosine of at least 0.999 with them, of INT8, whose
activations have eight bits too, 0.99. Then all run in turn, RUNS times (3 if not given), on all processors, models loaded
before; the best time of each counts, and the processor time beside it (ours with loading), which other programs of a busy
machine change less. CTranslate2 is left out where it is not installed or does not convert the model. Needs sentence-transformers, torch and numpy.
"""

import json
import os
import pathlib
import random
import re
import resource
import subprocess
import sys
import tempfile
import time

import numpy
import torch
from sentence_transformers import SentenceTransformer


def default_texts():
    """1,000 texts of one to eight sentences."""
    text = (pathlib.Path(__file__).parents[2] / "demo/eval/heldout.txt").read_text()
    sentences = [s.strip() for s in re.split(r"(?<=[.!?])\s+", text) if len(s.strip()) > 8]
    draw = random.Random(1)
    texts = []
    for _ in range(1000):
        first = draw.randrange(len(sentences) - 8)
        texts.append(" ".join(sentences[first : first + draw.choice([1, 1, 1, 2, 2, 3, 5, 8])]).replace("\n", " "))
    return texts


class Ours:
    def __init__(self, build, folder, work, dtype):
        self.build, self.work, self.name = build, work, f"FastStream {dtype}"
        self.model = work / f"{dtype}.bin"
        self.least_cosine = 0.99 if dtype == "int8" else 0.999
        subprocess.run([build / "faststream-convert", folder, "-o", self.model, "--dtype", dtype, "--quiet"], check=True)

    def embed(self, texts):
        """Vectors, and the seconds that the program says it took without loading."""
        (self.work / "texts").write_text("".join(text + "\n" for text in texts))
        (self.work / "out.npy").unlink(missing_ok=True)
        run = subprocess.run([self.build / "faststream-run", "-m", self.model, "--embed", "--batch", self.work / "texts",
                              "--format", "npy", "-o", self.work / "out.npy", "--stats", "--device", "cpu"],
                             check=True, capture_output=True, text=True)
        seconds = float(re.search(r"tokens in ([0-9.]+) s", run.stderr)[1])
        return numpy.load(self.work / "out.npy"), seconds


class SentenceTransformers:
    name = "sentence-transformers (PyTorch, float32)"

    def __init__(self, folder):
        self.model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)

    def embed(self, texts):
        start = time.perf_counter()
        vectors = self.model.encode(texts, batch_size=32, convert_to_numpy=True, show_progress_bar=False)
        return vectors, time.perf_counter() - start


class CTranslate2:
    """Its encoder, and mean pooling; texts sorted by length in batches, as its users do."""

    def __init__(self, folder, work, tokenizer, max_tokens, compute_type):
        import ctranslate2
        import ctranslate2.converters

        self.name = f"CTranslate2 {compute_type}"
        converted = work / "ctranslate2"
        if not converted.exists():
            ctranslate2.converters.TransformersConverter(str(folder)).convert(str(converted))
        self.encoder = ctranslate2.Encoder(str(converted), device="cpu", compute_type=compute_type,
                                           intra_threads=os.cpu_count())
        self.tokenizer, self.max_tokens = tokenizer, max_tokens

    def embed(self, texts):
        start = time.perf_counter()
        ids = self.tokenizer(texts, truncation=True, max_length=self.max_tokens)["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        vectors = [None] * len(ids)
        for first in range(0, len(order), 32):
            batch = order[first : first + 32]
            hidden = numpy.array(self.encoder.forward_batch([ids[i] for i in batch]).last_hidden_state)
            for row, i in enumerate(batch):
                mean = hidden[row, : len(ids[i])].astype(numpy.float32).mean(0)
                vectors[i] = mean / numpy.linalg.norm(mean)
        return numpy.stack(vectors), time.perf_counter() - start


def processor_seconds():
    """Of this process and those that it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def cosines(a, b):
    return (a * b).sum(1) / numpy.linalg.norm(a, axis=1) / numpy.linalg.norm(b, axis=1)


def main():
    build, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    texts = pathlib.Path(sys.argv[3]).read_text().splitlines() if len(sys.argv) > 3 else default_texts()
    runs = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    torch.set_num_threads(os.cpu_count())
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        peer = SentenceTransformers(folder)
        all_of_them = [Ours(build, folder, work, dtype) for dtype in ("f32", "bf16", "int8")] + [peer]
        for compute_type in ("float32", "int8"):
            try:
                all_of_them.append(CTranslate2(folder, work, peer.model.tokenizer, peer.model.max_seq_length,
                                               compute_type))
            except Exception as error:  # not installed, or not its kind of model
                print(f"without CTranslate2 {compute_type}: {error}")
        expected, _ = peer.embed(texts)
        best, processor = {}, {}
        for _ in range(runs):
            for each in all_of_them:
                before = processor_seconds()
                vectors, seconds = each.embed(texts)
                used = processor_seconds() - before
                best[each.name] = min(best.get(each.name, seconds), seconds)
                processor[each.name] = min(processor.get(each.name, used), used)
                difference = numpy.abs(vectors - expected).max()
                cosine = cosines(vectors, expected)
                each.result = f"largest difference {difference:.1e}, cosine {cosine.min():.5f} and more, {cosine.mean():.5f} on average"
                if isinstance(each, Ours):
                    failed |= not (difference < 1e-5 if each.name.endswith("f32") else cosine.min() >= each.least_cosine)
    print(json.dumps({"texts": len(texts), "processors": os.cpu_count(), "runs": runs}))
    for each in all_of_them:
        print(f"{each.name:40} {len(texts) / best[each.name]:8.1f} texts/s  {processor[each.name]:6.2f} s of "
              f"processors  {each.result}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
