#!/usr/bin/env python3
"""Makes small tokenizers of translation models that have no tokenizer.json, and what Transformers makes of texts.

    python3 tests/golden/make_seq2seq_tokenizers.py      (writes beside itself, in seq2seq/tokenizers/)

Each of marian, marian_separate, m2m_100, plbart, plbart_multi, t5, blenderbot_small and ctrl (which only continues texts) is a
folder as its models have it, with cases.json: a list of [text, ids, decoded]: ids with special tokens, and what ids decode
to without them, null where a character is unknown. marian_separate has a vocabulary for sources, whose cases have no
decoded text, and another for answers, whose cases are in answers.json.
"""

import contextlib
import io
import json
import re
import shutil
import warnings
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BlenderbotSmallTokenizer, CTRLTokenizer, M2M100Tokenizer, MarianTokenizer, PLBartTokenizer

HERE = Path(__file__).resolve().parent / "seq2seq" / "tokenizers"
ENGLISH = ["the cat sat on the mat and looked at the dog", "a dog ran over the green hill in the morning",
           "what a good morning it is, said the cat", "numbers like 12 and 345 are in here too (really)",
           "the rain in the hills falls mainly on cats and dogs", "Good morning, how are you today?"] * 20
GERMAN = ["die Katze saß auf der Matte und sah den Hund an", "ein Hund lief am Morgen über den grünen Hügel",
          "was für ein guter Morgen, sagte die Katze", "Zahlen wie 12 und 345 sind auch hier (wirklich)",
          "der Regen in den Hügeln fällt auf Katzen und Hunde", "Guten Morgen, wie geht es dir heute?"] * 20
TEXTS = ["the cat", "", " the  dog\tand the cat ", "die Katze über dem Meer", "Good morning, Ünïcode ﬁne ½!", "日本 cat",
         "a\nb", "12345"]
LINES = ["it's the dog's\n'tis good.\nno (really)!\n\nyes, 'all' of\n", "Hello.World? \n a'\nb  ...", "a", "zebra x\tquick\n"]
RULES = "FB01\t66 69\n9\t20\nA\t20\nBD\t31 2F 32\n"  # a few of nmt_nfkc's


