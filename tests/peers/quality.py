"""Prints what quantization costs real models, by type: of ours, of llama.cpp and, simulated, of FP8.

    python3 tests/peers/quality.py [--ours BUILD] [--recipe OPTIONS]... [--device DEVICE] [--llama BIN] [--llama-type TYPE]...
        [--weights-only] [--calibration TEXT] [--simulate] [--by-tensor] TEXT MODEL.gguf...

TEXT is cut into windows of 512 tokens. A row compares a type with the same model in float32 and says the size of the file, the
bits a weight of its matrices, the Kullback-Leibler divergence from float32 in nats, mean and 99th percentile, how often the
likeliest token is the same, and the perplexity over float32's. What each option adds:

  --ours       files of faststream-convert, measured by faststream-run --perplexity --against. BUILD has the programs.
  --recipe     options of faststream-convert, as "--dtype int4 --keep down=int8": rows of these instead of the usual ones.
               --calibrate stands for --calibrate and the file of --calibration, --imatrix for --imatrix and what
               llama-imatrix makes of that file (with --llama). --kv and its format are faststream-run's.
  --device     of faststream-run, which is cpu unless this says another
  --llama      files of llama-quantize. llama.cpp rounds what products take, too, so it
               measures itself: llama-perplexity --kl-divergence. That counts the second half of each window only, which is
               the easier one; "weights" is the same file's weights (not activations) in float32, by FastStream, on all
               positions (with --ours). Bits a weight are llama-quantize's, which count the embedding table. BIN is its
               folder of programs, which the source package llama-cpp-python has:
               cmake -S vendor/llama.cpp -B B -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF
               cmake --build B --target llama-quantize llama-perplexity llama-imatrix
  --llama-type these types instead of the usual ones; "Q4_0+imatrix" takes llama-imatrix's of the file of --calibration.
  --weights-only  of llama.cpp's types "weights" alone
  --calibration  other text than TEXT, of the same language
  --simulate   PyTorch: both operands of each product are rounded and multiplied in float32, all else is float32.
                 FP8      e4m3, one scale a row of weights, one a token; the output matrix stays, as in FP8 checkpoints
                          for vLLM
                 int8     one scale a row of weights, one a token, the output matrix too: FastStream's arithmetic
                 rotated  the same with rotated columns, as FastStream has them before rounding
               FastStream's own row beside these says how good the simulation is: what it lacks is the rounding of all
               else, such as of embeddings to bf16.
  --by-tensor  simulated, int8 and rotated in one kind of product alone.

The models are what the files say: a file of 4 bits holds weights that types of as many bits can write again almost
exactly, so of such a file compare types of 8 bits only. Types with blocks of 256 columns (Q4_K to Q6_K) need such widths;
llama-quantize takes others for the matrices that lack them, and "fallback" says how many these are.

It needs gguf, transformers (5.23) and torch (2.15) for --simulate and --by-tensor, and nothing without. For models see
real_models.py.
"""

import argparse
import math
import pathlib
import re
import subprocess
import sys
import tempfile

WINDOW = 512
LLAMA_TYPES = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_K_S", "Q4_0"]
LLAMA_TYPES_OF_MATRICES = ["Q4_K_M+imatrix", "Q4_K_S+imatrix", "Q4_0+imatrix"]  # with --calibration
OUR_RECIPES = ["--dtype f32 --kv int8", "--dtype f32 --kv fp8", "--dtype bf16", "--dtype int8",
               "--dtype int8 --activation-bits 16", "--dtype fp8", "--dtype int4", "--dtype int4 --keep none",
               "--dtype int4 --calibrate random", "--dtype int4-g32", "--dtype int4-g64", "--dtype int4-g128", "--dtype nf4",
               "--dtype mxfp4"]
OUR_CALIBRATED_RECIPES = ["--dtype int4 --calibrate", "--dtype int4 --keep none --calibrate"]  # with --calibration
OUR_RECIPES_OF_MATRICES = ["--dtype int4 --imatrix", "--dtype int4 --keep none --imatrix"]  # with --llama, too
ROWS = 64  # of logits that are compared at once, which bounds memory


def call(*command):
    run = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{command[0]}: {run.stderr.strip()[-2000:]}")
    return run.stdout + run.stderr


