"""Random choices from a seed, and the split that keeps held-out questions out of the training text.

Every question has a canonical content: a tuple that names what is asked, whatever the order or the wording that
does not matter. A stable hash puts each content into the held-out tenth or into the training nine tenths. Makers of
examples draw until the content falls on the side they serve, so the two sides cannot meet.
"""

import hashlib
import random
import zlib
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate

HELDOUT_ONE_IN = 10


def is_heldout(content):
    """Whether `content`, a tuple of strings and numbers, belongs to the held-out side. Stable across machines."""
    digest = hashlib.blake2b(repr(content).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % HELDOUT_ONE_IN == 0


@lru_cache(maxsize=None)
def favour(*words):
    """A number that follows from `words`: whose favourites they bring to the front (Dice.pick). Stable."""
    return zlib.crc32(" ".join(words).encode())


def _skew(n):
    """Cumulative weights 1/2, 1/3, 1/4, ... of n options."""
    return list(accumulate(1.0 / (i + 2) for i in range(n)))


_SKEWS = [_skew(n) for n in range(130)]


class Dice:
    """Draws for one document. `heldout` says which side of the split the document serves."""

    def __init__(self, seed, heldout=False):
        self._rng = random.Random(seed)
        self.random = self._rng.random
        self.heldout = heldout

    def mine(self, *content):
        """Whether a question with this content may be asked on this side."""
        return is_heldout(content) == self.heldout

    def known(self, *content):
        """Whether the content is of the training side: for what stands around a question on either side."""
        return not is_heldout(content)

    def pick(self, options, first=0):
        """One option; earlier ones are likelier, counted from `first` round the list. Prose chosen so has a favourite
        at every turn: its next token is seldom a tie, and it still varies. With `first` from favour(), the favourite
        depends on what was told before, so no name, object or plot is the favourite of all stories."""
        skew = _SKEWS[len(options)]
        return options[(bisect_right(skew, self.random() * skew[-1]) + first) % len(options)]

    def even(self, options):
        """One option, all equally likely."""
        return options[int(self.random() * len(options))]

    def number(self, low, high):
        """A whole number from low to high, both included."""
        return low + int(self.random() * (high - low + 1))

    def chance(self, p):
        return self.random() < p

    def several(self, options, n):
        """n different options in random order, all equally likely."""
        return self._rng.sample(options, n)

    def shuffled(self, options):
        options = list(options)
        self._rng.shuffle(options)
        return options


class Example:
    """One document: a family, its messages (role, text), or a plain text that is no conversation."""

    __slots__ = ("family", "messages", "text")

    def __init__(self, family, messages=None, text=None):
        self.family = family
        self.messages = messages
        self.text = text


def asked(family, question, answer, system=None):
    """A conversation of one question and its answer."""
    messages = [("system", system)] if system else []
    return Example(family, messages + [("user", question), ("assistant", answer)])


def with_article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def capital(text):
    return text[0].upper() + text[1:]
