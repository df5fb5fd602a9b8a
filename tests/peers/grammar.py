"""Output by rule beside JSON Schema's own suite, MaskBench, llguidance and XGrammar.

    python3 -m venv /tmp/rules-venv
    /tmp/rules-venv/bin/pip install llguidance xgrammar
    pip download --no-deps --no-binary :all: jsonschema -d FOLDER   # and unpack it: the suite
    /tmp/rules-venv/bin/python tests/peers/grammar.py CHECK_RULES --suite FOLDER/jsonschema-*/json
        [--maskbench FOLDER_OF_JSON] [--tokens TOKENS.hex] [--limit N] [--ours] [--verbose]

CHECK_RULES is the program that tests/peers/check_rules.cpp makes. An instance counts as accepted if
it is in some order of its members, since a rule has the schema's: that program looks for one, peers
are tried with some. TOKENS.hex: a line of hexadecimal
digits for each token, of a vocabulary as large as is wanted. Peers run in a process of their own, in
one thread; one that crashes, or takes a schema and its texts 20 seconds of processor time, has
refused it.
"""

import argparse
import collections
import glob
import itertools
import json
import multiprocessing
import os
import random
import subprocess
import time


def plain_numbers(value):
    """Whole numbers without a point, as rules write them."""
    if isinstance(value, float) and value == int(value) and abs(value) < 1e18:
        return int(value)
    if isinstance(value, list):
        return [plain_numbers(v) for v in value]
    if isinstance(value, dict):
        return {k: plain_numbers(v) for k, v in value.items()}
    return value


def orders(value, most=120):
    """The value with its members in all orders, at most so many."""
    if isinstance(value, dict):
        n = 0
        for keys in itertools.permutations(value):
            inner = [list(itertools.islice(orders(value[k]), 6)) for k in keys]
            for members in itertools.product(*inner):
                yield dict(zip(keys, members))
                n += 1
                if n >= most:
                    return
    elif isinstance(value, list):
        inner = [list(itertools.islice(orders(v), 6)) for v in value]
        yield from (list(v) for v in itertools.islice(itertools.product(*inner), most))
    else:
        yield value


def ranks(schema, found):
    """The place of each name among the schema's."""
    if isinstance(schema, dict):
        for name in schema.get("properties") or {} if isinstance(schema.get("properties"), dict) else {}:
            found.setdefault(name, len(found))
        for part in schema.values():
            ranks(part, found)
        for name in schema.get("required") or [] if isinstance(schema.get("required"), list) else []:
            if isinstance(name, str):
                found.setdefault(name, len(found))
    elif isinstance(schema, list):
        for part in schema:
            ranks(part, found)
    return found


def ordered(value, rank):
    if isinstance(value, list):
        return [ordered(v, rank) for v in value]
    if isinstance(value, dict):
        return {k: ordered(value[k], rank) for k in sorted(value, key=lambda k: rank.get(k, 1e9))}
    return value


def suite_cases(folder):
    base = os.path.join(folder, "tests/draft2020-12")
    for path in sorted(glob.glob(base + "/*.json") + glob.glob(base + "/optional/format/*.json")):
        if os.path.basename(path) == "format.json":
            continue  # there "format" says nothing, here it is enforced
        for group in json.load(open(path)):
            tests = [(t["valid"], list(orders(plain_numbers(t["data"])))) for t in group["tests"]]
            yield os.path.basename(path) + ": " + group["description"], group["schema"], tests


def maskbench_cases(folder, limit):
    paths = sorted(glob.glob(os.path.join(folder, "*.json")))
    random.Random(3).shuffle(paths)
    for path in paths[:limit]:
        case = json.load(open(path))
        rank = ranks(case["schema"], {})
        # Before draft 6 a number with a point is no integer, even if it is whole.
        is_old = any(f"draft-0{n}" in str(case["schema"].get("$schema")) for n in (3, 4))
        tests = []
        for test in case["tests"]:
            keeps = is_old and not test["valid"]
            value = test["data"] if keeps else plain_numbers(test["data"])
            tests.append((test["valid"], [value, ordered(value, rank)]))
        yield os.path.basename(path), case["schema"], tests


class Ours:
    finds_orders = True

    def __init__(self, program, tokens):
        command = [program] + ([tokens] if tokens else [])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def check(self, schema, texts):
        line = json.dumps({"schema": json.dumps(schema), "values": texts}) + "\n"
        self.process.stdin.write(line.encode("utf-8", "surrogatepass"))
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer.get("error"), answer.get("accepted"), answer.get("mask_us", []), answer.get("compile_us", 0)


class Peer:
    """Compiles a schema, and goes through texts with a mask before each token."""

    def __init__(self, tokens):
        self.pieces = [bytes.fromhex(line.strip()) for line in open(tokens)]
        self.end = len(self.pieces)
        self.ids = {piece: i for i, piece in reversed(list(enumerate(self.pieces)))}
        self.longest = max(map(len, self.pieces))
        self.prepare()

    def split(self, text):
        data = text.encode("utf-8", "surrogatepass")
        at = 0
        while at < len(data):
            n = min(self.longest, len(data) - at)
            while data[at:at + n] not in self.ids:
                n -= 1
            yield self.ids[data[at:at + n]]
            at += n

    def check(self, schema, texts):
        accepted, times = [], []
        begin = time.process_time()
        try:
            grammar = self.compile(json.dumps(schema))
        except Exception as error:  # pylint: disable=broad-except
            return str(error), None, [], 0
        compiled = (time.process_time() - begin) * 1e6
        for text in texts:
            matcher = self.matcher(grammar)
            fits = True
            for token in self.split(text):
                begin = time.process_time()
                self.mask(matcher)
                times.append((time.process_time() - begin) * 1e6)
                fits = self.accept(matcher, token)
                if not fits:
                    break
            accepted.append(fits and self.may_end(matcher))
        return None, accepted, times, compiled


