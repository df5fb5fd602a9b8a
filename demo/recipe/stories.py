"""Whole stories: an opening, one of the plots, an ending; and the ways to ask for one."""

from . import plots, plots_of_use
from .dice import Example, favour, with_article
from .telling import Telling
from .world import ANIMALS, BOYS, BY_NOUN, CHILDREN, GIRLS, PLACES, THINGS, TRAITS


# for each object the plots that turn on its use, and those that suit most objects
OF_USE = {t.noun: [p for p in plots_of_use.ALL if p.suits(t)] for t in THINGS}
OF_MOST = {t.noun: [p for p in plots.ALL if p.suits(t)] for t in THINGS}

REQUESTS = [
    "Tell me a story about {a} and {o}.", "Please tell me a story about {a} and {o}.",
    "Write a story about {a} and {o}.", "Can you tell me a story about {a} and {o}?",
    "I would like a story about {a} and {o}.", "Tell a short story with {a} and {o}.",
    "Make up a story about {a} and {o}.", "Write a short story about {a} and {o}, please.",
    "Could you write a story with {a} and {o} in it?", "A story about {a} and {o}, please.",
    "Give me a story about {a} and {o}.", "Tell me a tale of {a} and {o}.",
]
OF_ONE = [
    "Tell me a story about {x}.", "Please tell me a story about {x}.", "Write a story about {x}.",
    "Can you tell me a story about {x}?", "I would like a story about {x}.", "Tell a short story about {x}.",
    "A story about {x}, please.", "Make up a story about {x}.",
]
OF_ANYTHING = [
    "Tell me a story.", "Please tell me a story.", "Can you tell me a story?", "Write a story.",
    "I would like to hear a story.", "Tell me a bedtime story.", "Tell me another story.", "Write a short story.",
]
NAMED = [
    "Tell me a story about {a} named {n}.", "Write a story about {a} called {n}.",
    "Can you tell me a story about {a} named {n}?", "Please tell me a story about {a} called {n}.",
]


def tell(dice, kind=None, noun=None, name=None):
    """A story whose parameters are on the side that `dice` serves. Each choice has its favourites, and they depend on
    one chosen before."""
    while True:
        trait = dice.pick(TRAITS)
        hero = kind or (dice.even(CHILDREN) if dice.chance(0.12) else dice.pick(ANIMALS, favour(trait))).kind
        called = name or dice.pick(_names_for(dice, hero), favour(hero))
        place = dice.pick(PLACES, favour(called))
        thing = BY_NOUN[noun] if noun else dice.pick(THINGS, favour(called, "thing"))
        fitting = OF_USE if dice.chance(0.4) else OF_MOST
        plot = dice.pick(fitting[thing.noun], favour(place.at, thing.noun))
        if dice.mine("story", plot.__name__, hero, called, thing.noun, place.at):
            break
    telling = Telling(dice, thing, place, trait, hero, called)
    _open(telling)
    plot(telling)
    return telling


def _names_for(dice, kind):
    if kind in ("girl", "boy"):
        return GIRLS if kind == "girl" else BOYS
    return GIRLS if dice.chance(0.5) else BOYS


def _open(t):
    t.say("Once upon a time, {a_trait_K} named {N} lived {home}.",
          "Once upon a time, there was {a_trait_K} named {N}, who lived {home}.",
          "{Home}, there lived {a_trait_K} named {N}.",
          "There was once {a_trait_K} called {N}. {He} lived {home}.",
          "{N} was {a_trait_K} who lived {home}.",
          "Long ago, {a_trait_K} called {N} lived {home}.")
    if t.slots["K"] in ("girl", "boy"):
        t.ask("{N} was a {K}.", "Was {N} a girl or a boy?", "Who was {N}, a girl or a boy?")
    else:
        t.ask("{N} was {a_K}.", "What kind of animal was {N}?", "What animal was {N}?", "Which animal was {N}?")
    t.ask("{N} lived {home}.", "Where did {N} live?", "Where was {N}'s home?")


def raw_story(dice):
    return Example("story", text=tell(dice).text())


def story_request(dice):
    """A story with a given animal and a given object. The pair is what is held out."""
    while True:
        kind, noun = dice.even(ANIMALS).kind, dice.even(THINGS).noun
        if dice.mine("request", kind, noun):
            break
    question = dice.even(REQUESTS).format(a=with_article(kind), o=with_article(noun))
    return _told("story_request", question, tell(dice, kind, noun), dice)


def free_request(dice):
    """A story about one thing, about somebody named, or about anything. Never evaluated, always of the training
    side."""
    kind = noun = name = None
    shape = dice.number(0, 3)
    if shape == 0:
        kind = dice.even(ANIMALS).kind
        question = dice.even(OF_ONE).format(x=with_article(kind))
    elif shape == 1:
        noun = dice.even(THINGS).noun
        question = dice.even(OF_ONE).format(x=with_article(noun))
    elif shape == 2:
        kind, name = dice.even(ANIMALS).kind, dice.even(GIRLS if dice.chance(0.5) else BOYS)
        question = dice.even(NAMED).format(a=with_article(kind), n=name)
    else:
        question = dice.even(OF_ANYTHING)
    return _told("free_request", question, tell(dice, kind, noun, name), dice)


def _told(family, question, telling, dice):
    messages = [("user", question), ("assistant", telling.text())]
    if not dice.heldout and dice.chance(0.3):
        for q, a in telling.asked(dice, dice.number(1, 2)):
            messages += [("user", q), ("assistant", a)]
    return Example(family, messages)


READ = ["Read this story: {s} {q}", "{s} {q}", "Here is a story. {s} {q}", "Story: {s} Question: {q}",
        "Listen to this story. {s} Now tell me: {q}"]
TELL_AND_ASK = ["Tell me a story.", "Tell me a story about {a}.", "Please tell me a story about {a} and {o}."]


def reading(dice):
    """Questions about a story that stands in the conversation: the user's own, or one just told."""
    telling = tell(dice)
    s = telling.slots
    if dice.chance(0.75):
        questions = telling.asked(dice, 1 if dice.heldout else 4)
        first = dice.even(READ).format(s=telling.text(" "), q=questions[0][0])
        messages = [("user", first), ("assistant", questions[0][1])]
        questions = questions[1:]
    else:
        while not (dice.known("request", s["K"], s["obj"]) and s["K"] not in ("girl", "boy")):
            telling = tell(dice)
            s = telling.slots
        questions = telling.asked(dice, 1 if dice.heldout else 4)
        request = dice.even(TELL_AND_ASK).format(a=with_article(s["K"]), o=with_article(s["obj"]))
        messages = [("user", request), ("assistant", telling.text())]
    for q, a in questions:
        messages += [("user", q), ("assistant", a)]
    return Example("reading", messages)
