#!/usr/bin/env python3
"""Makes golden checkpoints of encoder-decoders, and the texts that Transformers' generate() finds with them.

    python3 tests/golden/make_seq2seq_golden.py [NAME...]     (writes beside itself, in seq2seq/)
    python3 tests/golden/make_seq2seq_golden.py               (then with Transformers 4.52: groups, which 5 has not)

Each model is a folder with config.json, generation_config.json and model.safetensors: a small random checkpoint in
bfloat16, without a tokenizer (gqa/tokenizer.model beside it serves all) but for marian_separate, which has one for sources
and another for answers, and translations.json: a list of [source, answer], texts of a search with 4 beams.
seq2seq/texts.json has

    versions        of Transformers, for groups too, and torch
    max_tokens      of an answer, if a search does not say otherwise
    ends            token ids that end one
    sources         token ids
    encoded         by name: what the encoder makes of the source of that number, [tokens, d_model]
    models          by name: for each search
        settings        under the names of a batch's lines
        texts           of each source all texts that are returned, the best first: [score, ids...]; the
                        score of a greedy search is 0

A source whose texts or scores are others in float64 than in float32 is one where rounding decides, and has null for
texts. All features are on: no bias is zero, norms differ, texts are longer than small relative distances.
"""

import json
import shutil
import sys
from pathlib import Path

import safetensors.torch
import torch
import transformers
from make_seq2seq_tokenizers import ENGLISH, write_marian_separate
from transformers import AutoConfig, AutoModelForSeq2SeqLM, MarianTokenizer

HERE = Path(__file__).resolve().parent / "seq2seq"
PATH = HERE / "texts.json"
IS_V4 = transformers.__version__.startswith("4.")
GROUPED = ("bart", "mbart", "t5")  # of which groups are searched for as well (Transformers 4 renormalizes none)
VOCAB = 136
VOCAB_OF_ANSWERS = 124  # of marian_separate
PAD, EOS = 0, 2
ENDS = [2, 17, 41, 66, 90, 121]
SOURCES = 20
ENCODED = 6  # the source whose encoder output is there
MAX_TOKENS = 14
TOLERANCE = 2e-5

BART = dict(vocab_size=VOCAB, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=40, decoder_ffn_dim=32, max_position_embeddings=80,
            pad_token_id=PAD, bos_token_id=1, eos_token_id=EOS, forced_eos_token_id=EOS, decoder_start_token_id=EOS)
T5 = dict(vocab_size=VOCAB, d_model=24, d_kv=10, d_ff=40, num_layers=2, num_decoder_layers=2, num_heads=3,
          relative_attention_num_buckets=8, relative_attention_max_distance=20, pad_token_id=PAD, eos_token_id=EOS,
          decoder_start_token_id=PAD)

GEMMA = dict(vocab_size=VOCAB, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=80, sliding_window=6, query_pre_attn_scalar=6,
             attn_logit_softcapping=3.0, final_logit_softcapping=5.0, pad_token_id=PAD, bos_token_id=1, eos_token_id=EOS)

BERT = dict(model_type="bert", vocab_size=VOCAB, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=80, type_vocab_size=2, pad_token_id=PAD, bos_token_id=1, eos_token_id=EOS)
OF_DECODER = dict(is_decoder=True, add_cross_attention=True, num_attention_heads=3, intermediate_size=32)
ANSWERS = dict(pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=1)

# Of each model: its type, its configuration, and what its generation_config.json says besides.
MODELS = {
    "bart": ("bart", BART | dict(scale_embedding=True), dict(forced_bos_token_id=1)),
    "mbart": ("mbart", BART | dict(encoder_layers=1, activation_function="relu"), dict(forced_bos_token_id=7)),
    "pegasus": ("pegasus", BART | dict(decoder_start_token_id=PAD, scale_embedding=True),
                dict(bad_words_ids=[[PAD], [30, 31], [41, 41], [19]])),
    "m2m_100": ("m2m_100", BART | dict(vocab_size=256, pad_token_id=1, bos_token_id=0,
                                           decoder_layers=3), dict(forced_bos_token_id=9)),
    "marian": ("marian", BART | dict(activation_function="swish", scale_embedding=True, decoder_start_token_id=PAD,
                                     decoder_attention_heads=4),
               dict(bad_words_ids=[[PAD], [30, 31], [41, 41]], renormalize_logits=True)),
    "marian_separate": ("marian", BART | dict(decoder_vocab_size=VOCAB_OF_ANSWERS, scale_embedding=True,
                                              share_encoder_decoder_embeddings=False, decoder_start_token_id=PAD),
                        dict(bad_words_ids=[[PAD]], renormalize_logits=True)),
    "t5": ("t5", T5, {}),
    "t5_v1_1": ("t5", T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False), {}),
    "mt5": ("mt5", T5 | dict(feed_forward_proj="gated-gelu"), {}),
    "umt5": ("umt5", T5 | dict(feed_forward_proj="gated-gelu"), {}),
    "t5gemma": ("t5gemma", dict(encoder=GEMMA | dict(hidden_size=32, num_attention_heads=2, num_hidden_layers=3), decoder=GEMMA,
                                vocab_size=VOCAB, pad_token_id=PAD, eos_token_id=EOS), {}),
    "blenderbot": ("blenderbot", BART | dict(decoder_start_token_id=1, scale_embedding=True), {}),
    "mvp": ("mvp", BART, dict(forced_bos_token_id=1)),
    # A padding token in a text would move RoBERTa's positions.
    "roberta2bert": ("encoder-decoder", ANSWERS | dict(
        encoder=BERT | dict(model_type="roberta", type_vocab_size=1, num_hidden_layers=1),
        decoder=BERT | OF_DECODER | dict(hidden_act="gelu_new", layer_norm_eps=1e-3)), dict(bad_words_ids=[[PAD]])),
    "bert2roberta": ("encoder-decoder", ANSWERS | dict(
        encoder=BERT | dict(hidden_act="relu"),
        decoder=BERT | OF_DECODER | dict(model_type="roberta", num_hidden_layers=1, hidden_act="relu", tie_word_embeddings=False)),
        dict(bad_words_ids=[[PAD]])),
    "plbart": ("plbart", BART | dict(encoder_layers=1), {}),
    "blenderbot_small": ("blenderbot-small", BART | dict(decoder_start_token_id=1, scale_embedding=True), {}),
}