class LLGuidance(Peer):
    def prepare(self):
        import llguidance
        self.llg = llguidance

        class Vocabulary:
            eos_token_id = self.end
            bos_token_id = None
            tokens = self.pieces + [b"<|end|>"]
            special_token_ids = [self.end]
            def __call__(self, text):
                return []
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Vocabulary()))

    def compile(self, schema):
        grammar = self.llg.LLMatcher.grammar_from_json_schema(
            schema, defaults={"whitespace_flexible": True})
        first = self.matcher(grammar)
        if first.is_error():
            raise ValueError(first.get_error())
        return grammar

    def matcher(self, grammar):
        return self.llg.LLMatcher(self.tokenizer, grammar)

    def mask(self, matcher):
        matcher.compute_logit_bias()

    def accept(self, matcher, token):
        return matcher.consume_token(token)

    def may_end(self, matcher):
        return matcher.is_accepting()


class XGrammar(Peer):
    def prepare(self):
        import xgrammar
        self.xgr = xgrammar
        info = xgrammar.TokenizerInfo(self.pieces + [b"<|end|>"], xgrammar.VocabType.RAW,
                                      stop_token_ids=[self.end])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    def compile(self, schema):
        return self.compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=False)

    def matcher(self, grammar):
        return self.xgr.GrammarMatcher(grammar)

    def mask(self, matcher):
        matcher.fill_next_token_bitmask(self.bits)

    def accept(self, matcher, token):
        return matcher.accept_token(token)

    def may_end(self, matcher):
        return matcher.accept_token(self.end)


def processor_seconds(process):
    fields = open(f"/proc/{process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Apart:
    """A peer in a process of its own, begun again where it is lost."""

    finds_orders = False

    def __init__(self, make):
        self.make = make
        self.begin()

    def begin(self):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=self.serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def serve(self, pipe):
        peer = self.make()
        pipe.send("ready")
        while True:
            pipe.send(peer.check(*pipe.recv()))

    def check(self, schema, texts, seconds=20):
        end = processor_seconds(self.process) + seconds
        self.pipe.send((schema, texts))
        try:
            while processor_seconds(self.process) < end:
                if self.pipe.poll(0.1):
                    return self.pipe.recv()
            error = "takes too long"
        except EOFError:
            error = "crashed"
        self.process.kill()
        self.process.join()
        self.begin()
        return error, None, [], 0


def percentile(values, part):
    return sorted(values)[min(int(len(values) * part), len(values) - 1)] if values else 0


def run(name, checker, cases, verbose):
    counts = collections.Counter()
    masks, firsts = [], []
    for title, schema, tests in cases:
        texts, spans = [], []
        for _, values in tests:
            values = values[-1:] if checker.finds_orders else values
            spans.append((len(texts), len(texts) + len(values)))
            texts += [json.dumps(v, ensure_ascii=False) for v in values]
        error, accepted, times, compiled = checker.check(schema, texts)
        counts["schemas"] += 1
        if error:
            counts["refused"] += 1
            if verbose:
                print("refused", title, error[:150])
            continue
        masks += times
        firsts += [compiled + times[0]] if times else []
        wrong = 0
        for (valid, _), (first, last) in zip(tests, spans):
            fits = any(accepted[first:last])
            if fits == valid:
                continue
            wrong += 1
            counts["invalid accepted" if fits else "valid refused"] += 1
            if verbose:
                print("invalid accepted" if fits else "valid refused", title, texts[first][:150])
        counts["all right"] += wrong == 0
    mean = sum(masks) / len(masks) if masks else 0
    print(f"| {name} | {counts['schemas']} | {counts['refused']} | {counts['all right']} "
          f"| {counts['invalid accepted']} | {counts['valid refused']} | {mean:.0f} "
          f"| {percentile(masks, 0.5):.0f} | {percentile(masks, 0.99):.0f} "
          f"| {percentile(firsts, 0.99) / 1000:.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--suite")
    parser.add_argument("--maskbench")
    parser.add_argument("--tokens")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--ours", action="store_true", help="without peers")
    options = parser.parse_args()
    checkers = [("ours", lambda: Ours(options.program, options.tokens))]
    if options.tokens and not options.ours:
        for peer in (LLGuidance, XGrammar):
            checkers.append((peer.__name__, lambda peer=peer: Apart(lambda: peer(options.tokens))))
    print("| | schemas | refused | all right | invalid accepted | valid refused | mask us, mean "
          "| median | 99% | first, 99%, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, make in checkers:
        if options.suite:
            run(name + ", suite", make(), suite_cases(options.suite), options.verbose)
        if options.maskbench:
            run(name + ", MaskBench", make(), maskbench_cases(options.maskbench, options.limit), options.verbose)


if __name__ == "__main__":
    main()
