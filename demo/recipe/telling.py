"""The telling of one story: its cast, its sentences, and the questions that can be asked about it."""

from .dice import capital, favour, with_article
from .world import ANIMALS, BOYS, BY_KIND, FEELINGS, GIRLS, TIMES

_PRONOUNS = {"f": ("she", "her", "her", "She", "Her"), "m": ("he", "his", "him", "He", "His")}


class Telling:
    """Sentences are patterns over slots such as {N} (the hero's name), {F} (the friend's), {obj} and {at}."""

    def __init__(self, dice, thing, place, trait, kind, name):
        self.dice = dice
        self.thing = thing
        self.place = place
        he, his, him, He, His = _PRONOUNS["f" if name in GIRLS else "m"]
        adjective = dice.pick(thing.adjectives)
        self.slots = {
            "N": name, "K": kind, "a_K": with_article(kind), "a_trait_K": with_article(f"{trait} {kind}"),
            "he": he, "his": his, "him": him, "He": He, "His": His, "himself": him + "self",
            "hers": "hers" if he == "she" else "his",
            "obj": thing.noun, "adj": adjective, "love": thing.love, "part": thing.part,
            "an_obj": with_article(thing.noun), "an_adj_obj": with_article(f"{adjective} {thing.noun}"),
            "home": place.home, "Home": capital(place.home), "at": place.at, "At": capital(place.at),
            "time": dice.pick(TIMES, favour(name, "time")), "feel": dice.pick(FEELINGS, favour(name, "feel"))}
        self._taken = {name, kind}
        self._paragraphs = [[]]
        self.questions = []  # (wordings of the question, answer)

    def add(self, role, kind=None, gift=None):
        """Cast a friend or helper beside the hero ({N} the {K}; he, his, him). Role "f": {F} the {fK}; fhe, fhis."""
        dice, slots = self.dice, self.slots
        if kind is None:
            pool = [a for a in ANIMALS if a.kind not in self._taken and (gift is None or gift in a.gifts)]
            kind = dice.pick(pool, favour(slots["K"], role)).kind
        gender = "f" if dice.chance(0.5) else "m"
        names = GIRLS if gender == "f" else BOYS
        name = dice.pick(names, favour(slots["N"], role))
        while name in self._taken:
            name = dice.even(names)
        self._taken.update((name, kind))
        he, his, him, He, His = _PRONOUNS[gender]
        slots.update({role.upper(): name, role + "K": kind, role + "he": he, role + "his": his, role + "him": him,
                      role + "He": He, role + "His": His, "a_" + role + "K": with_article(kind),
                      "a_" + role + "K_cap": capital(with_article(kind))})

    def gifts(self, role):
        return BY_KIND[self.slots[role + "K"]].gifts.split()

    def set(self, **slots):
        self.slots.update(slots)

    def say(self, *patterns):
        """One sentence or a few, from one of the patterns."""
        self._paragraphs[-1].append(self.dice.pick(patterns).format_map(self.slots))

    def perhaps(self, p, *patterns):
        if self.dice.chance(p):
            self.say(*patterns)

    def turn(self):
        """The next paragraph."""
        self._paragraphs.append([])

    def ask(self, answer, *questions):
        """A question about the story, in several wordings; the answer follows from the story alone."""
        self.questions.append((questions, answer))

    def text(self, between="\n\n"):
        return between.join(" ".join(sentences) for sentences in self._paragraphs if sentences)

    def asked(self, dice, n):
        """n different questions with their answers."""
        return [(dice.even(wordings).format_map(self.slots), answer.format_map(self.slots))
                for wordings, answer in dice.several(self.questions, min(n, len(self.questions)))]
