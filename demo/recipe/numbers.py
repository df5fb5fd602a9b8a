"""Arithmetic: sums and differences to three digits, the times tables, comparing, counting.

A pair of operands is held out in every wording and, for sums, in both orders. Facts that must be known by heart (sums
of two digits, differences under twenty, the tables) are held out by fact and wording."""

from .dice import asked
from .world import BOYS, GIRLS

ADD = ["What is {a} plus {b}?", "What is {a} + {b}?", "Add {a} and {b}.", "How much is {a} plus {b}?",
       "Calculate {a} + {b}.", "What is the sum of {a} and {b}?", "{a} + {b} = ?", "Please add {a} and {b}.",
       "How much is {a} + {b}?", "Work out {a} plus {b}."]
SUBTRACT = ["What is {a} minus {b}?", "What is {a} - {b}?", "Subtract {b} from {a}.", "How much is {a} minus {b}?",
            "Calculate {a} - {b}.", "What is the difference between {a} and {b}?", "{a} - {b} = ?",
            "Take {b} away from {a}.", "How much is {a} - {b}?", "Work out {a} minus {b}."]
MULTIPLY = ["What is {a} times {b}?", "What is {a} x {b}?", "Multiply {a} by {b}.", "How much is {a} times {b}?",
            "Calculate {a} x {b}.", "{a} x {b} = ?", "What is the product of {a} and {b}?", "Work out {a} times {b}."]
LARGER = ["Which is larger, {a} or {b}?", "Which number is bigger, {a} or {b}?", "What is more, {a} or {b}?",
          "Which is greater: {a} or {b}?"]
SMALLER = ["Which is smaller, {a} or {b}?", "Which number is smaller, {a} or {b}?", "What is less, {a} or {b}?",
           "Which is less: {a} or {b}?"]
GOODS = ["apples", "pears", "plums", "nuts", "shells", "stones", "buttons", "coins", "eggs", "flowers", "books", "balls",
         "cups", "leaves", "feathers", "cookies", "carrots", "marbles", "candles", "stars"]
ONE = {"leaves": "leaf"}
NAMES = GIRLS + BOYS


def _draw(dice, digits):
    return dice.number(1 if digits == 1 else 10 ** (digits - 1), 10 ** digits - 1)


def _lengths(dice):
    """Digits of two operands: most have two or three."""
    r = dice.random()
    for p, lengths in ((0.05, (1, 1)), (0.12, (2, 1)), (0.17, (1, 2)), (0.40, (2, 2)), (0.44, (3, 1)), (0.53, (3, 2)),
                       (0.60, (2, 3))):
        if r < p:
            return lengths
    return 3, 3


def _two_numbers(dice):
    """Two operands; a third of the three-digit ones carry in many columns, or nearly."""
    la, lb = _lengths(dice)
    if (la, lb) != (3, 3) or dice.chance(0.66):
        return _draw(dice, la), _draw(dice, lb)
    a = b = 0
    for place in (100, 10, 1):
        x = dice.number(1 if place == 100 else 0, 9)
        total = 9 if dice.chance(0.4) else dice.number(10, 18)
        y = min(9, max(1 if place == 100 else 0, total - x))
        a, b = a + x * place, b + y * place
    return a, b


def may_add(dice, a, b, wording):
    """Whether this side may ask for a + b."""
    low, high = min(a, b), max(a, b)
    return dice.mine("add", low, high, wording) if high < 10 else dice.mine("add", low, high)


def may_subtract(dice, a, b, wording):
    return dice.mine("subtract", a, b, wording) if a < 20 else dice.mine("subtract", a, b)


def add(dice):
    while True:
        a, b = _two_numbers(dice)
        wording = dice.number(0, len(ADD) - 1)
        if may_add(dice, a, b, wording):
            return asked("add", ADD[wording].format(a=a, b=b), str(a + b))


def subtract(dice):
    while True:
        a, b = _two_numbers(dice)
        if dice.chance(0.5) and a + b < 1000:
            a += b  # the operands of a sum with carries make a difference that borrows
        a, b = max(a, b), min(a, b)
        wording = dice.number(0, len(SUBTRACT) - 1)
        if may_subtract(dice, a, b, wording):
            return asked("subtract", SUBTRACT[wording].format(a=a, b=b), str(a - b))


