#!/usr/bin/env python3
"""Makes the golden adapters: small random models, adapters of low rank beside them, and the logits of both.

    python3 tests/golden/make_adapters.py            (writes into adapters/ beside itself)

Needs torch, transformers, peft and safetensors; the versions used are in adapters/manifest.json. The results
are committed, so only a change of this file needs Python. Each variant is a folder:

    config.json, model.safetensors    a checkpoint in bfloat16 as a user would have it, but for a tokenizer
    adapter/, ...                     what PEFT saves of the adapters, in the order of the manifest
    tokens.i32      token ids, int32, little-endian
    logits.f32      [tokens, vocab] float32, little-endian: PEFT's, with nothing merged, in float32
"""

import copy
import importlib.metadata
import json
import shutil
from pathlib import Path

import safetensors.torch
import torch
import transformers
from peft import LoraConfig, get_peft_model

HERE = Path(__file__).resolve().parent / "adapters"
VOCAB = 24
TOKENS = 10
LARGEST_FOLDER = 40_000

SIZES = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
         "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, "tie_word_embeddings": False}
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def llama(**changes):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **changes}))


def qwen2(**changes):
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**SIZES, **changes}))


def phi3():
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**SIZES))


def mixtral():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        **SIZES, num_local_experts=3, num_experts_per_tok=2))


def gpt_oss():
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(
        **{**SIZES, "intermediate_size": 16}, head_dim=4, num_local_experts=3, num_experts_per_tok=2))


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2))


def llava():
    text = transformers.LlamaConfig(**SIZES)
    vision = transformers.CLIPVisionConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=2,
                                           num_attention_heads=2, image_size=8, patch_size=4, projection_dim=8)
    return transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(
        text_config=text, vision_config=vision, image_token_index=VOCAB - 1, tie_word_embeddings=False))


