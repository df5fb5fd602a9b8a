"""Small facts of a closed world. A fact is learnt through most of its wordings; a tenth of the pairs (fact, wording)
is held out."""

from .dice import asked, capital, with_article

COLOURS = {
    "grass": "green", "snow": "white", "the sky": "blue", "a lemon": "yellow", "a tomato": "red", "coal": "black",
    "an orange": "orange", "milk": "white", "the sun": "yellow", "a cherry": "red", "a frog": "green", "a crow": "black",
    "a carrot": "orange", "a plum": "purple", "chocolate": "brown", "a banana": "yellow", "a swan": "white",
    "a pea": "green", "a strawberry": "red", "the sea": "blue", "an elephant": "grey", "a pumpkin": "orange",
    "a violet": "purple", "a cloud": "white", "a leaf in summer": "green", "a pig": "pink", "a bear": "brown",
    "salt": "white", "a ruby": "red", "the night": "black"}
SOUNDS = {"dog": "woof", "cat": "meow", "cow": "moo", "duck": "quack", "lamb": "baa", "pig": "oink", "owl": "hoot",
          "frog": "ribbit", "bee": "buzz", "lion": "roar", "mouse": "squeak", "crow": "caw", "rooster": "cock-a-doodle-doo",
          "horse": "neigh", "hen": "cluck", "donkey": "hee-haw", "goose": "honk", "sparrow": "chirp", "snake": "hiss",
          "wolf": "howl"}
BABIES = {"dog": "puppy", "cat": "kitten", "cow": "calf", "duck": "duckling", "sheep": "lamb", "pig": "piglet",
          "bear": "cub", "horse": "foal", "hen": "chick", "goose": "gosling", "goat": "kid", "deer": "fawn",
          "owl": "owlet", "swan": "cygnet", "frog": "tadpole", "lion": "cub", "wolf": "cub", "kangaroo": "joey"}
HOMES = {"bee": "a hive", "bird": "a nest", "spider": "a web", "fox": "a den", "rabbit": "a burrow", "dog": "a kennel",
         "horse": "a stable", "pig": "a sty", "beaver": "a lodge", "hen": "a coop", "bat": "a cave", "ant": "an anthill",
         "snail": "a shell", "king": "a castle", "fish": "the water", "squirrel": "a tree"}
LEGS = {"dog": "four", "cat": "four", "bird": "two", "spider": "eight", "ant": "six", "bee": "six", "snake": "no",
        "cow": "four", "duck": "two", "horse": "four", "fish": "no", "frog": "four", "hen": "two", "crab": "ten",
        "beetle": "six", "owl": "two", "fox": "four", "mouse": "four", "worm": "no", "penguin": "two"}
OPPOSITES = ("big small|hot cold|day night|up down|happy sad|fast slow|old new|light dark|open closed|wet dry|hard soft|"
             "long short|loud quiet|full empty|rich poor|strong weak|early late|near far|high low|clean dirty|good bad|"
             "left right|in out|first last|begin end|thick thin|sweet sour|heavy light|smooth rough|wide narrow|"
             "deep shallow|push pull|brave afraid|young old|warm cool|true false|always never|summer winter|buy sell|"
             "win lose|laugh cry|love hate|front back|top bottom|inside outside|easy difficult|asleep awake|"
             "give take|come go|remember forget")
PLURALS = ("mouse mice|goose geese|child children|foot feet|tooth teeth|man men|woman women|leaf leaves|wolf wolves|"
           "sheep sheep|fish fish|deer deer|knife knives|loaf loaves|box boxes|fox foxes|bus buses|dish dishes|"
           "glass glasses|baby babies|city cities|berry berries|puppy puppies|story stories|cat cats|dog dogs|"
           "bird birds|tree trees|apple apples|book books|house houses|star stars|river rivers|king kings|"
           "potato potatoes|tomato tomatoes|day days|boy boys|key keys|shelf shelves|half halves|wife wives|ox oxen|"
           "peach peaches|bench benches|wish wishes|lady ladies|cherry cherries|pony ponies|kite kites|lamp lamps|"
           "cup cups|ring rings|hat hats|bell bells|drum drums|boat boats|cow cows|bear bears|frog frogs")
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SEASONS = dict(zip(MONTHS, ["winter"] * 2 + ["spring"] * 3 + ["summer"] * 3 + ["autumn"] * 3 + ["winter"]))
DAYS_IN = dict(zip(MONTHS, (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)))
MIXES = {("red", "blue"): "purple", ("red", "yellow"): "orange", ("blue", "yellow"): "green", ("red", "white"): "pink",
         ("black", "white"): "grey", ("red", "green"): "brown"}
SIDES = {"triangle": "three", "square": "four", "rectangle": "four", "pentagon": "five", "hexagon": "six",
         "octagon": "eight"}
AMOUNTS = {"days are in a week": "There are seven days in a week.", "months are in a year": "There are twelve months in a year.",
           "hours are in a day": "There are twenty-four hours in a day.", "seasons are in a year": "There are four seasons in a year.",
           "minutes are in an hour": "There are sixty minutes in an hour.", "seconds are in a minute": "There are sixty seconds in a minute.",
           "fingers are on a hand": "There are five fingers on a hand.", "letters are in the alphabet": "There are twenty-six letters in the alphabet.",
           "things are in a pair": "There are two things in a pair.", "things are in a dozen": "There are twelve things in a dozen."}
