"""The Python package on the bundled model: FASTSTREAM_BIN has the programs it is compared with
(scripts/test_python.sh runs this)."""

import asyncio
import gc
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import faststream
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
BERT = ROOT / "tests" / "golden" / "encoders" / "bert"
RUN = os.path.join(os.environ["FASTSTREAM_BIN"], "faststream-run")
SCRATCH = tempfile.TemporaryDirectory()
MODEL = os.path.join(SCRATCH.name, "demo.bin")
ENCODER = os.path.join(SCRATCH.name, "bert.bin")
faststream.convert(ROOT / "demo", MODEL)
faststream.convert(BERT, ENCODER, dtype="f32")


@pytest.fixture(scope="module")
def engine():
    with faststream.Engine(MODEL, device="cpu") as made:
        yield made


def test_text_is_the_command_lines(engine):
    said = subprocess.run(
        [RUN, "-m", MODEL, "--device", "cpu", "-p", "Once upon a time", "-n", "40", "--seed", "7"],
        capture_output=True, text=True, check=True,
    ).stdout
    done = engine.generate("Once upon a time", tokens=40, seed=7)
    assert done.text.strip() == said.strip().removeprefix("Once upon a time").strip()
    assert done.seed == 7
    assert len(done.tokens) == 40 and done.finish_reason == "length"


def test_lists_are_answered_in_order(engine):
    prompts = [f"Story {i}." for i in range(50)]
    done = engine.generate(prompts, tokens=8, temp=0)
    assert [d.text for d in done] == [engine.generate(p, tokens=8, temp=0).text for p in prompts]
    assert engine.generate([], tokens=8) == []


def test_settings_without_effect_are_told_once():
    with faststream.Engine(MODEL, device="cpu") as engine:
        with pytest.warns(UserWarning, match='"temp" has no effect') as told:
            engine.generate(["a", "b"], tokens=2, temp=0.5, beams=2)
            engine.generate("c", tokens=2, temp=0.5, beams=2)
        assert [warning.filename for warning in told] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            engine.generate("d", tokens=2, temp=0.5, beams=2)
            engine.generate("e", tokens=2, temp=0)
            with pytest.raises(UserWarning, match='"top_k"'):
                engine.generate("f", tokens=2, top_k=3, beams=2)


def write_lora(folder, seed):
    """An adapter of PEFT's for the bundled model's first layer, which changes every text."""
    random = np.random.default_rng(seed)
    module = "base_model.model.model.layers.0.mlp.down_proj.lora_"
    tensors = {
        module + "A.weight": random.standard_normal((2, 768), dtype=np.float32),
        module + "B.weight": random.standard_normal((256, 2), dtype=np.float32),
    }
    header, data = {}, b""
    for name, values in tensors.items():
        end = len(data) + values.nbytes
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [len(data), end]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 2}')
    (folder / "adapter_model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + data
    )
    return folder


def test_adapters_are_chosen_by_name(engine, tmp_path):
    files = {}
    for seed, name in enumerate(("one", "two")):
        files[name] = tmp_path / f"{name}.bin"
        lora = write_lora(tmp_path / name, seed)
        faststream.convert(ROOT / "demo", files[name], lora=lora, adapter_for=MODEL)
    plain = engine.generate("Once upon", tokens=9, temp=0).text
    with faststream.Engine(MODEL, device="cpu", adapters=files) as adapted:
        assert adapted.info["adapters"] == ["one", "two"]

        def text(name):
            return adapted.generate("Once upon", tokens=9, temp=0, adapter=name).text

        assert text("") == plain
        assert len({plain, text("one"), text("two")}) == 3
        assert adapted.generate("Once upon", tokens=9, temp=0).text == text("one")
        with pytest.raises(faststream.Error, match="three"):
            text("three")
    with pytest.raises(faststream.Error, match="bert"):
        faststream.Engine(MODEL, device="cpu", adapters={"one": ENCODER})


def test_token_ids_are_prompts(engine):
    ids = engine.tokenize("Once upon")
    assert engine.detokenize(ids).strip() == "Once upon"
    text = engine.generate("Once upon", temp=0, tokens=9).text
    assert engine.generate(ids, temp=0, tokens=9).text == text
    assert [d.text for d in engine.generate([ids, ids], temp=0, tokens=9)] == [text, text]


