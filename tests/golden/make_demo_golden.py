"""Writes tests/golden/demo.json: what Transformers computes in float32 from the checkpoint in demo/.

    python3 tests/golden/make_demo_golden.py

For every fifth held-out item the greedy answer (token ids, the end-of-sequence token included), and the perplexity of
demo/eval/heldout.txt cut into windows as `faststream-run --perplexity` cuts it: each of 1,024 tokens, begun by BOS.
The output names the versions of the libraries.
"""

import json
import math
import pathlib

import sentencepiece
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "demo"
CONTEXT = 1024
LONGEST_ANSWER = 64  # tokens; stories are cut there


def greedy(model, prompt, eos):
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=LONGEST_ANSWER,
                         eos_token_id=eos, pad_token_id=eos)
    return out[0, len(prompt):].tolist()


def perplexity(model, tokens, bos):
    total, count = 0.0, 0
    for first in range(0, len(tokens), CONTEXT - 1):
        window = [bos] + tokens[first:first + CONTEXT - 1]
        logits = model(torch.tensor([window])).logits[0, :-1]
        losses = torch.nn.functional.cross_entropy(logits.double(), torch.tensor(window[1:]), reduction="sum")
        total += losses.item()
        count += len(window) - 1
    return math.exp(total / count), count


def main():
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM.from_pretrained(DEMO, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = sentencepiece.SentencePieceProcessor(str(DEMO / "tokenizer.model"))
    bos, eos = tokenizer.bos_id(), tokenizer.eos_id()
    items = [json.loads(line) for line in (DEMO / "eval" / "items.jsonl").read_text().splitlines()]
    with torch.inference_mode():
        answers = {item["id"]: greedy(model, [bos] + tokenizer.encode(item["prompt"]), eos) for item in items[::5]}
        value, count = perplexity(model, tokenizer.encode((DEMO / "eval" / "heldout.txt").read_text()), bos)
    golden = {
        "made_by": "tests/golden/make_demo_golden.py",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                     "sentencepiece": sentencepiece.__version__},
        "perplexity": value,
        "perplexity_tokens": count,
        "longest_answer": LONGEST_ANSWER,
        "answers": answers,
    }
    (ROOT / "tests" / "golden" / "demo.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"perplexity {value:.6f} over {count} tokens, {len(answers)} answers")


if __name__ == "__main__":
    main()