KINDS = {"bird": "owl duck robin sparrow crow hen goose swan penguin".split(), "insect": "ant bee butterfly beetle fly".split(),
         "fruit": "apple pear plum banana cherry lemon peach".split(), "vegetable": "carrot cabbage pea bean potato onion".split(),
         "flower": "rose tulip daisy violet sunflower lily".split(), "colour": "red blue green yellow purple pink".split(),
         "tree": "oak pine willow birch maple".split(), "tool": "hammer shovel saw rake axe".split()}


def _pairs(text):
    return [tuple(pair.split()) for pair in text.split("|")]


def _facts():
    """(wordings, {slots}, answer) of every fact."""
    lead = ["{q}?", "Do you know {i}?", "Please tell me {i}.", "Tell me {i}.", "Can you tell me {i}?", "I want to know {i}."]

    def add(name, direct, indirect, answer):
        """direct: "What colour is grass"; indirect: the same as part of a sentence."""
        facts.append((name, [w.format(q=direct, i=indirect) for w in lead], answer))

    facts = []
    for s, c in COLOURS.items():
        add(("colour", s), f"What colour is {s}", f"what colour {s} is", f"{capital(s)} is {c}.")
    for s, x in SOUNDS.items():
        add(("sound", s), f"What sound does {with_article(s)} make", f"what sound {with_article(s)} makes",
            f"{capital(with_article(s))} says {x}.")
    for s, x in BABIES.items():
        add(("baby", s), f"What is a baby {s} called", f"what a baby {s} is called", f"A baby {s} is called {with_article(x)}.")
    for s, x in HOMES.items():
        add(("home", s), f"Where does {with_article(s)} live", f"where {with_article(s)} lives",
            f"{capital(with_article(s))} lives in {x}.")
    for s, x in LEGS.items():
        add(("legs", s), f"How many legs does {with_article(s)} have", f"how many legs {with_article(s)} has",
            f"{capital(with_article(s))} has {x} legs.")
    for a, b in _pairs(OPPOSITES):
        for x, y in ((a, b), (b, a)):
            if (x, y) not in (("light", "heavy"), ("old", "young")):
                add(("opposite", x), f"What is the opposite of {x}", f"the opposite of {x}", f"The opposite of {x} is {y}.")
    for a, b in _pairs(PLURALS):
        add(("plural", a), f"What is the plural of {a}", f"the plural of {a}", f"The plural of {a} is {b}.")
    for list_, what in ((DAYS, "day"), (MONTHS, "month")):
        for i, d in enumerate(list_):
            after, before = list_[(i + 1) % len(list_)], list_[i - 1]
            add(("after", d), f"Which {what} comes after {d}", f"which {what} comes after {d}", f"{after} comes after {d}.")
            add(("before", d), f"Which {what} comes before {d}", f"which {what} comes before {d}", f"{before} comes before {d}.")
    for m in MONTHS:
        add(("season", m), f"Which season is {m} in", f"which season {m} is in", f"{m} is in {SEASONS[m]}.")
        add(("days", m), f"How many days does {m} have", f"how many days {m} has", f"{m} has {DAYS_IN[m]} days.")
        add(("month", m), f"Which number is the month {m}", f"which number the month {m} is",
            f"{m} is month number {MONTHS.index(m) + 1}.")
    for (a, b), c in MIXES.items():
        for x, y in ((a, b), (b, a)):
            add(("mix", x, y), f"What do you get when you mix {x} and {y}", f"what you get when you mix {x} and {y}",
                f"If you mix {x} and {y}, you get {c}.")
    for s, n in SIDES.items():
        add(("sides", s), f"How many sides does {with_article(s)} have", f"how many sides {with_article(s)} has",
            f"{capital(with_article(s))} has {n} sides.")
    for q, a in AMOUNTS.items():
        add(("amount", q), f"How many {q}", f"how many {q}", a)
    for kind, members in KINDS.items():
        for m in members:
            add(("kind", m), f"Is {with_article(m) if kind != 'colour' else m} {with_article(kind)}",
                f"whether {with_article(m) if kind != 'colour' else m} is {with_article(kind)}",
                f"Yes, {with_article(m) if kind != 'colour' else m} is {with_article(kind)}.")
            other = sorted(KINDS)[(sorted(KINDS).index(kind) + 3) % len(KINDS)]
            subject = with_article(m) if kind != "colour" else m
            add(("not", m), f"Is {subject} {with_article(other)}", f"whether {subject} is {with_article(other)}",
                f"No, {subject} is {with_article(kind)}.")
    return facts


FACTS = _facts()


def draw(dice, allowed):
    """A question and its answer among those whose (fact, wording) is allowed."""
    while True:
        name, wordings, answer = dice.even(FACTS)
        wording = dice.number(0, len(wordings) - 1)
        if allowed("fact", *name, wording):
            return wordings[wording], answer


def fact(dice):
    return asked("facts", *draw(dice, dice.mine))