def test_streams_piece_by_piece(engine):
    whole = engine.generate("Once", temp=0, tokens=30, logprobs=0)
    pieces = list(engine.stream("Once", temp=0, tokens=30, logprobs=0))
    assert "".join(p.text for p in pieces) == whole.text
    assert [p.token for p in pieces if p.token >= 0] == whole.tokens
    assert pieces[-1].finish_reason == "length"
    assert all(p.finish_reason is None for p in pieces[:-1])
    assert pieces[0].logprob == pytest.approx(whole.logprobs[0]["logprob"])


def test_streams_that_are_left_are_cancelled(engine):
    for _ in range(100):
        next(engine.stream("Once", ignore_eos=True))
    began = time.monotonic()
    engine.generate("Once", tokens=1)
    assert time.monotonic() - began < 5


def test_several_samples_and_choices(engine):
    done = engine.generate("Once", n=3, tokens=5, seed=1)
    assert len(done.choices) == 3
    assert done.text == done.choices[0].text


def test_answers_follow_rules(engine):
    assert engine.generate("A number:", regex="[0-9]{4}").text.isdigit()
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    assert isinstance(json.loads(engine.generate("JSON:", json_schema=schema).text)["a"], bool)


def test_faults_are_named(engine):
    with pytest.raises(TypeError, match="max_tokens"):
        engine.generate("x", max_tokens=3)
    with pytest.raises(faststream.Error, match='"temp"'):
        engine.generate("x", temp=-1)
    with pytest.raises(faststream.Error, match='"tokens"'):
        engine.generate("x", tokens="many")
    with pytest.raises(faststream.UsageError, match="no text|no vectors"):
        engine.embed(["x"])
    with pytest.raises(faststream.Error, match="nowhere.bin"):
        faststream.Engine("nowhere.bin")
    with pytest.raises(TypeError):
        engine.embed("one text")
    with pytest.raises((faststream.Error, TypeError, ValueError)):
        engine.generate([2**40, 1])
    with pytest.raises(faststream.Error):
        engine.generate("\ud800")


def test_stages_answer_as_one_does(engine):
    prompts = [f"Story {i}." for i in range(6)]
    expected = [d.text for d in engine.generate(prompts, tokens=12, seed=3)]
    with faststream.Engine(MODEL, device="cpu,cpu", pipeline=2, threads=2, speculate="off") as both:
        assert "2 stages" in both.info["device"]
        assert [d.text for d in both.generate(prompts, tokens=12, seed=3)] == expected
    for wrong in (0, -1, 2, 2**31 - 1):
        with pytest.raises(faststream.UsageError, match="^pipeline"):
            faststream.Engine(MODEL, device="cpu", pipeline=wrong)


def test_replicas_answer_as_one_does(engine):
    prompts = [f"Story {i}." for i in range(12)]
    expected = [d.text for d in engine.generate(prompts, tokens=12, seed=3)]
    with faststream.Engine(MODEL, device="cpu", replicas=2, speculate="off") as both:
        assert both.info["slots"] > 1
        assert [d.text for d in both.generate(prompts, tokens=12, seed=3)] == expected
    with pytest.raises(faststream.UsageError, match="replicas"):
        faststream.Engine(MODEL, device="cpu,cpu,cpu", replicas=2)
    with pytest.raises(faststream.UsageError, match="speculate"):
        faststream.Engine(MODEL, device="cpu", speculate="never")


def test_closed_engines_say_so():
    closed = faststream.Engine(MODEL, device="cpu")
    stream = closed.stream("Once", ignore_eos=True)
    next(stream)
    closed.close()
    closed.close()
    with pytest.raises(faststream.UsageError, match="closed"):
        closed.generate("x")
    with pytest.raises(faststream.Error):
        list(stream)


def test_asyncio_runs_thousands(engine):
    async def all_of_them():
        return await engine.agenerate([f"{i}" for i in range(2000)], tokens=2, temp=0)

    done = asyncio.run(all_of_them())
    assert len(done) == 2000
    assert done[17].text == engine.generate("17", tokens=2, temp=0).text


def test_asyncio_streams_and_cancels(engine):
    async def pieces():
        return [p async for p in engine.astream("Once", temp=0, tokens=20)]

    whole = engine.generate("Once", temp=0, tokens=20)
    assert "".join(p.text for p in asyncio.run(pieces())) == whole.text

    async def given_up():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(engine.agenerate("Once", ignore_eos=True, n=64), 0.01)

    asyncio.run(given_up())
    assert engine.generate("Once", tokens=1).finish_reason == "length"


