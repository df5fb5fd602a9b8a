"""Trains the demo model from random weights on the text of corpus.py, evaluates it, and exports it.

    python3 demo/train.py --out DIR             the recipe: one GPU, 16 processes, under ten minutes
    python3 demo/train.py --out DIR --steps N   the same run again: everything follows from the seed and the steps
    python3 demo/train.py --out DIR --smoke     a tiny run on the CPU that tries every stage

Without --steps, the number of steps follows from the measured speed and --minutes, and the log records it.
"""

import argparse
import json
import multiprocessing
import os
import platform
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.nn.attention.flex_attention import BlockMask, flex_attention

import corpus
import evaluate
import tokens as text
from model import Llama, Shape, causal, write_settings

BLOCK = 128
AFTER_TRAINING = 100  # seconds kept for the checks on the way, the final evaluation and the export
WORTH = (0.1, 1.0, 3.0, 0.0)  # of a question's token, of prose, of an answer, of padding


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, help="folder for the checkpoint and the logs")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--documents", type=int, default=5_000_000, help="training documents (about 43 tokens each)")
    p.add_argument("--steps", type=int, default=0, help="optimizer steps; 0: as many as fit --minutes")
    p.add_argument("--minutes", type=float, default=8.5, help="for everything, from start to export")
    p.add_argument("--rows", type=int, default=64, help="rows of 1,024 tokens a step")
    p.add_argument("--lr", type=float, default=2.5e-3)
    p.add_argument("--warmup", type=int, default=300)
    p.add_argument("--decay", type=float, default=0.6, help="share of the run in which the rate falls to zero")
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--attention", choices=["auto", "flex", "causal"], default="auto",
                   help="flex keeps documents of a row apart; causal lets them see the ones before")
    p.add_argument("--processes", type=int, default=os.cpu_count())
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--families", default="", help="train on these families only (an experiment)")
    p.add_argument("--smoke", action="store_true", help="tiny corpus, few steps, a part of the evaluation")
    o = p.parse_args()
    if o.smoke:
        o.documents, o.rows, o.warmup, o.layers = 2000, 2, 5, 2
        o.steps = o.steps or 12
    return o


class Log:
    """Lines on standard output, and the record that becomes train_log.json."""

    def __init__(self, path):
        self.path, self.start, self.record = path, time.time(), {"curve": [], "checks": []}

    def say(self, message):
        print(f"[{time.time() - self.start:6.1f}s] {message}", flush=True)

    def save(self):
        with open(self.path, "w", encoding="utf-8") as f:
            json.dump(self.record, f, indent=1)
            f.write("\n")


class DocumentMask:
    """Attention within documents, for FlexAttention. The buffers stay the same objects, so nothing is compiled twice."""

    def __init__(self, rows, length, device):
        self.make, self.blocks = BlockMask.from_kv_blocks, length // BLOCK
        self.documents = documents = torch.zeros(rows, length, dtype=torch.int32, device=device)
        self.lower = torch.tril(torch.ones(self.blocks, self.blocks, dtype=torch.bool, device=device))

        def visible(row, head, query, key):
            return (query >= key) & (documents[row, query] == documents[row, key])

        self.visible = visible

    def of(self, tokens):
        self.documents.copy_((tokens == text.BOS).cumsum(1))
        by_block = self.documents.view(len(tokens), self.blocks, BLOCK)
        first, last = by_block[:, :, 0], by_block[:, :, -1]
        needed = ((last[:, None, :] >= first[:, :, None]) & self.lower)[:, None]
        indices = needed.to(torch.int32).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
        return self.make(needed.sum(-1, dtype=torch.int32), indices, BLOCK_SIZE=BLOCK, mask_mod=self.visible)