def number(pattern, text):
    found = re.search(pattern, text)
    if not found:
        sys.exit(f"no {pattern!r} in:\n{text[-2000:]}")
    return float(found[1])


def print_row(what, counted, size, bits, kl, kl_99, same, ratio):
    megabytes = f"{size / 1e6:.0f}" if size else ""
    bits = f"{bits:.2f}" if bits else ""
    kl_99 = f"{kl_99:.2g}" if kl_99 else ""
    print(f"| {what} | {counted} | {megabytes} | {bits} | {kl:.2g} | {kl_99} | {same:.2f}% | {ratio:.4f} |", flush=True)


class FastStream:
    """Its programs and the model in f32, with files in `folder`."""

    def __init__(self, build, device, source, text, folder):
        self.build = build
        self.device = device
        self.text = text
        self.folder = folder
        self.reference = self.convert(source, "f32", ["--dtype", "f32"])

    def convert(self, source, name, options):
        model = self.folder / f"{name}.bin"
        call(self.build / "faststream-convert", source, "-o", model, "--quiet", *options)
        return model

    def measure(self, model, *options):
        printed = call(self.build / "faststream-run", "-m", model, "--perplexity", self.text,
                       "--against", self.reference, "--context", WINDOW, "--device", self.device, *options)
        return (number(r"(?m)^size .* ([^ ]+) bits a weight", printed), number(r"KL divergence +mean ([^ ,]+)", printed),
                number(r"99th percentile ([^ ]+)", printed), number(r"top token agrees +([^ ]+)", printed),
                number(r"ratio ([^ )]+)", printed))

    def print_types(self, source, recipes, files):
        """`files` are what options without a value stand for."""
        for recipe in recipes:
            convert, run = [], []
            words = recipe.split()
            while words:
                option = words.pop(0)
                value = words.pop(0) if words and not words[0].startswith("--") else files.get(option)
                (run if option == "--kv" else convert).extend([option] if value is None else [option, value])
            model = self.convert(source, "ours", convert)
            what = recipe.removeprefix("--dtype ")
            print_row(f"FastStream {what}", "all", model.stat().st_size, *self.measure(model, *run))
            model.unlink()

    def print_weights(self, quantized, what, size, bits):
        model = self.convert(quantized, "weights", ["--dtype", "f32"])
        print_row(what, "all, weights", size, bits, *self.measure(model)[1:])
        model.unlink()


class Llama:
    """Its programs and the model in f32, with files in `folder`."""

    def __init__(self, programs, source, text, folder, weights_only):
        self.programs = programs
        self.folder = folder
        self.weights_only = weights_only
        self.measurement = ["-f", text, "-c", WINDOW, "--kl-divergence-base", folder / "base.kld"]
        self.reference = self.quantize(source, "F32")
        self.matrix = None
        if not weights_only:
            self.perplexity(self.reference)

    def calibrate(self, text):
        if self.matrix:
            return
        self.matrix = self.folder / "matrix.gguf"
        call(self.programs / "llama-imatrix", "-m", self.reference, "-f", text, "-c", WINDOW, "-o", self.matrix)

    def quantize(self, source, dtype, *options):
        path = self.folder / f"{dtype}.gguf"
        self.printed = call(self.programs / "llama-quantize", "--allow-requantize", *options, source, path, dtype)
        return path

    def perplexity(self, model, *options):
        return call(self.programs / "llama-perplexity", "-m", model, *self.measurement, *options)

    def print_types(self, dtypes, ours, calibration):
        for dtype in dtypes:
            with_matrix = dtype.endswith("+imatrix")
            if with_matrix:
                self.calibrate(calibration)
            options = ["--imatrix", self.matrix] if with_matrix else []
            model = self.quantize(self.reference, dtype.removesuffix("+imatrix"), *options)
            fallback = re.search(r"(\d+) of \d+ tensor\(s\) required fallback", self.printed)
            bits = number(r"quant size *=.*\(([\d.]+) BPW\)", self.printed)
            size = model.stat().st_size
            what = f"llama.cpp {dtype.replace('+', ', ')}" + (f" (fallback: {fallback[1]})" if fallback else "")
            if not self.weights_only:
                printed = self.perplexity(model, "--kl-divergence")
                print_row(what, "second half", size, bits, number(r"Mean +KLD: +([^ ]+)", printed),
                          number(r"99.0% +KLD: +([^ ]+)", printed), number(r"Same top p: +([^ ]+)", printed),
                          number(r"Mean PPL\(Q\)/PPL\(base\) +: +([^ ]+)", printed))
            if ours:
                ours.print_weights(model, what, size, bits)
            model.unlink()


