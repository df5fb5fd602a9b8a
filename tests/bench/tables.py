#!/usr/bin/env python3
"""Writes the tables of docs/performance.md from measurements, each between <!-- NAME --> and <!-- end -->.

  tests/bench/tables.py tests/bench/measured docs/performance.md

The folder is that of plots.py. What stands at the place of a table that was not measured stays.
"""
import pathlib
import re
import sys

from plots import measured_and_peers, pick

SHAPES = {"llama-2-7b": "Llama 2 7B", "llama-3-8b": "Llama 3 8B", "llama-3.2-1b": "Llama 3.2 1B",
          "gpt-oss-20b": "gpt-oss 20B", "qwen3-30b-a3b": "Qwen3 30B-A3B"}
WEIGHTS = ("int8", "bf16")
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 7936)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def table(head, rows):
    if not rows:
        return None
    lines = [head, ["---"] * len(head)] + rows
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def last(measured, **wanted):
    found = pick(measured, **wanted)
    return found[-1] if found else None


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def share(m, of=False):
    return f"{100 * m['share']:.0f}%" + (f" of {m['ceiling']}" if of else "")


def reached(m, of=False):
    return f"{number(m['tokens_per_second'])} ({share(m, of)})" if m else ""


def gigabytes(m):
    return f"{m['weight_bytes'] / 1e9:.2f} GB"


def one_sequence(gpu, peers):
    rows = []
    for model, name in SHAPES.items():
        for weights in WEIGHTS:
            m = last(gpu, measurement="decode", model=model, weights=weights, sequences=1, depth=16)
            if not m:
                continue
            beside = [p for p in peers["decode"] if p["model"] == model and p["weights"] == weights]
            best = max(beside, key=lambda p: p["tokens_per_second"], default=None)
            rows.append([name, weights, gigabytes(m), number(1 / m["ceiling_seconds"]),
                         number(m["tokens_per_second"]), share(m),
                         f"{best['program']} {best['tokens_per_second']:,}" if best else ""])
    return table(["shape", "weights", "read a token", "ceiling, tokens/s", "reached", "share",
                  "fastest peer"], rows)


def depths(gpu, _):
    rows = []
    for model, name in SHAPES.items():
        for weights in WEIGHTS:
            for n in SEQUENCES:
                cells = [reached(last(gpu, measurement="decode", model=model, weights=weights,
                                      sequences=n, depth=depth)) for depth in (16, 4000, 7000)]
                if cells[1]:
                    rows.append([name, weights, str(n)] + cells)
    return table(["shape", "weights", "sequences", "after 16 tokens", "after 4,000", "after 7,000"],
                 rows)


def prompts(gpu, peers):
    rows = []
    for weights in WEIGHTS:
        found = [last(gpu, measurement="prefill", model="llama-3-8b", weights=weights, tokens=n)
                 for n in LENGTHS]
        rows.append([f"{weights}, ceiling"] +
                    [number(m["tokens"] / m["ceiling_seconds"]) if m else "" for m in found])
        rows.append([f"{weights}, reached"] + [reached(m) for m in found])
    for program in dict.fromkeys(p["program"] for p in peers["prefill"]):
        rates = {p["at"]: p["tokens_per_second"] for p in peers["prefill"] if p["program"] == program}
        rows.append([program] + [number(rates[n]) if n in rates else "" for n in LENGTHS])
    return table(["Llama 3 8B"] + [f"{n:,}" for n in LENGTHS], rows)


def profile(gpu, **wanted):
    """Operations of a step, but for those of less than a fiftieth of the time."""
    for model in ("llama-3-8b", "llama-3.2-1b"):
        total = last(gpu, measurement="profile", model=model, **wanted)
        if total:
            break
    else:
        return None
    found = {m["operation"]: m
             for m in pick(gpu, measurement="operation", model=model, **wanted)}
    rows = [[m["operation"].replace(" x ", " × "), str(m["calls"]),
             f"{1e6 * m['seconds'] / m['calls']:.1f} us", f"{100 * m['share_of_time']:.0f}%",
             share(m, True) if "share" in m else ""]
            for m in sorted(found.values(), key=lambda m: -m["seconds"])
            if m["share_of_time"] >= 0.02]
    rows.append(["all, one by one", "", f"{1e3 * total['seconds_by_operation']:.2f} ms", "", ""])
    rows.append(["the step", "", f"{1e3 * total['seconds']:.2f} ms", "", ""])
    return table([f"{SHAPES[model]}, {wanted['weights']}", "calls", "each", "of the time",
                  "of its ceiling"], rows)


