"""FastStream: language models from single files, on a GPU or a CPU.

    import faststream
    engine = faststream.Engine("llama.bin")
    print(engine.generate("Once upon a time", tokens=50).text)

Settings are keywords with the names of the command line's options: tokens, temp, top_k, top_p,
min_p, seed, stop, ... (see SETTINGS); what is not given is what the model's makers recommend.
"""

from __future__ import annotations

import atexit
import json
import operator
import os
import re
import sys
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ._native import Call, Error, NativeEngine, UsageError
from ._native import perplexity as _perplexity

# To import asyncio, subprocess and numpy takes several times as long as all the rest: what needs
# them does so.
if TYPE_CHECKING:
    import asyncio

    import numpy as np
    import numpy.typing as npt

__all__ = ["Completion", "Engine", "Error", "Piece", "SETTINGS", "UsageError", "convert", "perplexity"]

#: A text, or token ids as they are.
Prompt = str | Sequence[int]

#: Settings of requests, and what a batch's lines call them (docs/batch.md says what they do).
SETTINGS: dict[str, str] = {
    "tokens": "max_tokens",
    "temp": "temperature",
    "json_schema": "response_format",
    **{
        name: name
        for name in (
            "min_tokens top_k top_p min_p repetition_penalty presence_penalty frequency_penalty "
            "no_repeat_ngram seed logit_bias stop stop_tokens ignore_eos special parse_special regex "
            "speculate grammar beams length_penalty early_stopping beam_groups diversity_penalty source_lang "
            "target_lang adapter n best_of logprobs priority"
        ).split()
    },
}
_KEYWORDS = {key: name for name, key in SETTINGS.items()}
_WAIT_SECONDS = 0.1  # after which Ctrl-C is seen
_TEXTS_AT_ONCE = 512  # of an encoder, likewise


@dataclass(frozen=True)
class Completion:
    """A text that the model wrote."""

    text: str
    finish_reason: str  #: "eos", "stop", "length", "context" or "cancelled"
    tokens: list[int]  #: the one that ended the text included
    prompt_tokens: int
    cached_tokens: int  #: of the prompt, found in the KV cache
    seed: int  #: as given or drawn
    prompt_seconds: float  #: until the first token
    generation_seconds: float  #: from the first token to the last
    score: float = 0.0  #: of a beam search
    #: Calls of tools in OpenAI's form; they are not part of the text.
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    #: With logprobs, for each token {"token", "text", "logprob", "top"}.
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    choices: list[Completion] = field(default_factory=list)  #: with n, all; else none


@dataclass(frozen=True)
class Piece:
    """The next token of a text."""

    text: str  #: what can be printed now: whole characters, perhaps none
    token: int
    logprob: float | None  #: with logprobs
    prompt_tokens: int  #: known with the last piece, 0 before
    generation_tokens: int  #: up to here
    generation_tps: float  #: tokens a second since the first one
    finish_reason: str | None  #: of the last piece


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_engines() -> None:
    for engine in list(_engines):
        engine.close()


def _request(settings: dict[str, Any], **members: Any) -> str:
    texts = [f"{json.dumps(name)}: {_json(name, value)}" for name, value in members.items()]
    for name, value in settings.items():
        if name not in SETTINGS:
            raise TypeError(f"unknown setting {name!r}{_meant(name)}; see faststream.SETTINGS")
        if name == "json_schema" and value is not None:
            value = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": _schema(value)},
            }
        if name == "logit_bias" and isinstance(value, Mapping):
            value = {
                token if isinstance(token, str) else _whole("a token of logit_bias", token): bias
                for token, bias in value.items()
            }
        texts.append(f"{json.dumps(SETTINGS[name])}: {_json(name, value)}")
    return "{" + ", ".join(texts) + "}"


def _meant(name: str) -> str:
    import difflib

    near = [_KEYWORDS[name]] if name in _KEYWORDS else difflib.get_close_matches(name, SETTINGS, 1)
    return f", did you mean {near[0]!r}?" if near else ""


