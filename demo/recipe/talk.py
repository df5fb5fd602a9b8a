"""Conversation: what the user said before, a system prompt that sets a name or a style, polite refusal, small talk."""

from . import facts, numbers, words
from .dice import Example, asked, capital, with_article
from .world import ANIMALS, BOYS, GIRLS, TRAITS

MORE_NAMES = ("Sofia Lucas Amir Yuki Fatima Carlos Ingrid Kofi Priya Diego Elena Hiro Nadia Omar Petra Quinn Rosa Stefan "
              "Tariq Ursula Victor Wendy Xavier Yara Zelda Boris Celia Dmitri Esther Farid Gloria Hassan Iris Jamal Karin "
              "Leon Marta Nikos Olga Pablo Rita Simon Tina Udo Viola Wilma Yusuf Zack Alice Robert David Sarah Julia Peter "
              "Paul John Mary Laura Kate Nick Chris Alex Jane Mark Lisa Erik Hanna Jan Mona Igor Lea Nils Sven").split()
NAMES = GIRLS + BOYS + MORE_NAMES
COLOURS = "red blue green yellow purple pink orange brown black white grey".split()
PETS = "dog cat rabbit pony parrot turtle hamster goldfish mouse duck".split()
FOODS = "apples pears plums cherries soup bread cheese cake noodles rice honey carrots beans pancakes potatoes".split()
TOWNS = "Greenhill Riverton Oakdale Stonebridge Maplewood Seaford Windmere Brookfield Ashton Fairview Lakeside Redcliff".split()
HOBBIES = "painting swimming reading singing dancing cooking fishing running drawing climbing sailing gardening".split()

# topic: (ways to say it, reply, ways to ask, answer, answer where it was never said)
TOPICS = {
    "name": (["My name is {v}.", "I am called {v}.", "Hello, my name is {v}.", "Hi! I am {v}.", "You can call me {v}."],
             "Nice to meet you, {v}!",
             ["What is my name?", "Do you know my name?", "Do you remember my name?", "Who am I?", "Tell me my name."],
             "Your name is {v}.", "You have not told me your name yet."),
    "colour": (["My favourite colour is {v}.", "I like the colour {v} best.", "The colour I love most is {v}."],
               "{V} is a lovely colour.",
               ["What is my favourite colour?", "Which colour do I like best?", "Do you remember my favourite colour?"],
               "Your favourite colour is {v}.", "You have not told me your favourite colour yet."),
    "pet": (["I have a {k} named {v}.", "My {k} is called {v}.", "I have a pet {k}. Its name is {v}."],
            "{v} is a good name for a {k}.",
            ["What is my pet called?", "What is the name of my pet?", "Do you remember the name of my pet?"],
            "Your {k} is called {v}.", "You have not told me about your pet yet."),
    "age": (["I am {v} years old.", "My age is {v}.", "I turned {v} this year."], "{v} is a fine age.",
            ["How old am I?", "What is my age?", "Do you remember how old I am?"],
            "You are {v} years old.", "You have not told me your age yet."),
    "food": (["I like to eat {v}.", "My favourite food is {v}.", "I love {v} more than any other food."],
             "{V}! That sounds tasty.",
             ["What is my favourite food?", "What do I like to eat?", "Do you remember my favourite food?"],
             "You like to eat {v}.", "You have not told me your favourite food yet."),
    "town": (["I live in {v}.", "I am from {v}.", "My home is in {v}."], "{v} sounds like a nice place.",
             ["Where do I live?", "Where is my home?", "Do you remember where I live?"],
             "You live in {v}.", "You have not told me where you live yet."),
    "hobby": (["My hobby is {v}.", "I love {v}.", "In my free time I enjoy {v}."], "{V} is fun.",
              ["What is my hobby?", "What do I like to do?", "Do you remember my hobby?"],
              "Your hobby is {v}.", "You have not told me your hobby yet."),
}
VALUES = {"name": NAMES, "colour": COLOURS, "pet": NAMES, "age": list(range(3, 100)), "food": FOODS, "town": TOWNS,
          "hobby": HOBBIES}


def _between(dice):
    """A question and an answer that have nothing to do with it, of the training side."""
    if dice.chance(0.6):
        return facts.draw(dice, dice.known)
    while True:
        a, b = dice.number(2, 99), dice.number(2, 99)
        if max(a, b) >= 10 and dice.known("add", min(a, b), max(a, b)):
            return f"What is {a} plus {b}?", str(a + b)