def train(folder, name, lines, size, **options):
    model = io.BytesIO()
    with contextlib.chdir(folder):  # a model has the path of its rules
        rules = Path("rules.tsv")
        rules.write_text(RULES)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, vocab_size=size, hard_vocab_limit=False,
            normalization_rule_tsv=str(rules), minloglevel=2, **options)
        rules.unlink()
    (folder / name).write_bytes(model.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [pieces.id_to_piece(i) for i in range(pieces.get_piece_size())]


def save(folder, encode, decode, unknown, name="cases.json", texts=TEXTS):
    cases = []
    for text in texts:
        ids = encode(text)
        cases.append([text, ids, None if decode is None or unknown in ids else decode(ids)])
    rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (folder / name).write_text(f"[\n{rows}\n]\n")


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n")


def make_marian(folder):
    source = train(folder, "source.spm", ENGLISH, 90)
    target = train(folder, "target.spm", GERMAN, 90)
    known = ["</s>", "<unk>", ">>deu<<", ">>nld<<"]
    rest = sorted(set(source + target) - {"<s>", *known}, key=lambda piece: (len(piece), piece))
    write(folder / "vocab.json", {piece: i for i, piece in enumerate([*known, *rest, "<pad>"])})
    write(folder / "tokenizer_config.json", {"source_lang": "eng", "target_lang": "deu"})
    tokenizer = MarianTokenizer.from_pretrained(folder)
    save(folder, lambda text: tokenizer(text).input_ids, lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
         tokenizer.unk_token_id)


def write_marian_separate(folder, n_source=100, n_target=100):
    source = train(folder, "source.spm", ENGLISH, 90)
    target = train(folder, "target.spm", GERMAN, 90)
    for name, pieces, size in (("vocab.json", source, n_source), ("target_vocab.json", target, n_target)):
        known = ["<pad>", "<unk>", "</s>", ">>deu<<"]
        rest = sorted(set(pieces) - {"<s>", *known}, key=lambda piece: (len(piece), piece))
        # Words that the model does not have: a random model writes any token.
        rest += [f"▁wort{n}" for n in range(size - len(known + rest))]
        write(folder / name, {piece: i for i, piece in enumerate(known + rest)})
    write(folder / "tokenizer_config.json", {"source_lang": "eng", "target_lang": "deu", "separate_vocabs": True})


def make_marian_separate(folder):
    write_marian_separate(folder)
    tokenizer = MarianTokenizer.from_pretrained(folder)
    save(folder, lambda text: tokenizer(text).input_ids, None, tokenizer.unk_token_id)
    save(folder, lambda text: tokenizer(text_target=text).input_ids,
         lambda ids: tokenizer.decode(ids, skip_special_tokens=True), tokenizer.unk_token_id, "answers.json")


def make_m2m_100(folder):
    pieces = train(folder, "sentencepiece.bpe.model", ENGLISH + GERMAN, 120, model_type="bpe")
    known = ["<s>", "<pad>", "</s>", "<unk>"]
    write(folder / "vocab.json", {piece: i for i, piece in enumerate(known + [p for p in pieces if p not in known])})
    tokenizer = M2M100Tokenizer(folder / "vocab.json", folder / "sentencepiece.bpe.model")
    languages = sorted(tokenizer.lang_token_to_id, key=tokenizer.lang_token_to_id.get)
    write(folder / "special_tokens_map.json", {"additional_special_tokens": languages})
    tokenizer = M2M100Tokenizer.from_pretrained(folder, src_lang="en")
    save(folder, lambda text: tokenizer(text).input_ids, lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
         tokenizer.unk_token_id)


def make_plbart(folder, codes="base", **languages):
    train(folder, "sentencepiece.bpe.model", ENGLISH + GERMAN, 120, model_type="bpe")
    write(folder / "tokenizer_config.json", {"tokenizer_class": "PLBartTokenizer", "language_codes": codes, **languages})
    tokenizer = PLBartTokenizer.from_pretrained(folder)
    save(folder, lambda text: tokenizer(text).input_ids, lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
         tokenizer.unk_token_id)


def make_plbart_multi(folder):
    make_plbart(folder, "multi", src_lang="python", tgt_lang="en_XX")


def save_subword_nmt(folder, of_class, words, special, texts):
    """vocab.json and merges.txt of a class, without some of the pieces that its merges make."""
    trained = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    trained.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trained.train_from_iterator([" ".join(each) for each in words], trainers.BpeTrainer(
        vocab_size=160, end_of_word_suffix="</w>", show_progress=False))
    merges = [" ".join(merge) for merge in json.loads(trained.to_str())["model"]["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    write(folder / "vocab.json", {token: i for i, token in enumerate(special)})
    plain = of_class(folder / "vocab.json", folder / "merges.txt")
    pieces = sorted({piece for each in words for word in each for piece in plain.bpe(word).split(" ")} - set(special))
    letters = sorted({letter + end for piece in pieces for letter in piece.removesuffix("@@") for end in ("", "@@")})
    kept = [piece for piece in dict.fromkeys(pieces + letters) if piece not in ("c@@", "x", "lo@@")]
    write(folder / "vocab.json", {token: i for i, token in enumerate(special + kept)})
    tokenizer = of_class.from_pretrained(folder)
    save(folder, lambda text: tokenizer(text).input_ids, lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
         tokenizer.unk_token_id, texts=TEXTS + texts)


def make_blenderbot_small(folder):
    lines = [line.lower().replace("\n", " __newln__ ") for line in ENGLISH + GERMAN + LINES * 20]
    words = [re.findall(r"'|[.,!?()]?[^\s.,!?()']+|[.,!?()]", line) for line in lines]
    save_subword_nmt(folder, BlenderbotSmallTokenizer, words, ["__null__", "__start__", "__end__", "__unk__"], LINES)


def make_ctrl(folder):
    words = [re.findall(r"\S+\n?", line) for line in ENGLISH + GERMAN + LINES * 20]
    # Transformers takes white space off the ends of what it decodes.
    save_subword_nmt(folder, CTRLTokenizer, words, ["<unk>"], [line.strip() for line in LINES])


def make_t5(folder):
    train(folder, "spiece.model", ENGLISH + GERMAN, 120, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write(folder / "tokenizer_config.json", {"extra_ids": 3})
    # As SentencePiece itself: Transformers 5 builds another tokenizer of it, and 4 took special tokens out of texts.
    model = sentencepiece.SentencePieceProcessor(str(folder / "spiece.model"))
    save(folder, lambda text: model.encode(text) + [1], model.decode, 2)


def main():
    warnings.simplefilter("ignore")
    for make in (make_marian, make_marian_separate, make_m2m_100, make_plbart, make_plbart_multi, make_t5,
                 make_blenderbot_small, make_ctrl):
        folder = HERE / make.__name__.removeprefix("make_")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        print(folder.name, sum(file.stat().st_size for file in folder.iterdir()), "bytes")


if __name__ == "__main__":
    main()
