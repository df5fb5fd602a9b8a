#!/usr/bin/env python3
"""Makes the families' golden checkpoints: a small random model of every family, and its logits.

    python3 tests/golden/make_families.py [NAME...]    (writes beside itself, in families/)

Needs torch, transformers, safetensors and numpy; the versions used are in families/manifest.json. The
results are committed, so only a change of this file needs Python. Each variant is a folder:

    config.json, model.safetensors    a checkpoint as a user would have it, in bfloat16, without a
                                      tokenizer: gqa/tokenizer.model beside it serves all
    tokens.i32      the prompt's token ids, int32, little-endian
    logits.f32      [tokens, vocab] float32, little-endian: eager attention, float32 arithmetic on the
                    weights as stored
    greedy.i32      the 24 ids with the largest logit that follow the prompt, none an end of text

All features of a family are on, in odd sizes: windows are shorter than the prompt, positions pass the
original context of scaled ropes, no bias is zero. The models of family_variants.py are Transformers' own
classes; families that it has no class for are in remote_families.py. The manifest's "unused" are
patterns of tensors that the text does not need.

Where the rule of a rope depends on the length of the text (dynamic), the logits are those of the whole
prompt, and there is no greedy text: Transformers keeps what it computed of earlier tokens with other
frequencies.
"""

import copy
import dataclasses
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy
import safetensors
import safetensors.torch
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config

import described_variants
import further_variants
import gemma4_variants
import recurrent_variants
import remote_families
import wrapped_variants
from deepseek_variants import DEEPSEEK_VARIANTS, router_margin
from family_variants import BASE, LATER_VARIANTS, VARIANTS

FAMILIES = Path(__file__).resolve().parent / "families"
GREEDY_TOKENS = 24
# A choice of a token or of an expert must be clear enough that rounding cannot turn it.
SMALLEST_GREEDY_MARGIN = 5e-3
SMALLEST_ROUTER_MARGIN = 2e-3
LARGEST_FOLDER = 205_000
LARGEST_ROUNDING = 1e-5  # of float32 logits, beside the largest one
# Whose weights are 1 + w; Gemma's are too.
ZERO_CENTRED_NORMS = ("Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm", "Qwen3NextRMSNorm", "Step3p7RMSNorm")


def randomize(model, generator):
    """Weights of a size that makes attention uneven, experts differ and logits of a few units. Where the
    output is the embedding, the final norm has weights of both signs, lest each token predict itself."""
    text_config = model.config.get_text_config()
    tied = getattr(text_config, "tie_word_embeddings", getattr(model.config, "tie_word_embeddings", False))
    for path, module in model.named_modules():
        kind = type(module).__name__
        for name, weight in module.named_parameters(recurse=False):
            noise = torch.randn(weight.shape, generator=generator)
            if kind.endswith("Norm") and name == "weight":
                value = 1.0 + (0.3 * noise).clamp(-0.6, 0.6)
                if tied and "layers." not in path and "h." not in path:
                    value *= noise.sign()
                of_gemma = kind.startswith("Gemma") and not kind.startswith(("Gemma3n", "Gemma4"))
                if of_gemma or kind in ZERO_CENTRED_NORMS:
                    value -= 1.0
            elif name == "scale":  # of a router's input, beside hidden_size ** -0.5
                value = 5.0 + 1.5 * noise
            elif name in ("per_expert_scale", "correct_output_scale"):
                value = 1.0 + 0.3 * noise
            elif name == "sinks":
                value = 1.5 * noise
            elif name in ("e_score_correction_bias", "expert_bias"):  # beside probabilities
                value = 0.1 * noise
            elif name == "gate_up_proj_bias":
                value = 4.0 * noise  # beyond the clamp's limit at times
            elif name.endswith("bias"):
                value = 0.3 * noise
            elif "Embedding" in kind or weight.shape[0] == BASE["vocab_size"]:
                value = 0.5 * noise
            else:  # GPT-2's and gpt-oss's matrices are [in, out]
                inputs = weight.shape[-2 if kind in ("Conv1D", "GptOssExperts", "Llama4TextExperts", "AriaExperts") else -1]
                value = (2.0 if "Router" in kind else 1.3) * noise / inputs**0.5
                if path.endswith("modality_router"):  # reads x / hidden_size
                    value *= 4.0
            weight.data.copy_(value)
        for name, values in module.named_buffers(recurse=False):
            if name == "e_score_correction_bias":
                values.copy_(0.1 * torch.randn(values.shape, generator=generator))
            if name == "layer_scalar":
                values.fill_(0.9 + 0.3 * torch.rand((), generator=generator))


FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def to_mxfp4(tensors):
    """Replaces experts' matrices [experts, in, out] by blocks of 32 inputs with a shared power of two,
    as gpt-oss stores them: *_blocks [experts, out, in / 32, 16] (the low half of a byte is the first
    number) and *_scales [experts, out, in / 32], both uint8."""
    packed = {}
    for name, value in tensors.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            packed[name] = value
            continue
        rows = value.float().transpose(1, 2).contiguous()
        groups = rows.reshape(*rows.shape[:2], -1, 32)
        exponent = torch.floor(torch.log2(groups.abs().amax(-1) / 4.0))
        scaled = groups / torch.exp2(exponent)[..., None]
        codes = (scaled[..., None] - FP4).abs().argmin(-1).to(torch.uint8)
        packed[name + "_blocks"] = codes[..., 0::2] | (codes[..., 1::2] << 4)
        packed[name + "_scales"] = (exponent + 127).to(torch.uint8)
    return packed


def model_class(variant):
    wrapped = "text_config" in variant.config or variant.name == "mistral4"  # which is in no other mapping
    return transformers.AutoModelForImageTextToText if wrapped else AutoModelForCausalLM


def save(variant, folder, generator):
    """Writes the checkpoint."""
    family = variant.family or variant.name
    known = vars(type(AutoConfig.for_model(family)))["__dataclass_fields__"]
    base = {key: value for key, value in BASE.items() if key in known}
    config = AutoConfig.for_model(family, **{**base, **variant.config})
    model = model_class(variant).from_config(config)
    randomize(model, generator)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    if variant.style:
        config = variant.style(config)
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    if variant.rename:
        tensors = variant.rename(tensors)
    if variant.name == "gpt_oss":
        tensors = to_mxfp4(tensors)
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    if variant.store:
        tensors, config = variant.store(tensors, config)
    write(folder, tensors, config)


def write(folder, tensors, config):
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load(variant, folder):
    """The model of the files, so that the golden logits are those of what was stored."""
    if variant.restore:
        with tempfile.TemporaryDirectory() as plain:
            tensors = safetensors.torch.load_file(folder / "model.safetensors")
            config = json.loads((folder / "config.json").read_text())
            write(Path(plain), *variant.restore(tensors, config))
            return load(dataclasses.replace(variant, restore=None), Path(plain))
    quantized = {"quantization_config": Mxfp4Config(dequantize=True)} if variant.name == "gpt_oss" else {}
    model, info = model_class(variant).from_pretrained(
        folder, dtype=torch.float32, attn_implementation=variant.attention,
        experts_implementation="eager", output_loading_info=True, **quantized)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    return model.eval()


class Router:
    """Watches the routers: how clearly the last expert chosen beats the first one not chosen."""

    def __init__(self, model):
        self.margin = float("inf")
        for module in model.modules():
            if "Router" in type(module).__name__:
                module.register_forward_hook(self.see)

    def see(self, module, _, output):
        if hasattr(module, "topk_group"):
            self.margin = min(self.margin, router_margin(module, output[0]))
            return
        used = module.top_k if hasattr(module, "top_k") else module.config.top_k_experts
        best = torch.topk(output[0], used + 1).values
        self.margin = min(self.margin, (best[..., -2] - best[..., -1]).min().item())


class PerturbedRouter:
    """Watches routers of any kind: whether they choose the same experts when their input is a bit off."""

    def __init__(self, model):
        self.generator = torch.Generator().manual_seed(1)
        self.steady = True
        for module in model.modules():
            if type(module).__name__.endswith(("Router", "Gate")):
                module.register_forward_hook(self.see, with_kwargs=True)

    @staticmethod
    def chosen(output):
        """[tokens, used] numbers of experts, or where the router gives none, all experts' weights above 0."""
        indices = [each for each in output if not each.is_floating_point()]
        return indices[0].sort(-1).values if indices else output[0] > 0.0

    def see(self, module, args, kwargs, output):
        for _ in range(4):
            noise = torch.randn(args[0].shape, generator=self.generator).to(args[0])
            again = type(module).forward(module, args[0] * (1.0 + 2e-3 * noise), *args[1:], **kwargs)
            self.steady &= bool(torch.equal(self.chosen(again), self.chosen(output)))