def multiply(dice):
    while True:
        a, b = dice.number(0 if dice.chance(0.1) else 1, 12), dice.number(1, 12)
        wording = dice.number(0, len(MULTIPLY) - 1)
        if dice.mine("multiply", a, b, wording):
            return asked("multiply", MULTIPLY[wording].format(a=a, b=b), str(a * b))


def compare(dice):
    while True:
        a = _draw(dice, dice.number(1, 3))
        b = a + dice.number(1, 60) if dice.chance(0.4) else _draw(dice, dice.number(1, 3))
        low, high = min(a, b), max(a, b)
        if low != high and high < 1000 and dice.mine("compare", low, high):
            break
    if dice.chance(0.3):
        a, b = (low, high) if dice.chance(0.5) else (high, low)
        if dice.chance(0.5):
            answer = f"Yes, {a} is larger than {b}." if a > b else f"No, {a} is smaller than {b}."
            return asked("compare", f"Is {a} larger than {b}?", answer)
        answer = f"Yes, {a} is smaller than {b}." if a < b else f"No, {a} is larger than {b}."
        return asked("compare", f"Is {a} smaller than {b}?", answer)
    wordings, answer = (LARGER, high) if dice.chance(0.5) else (SMALLER, low)
    a, b = (low, high) if dice.chance(0.5) else (high, low)
    return asked("compare", dice.even(wordings).format(a=a, b=b), str(answer))


def count(dice):
    """Count words in a row, say the numbers of a range, or name the neighbour of a number."""
    shape = dice.number(0, 9)
    while shape < 4:
        goods, other = dice.several(GOODS, 2)
        row = [goods] * dice.number(1, 12)
        if dice.chance(0.5) and len(row) < 12:
            row = dice.shuffled(row + [other] * dice.number(1, 12 - len(row)))
        names = " ".join(ONE.get(g, g[:-1]) for g in row)
        if dice.mine("count", names):
            wording = dice.even(["How many {g} are here: {r}?", "Count the {g}: {r}.", "How many {g} do you see? {r}"])
            return asked("count", wording.format(g=goods, r=names), str(row.count(goods)))
    while shape < 6:
        low = dice.number(1, 90)
        high = low + dice.number(2, 9)
        if dice.mine("range", low, high):
            wording = dice.even(["Count from {a} to {b}.", "Please count from {a} to {b}.",
                                 "Say the numbers from {a} to {b}."])
            return asked("count", wording.format(a=low, b=high), ", ".join(map(str, range(low, high + 1))))
    while True:
        n, step = _draw(dice, dice.number(1, 3)), dice.even([-1, 1])
        if dice.mine("neighbour", n, step) and n > 1:
            wording = dice.even(["What number comes {w} {n}?", "Which number comes {w} {n}?"])
            return asked("count", wording.format(w="after" if step > 0 else "before", n=n), str(n + step))


def told_sum(dice):
    """A sum or a difference told with names and things."""
    while True:
        plus = dice.chance(0.5)
        a, b = (_draw(dice, dice.number(1, 2)) + 1 for _ in range(2))
        if not plus:
            a, b = max(a, b), min(a, b)
        if a != b and (may_add(dice, a, b, "told") if plus else may_subtract(dice, a, b, "told")):
            break
    name, friend = dice.several(NAMES, 2)
    he = "She" if name in GIRLS else "He"
    goods = dice.even(GOODS)
    if plus:
        middle = dice.even(["{he} finds {b} more.", "{f} gives {n} {b} more.", "{he} buys {b} more."])
        result = a + b
    else:
        middle = dice.even(["{he} gives {b} to {f}.", "{he} loses {b}.", "{he} gives away {b}."])
        result = a - b
    wording = "{n} has {a} {g}. " + middle + " How many {g} does {n} have now?"
    answer = f"{name} has {result} {ONE.get(goods, goods[:-1]) if result == 1 else goods}."
    return asked("told_sum", wording.format(n=name, f=friend, he=he, a=a, b=b, g=goods), answer)
