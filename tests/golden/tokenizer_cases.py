"""Tokenizers trained small, of every kind that tokenizer.json knows, and strings that try them: for
make_tokenizer_golden.py and tests/peers/tokenizers_random.py. They need PyPI's tokenizers."""

import copy
import json
import random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = """the of and to in is that it was for on are as with his they at be this from have or by one had not but what all
were when we there can an your which their said if do will each about how up out them then she many some so these would
other into has more her two like him see time could no make than first been its who now people my made over did down only
way find use may water long little very after words called just where most know don't can't I'll we've they're it's
function return class print import const while 1234 2024 3.14 naïve café über straße école señor Привет мир хорошо
сегодня день 你好 世界 中文 分词 日本語 テスト ひらがな カタカナ 한국어 안녕 สวัสดี مرحبا שלום ελληνικά 🙂 🎉 👩‍👩‍👧 e\u0301 o\u0308""".split()

PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "kimi": r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "odd": r"(?m:a.b)|\w+\b|\h{2,3}|[[:alpha:]\d]+|[^\W\d_]|\S{,2}|^x$",
}
DEEPSEEK = [
    r"[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
]
DEEPSEEK3 = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(use_regex=False, add_prefix_space=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def sentences(rng, n):
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) for _ in range(n)]


def make_string(rng):
    """A short string of words, odd characters, spaces and spellings of special tokens."""
    parts = []
    for _ in range(rng.choice([0, 1, 2, 3, 5, 8])):
        kind = rng.randrange(12)
        if kind < 5:
            word = rng.choice(WORDS)
            parts.append(rng.choice([word, word.title(), word.upper()]))
        elif kind == 5:
            parts.append("".join(rng.choices("abcdefghijxyzABC", k=rng.randint(1, 20))))
        elif kind == 6:
            parts.append(str(rng.randrange(10 ** rng.randint(1, 9))))
        elif kind == 7:
            parts.append("".join(rng.choices(" \t\n\r\x0b\u00a0\u3000\u2028", k=rng.randint(1, 4))))
        elif kind == 8:
            parts.append("".join(rng.choices("!?.,;:'\"()[]{}<>@#$%^&*-_=+/\\|~`«»—…¿、。！", k=rng.randint(1, 4))))
        elif kind == 9:
            parts.append(rng.choice(["<|im_start|>", "<|im_end|>", "<s>", "</s>", "[CLS]", "[SEP]", "[UNK]", "[MASK]",
                                     "<unk>", "<mask>", "<0x41>", "<tool>", "tool", " <tool> ", "##", "Ġ", "▁", "</w>"]))
        elif kind == 10:
            ranges = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x5D0, 0x5EA), (0x620, 0x65F),
                      (0x904, 0x94D), (0xE01, 0xE4E), (0x1100, 0x11FF), (0x1E00, 0x1FFE), (0x2010, 0x2BFF),
                      (0x3041, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xADFF), (0xF900, 0xFAD9), (0xFB00, 0xFB06),
                      (0xFF01, 0xFFEE), (0x1D400, 0x1D4FF), (0x1F300, 0x1F64F), (0x1, 0x1F), (0x2000, 0x200F)]
            first, last = rng.choice(ranges)
            parts.append("".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 6))))
        else:
            parts.append(rng.choice(WORDS) * rng.randint(2, 12))
    return rng.choice(["", " "]).join(parts)


def train(tokenizer, trainer, seed=1):
    tokenizer.train_from_iterator(sentences(random.Random(seed), 3000), trainer)
    return json.loads(tokenizer.to_str())


