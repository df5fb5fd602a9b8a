"""Greedy answers to the held-out items, perplexity of the held-out text, sampled stories."""

import json
import math
import os

import torch
import torch.nn.functional as F

from tokens import BOS, EOS

EVAL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "eval")


def load_items(per_family=None):
    with open(os.path.join(EVAL, "items.jsonl"), encoding="utf-8") as f:
        items = [json.loads(line) for line in f]
    if per_family is None:
        return items
    groups = {}
    for item in items:
        groups.setdefault(item["family"], []).append(item)
    return [i for g in groups.values() for i in g[::max(1, len(g) // per_family)][:per_family]]


@torch.no_grad()
def complete(model, prompts, most, pick):
    """Tokens that follow each prompt, until EOS or `most`. Every step runs the whole batch again: for a small model
    this is quick enough and has no cache to go wrong."""
    device = model.embed.weight.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    most = min(most, model.shape.context - int(lengths.max()))
    tokens = torch.full((len(prompts), int(lengths.max()) + most), EOS, device=device)
    for i, p in enumerate(prompts):
        tokens[i, :len(p)] = torch.tensor(p, device=device)
    rows, ends, done = torch.arange(len(prompts), device=device), lengths.clone(), torch.zeros_like(lengths, dtype=torch.bool)
    for _ in range(most):
        logits = model(tokens[:, :int(ends.max())])[rows, ends - 1].float()
        token = pick(logits)
        tokens[rows, ends] = torch.where(done, EOS, token)
        done |= token == EOS
        ends = ends + (~done)
        if bool(done.all()):
            break
    return [tokens[i, lengths[i]:ends[i]].tolist() for i in range(len(prompts))], done.tolist()


def greedy(logits):
    return logits.argmax(-1)


def answer_all(model, encoder, items, batch=128, most_exact=64, most_story=400):
    """The model's answers, in the items' order, and whether each ended by itself."""
    prompts = [encoder.prompt(item["prompt"]) for item in items]
    order = sorted(range(len(items)), key=lambda i: (items[i]["check"] == "open", len(prompts[i])))
    answers, ended = [None] * len(items), [None] * len(items)
    while order:
        is_open = items[order[0]]["check"] == "open"
        part = [i for i in order[:batch] if (items[i]["check"] == "open") == is_open]
        order = order[len(part):]
        out, done = complete(model, [prompts[i] for i in part], most_story if is_open else most_exact, greedy)
        for i, ids, d in zip(part, out, done):
            answers[i], ended[i] = encoder.sp.decode(ids), d
    return answers, ended


def is_right(item, answer, ended):
    if item["check"] == "exact":
        return answer == item["answer"]
    return ended and all(word in answer.lower() for word in item["mentions"])


def score(model, encoder, items, **limits):
    """{family: [right, asked]}, also by the parts of arithmetic, and the wrong answers."""
    answers, ended = answer_all(model, encoder, items, **limits)
    scores, wrong = {}, []
    for item, answer, done in zip(items, answers, ended):
        right = is_right(item, answer, done)
        part = item["id"].rsplit("-", 1)[0]
        for name in dict.fromkeys([item["family"], part]):
            entry = scores.setdefault(name, [0, 0])
            entry[0] += right
            entry[1] += 1
        if not right:
            wrong.append({"id": item["id"], "prompt": item["prompt"], "expected": item["answer"], "answer": answer})
    return scores, wrong


def show(scores):
    return "  ".join(f"{name} {100 * r / n:.1f}%" for name, (r, n) in scores.items())


@torch.no_grad()
def perplexity(model, encoder, most_windows=None):
    """Of eval/heldout.txt, in windows of the context, each behind a BOS."""
    with open(os.path.join(EVAL, "heldout.txt"), encoding="utf-8") as f:
        ids = encoder.sp.encode(f.read())
    size, device = model.shape.context - 1, model.embed.weight.device
    windows = [ids[i:i + size] for i in range(0, len(ids), size)][:most_windows]
    total = count = 0
    for window in windows:
        logits = model(torch.tensor([[BOS] + window[:-1]], device=device))[0].float()
        total += F.cross_entropy(logits, torch.tensor(window, device=device), reduction="sum").item()
        count += len(window)
    return math.exp(total / count)


def sample_stories(model, encoder, n, seed, temperature=0.8, top_p=0.95, most=400):
    """Stories from an empty prompt."""
    generator = torch.Generator(model.embed.weight.device).manual_seed(seed)

    def nucleus(logits):
        p, index = (logits / temperature).softmax(-1).sort(descending=True)
        p = p.masked_fill(p.cumsum(-1) - p >= top_p, 0)
        return index.gather(-1, torch.multinomial(p, 1, generator=generator))[:, 0]

    out, _ = complete(model, [[BOS]] * n, most, nucleus)
    return [encoder.sp.decode(ids) for ids in out]
