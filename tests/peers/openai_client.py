"""Asks a running faststream-serve with OpenAI's own Python client, over every route, with the
synchronous and the asynchronous client, streamed and not.

    pip install openai
    faststream-serve -m demo=build/demo-int8.bin [-m encoder.bin] --port 8080
    tests/peers/openai_client.py http://127.0.0.1:8080 [--encoder NAME] [--key KEY]

Prints a line for each check and exits with 1 if one failed. The model must be able to chat.
"""
import argparse
import array
import asyncio
import json
import urllib.request

import openai

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("address")
parser.add_argument("--model", default="demo")
parser.add_argument("--encoder")
parser.add_argument("--key", default="none")
args = parser.parse_args()

client = openai.OpenAI(base_url=args.address + "/v1", api_key=args.key, max_retries=0)
client_async = openai.AsyncOpenAI(base_url=args.address + "/v1", api_key=args.key, max_retries=0)
QUESTION = [{"role": "user", "content": "What is 128 plus 345?"}]
EXACT = {"model": args.model, "temperature": 0}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds two numbers",
          "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}]
checks = []


def check(function):
    checks.append(function)
    return function


def refused(param, call, status=400):
    """`call` must be refused with an error about this parameter."""
    try:
        call()
    except openai.APIStatusError as error:
        assert error.status_code == status, (error.status_code, error.message)
        assert error.param == param, (error.param, error.message)
        assert error.body["message"] and "0x" not in error.body["message"]
        return
    raise AssertionError("not refused")


@check
def models():
    names = [model.id for model in client.models.list()]
    assert args.model in names, names
    assert client.models.retrieve(args.model).id == args.model
    refused("model", lambda: client.models.retrieve("nothing"), 404)


@check
def chat():
    answer = client.chat.completions.create(messages=QUESTION, max_completion_tokens=16, **EXACT)
    assert answer.object == "chat.completion" and answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content and answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@check
def chat_streamed_is_the_same():
    whole = client.chat.completions.create(messages=QUESTION, max_tokens=16, **EXACT)
    text, usage, reason = "", None, None
    for chunk in client.chat.completions.create(messages=QUESTION, max_tokens=16, stream=True,
                                                stream_options={"include_usage": True}, **EXACT):
        if not chunk.choices:
            usage = chunk.usage
            continue
        assert usage is None
        text += chunk.choices[0].delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
    assert text == whole.choices[0].message.content, (text, whole)
    assert usage.completion_tokens == whole.usage.completion_tokens and reason == "stop"


@check
def chat_by_the_stream_helper():
    with client.chat.completions.stream(messages=QUESTION, max_tokens=16, **EXACT) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content


