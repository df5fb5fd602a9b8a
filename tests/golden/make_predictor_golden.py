#!/usr/bin/env python3
"""Makes the golden logits of heads that predict further tokens, of make_families.py's checkpoints.

    python3 tests/golden/make_predictor_golden.py    (writes beside itself, in predictors/)

Needs what make_families.py needs. Transformers has no such heads, but their layers: the model is loaded once
more with the head's tensors in the place of its last layer and norm, and that layer is given what a head
reads, P [norm(embedding of the next token), norm(hidden state)] (arXiv:2412.19437). What comes out are the
head's logits. Each NAME.f32 is [rows, vocab] float32, little-endian: those of the prompt's last tokens but
one, and then those after the likeliest token of the last of these, of which the head reads its own hidden
state.

Of several heads each reads the token after that which the one before it reads, beside the hidden state of the
head before, or the model's once more. No small checkpoint has several: further ones are the first one with
every tensor turned along its last axis, by one element more each. NAME_drafts.i32 is [rows, 1 + DRAFTED] int32: how
many of the prompt's tokens, and the likeliest ones after these, each of the next head and then of the last one,
beside its own hidden states; where none is nearly as likely as another.
"""

import copy
import json
import shutil
import tempfile
from pathlib import Path

import safetensors.torch
import torch
import transformers

import make_families

ROWS = 4
N_HEADS = 3
DRAFTED = 5
CUTS = range(5, 45, 3)
LEAST_MARGIN = 0.01
OUT = Path(__file__).resolve().parent / "predictors"


def behind(number, last):
    """Names of a layer behind the model's, as its last layer and norm have them."""
    head = f"model.layers.{number}."
    return {"layer": {head: f"model.layers.{last}."}, "projection": head + "eh_proj.weight",
            "embedding": head + "enorm.weight", "hidden": head + "hnorm.weight", "norm": head + "shared_head.norm.weight"}


def beside(layer):
    return {"layer": {"mtp.layers.0.": layer}, "projection": "mtp.fc.weight",
            "embedding": "mtp.pre_fc_norm_embedding.weight", "hidden": "mtp.pre_fc_norm_hidden.weight",
            "norm": "mtp.norm.weight"}


MIMO = "model.mtp.layers.0."
HEADS = {
    "glm4_moe": behind(2, 1),
    "deepseek_v3": behind(3, 2),
    "qwen3_5_multimodal": beside("model.language_model.layers.1."),
    "qwen3_next": beside("model.layers.1."),
    # Attention of the last layer and the feed-forward of the first; the hidden state is not normalized before.
    "mimo_v2_flash": {
        "layer": {MIMO + "self_attn.": "model.layers.2.self_attn.", MIMO + "input_layernorm.": "model.layers.2.input_layernorm.",
                  MIMO + "pre_mlp_layernorm.": "model.layers.2.post_attention_layernorm.", MIMO + "mlp.": "model.layers.0.mlp."},
        "projection": MIMO + "eh_proj.weight", "embedding": MIMO + "enorm.weight", "hidden": MIMO + "hnorm.weight",
        "norm": MIMO + "final_layernorm.weight", "ffn_of": 0, "before_norm": True},
}


def stack_of(model):
    inner = model.model
    return getattr(inner, "language_model", inner)