class Trainer:
    def __init__(self, o, device, log):
        self.o, self.device, self.log, self.gpu = o, device, log, device.type == "cuda"
        torch.manual_seed(o.seed)
        torch.set_float32_matmul_precision("high")
        self.model = Llama(Shape(n_layers=o.layers)).to(device)
        matrices = [p for n, p in self.model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in self.model.named_parameters() if p.ndim != 2 or "embed" in n]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": o.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=o.lr, betas=(0.9, 0.95), eps=1e-8, fused=self.gpu)
        self.worth = torch.tensor(WORTH, device=device)
        self.class_ids = torch.arange(len(WORTH), device=device)
        self.mask = None
        self.losses = self._losses
        log.say(f"model: {sum(p.numel() for p in self.model.parameters()):,} parameters on {device}")

    def _losses(self, tokens, targets, block_mask=None, dense_mask=None):
        """The training loss, and sum and count of the plain loss by class."""
        if block_mask is not None:
            def attend(q, k, v):
                return flex_attention(q, k.contiguous(), v.contiguous(), block_mask=block_mask)
        elif dense_mask is not None:
            def attend(q, k, v):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=dense_mask)
        else:
            attend = causal
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.gpu):
            logits = self.model(tokens, attend)
        classes, targets = targets >> text.CLASS_BITS, targets & (1 << text.CLASS_BITS) - 1
        each = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
        one_hot = (classes.flatten()[:, None] == self.class_ids).float()
        by_class = torch.stack(((each[:, None] * one_hot).sum(0).detach(), one_hot.sum(0)))
        worth = self.worth[classes.flatten()]
        return (each * worth).sum() / worth.sum(), by_class

    def prepare(self, tokens, targets):
        """Compile, choose the attention, and check it against a dense mask. No weight changes."""
        if not self.gpu:
            return
        begin = time.time()
        if self.o.attention != "causal":
            try:
                self.mask = DocumentMask(*tokens.shape, self.device)
                self.losses = torch.compile(self._losses)
                loss, got = self.losses(tokens, targets, self.mask.of(tokens))
                loss.backward()
                got, expected = self.plain_losses(got), self.plain_losses(self._with_dense_mask(tokens, targets))
                if not (got - expected)[:text.NOTHING].abs().max() < 0.02:
                    raise RuntimeError(f"masked losses {got.tolist()}, expected {expected.tolist()}")
                self.log.say(f"FlexAttention keeps documents apart: losses {got.tolist()}, dense mask {expected.tolist()}")
            except Exception as error:
                if self.o.attention == "flex":
                    raise
                self.log.say(f"FlexAttention does not work here ({type(error).__name__}: {str(error)[:300]}); "
                             "documents of a row will see the ones before")
                self.mask = None
        if self.mask is None:
            torch._dynamo.reset()
            self.losses = torch.compile(self._losses)
            loss, _ = self.losses(tokens, targets)
            loss.backward()
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        self.log.say(f"compiled in {time.time() - begin:.0f} s")

    @torch.no_grad()
    def _with_dense_mask(self, tokens, targets):
        total = 0
        for few in torch.arange(len(tokens)).split(8):
            documents = (tokens[few] == text.BOS).cumsum(1)
            dense = (documents[:, None, :, None] == documents[:, None, None, :]).tril()
            total = total + self._losses(tokens[few], targets[few], dense_mask=dense)[1]
        return total

    @staticmethod
    def plain_losses(by_class):
        return by_class[0] / by_class[1].clamp(min=1)

    def rate(self, step, steps):
        if step < self.o.warmup:
            return (step + 1) / self.o.warmup
        return min(1.0, (steps - step) / max(1.0, self.o.decay * steps))

    def step(self, tokens, targets, share):
        for group in self.optimizer.param_groups:
            group["lr"] = self.o.lr * share
        loss, by_class = self.losses(tokens, targets, *([self.mask.of(tokens)] if self.mask else []))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach(), by_class, norm


def batch_of(data, index, device):
    return tuple(part[index].to(device=device, dtype=torch.int64) for part in data)


def save_weights(model, path):
    save_file(model.hf_tensors(), path + ".part", metadata={"format": "pt"})
    os.chmod(path + ".part", 0o644)
    os.replace(path + ".part", path)