def blocks(columns):
    """Lengths of the blocks that a row of so many columns is rotated in."""
    lengths = []
    for length in [256, 64, 16, 4, 1]:
        lengths += [length] * (columns // length)
        columns %= length
    return lengths


def rotation(n):
    """The matrix [n, n] that a row of n columns is multiplied by: signs, then Walsh and Hadamard's matrix over sqrt(n)."""
    import torch
    bit = [[(i >> k) & 1 for k in range(8)] for i in range(n)]
    signs = torch.tensor([(-1.0) ** (b[0] * b[1] + b[2] * b[5] + b[3] * b[4] + b[6] * b[7]) for b in bit])
    hadamard = torch.ones(1, 1)
    while len(hadamard) < n:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    return signs[:, None] * hadamard / math.sqrt(n)


ROTATIONS = {}


def rotate(rows):
    import torch
    parts = []
    for part in rows.split(blocks(rows.shape[-1]), dim=-1):
        n = part.shape[-1]
        if n not in ROTATIONS:
            ROTATIONS[n] = rotation(n)
        parts.append(part @ ROTATIONS[n])
    return torch.cat(parts, -1)


def round_int8(rows):
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return (rows / scale).round() * scale


def round_fp8(rows):
    import torch
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 448
    return (rows / scale).to(torch.float8_e4m3fn).float() * scale


KINDS = {
    "qkv": r"\.(q_proj|k_proj|v_proj|qkv_proj|query_key_value|c_attn)$",
    "attention out": r"attn\.(o_proj|out_proj|c_proj|dense)$",
    "gate_up": r"\.(gate_proj|up_proj|gate_up_proj|fc1|c_fc)$",
    "down": r"(\.down_proj|\.fc2|mlp\.c_proj)$",
    "output": r"^lm_head$",
}


class Simulation:
    """The model in Transformers, each of whose products can be computed as a scheme rounds it.

    A scheme is a function that rounds rows, one that comes before it (the same of weights and activations, so that the product
    stays), and the kinds of products that it holds for.
    """

    def __init__(self, source, text):
        import gguf
        import real_models
        import torch
        import transformers
        self.torch = torch
        transformers.utils.logging.disable_progress_bar()
        place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
        real_models.mend(tokenizer, gguf.GGUFReader(source).fields)
        prefix = real_models.encode(tokenizer, "", around=True)
        ids = real_models.encode(tokenizer, text)
        step = WINDOW - len(prefix)
        self.windows = [prefix + ids[first:first + step] for first in range(0, len(ids), step)]
        self.scheme = None
        self.weights = {}  # rounded, by scheme and module
        for name, module in self.model.named_modules():
            kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), None)
            if isinstance(module, torch.nn.Linear):
                if kind is None:
                    sys.exit(f"{name}: which kind of product it is, KINDS does not say")
                module.forward = self.product(name, kind, module)

    def product(self, name, kind, module):
        linear = self.torch.nn.functional.linear

        def forward(rows):
            if self.scheme is None or kind not in self.scheme[2]:
                return linear(rows, module.weight, module.bias)
            rounded, before, _ = self.scheme
            key = (rounded, before, name)
            if key not in self.weights:
                self.weights[key] = rounded(before(module.weight))
            return linear(rounded(before(rows)), self.weights[key], module.bias)

        return forward

    def measure(self, schemes):
        """{name: (mean KL divergence, same likeliest token in %, perplexity ratio)} on all positions and on second halves."""
        torch = self.torch
        kl, same, loss = ({name: [] for name in schemes} for _ in range(3))
        reference_loss, late = [], []
        with torch.no_grad():
            for window in self.windows:
                if len(window) < 2:
                    continue
                ids = torch.tensor(window)
                self.scheme = None
                expected = self.model(ids[None, :-1]).logits[0]
                targets = ids[1:, None]
                late += [len(window) == WINDOW and WINDOW // 2 <= i < WINDOW - 1 for i in range(len(window) - 1)]
                for name, scheme in schemes.items():
                    self.scheme = scheme
                    got = self.model(ids[None, :-1]).logits[0]
                    for a, b, next_ids in zip(expected.split(ROWS), got.split(ROWS), targets.split(ROWS)):
                        a, b = a.log_softmax(-1), b.log_softmax(-1)
                        kl[name] += (a.exp() * (a - b)).sum(-1, dtype=torch.float64).tolist()
                        same[name] += (a.argmax(-1) == b.argmax(-1)).double().tolist()
                        loss[name] += (-b.gather(1, next_ids)[:, 0]).tolist()
                        if len(reference_loss) < len(kl[name]):
                            reference_loss += (-a.gather(1, next_ids)[:, 0]).tolist()
        results = {}
        late = torch.tensor(late)
        for name in schemes:
            values = [torch.tensor(v, dtype=torch.float64) for v in (kl[name], same[name], loss[name], reference_loss)]
            for counted, which in [("all", torch.ones_like(late)), ("second half", late)]:
                if which.any():
                    means = [v[which].mean().item() for v in values]
                    results[name, counted] = (means[0], 100 * means[1], math.exp(means[2] - means[3]))
        return results

    def print(self, schemes):
        for (name, counted), values in self.measure(schemes).items():
            kl, *others = values
            print_row(f"simulated {name}", counted, None, None, kl, None, *others)


def unchanged(rows):
    return rows


def schemes_by_type():
    every = set(KINDS)
    return {
        "FP8": (round_fp8, unchanged, every - {"output"}),
        "int8": (round_int8, unchanged, every),
        "int8 rotated": (round_int8, rotate, every),
    }


def schemes_by_tensor():
    schemes = {}
    for kind in KINDS:
        schemes[f"int8, {kind} alone"] = (round_int8, unchanged, {kind})
        schemes[f"int8 rotated, {kind} alone"] = (round_int8, rotate, {kind})
    return schemes


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--ours", type=pathlib.Path)
    parser.add_argument("--recipe", action="append")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--llama", type=pathlib.Path)
    parser.add_argument("--llama-type", action="append")
    parser.add_argument("--weights-only", action="store_true")
    parser.add_argument("--calibration", type=pathlib.Path)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--by-tensor", action="store_true")
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("models", type=pathlib.Path, nargs="+")
    options = parser.parse_args()
    calibration = options.calibration
    recipes = options.recipe or (OUR_RECIPES + (OUR_CALIBRATED_RECIPES if calibration else []) +
                                 (OUR_RECIPES_OF_MATRICES if calibration and options.llama else []))
    of_matrices = any(recipe.endswith("--imatrix") or "--imatrix --" in recipe for recipe in recipes)
    dtypes = options.llama_type or LLAMA_TYPES + (LLAMA_TYPES_OF_MATRICES if calibration else [])
    of_texts = any(recipe.endswith("--calibrate") or "--calibrate --" in recipe for recipe in recipes)
    if not calibration and (of_texts or of_matrices or "+imatrix" in " ".join(dtypes)):
        parser.error("--calibration TEXT is missing")
    if of_matrices and not options.llama:
        parser.error("--llama BIN is missing")
    for source in options.models:
        print(f"\n{source.name}, {options.text.name}, windows of {WINDOW} tokens\n")
        print("| type | positions | MB | bits a weight | KL divergence | 99% | same likeliest token | perplexity ratio |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            ours = FastStream(options.ours, options.device, source, options.text, folder) if options.ours else None
            llama = Llama(options.llama, source, options.text, folder, options.weights_only) if options.llama else None
            if ours:
                files = {"--calibrate": calibration}
                if of_matrices:
                    llama.calibrate(calibration)
                    files["--imatrix"] = llama.matrix
                ours.print_types(source, recipes, files)
            if llama:
                llama.print_types(dtypes, ours, calibration)
        if options.simulate or options.by_tensor:
            simulation = Simulation(source.resolve(), options.text.read_text())
            simulation.print({**(schemes_by_type() if options.simulate else {}),
                              **(schemes_by_tensor() if options.by_tensor else {})})


if __name__ == "__main__":
    main()