def sources():
    generator = torch.Generator().manual_seed(7)
    made = []
    for i in range(SOURCES):
        length = 1 + int(torch.randint(4 + 3 * i, (1,), generator=generator))
        made.append(torch.randint(3, VOCAB, (length,), generator=generator).tolist() + [EOS])
    return made


def searches(name):
    if IS_V4:
        unpadded = {"logit_bias": {str(PAD): -100.0}}  # see make_beam_golden.py
        yield unpadded | {"beams": 4, "beam_groups": 2, "diversity_penalty": 0.5, "early_stopping": True}
        yield unpadded | {"beams": 4, "beam_groups": 4, "diversity_penalty": 1.0, "length_penalty": 0.6}
        return
    yield {"beams": 1}
    yield {"beams": 4}
    yield {"beams": 4, "early_stopping": True, "length_penalty": 0.6}
    yield {"beams": 4, "early_stopping": "never", "length_penalty": 2.0}
    yield {"beams": 4, "no_repeat_ngram": 3}
    if name == "marian":
        yield {"beams": 4, "no_repeat_ngram": 2}
        yield {"beams": 3, "min_tokens": 6, "no_repeat_ngram": 3}
    if name in ("bart", "t5", "t5gemma"):
        yield {"beams": 1, "no_repeat_ngram": 2, "repetition_penalty": 1.2}
        yield {"beams": 3, "min_tokens": 6}
        yield {"beams": 1, "min_tokens": 38, "max_tokens": 42}  # more than a page
        yield {"beams": 4, "min_tokens": 33, "max_tokens": 38}


def randomize(model, generator):
    """Weights of a size that makes attention uneven, and logits of a few units. The last norm has weights of both
    signs, lest each token predict itself where the output is the embedding."""
    norms = [path for path, _ in model.named_modules()
             if "decoder." in path and path.endswith(("layer_norm", "decoder.norm", "transform.LayerNorm"))]
    ends = [path for path in norms if path.count(".") <= 2 and "layers." not in path and "block." not in path]
    last = (ends or norms)[-1]
    for path, module in model.named_modules():
        kind = type(module).__name__
        for name, weight in module.named_parameters(recurse=False):
            noise = torch.randn(weight.shape, generator=generator)
            if kind.endswith("Norm") and name == "weight":
                value = 1.0 + (0.3 * noise).clamp(-0.6, 0.6)
                if path == last:
                    value *= 0.8 * noise.sign()
                if kind == "T5GemmaRMSNorm":  # which adds 1
                    value -= 1
            elif "relative_attention_bias" in path:
                value = 1.5 * noise
            elif name.endswith("bias"):
                value = 0.3 * noise
            elif "Sinusoidal" in kind:
                continue
            elif "Embedding" in kind or weight.shape[0] in (VOCAB, VOCAB_OF_ANSWERS):
                value = (1.0 if "embed_positions" in path else 0.5) * noise
            else:
                crosses = any(part in path for part in ("encoder_attn", "EncDecAttention", "cross_attn", "crossattention"))
                value = (3.0 if crosses else 1.5) * noise / weight.shape[-1] ** 0.5
            weight.data.copy_(value)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.copy_(0.5 * torch.randn(model.final_logits_bias.shape, generator=generator))


def save(name, seed):
    kind, settings, generation = MODELS[name]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **settings))
    randomize(model, generator)
    model.to(torch.bfloat16).save_pretrained(folder)
    path = folder / "generation_config.json"
    said = json.loads(path.read_text()) if path.exists() else {}
    known = {key: settings[key] for key in ("pad_token_id", "eos_token_id", "decoder_start_token_id",
                                            "forced_eos_token_id") if key in settings}
    path.write_text(json.dumps(said | known | generation, indent=2, sort_keys=True) + "\n")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if name == "marian_separate":
        write_marian_separate(folder, VOCAB, VOCAB_OF_ANSWERS)