def _json(name: str, value: Any) -> str:
    """A member's value; what JSON cannot have is refused by the name that the caller knows."""
    try:
        return _text(json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False))
    except UnicodeEncodeError:
        raise UsageError(f'"{name}" holds half of a surrogate pair, which is no character') from None
    except ValueError:  # NaN, infinity, or a value that contains itself
        raise UsageError(f'"{name}" holds what is no finite number or has no end') from None


def _schema(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise UsageError(f'"json_schema" is a text, but no valid JSON: {error}') from None


def _plain(value: Any) -> Any:
    """The Python numbers of NumPy's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a setting cannot be of type {type(value).__name__}")


def _in_keywords(error: Exception) -> Exception:
    """The same, with the names that the caller knows."""
    text = re.sub(r'"(\w+)"', lambda m: f'"{_KEYWORDS.get(m[1], m[1])}"', str(error))
    text = re.sub(r"--([a-z-]+)", lambda m: m[1].replace("-", "_"), text)
    return type(error)(text)


def _whole(name: str, value: Any, bits: int = 63) -> int:
    """A whole number that the engine can look at."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if not -(2**bits) <= number < 2**bits:
        raise UsageError(f"{name} {number}: is out of range")
    return number


def _path(path: str | os.PathLike[str]) -> str:
    name = os.fsdecode(path)
    if "\0" in name:
        raise ValueError("embedded null character in a path")
    return name


def _argument(path: str | os.PathLike[str]) -> str:
    """A path that a program takes for none of its options."""
    name = _path(path)
    return "./" + name if name.startswith("-") else name


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text must be a str, not {type(value).__name__}")
    value.encode()  # or says what is none of its characters
    return value


def _completion(call: Call) -> Completion:
    result = call.result()
    outputs = result.pop("outputs")
    choices = [
        Completion(**result, **{**output, "tool_calls": json.loads(output["tool_calls"])})
        for output in outputs
    ]
    if not choices:
        raise Error("the request was cancelled before it had a text")
    if len(choices) == 1:
        return choices[0]
    return replace(choices[0], choices=choices)


def _prompts(given: Any) -> tuple[list[Any], bool]:
    """The prompts, and whether it is one alone and no list of them."""
    if isinstance(given, str):
        return [given], True
    if isinstance(given, (bytes, bytearray, dict)) or not isinstance(given, Iterable):
        raise _no_prompt(given)
    prompts = list(given)
    return ([prompts], True) if prompts and _is_token(prompts[0]) else (prompts, False)


def _is_token(given: Any) -> bool:
    try:
        operator.index(given)
    except TypeError:  # rows of an array have __index__, too
        return False
    return True


def _text_or_tokens(prompt: Any) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, (bytes, bytearray, dict)) or not isinstance(prompt, Iterable):
        raise _no_prompt(prompt)
    return [_whole("a token", token) for token in prompt]


def _no_prompt(given: Any) -> TypeError:
    return TypeError(f"a prompt is a text or a list of token ids, not {type(given).__name__}")


