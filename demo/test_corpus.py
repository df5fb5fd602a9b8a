"""The corpus keeps its promises: deterministic, and no held-out question in the training text.

    python3 demo/test_corpus.py
"""

import json
import os
import sys
import unittest
from collections import Counter

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import corpus
from recipe import facts, numbers, stories, talk, words
from recipe.dice import HELDOUT_ONE_IN, Dice, is_heldout

MAKERS = [stories.story_request, stories.reading, numbers.add, numbers.subtract, numbers.multiply, numbers.compare,
          numbers.count, numbers.told_sum, facts.fact, talk.memory, words.words, talk.system, talk.refusal]


class Recorder(Dice):
    """Dice that remember which contents were accepted."""

    def __init__(self, seed, heldout):
        super().__init__(seed, heldout)
        self.asked = []

    def mine(self, *content):
        accepted = super().mine(*content)
        if accepted:
            self.asked.append(content)
        return accepted


def questions_of(example):
    """Every prompt of a document that is answered in it: each turn with all that stands before it."""
    return [tuple(example.messages[:i]) for i, (role, _) in enumerate(example.messages) if role == "assistant"]


class TheSplit(unittest.TestCase):
    def test_a_content_is_on_exactly_one_side(self):
        for content in [("add", 3, 40), ("story", "lost", "fox"), ("fact", "colour", "snow", 2)]:
            self.assertNotEqual(Dice(0, heldout=True).mine(*content), Dice(0, heldout=False).mine(*content))

    def test_about_one_content_in_ten_is_held_out(self):
        share = sum(is_heldout(("add", a, b)) for a in range(100) for b in range(100)) / 10_000
        self.assertAlmostEqual(share, 1 / HELDOUT_ONE_IN, delta=0.02)

    def test_the_hash_is_the_same_on_every_machine(self):
        self.assertEqual([b for b in range(100) if is_heldout(("add", 1, b))], STABLE)

    def test_each_maker_asks_only_what_its_side_may_ask(self):
        for maker in MAKERS:
            for heldout in (False, True):
                for seed in range(100):
                    dice = Recorder(f"{maker.__name__}{seed}", heldout)
                    maker(dice)
                    self.assertTrue(dice.asked, maker.__name__)
                    self.assertTrue(all(is_heldout(c) == heldout for c in dice.asked), maker.__name__)

    def test_no_held_out_question_occurs_in_training(self):
        items = load_items()
        heldout = {tuple((m["role"], m["content"]) for m in item["messages"]) for item in items}
        turns = {item["messages"][-1]["content"] for item in items if item["family"] in ("arithmetic", "facts", "words",
                                                                                        "refusal", "story_request")}
        seen = 0
        for i in range(30_000):
            example = corpus.document(1, i)
            for prompt in questions_of(example) if example.messages else ():
                seen += 1
                self.assertNotIn(prompt, heldout)
                self.assertNotIn(prompt[-1][1], turns)
        self.assertGreater(seen, 30_000)

    def test_a_held_out_sum_is_held_out_in_both_orders_and_all_wordings(self):
        pairs = set()
        for i in range(3000):
            example = numbers.add(Dice(f"sum{i}", heldout=True))
            a, b = [int(x) for x in "".join(c if c.isdigit() else " " for c in example.messages[0][1]).split()]
            if max(a, b) >= 10:
                pairs |= {(a, b), (b, a)}
        for i in range(20_000):
            example = numbers.add(Dice(f"sum{i}"))
            a, b = [int(x) for x in "".join(c if c.isdigit() else " " for c in example.messages[0][1]).split()]
            self.assertNotIn((a, b), pairs)

    def test_every_fact_is_learnable_through_another_wording(self):
        for name, wordings, _ in facts.FACTS:
            known = sum(not is_heldout(("fact", *name, w)) for w in range(len(wordings)))
            self.assertGreaterEqual(known, 2, name)
        for name, wordings, _ in words.LETTERS:
            for word in words.WORDS:
                known = sum(not is_heldout(("letters", name, word, w)) for w in range(len(wordings)))
                self.assertGreaterEqual(known, 1, (name, word))
        for a in range(1, 13):
            for b in range(1, 13):
                self.assertGreaterEqual(
                    sum(not is_heldout(("multiply", a, b, w)) for w in range(len(numbers.MULTIPLY))), 3)


class TheCorpus(unittest.TestCase):
    def test_a_document_follows_from_seed_and_index(self):
        for i in (0, 7, 4711):
            self.assertEqual(corpus.text_of(corpus.document(1, i)), corpus.text_of(corpus.document(1, i)))
        self.assertNotEqual(corpus.text_of(corpus.document(1, 0)), corpus.text_of(corpus.document(2, 0)))

    def test_the_committed_items_are_what_the_rules_write(self):
        self.assertEqual(load_items(), corpus.eval_items())
        with open(os.path.join(EVAL, "heldout.txt"), encoding="utf-8") as f:
            self.assertEqual(f.read(), corpus.heldout_text())

    def test_there_are_a_thousand_items_with_different_prompts(self):
        items = load_items()
        self.assertEqual(len(items), 1000)
        self.assertEqual(len({item["prompt"] for item in items}), 1000)
        self.assertEqual(len({item["id"] for item in items}), 1000)

    def test_sums_and_differences_are_right(self):
        for maker, sign in ((numbers.add, 1), (numbers.subtract, -1)):
            for i in range(3000):
                q, a = (m[1] for m in maker(Dice(i)).messages)
                x, y = [int(n) for n in "".join(c if c.isdigit() else " " for c in q).split()]
                x, y = (max(x, y), min(x, y))
                self.assertEqual(int(a), x + sign * y, q)

    def test_stories_leave_no_slot_open_and_mention_what_was_asked(self):
        for i in range(3000):
            example = stories.story_request(Dice(i))
            request, story = (m[1] for m in example.messages[:2])
            self.assertNotRegex(story, r"[{}]|  |\.\.|,\.")
            for word in corpus.mentions(request):
                self.assertIn(word, story.lower())
            self.assertEqual(len(corpus.mentions(request)), 2, request)

    def test_there_are_tens_of_thousands_of_plots(self):
        told = sum(len(plots[t.noun]) for plots in (stories.OF_USE, stories.OF_MOST) for t in stories.THINGS)
        combinations = told * len(stories.ANIMALS) * len(stories.PLACES)
        self.assertGreater(combinations, 50_000)

    def test_no_plot_name_or_object_is_the_favourite_of_all_stories(self):
        tellings = [stories.tell(Dice(i)).slots for i in range(1000)]
        for slot, most in (("N", 40), ("obj", 50), ("K", 90), ("at", 110)):
            self.assertLess(max(Counter(s[slot] for s in tellings).values()), most, slot)

    def test_a_prompt_is_the_beginning_of_its_document(self):
        for i in range(500):
            messages = talk.memory(Dice(i)).messages
            self.assertTrue(corpus.render(messages).startswith(corpus.render_prompt(messages[:-1]) + " "))


EVAL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "eval")
STABLE = [6, 17, 37, 48, 56, 61, 63, 67, 69, 72, 90, 93, 98]


def load_items():
    with open(os.path.join(EVAL, "items.jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for line in f]


if __name__ == "__main__":
    unittest.main()
