"""The training text of the demo model, written from rules: no downloaded data.

    python3 corpus.py sample [N]     print N training documents
    python3 corpus.py eval DIR       write DIR/items.jsonl and DIR/heldout.txt

Document i of seed s is a function of (s, i) alone. The rules live in recipe/; this file mixes their families, renders
documents, and writes the held-out questions and text.
"""

import json
import os
import sys
from bisect import bisect_right
from itertools import accumulate

from recipe import facts, numbers, stories, talk, words
from recipe.dice import Dice, Example

SEPARATOR = "\n\n* * *\n\n"
BOOK_TITLE = "Stories and talks\n\n"

# family: (maker, share of the training text in percent of its characters)
FAMILIES = {
    "story": (stories.raw_story, 14), "story_request": (stories.story_request, 13),
    "free_request": (stories.free_request, 6), "reading": (stories.reading, 19),
    "add": (numbers.add, 6), "subtract": (numbers.subtract, 7), "multiply": (numbers.multiply, 1),
    "compare": (numbers.compare, 2), "count": (numbers.count, 3), "told_sum": (numbers.told_sum, 3),
    "facts": (facts.fact, 2), "memory": (talk.memory, 5), "words": (words.words, 5), "system": (talk.system, 4),
    "refusal": (talk.refusal, 1.5), "small_talk": (talk.small_talk, 0.5), "mixed": (talk.mixed, 5), "book": (None, 3),
}
# where an answer is prose, it is worth no more than other prose
PROSE = ("story_request", "free_request")

# family of the evaluation: (maker, items)
EVALUATED = {
    "reading": [("reading", stories.reading, 200)],
    "arithmetic": [("add", numbers.add, 60), ("subtract", numbers.subtract, 60), ("multiply", numbers.multiply, 30),
                   ("compare", numbers.compare, 40), ("count", numbers.count, 40), ("told_sum", numbers.told_sum, 40)],
    "facts": [("facts", facts.fact, 130)], "memory": [("memory", talk.memory, 120)],
    "words": [("words", words.words, 130)], "system": [("system", talk.system, 60)],
    "refusal": [("refusal", talk.refusal, 50)], "story_request": [("story_request", stories.story_request, 40)],
}

ROLES = {"system": "System: ", "user": "User: ", "assistant": "Assistant: "}


def render(messages):
    """The text of a conversation, without BOS and EOS: one line head a turn, as the chat template writes it."""
    return "\n".join(ROLES[role] + content for role, content in messages)


def render_prompt(messages):
    """What the model is given to answer: the conversation so far and the head of its own turn."""
    return render(messages) + "\nAssistant:"


def text_of(example):
    return example.text if example.messages is None else render(example.messages)


def book(dice):
    """Several documents in a row, as a file of plain text has them. Without a title it starts amid a story."""
    parts = []
    for _ in range(7):
        maker = dice.even([stories.raw_story, stories.raw_story, stories.raw_story, stories.reading,
                           stories.story_request, talk.memory, facts.fact, talk.system])
        parts.append(text_of(maker(dice)))
    text = SEPARATOR.join(parts)
    if dice.heldout or dice.chance(0.5):
        return Example("book", text=BOOK_TITLE + text)
    return Example("book", text=text[text.index(" ", dice.number(40, 400)) + 1:])


def _mix():
    """Families and how likely each is for a document, so that the text has the shares above."""
    names, weights = list(FAMILIES), []
    for name in names:
        maker = FAMILIES[name][0] or book
        mean = sum(len(text_of(maker(Dice(f"length/{name}/{i}")))) for i in range(200)) / 200
        weights.append(FAMILIES[name][1] / mean)
    return names, list(accumulate(weights))


_MIX = None


def document(seed, index):
    """Training document `index` of the corpus of `seed`."""
    global _MIX
    if _MIX is None:
        _MIX = _mix()
    names, weights = _MIX
    dice = Dice(f"{seed}/{index}")
    maker = FAMILIES[names[bisect_right(weights, dice.random() * weights[-1])]][0]
    return (maker or book)(dice)


def eval_items():
    """The held-out items: no two with the same prompt."""
    items, seen = [], set()
    for family, parts in EVALUATED.items():
        for name, maker, n in parts:
            index = made = 0
            while made < n:
                example = maker(Dice(f"eval/{name}/{index}", heldout=True))
                index += 1
                prompt = render_prompt(example.messages[:-1])
                if prompt in seen:
                    continue
                seen.add(prompt)
                made += 1
                item = {"id": f"{name}-{made:03d}", "family": family, "prompt": prompt,
                        "messages": [{"role": r, "content": c} for r, c in example.messages[:-1]],
                        "answer": example.messages[-1][1], "check": "exact"}
                if family == "story_request":
                    item["check"] = "open"
                    item["mentions"] = mentions(example.messages[0][1])
                items.append(item)
    return items


def mentions(request):
    """The animal and the object that a request names."""
    tokens = request.lower().replace("?", " ").replace(".", " ").replace(",", " ")
    found = [a.kind for a in stories.ANIMALS if f" {a.kind} " in tokens + " "]
    return found + [t.noun for t in stories.THINGS if f" {t.noun} " in tokens + " "]


def heldout_text(size=80_000):
    """Held-out stories and conversations as plain text, about `size` bytes."""
    text, index = BOOK_TITLE, 0
    while len(text) < size:
        part = book(Dice(f"heldout/{index}", heldout=True)).text[len(BOOK_TITLE):]
        text += (SEPARATOR if index else "") + part
        index += 1
    return text + "\n"


def write_eval(folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "items.jsonl"), "w", encoding="utf-8") as f:
        for item in eval_items():
            f.write(json.dumps(item, ensure_ascii=False) + "\n")
    with open(os.path.join(folder, "heldout.txt"), "w", encoding="utf-8") as f:
        f.write(heldout_text())


def main(argv):
    if len(argv) >= 2 and argv[1] == "sample":
        for i in range(int(argv[2]) if len(argv) > 2 else 20):
            example = document(1, i)
            print(f"--- {example.family}\n{text_of(example)}")
    elif len(argv) == 3 and argv[1] == "eval":
        write_eval(argv[2])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv)