class Engine:
    """A model in memory. Any thread may use it; requests of all run together.

    path: a file made by faststream-convert, or convert().
    device: "auto" (a GPU if there is one with room), "cpu", "cuda" or "cuda:N"; or several that run
        the model together, "cuda:0,1".
    replicas: so many of the model, each with its part of the devices and of the requests.
    pipeline: the model's layers in so many parts, one after the other, each on as many of the
        devices ("cuda:0,1", "cpu,cpu").
    adapters: files of adapters beside the model (faststream-convert --adapter-for) by names that the
        setting "adapter" chooses them by; without it the first one is taken, with "" none.
    memory: bytes for weights and KV cache, 0 for what is free; the others as on the command line.
    Raises Error, with a sentence that says what is wrong and what to do.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: str = "auto",
        replicas: int = 1,
        pipeline: int = 1,
        threads: int = 0,
        context: int = 0,
        slots: int = 0,
        kv_tokens: int = 0,
        kv: str = "",
        memory: int = 0,
        chunk: int = 0,
        speculate: str = "auto",
        chat_template: str = "",
        adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    ) -> None:
        try:
            self._native = NativeEngine(
                _path(path),
                device=_text(device),
                replicas=_whole("replicas", replicas, 31),
                pipeline=_whole("pipeline", pipeline, 31),
                threads=_whole("threads", threads, 31),
                context=_whole("context", context),
                slots=_whole("slots", slots, 31),
                kv_tokens=_whole("kv_tokens", kv_tokens),
                kv=_text(kv),
                memory=_whole("memory", memory),
                chunk=_whole("chunk", chunk, 31),
                speculate=_text(speculate),
                chat_template=_text(chat_template),
                adapters=[(_text(name), _path(file)) for name, file in dict(adapters or {}).items()],
            )
        except Error as error:
            raise _in_keywords(error) from None
        self._told: set[str] = set()
        _engines.add(self)

    def close(self) -> None:
        """Cancels what runs and frees the memory."""
        self._native.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def info(self) -> dict[str, Any]:
        """device, context, and slots, can_chat and adapters, or vector_size, scores and pairs."""
        return self._native.info()

    # Texts.

    @overload
    def generate(self, prompt: str, **settings: Any) -> Completion: ...
    @overload
    def generate(self, prompt: Sequence[int], **settings: Any) -> Completion: ...
    @overload
    def generate(
        self, prompt: Sequence[str] | Sequence[Sequence[int]], **settings: Any
    ) -> list[Completion]: ...
    def generate(self, prompt: Any, **settings: Any) -> Completion | list[Completion]:
        """Continues a prompt, or each of a list of prompts, all at once, in their order."""
        prompts, alone = _prompts(prompt)
        completions = self._wait_for_all(self._submit_all(prompts, settings))
        return completions[0] if alone else completions

    def chat(self, messages: Sequence[dict[str, Any]], **settings: Any) -> Completion:
        """Answers a conversation, [{"role": "user", "content": "Hello!"}, ...].

        Beside the settings: tools, documents, chat_template_kwargs.
        """
        return self._wait_for_all([self._submit_chat(messages, settings)])[0]

    def stream(self, prompt: Prompt, **settings: Any) -> Iterator[Piece]:
        """generate(), token by token. An iterator that is left cancels the request."""
        _require_one_text(settings)
        return self._pieces(self._submit_prompt(prompt, settings, streams=True))

    def stream_chat(self, messages: Sequence[dict[str, Any]], **settings: Any) -> Iterator[Piece]:
        """chat(), token by token; calls of tools stay in the text."""
        _require_one_text(settings)
        return self._pieces(self._submit_chat(messages, settings, streams=True))

    async def agenerate(self, prompt: Any, **settings: Any) -> Any:
        """generate() for asyncio; a task that is cancelled cancels its requests."""
        import asyncio

        prompts, alone = _prompts(prompt)
        tasks = [
            asyncio.ensure_future(self._answer(self._submit_prompt, prompt, settings))
            for prompt in prompts
        ]
        try:
            completions = await asyncio.gather(*tasks)
        except BaseException:  # of one of them: the others are of no use
            for task in tasks:
                task.cancel()
            raise
        return completions[0] if alone else completions

    async def achat(self, messages: Sequence[dict[str, Any]], **settings: Any) -> Completion:
        """chat() for asyncio."""
        return await self._answer(self._submit_chat, messages, settings)

    async def astream(self, prompt: Prompt, **settings: Any) -> AsyncIterator[Piece]:
        """stream() for asyncio."""
        _require_one_text(settings)
        event, wake = _event()
        call = self._submit_prompt(prompt, settings, streams=True, wake=wake)
        counter = _Counter()
        try:
            while True:
                await event.wait()
                event.clear()
                for piece in counter.pieces(call):
                    yield piece
                if counter.ended:
                    return
        finally:
            call.cancel()

    # Tokens and vectors.

    def tokenize(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Token ids of a text, with the begin-of-sequence token if the model wants one."""
        return self._native.tokenize(_text(text), bool(parse_special))

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones, with U+FFFD for what is no character."""
        ids = [_whole("a token", token) for token in tokens]
        return self._native.detokenize(ids).decode("utf-8", "replace")

    @overload
    def score(  # type: ignore[overload-overlap]  # a text is a sequence of texts, too
        self, prompt: str
    ) -> npt.NDArray[np.float32]: ...
    @overload
    def score(self, prompt: Sequence[int]) -> npt.NDArray[np.float32]: ...
    @overload
    def score(
        self, prompt: Sequence[str] | Sequence[Sequence[int]]
    ) -> list[npt.NDArray[np.float32]]: ...
    def score(self, prompt: Any) -> Any:
        """Natural logarithms of the probabilities that the model gives to each token but the first
        after those before it, float32 [tokens - 1].

        A text may be longer than the context: it is then scored in windows, and each token by those
        before it in its window. A list of texts, or of lists of token ids, gives a list.
        """
        prompts, alone = _prompts(prompt)
        scores = [
            self._native.score(_text(one) if isinstance(one, str) else _text_or_tokens(one))
            for one in prompts
        ]
        return scores[0] if alone else scores

    def perplexity(self, text: str) -> dict[str, Any]:
        """How well the model predicts a text: value, standard_error and tokens."""
        import numpy as np

        losses = -self.score(_text(text)).astype(np.float64)
        value = float(np.exp(losses.mean()))
        spread = float(losses.std(ddof=1)) if len(losses) > 1 else 0.0
        return {
            "value": value,
            "standard_error": value * spread / len(losses) ** 0.5,
            "tokens": len(losses),
        }

    def embed(self, texts: Iterable[str]) -> npt.NDArray[np.float32]:
        """An encoder's vectors, float32 [texts, info["vector_size"]]; NaN for texts of no token."""
        return self._embed(texts, None)

    def rank(self, query: str, documents: Iterable[str]) -> npt.NDArray[np.float32]:
        """A cross-encoder's scores of each document, float32 [documents, labels]."""
        return self._embed(documents, query)

    # What these have in common.

    def _embed(self, texts: Iterable[str], query: str | None) -> npt.NDArray[np.float32]:
        import numpy as np

        if isinstance(texts, str):
            raise TypeError("give a list of texts, not one")
        texts = [_text(text) for text in texts]
        query = None if query is None else _text(query)
        parts = [
            self._native.embed(texts[begin : begin + _TEXTS_AT_ONCE], query)
            for begin in range(0, max(len(texts), 1), _TEXTS_AT_ONCE)
        ]
        return np.concatenate(parts)

    def _submit(self, request: str, streams: bool, wake: Any) -> Call:
        try:
            call = self._native.submit(request, streams, wake)
        except Error as error:
            raise _in_keywords(error) from None
        self._tell_idle(call)
        return call

    def _tell_idle(self, call: Call) -> None:
        """Warns of settings that have no effect, of each once."""
        for idle in call.idle():
            if idle in self._told:
                continue
            self._told.add(idle)
            text = str(_in_keywords(UserWarning(idle)))
            warnings.warn(text, stacklevel=_frames_of_this_file() + 1)

    def _submit_prompt(
        self, prompt: Any, settings: dict[str, Any], streams: bool = False, wake: Any = None
    ) -> Call:
        request = _request(settings, prompt=_text_or_tokens(prompt))
        return self._submit(request, streams, wake)

    def _submit_chat(
        self,
        messages: Sequence[dict[str, Any]],
        settings: dict[str, Any],
        streams: bool = False,
        wake: Any = None,
    ) -> Call:
        members: dict[str, Any] = {"messages": list(messages)}
        settings = dict(settings)
        for name in ("tools", "documents", "chat_template_kwargs"):
            if name in settings:
                members[name] = settings.pop(name)
        return self._submit(_request(settings, **members), streams, wake)

    def _submit_all(self, prompts: Iterable[Any], settings: dict[str, Any]) -> list[Call]:
        calls: list[Call] = []
        try:
            for prompt in prompts:
                calls.append(self._submit_prompt(prompt, settings))
        except BaseException:
            for call in calls:
                call.cancel()
            raise
        return calls

    def _wait_for_all(self, calls: list[Call]) -> list[Completion]:
        try:
            for call in calls:
                while not call.wait(_WAIT_SECONDS):
                    pass
        except BaseException:
            for call in calls:
                call.cancel()
            raise
        return [_completion(call) for call in calls]

    def _pieces(self, call: Call) -> Iterator[Piece]:
        counter = _Counter()
        try:
            while not counter.ended:
                if call.wait(_WAIT_SECONDS):
                    yield from counter.pieces(call)
        finally:
            call.cancel()

    async def _answer(self, submit: Any, prompt: Any, settings: dict[str, Any]) -> Completion:
        event, wake = _event()
        call = submit(prompt, settings, wake=wake)
        try:
            await event.wait()
        finally:
            call.cancel()
        return _completion(call)