def test_threads_share_an_engine(engine):
    texts = [None] * 16

    def ask(i):
        texts[i] = engine.generate(f"{i}", tokens=10, temp=0).text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [d.text for d in engine.generate([f"{i}" for i in range(16)], tokens=10, temp=0)]


@pytest.fixture
def heard_ctrl_c():
    """Python does not listen to it where a shell has put it in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard_ctrl_c")
def test_ctrl_c_ends_a_call(engine):
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            engine.generate(["Once"] * 100, ignore_eos=True)
    assert engine.generate("Once", tokens=1).finish_reason == "length"


def test_interpreters_end_with_engines_alive():
    script = (
        "import faststream, sys; e = faststream.Engine(sys.argv[1], device='cpu');"
        "s = e.stream('Once', ignore_eos=True); next(s); print('end')"
    )
    done = subprocess.run([sys.executable, "-c", script, MODEL], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_import_is_quick():
    script = "import time; b = time.process_time(); import faststream; print(time.process_time() - b)"
    times = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout)
        for _ in range(5)
    ]
    assert min(times) < 0.05


def test_perplexity_is_the_command_lines(tmp_path):
    text = "Once upon a time there was a little girl. She liked to play in the park. " * 20
    (tmp_path / "text").write_text(text)
    said = subprocess.run(
        [RUN, "-m", MODEL, "--device", "cpu", "--perplexity", tmp_path / "text", "--against", MODEL],
        capture_output=True, text=True, check=True,
    ).stdout.split()
    found = faststream.perplexity(MODEL, text, against=MODEL, device="cpu")
    assert found["value"] == pytest.approx(float(said[1]), rel=1e-5)
    assert found["mean_kl"] == pytest.approx(0, abs=1e-6)
    with pytest.raises(faststream.Error):
        faststream.perplexity(MODEL, "", device="cpu")


def test_scores_are_logprobs_and_make_perplexity(engine):
    done = engine.generate("Once upon a time", temp=0, tokens=20, logprobs=0)
    ids = engine.tokenize("Once upon a time")
    scores = engine.score(ids + done.tokens)
    assert scores.dtype == np.float32 and scores.shape == (len(ids) + 19,)
    written = [entry["logprob"] for entry in done.logprobs]
    assert np.allclose(scores[len(ids) - 1 :], written, atol=1e-3)
    one, two = engine.score(["Once", "upon a time"])
    assert np.array_equal(one, engine.score("Once")) and len(two) > len(one)

    text = "Once upon a time there was a little girl. She liked to play in the park. " * 60
    mine, whole = engine.perplexity(text), faststream.perplexity(MODEL, text, device="cpu")
    assert mine == {key: pytest.approx(whole[key], rel=1e-4) for key in mine}
    assert mine["value"] == pytest.approx(float(np.exp(-engine.score(text).mean())), rel=1e-5)
    for wrong in ("", [-1, 2], [2**40], [5] * 100_000, b"x"):
        with pytest.raises((TypeError, faststream.Error)):
            engine.score(wrong)


def test_converts_to_the_programs_bytes(tmp_path):
    source = ROOT / "demo"
    program = os.path.join(os.environ["FASTSTREAM_BIN"], "faststream-convert")
    subprocess.run([program, source, "-o", tmp_path / "a.bin", "--dtype", "int8"], check=True, capture_output=True)
    faststream.convert(source, tmp_path / "b.bin", dtype="int8")
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()
    with pytest.raises(faststream.Error, match="nowhere"):
        faststream.convert(tmp_path / "nowhere", tmp_path / "c.bin")
    with pytest.raises(faststream.UsageError, match="^dtype: int3"):
        faststream.convert(source, tmp_path / "c.bin", dtype="int3")
    with pytest.raises(faststream.Error, match="already exists.* force$"):
        faststream.convert(source, tmp_path / "b.bin", dtype="int8")
    faststream.convert(source, tmp_path / "b.bin", dtype="int8", force=True)
    for name in ("--help", "-o", "--version"):  # files, not options
        with pytest.raises(faststream.Error, match="no such checkpoint"):
            faststream.convert(name, tmp_path / "c.bin")


def test_vectors_are_the_command_lines_and_sentence_transformers(tmp_path):
    texts = [f"the cat and the {animal}." for animal in ("dog", "cow", "fox")] * 200
    (tmp_path / "texts").write_text("\n".join(texts) + "\n")
    said = subprocess.run(
        [RUN, "-m", ENCODER, "--device", "cpu", "--embed", "--batch", tmp_path / "texts"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()
    golden = np.fromfile(BERT / "vectors.f32", np.float32)
    sentences = json.loads((BERT.parent / "manifest.json").read_text())["texts"]
    with faststream.Engine(ENCODER, device="cpu") as encoder:
        vectors = encoder.embed(texts)
        assert encoder.embed(iter(texts[:2])).shape == (2, encoder.info["vector_size"])
        assert encoder.embed([]).shape == (0, encoder.info["vector_size"])
        assert np.allclose(encoder.embed(sentences).ravel(), golden, atol=1e-5)
        with pytest.raises(faststream.UsageError, match="no text"):
            encoder.generate("x")
        with pytest.raises(faststream.UsageError, match="no text"):
            encoder.score("x")
    assert vectors.dtype == np.float32
    assert len(said) == len(texts) == len(vectors)
    for line, vector in zip(said, vectors):
        values = next(v for v in json.loads(line).values() if isinstance(v, list))
        assert np.allclose(values, vector, atol=1e-5)


# Whoever uses it otherwise than is meant.


def test_prompts_may_be_of_any_numbers_and_iterators(engine):
    ids = engine.tokenize("Once upon")
    text = engine.generate(ids, temp=0, tokens=5).text
    assert engine.generate(np.array(ids), temp=np.float32(0), tokens=np.int64(5)).text == text
    many = engine.generate((p for p in ["Once upon", ids]), temp=0, tokens=5)
    assert [d.text for d in many] == [text, text]
    for wrong in (b"Once", {"prompt": "x"}, 5, None, [1.5], [None], ["x", 5], [[1], "x", None]):
        with pytest.raises((TypeError, faststream.Error)):
            engine.generate(wrong, tokens=1)
    for settings in (
        {"temp": float("nan")}, {"temp": object()}, {"stop": 5}, {"n": 2**70}, {"logprobs": -1},
        {"json_schema": 5}, {"json_schema": "{"}, {"regex": "("}, {"tokens": -1}, {"seed": "x"},
    ):
        with pytest.raises((TypeError, ValueError, faststream.Error)):
            engine.generate("x", **settings)
    for messages in ([], [{}], [5], "Hi", [{"role": 5, "content": "x"}]):
        with pytest.raises((TypeError, faststream.Error)):
            engine.chat(messages, tokens=1)
    assert engine.generate("x", tokens=1).finish_reason == "length"


def test_settings_that_json_cannot_have_are_refused_by_name(engine):
    for name, wrong in (
        ("temp", math.nan), ("top_p", math.inf), ("logit_bias", {5: math.nan}), ("json_schema", {"const": math.nan}),
        ("json_schema", "{"), ("stop", "\ud800"),
    ):
        with pytest.raises(faststream.UsageError, match=f'^"{name}" '):
            engine.generate("x", **{name: wrong})
    endless: list = []
    endless.append(endless)
    with pytest.raises(faststream.UsageError, match='^"stop" '):
        engine.generate("x", stop=endless)
    with pytest.raises(faststream.UsageError, match='^"prompt" '):
        engine.generate("\ud800")
    assert engine.generate("x", tokens=1, stop_tokens=np.array([1, 2])).finish_reason
    for wrong in (None, 5, 1.5, [1.5], ["a", None], b"x", [b"x"]):
        with pytest.raises(TypeError, match="a prompt is a text or a list of token ids"):
            engine.generate(wrong)


def test_settings_of_other_programs_names_are_told_ours(engine):
    for name, ours in (("max_tokens", "tokens"), ("temperature", "temp"), ("top_kk", "top_k")):
        with pytest.raises(TypeError, match=f"unknown setting '{name}', did you mean '{ours}'"):
            engine.generate("x", **{name: 1})
    with pytest.raises(TypeError, match="unknown setting 'zzz'; see"):
        engine.generate("x", zzz=1)


def test_tokens_and_their_biases_may_be_numpys(engine):
    tokens = np.array([[5, 6, 7], [8, 9, 10]])
    done = engine.generate(tokens, tokens=4, temp=0)
    assert [d.tokens for d in done] == [d.tokens for d in engine.generate(tokens.tolist(), tokens=4, temp=0)]
    biased = engine.generate("x", tokens=2, logit_bias={np.int64(7): np.float32(100)})
    assert biased.tokens == [7, 7]


def test_engines_say_what_their_arguments_may_be():
    for wrong, says in (
        ({"threads": -1}, "^threads -1: give 1 to 1024"), ({"threads": 2**40}, "^threads .* out of range"),
        ({"slots": 10**9}, "^slots "), ({"memory": 2**70}, "^memory "), ({"memory": -1}, "^memory -1"),
        ({"kv_tokens": -1}, "^kv_tokens -1"),
        ({"device": "tpu"}, "^device tpu"), ({"kv": "x"}, "^kv x"), ({"chat_template": "/nowhere"}, "^chat_template"),
    ):
        with pytest.raises(faststream.UsageError, match=says):
            faststream.Engine(MODEL, **{"device": "cpu", **wrong})
    for wrong in ({"threads": "x"}, {"threads": 1.5}, {"device": 5}, {"device": None}, {"unknown": 1}):
        with pytest.raises(TypeError):
            faststream.Engine(MODEL, **wrong)
    for path in (None, 5, "a\0b", "", SCRATCH.name, os.devnull):
        with pytest.raises((TypeError, ValueError, faststream.Error)):
            faststream.Engine(path, device="cpu")
    with faststream.Engine(MODEL.encode(), device="cpu") as engine:
        assert engine.info["writes_text"]


def test_texts_and_tokens_are_checked(engine):
    for ids in ([-1], [10**6], [2**40]):
        with pytest.raises(faststream.Error, match="none of the model's tokens"):
            engine.detokenize(ids)
    for call in (engine.tokenize, engine.perplexity, engine.score):
        for wrong in (None, 5, "\ud800"):
            with pytest.raises((TypeError, UnicodeEncodeError)):
                call(wrong)
    with pytest.raises(faststream.UsageError, match="one text"):
        engine.stream("x", n=3)


def running(engine):
    """Waits until nothing but one request can be in work; how long that took."""
    began = time.monotonic()
    engine.generate(["x"] * engine.info["slots"], tokens=1)
    return time.monotonic() - began


def test_streams_that_are_dropped_unread_are_cancelled(engine):
    for _ in range(200):
        engine.stream("Once", ignore_eos=True)
    gc.collect()
    assert running(engine) < 5


def test_one_refused_prompt_cancels_the_others(engine):
    async def some():
        await engine.agenerate(["Once"] * 100 + [[2**31 - 1]], ignore_eos=True)

    with pytest.raises(faststream.Error):
        asyncio.run(some())
    with pytest.raises(faststream.Error):
        engine.generate(["Once"] * 100 + [[2**31 - 1]], ignore_eos=True)
    assert running(engine) < 5


def test_engines_are_closed_while_threads_use_them():
    for _ in range(5):
        engine = faststream.Engine(MODEL, device="cpu", threads=2)
        ended = []

        def use(work):
            try:
                while True:
                    work()
            except faststream.Error as error:
                ended.append(str(error))

        works = [
            lambda: engine.generate(["Once"] * 20, tokens=50),
            lambda: [p for p in engine.stream("Once", ignore_eos=True)],
            lambda: engine.score("Once upon a time there was"),
            lambda: engine.detokenize(engine.tokenize("Once upon")),
        ]
        threads = [threading.Thread(target=use, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        engine.close()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        assert len(ended) == 4 and all("closed" in e or "cancelled" in e for e in ended), ended


def test_forked_processes_leave_the_engine_alone():
    script = (
        "import faststream, os, sys; e = faststream.Engine(sys.argv[1], device='cpu')\n"
        "s = e.stream('Once', ignore_eos=True); next(s)\n"
        "if os.fork() == 0:\n"
        "    for use in (lambda: e.generate('x', tokens=1), lambda: list(s), lambda: e.tokenize('x')):\n"
        "        try: use()\n"
        "        except faststream.UsageError as error: assert 'forked' in str(error)\n"
        "        else: raise AssertionError\n"
        "    del s; e.close(); sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 7\n"
        "print(e.generate('x', tokens=1).finish_reason)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, MODEL], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "length\n", "")


@pytest.mark.usefixtures("heard_ctrl_c")
def test_ctrl_c_ends_scores(engine):
    text = "Once upon a time there was a little girl. " * 20000
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        engine.score(text)
    assert engine.generate("Once", tokens=1).finish_reason == "length"