def bases():
    """tokenizer.json of each kind of model."""
    made = {}
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = byte_level(use_regex=True)
    bpe.decoder = decoders.ByteLevel()
    made["byte_level"] = train(bpe, trainers.BpeTrainer(vocab_size=500, show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    spm = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    spm.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    spm.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    spm.pre_tokenizer = pre_tokenizers.Metaspace()  # to train with; not kept
    made["sentencepiece"] = train(spm, trainers.BpeTrainer(
        vocab_size=600, show_progress=False, limit_alphabet=60,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]))
    made["sentencepiece"]["pre_tokenizer"] = None
    made["sentencepiece"]["added_tokens"] = made["sentencepiece"]["added_tokens"][:3]
    words = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.decoder = decoders.BPEDecoder()
    made["bpe_words"] = train(words, trainers.BpeTrainer(
        vocab_size=350, show_progress=False, limit_alphabet=60, special_tokens=["<unk>"], end_of_word_suffix="</w>"))
    parts = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    parts.pre_tokenizer = pre_tokenizers.Whitespace()
    made["bpe_prefix"] = train(parts, trainers.BpeTrainer(
        vocab_size=350, show_progress=False, limit_alphabet=50, special_tokens=["<unk>"],
        continuing_subword_prefix="##"))
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    made["unigram"] = train(unigram, trainers.UnigramTrainer(
        vocab_size=300, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>"))
    bert = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    bert.normalizer = normalizers.BertNormalizer()
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    bert.decoder = decoders.WordPiece()
    made["bert"] = train(bert, trainers.WordPieceTrainer(
        vocab_size=350, show_progress=False, limit_alphabet=80,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    level = Tokenizer(models.WordLevel(unk_token="<unk>"))
    level.pre_tokenizer = pre_tokenizers.Whitespace()
    made["word_level"] = train(level, trainers.WordLevelTrainer(vocab_size=120, show_progress=False,
                                                                special_tokens=["<unk>"]))
    return made


def part(piece):
    return json.loads(piece.__getstate__())


def charsmap():
    """SentencePiece's nmt_nfkc rules, in part: a double array (darts-clone) for a few characters."""
    import base64
    import struct

    rules = {"ﬁ": "fi", "Ａ": "A", "①": "1", "\t": " ", "\u3000": " ", "e\u0301": "é", "…": "...", "\u200b": ""}
    strings, values = b"", {}
    for text, output in rules.items():
        values[text.encode()] = len(strings)
        strings += output.encode() + b"\0"
    tree = {}
    for key in values:
        node = tree
        for byte in key:
            node = node.setdefault(byte, {})
        node[-1] = values[key]
    units, used = {0: 0}, {0}

    def place(node, at):  # children of the unit `at` stand at (at ^ offset) ^ byte
        labels = [0 if label == -1 else label for label in node]
        base = next(b for b in range(1, 1 << 20) if all(b ^ label not in used for label in labels))
        offset = base ^ at
        units[at] = units.get(at, 0) | (offset << 10) | (0x100 if -1 in node else 0)
        used.update(base ^ label for label in labels)
        for label, child in node.items():
            if label == -1:
                units[base] = child | 0x80000000
            else:
                units[base ^ label] = label
        for label, child in node.items():
            if label != -1:
                place(child, base ^ label)

    place(tree, 0)
    size = (max(units) | 0xFF) + 1
    array = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(size))
    return base64.b64encode(struct.pack("<I", len(array)) + array + strings).decode()


def cases():
    """(name, base, changed parts) of each tokenizer."""
    N, P, D, R = normalizers, pre_tokenizers, decoders, processors
    result = []

    def add(name, base, **parts):
        result.append((name, base, {key: part(value) if hasattr(value, "__getstate__") and not isinstance(
            value, (dict, list, bool, str, type(None))) else value for key, value in parts.items()}))

    added = [
        {"content": "<|im_start|>", "special": True},
        {"content": "<|im_end|>", "special": True},
        {"content": "<tool>", "special": False, "lstrip": True, "rstrip": True},
        {"content": "tool", "special": False, "single_word": True, "normalized": False},
        {"content": "The", "special": False, "normalized": True},
        {"content": "  ", "special": False, "normalized": False},
        {"content": "<mask>", "special": True, "lstrip": True},
    ]
    for name, pattern in PATTERNS.items():
        add(name, "byte_level", pre_tokenizer=P.Sequence([split(pattern), byte_level()]))
    add("deepseek", "byte_level", pre_tokenizer=P.Sequence(
        [split(p) for p in DEEPSEEK] + [P.Digits(individual_digits=True), byte_level()]))
    add("deepseek3", "byte_level", pre_tokenizer=P.Sequence([split(p) for p in DEEPSEEK3] + [byte_level()]))
    add("glm", "byte_level", pre_tokenizer=P.Sequence([split(PATTERNS["llama3"]), byte_level()]), added_tokens=added,
        ignore_merges=True)
    add("starcoder", "byte_level", pre_tokenizer=P.Sequence([P.Digits(individual_digits=True),
                                                             byte_level(use_regex=True)]), added_tokens=added)
    add("qwen2_nfc", "byte_level", normalizer=N.NFC(), added_tokens=added,
        pre_tokenizer=P.Sequence([split(PATTERNS["qwen2"]), byte_level()]))
    add("roberta", "byte_level", pre_tokenizer=byte_level(use_regex=True, add_prefix_space=True), added_tokens=added,
        post_processor=R.RobertaProcessing(("d", 10), ("c", 9)))
    add("ignore_merges", "byte_level", ignore_merges=True,
        pre_tokenizer=P.Sequence([split(PATTERNS["llama3"]), byte_level()]),
        post_processor=R.Sequence([R.ByteLevel(), R.TemplateProcessing(single="a $A b", pair="a $A b $B",
                                                                       special_tokens=[("a", 7), ("b", 8)])]))
    add("byte_level_normalizer", "byte_level", normalizer=N.Sequence([N.NFKC(), N.ByteLevel()]), pre_tokenizer=None)
    add("byte_level_first", "byte_level", pre_tokenizer=P.Sequence([byte_level(), split(r"Ġ?\p{L}+")]))
    for behavior in ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]:
        for invert in [False, True]:
            add(f"split_{behavior}_{invert}", "byte_level",
                pre_tokenizer=P.Sequence([split(r"\d|[aeiou]", behavior, invert), byte_level()]))
        add(f"split_text_{behavior}", "byte_level",
            pre_tokenizer=P.Sequence([P.Split("th", behavior), P.Punctuation(behavior), byte_level()]))
    add("sentencepiece", "sentencepiece")
    add("sentencepiece_added", "sentencepiece", added_tokens=added)
    add("sentencepiece_first", "sentencepiece", normalizer=None, added_tokens=added,
        pre_tokenizer=P.Metaspace(prepend_scheme="first", split=False))
    add("sentencepiece_no_fuse", "sentencepiece", fuse_unk=False, byte_fallback=False)
    add("gemma", "sentencepiece", normalizer=N.Replace(" ", "▁"), added_tokens=added,
        decoder=D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse()]))
    add("bpe_words", "bpe_words", normalizer=N.Sequence([N.NFC(), N.Replace(Regex(r"\s+"), " "), N.Lowercase()]))
    add("clip", "byte_level", end_of_word_suffix="</w>", unk_token="!",
        normalizer=N.Sequence([N.NFC(), N.Replace(Regex(r"\s+"), " "), N.Lowercase()]),
        pre_tokenizer=P.Sequence([split(r"'s|'t|'re|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "removed", True), byte_level()]))
    add("bpe_prefix", "bpe_prefix")
    add("bpe_prefix_fused", "bpe_prefix", fuse_unk=True)
    add("unigram", "unigram", added_tokens=added)
    add("unigram_never", "unigram", decoder=D.Metaspace(prepend_scheme="never"), pre_tokenizer=P.Sequence(
        [P.WhitespaceSplit(), P.Metaspace(prepend_scheme="never", split=False)]))
    add("unigram_first", "unigram", pre_tokenizer=P.Metaspace(prepend_scheme="first"), normalizer=N.Strip(),
        added_tokens=added)
    add("unigram_scripts", "unigram", pre_tokenizer=P.Sequence([P.UnicodeScripts(), P.Metaspace()]))
    add("unigram_precompiled", "unigram", normalizer={"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": charsmap()}, part(N.Replace(Regex(" {2,}"), " "))]})
    add("bert", "bert", post_processor=R.BertProcessing(("[SEP]", 3), ("[CLS]", 2)))
    add("bert_cased", "bert", normalizer=N.BertNormalizer(lowercase=False, clean_text=False),
        decoder=D.WordPiece(cleanup=False))
    add("bert_accents", "bert", normalizer=N.BertNormalizer(lowercase=False, strip_accents=True,
                                                            handle_chinese_chars=False))
    add("word_level", "word_level")
    add("word_level_ctc", "word_level", decoder=D.CTC(pad_token="the", word_delimiter_token="|"))
    for name, normalizer in {
        "nfd": N.NFD(), "nfkd": N.NFKD(), "nfkc": N.NFKC(), "lower": N.Lowercase(), "nmt": N.Nmt(),
        "accents": N.Sequence([N.NFD(), N.StripAccents()]), "strip_left": N.Strip(True, False),
        "strip_right": N.Strip(False, True), "prepend": N.Prepend("ab"), "replace": N.Replace("e", "ee"),
    }.items():
        add(f"normalizer_{name}", "byte_level", normalizer=normalizer, added_tokens=added)
    for name, pre_tokenizer in {
        "whitespace": P.Whitespace(), "whitespace_split": P.WhitespaceSplit(), "digits": P.Digits(),
        "punctuation": P.Punctuation(), "delimiter": P.CharDelimiterSplit("e"), "bert": P.BertPreTokenizer(),
        "scripts": P.UnicodeScripts(), "fixed": P.FixedLength(4),
    }.items():
        add(f"pre_tokenizer_{name}", "byte_level", pre_tokenizer=P.Sequence([pre_tokenizer, byte_level()]))
    add("decoder_none", "byte_level", decoder=None)
    add("decoder_strip", "sentencepiece", decoder=D.Sequence(
        [D.Replace(Regex("[▁e]"), " "), D.ByteFallback(), D.Strip(" ", 2, 0)]))
    return result


def build(base, parts):
    """The tokenizer.json of a case."""
    result = copy.deepcopy(base)
    for key, value in parts.items():
        if key == "added_tokens":
            vocab = result["model"]["vocab"]
            next_id = max(list(vocab.values()) if isinstance(vocab, dict) else [len(vocab) - 1]) + 1
            for token in value:
                given = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not token["special"]}
                result["added_tokens"].append({"id": next_id, **given, **token})
                next_id += 1
        elif key in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            result[key] = value
        else:
            result["model"][key] = value
    known = result["model"]["vocab"]
    if isinstance(known, dict):  # an added token that the model has keeps the model's id
        for token in result["added_tokens"]:
            token["id"] = known.get(token["content"], token["id"])
    return result
