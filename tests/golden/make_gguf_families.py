#!/usr/bin/env python3
"""Makes the GGUF golden data of tests/golden/gguf_families/: checkpoints of tests/golden/families/ as
llama.cpp's own converter writes them, for architectures that differ from each other.

Run with llama.cpp's sources, which have the converter and its gguf-py, and with what make_families.py
and make_gguf_golden.py need:

    tests/golden/make_gguf_families.py LLAMA_CPP [--all] [--out FOLDER] [NAME...]

NAME.gguf       the checkpoint families/NAME in bfloat16, with the tokenizer of "gqa"
manifest.json   the names, the architectures that they became, and what these cannot say

Likewise gguf_encoders/, of encoders/ with their own tokenizers, and gguf_seq2seq/, of seq2seq/.

With --all: every family that the converter takes, to be compared by hand.
"""

import argparse
import json
import logging
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent

STORED = [
    "qwen3_next", "qwen3_5", "qwen3_5_moe", "mamba", "falcon_mamba", "jamba", "mamba2", "bamba", "granitemoehybrid",
    "granitemoehybrid_dense", "nemotron_h", "glm4_moe", "solar_open", "dots1", "seed_oss", "ernie4_5",
    "ernie4_5_moe", "exaone4", "exaone_moe", "arcee", "nemotron", "minimax_m2", "jais2", "apertus",
    "llama4_text", "olmo", "gpt_bigcode", "phi", "afmoe", "qwen", "bailing_moe", "bailing_moe_v2",
    "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3", "cohere2_moe", "mellum", "deepseek_v32",
    "glm_moe_dsa", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "phimoe", "mpt", "hunyuan_vl", "paddleocr_vl",
    "mistral4", "mimo_v2_flash", "kimi_linear", "lfm2", "lfm2_moe", "falcon_h1_released", "gemma3n_released",
    "minicpm3_released", "minimax_released", "granite_swa", "granitemoe_swa", "glm4_moe_lite", "youtu", "nemotron_h_dense",
    "bailing_hybrid", "deepseek_ocr2", "minicpm", "laguna", "step3p5",
]
# "gguf_encoders"; of some the metadata cannot say how vectors are made.
ENCODERS = ["bert", "roberta", "xlm_roberta_rank", "distilbert", "distilbert_rank", "nomic_bert", "modernbert",
            "modernbert_rank", "eurobert", "jina_bert", "qwen3", "gemma_embedding", "t5_encoder",
            "nomic_bert_moe_unbiased", "neobert", "neobert_rank", "jina_embeddings_v3"]
# "gguf_seq2seq": their distances have the one length that metadata do not say.
SEQ2SEQ = ["t5", "t5_v1_1", "umt5"]
# Weights that the converter multiplies are in float32, lest they be rounded.
IN_FLOAT32 = {"falcon_h1_released"}
# Whose config.json Transformers would complete, or whose names it would change.
AS_IT_IS = {"nemotron_h_dense", "bailing_hybrid", "nomic_bert_moe_unbiased", "step3p5"}


def permuted(weight, heads):
    """The order of rows that the converter gives Q and K."""
    shape = (heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape)


def use_older_names_of_layers(config):
    older = {"linear_attention": "mamba", "full_attention": "attention"}
    config["layer_types"] = [older.get(name, name) for name in config["layer_types"]]


def use_plain_rope(config):
    """What Hunyuan's rule amounts to; the converter takes the numbers of released models alone."""
    rope = config["rope_parameters"]
    dim = config["head_dim"]
    theta = rope["rope_theta"] * rope["alpha"] ** (dim / (dim - 2))
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}


def name_experts_of_layers(config):
    layers = config["num_hidden_layers"]
    config.update(moe_intermediate_size=[config["intermediate_size"]] * layers,
                  moe_topk=[config["moe_topk"]] * layers, num_shared_expert=[1] * layers)


def use_sigmoid(config):
    config["scoring_func"] = "sigmoid"


def use_names_of_minimax(config):
    """Those of releases; attention that is not linear rotates whole heads."""
    config.update(architectures=["MiniMaxText01ForCausalLM"], rotary_dim=config["head_dim"])
    for name, branch in (("full_attention", "full_attn"), ("linear_attention", "linear_attn"), ("mlp", "mlp")):
        for factor in ("alpha", "beta"):
            config[f"layernorm_{name}_{factor}"] = config[f"{branch}_{factor}_factor"]