def all_logits(model, tokens):
    """[tokens, vocab]: the logits after each token."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0]


def greedy_text(variant, model, prompt, ends):
    """The greedy continuation, or none when a choice is not clear or the text ends."""
    ids = list(prompt)
    for _ in range(GREEDY_TOKENS):
        best = torch.topk(all_logits(model, ids)[-1], 2)
        if (best.values[0] - best.values[1]).item() < SMALLEST_GREEDY_MARGIN:
            return None
        ids.append(best.indices[0].item())
        if ids[-1] in ends:
            return None
    text = ids[len(prompt):]
    return text if len(set(text)) > GREEDY_TOKENS // 3 else None


def make(variant, seed):
    folder = FAMILIES / variant.name
    vocab = BASE["vocab_size"]
    perturbs = getattr(variant, "perturbs_routers", False)
    for attempt in range(100):
        generator = torch.Generator().manual_seed(1000 * attempt + seed)
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(variant, remote_families.Variant):
            config, model = remote_families.make(variant, folder, generator)
        else:
            save(variant, folder, generator)
            config = json.loads((folder / "config.json").read_text())
            model = load(variant, folder)
        router = PerturbedRouter(model) if perturbs else Router(model)
        ends = config.get("text_config", config).get("eos_token_id", 2)
        tokens = [1] + torch.randint(3, vocab - 8, (variant.prompt - 1,), generator=generator).tolist()
        # First, since a dynamic rope keeps the frequencies of the longest text that it has seen.
        logits = all_logits(model, tokens)
        if variant.name == "xglm":  # whose smallest number is a tensor of the default type
            torch.set_default_dtype(torch.float64)
        exact = all_logits(copy.deepcopy(model).double(), tokens)
        torch.set_default_dtype(torch.float32)
        continuation = greedy_text(variant, model, tokens, ends if isinstance(ends, list) else [ends])
        rounding = ((exact - logits).abs().max() / logits.abs().max()).item()
        margin = 0.0 if perturbs else router.margin
        steady = getattr(model, "steady", True) and (not perturbs or router.steady)
        least = getattr(variant, "router_margin", SMALLEST_ROUTER_MARGIN)
        clear = steady and (perturbs or margin > least)
        if continuation and clear and rounding < LARGEST_ROUNDING:
            break
    else:
        raise SystemExit(f"{variant.name}: no seed gives clear choices")
    assert logits.shape == (variant.prompt, vocab) and logits.dtype == torch.float32
    numpy.array(tokens, "<i4").tofile(folder / "tokens.i32")
    if variant.greedy:
        numpy.array(continuation, "<i4").tofile(folder / "greedy.i32")
    logits.numpy().astype("<f4").tofile(folder / "logits.f32")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{variant.name:22} {size:7} bytes  attempt {attempt:2}  largest logit {logits.abs().max():5.2f}"
          f"  rounding {rounding:.1e}  router {margin:.1e}", flush=True)
    assert size < LARGEST_FOLDER
    return {"name": variant.name, "what": variant.what, "family": config["model_type"],
            "tokens": variant.prompt, "vocab": vocab, "greedy": GREEDY_TOKENS if variant.greedy else 0,
            "unused": list(variant.unused)}


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wanted = sys.argv[1:]
    path = FAMILIES / "manifest.json"
    known = {entry["name"]: entry for entry in
             (json.loads(path.read_text())["variants"] if wanted and path.exists() else [])}
    variants = VARIANTS + remote_families.VARIANTS + LATER_VARIANTS + recurrent_variants.RECURRENT_VARIANTS
    variants += described_variants.VARIANTS + remote_families.LATER_VARIANTS
    variants += gemma4_variants.VARIANTS + DEEPSEEK_VARIANTS
    seeds = list(range(len(variants)))
    # Lists that grew side by side: each goes on with the seeds.
    side_by_side = (recurrent_variants.LATER_VARIANTS, further_variants.VARIANTS, wrapped_variants.VARIANTS)
    for more in side_by_side:
        seeds += range(len(variants), len(variants) + len(more))
    variants += sum(side_by_side, [])
    for seed, variant in zip(seeds, variants):
        if not wanted or variant.name in wanted:
            known[variant.name] = make(variant, seed)
    manifest = {
        "made_by": "tests/golden/make_families.py",
        "versions": {module.__name__: module.__version__
                     for module in (torch, transformers, safetensors, numpy)},
        "variants": [known[variant.name] for variant in variants if variant.name in known],
    }
    path.write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main()
