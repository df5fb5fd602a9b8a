"""Families that Transformers has no class for: their published formulas in plain PyTorch.

Each is a decoder of the same plan, pre-norm with RMS norms and a gated SiLU feed-forward, under names of its
own and with Q, K and V joined in its own way: modeling_internlm2.py, modeling_baichuan.py (7B and 13B, 1 and
2), modeling_chatglm.py, modeling_telechat.py and modeling_telechat2.py, modeling_qwen.py, modeling_bailing_moe.py
and modeling_bailing_moe_v2.py as published beside the checkpoints. Tensors and config.json are named as there.
make_families.py uses this file.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import safetensors.torch
import torch
from torch.nn import functional

VOCAB, HIDDEN, FFN, LAYERS, HEADS = 136, 36, 44, 2, 3


@dataclass
class Experts:
    """In the place of the feed-forward of the layers from `first` on, beside a shared one."""

    count: int
    used: int
    size: int
    shared: int
    first: int
    sigmoid: bool  # scores of each by itself, corrected where experts are chosen; else a softmax of all
    groups: int = 1
    groups_used: int = 1
    normalized: bool = True
    scale: float = 1.0


@dataclass
class Family:
    """What differs between the families. "{}" in a name is the layer."""

    embedding: str
    layer: str  # the prefix of a layer's tensors
    norms: tuple[str, str]  # before attention, before the feed-forward
    final_norm: str
    output: str | None  # none: the embedding
    qkv: dict[str, tuple[int, bool]]  # name: rows, biased
    split: Callable  # the results of those -> q, k, v, each [tokens, heads, head_dim]
    attention_output: tuple[str, bool]  # name, biased
    gate_up: tuple[str, ...]  # two names, or one with the gate's rows before the others
    down: tuple[str, bool]
    eps: float
    heads: int = HEADS
    kv_heads: int = HEADS
    head_dim: int = HIDDEN // HEADS
    rotated: int = HIDDEN // HEADS  # dimensions of a head; 0: ALiBi in place of rope
    pairs: bool = False  # rotates neighbours, not halves
    theta: float = 10000.0
    normalized_output: bool = False
    qk_norms: tuple[str, str] | None = None  # of each head, before rope
    experts: Experts | None = None


@dataclass
class Variant:
    name: str
    what: str
    family: Family
    config: dict
    extra: dict[str, torch.Tensor] = field(default_factory=dict)  # stored, but not needed
    prompt: int = 44
    greedy: bool = True

    @property
    def unused(self):
        return tuple(self.extra)


def alibi_slopes(heads):
    """Train Short, Test Long: a geometric sequence; beyond a power of two every other one of the next."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return torch.tensor((slopes + between)[:heads])


