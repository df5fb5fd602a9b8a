#!/usr/bin/env python3
"""Makes the encoders' golden checkpoints: small random models, and what Transformers computes, or for
classes that it has not jina_bert.py, nomic_bert_moe.py and neobert.py.

    python3 tests/golden/make_encoders.py [NAME...]    (writes beside itself, in encoders/)

Needs torch, transformers, safetensors, tokenizers and numpy; the versions used are in encoders/manifest.json. The
results are committed, so only a change of this file needs Python. Each variant is a folder:

    config.json, model.safetensors    a checkpoint in bfloat16
    tokenizer.json                    WordPiece or Unigram of a few words; of ESM vocab.txt alone
    modules.json, 1_Pooling, ...      as sentence-transformers has them, where the variant is one of vectors
    tokens.i32                        [texts' lengths, then all ids] of TEXTS, or of pairs (QUERY, text), int32
    hidden.f32                        hidden states of all tokens, [tokens, hidden] float32: eager attention, float32
    vectors.f32                       [texts, size] float32: the vectors, or the scores of pairs

The manifest says the texts, and for each variant its pooling. All features of a family are on, in odd sizes;
windows are shorter than the longest text, and no bias is zero.
"""

import inspect
import json
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy
import safetensors
import safetensors.torch
import tokenizers
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

import as_released
import jina_bert  # noqa: F401  (registers its classes)
import neobert
import nomic_bert_moe

ENCODERS = Path(__file__).resolve().parent / "encoders"
WORDS = ("a the cat dog sat on mat red big small house tree ran fast slow and then home is was it he she they saw "
         "green hill over under river long way to from with without old new friend ##s ##ed ##ing ##er un ##known "
         "question answer word text , . ? !").split()
TEXTS = ["The cat sat on a mat.", "?", "A dog ran fast over the hill, and then it was home.", "",
         " ".join("it is a long way from the old house to the green river and they ran".split() * 3),
         "Unknown words: zebra, dogs, runing; Friends walked..."]
QUERY = "Was the dog fast?"
PAIRED = [text for text in TEXTS if text]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BASE = {"hidden_size": 36, "intermediate_size": 44, "num_hidden_layers": 3, "num_attention_heads": 3,
        "max_position_embeddings": 80, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2,
        "sep_token_id": 3}
MEAN = {"pooling_mode_mean_tokens": True}


def word_piece(roberta=False):
    special = ["[UNK]", "[PAD]", *SPECIAL[2:]] if roberta else SPECIAL  # by RoBERTa's ids
    vocab = {token: i for i, token in enumerate(special + WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(special)
    second = 0 if roberta else 1
    between = "[SEP] [SEP]" if roberta else "[SEP]"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=f"[CLS] $A {between} $B:{second} [SEP]:{second}",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def pieces():
    """Words, and letters at other costs."""
    words = [("▁" + word, -3.0 - i / 8) for i, word in enumerate(WORDS) if not word.startswith("##")]
    letters = [(letter, -9.0 - i / 8) for i, letter in enumerate("▁abcdefghijklmnopqrstuvwxyz.,:;?!")]
    return [(token, 0.0) for token in SPECIAL] + words + letters


def unigram():
    """As DeBERTa's releases."""
    tokenizer = Tokenizer(models.Unigram(pieces(), unk_id=1))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Strip(),
                                                 normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def tokenizer_of(name, **settings):
    """As Transformers' class of that name makes it."""
    tokenizer = getattr(transformers, name)(vocab=pieces(), do_lower_case=True, unk_token="[UNK]", pad_token="[PAD]", **settings)
    return tokenizer.backend_tokenizer


def last_token():
    """As decoders' that embed: only an end-of-text token is added."""
    tokenizer = word_piece()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])
    return tokenizer


def last_token_of_pairs():
    tokenizer = word_piece()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A [SEP]", pair="$A $B [SEP]",
                                                             special_tokens=[("[SEP]", 3)])
    return tokenizer


