#!/usr/bin/env python3
"""Makes small tokenizers of translation models that have no tokenizer.json, and what Transformers makes of texts.

    python3 tests/golden/make_seq2seq_tokenizers.py      (writes beside itself, in seq2seq/tokenizers/)

Each of marian, marian_separate, m2m_100 and t5 is a folder as its models have it, with cases.json: a list of [text, ids,
decoded]: ids with special tokens, and what ids decode to without them, null where a character is unknown. marian_separate
has a vocabulary for sources, whose cases have no decoded text, and another for answers, whose cases are in answers.json.
"""

import contextlib
import io
import json
import shutil
import warnings
from pathlib import Path

import sentencepiece
from transformers import M2M100Tokenizer, MarianTokenizer

HERE = Path(__file__).resolve().parent / "seq2seq" / "tokenizers"
ENGLISH = ["the cat sat on the mat and looked at the dog", "a dog ran over the green hill in the morning",
           "what a good morning it is, said the cat", "numbers like 12 and 345 are in here too (really)",
           "the rain in the hills falls mainly on cats and dogs", "Good morning, how are you today?"] * 20
GERMAN = ["die Katze saß auf der Matte und sah den Hund an", "ein Hund lief am Morgen über den grünen Hügel",
          "was für ein guter Morgen, sagte die Katze", "Zahlen wie 12 und 345 sind auch hier (wirklich)",
          "der Regen in den Hügeln fällt auf Katzen und Hunde", "Guten Morgen, wie geht es dir heute?"] * 20
TEXTS = ["the cat", "", " the  dog\tand the cat ", "die Katze über dem Meer", "Good morning, Ünïcode ﬁne ½!", "日本 cat",
         "a\nb", "12345"]
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


def save(folder, encode, decode, unknown, name="cases.json"):
    cases = []
    for text in TEXTS:
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


def make_t5(folder):
    train(folder, "spiece.model", ENGLISH + GERMAN, 120, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write(folder / "tokenizer_config.json", {"extra_ids": 3})
    # As SentencePiece itself: Transformers 5 builds another tokenizer of it, and 4 took special tokens out of texts.
    model = sentencepiece.SentencePieceProcessor(str(folder / "spiece.model"))
    save(folder, lambda text: model.encode(text) + [1], model.decode, 2)


def main():
    warnings.simplefilter("ignore")
    for make in (make_marian, make_marian_separate, make_m2m_100, make_t5):
        folder = HERE / make.__name__.removeprefix("make_")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        print(folder.name, sum(file.stat().st_size for file in folder.iterdir()), "bytes")


if __name__ == "__main__":
    main()