def _frames_of_this_file() -> int:
    """How many callers, this function's first, are the package's own."""
    this_file = sys._getframe().f_code.co_filename
    count, frame = 0, sys._getframe(1)
    while frame.f_code.co_filename == this_file and frame.f_back is not None:
        count, frame = count + 1, frame.f_back
    return count


def _require_one_text(settings: dict[str, Any]) -> None:
    for name in ("n", "best_of"):
        if settings.get(name) not in (None, 1):
            raise UsageError(f"a stream is of one text; leave {name} out")


def _event() -> tuple[asyncio.Event, Any]:
    """An event, and what another thread sets it with."""
    import asyncio

    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    return event, lambda: loop.call_soon_threadsafe(event.set)


class _Counter:
    """Turns what comes of a request into pieces."""

    def __init__(self) -> None:
        self.ended = False
        self._n = 0
        self._first = 0.0

    def pieces(self, call: Call) -> Iterator[Piece]:
        ended = call.done()  # before the pieces are taken: none comes after
        taken = call.take_pieces()
        now = time.monotonic()
        if taken and self._n == 0:
            self._first = now
        for index, (text, token, logprob) in enumerate(taken):
            self._n += 1
            seconds = now - self._first
            last = _completion(call) if ended and index + 1 == len(taken) else None
            self.ended = last is not None
            yield Piece(
                text=text,
                token=token,
                logprob=logprob,
                prompt_tokens=last.prompt_tokens if last else 0,
                generation_tokens=self._n,
                generation_tps=(self._n - 1) / seconds if seconds > 0 else 0.0,
                finish_reason=last.finish_reason if last else None,
            )
        if ended and not self.ended:  # the last token had come before
            self.ended = True
            done = _completion(call)
            yield Piece("", -1, None, done.prompt_tokens, self._n, 0.0, done.finish_reason)


