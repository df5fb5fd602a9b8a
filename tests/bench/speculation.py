"""How much sooner a batch is done with each way to speculate, and that its answers are the same.

    python3 tests/bench/speculation.py build/release/faststream-run MODEL.bin PROMPTS.jsonl \\
        --ways lookup draft=DRAFT.bin mtp [--slots 1 8 64] [--runs 5] [--processor] [-- --temp 0 --device cpu]

What follows -- are options of faststream-run. Runs take turns; each rate is the median of tokens a second, of prompts
and answers, and behind it how many times as many that are as with --speculate off. --processor counts seconds of
processor time, loading included, which says more where others use the machine; with one thread (-t 1).
"""

import argparse
import re
import resource
import statistics
import subprocess
import sys


def processor_time():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(o, way, slots, options):
    before = processor_time()
    done = subprocess.run([o.program, "-m", o.model, "--batch", o.prompts, "--speculate", way, "--slots", str(slots),
                           "--seed", "1", *options], capture_output=True, text=True, check=False)
    told = re.search(r"(\d+) tokens in .*, ([\d.]+) tokens/s", done.stderr)
    if done.returncode != 0 or not told:
        sys.exit(f"--speculate {way} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout, int(told[1]) / (processor_time() - before) if o.processor else float(told[2])


def compare(o, slots, options):
    answers, rates = None, {way: [] for way in o.ways}
    for _ in range(o.runs):
        for way in o.ways:
            given, rate = run(o, way, slots, options)
            rates[way].append(rate)
            answers = answers or given
            if given != answers:
                sys.exit(f"with {slots} slots some answers by {way} are others")
    medians = {way: statistics.median(of_way) for way, of_way in rates.items()}
    others = [f"{way} {medians[way]:.0f} ({medians[way] / medians['off']:.2f})" for way in o.ways[1:]]
    print(f"{slots} slots: off {medians['off']:.0f}, {', '.join(others)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("prompts")
    parser.add_argument("--ways", nargs="+", default=["lookup"])
    parser.add_argument("--slots", nargs="+", type=int, default=[1])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--processor", action="store_true")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    o = parser.parse_args(sys.argv[1:end])
    o.ways = ["off", *o.ways]
    for slots in o.slots:
        compare(o, slots, sys.argv[end + 1:])


if __name__ == "__main__":
    main()