class EsmVocabulary:
    """As ESM's releases, but for the ids of <unk> and <eos>: Transformers' tokenizer of a vocabulary alone."""
    TOKENS = ["<cls>", "<pad>", "<unk>", "<eos>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]

    def __init__(self):
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder) / "tokenizer.json")
            self.tokenizer = transformers.EsmTokenizer(Path(folder) / "vocab.txt")

    def save(self, path):
        Path(path).with_name("vocab.txt").write_text("\n".join(self.TOKENS))

    def get_vocab_size(self):
        return len(self.TOKENS)

    def encode(self, *texts):
        ids = self.tokenizer(*texts)["input_ids"]
        return SimpleNamespace(ids=ids, type_ids=[0] * len(ids))


# As released, and with all that there could be.
EUROBERT = {"num_key_value_heads": 1, "pad_token_id": 3, "mask_token_id": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 250000.0}}
EUROBERT_FULL = {**EUROBERT, "head_dim": 16, "rms_norm_eps": 1e-3, "attention_bias": True, "mlp_bias": True}

ULTRABERT = {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 6, "prediction_head_size": 20,
             "rms_norm_eps": 1e-3}
GTE = {"num_attention_heads": 2, "type_vocab_size": 1, "layer_norm_eps": 1e-3, "pad_token_id": 1}
DEBERTA = {"relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
           "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "layer_norm_eps": 1e-3}
T5 = {"d_model": 36, "d_kv": 10, "d_ff": 44, "num_layers": 1, "num_decoder_layers": 2, "num_heads": 3,
      "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "pad_token_id": 1, "eos_token_id": 3,
      "decoder_start_token_id": 4}
JINA_V3 = {"num_attention_heads": 2, "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-3}

VARIANTS = {
    "bert": dict(config={"type_vocab_size": 2}, pooling=MEAN, normalize=True, max_tokens=40),
    "bert_rank": dict(family="bert", config={"type_vocab_size": 2, "num_labels": 1}, rank=True),
    "bert_dense": dict(family="bert", config={"type_vocab_size": 2, "hidden_act": "gelu_new"},
                       pooling={"pooling_mode_cls_token": True}, dense=[(20, "Tanh", True), (9, "Identity", False)]),
    "roberta": dict(config={"type_vocab_size": 1, "pad_token_id": 1}, pooling={"pooling_mode_max_tokens": True},
                    tokenizer=lambda: word_piece(True)),
    "xlm_roberta_rank": dict(family="xlm-roberta", config={"type_vocab_size": 1, "pad_token_id": 1, "num_labels": 3},
                             rank=True, tokenizer=lambda: word_piece(True)),
    "distilbert": dict(config={"dim": 36, "hidden_dim": 44, "n_layers": 3, "n_heads": 3}, pooling=MEAN),
    "distilbert_rank": dict(family="distilbert", config={"dim": 36, "hidden_dim": 44, "n_layers": 3, "n_heads": 3,
                                                         "num_labels": 1}, rank=True),
    "modernbert": dict(config={"local_attention": 12, "num_hidden_layers": 4, "num_attention_heads": 2},
                       pooling={"pooling_mode_mean_sqrt_len_tokens": True}),
    "modernbert_rank": dict(family="modernbert", config={"local_attention": 12, "classifier_pooling": "mean",
                                                         "num_labels": 1, "num_attention_heads": 2}, rank=True),
    "nomic_bert": dict(config={"type_vocab_size": 2, "num_attention_heads": 2}, pooling=MEAN, normalize=True),
    "qwen3": dict(config={"head_dim": 16, "num_key_value_heads": 1}, pooling={"pooling_mode_lasttoken": True},
                  normalize=True, tokenizer=last_token),
    "gemma3_text": dict(config={"head_dim": 16, "num_key_value_heads": 1, "use_bidirectional_attention": True,
                                "sliding_window": 12, "num_hidden_layers": 4, "sliding_window_pattern": 2},
                        pooling={"pooling_mode_weightedmean_tokens": True}, dense=[(20, "Identity", False)],
                        normalize=True),
    "mpnet": dict(config={"pad_token_id": 1}, pooling=MEAN, normalize=True, tokenizer=lambda: word_piece(True)),
    "mpnet_rank": dict(family="mpnet", config={"pad_token_id": 1, "num_labels": 2}, rank=True, tokenizer=lambda: word_piece(True)),
    "jina_bert": dict(config={}, pooling=MEAN),
    "gemma_embedding": dict(family="gemma3_text", config={"head_dim": 16, "num_key_value_heads": 1, "num_hidden_layers": 6,
                                                          "use_bidirectional_attention": True, "sliding_window": 12,
                                                          "query_pre_attn_scalar": 16},
                            pooling=MEAN, dense=[(20, "Identity", False), (36, "Identity", False)], normalize=True),
    "t5_encoder": dict(family="t5", config={"d_model": 36, "d_kv": 10, "d_ff": 44, "num_layers": 3, "num_heads": 3,
                                            "feed_forward_proj": "gated-gelu"}, pooling=MEAN, dense=[(20, "Identity", False)],
                       normalize=True, of_class="T5EncoderModel"),
    "qwen3_next": dict(config={"num_hidden_layers": 2, "full_attention_interval": 2, "head_dim": 20, "linear_num_key_heads": 2,
                               "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 10,
                               "num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": [0, 1]},
                       pooling={"pooling_mode_lasttoken": True}, normalize=True, tokenizer=last_token),
    "lfm2": dict(config={"num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "conv_bias": True,
                         "conv_L_cache": 4, "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 10},
                 pooling={"pooling_mode_lasttoken": True}, tokenizer=last_token),
    "mamba2": dict(config={"num_hidden_layers": 2, "num_heads": 6, "head_dim": 12, "state_size": 10, "n_groups": 2,
                           "chunk_size": 16, "use_bias": True}, pooling=MEAN),
    "falcon_h1": dict(config={"num_hidden_layers": 2, "num_key_value_heads": 1, "mamba_n_heads": 6, "mamba_d_head": 12,
                              "mamba_d_state": 10, "mamba_n_groups": 2, "mamba_chunk_size": 16, "mamba_d_ssm": 72},
                      pooling=MEAN, normalize=True),
    "eurobert": dict(config=EUROBERT, pooling=MEAN, normalize=True),
    "eurobert_masked": dict(family="eurobert", config=EUROBERT_FULL, pooling={"pooling_mode_cls_token": True},
                            of_class="EuroBertForMaskedLM"),
    "eurobert_rank": dict(family="eurobert", rank=True,
                          config={**EUROBERT_FULL, "classifier_pooling": "bos", "num_labels": 1}),
    "eurobert_labels": dict(family="eurobert", rank=True,
                            config={**EUROBERT_FULL, "classifier_pooling": "mean", "num_labels": 3}),
    "jina_embeddings_v3": dict(config=JINA_V3, pooling=MEAN, normalize=True, tokenizer=lambda: word_piece(True)),
    "jina_embeddings_v3_rank": dict(family="jina_embeddings_v3", config={**JINA_V3, "num_labels": 1}, rank=True,
                                    tokenizer=lambda: word_piece(True), saved={"save_original_format": False}),
    "eurobert_late": dict(family="eurobert", rank=True, config={**EUROBERT_FULL, "classifier_pooling": "late", "num_labels": 2}),
    "nomic_bert_moe": dict(config={}, pooling=MEAN, normalize=True, of_class=nomic_bert_moe.NomicBertModel),
    # As a GGUF file has it.
    "nomic_bert_moe_unbiased": dict(config={"n_layer": 2}, pooling=MEAN, normalize=True, zero=["experts.bias"],
                                    of_class=nomic_bert_moe.NomicBertModel),
    "neobert": dict(config={}, pooling={"pooling_mode_cls_token": True}, of_class=neobert.NeoBERTLMHead),
    "neobert_rank": dict(config={"num_labels": 3, "num_hidden_layers": 2}, rank=True,
                         of_class=neobert.NeoBERTForSequenceClassification),
    "gte": dict(config=GTE, pooling={"pooling_mode_cls_token": True}, normalize=True),
    "gte_rank": dict(family="gte", config={**GTE, "num_labels": 1, "type_vocab_size": 0}, rank=True,
                     saved={"save_original_format": False}),
    "gte_released": dict(family="gte", pooling={"pooling_mode_cls_token": True}, released=as_released.gte, config={
        **GTE, "rope_parameters": {"rope_type": "linear", "rope_theta": 4000.0, "factor": 8 ** (2 / 18)}}),
    "jina_embeddings_v3_task": dict(family="jina_embeddings_v3", config=JINA_V3, pooling=MEAN, normalize=True,
                                    tokenizer=lambda: word_piece(True), released=as_released.jina_with_tasks,
                                    task="retrieval.query", prompt="the question is: "),
    "xlm_roberta_flash_rank": dict(family="xlm-roberta", rank=True, tokenizer=lambda: word_piece(True),
                                   released=as_released.flash_roberta,
                                   config={"type_vocab_size": 1, "pad_token_id": 1, "num_labels": 1}),
    "nomic_bert_rank": dict(family="nomic_bert", rank=True,
                            config={"type_vocab_size": 2, "num_attention_heads": 2, "num_labels": 2}),
    "qwen3_rank": dict(family="qwen3", config={"head_dim": 16, "num_key_value_heads": 1, "num_labels": 1, "num_hidden_layers": 2},
                       rank=True, tokenizer=last_token_of_pairs),
    "gpt2_rank": dict(family="gpt2", rank=True, tokenizer=last_token_of_pairs, config={
        "n_embd": 36, "n_head": 3, "n_layer": 2, "n_positions": 80, "num_labels": 3, "pad_token_id": 0, "eos_token_id": 3}),
    "electra": dict(config={"embedding_size": 36, "type_vocab_size": 2}, pooling=MEAN, of_class="ElectraForPreTraining"),
    "electra_rank": dict(family="electra", config={"embedding_size": 36, "type_vocab_size": 2, "num_labels": 1}, rank=True),
    "data2vec_text_rank": dict(family="data2vec-text", rank=True, tokenizer=lambda: word_piece(True),
                               config={"type_vocab_size": 1, "pad_token_id": 1, "num_labels": 2}),
    "ernie_rank": dict(family="ernie", rank=True, config={"type_vocab_size": 3, "use_task_id": True, "num_labels": 1}),
    "ultrabert": dict(config={**ULTRABERT, "num_hidden_layers": 4}, pooling=MEAN, of_class="UltrabertForMaskedLM"),
    "ultrabert_rank": dict(family="ultrabert", rank=True, config={**ULTRABERT, "classifier_pooling": "mean", "num_labels": 1}),
    # Version 3, and 2 with all that there could be.
    "deberta_v2": dict(family="deberta-v2", config=DEBERTA, pooling=MEAN, tokenizer=unigram, of_class="DebertaV2ForMaskedLM"),
    "deberta_v2_rank": dict(family="deberta-v2", rank=True, tokenizer=unigram, config={
        **DEBERTA, "position_buckets": -1, "max_relative_positions": 14, "share_att_key": False, "pos_att_type": "c2p|p2c",
        "position_biased_input": True, "type_vocab_size": 2, "num_labels": 3, "num_hidden_layers": 2}),
    "deberta_v2_queries": dict(family="deberta-v2", rank=True,
                               tokenizer=lambda: tokenizer_of("DebertaV2Tokenizer", split_by_punct=True), config={
        **DEBERTA, "norm_rel_ebd": "none", "pos_att_type": ["c2p"], "num_labels": 1, "num_hidden_layers": 2}),
    "deberta_rank": dict(family="deberta", rank=True, tokenizer=unigram, tokenizer_class="DebertaTokenizer", config={
        "relative_attention": True, "max_relative_positions": 9, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 2,
        "layer_norm_eps": 1e-3, "num_labels": 1, "num_hidden_layers": 2}),
    "albert": dict(config={"embedding_size": 20, "num_hidden_layers": 5, "num_hidden_groups": 2, "layer_norm_eps": 1e-3},
                   pooling=MEAN, tokenizer=unigram, of_class="AlbertForPreTraining"),
    "albert_rank": dict(family="albert", config={"embedding_size": 36, "num_labels": 2}, rank=True,
                        tokenizer=lambda: tokenizer_of("AlbertTokenizer")),
    "electra_small": dict(family="electra", config={"embedding_size": 20, "type_vocab_size": 2}, pooling=MEAN),
    "xlm_roberta_xl": dict(family="xlm-roberta-xl", config={"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-3},
                           pooling=MEAN, tokenizer=lambda: word_piece(True), of_class="XLMRobertaXLForMaskedLM"),
    "xlm_roberta_xl_rank": dict(family="xlm-roberta-xl", rank=True, tokenizer=lambda: word_piece(True), config={
        "type_vocab_size": 1, "pad_token_id": 1, "num_labels": 1, "num_hidden_layers": 2}),
    "megatron_bert": dict(family="megatron-bert", config={"type_vocab_size": 2, "layer_norm_eps": 1e-3}, pooling=MEAN),
    "megatron_bert_rank": dict(family="megatron-bert", rank=True,
                               config={"type_vocab_size": 2, "num_labels": 3, "num_hidden_layers": 2}),
    "roberta_prelayernorm_rank": dict(family="roberta-prelayernorm", rank=True, tokenizer=lambda: word_piece(True), config={
        "type_vocab_size": 1, "pad_token_id": 1, "num_labels": 2, "num_hidden_layers": 2}),
    "rembert": dict(config={"input_embedding_size": 20, "output_embedding_size": 28, "type_vocab_size": 2}, pooling=MEAN,
                    of_class="RemBertForMaskedLM"),
    # What it returns are vectors of tokens: hidden states are before the last product.
    "embedding_gemma2": dict(family="embedding_gemma2_text", pooling=MEAN, normalize=True, states_of="norm", config={
        "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "global_head_dim": 14,
        "num_global_key_value_heads": 3, "sliding_window": 6, "sliding_window_pattern": 2, "rms_norm_eps": 1e-3,
        "hidden_size_per_layer_input": 8, "embedding_dim": 20}),
    "esm": dict(config={"position_embedding_type": "rotary", "token_dropout": True, "pad_token_id": 1, "mask_token_id": 32,
                        "layer_norm_eps": 1e-3}, pooling=MEAN, tokenizer=EsmVocabulary),
    "esm_rank": dict(family="esm", config={"emb_layer_norm_before": True, "pad_token_id": 1, "mask_token_id": 32,
                                           "num_hidden_layers": 2, "num_labels": 3}, rank=True, tokenizer=EsmVocabulary),
    "esmc": dict(config={"pad_token_id": 1, "attention_bias": True, "mlp_bias": True}, pooling=MEAN,
                 tokenizer=lambda: word_piece(True)),
    "esmc_rank": dict(family="esmc", config={"pad_token_id": 1, "num_hidden_layers": 2, "num_labels": 1}, rank=True,
                      tokenizer=lambda: word_piece(True)),
    "luke": dict(config={"entity_vocab_size": 10, "entity_emb_size": 8, "type_vocab_size": 2, "pad_token_id": 1},
                 pooling=MEAN, tokenizer=lambda: word_piece(True), of_class="LukeForMaskedLM"),
    "luke_rank": dict(family="luke", rank=True, config={
        "entity_vocab_size": 10, "entity_emb_size": 8, "type_vocab_size": 2, "num_labels": 2, "num_hidden_layers": 2,
        "use_entity_aware_attention": False}),
    "deberta_v2_convolution": dict(family="deberta-v2", rank=True, tokenizer=unigram, config={
        **DEBERTA, "pos_att_type": ["p2c", "c2p"], "conv_kernel_size": 5, "conv_act": "gelu", "num_labels": 3, "num_hidden_layers": 2,
        "hidden_size": 24, "intermediate_size": 30}),
    # Their vectors are their own.
    "dpr_question": dict(family="dpr", config={"projection_dim": 20}, of_class="DPRQuestionEncoder", own_vectors=True),
    "dpr_context": dict(family="dpr", config={"num_hidden_layers": 2}, of_class="DPRContextEncoder", own_vectors=True),
    # Of encoder and decoder, whose states these are.
    "bart_rank": dict(family="bart", rank=True, tokenizer=lambda: word_piece(True), config={
        "d_model": 36, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 44, "decoder_ffn_dim": 52, "scale_embedding": True, "pad_token_id": 1, "eos_token_id": 3,
        "decoder_start_token_id": 4, "num_labels": 3}),
    "t5_rank": dict(family="t5", rank=True, tokenizer=lambda: word_piece(True), config={
        **T5, "feed_forward_proj": "relu", "num_labels": 3}),
    "umt5_rank": dict(family="umt5", rank=True, tokenizer=lambda: word_piece(True), config={**T5, "num_labels": 2}),
}


def randomize(model, generator):
    for _, module in model.named_modules():
        kind = type(module).__name__
        for name, weight in module.named_parameters(recurse=False):
            noise = torch.randn(weight.shape, generator=generator)
            if kind.endswith("Norm") and name == "weight":
                value = 1.0 + (0.3 * noise).clamp(-0.6, 0.6) - (1.0 if kind.startswith("Gemma") else 0.0)
            elif name == "bias":
                value = 0.3 * noise
            elif "Embedding" in kind:
                value = 0.5 * noise
            else:
                value = 1.3 * noise / weight.shape[-1] ** 0.5
            weight.data.copy_(value)
        if hasattr(module, "layer_scalar"):
            module.layer_scalar.copy_(0.5 + torch.rand(1, generator=generator))


def write(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_modules(folder, variant, hidden, generator):
    """sentence-transformers' files; returns the dense layers as functions."""
    paths = [("", "Transformer"), ("1_Pooling", "Pooling")]
    write(folder / "1_Pooling/config.json", {"word_embedding_dimension": hidden, "pooling_mode_cls_token": False,
                                             "pooling_mode_mean_tokens": False, **variant["pooling"]})
    layers = []
    size = hidden
    for index, (out, activation, bias) in enumerate(variant.get("dense", [])):
        path = f"{index + 2}_Dense"
        dense = torch.nn.Linear(size, out, bias=bias)
        randomize(dense, generator)
        dense.to(torch.bfloat16).to(torch.float32)  # numbers of bfloat16
        write(folder / path / "config.json", {
            "in_features": size, "out_features": out, "bias": bias,
            "activation_function": f"torch.nn.modules.{'linear' if activation == 'Identity' else 'activation'}."
                                   f"{activation}"})
        safetensors.torch.save_file({f"linear.{k}": v for k, v in dense.state_dict().items()},
                                    folder / path / "model.safetensors")
        layers.append((dense, {"Tanh": torch.tanh, "Identity": lambda x: x}[activation]))
        paths.append((path, "Dense"))
        size = out
    if variant.get("normalize"):
        paths.append((f"{len(paths)}_Normalize", "Normalize"))
    write(folder / "modules.json", [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{t}"}
                                    for i, (path, t) in enumerate(paths)])
    if "max_tokens" in variant:
        write(folder / "sentence_bert_config.json", {"max_seq_length": variant["max_tokens"], "do_lower_case": False})
    return layers


def pooled(states, mode):
    weights = torch.arange(1.0, len(states) + 1)[:, None]
    return {"pooling_mode_mean_tokens": lambda: states.mean(0), "pooling_mode_cls_token": lambda: states[0],
            "pooling_mode_max_tokens": lambda: states.max(0).values, "pooling_mode_lasttoken": lambda: states[-1],
            "pooling_mode_mean_sqrt_len_tokens": lambda: states.sum(0) / len(states) ** 0.5,
            "pooling_mode_weightedmean_tokens": lambda: (states * weights).sum(0) / weights.sum()}[mode]()


def make(name, variant, seed):
    folder = ENCODERS / name
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed)
    tokenizer = variant.get("tokenizer", word_piece)()
    family, rank = variant.get("family", name), variant.get("rank", False)
    of_class = variant.get("of_class", AutoModelForSequenceClassification if rank else AutoModel)
    if isinstance(of_class, str):
        of_class = getattr(transformers, of_class)
    sizes = {"vocab_size": tokenizer.get_vocab_size(), **variant["config"]}
    if "of_class" in variant and not of_class.__module__.startswith("transformers."):
        config = of_class.config_class(**sizes)
    else:
        known = vars(type(AutoConfig.for_model(family)))["__dataclass_fields__"]
        config = AutoConfig.for_model(family, **{key: value for key, value in BASE.items() if key in known} | sizes)
    model = of_class(config) if "of_class" in variant else of_class.from_config(config)
    randomize(model, generator)
    for parameter, weight in model.named_parameters():
        if parameter.endswith(tuple(variant.get("zero", []))):
            weight.data.zero_()
    buffers = [values.clone() for values in model.buffers()]
    model.to(torch.bfloat16)
    for values, exact in zip(model.buffers(), buffers):  # rotations stay what they are
        values.data = exact
    model.save_pretrained(folder, **variant.get("saved", {}))
    tokenizer.save(str(folder / "tokenizer.json"))
    of_stack = "decoder_" if rank and config.is_encoder_decoder else ""
    has_segments = config.to_dict().get("type_vocab_size", 0) > 1
    of_segments = variant.get("tokenizer_class", "BertTokenizer")
    write(folder / "tokenizer_config.json", {"tokenizer_class": of_segments if has_segments else "PreTrainedTokenizerFast",
                                             "model_max_length": 1000})
    with tempfile.TemporaryDirectory() as expected:
        plain = folder
        if "released" in variant:
            plain = variant["released"](folder, Path(expected), generator, variant)
        model = of_class.from_pretrained(plain, dtype=torch.float32, attn_implementation="eager").eval()
    size = getattr(config, "embedding_dim", config.hidden_size)
    own_vectors = variant.get("own_vectors", False)
    layers = [] if rank or own_vectors else write_modules(folder, variant, size, generator)

    states_before = []
    if "states_of" in variant:
        model.get_submodule(variant["states_of"]).register_forward_hook(lambda *call: states_before.append(call[-1][0]))
    lengths, ids, hidden, vectors = [], [], [], []
    for text in PAIRED if rank else TEXTS:
        encoding = tokenizer.encode(QUERY, text) if rank else tokenizer.encode(variant.get("prompt", "") + text)
        tokens, types = encoding.ids, encoding.type_ids
        if (limit := variant.get("max_tokens")) and len(tokens) > limit:
            tokens, types = tokens[: limit - 1] + tokens[-1:], types[:limit]
        inputs = {"input_ids": torch.tensor([tokens])}
        if has_segments and "token_type_ids" in inspect.signature(model.forward).parameters:
            inputs["token_type_ids"] = torch.tensor([types])
        with torch.no_grad():
            output = (model if rank else model.base_model)(**inputs, output_hidden_states=rank, return_dict=True)
            states = (output[f"{of_stack}hidden_states"][-1] if rank else output.last_hidden_state)[0]
            if rank:
                if family == "modernbert":  # the last of its hidden states is before the norm in some versions
                    states = model.model(**inputs).last_hidden_state[0]
                vector = output.logits[0]
                if config.num_labels == 1:
                    vector = torch.sigmoid(vector)
            elif own_vectors:
                vector = output.pooler_output[0]
            else:
                vector = pooled(states, next(iter(variant["pooling"])))
                for dense, activation in layers:
                    vector = activation(dense(vector))
                if variant.get("normalize"):
                    vector = torch.nn.functional.normalize(vector, dim=0)
        lengths.append(len(tokens))
        ids += tokens
        hidden.append(states_before.pop() if states_before else states)
        vectors.append(vector)
    numpy.array(lengths + ids, "<i4").tofile(folder / "tokens.i32")
    torch.cat(hidden).numpy().astype("<f4").tofile(folder / "hidden.f32")
    torch.stack(vectors).numpy().astype("<f4").tofile(folder / "vectors.f32")
    print(f"{name:20} {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file()):7} bytes, "
          f"{len(ids)} tokens, largest state {torch.cat(hidden).abs().max():.2f}")
    task = {"task": variant["task"]} if "task" in variant else {}
    return {"name": name, "rank": rank, "hidden": config.hidden_size, "texts": len(lengths), **task}


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    wanted = sys.argv[1:]
    path = ENCODERS / "manifest.json"
    ENCODERS.mkdir(exist_ok=True)
    known = {entry["name"]: entry for entry in (json.loads(path.read_text())["variants"] if path.exists() else [])}
    for seed, (name, variant) in enumerate(VARIANTS.items()):
        if not wanted or name in wanted:
            known[name] = make(name, variant, seed)
    write(path, {"made_by": "tests/golden/make_encoders.py",
                 "versions": {m.__name__: m.__version__ for m in (torch, transformers, tokenizers, safetensors, numpy)},
                 "texts": TEXTS, "query": QUERY, "paired": PAIRED,
                 "variants": [known[name] for name in VARIANTS if name in known]})


if __name__ == "__main__":
    main()