class Decoder:
    """Runs a family's tensors. Called like a Transformers model, it gives .logits [1, tokens, vocab]."""

    def __init__(self, family, tensors):
        self.family, self.tensors = family, tensors
        self.steady = True  # whether no choice of experts changes where their input is a bit off

    def modules(self):
        return ()

    def double(self):
        return Decoder(self.family, {name: value.double() for name, value in self.tensors.items()})

    def linear(self, x, name):
        return functional.linear(x, self.tensors[name + ".weight"], self.tensors.get(name + ".bias"))

    def norm(self, x, name):
        """RMS, of the last dimension."""
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.family.eps)
        return x * scale * self.tensors[name + ".weight"]

    def rope(self, x):
        """[tokens, heads, head_dim] -> the same, rotated by position."""
        n = self.family.rotated
        if n == 0:
            return x
        frequencies = 1.0 / self.family.theta ** (torch.arange(0, n, 2).float() / n)
        angles = torch.outer(torch.arange(x.shape[0]).float(), frequencies)[:, None, :]
        cos, sin = angles.cos().to(x), angles.sin().to(x)
        if self.family.pairs:
            a, b = x[..., 0:n:2], x[..., 1:n:2]
            rotated = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        else:
            a, b = x[..., : n // 2], x[..., n // 2 : n]
            rotated = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        return torch.cat((rotated, x[..., n:]), -1)

    def attention(self, x, prefix):
        family, tokens = self.family, x.shape[0]
        q, k, v = family.split(family, *(self.linear(x, prefix + name) for name in family.qkv))
        if family.qk_norms:
            q, k = (self.norm(y, prefix + name) for y, name in zip((q, k), family.qk_norms))
        q, k = self.rope(q), self.rope(k)
        k, v = (y.repeat_interleave(family.heads // family.kv_heads, dim=1) for y in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(family.head_dim)
        distance = torch.arange(tokens)[None, :] - torch.arange(tokens)[:, None]
        if family.rotated == 0:
            scores = scores + (alibi_slopes(family.heads)[:, None, None] * distance).to(scores)
        scores = scores.masked_fill(distance > 0, -torch.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        return self.linear(mixed, prefix + family.attention_output[0])

    def feed_forward(self, x, prefix):
        joined = torch.cat([self.linear(x, prefix + name) for name in self.family.gate_up], -1)
        gate, up = joined.chunk(2, -1)
        return self.linear(functional.silu(gate) * up, prefix + self.family.down[0])

    def choose(self, x, prefix):
        """[tokens, used] numbers of experts, and their weights."""
        experts = self.family.experts
        logits = self.linear(x, prefix + "mlp.gate")
        scores = logits.sigmoid() if experts.sigmoid else logits.softmax(-1)
        choice = scores + self.tensors[prefix + "mlp.gate.expert_bias"] if experts.sigmoid else scores
        groups = choice.unflatten(-1, (experts.groups, -1))
        best = groups.topk(2, -1).values.sum(-1).topk(experts.groups_used, -1).indices
        kept = torch.zeros(groups.shape[:-1], dtype=torch.bool).scatter(-1, best, True)
        choice = groups.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
        chosen = choice.topk(experts.used, -1).indices
        weights = scores.gather(-1, chosen)
        if experts.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        return chosen, experts.scale * weights

    def experts(self, x, prefix):
        chosen, weights = self.choose(x, prefix)
        for _ in range(4):
            noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x)
            again = self.choose(x * (1.0 + 2e-3 * noise), prefix)[0]
            self.steady &= torch.equal(again.sort(-1).values, chosen.sort(-1).values)
        y = self.feed_forward(x, prefix + "mlp.shared_experts.") if self.family.experts.shared else 0.0 * x
        for token in range(x.shape[0]):
            for expert, weight in zip(chosen[token].tolist(), weights[token]):
                y[token] += weight * self.feed_forward(x[token], f"{prefix}mlp.experts.{expert}.")
        return y

    def __call__(self, ids, use_cache):
        assert not use_cache
        family = self.family
        x = self.tensors[family.embedding + ".weight"][ids[0]]
        for layer in range(LAYERS):
            prefix = family.layer.format(layer)
            x = x + self.attention(self.norm(x, prefix + family.norms[0]), prefix)
            normed = self.norm(x, prefix + family.norms[1])
            if family.experts and layer >= family.experts.first:
                x = x + self.experts(normed, prefix)
            else:
                x = x + self.feed_forward(normed, prefix + ("mlp." if family.experts else ""))
        table = self.tensors[(family.output or family.embedding) + ".weight"]
        if family.normalized_output:
            table = functional.normalize(table)
        return SimpleNamespace(logits=functional.linear(self.norm(x, family.final_norm), table)[None])


def random_tensors(family, generator):
    """A checkpoint's tensors in bfloat16: name -> value."""
    tensors = {}

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    def add_norm(name, size=HIDDEN):
        value = 1.0 + (0.3 * normal(size)).clamp(-0.6, 0.6)
        if family.output is None and name == family.final_norm:  # lest each token predict itself
            value *= normal(HIDDEN).sign()
        tensors[name + ".weight"] = value

    def add_linear(name, outputs, inputs, biased=False):
        tensors[name + ".weight"] = 1.3 * normal(outputs, inputs) / inputs**0.5
        if biased:
            tensors[name + ".bias"] = 0.3 * normal(outputs)

    def add_feed_forward(prefix, size):
        for name in family.gate_up:
            add_linear(prefix + name, size, HIDDEN)
        add_linear(prefix + family.down[0], HIDDEN, size)

    def add_experts(prefix, layer):
        experts = family.experts
        if layer < experts.first:
            add_feed_forward(prefix + "mlp.", FFN)
            return
        add_linear(prefix + "mlp.gate", experts.count, HIDDEN)
        if experts.sigmoid:
            tensors[prefix + "mlp.gate.expert_bias"] = 0.1 * normal(experts.count)
        for expert in range(experts.count):
            add_feed_forward(f"{prefix}mlp.experts.{expert}.", experts.size)
        if experts.shared:
            add_feed_forward(prefix + "mlp.shared_experts.", experts.shared)

    for table in filter(None, (family.embedding, family.output)):
        tensors[table + ".weight"] = 0.5 * normal(VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = family.layer.format(layer)
        for name in family.norms:
            add_norm(prefix + name)
        for name, (rows, biased) in family.qkv.items():
            add_linear(prefix + name, rows, HIDDEN, biased)
        add_linear(prefix + family.attention_output[0], HIDDEN, family.heads * family.head_dim,
                   family.attention_output[1])
        for name in family.qk_norms or ():
            add_norm(prefix + name, family.head_dim)
        if family.experts:
            add_experts(prefix, layer)
            continue
        for name in family.gate_up:
            add_linear(prefix + name, 2 * FFN // len(family.gate_up), HIDDEN)
        add_linear(prefix + family.down[0], HIDDEN, FFN, family.down[1])
    add_norm(family.final_norm)
    return {name: value.to(torch.bfloat16) for name, value in tensors.items()}


def make(variant, folder, generator):
    """Writes a random checkpoint. Gives its config and a Decoder that runs what was stored."""
    tensors = random_tensors(variant.family, generator)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(variant.config, indent=2, sort_keys=True) + "\n")
    safetensors.torch.save_file({**tensors, **variant.extra}, folder / "model.safetensors",
                                metadata={"format": "pt"})
    return variant.config, Decoder(variant.family, {k: v.float() for k, v in tensors.items()})


# --- InternLM 2: rows by group of heads that share K and V: their queries, then K, then V ---

def split_groups(family, qkv):
    qkv = qkv.unflatten(-1, (family.kv_heads, -1, family.head_dim))
    return qkv[:, :, :-2].flatten(1, 2), qkv[:, :, -2], qkv[:, :, -1]


INTERNLM2 = Family(
    embedding="model.tok_embeddings", layer="model.layers.{}.", norms=("attention_norm", "ffn_norm"),
    final_norm="model.norm", output="output", qkv={"attention.wqkv": ((6 + 2 * 2) * 6, True)},
    split=split_groups, attention_output=("attention.wo", True),
    gate_up=("feed_forward.w1", "feed_forward.w3"), down=("feed_forward.w2", False), eps=1e-5,
    heads=6, kv_heads=2, head_dim=6, rotated=6, theta=1e6)


# --- Baichuan: Q, K and V in blocks; rope in 7B, ALiBi in 13B; 2 normalises the output's rows ---

def split_blocks(family, qkv):
    return tuple(part.unflatten(-1, (-1, family.head_dim)) for part in qkv.chunk(3, -1))


def baichuan(**more):
    return Family(
        embedding="model.embed_tokens", layer="model.layers.{}.",
        norms=("input_layernorm", "post_attention_layernorm"), final_norm="model.norm", output="lm_head",
        qkv={"self_attn.W_pack": (3 * HIDDEN, False)}, split=split_blocks,
        attention_output=("self_attn.o_proj", False), gate_up=("mlp.gate_proj", "mlp.up_proj"),
        down=("mlp.down_proj", False), eps=1e-6, **more)


BAICHUAN_CONFIG = {
    "architectures": ["BaichuanForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": HIDDEN, "initializer_range": 0.02, "intermediate_size": FFN, "model_type": "baichuan",
    "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "pad_token_id": 0, "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.29.1",
    "use_cache": True, "vocab_size": VOCAB}


# --- ChatGLM 2 and 3, and GLM-4-9B's first form: the first half of a head rotated, in pairs ---

def split_multi_query(family, qkv):
    q, k, v = qkv.split([n * family.head_dim for n in (family.heads, family.kv_heads, family.kv_heads)], -1)
    return tuple(part.unflatten(-1, (-1, family.head_dim)) for part in (q, k, v))


def chatglm(**more):
    return Family(
        embedding="transformer.embedding.word_embeddings", layer="transformer.encoder.layers.{}.",
        norms=("input_layernorm", "post_attention_layernorm"),
        final_norm="transformer.encoder.final_layernorm", output="transformer.output_layer",
        qkv={"self_attention.query_key_value": ((4 + 2 * 2) * 12, True)}, split=split_multi_query,
        attention_output=("self_attention.dense", False), gate_up=("mlp.dense_h_to_4h",),
        down=("mlp.dense_4h_to_h", False), heads=4, kv_heads=2, head_dim=12, rotated=6, pairs=True, **more)


CHATGLM_CONFIG = {
    "add_bias_linear": False, "add_qkv_bias": True, "apply_query_key_layer_scaling": True,
    "apply_residual_connection_post_layernorm": False, "architectures": ["ChatGLMModel"],
    "attention_dropout": 0.0, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True,
    "eos_token_id": 2, "ffn_hidden_size": FFN, "fp32_residual_connection": False, "hidden_dropout": 0.0,
    "hidden_size": HIDDEN, "kv_channels": 12, "layernorm_epsilon": 1e-05, "model_type": "chatglm",
    "multi_query_attention": True, "multi_query_group_num": 2, "num_attention_heads": 4,
    "num_layers": LAYERS, "original_rope": True, "pad_token_id": 0, "padded_vocab_size": VOCAB,
    "post_layer_norm": True, "rmsnorm": True, "seq_length": 512, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.30.2", "use_cache": True}
CHATGLM_FREQUENCIES = {"transformer.rotary_pos_emb.inv_freq": torch.ones(3)}


# --- TeleChat: Q by itself, K and V joined by head; biases of the two output matrices ---

def split_key_value(family, q, kv):
    kv = kv.unflatten(-1, (family.kv_heads, 2, family.head_dim))
    return q.unflatten(-1, (-1, family.head_dim)), kv[:, :, 0], kv[:, :, 1]


# The base grows with the training length: by 2^ceil(log2(training_seqlen / 4096) + 1) - 1.
TELECHAT_THETA = 10000.0 * 3 ** (12 / (12 - 2))
TELECHAT = Family(
    embedding="transformer.word_embeddings", layer="transformer.h.{}.",
    norms=("input_layernorm", "post_attention_layernorm"), final_norm="transformer.ln_f", output=None,
    qkv={"self_attention.query": (HIDDEN, False), "self_attention.key_value": (2 * HIDDEN, False)},
    split=split_key_value, attention_output=("self_attention.dense", True),
    gate_up=("mlp.gate_proj", "mlp.up_proj"), down=("mlp.down_proj", True), eps=1e-5, theta=TELECHAT_THETA)


# --- Qwen 1: the gate is w2; longer texts than seq_length would change the base and scale queries ---

QWEN = Family(
    embedding="transformer.wte", layer="transformer.h.{}.", norms=("ln_1", "ln_2"),
    final_norm="transformer.ln_f", output="lm_head", qkv={"attn.c_attn": (3 * HIDDEN, True)},
    split=split_blocks, attention_output=("attn.c_proj", False), gate_up=("mlp.w2", "mlp.w1"),
    down=("mlp.c_proj", False), eps=1e-6)


# --- TeleChat 2: TeleChat with fewer key heads and an output matrix of its own ---

TELECHAT2 = Family(
    embedding="transformer.word_embeddings", layer="transformer.h.{}.",
    norms=("input_layernorm", "post_attention_layernorm"), final_norm="transformer.ln_f", output="lm_head",
    qkv={"self_attention.query": (HIDDEN, False), "self_attention.key_value": (24, False)},
    split=split_key_value, attention_output=("self_attention.dense", True), kv_heads=1,
    gate_up=("mlp.gate_proj", "mlp.up_proj"), down=("mlp.down_proj", True), eps=1e-5)


# --- Bailing, which Ling and Ring are: 1 chooses by a softmax of all, 2 in groups by corrected sigmoids ---

def bailing(**more):
    return Family(
        embedding="model.word_embeddings", layer="model.layers.{}.",
        norms=("input_layernorm", "post_attention_layernorm"), final_norm="model.norm", output="lm_head",
        split=split_multi_query, kv_heads=1, gate_up=("gate_proj", "up_proj"), down=("down_proj", False), **more)


BAILING_CONFIG = {
    "attention_dropout": 0.0, "bos_token_id": 1, "embedding_dropout": 0.0, "eos_token_id": 2, "head_dim": 12,
    "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02, "intermediate_size": FFN,
    "max_position_embeddings": 512, "moe_intermediate_size": 20, "norm_head": False, "norm_softmax": False,
    "norm_topk_prob": True, "num_attention_heads": HEADS, "num_experts_per_tok": 3, "num_hidden_layers": LAYERS,
    "num_key_value_heads": 1, "output_dropout": 0.0, "output_router_logits": False, "pad_token_id": 0,
    "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
    "use_rmsnorm": True, "vocab_size": VOCAB}


VARIANTS = [
    Variant("internlm2", "Q, K and V joined by group, biases, dynamic rope within the context", INTERNLM2,
            {"architectures": ["InternLM2ForCausalLM"], "attn_implementation": "eager", "bias": True,
             "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": HIDDEN,
             "initializer_range": 0.02, "intermediate_size": FFN, "max_position_embeddings": 512,
             "model_type": "internlm2", "num_attention_heads": 6, "num_hidden_layers": LAYERS,
             "num_key_value_heads": 2, "pad_token_id": 2, "rms_norm_eps": 1e-05,
             "rope_scaling": {"factor": 2.0, "type": "dynamic"}, "rope_theta": 1000000,
             "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.41.0",
             "use_cache": True, "vocab_size": VOCAB}),
    Variant("baichuan_7b", "Baichuan 7B: joined Q|K|V, rope", baichuan(),
            {**BAICHUAN_CONFIG, "architectures": ["BaiChuanForCausalLM"], "max_position_embeddings": 512}),
    Variant("baichuan_13b", "Baichuan 13B: ALiBi of three heads", baichuan(rotated=0),
            {**BAICHUAN_CONFIG, "model_max_length": 512}),
    Variant("baichuan2_7b", "Baichuan 2 7B: rope, rows of the output normalised",
            baichuan(normalized_output=True),
            {**BAICHUAN_CONFIG, "max_position_embeddings": 512, "model_max_length": 512,
             "z_loss_weight": 0}),
    Variant("baichuan2_13b", "Baichuan 2 13B: ALiBi, rows of the output normalised",
            baichuan(rotated=0, normalized_output=True),
            {**BAICHUAN_CONFIG, "model_max_length": 512, "z_loss_weight": 0}),
    Variant("chatglm", "ChatGLM 2 and 3: half of a head rotated in pairs, joined Q|K|V with biases",
            chatglm(eps=1e-5), {**CHATGLM_CONFIG, "vocab_size": VOCAB}, CHATGLM_FREQUENCIES),
    Variant("chatglm_glm4", "GLM-4-9B in ChatGLM's form: a longer rope by rope_ratio",
            chatglm(eps=1.5625e-7, theta=500000.0),
            {**CHATGLM_CONFIG, "architectures": ["ChatGLMForConditionalGeneration"],
             "eos_token_id": [2, 6, 7], "layernorm_epsilon": 1.5625e-07, "num_hidden_layers": LAYERS,
             "rope_ratio": 50, "transformers_version": "4.44.0"}, CHATGLM_FREQUENCIES),
    Variant("telechat", "K and V joined by head, biases of the output matrices, a raised rope base, tied",
            TELECHAT,
            {"apply_residual_connection_post_layernorm": False, "architectures": ["TelechatForCausalLM"],
             "attention_dropout": 0.0, "bos_token_id": 1, "embed_layernorm": False, "eos_token_id": 2,
             "ffn_hidden_size": FFN, "flash_attn": True, "hidden_dropout": 0.0, "hidden_size": HIDDEN,
             "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "logn": True,
             "model_type": "telechat", "n_head": HEADS, "n_layer": LAYERS, "pad_token_id": 3,
             "seq_length": 8192, "torch_dtype": "bfloat16", "training_seqlen": 8192,
             "transformers_version": "4.30.0", "use_cache": True, "vocab_size": VOCAB}),
]

# After all variants of before, so that their seeds stay what they are.
LATER_VARIANTS = [
    Variant("qwen", "Qwen 1: joined Q|K|V with biases, the gate second, names of its own", QWEN,
            {"architectures": ["QWenLMHeadModel"], "attn_dropout_prob": 0.0, "bf16": True,
             "emb_dropout_prob": 0.0, "eos_token_id": 2, "hidden_size": HIDDEN, "initializer_range": 0.02,
             "intermediate_size": 2 * FFN, "kv_channels": 12, "layer_norm_epsilon": 1e-06,
             "max_position_embeddings": 2048, "model_type": "qwen", "no_bias": True,
             "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "rotary_emb_base": 10000,
             "rotary_pct": 1.0, "scale_attn_weights": True, "seq_length": 512, "tie_word_embeddings": False,
             "tokenizer_class": "QWenTokenizer", "transformers_version": "4.32.0", "use_cache": True,
             "use_dynamic_ntk": True, "use_flash_attn": "auto", "use_logn_attn": True, "vocab_size": VOCAB}),
    Variant("telechat2", "TeleChat 2: one key head, an output matrix of its own", TELECHAT2,
            {"apply_residual_connection_post_layernorm": False, "architectures": ["TeleChat2ForCausalLM"],
             "attention_dropout": 0.0, "base_seqlen": 8192, "bos_token_id": 1, "embed_layernorm": False,
             "eos_token_id": 2, "ffn_hidden_size": FFN, "hidden_dropout": 0.0, "hidden_size": HIDDEN,
             "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "logn": False, "model_type": "telechat",
             "n_head": HEADS, "n_layer": LAYERS, "num_key_value_heads": 1, "pad_token_id": 0,
             "seq_length": 8192, "training_seqlen": 8192, "transformers_version": "4.44.0", "unk_token_id": 0,
             "use_cache": True, "vocab_size": VOCAB}),
    Variant("bailing_moe", "Ling 1: experts by softmax of all, one shared; biases of Q, K and V",
            bailing(qkv={"attention.query_key_value": (60, True)}, attention_output=("attention.dense", False),
                    eps=1e-6, theta=600000.0,
                    experts=Experts(count=6, used=3, size=20, shared=40, first=0, sigmoid=False)),
            {**BAILING_CONFIG, "architectures": ["BailingMoeForCausalLM"], "first_k_dense_replace": 0,
             "model_type": "bailing_moe", "num_experts": 6, "num_shared_experts": 2, "rms_norm_eps": 1e-06,
             "rope_theta": 600000.0, "use_bias": False, "use_qkv_bias": True}),
    Variant("bailing_moe_v2", "Ling 2: half of a head rotated, Q and K normed by head; a dense first layer, experts "
            "in groups by corrected sigmoids",
            bailing(qkv={"attention.query_key_value": (60, False)}, attention_output=("attention.dense", False),
                    eps=1e-6, theta=600000.0, rotated=6,
                    qk_norms=("attention.query_layernorm", "attention.key_layernorm"),
                    experts=Experts(count=8, used=3, size=20, shared=20, first=1, sigmoid=True, groups=4,
                                    groups_used=2, scale=2.5)),
            {**BAILING_CONFIG, "architectures": ["BailingMoeV2ForCausalLM"], "first_k_dense_replace": 1,
             "model_type": "bailing_moe", "moe_router_enable_expert_bias": True, "n_group": 4,
             "num_experts": 8, "num_nextn_predict_layers": 0, "num_shared_experts": 1,
             "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-06, "rope_theta": 600000.0,
             "routed_scaling_factor": 2.5, "router_dtype": "fp32", "score_function": "sigmoid",
             "topk_group": 2, "use_bias": False, "use_qk_norm": True, "use_qkv_bias": False}),
]