# name, what, model, the adapters' LoraConfigs, more: see make().
VARIANTS = [
    ("llama", "queries and values, as PEFT does by default", llama,
     [dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])], {}),
    ("patterns", "rsLoRA, ranks and alphas by patterns, in bfloat16", llama,
     [dict(r=4, lora_alpha=6, use_rslora=True, target_modules=ALL_LINEAR,
           rank_pattern={"k_proj": 7, r"layers\.1\.mlp\..*": 2, "o_proj": 5},  # PEFT saves them sorted
           alpha_pattern={"^model.layers.0.mlp.up_proj": 3, "q_proj": 5, "up_proj": 9})], {"dtype": torch.bfloat16}),
    ("fused", "modules that hold queries, keys and values, and gate and up", phi3,
     [dict(r=3, lora_alpha=6, target_modules=["qkv_proj", "o_proj", "gate_up_proj"])], {}),
    ("two", "two adapters, the second in PyTorch's own format", llama,
     [dict(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"]),
      dict(r=3, lora_alpha=3, target_modules=["q_proj", "up_proj"])], {"pytorch": 1}),
    ("gpt2", "matrices [in, out], square ones among them; names without \"transformer.\"", gpt2,
     [dict(r=3, lora_alpha=4, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)],
     {"strip": "transformer."}),
    ("gpt2_dora", "the same with magnitudes", gpt2,
     [dict(r=3, lora_alpha=4, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True, use_dora=True)], {}),
    ("dora", "DoRA", llama, [dict(r=4, lora_alpha=8, target_modules=ALL_LINEAR, use_dora=True)], {}),
    ("output", "a tied output that the adapter has as a whole", lambda: llama(tie_word_embeddings=True),
     [dict(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["lm_head"])], {}),
    ("embedding", "a tied embedding that is changed where tokens are read", lambda: llama(tie_word_embeddings=True),
     [dict(r=2, lora_alpha=4, target_modules=["q_proj", "embed_tokens"])], {}),
    ("tied", "a tied embedding that is changed in both places", lambda: llama(tie_word_embeddings=True),
     [dict(r=2, lora_alpha=4, target_modules=["q_proj", "embed_tokens"], ensure_weight_tying=True)], {}),
    ("biases", "all biases, and biases of factors", qwen2,
     [dict(r=2, lora_alpha=5, target_modules=["q_proj", "k_proj", "v_proj"], bias="all", lora_bias=True)], {}),
    ("text_model", "the text model of a multimodal one, and modules of what is left out", llava,
     [dict(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj", "fc1"])], {}),
    ("experts", "parameters of experts and a router, which are tensors of each expert under other names", mixtral,
     [dict(r=2, lora_alpha=3, target_modules=["q_proj"], rank_pattern={r".*\.gate_up_proj": 4},
           alpha_pattern={r".*\.gate_up_proj": 5},
           target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"])], {}),
    ("joined_experts", "parameters of experts that are [experts, in, out], one of them square", gpt_oss,
     [dict(r=2, lora_alpha=3, target_modules=["q_proj"],
           target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])], {}),
    ("vocabulary", "an embedding and an output for two more tokens than the checkpoint has", llama,
     [dict(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])],
     {"more_tokens": 2}),
]


def randomize(model, generator):
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        value = 1 + 0.3 * noise if "norm" in name.lower() or "ln_" in name else 0.4 * noise
        weight.data = value.bfloat16().float()


def randomize_adapter(model, name, generator, dtype):
    for path, weight in model.named_parameters():
        is_bias = path.endswith(".bias") and "lora_" not in path and weight.requires_grad
        if f".{name}" not in path and not is_bias:
            continue
        noise = torch.randn(weight.shape, generator=generator)
        if "lora_magnitude_vector" in path:
            value = weight.data * (1 + 0.3 * noise).abs()
        else:
            value = 0.4 * noise
        weight.data = value.to(dtype).float()


def save_base(model, folder, strip):
    copy.deepcopy(model).bfloat16().save_pretrained(folder)  # the model's own frequencies stay as they are
    (folder / "generation_config.json").unlink(missing_ok=True)
    if strip:
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        tensors = {name.removeprefix(strip): tensor for name, tensor in tensors.items()}
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def save_adapter(model, name, folder, dtype, as_pytorch):
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(dtype)
    model.save_pretrained(folder.parent / "saved", selected_adapters=[name])
    saved = folder.parent / "saved"
    shutil.move(saved / name if (saved / name).exists() else saved, folder)
    shutil.rmtree(saved, ignore_errors=True)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    for key in ("target_modules", "target_parameters"):  # sets, in no order
        config[key] = config[key] and sorted(config[key])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    if as_pytorch:
        tensors = safetensors.torch.load_file(folder / "adapter_model.safetensors")
        torch.save(tensors, folder / "adapter_model.bin")
        (folder / "adapter_model.safetensors").unlink()
    for weight in model.parameters():
        weight.data = weight.data.float()


def make(number, name, build, adapters, dtype=torch.float32, pytorch=None, strip="", more_tokens=0):
    generator = torch.Generator().manual_seed(number)
    torch.manual_seed(number)
    folder = HERE / name
    model = build().eval()
    randomize(model, generator)
    save_base(model, folder, strip)
    if more_tokens:
        model.resize_token_embeddings(VOCAB + more_tokens)
    names = ["default" if i == 0 else f"number{i}" for i in range(len(adapters))]
    peft = get_peft_model(model, LoraConfig(**adapters[0], task_type="CAUSAL_LM"))
    for other, config in zip(names[1:], adapters[1:]):
        peft.add_adapter(other, LoraConfig(**config, task_type="CAUSAL_LM"))
    folders = []
    for i, adapter in enumerate(names):
        peft.set_adapter(adapter)
        randomize_adapter(peft, adapter, generator, dtype)
        folders.append("adapter" if i == 0 else f"adapter{i + 1}")
        save_adapter(peft, adapter, folder / folders[-1], dtype, pytorch == i)
    peft.base_model.set_adapter(names)
    peft.eval()
    tokens = torch.randint(3, VOCAB - 1, (1, TOKENS), generator=generator)
    tokens[0, 0] = 1
    with torch.no_grad():
        logits = peft(input_ids=tokens).logits[0].float()
        with peft.disable_adapter():
            without = peft(input_ids=tokens).logits[0].float()
    assert (logits - without).abs().max() > 0.05 * logits.abs().max(), name
    tokens[0].int().numpy().astype("<i4").tofile(folder / "tokens.i32")
    logits.numpy().astype("<f4").tofile(folder / "logits.f32")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert size < LARGEST_FOLDER, (name, size)
    return folders


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    variants = []
    for number, (name, what, build, adapters, more) in enumerate(VARIANTS):
        folders = make(number, name, build, adapters, **more)
        variants.append({"name": name, "what": what, "adapters": folders})
    versions = {package: importlib.metadata.version(package)
                for package in ("torch", "transformers", "peft", "safetensors")}
    versions["torch"] = torch.__version__
    manifest = {"made_by": "tests/golden/make_adapters.py", "versions": versions, "variants": variants}
    (HERE / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


main()
