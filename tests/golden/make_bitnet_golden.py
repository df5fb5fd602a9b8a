#!/usr/bin/env python3
"""Makes the golden logits of BitNet's own arithmetic: weights of three values, activations of 8 bits.

    python3 tests/golden/make_bitnet_golden.py    (writes into bitnet/ beside itself)

Needs torch, transformers, accelerate, safetensors and numpy; the versions used are in bitnet/manifest.json.
A small random BitNet, twice, each a folder of a checkpoint as a user would have it, without a tokenizer, with
tokens.i32 and logits.f32 as make_families.py says:

    online    master weights, bfloat16, which Transformers rounds whenever it multiplies with them
    packed    the same rounded once, four a byte, with a bfloat16 scale for each matrix

Logits are those of Transformers in float32, whose products round what they multiply by token.
"""

import json
import shutil
from pathlib import Path

import numpy
import safetensors.torch
import torch
import transformers
from transformers import AutoModelForCausalLM, BitNetConfig
from transformers.integrations.bitnet import pack_weights

HERE = Path(__file__).resolve().parent / "bitnet"
VOCAB, TOKENS = 136, 44


def master_weights(config, generator):
    model = AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("norm.weight"):
            noise = 1.0 + 0.3 * noise.clamp(-2.0, 2.0)
            if name == "model.norm.weight":  # lest each token predict itself, as the output is the embedding
                noise *= torch.randn(weight.shape, generator=generator).sign()
        elif "embed" in name:
            noise *= 0.5
        else:
            noise *= 1.3 / weight.shape[-1] ** 0.5
        weight.data.copy_(noise)
    return model.to(torch.bfloat16)


def packed(tensors):
    result = {}
    for name, value in tensors.items():
        if not name.endswith("_proj.weight"):
            result[name] = value
            continue
        mean = value.float().abs().mean().clamp(min=1e-5)
        result[name] = pack_weights((value.float() / mean).round().clamp(-1, 1))
        result[name + "_scale"] = mean.bfloat16().reshape(1)
    return result


def write(name, tensors, config):
    folder = HERE / name
    folder.mkdir(parents=True)
    quantization = {"quant_method": "bitnet", "linear_class": "autobitlinear", "modules_to_not_convert": None,
                    "quantization_mode": "online" if name == "online" else "offline"}
    (folder / "config.json").write_text(
        json.dumps({**config, "quantization_config": quantization}, indent=1, sort_keys=True) + "\n")
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    torch.nn.Module.float(model)  # packed numbers come in the type of the scales, whatever is asked for
    tokens = [1] + torch.randint(3, VOCAB, (TOKENS - 1,), generator=torch.Generator().manual_seed(7)).tolist()
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    numpy.array(tokens, "<i4").tofile(folder / "tokens.i32")
    logits.numpy().astype("<f4").tofile(folder / "logits.f32")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name:8} {size:7} bytes, largest logit {logits.abs().max():.2f}")


def main():
    torch.set_num_threads(1)
    torch._dynamo.config.disable = True
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    shutil.rmtree(HERE, ignore_errors=True)
    config = BitNetConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
        tie_word_embeddings=True, dtype="bfloat16", architectures=["BitNetForCausalLM"])
    model = master_weights(config, torch.Generator().manual_seed(3))
    tensors = {name: value.clone() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    saved = json.loads(config.to_json_string())
    write("online", tensors, saved)
    write("packed", packed(tensors), saved)
    (HERE / "manifest.json").write_text(json.dumps({
        "made_by": "tests/golden/make_bitnet_golden.py",
        "versions": {module.__name__: module.__version__ for module in (torch, transformers, safetensors, numpy)},
        "variants": [{"name": name} for name in ("online", "packed")]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