def load(name):
    load_as = {"torch_dtype" if IS_V4 else "dtype": torch.float32}
    return AutoModelForSeq2SeqLM.from_pretrained(HERE / name, attn_implementation="eager", **load_as).eval()


def round_logits(_module, _inputs, output):
    output.logits = output.logits.float()
    return output


def texts(model, source, settings):
    names = {"beams": "num_beams", "beam_groups": "num_beam_groups", "no_repeat_ngram": "no_repeat_ngram_size",
             "min_tokens": "min_new_tokens"}
    arguments = {names.get(key, key): value for key, value in settings.items() if key not in ("max_tokens", "logit_bias")}
    if "logit_bias" in settings:
        arguments["sequence_bias"] = {(int(token),): bias for token, bias in settings["logit_bias"].items()}
    max_length = settings.get("max_tokens", MAX_TOKENS) + 1
    ids = torch.tensor([source])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_length=max_length, do_sample=False,
                             num_return_sequences=settings["beams"], return_dict_in_generate=True, output_scores=True,
                             eos_token_id=ENDS, **arguments)
    found = []
    for i, row in enumerate(out.sequences):
        text = row[1:].tolist()
        ends = [n for n, token in enumerate(text) if token in ENDS]
        score = out.sequences_scores[i].item() if settings["beams"] > 1 else 0
        found.append([score, *(text[:ends[0] + 1] if ends else text)])
    return found


def clear_texts(model, exact, source, settings):
    found, reference = texts(model, source, settings), texts(exact, source, settings)
    for a, b in zip(found, reference):
        if a[1:] != b[1:] or abs(a[0] - b[0]) > TOLERANCE * max(1.0, abs(a[0])):
            return None
    return [[round(text[0], 6), *text[1:]] for text in found]


def make(name, index):
    for attempt in range(40):  # until texts end in different places
        save(name, 100 * attempt + index)
        model = load(name)
        found = [texts(model, source, {"beams": 4}) for source in sources()[:8]]
        if len({len(text) for each in found for text in each}) > 3:
            break


def search(name):
    model, exact = load(name), load(name).double()
    exact.register_forward_hook(round_logits)
    made = []
    for settings in searches(name):
        found = [clear_texts(model, exact, source, settings) for source in sources()]
        print(name, settings, "unclear:", found.count(None), "lengths:",
              sorted({len(text) - 1 for each in found if each for text in each}), flush=True)
        made.append({"settings": settings, "texts": found})
    return made


def encoded(name):
    with torch.no_grad():
        states = load(name).get_encoder()(torch.tensor([sources()[ENCODED]])).last_hidden_state[0]
    return {"source": ENCODED, "states": [round(value, 6) for value in states.flatten().tolist()]}


def translate(name):
    folder = HERE / name
    tokenizer, model = MarianTokenizer.from_pretrained(folder), load(name)
    pairs = []
    for text in ENGLISH[:6] + [">>deu<< a dog", "12 cats"]:
        ids = model.generate(**tokenizer(text, return_tensors="pt"), num_beams=4, max_length=MAX_TOKENS + 1)
        pairs.append([text, tokenizer.decode(ids[0], skip_special_tokens=True)])
    rows = ",\n".join(json.dumps(pair, ensure_ascii=False) for pair in pairs)
    (folder / "translations.json").write_text(f"[\n{rows}\n]\n")


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    HERE.mkdir(exist_ok=True)
    golden = json.loads(PATH.read_text()) if PATH.exists() else {"models": {}}
    models = golden["models"]
    if IS_V4:
        golden["versions"]["groups"] = transformers.__version__
        for name in GROUPED:
            models[name] = [each for each in models[name] if "beam_groups" not in each["settings"]] + search(name)
    else:
        golden["versions"] = golden.get("versions", {}) | {"transformers": transformers.__version__, "torch": torch.__version__}
        for index, name in enumerate(MODELS):
            if not sys.argv[1:] or name in sys.argv[1:]:
                make(name, index)
                models[name] = search(name)
                if name == "marian_separate":
                    translate(name)
        golden["encoded"] = {name: encoded(name) for name in MODELS if name in models}
    head = {"versions": golden["versions"], "max_tokens": MAX_TOKENS, "ends": ENDS, "sources": sources()}
    lines = [f'"{key}":{json.dumps(value, separators=(",", ":"))}' for key, value in head.items()]
    states = [f'"{name}":{json.dumps(each, separators=(",", ":"))}' for name, each in golden["encoded"].items()]
    lines.append('"encoded":{' + ",\n".join(states) + "}")
    rows = [f'"{name}":[\n' + ",\n".join(json.dumps(each, separators=(",", ":")) for each in models[name]) + "]"
            for name in MODELS if name in models]
    PATH.write_text("{" + ",\n".join(lines) + ',\n"models":{' + ",\n".join(rows) + "}}\n")


if __name__ == "__main__":
    sys.exit(main())