def train(trainer, data, o, encoder, log):
    device, rows = trainer.device, o.rows
    per_epoch = len(data[0]) // rows
    shuffle = torch.Generator().manual_seed(o.seed)
    steps, shown, sums, begin = o.steps, time.time(), 0, time.time()
    spent_elsewhere = 0.0
    checks = 2 if o.smoke else 5
    step, rate_from = 0, None
    while not steps or step < steps:
        if step % per_epoch == 0:
            order = torch.randperm(len(data[0]), generator=shuffle).to(data[0].device)
        at = step % per_epoch * rows
        loss, by_class, norm = trainer.step(*batch_of(data, order[at:at + rows], device), trainer.rate(step, steps or 10 ** 9))
        sums = sums + by_class
        step += 1
        if step == 50 and not o.steps:
            loss.item()
            rate_from = (time.time(), step)
        if step == 250 and not o.steps:
            loss.item()
            seconds_a_step = (time.time() - rate_from[0]) / (step - rate_from[1])
            left = o.minutes * 60 - AFTER_TRAINING - (time.time() - log.start)
            steps = step + max(100, int(0.95 * left / seconds_a_step))
            log.say(f"{1000 * seconds_a_step:.1f} ms a step: {steps} steps fit in {o.minutes} minutes; "
                    f"--steps {steps} repeats this run")
        if step % (4 if o.smoke else 100) == 0 or step == steps:
            loss_now = loss.item()  # waits for the device
            if not np.isfinite(loss_now):
                raise SystemExit(f"the loss is {loss_now} at step {step}")
            plain = trainer.plain_losses(sums).tolist()
            speed = sums[1].sum().item() / (time.time() - shown - spent_elsewhere)
            log.say(f"step {step:6d}/{steps or '?'}  loss {loss_now:.4f}  questions {plain[0]:.3f}  prose {plain[1]:.4f}  "
                    f"answers {plain[2]:.5f}  gradient {norm.item():.2f}  {speed / 1e6:.3f} M tokens/s")
            log.record["curve"].append({"step": step, "seconds": round(time.time() - begin, 1), "loss": loss_now,
                                        "questions": plain[0], "prose": plain[1], "answers": plain[2]})
            shown, sums, spent_elsewhere = time.time(), 0, 0.0
        if steps and step < steps and step % max(1, steps // checks) == 0 and not o.families:
            pause = time.time()
            save_weights(trainer.model, os.path.join(o.out, "model.safetensors"))
            with torch.autocast(device.type, torch.bfloat16, enabled=trainer.gpu):
                scores, _ = evaluate.score(trainer.model, encoder, evaluate.load_items(1 if o.smoke else 25),
                                           most_exact=3 if o.smoke else 64, most_story=3 if o.smoke else 300)
            log.say(f"after {step} steps: {evaluate.show(scores)}")
            log.record["checks"].append({"step": step, "scores": scores})
            log.save()
            spent_elsewhere += time.time() - pause
    seconds = time.time() - begin
    log.record.update(steps=steps, tokens=steps * rows * text.ROW, train_seconds=round(seconds, 1),
                      epochs=round(steps / per_epoch, 2))
    log.say(f"trained {steps} steps, {steps * rows * text.ROW / 1e6:.0f} M tokens, {steps / per_epoch:.1f} passes, "
            f"in {seconds:.0f} s")


def final_evaluation(model, encoder, o, log):
    """Scores, perplexity and samples of the rounded weights, in float32."""
    torch.set_float32_matmul_precision("highest")
    begin = time.time()
    limits = dict(most_exact=4, most_story=4) if o.smoke else {}
    scores, wrong = evaluate.score(model, encoder, evaluate.load_items(2 if o.smoke else None), **limits)
    log.record["scores"] = scores
    log.say("held-out items: " + evaluate.show(scores))
    log.record["perplexity"] = evaluate.perplexity(model, encoder, 1 if o.smoke else None)
    log.say(f"held-out text: perplexity {log.record['perplexity']:.4f}")
    samples = evaluate.sample_stories(model, encoder, 2 if o.smoke else 10, o.seed, most=8 if o.smoke else 400)
    with open(os.path.join(o.out, "samples.txt"), "w", encoding="utf-8") as f:
        f.write("\n\n---\n\n".join(samples) + "\n")
    with open(os.path.join(o.out, "wrong.jsonl"), "w", encoding="utf-8") as f:
        for entry in wrong:
            f.write(json.dumps(entry, ensure_ascii=False) + "\n")
    for entry in wrong[:0 if o.smoke else 40]:
        log.say(f"wrong {entry['id']}: {entry['prompt'][-110:]!r} -> {entry['answer'][:90]!r}, expected {entry['expected'][:90]!r}")
    log.say("samples:\n" + "\n---\n".join(samples))
    log.say(f"evaluated in {time.time() - begin:.0f} s")


def check_export(model, encoder, o, log):
    """Transformers reads the folder, gives the same logits, and encodes a chat to the same tokens."""
    from transformers import AutoTokenizer, LlamaForCausalLM
    model = model.cpu()
    other = LlamaForCausalLM.from_pretrained(o.out, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(o.out)
    items = evaluate.load_items(1)
    worst = 0.0
    for item in items:
        ids = encoder.prompt(item["prompt"])
        given = tokenizer.apply_chat_template(item["messages"], add_generation_prompt=True, tokenize=True)
        given = given if isinstance(given, list) else given["input_ids"]
        assert given == ids, f"{item['id']}: the chat template gives other tokens: {given} {ids}"
        assert tokenizer(item["prompt"])["input_ids"] == ids, f"{item['id']}: the tokenizer gives other tokens"
        with torch.no_grad():
            batch = torch.tensor([ids])
            worst = max(worst, (other(batch).logits - model(batch)).abs().max().item())
    assert worst < 1e-4, f"Transformers' logits differ by {worst}"
    log.record["transformers_largest_difference"] = worst
    log.say(f"Transformers reads the checkpoint: same tokens, logits within {worst:.1e}")


def main():
    o = options()
    os.makedirs(o.out, exist_ok=True)
    log = Log(os.path.join(o.out, "train_log.json"))
    if o.families:
        corpus.FAMILIES = {f: corpus.FAMILIES[f] for f in o.families.split(",")}

    tokenizer_path = os.path.join(o.out, "tokenizer.model")
    sp = text.train_tokenizer(tokenizer_path, Shape.vocab, (
        corpus.text_of(corpus.document("tokenizer", i)) for i in range(3000 if o.smoke else 40_000)))
    write_settings(o.out, Shape(n_layers=o.layers))
    encoder = text.Encoder(sp)
    log.say(f"tokenizer: {sp.vocab_size()} pieces")

    share = 1000 if o.smoke else 10_000
    jobs = [(tokenizer_path, o.seed, first, min(share, o.documents - first)) for first in range(0, o.documents, share)]
    with multiprocessing.get_context("fork").Pool(o.processes) as pool:
        pending = pool.map_async(text.make_rows, jobs, chunksize=1)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        trainer = Trainer(o, device, log)
        if trainer.gpu:  # compile while the other cores write
            first = text.make_rows((tokenizer_path, o.seed, 0, 4000))
            trainer.prepare(*batch_of([torch.from_numpy(p) for p in first[:2]], torch.arange(o.rows), device))
        parts = pending.get()
    data = [torch.from_numpy(np.concatenate([p[i] for p in parts])) for i in range(2)]
    counts = {}
    for part in parts:
        for family, n in part[2].items():
            counts[family] = counts.get(family, 0) + n
    del parts
    unique = sum(counts.values())
    log.say(f"corpus: {o.documents:,} documents, {unique / 1e6:.1f} M tokens, {len(data[0]):,} rows, "
            f"{100 * unique / data[0].numel():.1f}% full")
    log.say("share of tokens: " + "  ".join(f"{f} {100 * n / unique:.1f}%" for f, n in sorted(counts.items())))
    log.record.update(
        settings=vars(o), corpus={"documents": o.documents, "tokens": unique, "by_family": counts},
        device=torch.cuda.get_device_name() if trainer.gpu else f"CPU ({platform.machine()})", torch=torch.__version__,
        attention="within documents" if trainer.mask else "causal")
    data = [part.to(device) for part in data]

    train(trainer, data, o, encoder, log)
    model = trainer.model
    model.round_to_bf16()
    save_weights(model, os.path.join(o.out, "model.safetensors"))
    log.save()
    if not o.families:
        final_evaluation(model, encoder, o, log)
        log.save()
    log.record["settings"] = {name: value for name, value in vars(o).items() if name != "out"}
    log.record["total_seconds"] = round(time.time() - log.start, 1)
    log.save()
    check_export(model, encoder, o, log)
    log.record["total_seconds"] = round(time.time() - log.start, 1)
    log.save()
    log.say("done")


if __name__ == "__main__":
    main()