class Head:
    """A model whose last layer and norm are the head's."""

    def __init__(self, variant, names, turned=0):
        folder = make_families.FAMILIES / variant.name
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        begin = names["projection"].removesuffix("eh_proj.weight")
        for name, value in tensors.items():
            if turned > 0 and name.startswith(begin):
                tensors[name] = value.roll(turned, -1)
        final = next(name for name in tensors if name in ("model.norm.weight", "model.language_model.norm.weight"))
        changed = dict(tensors)
        for name, value in tensors.items():
            for begin, to in names["layer"].items():
                place = to + name.removeprefix(begin)
                if name.startswith(begin) and place in tensors:
                    changed[place] = value.clone()
        changed[final] = tensors[names["norm"]].clone()
        with tempfile.TemporaryDirectory() as place:
            shutil.copy(folder / "config.json", place)
            safetensors.torch.save_file(changed, Path(place) / "model.safetensors", metadata={"format": "pt"})
            self.model = make_families.load(variant, Path(place))
        plain = variant.restore(tensors, json.loads((folder / "config.json").read_text()))[0] if variant.restore else tensors
        stack = stack_of(self.model)
        if "ffn_of" in names:
            stack.layers[-1].mlp = stack.layers[names["ffn_of"]].mlp
        self.projection = plain[names["projection"]].float()
        self.norms = []
        for name in (names["embedding"], names["hidden"]):
            self.norms.append(copy.deepcopy(stack.norm))
            self.norms[-1].weight.data = plain[name].float()
        self.before_norm = names.get("before_norm", False)
        self.read = None  # [1, tokens, hidden], by the layer
        stack.layers[-1].register_forward_pre_hook(self.give, with_kwargs=True)

    def give(self, _, args, kwargs):
        return ((self.read, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": self.read})

    def run(self, tokens, hidden):
        """Logits after each token, which stands beside the hidden state of the one before; the hidden states."""
        embedded = self.model.get_input_embeddings()(torch.tensor([tokens]))
        self.read = torch.cat((self.norms[0](embedded), self.norms[1](hidden)), -1) @ self.projection.T
        return run(self.model, tokens, self.before_norm)


def run(model, tokens, before_norm):
    seen = []
    hook = stack_of(model).norm.register_forward_hook(lambda _, args, out: seen.append(args[0] if before_norm else out))
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    hook.remove()
    return logits, seen[-1]


def drafts(heads, hidden, tokens, are_chained):
    """Tokens after these, whose hidden states the model has given but for the last one's."""
    text, made = list(tokens), []
    for n in range(DRAFTED):
        number = min(n, N_HEADS - 1)
        if n == 0 or (n < N_HEADS and not are_chained):
            read = hidden
        elif n < N_HEADS:
            read = own
        else:
            read = torch.cat((read, own[:, -1:]), 1)
        logits, own = heads[number].run(text[number + 1:], read)
        likeliest = logits[-1].topk(2).values
        if likeliest[0] - likeliest[1] < LEAST_MARGIN:
            return None
        made.append(logits[-1].argmax().item())
        text.append(made[-1])
    return made


def write_drafts(variant, tokens, are_chained):
    names = HEADS[variant.name]
    with torch.no_grad():
        heads = [Head(variant, names, turned) for turned in range(N_HEADS)]
        _, hidden = run(make_families.load(variant, make_families.FAMILIES / variant.name), tokens, heads[0].before_norm)
        made = {cut: drafts(heads, hidden[:, :cut - 1], tokens[:cut], are_chained) for cut in CUTS}
    rows = [[cut, *drafted] for cut, drafted in made.items() if drafted]
    assert len(rows) > len(CUTS) / 2
    torch.tensor(rows).numpy().astype("<i4").tofile(OUT / f"{variant.name}_drafts.i32")
    print(f"{variant.name:20} {rows}", flush=True)


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    of = make_families
    variants = of.DEEPSEEK_VARIANTS + of.described_variants.VARIANTS + of.further_variants.VARIANTS
    variants += of.recurrent_variants.RECURRENT_VARIANTS + of.recurrent_variants.LATER_VARIANTS
    OUT.mkdir(exist_ok=True)
    for name, names in HEADS.items():
        variant = next(v for v in variants if v.name == name)
        tokens = torch.frombuffer(bytearray((of.FAMILIES / name / "tokens.i32").read_bytes()), dtype=torch.int32).tolist()
        with torch.no_grad():
            head = Head(variant, names)
            _, hidden = run(of.load(variant, of.FAMILIES / name), tokens, head.before_norm)
            hidden = hidden[:, :-1]
            logits, own = head.run(tokens[1:], hidden)
            further, _ = head.run(tokens[1:] + [logits[-1].argmax().item()], torch.cat((hidden, own[:, -1:]), 1))
        assert (further[:-1] - logits).abs().max() < 1e-4
        rows = torch.cat((logits[-ROWS:], further[-1:]))
        rows.numpy().astype("<f4").tofile(OUT / f"{name}.f32")
        print(f"{name:20} {tuple(rows.shape)}  largest logit {rows.abs().max():.2f}", flush=True)
        if name in ("glm4_moe", "mimo_v2_flash"):
            write_drafts(variant, tokens, are_chained=name != "mimo_v2_flash")


if __name__ == "__main__":
    main()