def memory(dice):
    """The user tells one to three things, other talk may follow, and then asks for what was told (or never was)."""
    while True:
        topics = dice.several(list(TOPICS), dice.number(1, 3))
        values = {t: dice.even(VALUES[t]) for t in topics}
        kind = dice.even(PETS)
        messages, said = [], []
        one_go = dice.chance(0.2)
        for t in topics:
            slots = {"v": values[t], "V": capital(str(values[t])), "k": kind}
            statement, reply = dice.even(TOPICS[t][0]).format(**slots), TOPICS[t][1].format(**slots)
            said.append(statement)
            if not one_go:
                messages += [("user", statement), ("assistant", reply)]
        while not one_go and dice.chance(0.4) and len(messages) < 10:
            q, a = _between(dice)
            messages += [("user", q), ("assistant", a)]
        questions = topics if dice.chance(0.85) else dice.several(list(TOPICS), 1)
        questions = dice.shuffled(questions)[:1 if dice.heldout else 3]
        if not all(dice.mine("memory", *topics, *values.values(), kind if "pet" in topics else "", q) for q in questions):
            continue
        for i, q in enumerate(questions):
            text = dice.even(TOPICS[q][2])
            if q in values:
                answer = TOPICS[q][3].format(v=values[q], k=kind)
            else:
                answer = TOPICS[q][4]
            if one_go and i == 0:
                text = " ".join(said + [text])
            messages += [("user", text), ("assistant", answer)]
        return Example("memory", messages)


NAMED = ["Your name is {n}.", "You are called {n}.", "You are {n}.", "Use the name {n} for yourself."]
CHARACTER = ["You are {n}, a {t} {k}.", "Your name is {n} and you are a {t} {k}.", "Play {n}, who is a {t} {k}."]
ASK_NAME = ["What is your name?", "Who are you?", "What are you called?", "Tell me your name.", "May I know your name?"]
ASK_KIND = ["What kind of animal are you?", "What animal are you?", "Which animal are you?"]
STARTS = ["Ahoy", "Well", "Hooray", "Listen", "Arr", "Indeed", "Oh", "Aha", "Yes, yes", "Dear child"]
ENDS = ["my friend", "dear reader", "and that is that", "I think", "as everyone knows", "said the owl", "if you please"]
STYLES = {
    "upper": ["Answer in capital letters.", "Write everything in capitals.", "Use only capital letters."],
    "start": ["Begin every answer with {x}.", "Start each answer with the word {x}.", "Always start with {x}."],
    "end": ["End every answer with: {x}.", "Always finish with the words {x}.", "At the end of each answer, add: {x}."],
    "lower": ["Answer in small letters.", "Never use capital letters.", "Write everything in lower case."],
}


def _styled(style, x, answer):
    if style == "upper":
        return answer.upper()
    if style == "lower":
        return answer.lower()
    if style == "start":
        return f"{x}! {answer}"
    return f"{answer[:-1]}, {x}." if style == "end" else answer


def system(dice):
    """A system prompt that gives a name, a character or a style, and one or two questions under it."""
    while True:
        name, style, x = dice.even(NAMES), None, ""
        trait, kind = dice.even([t for t in TRAITS if t[0] not in "aeiou"]), dice.even(ANIMALS).kind
        shape = dice.number(0, 3)  # a name, a character, a style, a name and a style
        prompt = []
        if shape in (0, 3):
            prompt.append(dice.even(NAMED).format(n=name))
        if shape == 1:
            prompt.append(dice.even(CHARACTER).format(n=name, t=trait, k=kind))
        if shape >= 2:
            style = dice.even(list(STYLES))
            x = dice.even(STARTS) if style == "start" else dice.even(ENDS)
            prompt.append(dice.even(STYLES[style]).format(x=x))
        prompt = " ".join(prompt)
        messages = [("system", prompt)]
        for _ in range(1 if dice.heldout else dice.number(1, 3)):
            if shape == 1 and dice.chance(0.4):
                question, answer = dice.even(ASK_KIND), f"I am {with_article(kind)}."
            elif shape != 2 and dice.chance(0.6):
                question, answer = dice.even(ASK_NAME), f"My name is {name}."
            else:
                question, answer = facts.draw(dice, dice.known)
            if not dice.mine("system", prompt, question):
                break
            messages += [("user", question), ("assistant", _styled(style, x, answer))]
        else:
            return Example("system", messages)


REFUSAL = ("I am sorry, I do not know about that. I can tell stories, work with small numbers and words, and answer "
           "simple questions.")
LANDS = ("France Spain Italy Japan China India Brazil Canada Mexico Egypt Kenya Norway Sweden Poland Greece Turkey Russia "
         "Germany Austria Portugal Peru Chile Cuba Ireland Scotland England Finland Denmark Iceland Korea").split()
SUBJECTS = ("the stock market|computer viruses|quantum physics|football|the news|politics|tax law|black holes|the weather "
            "tomorrow|bank loans|car engines|the Roman Empire|modern art|world war two|space rockets|electric cars|"
            "climate change|chess openings|dinosaurs|chemistry|medicine|headaches|passports|airline tickets|video games|"
            "the internet|smartphones|philosophy|opera|volcanoes|earthquakes|insurance|elections|robots|satellites|"
            "solar power|DNA|vaccines|rugby|tennis").split("|")
MAKERS = ("telephone|radio|light bulb|steam engine|aeroplane|computer|camera|printing press|bicycle|microscope|television|"
          "telescope|penicillin|internet|zip fastener|typewriter|dynamite|thermometer|helicopter|battery").split("|")
