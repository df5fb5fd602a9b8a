"""Compares our Jinja with Transformers' on the published chat templates that llama.cpp collects.

    pip download --no-binary :all: --no-deps llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz
    python3 tests/peers/jinja_templates.py llama_cpp_python-*/vendor/llama.cpp/models/templates build/tests/render-template

Every template renders every conversation of CONVERSATIONS; texts must be equal byte for byte, and what one refuses the
other must refuse, in the same words where they are the template's own. Needs Transformers and Jinja2. Nothing of the
templates is part of this project.
"""

import datetime
import json
import pathlib
import subprocess
import sys
import tempfile

import jinja2
import transformers
from transformers.utils import chat_template_utils

NOW = datetime.datetime(2026, 3, 1, 10, 20, 30)  # as render_template.cpp has it


class FixedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = FixedDatetime


def function(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    function("get_weather", "The weather of a place, \"now\" & later.",
             {"city": {"type": "string", "description": "A city's name"},
              "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
              "days": {"type": "integer", "minimum": 1}}, ["city"]),
    function("search", "Searches.",
             {"query": {"type": ["string", "null"], "description": "¿What?"},
              "filters": {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}},
                                                           "limit": {"type": "number", "default": 1.5}}},
              "any": {"anyOf": [{"type": "string"}, {"type": "integer"}], "nullable": True}}, []),
]


def text(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, number=0):
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


def cases():
    turns = [text("user", "  What is 12 plus 30? "), text("assistant", "It is 42.\n"), text("user", "¿Y 你好 🙂?")]
    weather = [text("user", "Is it raining in Paris?"),
               text("assistant", "Let me see.", tool_calls=[call("get_weather", {"city": "Paris", "days": 2})]),
               text("tool", '{"rain": true}', tool_call_id="call00000", name="get_weather")]
    several = [text("user", "Compare."),
               text("assistant", "", tool_calls=[call("get_weather", {"city": "Rome", "unit": "celsius"}, 1),
                                                 call("search", {"query": None, "filters": {"tags": ["a", "b"]}}, 2)]),
               text("tool", "20 degrees", tool_call_id="call00001", name="get_weather"),
               text("tool", "[1, 2]", tool_call_id="call00002", name="search"),
               text("assistant", "Rome is warm."), text("user", "Thanks")]
    thoughts = [text("user", "Think."), text("assistant", "<think>\nHm.\n</think>\n\nYes.", reasoning_content="Hm."),
                text("user", "Again."), text("assistant", "No.", reasoning_content="I thought\nlong."),
                text("user", "Why?")]
    parts = [text("system", [{"type": "text", "text": "Be kind."}]),
             text("user", [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "what is it?"}]),
             text("assistant", [{"type": "text", "text": "A cat."}]), text("user", [{"type": "text", "text": "Sure?"}])]
    as_text = [text("user", "Call it."),
               text("assistant", None, tool_calls=[call("get_weather", '{"city": "Oslo"}', 3)]),
               text("tool", "Snow", tool_call_id="call00003", name="get_weather")]
    system = [text("system", "You are a parrot.\n<|im_end|>")]
    return [
        dict(messages=turns[:1]),
        dict(messages=system + turns),
        dict(messages=turns[:2], add_generation_prompt=False),
        dict(messages=system + turns[:1], tools=TOOLS),
        dict(messages=system + weather, tools=TOOLS),
        dict(messages=several, tools=TOOLS, enable_thinking=True),
        dict(messages=thoughts, enable_thinking=False, thinking=True),
        dict(messages=parts),
        dict(messages=as_text, tools=TOOLS[:1], add_generation_prompt=False, reasoning_effort="high"),
        dict(messages=[text("developer", "Answer in French."), *turns[:1]], enable_thinking=True,
             documents=[{"title": "A", "text": "One."}, {"title": "B", "text": "Two."}]),
        dict(messages=system + [text("user", "a"), text("user", "b")]),
        dict(messages=[text("user", "Hi"), text("assistant", "")] + thoughts[2:] + weather, tools=TOOLS),
    ]


def variables(case):
    """What Transformers gives to a template."""
    messages = [{key: value for key, value in message.items() if value is not None} for message in case["messages"]]
    given = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", **case}
    given.setdefault("tools", None)
    given.setdefault("documents", None)
    given.setdefault("add_generation_prompt", True)
    given["messages"] = chat_template_utils._alias_reasoning_fields(messages)
    return given


def theirs(template, given):
    try:
        program = chat_template_utils._compile_jinja_template(template)
        return {"text": program.render(**chat_template_utils._plain_template_data(given))}
    except jinja2.exceptions.TemplateError as error:
        own_words = type(error) is jinja2.exceptions.TemplateError
        return {"error": str(error.message if own_words else error), "own_words": own_words}
    except Exception as error:  # Python's own: a TypeError ...
        return {"error": f"{type(error).__name__}: {error}", "own_words": False}


def same(ours, expected):
    if "text" in expected:
        return ours.get("text") == expected["text"]
    own_words = "template refuses the conversation: " + expected["error"].replace("\n", "\\n")
    return "error" in ours and (not expected["own_words"] or ours["error"] == own_words)


def main():
    folder, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    tests = [(path.name, template, number, variables(case))
             for path in sorted(folder.glob("*.jinja")) for template in [path.read_text()]
             for number, case in enumerate(cases())]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([{"template": template, "variables": given} for _, template, _, given in tests], file)
        file.flush()
        results = json.loads(subprocess.run([program, file.name], capture_output=True, check=True).stdout)
    n_refused = n_different = 0
    for (name, template, number, given), ours in zip(tests, results, strict=True):
        expected = theirs(template, given)
        n_refused += "error" in expected
        if same(ours, expected):
            continue
        n_different += 1
        print(f"{name}, conversation {number}:\n  theirs: {expected}\n  ours:   {ours}")
    n_templates = len({name for name, *_ in tests})
    print(f"{n_templates} templates, {len(tests)} renderings, {n_refused} refused by both or one; "
          f"{n_different} different (transformers {transformers.__version__}, jinja2 {jinja2.__version__})")
    sys.exit(n_different > 0)


if __name__ == "__main__":
    main()