@check
def chat_samples_with_logprobs():
    answer = client.chat.completions.create(
        model=args.model, messages=QUESTION, n=3, seed=7, max_tokens=5, logprobs=True,
        top_logprobs=2, temperature=1.0, top_p=0.9, presence_penalty=0.1, frequency_penalty=0.1,
        logit_bias={"5": 1}, stop=["\n"], user="somebody", metadata={"a": "b"},
        extra_body={"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1})
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    content = answer.choices[0].logprobs.content
    assert len(content[0].top_logprobs) == 2 and content[0].logprob <= 0
    again = client.chat.completions.create(
        model=args.model, messages=QUESTION, n=1, seed=7, max_tokens=5, temperature=1.0, top_p=0.9,
        presence_penalty=0.1, frequency_penalty=0.1, logit_bias={"5": 1}, stop=["\n"],
        extra_body={"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1})
    assert again.choices[0].message.content == answer.choices[0].message.content


@check
def chat_samples_streamed():
    texts = {}
    for chunk in client.chat.completions.create(messages=QUESTION, n=4, max_tokens=8, seed=1,
                                                stream=True, logprobs=True, model=args.model):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert sorted(texts) == [0, 1, 2, 3]


@check
def chat_with_parts_and_tools():
    parts = [{"role": "system", "content": "Be brief."},
             {"role": "user", "content": [{"type": "text", "text": "What is 2 plus 2?"}]}]
    for choice in ["none", "auto"]:
        answer = client.chat.completions.create(messages=parts, tools=TOOLS, tool_choice=choice,
                                                max_tokens=8, **EXACT)
        assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    for choice in ["required", {"type": "function", "function": TOOLS[0]["function"]}]:
        answer = client.chat.completions.create(
            messages=parts, tools=TOOLS, tool_choice=choice, max_tokens=100, **EXACT).choices[0]
        assert answer.finish_reason in ("tool_calls", "length")
        if answer.finish_reason == "tool_calls":
            json.loads(answer.message.tool_calls[0].function.arguments)
    for _ in client.chat.completions.create(messages=parts, tools=TOOLS, max_tokens=8, stream=True,
                                            **EXACT):
        pass


@check
def completions():
    answer = client.completions.create(prompt="Once upon a time", max_tokens=12, **EXACT)
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(
        prompt="Once upon a time", max_tokens=12, stream=True, **EXACT))
    assert text == answer.choices[0].text and answer.object == "text_completion"


@check
def completions_of_several_prompts():
    answer = client.completions.create(prompt=["Once", "Twice"], n=2, max_tokens=4, logprobs=1,
                                       model=args.model)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    logprobs = answer.choices[3].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    tokens = json.loads(post("/tokenize", {"prompt": "Once upon a time"}))["tokens"]
    by_tokens = client.completions.create(prompt=tokens, max_tokens=4, **EXACT)
    by_text = client.completions.create(prompt="Once upon a time", max_tokens=4, **EXACT)
    assert by_tokens.choices[0].text == by_text.choices[0].text


@check
def responses():
    answer = client.responses.create(model=args.model, input="What is 128 plus 345?",
                                     instructions="Be brief.", max_output_tokens=16, temperature=0)
    assert answer.output_text and answer.status == "completed" and answer.usage.output_tokens > 0
    text, last = "", None
    for event in client.responses.create(model=args.model, input=[
            {"role": "user", "content": [{"type": "input_text", "text": "What is 128 plus 345?"}]}],
            instructions="Be brief.", max_output_tokens=16, temperature=0, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
        last = event
    assert last.type == "response.completed" and last.response.output_text == text
    assert text == answer.output_text
    cut = client.responses.create(model=args.model, input="Tell me a story.", max_output_tokens=2)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"


@check
def refusals():
    chat = lambda **more: lambda: client.chat.completions.create(
        **{"model": args.model, "messages": QUESTION, **more})
    refused("model", chat(model="nothing"), 404)
    refused("messages", chat(messages=[]))
    refused("messages[0].role", chat(messages=[{"role": "wizard", "content": "x"}]))
    refused("messages[0].content[0]", chat(messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:"}}]}]))
    refused("messages", chat(messages=[{"role": "user", "content": "word " * 20000}]))
    refused("temperature", chat(temperature=-1))
    refused("top_p", chat(top_p=2))
    refused("n", chat(n=0))
    refused("n", chat(n=100000))
    refused("max_tokens", chat(max_tokens=-5))
    refused("seed", chat(seed=-1))
    refused("logit_bias", chat(logit_bias={"99999999": 1}))
    refused("stop", chat(stop=[""]))
    refused("top_logprobs", chat(logprobs=True, top_logprobs=99))
    refused("response_format", chat(response_format={"type": "xml"}))
    refused("nonsense", chat(extra_body={"nonsense": 1}))
    refused("stream_options", chat(stream_options={"include_usage": True}))
    refused("best_of", lambda: client.completions.create(
        model=args.model, prompt="x", n=1, best_of=3, stream=True))
    refused("prompt", lambda: client.completions.create(model=args.model, prompt=[]))
    refused("suffix", lambda: client.completions.create(model=args.model, prompt="x", suffix="y"))
    refused("previous_response_id", lambda: client.responses.create(
        model=args.model, input="x", previous_response_id="resp_1"))
    refused("input", lambda: client.responses.create(model=args.model, input=[]))


@check
def a_closed_stream_ends_soon():
    stream = client.chat.completions.create(messages=QUESTION, max_tokens=900, stream=True,
                                            model=args.model, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()


@check
def asynchronous():
    async def ask(question):
        answer = await client_async.chat.completions.create(
            messages=[{"role": "user", "content": question}], max_tokens=8, **EXACT)
        text = ""
        async for chunk in await client_async.chat.completions.create(
                messages=[{"role": "user", "content": question}], max_tokens=8, stream=True,
                **EXACT):
            text += chunk.choices[0].delta.content or ""
        return text == answer.choices[0].message.content

    async def ask_all():
        return await asyncio.gather(*[ask(f"What is {i} plus {i}?") for i in range(32)])

    assert all(asyncio.run(ask_all()))


@check
def embeddings():
    if not args.encoder:
        return
    texts = ["A cat.", "A dog."]
    in_base64 = client.embeddings.create(model=args.encoder, input=texts)  # the client's default
    floats = client.embeddings.create(model=args.encoder, input=texts, encoding_format="float")
    for one, other in zip(in_base64.data, floats.data, strict=True):  # digits of a float, not a double
        assert array.array("f", one.embedding) == array.array("f", other.embedding)
    assert in_base64.usage.total_tokens
    refused("dimensions", lambda: client.embeddings.create(model=args.encoder, input="x",
                                                           dimensions=3))
    refused("input", lambda: client.embeddings.create(model=args.encoder, input=[]))
    refused("model", lambda: client.embeddings.create(model=args.model, input="x"))


def post(path, body):
    request = urllib.request.Request(args.address + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json",
                                      "Authorization": "Bearer " + args.key})
    return urllib.request.urlopen(request).read().decode()


@check
def tokens_and_metrics():
    tokens = json.loads(post("/tokenize", {"model": args.model, "prompt": "Once upon a time"}))
    assert tokens["count"] == len(tokens["tokens"])
    text = json.loads(post("/detokenize", {"model": args.model, "tokens": tokens["tokens"]}))
    assert "upon a time" in text["prompt"]
    request = urllib.request.Request(args.address + "/metrics",
                                     headers={"Authorization": "Bearer " + args.key})
    metrics = urllib.request.urlopen(request).read().decode()
    for name in ["num_requests_running", "generation_tokens_total", "time_to_first_token_seconds"]:
        assert "faststream:" + name in metrics


failed = 0
for function in checks:
    try:
        function()
        print("passed", function.__name__)
    except Exception as error:  # the next check says what else is wrong
        failed += 1
        print("FAILED", function.__name__, type(error).__name__, str(error)[:600])
raise SystemExit(1 if failed else 0)
