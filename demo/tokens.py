"""From documents to rows of tokens: the tokenizer, the targets, the packing."""

import io
import os

import numpy as np
import sentencepiece

import corpus

UNK, BOS, EOS = 0, 1, 2
ROW = 1024

# What the next token is worth: a class beside every target. Questions are little more than noise; answers count most.
QUESTION, PROSE, ANSWER, NOTHING = 0, 1, 2, 3
CLASS_BITS = 12  # target | class << 12


def train_tokenizer(path, vocab, texts):
    """SentencePiece BPE as Llama's: byte fallback, single digits, no normalization, a dummy prefix.

    A line break is a byte piece and nothing merges across it, so a conversation is encoded turn by turn. Lines after
    the first begin without the space mark; the digit put before them here makes the pieces for that."""
    def lines():
        for text in texts:
            for i, line in enumerate(text.split("\n")):
                if line:
                    yield "0" + line if i else line

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines(), model_writer=model, vocab_size=vocab, model_type="bpe", byte_fallback=True,
        split_digits=True, normalization_rule_name="identity", add_dummy_prefix=True, remove_extra_whitespaces=False,
        unk_id=UNK, bos_id=BOS, eos_id=EOS, pad_id=-1, character_coverage=1.0, max_sentence_length=100_000,
        allow_whitespace_only_pieces=True, num_threads=os.cpu_count(), minloglevel=1)
    with open(path, "wb") as f:
        f.write(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_file=path)


class Encoder:
    """Turns examples into token rows and targets."""

    def __init__(self, sp):
        self.sp = sp
        self.line_break = sp.piece_to_id("<0x0A>")
        self.heads = {role: self._after_break(head) for role, head in
                      (("user", "User:"), ("assistant", "Assistant:"))}

    def _after_break(self, text):
        ids = self.sp.encode("x\n" + text)
        return ids[ids.index(self.line_break):]

    def prompt(self, text):
        return [BOS] + self.sp.encode(text)

    def encode(self, examples):
        """[(tokens, targets)] of a list of examples; EOS is a target only, never an input."""
        coded = self.sp.encode([corpus.text_of(e) for e in examples], num_threads=1)
        return [self._begin(e, *self._targets([BOS] + ids, e)) for ids, e in zip(coded, examples)]

    @staticmethod
    def _begin(example, ids, targets):
        """Only stories teach what comes first, so an empty prompt gives a story."""
        if example.family != "story":
            targets[0] = ids[1] | NOTHING << CLASS_BITS
        return ids, targets

    def _targets(self, ids, example):
        n = len(ids)
        if example.messages is None:
            if n > ROW:  # a book goes on beyond the row
                ids, last = ids[:ROW], ids[ROW]
                return ids, [t | PROSE << CLASS_BITS for t in ids[1:] + [last]]
            return ids, [t | PROSE << CLASS_BITS for t in ids[1:] + [EOS]]
        targets = [t | QUESTION << CLASS_BITS for t in ids[1:] + [EOS]]
        first_worth = PROSE if example.family in corpus.PROSE or example.messages[0][1].startswith("Tell me a story") \
            else ANSWER
        user, assistant = self.heads["user"], self.heads["assistant"]
        at, turn = 0, 0
        while True:
            begin = _find(ids, assistant, at)
            if begin < 0:
                break
            begin += len(assistant)
            end = _find(ids, user, begin)
            end = n if end < 0 else end
            worth = first_worth if turn == 0 else ANSWER
            for i in range(begin - 1, end - 1):
                targets[i] = ids[i + 1] | worth << CLASS_BITS
            targets[end - 1] = EOS | worth << CLASS_BITS
            at, turn = end, turn + 1
        return ids, targets


def _find(ids, pattern, start):
    head, n = pattern[0], len(pattern)
    while True:
        try:
            start = ids.index(head, start)
        except ValueError:
            return -1
        if ids[start:start + n] == pattern:
            return start
        start += 1


class Packer:
    """Puts whole documents into rows of 1,024 tokens, the best fitting of a few open rows each."""

    OPEN = 24

    def __init__(self):
        self.tokens, self.targets = [], []
        self.open = []  # [free, tokens, targets]

    def add(self, ids, targets):
        n = len(ids)
        best = min((row for row in self.open if row[0] >= n), default=None, key=lambda row: row[0])
        if best is None:
            if len(self.open) == self.OPEN:
                self._close(min(self.open, key=lambda row: row[0]))
            best = [ROW, [], []]
            self.open.append(best)
        best[0] -= n
        best[1] += ids
        best[2] += targets
        if best[0] < 8:
            self._close(best)

    def _close(self, row):
        self.open = [r for r in self.open if r is not row]
        fill = ROW - len(row[1])
        self.tokens.append(np.array(row[1] + [UNK] * fill, dtype=np.int16))
        self.targets.append(np.array(row[2] + [NOTHING << CLASS_BITS] * fill, dtype=np.int16))

    def rows(self):
        for row in list(self.open):
            self._close(row)
        return np.stack(self.tokens), np.stack(self.targets)


def make_rows(job):
    """Rows of the documents [first, first + n) of a seed: one process's share."""
    path, seed, first, n = job
    encoder, packer, counts = Encoder(sentencepiece.SentencePieceProcessor(model_file=path)), Packer(), {}
    for start in range(first, first + n, 500):
        examples = [corpus.document(seed, i) for i in range(start, min(start + 500, first + n))]
        for example, (ids, targets) in zip(examples, encoder.encode(examples)):
            if len(ids) <= ROW:
                packer.add(ids, targets)
                counts[example.family] = counts.get(example.family, 0) + len(ids)
    tokens, targets = packer.rows()
    return tokens, targets, counts
