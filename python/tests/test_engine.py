"""The Python package on the bundled model: FASTSTREAM_BIN has the programs it is compared with."""

import asyncio
import json
import os
import signal
import subprocess
import threading
import time

import faststream
import numpy as np
import pytest

MODEL = os.environ["FASTSTREAM_MODEL"]
RUN = os.path.join(os.environ["FASTSTREAM_BIN"], "faststream-run")


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
    done = subprocess.run(["python3", "-c", script, MODEL], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_import_is_quick():
    script = "import time; b = time.monotonic(); import faststream; print(time.monotonic() - b)"
    times = [
        float(subprocess.run(["python3", "-c", script], capture_output=True, text=True).stdout)
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


def test_converts_to_the_programs_bytes(tmp_path):
    source = os.environ["FASTSTREAM_SOURCE"]
    program = os.path.join(os.environ["FASTSTREAM_BIN"], "faststream-convert")
    subprocess.run([program, source, "-o", tmp_path / "a.bin", "--dtype", "int8"], check=True, capture_output=True)
    faststream.convert(source, tmp_path / "b.bin", dtype="int8")
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()
    with pytest.raises(faststream.Error, match="nowhere"):
        faststream.convert(tmp_path / "nowhere", tmp_path / "c.bin")
    with pytest.raises(faststream.UsageError):
        faststream.convert(source, tmp_path / "c.bin", dtype="int3")


ENCODER = os.environ.get("FASTSTREAM_ENCODER")


@pytest.mark.skipif(not ENCODER, reason="no encoder is given")
def test_vectors_are_the_command_lines(tmp_path):
    texts = [f"This is text {i}." for i in range(600)]
    (tmp_path / "texts").write_text("\n".join(texts) + "\n")
    said = subprocess.run(
        [RUN, "-m", ENCODER, "--device", "cpu", "--embed", tmp_path / "texts"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()
    with faststream.Engine(ENCODER, device="cpu") as encoder:
        vectors = encoder.embed(texts)
    assert vectors.dtype == np.float32
    assert len(said) == len(texts) == len(vectors)
    for line, vector in zip(said[:20], vectors):
        record = json.loads(line)
        values = next(v for v in record.values() if isinstance(v, list))
        assert np.allclose(values, vector, atol=1e-5)