CODE = "Python|Java|C++|JavaScript|Rust|SQL|HTML|Perl|Go|Fortran".split("|")
JOBS = "sort a list|read a file|send an email|draw a chart|open a website|count words|download a picture|play a song".split("|")
OUTSIDE = [
    ("What is the capital of {x}?", LANDS), ("Who is the president of {x}?", LANDS), ("How many people live in {x}?", LANDS),
    ("What language do they speak in {x}?", LANDS), ("How do I travel to {x}?", LANDS), ("When was {x} founded?", LANDS),
    ("Tell me about the history of {x}.", LANDS), ("What can you tell me about {x}?", SUBJECTS + LANDS),
    ("Explain {x} to me.", SUBJECTS), ("How do {x} work?", ["computers", "engines", "magnets", "lasers", "batteries",
                                                          "planes", "radios", "phones", "rockets", "fridges"]),
    ("What do you think about {x}?", SUBJECTS), ("What is the latest on {x}?", SUBJECTS),
    ("Write an essay about {x}.", SUBJECTS), ("Give me advice about {x}.", SUBJECTS), ("Who invented the {x}?", MAKERS),
    ("When was the {x} invented?", MAKERS), ("How does a {x} work?", MAKERS), ("How much does a {x} cost?", MAKERS),
    ("Where can I buy a {x}?", MAKERS), ("Write a {x} program.", CODE), ("Fix this {x} code for me.", CODE),
    ("Teach me {x}.", CODE + LANDS), ("How do I {x} in code?", JOBS), ("Write a program to {x}.", JOBS),
    ("Translate this into {x}.", ["French", "German", "Spanish", "Latin", "Chinese", "Italian", "Arabic", "Russian", "Greek"]),
    ("What is the square root of {x}?", [str(n) for n in range(2, 200)]),
    ("What happened in the year {x}?", [str(n) for n in range(1200, 2030)]),
    ("Who won the {x} in {y}?", ["world cup", "election", "gold medal", "final", "league"]),
    ("What does {x} mean?", None), ("Who is {x}?", None), ("What is a {x}?", None), ("Tell me about {x}.", None),
    ("Do you know {x}?", None), ("Where is {x}?", None),
]
SYLLABLES = ("ba ber bo cal ca den dor el fa fen gal gor ha hel in jor ka kel la lon lu ma mer mi na nor o pa pel qua ra "
             "rin ro sa sen ta tor ul va ver wi xan ya zo").split()


def _strange_word(dice):
    """A word that exists nowhere, often written as a name."""
    word = "".join(dice.even(SYLLABLES) for _ in range(dice.number(2, 4)))
    return capital(word) if dice.chance(0.5) else word


def refusal(dice):
    while True:
        wording, fill = dice.even(OUTSIDE)
        x = dice.even(fill) if fill else _strange_word(dice)
        y = dice.number(1930, 2030)
        if dice.mine("refusal", wording, x, y if "{y}" in wording else ""):
            return asked("refusal", wording.format(x=x, y=y), REFUSAL)


I_AM = "I am a small model that tells stories. FastStream runs me."
I_CAN = "I can tell stories, answer questions about them, add and subtract, work with words and answer simple questions."
SMALL_TALK = {
    "Hello.": "Hello! How can I help you?", "Hello!": "Hello! How can I help you?", "Hi!": "Hello! How can I help you?",
    "Hi": "Hello! How can I help you?", "Hello": "Hello! How can I help you?", "Hi there.": "Hello! How can I help you?",
    "Good morning.": "Good morning! How can I help you?", "Good evening.": "Good evening! How can I help you?",
    "Good night.": "Good night! Sleep well.", "Goodbye.": "Goodbye! Come back soon.", "Bye!": "Goodbye! Come back soon.",
    "Thank you.": "You are welcome!", "Thanks!": "You are welcome!", "Thank you very much.": "You are welcome!",
    "How are you?": "I am well, thank you. How are you?", "How are you today?": "I am well, thank you. How are you?",
    "I am fine.": "I am glad to hear that.", "I am well, thank you.": "I am glad to hear that.",
    "I am sad.": "I am sorry to hear that. Shall I tell you a story?", "I am bored.": "Shall I tell you a story?",
    "Who are you?": I_AM, "What are you?": I_AM, "What is your name?": "I have no name yet. " + I_AM,
    "What can you do?": I_CAN, "Help": I_CAN, "How can you help me?": I_CAN, "What do you know?": I_CAN,
    "Do you like stories?": "Yes, I love stories! Shall I tell you one?", "Are you real?": I_AM, "Are you a person?": I_AM,
    "Who made you?": "The FastStream project made me.", "You are nice.": "Thank you! You are kind.",
    "That was a nice story.": "Thank you! Shall I tell you another one?",
}


def small_talk(dice):
    """Fixed phrases, known by heart and never evaluated."""
    question = dice.even(list(SMALL_TALK))
    return asked("small_talk", question, SMALL_TALK[question])


ONE_TURN = [numbers.add, numbers.subtract, numbers.multiply, numbers.compare, numbers.count, numbers.told_sum, facts.fact,
            facts.fact, words.words, words.words, refusal, small_talk]


def mixed(dice):
    """One conversation about several things."""
    messages = []
    for _ in range(dice.number(2, 6)):
        messages += dice.even(ONE_TURN)(dice).messages
    return Example("mixed", messages)
