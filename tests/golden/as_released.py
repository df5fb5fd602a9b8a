"""Writes checkpoints of Transformers as the authors of a model have released theirs, where their own code differs.

Each function changes a folder and returns one with the same model for Transformers, in `expected`. make_encoders.py uses
this file.
"""

import json
import re
import shutil

import torch
from safetensors.torch import load_file, save_file

TASKS = ("retrieval.query", "retrieval.passage", "separation")
RANK, ALPHA = 2, 3


def read(folder):
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def write(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def copy_plain(folder, expected):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, expected)
    return expected


def gte(folder, expected, _generator, _variant):
    """Alibaba's: another rule for rotations, and a head that weighs tokens."""
    copy_plain(folder, expected)
    config, tensors = read(folder)
    factor = 8.0
    theta = config.pop("rope_parameters")["rope_theta"] / factor
    config.update(model_type="new", architectures=["NewModel"], rope_theta=theta, rope_scaling={"type": "ntk", "factor": factor},
                  position_embedding_type="rope", pack_qkv=True, layer_norm_type="layer_norm", logn_attention_scale=False)
    tensors = {f"new.{name}": tensor for name, tensor in tensors.items()}
    tensors["classifier.weight"] = torch.ones(1, config["hidden_size"], dtype=torch.bfloat16)
    write(folder, config, tensors)
    return expected


def jina_with_tasks(folder, expected, generator, variant):
    """Each matrix has adapters of all tasks beside it (modeling_lora.py of jinaai/xlm-roberta-flash-implementation): those
    of embeddings are A · B of [rows, rank] and [rank, columns], the others B · A."""
    config, tensors = read(folder)
    number = TASKS.index(variant["task"])
    merged, released = {}, {}
    for name, weight in tensors.items():
        if weight.dim() != 2:
            merged[name] = released[f"roberta.{name}"] = weight
            continue
        rows, columns = weight.shape
        shapes = {"A": (RANK, columns), "B": (rows, RANK)}
        if "embeddings" in name:
            shapes = {"A": (rows, RANK), "B": (RANK, columns)}
        factors = {key: (0.25 * torch.randn(len(TASKS), *shape, generator=generator)).to(torch.bfloat16)
                   for key, shape in shapes.items()}
        a, b = (factors[key][number].float() for key in "AB")
        merged[name] = weight.float() + ALPHA / RANK * (a @ b if "embeddings" in name else b @ a)
        module = f"roberta.{name.removesuffix('.weight')}.parametrizations.weight"
        released[f"{module}.original"] = weight
        for key, factor in factors.items():
            released[f"{module}.0.lora_{key}"] = factor
    write(expected, config, merged)
    theta = config.pop("rope_parameters")["rope_theta"]
    config.update(model_type="xlm-roberta", architectures=["XLMRobertaModel"], position_embedding_type="rotary",
                  rotary_emb_base=theta, lora_adaptations=TASKS, lora_rank=RANK, lora_alpha=ALPHA, lora_dropout_p=0.0,
                  use_flash_attn=True,
                  task_instructions={task: variant["prompt"] if task == variant["task"] else "" for task in TASKS})
    write(folder, config, released)
    return expected


def flash_roberta(folder, expected, _generator, _variant):
    """Jina's rankers: the names of the code for FlashAttention."""
    copy_plain(folder, expected)
    config, tensors = read(folder)
    renamed = {}
    for name, tensor in tensors.items():
        name = name.replace("embeddings.LayerNorm", "emb_ln").replace("encoder.layer.", "encoder.layers.")
        if match := re.fullmatch(r"(.*)\.attention\.self\.(query|key|value)\.(weight|bias)", name):
            layer, kind, member = match.groups()
            renamed.setdefault(f"{layer}.mixer.Wqkv.{member}", {})[kind] = tensor
            continue
        for before, after in (("attention.output.dense", "mixer.out_proj"), ("attention.output.LayerNorm", "norm1"),
                              ("intermediate.dense", "mlp.fc1"), ("output.dense", "mlp.fc2"), ("output.LayerNorm", "norm2")):
            name = name.replace(before, after)
        renamed[name] = tensor
    tensors = {name: torch.cat([value[kind] for kind in ("query", "key", "value")]) if isinstance(value, dict) else value
               for name, value in renamed.items()}
    config.update(position_embedding_type="absolute", use_flash_attn=True)
    write(folder, config, tensors)
    return expected
