"""Compares an encoder's vectors, and the time they take, with sentence-transformers, ONNX Runtime and CTranslate2.

    python3 tests/peers/embeddings.py BUILD FOLDER [--texts FILE] [--count 1000] [--runs 3]
    python3 tests/peers/embeddings.py BUILD FOLDER --device cuda --count 10000 --dtypes f16

FOLDER is a checkpoint as sentence-transformers has them, such as all-MiniLM-L6-v2; FILE has a text a line (by default there
are COUNT texts of mixed lengths, made of demo/eval/heldout.txt). The f32 vectors must be within 1e-5 of those of
sentence-transformers in float32, and those of other types must have a cosine of at least 0.999 with them. Then all run in turn, RUNS times, on all processors, models loaded before; the best time
of each counts, and the processor time beside it (ours with loading), which other programs of a busy machine change less. Peers
take texts in batches by length, of the best of several sizes. ONNX Runtime runs torch's export of the model, CTranslate2 its
own; what is not installed is left out. Last come texts of 3 to 128 tokens at random beside as many tokens in texts of one
length: what padding would cost. Needs sentence-transformers, torch and numpy.
"""

import argparse
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

PROCESSORS = len(os.sched_getaffinity(0))


def default_texts(count):
    """Texts of one to eight sentences."""
    text = (pathlib.Path(__file__).parents[2] / "demo/eval/heldout.txt").read_text()
    sentences = [s.strip() for s in re.split(r"(?<=[.!?])\s+", text) if len(s.strip()) > 8]
    draw = random.Random(1)
    texts = []
    for _ in range(count):
        first = draw.randrange(len(sentences) - 8)
        texts.append(" ".join(sentences[first : first + draw.choice([1, 1, 1, 2, 2, 3, 5, 8])]).replace("\n", " "))
    return texts


class Ours:
    def __init__(self, build, folder, work, dtype, device):
        self.build, self.work, self.dtype, self.device, self.name = build, work, dtype, device, f"FastStream {dtype}"
        self.model = work / f"{dtype}.bin"
        subprocess.run([build / "faststream-convert", folder, "-o", self.model, "--dtype", dtype, "--quiet"], check=True)

    def embed(self, texts):
        """Vectors, and the seconds that the program says it took without loading."""
        (self.work / "texts").write_text("".join(text + "\n" for text in texts))
        (self.work / "out.npy").unlink(missing_ok=True)
        run = subprocess.run([self.build / "faststream-run", "-m", self.model, "--embed", "--batch", self.work / "texts",
                              "--format", "npy", "-o", self.work / "out.npy", "--stats", "--device", self.device],
                             check=True, capture_output=True, text=True)
        seconds = float(re.search(r"tokens in ([0-9.]+) s", run.stderr)[1])
        return numpy.load(self.work / "out.npy"), seconds


class Peer:
    """Texts sorted by length in batches of the best of a few sizes, as its users do."""

    sizes = (16, 32, 64)

    def choose_size(self, texts):
        seconds = {}
        for size in self.sizes:
            start = time.perf_counter()
            self.embed_in_batches(texts[:512], size)
            seconds[size] = time.perf_counter() - start
        self.size = min(seconds, key=seconds.get)

    def embed(self, texts):
        start = time.perf_counter()
        vectors = self.embed_in_batches(texts, self.size)
        return vectors, time.perf_counter() - start


class SentenceTransformers(Peer):
    """It sorts by length itself."""

    def __init__(self, folder, device, kind):
        self.name = f"sentence-transformers, PyTorch {kind}"
        self.model = SentenceTransformer(str(folder), device=device, local_files_only=True,
                                         model_kwargs={"torch_dtype": getattr(torch, kind)})
        if device == "cuda":
            self.sizes = (64, 256, 1024)

    def embed_in_batches(self, texts, size):
        return self.model.encode(texts, batch_size=size, convert_to_numpy=True, show_progress_bar=False).astype(numpy.float32)