def batches(gpu, _):
    rows = [[weights] + [reached(last(gpu, measurement="decode", model="llama-3-8b",
                                      weights=weights, sequences=n, depth=16)) for n in SEQUENCES]
            for weights in WEIGHTS]
    return table(["Llama 3 8B"] + [str(n) for n in SEQUENCES], rows)


def requests(gpu, _):
    rows = []
    for m in pick(gpu, measurement="requests"):
        n = m["requests"]
        arrivals = f"{m['rate']:g} a second" if m["rate"] else "at once"
        rows.append([f"{n:,}, {arrivals}", f"{m['prompt_tokens'] / n:.0f}",
                     f"{m['generated_tokens'] / n:.0f}", number(m["tokens_per_second"]),
                     f"{m['seconds']:.1f} s", share(m),
                     f"{m['first_token_seconds_median']:.2f} s ({m['first_token_seconds_99']:.2f})",
                     f"{1e3 * m['next_token_seconds_median']:.1f} ms "
                     f"({1e3 * m['next_token_seconds_99']:.1f})"])
    return table(["requests", "tokens in", "out", "generated, tokens/s", "time", "share",
                  "first token, median (99%)", "each further one"], rows)


def experts(gpu, _):
    rows = []
    for model in ("gpt-oss-20b", "qwen3-30b-a3b"):
        for n in (1, 8, 64):
            m = last(gpu, measurement="decode", model=model, sequences=n, depth=16)
            if m:
                rows.append([SHAPES[model], f"{n} sequences", gigabytes(m), reached(m, True)])
        for n in (512, 2048):
            m = last(gpu, measurement="prefill", model=model, tokens=n)
            if m:
                rows.append([SHAPES[model], f"prompt of {n:,}", gigabytes(m), reached(m, True)])
    return table(["shape, INT8", "step", "weights read", "tokens/s"], rows)


def processor(cpu):
    rows = []
    for weights in WEIGHTS:
        ceilings = last(cpu, measurement="ceilings", weights=weights)
        if not ceilings:
            continue
        steps = [last(cpu, measurement="prefill", weights=weights)]
        for n, depth in ((1, 16), (1, 1000), (16, 16)):
            steps.append(last(cpu, measurement="decode", weights=weights, sequences=n, depth=depth))
        rows.append([weights, f"{ceilings['memory_bytes_per_second'] / 1e9:.1f} GB/s",
                     f"{ceilings['weight_operations_per_second'] / 1e12:.2f} T/s"] +
                    [reached(m, True) for m in steps])
    return table(["Llama of 1.1 billion, 2 threads", "memory", "products", "prompt of 256",
                  "1 sequence", "after 1,000 tokens", "16 sequences"], rows)


def ceilings(gpu, _):
    rows = []
    for model, name in SHAPES.items():
        for m in (last(gpu, measurement="ceilings", model=model, weights=w) for w in WEIGHTS):
            if m:
                rows.append([f"{name}, {m['weights']}",
                             f"{m['memory_bytes_per_second'] / 1e12:.2f} TB/s",
                             f"{m['weight_operations_per_second'] / 1e12:,.0f} T/s",
                             f"{m['activation_operations_per_second'] / 1e12:,.0f} T/s"])
    return table(["run", "memory", "products of its weights", "of bf16"], rows)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    measured, peers = measured_and_peers(pathlib.Path(sys.argv[1]))
    gpu = [m for m in measured if "CUDA" in m["device"]]
    cpu = [m for m in measured if "CPU" in m["device"]]
    makers = {
        "ceilings": lambda: ceilings(gpu, peers),
        "one sequence": lambda: one_sequence(gpu, peers),
        "depths": lambda: depths(gpu, peers),
        "one sequence by operation":
            lambda: profile(gpu, of="decode", weights="int8", sequences=1, depth=16),
        "prompts": lambda: prompts(gpu, peers),
        "prompt by operation": lambda: profile(gpu, of="prefill", weights="int8", tokens=2048),
        "prompt by operation, bf16":
            lambda: profile(gpu, of="prefill", weights="bf16", tokens=2048),
        "batches": lambda: batches(gpu, peers),
        "batch by operation":
            lambda: profile(gpu, of="decode", weights="int8", sequences=64, depth=16),
        "requests": lambda: requests(gpu, peers),
        "experts": lambda: experts(gpu, peers),
        "cpu": lambda: processor(cpu),
    }
    page = pathlib.Path(sys.argv[2])
    text = page.read_text()
    for name, make in makers.items():
        between = re.compile(f"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
        made = make()
        text, count = between.subn(
            lambda found: f"{found[1]}\n{made}\n\n{found[2]}" if made else found[0], text)
        if count != 1:
            sys.exit(f"{page} has the place of \"{name}\" {count} times")
    page.write_text(text)


if __name__ == "__main__":
    main()