def use_pattern_of_nemotron(config):
    """That of releases, which say nothing of experts."""
    letters = {"linear_attention": "M", "mlp": "-", "full_attention": "*"}
    for number in ("num_experts_per_tok", "n_routed_experts", "n_shared_experts", "n_group", "topk_group"):
        config.pop(number)
    config.update(mamba_d_head=config["mamba_head_dim"],
                  hybrid_override_pattern="".join(letters[name] for name in config.pop("layers_block_type")),
                  num_hidden_layers=5)


def say_what_rotates(config):
    config["no_rope_layers"] = [int(theta != 0) for theta in config["layer_rope_theta"]]


def use_names_of_ling(config):
    """Ling 3's, whose groups of layers say which have attention."""
    config.update(architectures=["BailingMoeV3ForCausalLM"], no_kda_lora=True, layer_group_size=2, head_dim=config["linear_head_dim"],
                  gated_attention_proj_granularity_type="head_wise", norm_topk_prob=True, score_function="sigmoid",
                  n_group=config["num_expert_group"], moe_shared_expert_intermediate_size=config["moe_intermediate_size"],
                  num_experts_per_tok=config["num_experts_per_token"], max_position_embeddings=config["model_max_length"])


def use_names_of_ocr(config):
    """Those of the first release."""
    config.update(config.pop("text_config"), architectures=["DeepseekOCRForCausalLM"], first_k_dense_replace=1,
                  qk_rope_head_dim=0)


def use_names_of_nomic(config):
    """Those of the release, whose length the converter looks for."""
    config.update(n_layer=config["num_hidden_layers"], n_embd=config["hidden_size"], n_inner=config["intermediate_size"],
                  n_head=config["num_attention_heads"], n_positions=2048, max_trained_positions=2048,
                  activation_function="swiglu", causal=False, qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False,
                  prenorm=False, rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None)


def use_names_of_modernbert(config):
    config.update(layer_norm_eps=config["norm_eps"])


def use_names_of_jina(config):
    """Those of the release, which has adapters: they would be in files of their own."""
    config.update(model_type="xlm-roberta", architectures=["XLMRobertaModel"], position_embedding_type="rotary",
                  rotary_emb_base=config.pop("rope_parameters")["rope_theta"], lora_adaptations=["none"])


