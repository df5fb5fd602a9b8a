#!/usr/bin/env python3
"""Makes the golden texts of ropes that depend on a text's length: what Transformers' generate() says.

    python3 tests/golden/make_rope_golden.py

writes ropes.json beside itself, which holds

    versions    of Transformers and torch
    text        token ids; the prompts are its beginnings
    max_tokens  of each continuation
    searches    a list: model, a folder in families/ (made by make_families.py); beams, 1 for greedy texts;
                and of each prompt its length and the continuation

Prompts end before, at and after the length where the rule changes, and continuations cross it. generate() has its
cache, which Phi 3 drops where a text becomes long, and where dynamic scaling keeps keys as they were rotated. Each
choice is the same in float64 as in float32.
"""

import json
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
VOCAB = 136
MAX_TOKENS = 20
SEARCHES = [
    # The length where the rule changes is 128.
    ("phi3_short", 1, [20, 100, 109, 120, 127, 128, 129, 150]),
    ("phi3_short", 4, [100, 115, 128, 140]),
    # 32; the model takes 64.
    ("llama_dynamic", 1, [5, 20, 31, 32, 33, 40, 44]),
    ("llama_dynamic", 3, [20, 40]),
]


def continuation(model, prompt, beams, dtype):
    # From the file: a dynamic rope remembers the longest text that it has seen.
    loaded = AutoModelForCausalLM.from_pretrained(
        HERE / "families" / model, dtype=torch.float32, attn_implementation="eager").eval().to(dtype)
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = loaded.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False,
                              num_beams=beams, eos_token_id=None, pad_token_id=0)
    return out[0, len(prompt):].tolist()


def all_searches(text):
    """None where a choice is not clear."""
    searches = []
    for model, beams, lengths in SEARCHES:
        found = []
        for length in lengths:
            texts = [continuation(model, text[:length], beams, dtype) for dtype in (torch.float32, torch.float64)]
            if texts[0] != texts[1]:
                return None
            found.append([length, *texts[0]])
        searches.append({"model": model, "beams": beams, "texts": found})
    return searches


def main():
    transformers.logging.set_verbosity_error()
    generator = torch.Generator().manual_seed(14)
    searches = None
    while searches is None:
        text = [1] + torch.randint(3, VOCAB, (150,), generator=generator).tolist()
        searches = all_searches(text)
    lines = [f'"versions":{json.dumps({"transformers": transformers.__version__, "torch": torch.__version__})}',
             f'"text":{json.dumps(text, separators=(",", ":"))}', f'"max_tokens":{MAX_TOKENS}']
    rows = ",\n".join(json.dumps(each, separators=(",", ":")) for each in searches)
    (HERE / "ropes.json").write_text("{" + ",\n".join(lines) + ',\n"searches":[\n' + rows + "]}\n")


if __name__ == "__main__":
    main()
