#!/usr/bin/env python3
"""Makes the golden texts of beam searches: what Transformers' generate() finds with small models.

    python3 tests/golden/make_beam_golden.py           (with Transformers 5: all but groups)
    python3 tests/golden/make_beam_golden.py           (with Transformers 4.52: groups, which 5 has not)

Each run writes its part of beams.json, beside itself:

    versions        of Transformers and torch that made each part
    ends            token ids that end a text
    prompts         token ids
    parts           for "beams" and "groups" a list of searches:
        model           a folder in families/
        settings        of generate(), under the names of a batch's lines
        texts           of each prompt all texts that are returned, the best first: [score, ids...]

The models are those of make_families.py. A prompt whose texts or scores are others in float64 than in float32
is one where rounding decides, and has null for texts.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
PATH = HERE / "beams.json"
IS_V4 = transformers.__version__.startswith("4.")
PART = "groups" if IS_V4 else "beams"
VOCAB = 136
ENDS = [2, 17, 41, 66, 90, 121]
PAD = 0  # forbidden: Transformers 4 gives it to groups that are over, and then keeps others from it
PROMPTS = 20
MAX_TOKENS = 14
TOLERANCE = 2e-5

STOPPING = {"true": True, "false": False, "never": "never"}


def prompts():
    generator = torch.Generator().manual_seed(16)
    made = []
    for i in range(PROMPTS):
        length = 1 + int(torch.randint(3 + 2 * i, (1,), generator=generator))
        ids = torch.randint(3, VOCAB, (length,), generator=generator).tolist()
        made.append([1] + ids)
    return made


def searches():
    if IS_V4:
        for model in ("llama", "mistral"):
            yield model, {"beams": 4, "beam_groups": 2, "diversity_penalty": 0.5, "early_stopping": True}
            yield model, {"beams": 4, "beam_groups": 4, "diversity_penalty": 1.0, "length_penalty": 0.6}
            yield model, {"beams": 6, "beam_groups": 3, "diversity_penalty": 2.0, "early_stopping": "never",
                          "length_penalty": 2.0, "no_repeat_ngram": 3}
        return
    for stopping in STOPPING.values():
        for penalty in (0.6, 1.0, 2.0):
            yield "llama", {"beams": 4, "early_stopping": stopping, "length_penalty": penalty}
    yield "llama", {"beams": 2, "early_stopping": "never", "length_penalty": -1.0}
    yield "llama", {"beams": 7, "length_penalty": 0.0}
    yield "llama", {"beams": 4, "min_tokens": 9, "early_stopping": True}
    yield "llama", {"beams": 4, "repetition_penalty": 1.3}
    yield "llama", {"beams": 4, "logit_bias": {"41": 2.5, "30": -4.0, "31": 1.5}, "early_stopping": True}
    for model in ("llama", "mistral", "gpt2"):
        yield model, {"beams": 4, "no_repeat_ngram": 3, "early_stopping": True}
        yield model, {"beams": 4, "no_repeat_ngram": 1, "length_penalty": 2.0}
    for model in ("mistral", "gpt2"):
        for stopping in STOPPING.values():
            yield model, {"beams": 4, "early_stopping": stopping, "length_penalty": 0.6}


def arguments(settings):
    """As generate() has them."""
    names = {"beams": "num_beams", "beam_groups": "num_beam_groups", "no_repeat_ngram": "no_repeat_ngram_size",
             "min_tokens": "min_new_tokens"}
    values = {names.get(name, name): value for name, value in settings.items() if name != "logit_bias"}
    biases = {(int(token),): bias for token, bias in settings.get("logit_bias", {}).items()}
    biases[(PAD,)] = -100.0
    return values | {"sequence_bias": biases}


def texts(model, prompt, settings):
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False,
            num_return_sequences=settings["beams"], eos_token_id=ENDS, pad_token_id=PAD,
            return_dict_in_generate=True, output_scores=True, **arguments(settings))
    found = []
    for row, score in zip(out.sequences, out.sequences_scores):
        text = row[len(prompt):].tolist()
        ends = [i for i, token in enumerate(text) if token in ENDS]
        found.append([score.item(), text[:ends[0] + 1] if ends else text])
    return found


def round_logits(_module, _inputs, output):
    output.logits = output.logits.float()
    return output


def clear_texts(model, exact, prompt, settings):
    found, reference = texts(model, prompt, settings), texts(exact, prompt, settings)
    for a, b in zip(found, reference):
        if a[1] != b[1] or abs(a[0] - b[0]) > TOLERANCE * max(1.0, abs(a[0])):
            return None
    return [[round(score, 6), *text] for score, text in found]


def main():
    transformers.logging.set_verbosity_error()
    golden = json.loads(PATH.read_text()) if PATH.exists() else {"versions": {}, "parts": {}}
    golden["versions"][PART] = {"transformers": transformers.__version__, "torch": torch.__version__}
    golden["ends"], golden["max_tokens"], golden["prompts"] = ENDS, MAX_TOKENS, prompts()
    models, part = {}, []
    for name, settings in searches():
        if name not in models:
            folder = HERE / "families" / name
            load = dict(torch_dtype=torch.float32) if IS_V4 else dict(dtype=torch.float32)
            models[name] = [AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", **load).eval()
                            for _ in range(2)]
            models[name][1].double().register_forward_hook(round_logits)
        found = [clear_texts(*models[name], prompt, settings) for prompt in golden["prompts"]]
        print(name, settings, "unclear:", found.count(None), "lengths:",
              sorted({len(text) - 1 for each in found if each for text in each}))
        part.append({"model": name, "settings": {"logit_bias": {}} | settings, "texts": found})
        part[-1]["settings"]["logit_bias"][str(PAD)] = -100.0
    golden["parts"][PART] = part
    lines = [f'"{key}":{json.dumps(golden[key], separators=(",", ":"))}' for key in golden if key != "parts"]
    parts = []
    for key, searched in sorted(golden["parts"].items()):
        rows = ",\n".join(json.dumps(each, separators=(",", ":")) for each in searched)
        parts.append(f'"{key}":[\n{rows}]')
    PATH.write_text("{" + ",\n".join(lines) + ',\n"parts":{' + ",\n".join(parts) + "}}\n")


if __name__ == "__main__":
    sys.exit(main())
