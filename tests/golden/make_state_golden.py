#!/usr/bin/env python3
"""Makes the golden states of recurrent layers: what Transformers keeps of a long text.

    python3 tests/golden/make_state_golden.py

writes in states/ beside itself

    tokens.i32   the text's token ids, int32, little-endian
    MODEL.f32    float32, little-endian: of each recurrent layer of a folder in families/ (made by
                 make_families.py) the state after the text, the last elements of its convolution
                 [taps - 1, channels] and then its matrices [heads, key_dim, value_dim], or of a
                 selective scan [state_size, channels]
    versions.json
"""

import json
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
VOCAB = 136
TOKENS = 4000
MODELS = ["qwen3_5", "mamba2", "mamba", "kimi_linear_saved"]


def states(name, text):
    model = AutoModelForCausalLM.from_pretrained(
        HERE / "families" / name, dtype=torch.float32, attn_implementation="eager").eval()
    config = model.config
    with torch.no_grad():
        out = model(torch.tensor([text]), use_cache=True)
    is_mamba = name.startswith("mamba")
    cache = out.cache_params if is_mamba else out.past_key_values
    types = getattr(config, "layer_types", None) or ["linear_attention"] * config.num_hidden_layers
    taps = config.conv_kernel if is_mamba else config.linear_conv_kernel_dim
    parts = []
    for n, kind in enumerate(types):
        if kind != "linear_attention":
            continue
        matrices = cache.layers[n].recurrent_states[0][0]
        if is_mamba:  # [heads, value_dim, key_dim] or [channels, state_size]
            matrices = matrices.transpose(-2, -1)
        parts += [cache.layers[n].conv_states[0][0, :, 1 - taps:].T, matrices]
    return torch.cat([part.reshape(-1) for part in parts])


def main():
    folder = HERE / "states"
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(15)
    text = [1] + torch.randint(3, VOCAB, (TOKENS - 1,), generator=generator).tolist()
    torch.tensor(text, dtype=torch.int32).numpy().tofile(folder / "tokens.i32")
    for name in MODELS:
        values = states(name, text)
        print(f"{name:10} {values.numel()} floats, largest {values.abs().max():.4g}")
        values.numpy().astype("<f4").tofile(folder / f"{name}.f32")
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    (folder / "versions.json").write_text(json.dumps(versions) + "\n")


if __name__ == "__main__":
    main()
