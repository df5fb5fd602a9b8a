"""Compares the rate of translations with CTranslate2's, on the CPU, and with Transformers', on a GPU.

    python3 tests/peers/translation.py BUILD [--shapes opus nllb] [--beams 1 4] [--dtypes f32 int8] [--sentences 256] [--runs 2]
    python3 tests/peers/translation.py BUILD --device cuda --shapes opus --beams 4 --dtypes f16 --sentences 10000

Models have random weights, made by Transformers with the shapes of OPUS-MT base (Marian, 6 + 6 layers of 512, 58,101 tokens) and
NLLB-200-distilled-600M (12 + 12 layers of 1,024, 256,206 tokens), and are converted for each program. Sources are of mixed
lengths, 4 to 64 tokens, half of them under 20; answers have 32 tokens each, ends of text being ruled out, as random weights
end nowhere: all answers of one length are what batches that wait for their longest one like best. All are given token ids,
and all processors; models are loaded before. Each runs with the best of several batch sizes; programs take turns, and the
best of RUNS counts. Needs torch, transformers, sentencepiece and, on the CPU, ctranslate2.
"""

import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import tempfile
import time

import sentencepiece
import torch
import transformers

NEW_TOKENS = 32
PROCESSORS = len(os.sched_getaffinity(0))
SHAPES = {
    "opus": lambda: transformers.MarianConfig(
        vocab_size=58101, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, max_position_embeddings=512, activation_function="swish",
        scale_embedding=True, pad_token_id=58100, eos_token_id=0, decoder_start_token_id=58100, forced_eos_token_id=None),
    "nllb": lambda: transformers.M2M100Config(
        vocab_size=256206, d_model=1024, encoder_layers=12, decoder_layers=12, encoder_attention_heads=16,
        decoder_attention_heads=16, encoder_ffn_dim=4096, decoder_ffn_dim=4096, max_position_embeddings=1024,
        activation_function="relu", scale_embedding=True, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=2),
}
END = {"opus": 0, "nllb": 2}


def tokens_of(shape):
    """A vocabulary of words that mean nothing, with the marks that the family's tokenizer wants."""
    config = SHAPES[shape]()
    texts = [f"w{i}" for i in range(config.vocab_size)]
    known = {"opus": {0: "</s>", 1: "<unk>", 58100: "<pad>"},
             "nllb": {0: "<s>", 1: "<pad>", 2: "</s>", 3: "<unk>", 256205: "__en__"}}[shape]
    for i, text in known.items():
        texts[i] = text
    return texts


def make_checkpoint(shape, folder):
    torch.manual_seed(1)
    config = SHAPES[shape]()
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    model.generation_config.bad_words_ids = model.generation_config.forced_eos_token_id = None
    model.save_pretrained(folder)
    # A tokenizer of a few pieces; the rest of the vocabulary is never found in a text.
    name = "source.spm" if shape == "opus" else "sentencepiece.bpe.model"
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["w1 w2 w3"]), model_prefix=str(folder / name), vocab_size=10,
                                             hard_vocab_limit=False, minloglevel=2)
    (folder / f"{name}.model").rename(folder / name)
    (folder / f"{name}.vocab").unlink()
    texts = tokens_of(shape)
    n_words = len(texts) - (1 if shape == "nllb" else 0)  # a language comes after the vocabulary
    (folder / "vocab.json").write_text(json.dumps({text: i for i, text in enumerate(texts[:n_words])}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"additional_special_tokens": ["__en__"]} if shape == "nllb" else {}))


def make_sources(shape, count):
    draw = random.Random(1)
    vocab = SHAPES[shape]().vocab_size
    lengths = [draw.choice([draw.randint(4, 20), draw.randint(20, 64)]) for _ in range(count)]
    return [[draw.randrange(4, vocab - 2) for _ in range(length - 1)] + [END[shape]] for length in lengths]


class Ours:
    def __init__(self, build, folder, dtype, sources, device):
        self.build, self.device, self.name = build, device, f"FastStream {dtype}"
        self.model, self.batch = folder.with_suffix(f".{dtype}.bin"), folder.with_suffix(".jsonl")
        if not self.model.exists():
            subprocess.run([build / "faststream-convert", folder, "-o", self.model, "--dtype", dtype, "--quiet"], check=True)
        self.out = self.model.with_suffix(".out")
        self.sources, self.best_slots = sources, {}

    def seconds(self, beams):
        if beams not in self.best_slots:  # found with a quarter of the sentences
            sizes = (2048, 4096, 8192) if self.device == "cuda" else (64, 128, 256)
            self.best_slots[beams] = min(sizes, key=lambda slots: self.run(beams, slots, self.sources[::4]))
        self.best = f"{self.best_slots[beams]} slots"
        return self.run(beams, self.best_slots[beams], self.sources)

    def run(self, beams, slots, sources):
        """Seconds without loading, as the program says."""
        self.batch.write_text("".join(json.dumps({"prompt": ids}) + "\n" for ids in sources))
        self.out.unlink(missing_ok=True)
        run = subprocess.run([self.build / "faststream-run", "-m", self.model, "--batch", self.batch, "-o", self.out, "--ignore-eos",
                              "-n", str(NEW_TOKENS), "--beams", str(beams), "--slots", str(slots), "--device", self.device,],
                             capture_output=True, text=True)
        if run.returncode != 0:
            raise SystemExit(run.stderr)
        return float(re.search(r"tokens in ([0-9.]+) s", run.stderr)[1])