# What the converter looks for in config.json and does not find in what Transformers 5 writes.
CHANGES = {
    "bailing_hybrid": use_names_of_ling,
    "deepseek_ocr2": use_names_of_ocr,
    "nomic_bert": use_names_of_nomic,
    "jina_embeddings_v3": use_names_of_jina,
    "nomic_bert_moe_unbiased": lambda config: config.update(n_positions=2048),  # which the converter looks for
    "modernbert": use_names_of_modernbert,
    "modernbert_rank": use_names_of_modernbert,
    "granitemoehybrid": use_older_names_of_layers,
    "granitemoehybrid_dense": use_older_names_of_layers,
    "bamba": lambda config: config.update(attn_rotary_emb=6),
    "nemotron_h": lambda config: config.update(mamba_d_head=config["mamba_head_dim"]),
    "nemotron_h_dense": use_pattern_of_nemotron,
    "hunyuan_v1_dense": use_plain_rope,
    "hunyuan_v1_moe": name_experts_of_layers,
    "glm4_moe": lambda config: config.update(num_nextn_predict_layers=1),
    "deepseek_v3": use_sigmoid,
    "deepseek_v32": use_sigmoid,
    "glm4_moe_lite": use_sigmoid,
    "glm_moe_dsa": use_sigmoid,
    "solar_open": lambda config: config["rope_parameters"].update(partial_rotary_factor=1.0),
    "cohere2": lambda config: config.update(rotary_pct=1.0),
    "gpt2": lambda config: config.update(n_ctx=config["n_positions"]),
    "phimoe": lambda config: config.update(architectures=["PhiMoEForCausalLM"]),
    "mimo_v2_flash": lambda config: config.update(topk_method="noaux_tc", rope_parameters={
        "rope_theta": config["rope_theta"], "partial_rotary_factor": config["partial_rotary_factor"]}),
    "minimax_released": use_names_of_minimax,
    "falcon_h1_released": lambda config: config.update(
        head_dim=config["hidden_size"] // config["num_attention_heads"]),
    "granite_swa": say_what_rotates,
    "mpt": lambda config: config.update(architectures=["MPTForCausalLM"]),
    "mistral4": lambda config: config.update(architectures=["Mistral3ForConditionalGeneration"]),
}
# What it takes for granted, by the name of the method that writes it: widths of four times the hidden
# size, as many heads of keys as of queries, no rotation beside state spaces.
METADATA = {
    "gpt_bigcode": {"add_feed_forward_length": 44},
    "phi": {"add_feed_forward_length": 44, "add_head_count_kv": 1},
    "granitemoehybrid_dense": {"add_rope_scaling_finetuned": True},
}
# What it could write and does not.
ADDED = {
    "lfm2_moe": {"add_expert_weights_scale": 1.5},
}
# Where the checkpoint says what metadata cannot: the logits differ.
OTHER_LOGITS = {
    "falcon_mamba": "another epsilon of latents' norms",
    "mamba2": "limits of steps",
    "llama4_text": "chunks of other sizes than the released models'",
    "afmoe": "another interval of layers without windows",
    "dots1": "windows",
    "phimoe": "another margin of the router than the release's",
    "mpt": "a scale of scores of its own",
    "kimi_linear": "groups of experts, which the released models lack",
    "mellum": "weights of experts that are not normalized",
    "granite_swa": "several bases of rotations",
}
# Where the converter folds into weights what the description has beside them; the logits are the same.
OTHER_TENSORS = {
    "falcon_h1_released": ["embedding", "attention_qkv", "output_norm", "output"],
}


def llama_cpp_model(base, config, write_vocabulary, gguf):
    """The converter's class of a model, with a tokenizer, and with the names of tensors that its architecture lacks but
    its converted models may have."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 64)

    class Model(base):
        model_arch = base.model_arch

        def set_vocab(self):
            write_vocabulary(self)

        def get_vocab_base_pre(self, tokenizer):  # of a vocabulary that no release has
            return "default"

        def is_full_attention(self, bid):  # of Ling 3's last layers, whatever group they are in
            return config["layer_types"][bid] == "full_attention"

        def _try_set_pooling_type(self):
            try:
                super()._try_set_pooling_type()
            except NotImplementedError:  # one that metadata cannot say
                pass

        def _get_suppress_tokens(self):  # which needs a tokenizer of the release
            return None

        def map_tensor_name(self, name, try_suffixes=(".weight", ".bias")):
            try:
                return super().map_tensor_name(name, try_suffixes)
            except ValueError:
                known = names.get_name(key=name, try_suffixes=try_suffixes)
                if known is None:
                    raise
                return known

        def modify_tensors(self, data, name, bid):
            # Rows of biases are left where they are, unlike those of their weights.
            for heads, projection in (("num_attention_heads", "q_proj"), ("num_key_value_heads", "k_proj")):
                if base.__name__ in ("OlmoModel", "MiniCPMModel") and name.endswith(projection + ".bias"):
                    data = permuted(data, config[heads])
            if base.__name__ == "BailingMoeModel" and name.endswith("query_key_value.bias"):
                heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
                dim = config["head_dim"]
                q, k, v = data.split([heads * dim, kv_heads * dim, kv_heads * dim])
                yield f"blk.{bid}.attn_q.bias", base.permute(q, heads, heads)
                yield f"blk.{bid}.attn_k.bias", base.permute(k, heads, kv_heads)
                yield f"blk.{bid}.attn_v.bias", v
                return
            if base.__name__.startswith("Cohere2") and name.endswith(".bias"):  # refused as not zero
                yield self.map_tensor_name(name), data
                return
            if base.__name__ == "LFM2Model" and name.endswith("conv.conv.bias"):  # taken for weights
                yield self.map_tensor_name(name), data
                return
            if name.endswith(("slope_rate", "_decay")):  # tables, which releases lack
                return
            yield from super().modify_tensors(data, name, bid)

    return Model


def write(name, group, modules, make_tokenizer):
    gguf, torch, conversion = modules
    source, out, of_encoders = HERE / group.source, HERE / group.out, group.source == "encoders"
    with tempfile.TemporaryDirectory() as temporary, torch.inference_mode():
        folder = Path(temporary) / name
        shutil.copytree(source / name, folder)
        shutil.copy(HERE / "gqa" / "tokenizer.model", folder)
        config = json.loads((folder / "config.json").read_text())
        CHANGES.get(name, lambda config: None)(config)
        (folder / "config.json").write_text(json.dumps(config))
        if of_encoders:  # names of special tokens, as releases have them
            (folder / "tokenizer_config.json").write_text(json.dumps({
                "tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "[CLS]", "sep_token": "[SEP]",
                "unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}))
        hparams = conversion.ModelBase.load_hparams(folder, False)
        architecture = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
        base = conversion.get_model_class(architecture)
        text = config.get("text_config", config)
        text["vocab_size"] = text.get("vocab_size") or text["padded_vocab_size"]
        if of_encoders:
            from conversion.bert import BertModel
            write_vocabulary = BertModel.set_vocab
        else:
            def write_vocabulary(model):
                make_tokenizer(model.gguf_writer, folder / "tokenizer.model", text)
        model = llama_cpp_model(base, text, write_vocabulary, gguf)
        model.no_mtp = not has_heads(folder / "model.safetensors") and base.supports_mtp_export
        kind = gguf.LlamaFileType.ALL_F32 if name in IN_FLOAT32 else gguf.LlamaFileType.MOSTLY_BF16
        given = {"hparams": config} if name in AS_IT_IS else {}
        if of_encoders:
            given["sentence_transformers_dense_modules"] = True
        instance = model(folder, kind, out / f"{name}.gguf", **given)
        if hasattr(instance, "impl"):  # of another class, which has a vocabulary of its own
            instance.impl.set_vocab = lambda: write_vocabulary(instance.impl)
        for method, value in METADATA.get(name, {}).items():
            add = getattr(instance.gguf_writer, method)
            setattr(instance.gguf_writer, method, lambda _, add=add, value=value: add(value))
        for method, value in ADDED.get(name, {}).items():
            getattr(instance.gguf_writer, method)(value)
        instance.write()
        for adapter in out.glob(f"lora-*-{name}.gguf"):
            adapter.unlink()
    return gguf.GGUFReader(out / f"{name}.gguf").get_field("general.architecture").contents()


def has_heads(path):
    """Whether a checkpoint has heads that predict further tokens. A tensor that stands for them is
    taken away."""
    tensors = load_file(path)
    if any(name.endswith(("eh_proj.weight", "mtp.fc.weight")) for name in tensors):
        return True
    rest = {name: value for name, value in tensors.items()
            if not name.startswith("mtp.") and not name.endswith(".enorm.weight")}
    save_file(rest, path)
    return False


class Group(NamedTuple):
    source: str
    out: str
    names: list


GROUPS = [Group("families", "gguf_families", STORED), Group("encoders", "gguf_encoders", ENCODERS),
          Group("seq2seq", "gguf_seq2seq", SEQ2SEQ)]


def write_group(group, names, every, modules, make_tokenizer):
    out = HERE / group.out
    out.mkdir(exist_ok=True)
    known = out / "manifest.json"
    variants = {}
    if names != group.names and known.exists():
        variants = {v["name"]: v["architecture"] for v in json.loads(known.read_text())["variants"]}
    for name in names:
        try:
            variants[name] = write(name, group, modules, make_tokenizer)
            print(name, variants[name])
        except Exception as error:
            if not every:
                raise
            (out / f"{name}.gguf").unlink(missing_ok=True)
            print(name, "is not converted:", error)
    known.write_text(json.dumps({
        "made_by": "tests/golden/make_gguf_families.py",
        "variants": [{"name": name, "architecture": variants[name],
                      "other_logits": OTHER_LOGITS.get(name, ""),
                      "other_tensors": OTHER_TENSORS.get(name, [])} for name in variants]},
        indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("llama_cpp", type=Path)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--out", type=Path, help="of families, with --all or with names")
    options = parser.parse_intermixed_args()
    sys.path[:0] = [str(options.llama_cpp), str(options.llama_cpp / "gguf-py")]
    import conversion
    import gguf
    import torch
    from make_gguf_golden import add_tokenizer
    logging.disable(logging.WARNING)

    modules = (gguf, torch, conversion)
    if options.all:
        manifest = json.loads((HERE / "families" / "manifest.json").read_text())
        names = [variant["name"] for variant in manifest["variants"]]
        write_group(GROUPS[0]._replace(out=options.out or GROUPS[0].out), names, True, modules, add_tokenizer)
        return
    for group in GROUPS:
        names = [name for name in group.names if name in options.names] if options.names else group.names
        if options.out:
            group = group._replace(out=options.out)
            names = [name for name in options.names if (HERE / group.source / name).exists()]
        if names:
            write_group(group, names, False, modules, add_tokenizer)


if __name__ == "__main__":
    main()
