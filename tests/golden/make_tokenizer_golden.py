"""Writes tests/golden/tokenizers.json: tokenizers of every kind, and what PyPI's tokenizers makes of 1,000 strings.

    python3 tests/golden/make_tokenizer_golden.py

"bases" are tokenizer.json of small trained models; each of "cases" names its base and the parts that it changes (members
of "model" one by one). "expected" has two characters for each of "texts": twelve bits of the FNV-1a hash of the ids with
special tokens found, of the ids as a user's text, and of the decoded text. The output names the library's version.
"""

import json
import pathlib
import random

import tokenizers

from tokenizer_cases import bases, build, cases, make_string

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def digest(text):
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    value = (value ^ value >> 12 ^ value >> 24) & 0xFFF
    return DIGITS[value >> 6] + DIGITS[value & 63]


def expected(tokenizer, text):
    tokenizer.encode_special_tokens = False
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.encode_special_tokens = True
    plain = tokenizer.encode(text).ids
    return digest(" ".join(map(str, ids)) + "|" + " ".join(map(str, plain)) + "|" + tokenizer.decode(ids))


def main():
    rng = random.Random(7)
    texts = [make_string(rng) for _ in range(990)]
    texts += ["a" * 300, " " * 200, "the" * 100, "🙂" * 60, "the people " * 40, "ab" * 100 + "é" * 100, "\n" * 70,
              "1234567890" * 12, "don't" * 20, "中文" * 50]
    made = bases()
    written = []
    for name, base, parts in cases():
        description = build(made[base], parts)
        changes = {key: description[key] for key in parts if key in description}
        model = {key: value for key, value in parts.items() if key not in description}
        if model:
            changes["model"] = model
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(description))
        written.append({"name": name, "base": base, "changes": changes,
                        "expected": "".join(expected(tokenizer, text) for text in texts)})
    golden = {"tokenizers": tokenizers.__version__, "texts": texts, "bases": made, "cases": written}
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (pathlib.Path(__file__).resolve().parent / "tokenizers.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