class CTranslate2:
    def __init__(self, folder, dtype, shape, sources):
        import ctranslate2
        from ctranslate2.converters import transformers as converters

        self.name = f"CTranslate2 {ctranslate2.__version__} {dtype}"
        texts = tokens_of(shape)
        converted = folder.with_suffix(".ct2")
        if not converted.exists():
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
            loader = (converters.MarianMTLoader if shape == "opus" else converters.M2M100Loader)()
            spec = loader.get_model_spec(model)
            # Of Marian's it takes the last token, <pad>, away: that is but a zero vector to begin with.
            vocabulary = texts[:-1] if shape == "opus" else texts
            for register in (spec.register_source_vocabulary, spec.register_target_vocabulary):
                register(list(vocabulary))
            spec.config.bos_token = spec.config.eos_token = spec.config.decoder_start_token = "</s>"
            spec.config.unk_token = "<unk>"
            spec.config.add_source_eos = False
            spec.validate()
            converted.mkdir()
            spec.save(str(converted))
        compute = {"f32": "float32", "int8": "int8"}[dtype]
        self.ways, self.best_way = {}, {}
        cores = PROCESSORS
        for inter in {1, cores}:
            self.ways[inter] = ctranslate2.Translator(str(converted), device="cpu", compute_type=compute, inter_threads=inter,
                                                      intra_threads=cores // inter)
        self.sources = [[texts[i] for i in ids] for ids in sources]

    def seconds(self, beams):
        def run(way, sources):
            start = time.perf_counter()
            results = self.ways[way[0]].translate_batch(sources, beam_size=beams, max_batch_size=way[1], batch_type="examples",
                                                        min_decoding_length=NEW_TOKENS, max_decoding_length=NEW_TOKENS)
            assert all(len(result.hypotheses[0]) == NEW_TOKENS for result in results)
            return time.perf_counter() - start

        if beams not in self.best_way:  # found with a quarter of the sentences
            ways = [(inter, size) for inter in self.ways for size in (32, 64)]
            self.best_way[beams] = min(ways, key=lambda way: run(way, self.sources[::4]))
        self.best = "{} at once, batches of {}".format(*self.best_way[beams])
        return run(self.best_way[beams], self.sources)


class Transformers:
    """generate() in batches by length, with the longest batch that is still faster."""

    def __init__(self, folder, dtype, sources, pad):
        kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
        self.name = f"Transformers {transformers.__version__} {dtype}"
        self.model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=kind).cuda().eval()
        self.sources, self.pad = sorted(sources, key=len), pad

    @torch.inference_mode()
    def run(self, size, beams, sources):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for first in range(0, len(sources), size):
            batch = sources[first : first + size]
            longest = max(map(len, batch))
            ids = torch.tensor([ids + [self.pad] * (longest - len(ids)) for ids in batch]).cuda()
            mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in batch]).cuda()
            out = self.model.generate(input_ids=ids, attention_mask=mask, num_beams=beams, min_new_tokens=NEW_TOKENS,
                                      max_new_tokens=NEW_TOKENS)
            assert out.shape[1] == NEW_TOKENS + 1
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def seconds(self, beams):
        """Finds the best size on an even sample, then runs all."""
        rates = {}
        for size in (64, 256, 512, 1024, 2048):
            sample = self.sources[:: max(1, len(self.sources) // size)][:size]
            try:
                self.run(size, beams, sample)
                rates[size] = len(sample) / self.run(size, beams, sample)
            except torch.cuda.OutOfMemoryError:
                break
            if len(sample) < size:
                break
        size = max(rates, key=rates.get)
        self.best = f"batches of {size}"
        return self.run(size, beams, self.sources)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--beams", nargs="+", type=int, default=[4, 1])
    parser.add_argument("--dtypes", nargs="+", default=["f32", "int8"])
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=pathlib.Path, help="where models are made, and kept")
    options = parser.parse_args()
    work = options.work or pathlib.Path(tempfile.mkdtemp())
    torch.set_num_threads(PROCESSORS)
    for shape in options.shapes:
        folder = work / shape
        if not folder.exists():
            folder.mkdir(parents=True)
            make_checkpoint(shape, folder)
        sources = make_sources(shape, options.sentences)
        for dtype in options.dtypes:
            ours = Ours(options.build.resolve(), folder, dtype, sources, options.device)
            if options.device == "cuda":
                peer = Transformers(folder, dtype, sources, SHAPES[shape]().pad_token_id)
            else:
                peer = CTranslate2(folder, dtype, shape, sources)
            for beams in options.beams:
                best = {}
                for _ in range(options.runs):
                    for each in (ours, peer):
                        best[each] = min(best.get(each, float("inf")), each.seconds(beams))
                rate = {each: len(sources) * NEW_TOKENS / seconds for each, seconds in best.items()}
                print(f"{shape} {dtype}, {beams} beams, {len(sources)} sentences: {ours.name} {rate[ours]:.0f} tokens/s ({ours.best}), "
                      f"{peer.name} {rate[peer]:.0f} ({peer.best}): {rate[ours] / rate[peer]:.2f} times", flush=True)


if __name__ == "__main__":
    main()
