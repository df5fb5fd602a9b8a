"""The telling of one story: its cast, its sentences, and the questions that can be asked about it."""

from .dice import capital, with_article
from .world import BOYS, BY_KIND, CHILDREN, ANIMALS, FEELINGS, GIRLS, TIMES, TRAITS

_PRONOUNS = {"f": ("she", "her", "her", "She", "Her"), "m": ("he", "his", "him", "He", "His")}


class Telling:
    """Sentences are patterns over slots such as {N} (the hero's name), {F} (the friend's), {obj} and {at}."""

    def __init__(self, dice, thing, place, hero_kind=None, hero_name=None):
        self.dice = dice
        self.thing = thing
        self.place = place
        self.slots = {"obj": thing.noun, "adj": dice.pick(thing.adjectives), "love": thing.love, "part": thing.part,
                      "home": place.home, "at": place.at, "At": capital(place.at), "Home": capital(place.home),
                      "time": dice.pick(TIMES), "feel": dice.pick(FEELINGS)}
        self.slots["an_obj"] = with_article(thing.noun)
        self.slots["an_adj_obj"] = with_article(f"{self.slots['adj']} {thing.noun}")
        self._taken = set()
        self._paragraphs = [[]]
        self.questions = []  # (wordings of the question, answer)
        self.add("", kind=hero_kind, name=hero_name)
        trait = dice.pick(TRAITS)
        self.slots.update(trait=trait, a_trait_K=with_article(f"{trait} {self.slots['K']}"),
                          a_K=with_article(self.slots["K"]))

    def add(self, role, kind=None, name=None, gift=None):
        """Cast somebody: role "" is the hero ({N} the {K}; he, his, him), "f" the friend ({F} the {fK}; fhe, ...)."""
        dice, slots = self.dice, self.slots
        if kind is None:
            pool = [a for a in ANIMALS if a.kind not in self._taken and (gift is None or gift in a.gifts)]
            kind = CHILDREN[dice.number(0, 1)].kind if not role and dice.chance(0.12) else dice.pick(pool).kind
        gender = {"girl": "f", "boy": "m"}.get(kind) or ("f" if dice.chance(0.5) else "m")
        if name is None:
            names = GIRLS if gender == "f" else BOYS
            name = dice.pick(names)
            while name in self._taken:
                name = dice.even(names)
        else:
            gender = "f" if name in GIRLS else "m"
        self._taken.update((name, kind))
        he, his, him, He, His = _PRONOUNS[gender]
        if role:
            slots.update({role.upper(): name, role + "K": kind, role + "he": he, role + "his": his, role + "him": him,
                          role + "He": He, role + "His": His, "a_" + role + "K": with_article(kind),
                          "a_" + role + "K_cap": capital(with_article(kind))})
        else:
            slots.update(N=name, K=kind, he=he, his=his, him=him, He=He, His=His, himself=him + "self", hers="hers" if he == "she" else "his")

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
