"""Instructions on words: reverse, upper case, first and last letter, length, sort three, repeat."""

from .dice import asked
from .world import THINGS

WORDS = sorted(set(
    [t.noun for t in THINGS if " " not in t.noun and len(t.noun) <= 6] +
    ("ant bag bat bed bee bird boat bone book box boy bread bus cake cap car cat chair cheese city clay cloud coat cold "
     "corn cow crab cub dark day deer desk dog door dot drop duck dust ear earth east egg eye face farm fast fig fire "
     "fish flag floor fly fog food foot fork fox frog fruit game gate gift girl glass goat gold good grape grass green "
     "hair hand hen hill hive home horse house ice ink iron jam jug juice king kiss lake lamb lamp leaf leg lemon light "
     "lily lime lion log lunch meat melon milk mint moon moss moth mouse mud music nail name neck nest night north nose "
     "note nut oak oat ocean olive onion orange otter oven owl page paint palm pan paper park path peach pear pen piano "
     "pig pine pink plant plate plum pond pony pool pot purple queen quilt rain red rice river road robin rock roof room "
     "root rose sail salt sand school sea sheep ship shirt shoe silver skin sky snail snow soap sock song soup south "
     "spoon spring stair star stone storm straw sugar sun swan table tail tea tent tiger toast toe tool tooth town toy "
     "train tree tulip uncle valley vase voice wall water wave west wheat wheel white wind window wing winter wolf wood "
     "wool yard year yellow").split()))

REVERSE = ["Reverse the word {w}.", "Spell {w} backwards.", "Write the word {w} backwards.", "What is {w} backwards?",
           "Turn the word {w} around.", "Say the letters of {w} from last to first."]
UPPER = ["Write {w} in capital letters.", "Put {w} in upper case.", "Change {w} to upper case.",
         "Write the word {w} in capitals.", "Make the word {w} all capitals.", "Type {w} in big letters."]
FIRST = ["What is the first letter of {w}?", "Which letter does {w} begin with?", "Tell me the first letter of {w}.",
         "Give me the first letter of the word {w}.", "What letter does {w} start with?"]
LAST = ["What is the last letter of {w}?", "Which letter does {w} end with?", "Tell me the last letter of {w}.",
        "Give me the last letter of the word {w}.", "What letter is at the end of {w}?"]
LENGTH = ["How many letters does {w} have?", "How many letters are in {w}?", "Count the letters of {w}.",
          "How long is the word {w}?"]
SPELL = ["Spell the word {w}.", "How do you spell {w}?", "Spell {w} for me.", "Spell {w}, please."]
SORT = ["Sort these words: {a}, {b}, {c}.", "Put these words in order: {a}, {b}, {c}.",
        "Sort {a}, {b} and {c} from A to Z.", "Put {a}, {b} and {c} in alphabetical order.",
        "Sort the words {a}, {b}, {c}."]
TIMES = {2: ["twice", "two times"], 3: ["three times"], 4: ["four times"], 5: ["five times"], 6: ["six times"]}
REPEAT = ["Say {w} {n}.", "Repeat the word {w} {n}.", "Write {w} {n}.", "Please say the word {w} {n}."]

LETTERS = [
    ("reverse", REVERSE, lambda w: w[::-1]), ("reverse", REVERSE, lambda w: w[::-1]),
    ("upper", UPPER, str.upper), ("first", FIRST, lambda w: w[0]), ("last", LAST, lambda w: w[-1]),
    ("length", LENGTH, lambda w: str(len(w))), ("spell", SPELL, "-".join),
]


def words(dice):
    while True:
        shape = dice.number(0, 9)
        if shape < 6:  # one word's letters; the pair (word, wording) is held out
            name, wordings, answer = dice.even(LETTERS)
            word, wording = dice.even(WORDS), dice.number(0, len(wordings) - 1)
            if dice.mine("letters", name, word, wording):
                return asked("words", wordings[wording].format(w=word), answer(word))
        elif shape < 9:  # three words to sort; the three are held out in any order
            three = dice.several(WORDS, 3)
            a, b, c = three
            if dice.mine("sort", *sorted(three)):
                return asked("words", dice.even(SORT).format(a=a, b=b, c=c), ", ".join(sorted(three)))
        else:  # the pair (word, number) is held out
            word, n = dice.even(WORDS), dice.number(2, 6)
            if dice.mine("repeat", word, n):
                wording = dice.even(REPEAT).format(w=word, n=dice.even(TIMES[n]))
                return asked("words", wording, " ".join([word] * n))
