"""Writes tests/golden/chat_templates.json: what Transformers' apply_chat_template makes of conversations with the
templates of well-known checkpoints.

    python3 tests/golden/make_chat_golden.py FOLDER

FOLDER has the chat templates of the checkpoints, NAME.jinja for each name in FORMATS. They are other people's and not
part of this project. Each template's "texts" are by the number of the conversation. It needs Transformers and Jinja2, but no models. The output
names the versions of the libraries.
"""

import json
import pathlib
import sys

import jinja2
import tokenizers
import transformers

HERE = pathlib.Path(__file__).resolve().parent

# The built-in template, in src/text/templates/, that a checkpoint's is compared with.
FORMATS = {
    "plain": "plain",
    "llama-2": "llama-2",
    "llama-3": "llama-3",
    "llama-3.1": "llama-3.1",
    "llama-3.2": "llama-3.1",
    "chatml": "chatml",
    "qwen-2": "qwen-2",
    "qwen-2.5": "qwen-2.5",
    "mistral": "mistral",
    "mistral-v0.1": "mistral",
    "mistral-v3": "mistral-v3",
    "mistral-tekken": "mistral-tekken",
    "gemma": "gemma",
    "gemma-3": "gemma",
    "phi-3": "phi-3",
    "phi-3-small": "phi-3",
    "phi-3-medium": "phi-3",
    "zephyr": "zephyr",
}
# Where the built-in one differs on purpose (docs/chat-templates.md says why), conversations with a ...
LEFT_OUT = {
    "mistral-v0.1": {"user", "system"},  # the spaces around tokens are those of the later template
    "mistral-v3": {"system in several turns"},  # it moves to the last user message
    "mistral-tekken": {"system in several turns"},
    "gemma": {"system"},  # refused; written as Gemma 3 has it
    "phi-3-small": {"user"},  # begins with BOS, which the format leaves to the tokenizer
    "phi-3-medium": {"system"},  # lost; written as Phi-3 mini has it
}


def message(role, content):
    return {"role": role, "content": content}


def conversations():
    questions = ["What is 12 plus 30?", "  two  spaces and a line break \n", "", "¿Dónde está 你好 🙂?", "\n\n- a list\n"]
    answers = ["It is 42.", " spaces around \n", "", "Aquí: 你好 \u00a0\u3000", "a\n\nb"]
    systems = ["You are a parrot.", "  indented,\n\nwith an end \n", ""]
    for system in [None, *systems]:
        for turns in (1, 2, 3):
            for first in range(len(questions)):
                parts = [] if system is None else [message("system", system)]
                for turn in range(turns):
                    if turn > 0:
                        parts.append(message("assistant", answers[(first + turn - 1) % len(answers)]))
                    parts.append(message("user", questions[(first + turn) % len(questions)]))
                yield parts


def kinds(conversation):
    found = {part["role"] for part in conversation}
    if "system" in found and len(conversation) > 2:
        found.add("system in several turns")
    return found


def main():
    folder = pathlib.Path(sys.argv[1])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()),
                                                     bos_token="<s>", eos_token="</s>")
    talks = list(conversations())
    golden = {
        "made_by": "tests/golden/make_chat_golden.py",
        "versions": {"transformers": transformers.__version__, "jinja2": jinja2.__version__},
        "conversations": talks,
        "templates": [],
    }
    for name, form in FORMATS.items():
        template = (folder / f"{name}.jinja").read_text()
        texts = {}
        for index, talk in enumerate(talks):
            if kinds(talk) & LEFT_OUT.get(name, set()):
                continue
            # The date is the fallback of Llama 3.2's template, which else takes today's.
            texts[index] = tokenizer.apply_chat_template(talk, chat_template=template, tokenize=False,
                                                         add_generation_prompt=True, date_string="26 Jul 2024")
        golden["templates"].append({"name": name, "format": form, "texts": texts})
    (HERE / "chat_templates.json").write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
