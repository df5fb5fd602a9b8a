"""Sends requests that make no sense, or little, to servers of OpenAI's interface, and writes what each
answers as a table in Markdown.

    faststream-serve -m demo=build/demo.bin --port 8080 &
    llama-server -m model.gguf --port 8081 &
    tests/peers/odd_requests.py FastStream=http://127.0.0.1:8080 llama-server=http://127.0.0.1:8081

Of an answer the table has the status, and the error's sentence or why the text ended. Both models must be able
to chat. Each server must still answer at the end; exits with 1 if one does not.
"""
import http.client
import json
import socket
import sys
import urllib.parse

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Hi"}
SECONDS = 20
WIDEST = 110


def chat(**members):
    return CHAT, {"messages": [USER], "max_tokens": 4, **members}


def text(**members):
    return TEXT, {"prompt": "Hi", "max_tokens": 4, **members}


def tool(**function):
    return chat(tools=[{"type": "function", "function": function}])


REQUESTS = {
    "`max_tokens` -5": text(max_tokens=-5),
    "`max_tokens` 2^31": text(max_tokens=2**31, stop=["e", "a", "o", "i", " "]),
    "`max_tokens` 2^64": text(max_tokens=2**64),
    "`max_tokens` 1.5": text(max_tokens=1.5),
    '`max_tokens` "4"': text(max_tokens="4"),
    "`max_tokens` 0": text(max_tokens=0),
    "`temperature` -1": text(temperature=-1),
    "`temperature` 1e308": text(temperature=1e308),
    '`temperature` "hot"': text(temperature="hot"),
    "`temperature` null": text(temperature=None),
    "`top_p` 2": text(top_p=2),
    "`top_p` -0.5": text(top_p=-0.5),
    "`top_k` -1": text(top_k=-1),
    "`top_k` 2^40": text(top_k=2**40),
    "`min_p` 7": text(min_p=7),
    "`n` -1": text(n=-1),
    "`n` 0": text(n=0),
    "`n` 1,000,000": text(n=1000000),
    "`n` 2^33": text(n=2**33),
    "`seed` -1": text(seed=-1),
    "`seed` 2^70": text(seed=2**70),
    '`seed` "x"': text(seed="x"),
    "`logprobs` 1,000": text(logprobs=1000),
    "`logprobs` -1": text(logprobs=-1),
    "`top_logprobs` without `logprobs`": chat(top_logprobs=5),
    "`presence_penalty` 1e9": text(presence_penalty=1e9),
    "`frequency_penalty` a list": text(frequency_penalty=[1]),
    "`logit_bias` of no token": text(logit_bias={"99999999": 1}),
    "`logit_bias` -2^63": text(logit_bias={"5": -(2**63)}),
    '`logit_bias` "x"': text(logit_bias="x"),
    "`stop` a number": text(stop=5),
    "`stop` 100,000 texts": text(stop=["x%d" % i for i in range(100000)]),
    "`stop` an empty text": text(stop=""),
    "`stream` a number": text(stream=1),
    "an unknown member": text(maxtokens=4),
    "an unknown model": text(model="nothing"),
    "`model` a number": text(model=7),
    "`prompt` missing": (TEXT, {"max_tokens": 4}),
    "`prompt` empty": text(prompt=""),
    "`prompt` a negative token": text(prompt=[-1]),
    "`prompt` token 2^31 - 1": text(prompt=[2**31 - 1]),
    "`prompt` token 2^40": text(prompt=[2**40]),
    "`prompt` an object": text(prompt={"a": 1}),
    "`prompt` longer than the context": text(prompt="word " * 40000),
    "`prompt` with a zero byte": text(prompt="a\0b"),
    "`messages` missing": (CHAT, {"max_tokens": 4}),
    "`messages` empty": chat(messages=[]),
    "`messages` a text": chat(messages="Hi"),
    "`messages` of numbers": chat(messages=[1]),
    "an unknown role": chat(messages=[{"role": "wizard", "content": "Hi"}]),
    "a message without a role": chat(messages=[{"content": "Hi"}]),
    "a message without content": chat(messages=[{"role": "user"}]),
    "content a number": chat(messages=[{"role": "user", "content": 5}]),
    "an image": chat(messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}]}]),
    "an image of a local file": chat(messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}]}]),
    "a part of an unknown type": chat(messages=[{"role": "user", "content": [{"type": "smell"}]}]),
    "a tool without a name": tool(description="x"),
    "a tool's schema a text": tool(name="f", parameters="x"),
    "`tools` an object": chat(tools={"a": 1}),
    "`tool_choice` of no tool": chat(tool_choice={"type": "function", "function": {"name": "g"}}),
    "`response_format` of an unknown type": chat(response_format={"type": "poem"}),
    "a schema that nothing meets": chat(response_format={"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"allOf": [{"type": "string"}, {"type": "number"}]}}}),
    "a schema that refers to itself": chat(response_format={"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"$ref": "#"}}}),
    "a pattern of no sound expression": chat(response_format={"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "string", "pattern": "(["}}}),
    "no JSON": (TEXT, b"{prompt: Hi}"),
    "an empty body": (TEXT, b""),
    "JSON of a list": (TEXT, b"[1, 2]"),
    "JSON cut short": (TEXT, b'{"prompt": "Hi", "max_tok'),
    "a member twice": (TEXT, b'{"prompt": "a", "prompt": "b", "max_tokens": 4}'),
    "bytes that are no UTF-8": (TEXT, b'{"prompt": "\xff\xfe", "max_tokens": 4}'),
    "half of a surrogate pair": (TEXT, b'{"prompt": "\\ud800", "max_tokens": 4}'),
    "NaN": (TEXT, b'{"prompt": "Hi", "max_tokens": 4, "temperature": NaN}'),
    "1e999": (TEXT, b'{"prompt": "Hi", "max_tokens": 4, "temperature": 1e999}'),
    "100,000 brackets": (TEXT, b'{"prompt": ' + b"[" * 100000 + b"]" * 100000 + b"}"),
    "`/detokenize` a negative token": ("/detokenize", {"tokens": [-5]}),
    "`/detokenize` token 2^31": ("/detokenize", {"tokens": [2**31]}),
    "`/tokenize` a number": ("/tokenize", {"prompt": 5}),
}


def sentence(body):
    """The error's, or why the text ended."""
    try:
        answer = json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace").strip()
    if not isinstance(answer, dict):
        return ""
    error = answer.get("error")
    if error is not None:
        return error.get("message", "") if isinstance(error, dict) else str(error)
    choices = answer.get("choices") or [{}]
    reason = choices[0].get("finish_reason")
    more = f", {len(choices)} choices" if len(choices) > 1 else ""
    return f"answers ({reason}{more})" if reason else "answers"


def ask(address, path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=SECONDS)
    try:
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = sentence(answer.read()).replace("|", "\\|").replace("<", "&lt;")
        said = " ".join(said.split())
        return f"{answer.status} {said if len(said) <= WIDEST else said[:WIDEST] + ' ...'}"
    except socket.timeout:
        return f"**no answer in {SECONDS} s**"
    except (OSError, http.client.HTTPException):
        return "**connection ends without an answer**"
    finally:
        connection.close()


def main():
    servers = dict(argument.split("=", 1) for argument in sys.argv[1:])
    if not servers:
        sys.exit(__doc__)
    addresses = {name: urllib.parse.urlsplit(url) for name, url in servers.items()}
    print("| request | " + " | ".join(addresses) + " |\n|" + " --- |" * (len(addresses) + 1))
    for name, (path, body) in REQUESTS.items():
        cells = [ask(address, path, body) for address in addresses.values()]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    alive = [ask(address, *text()).startswith("200") for address in addresses.values()]
    sys.exit(0 if all(alive) else 1)


main()
