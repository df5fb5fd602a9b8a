"""Compares tokenizer.json as this program runs it with PyPI's tokenizers, on random strings.

    python3 tests/peers/tokenizers_random.py BUILD/tests/tokenizer-bench [STRINGS] [FOLDER...]

STRINGS (100,000 if not given) random strings in all are shared out among the tokenizers of tests/golden/tokenizer_cases.py;
FOLDERs are checkpoints whose tokenizer.json gets as many as one of them. Compared are ids with special tokens found, ids
of the same text as a user's, the decoded text, and what streaming gives. It needs tokenizers (0.23).
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import tokenizers

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
from tokenizer_cases import bases, build, cases, make_string  # noqa: E402


def compare(program, name, folder, strings):
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    lines = "".join(json.dumps(text) + "\n" for text in strings)
    run = subprocess.run([program, folder], input=lines, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        print(f"{name}: {run.stderr.strip()}")
        return len(strings)
    differences = 0
    for text, line in zip(strings, run.stdout.split("\n")[:-1], strict=True):
        ours = json.loads(line)
        theirs.encode_special_tokens = False
        ids = theirs.encode(text, add_special_tokens=False).ids
        theirs.encode_special_tokens = True
        expected = {"ids": ids, "plain": theirs.encode(text).ids}
        expected["text"] = expected["streamed"] = theirs.decode(ids)
        for key, value in expected.items():
            if ours[key] != value:
                differences += 1
                if differences <= 3:
                    print(f"{name}: {key} of {text!r}: {ours[key]!r}, expected {value!r}")
    return differences


def main():
    program, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    made, all_cases, folders = bases(), cases(), sys.argv[3:]
    share = max(1, n // (len(all_cases) + len(folders)))
    total = differences = 0
    for i, (name, base, parts) in enumerate(all_cases):
        rng = random.Random(i)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "tokenizer.json").write_text(json.dumps(build(made[base], parts)), encoding="utf-8")
            differences += compare(program, name, path, [make_string(rng) for _ in range(share)])
        total += share
    for folder in folders:
        rng = random.Random(folder)
        differences += compare(program, folder, pathlib.Path(folder), [make_string(rng) for _ in range(share)])
        total += share
    print(f"{total} strings, {len(all_cases) + len(folders)} tokenizers, tokenizers {tokenizers.__version__}: "
          f"{differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