def perplexity(
    path: str | os.PathLike[str],
    text: str,
    *,
    against: str | os.PathLike[str] | None = None,
    device: str = "auto",
    threads: int = 0,
    context: int = 0,
) -> dict[str, Any]:
    """How well a model predicts a text: value, standard_error and tokens.

    against: a model that it is compared with; then also reference_value, mean_kl and kl_99th (of
    next tokens' distributions, in nats), and top_token_agrees.
    """
    other = None if against is None else _path(against)
    numbers = _whole("threads", threads, 31), _whole("context", context)
    try:
        return _perplexity(_path(path), _text(text), other, _text(device), *numbers)
    except Error as error:
        raise _in_keywords(error) from None


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    lora: str | os.PathLike[str] | None = None,
    adapter_for: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> None:
    """Makes a model file of a checkpoint: what faststream-convert does, the same bytes.

    dtype: "int8", "int4", "bf16", ...; by default what faststream-convert takes.
    lora: a folder of PEFT's, whose adapter is added to the checkpoint's weights, or, with
        adapter_for, the file of a model made of the same checkpoint, becomes a file of its own that
        Engine(adapters=...) takes beside that model.
    force: overwrite a file that is there.
    """
    import subprocess

    program = Path(__file__).parent / "bin" / "faststream-convert"
    command = [str(program), _argument(source), "-o", _argument(out)]
    if dtype is not None:
        command += [f"--dtype={_text(dtype)}"]
    if lora is not None:
        command += ["--lora", _argument(lora)]
    if adapter_for is not None:
        command += ["--adapter-for", _argument(adapter_for)]
    if force:
        command += ["--force"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["the converter failed"]
        said = re.sub(r"^faststream-convert: | \(see faststream-convert --help\)$", "", lines[-1])
        raise _in_keywords((UsageError if done.returncode == 2 else Error)(said))
