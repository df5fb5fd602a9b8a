"""Runs what docs/python.md shows with Ray Data and LangChain, on a model that can chat.

    pip install . "ray[data]" langchain-openai
    faststream-serve -m demo=build/demo-int8.bin --port 8080
    tests/peers/frameworks.py build/demo-int8.bin http://127.0.0.1:8080

Exits with 1 where a text is another one than the engine's alone.
"""
import argparse
import os
import tempfile

import faststream
import ray
from langchain_openai import ChatOpenAI

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model")
parser.add_argument("address")
args = parser.parse_args()
model = os.path.abspath(args.model)

SETTINGS = {"tokens": 20, "temp": 0}
PROMPTS = [f"Story number {i}:" for i in range(2000)]


class Write:
    def __init__(self):
        self.engine = faststream.Engine(model, device="cpu", threads=1)

    def __call__(self, batch):
        done = self.engine.generate(list(batch["prompt"]), **SETTINGS)
        return {"prompt": batch["prompt"], "text": [d.text for d in done]}


engine = faststream.Engine(model, device="cpu", threads=1)
expected = dict(zip(PROMPTS, (d.text for d in engine.generate(PROMPTS, **SETTINGS))))

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
with tempfile.TemporaryDirectory() as folder:
    prompts = ray.data.from_items([{"prompt": prompt} for prompt in PROMPTS]).repartition(8)
    prompts.map_batches(Write, compute=ray.data.ActorPoolStrategy(size=2), num_cpus=1, batch_size=256).write_json(folder)
    rows = ray.data.read_json(folder).take_all()
assert len(rows) == len(PROMPTS)
assert {row["prompt"]: row["text"] for row in rows} == expected
print(f"Ray Data: {len(rows)} texts as the engine writes them")

chat = ChatOpenAI(base_url=args.address + "/v1", api_key="none", model="demo", temperature=0)
question = "What is 128 plus 345?"
alone = engine.chat([{"role": "user", "content": question}], temp=0).text
assert chat.invoke(question).content == alone
assert "".join(str(chunk.content) for chunk in chat.stream(question)) == alone
print("LangChain: the same answer, whole and streamed")