class TokenBatches(Peer):
    """Mean pooling over what hidden_states(ids of a batch) gives."""

    def embed_in_batches(self, texts, size):
        ids = self.tokenizer(texts, truncation=True, max_length=self.max_tokens)["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        vectors = [None] * len(ids)
        for first in range(0, len(order), size):
            batch = order[first : first + size]
            hidden = self.hidden_states([ids[i] for i in batch])
            for row, i in enumerate(batch):
                mean = hidden[row, : len(ids[i])].astype(numpy.float32).mean(0)
                vectors[i] = mean / numpy.linalg.norm(mean)
        return numpy.stack(vectors)


class CTranslate2(TokenBatches):
    def __init__(self, folder, work, tokenizer, max_tokens, compute_type):
        import ctranslate2
        import ctranslate2.converters

        self.name = f"CTranslate2 {ctranslate2.__version__} {compute_type}"
        converted = work / "ctranslate2"
        if not converted.exists():
            ctranslate2.converters.TransformersConverter(str(folder)).convert(str(converted))
        self.encoder = ctranslate2.Encoder(str(converted), device="cpu", compute_type=compute_type,
                                           intra_threads=PROCESSORS)
        self.tokenizer, self.max_tokens = tokenizer, max_tokens

    def hidden_states(self, ids):
        return numpy.array(self.encoder.forward_batch(ids).last_hidden_state)


class OnnxRuntime(TokenBatches):
    def __init__(self, transformer, work, tokenizer, max_tokens):
        import onnxruntime

        self.name = f"ONNX Runtime {onnxruntime.__version__} float32"
        ones = torch.ones(2, 8, dtype=torch.int64)

        class Hidden(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.transformer = transformer

            def forward(self, ids, mask, kinds):
                return self.transformer(input_ids=ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state

        names = ["ids", "mask", "kinds"]
        torch.onnx.export(Hidden().eval(), (ones, ones, 0 * ones), str(work / "model.onnx"), input_names=names, output_names=["hidden"],
                          dynamic_axes={name: {0: "texts", 1: "tokens"} for name in [*names, "hidden"]}, dynamo=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = PROCESSORS
        self.session = onnxruntime.InferenceSession(str(work / "model.onnx"), options, providers=["CPUExecutionProvider"])
        self.tokenizer, self.max_tokens = tokenizer, max_tokens

    def hidden_states(self, ids):
        longest = max(map(len, ids))
        padded = numpy.array([row + [0] * (longest - len(row)) for row in ids])
        mask = numpy.array([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
        return self.session.run(None, {"ids": padded, "mask": mask, "kinds": 0 * padded})[0]


def compare_lengths(ours, runs):
    """Tokens/s of texts of 3 to 128 tokens, special ones included, and of as many in texts of one length."""
    draw = random.Random(2)
    lengths = [draw.randint(3, 128) for _ in range(8192 if ours.device == "cuda" else 512)]
    mean = sum(lengths) / len(lengths)
    rate = {}
    for name, counts in (("random", lengths), ("equal", [round(mean)] * len(lengths))):
        texts = [" ".join(["the"] * (n - 2)) for n in counts]
        rate[name] = sum(counts) / min(ours.embed(texts)[1] for _ in range(runs))
    print(f"{ours.name}: lengths of 3 to 128 at random {rate['random']:.0f} tokens/s, all of {round(mean)} {rate['equal']:.0f}: "
          f"{rate['random'] / rate['equal']:.3f}")


def processor_seconds():
    """Of this process and those that it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def cosines(a, b):
    return (a * b).sum(1) / numpy.linalg.norm(a, axis=1) / numpy.linalg.norm(b, axis=1)


def peers_on_cpu(folder, work, reference):
    transformer = reference.model[0].auto_model
    makers = [lambda: OnnxRuntime(transformer, work, reference.model.tokenizer, reference.model.max_seq_length)]
    for kind in ("float32", "int8"):
        makers.append(lambda kind=kind: CTranslate2(folder, work, reference.model.tokenizer, reference.model.max_seq_length, kind))
    for make in makers:
        try:
            yield make()
        except Exception as error:  # not installed, or not its kind of model
            print(f"without a peer: {error}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--texts", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", nargs="+", default=["f32", "bf16", "int8"])
    options = parser.parse_args()
    texts = options.texts.read_text().splitlines() if options.texts else default_texts(options.count)
    torch.set_num_threads(PROCESSORS)
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        all_of_ours = [Ours(options.build.resolve(), options.folder, work, dtype, options.device) for dtype in options.dtypes]
        reference = SentenceTransformers(options.folder, options.device, "float32")
        peers = [reference]
        if options.device == "cuda":
            peers.append(SentenceTransformers(options.folder, options.device, "float16"))
        else:
            peers.extend(peers_on_cpu(options.folder, work, reference))
        for peer in peers:
            peer.choose_size(texts)
        expected, _ = reference.embed(texts)
        best, processor = {}, {}
        for _ in range(options.runs):
            for each in all_of_ours + peers:
                before = processor_seconds()
                vectors, seconds = each.embed(texts)
                used = processor_seconds() - before
                best[each] = min(best.get(each, seconds), seconds)
                processor[each] = min(processor.get(each, used), used)
                difference = numpy.abs(vectors - expected).max()
                cosine = cosines(vectors, expected)
                each.result = f"largest difference {difference:.1e}, cosine {cosine.min():.5f} and more, {cosine.mean():.5f} on average"
                if isinstance(each, Ours):
                    failed |= difference > 1e-5 if each.dtype == "f32" else cosine.min() < 0.999
        print(json.dumps({"texts": len(texts), "device": options.device, "processors": PROCESSORS, "runs": options.runs}))
        for each in all_of_ours + peers:
            print(f"{each.name:42} {len(texts) / best[each]:8.1f} texts/s  {processor[each]:6.2f} s of processors  {each.result}")
        for ours in all_of_ours:
            compare_lengths(ours, options.runs)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
