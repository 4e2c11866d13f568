#!/usr/bin/env python3
"""Generate under JSON schemas at random temperatures and check every finished answer with an independent validator.

Needs Debian's python3-jsonschema. Usage:

    generations.py LOAM CORPUS.jsonl MODEL... [--schemas 50] [--count 2000] [--seed 1]

CORPUS holds a line {"name", "schema", ...} a schema. Schemas are taken evenly from it; one that the server cannot
enforce to the letter (strict says so) is passed over for the next. For each MODEL, `loam serve` answers --count
requests. An answer cut off by max_tokens is not JSON yet: it is counted apart and made up for by another; the small
models of the zoo would never end a string, so a logit bias favours what ends one. Prints a line a model
and each answer that fails; exits 1 if one did.
"""
import argparse
import concurrent.futures
import json
import random
import re
import subprocess
import sys
import urllib.error
import urllib.request

import jsonschema

AT_ONCE = 8
MAX_TOKENS = 600
ATTEMPTS = 20  # of one wanted answer that is cut off


def validator(schema):
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return kind(schema, format_checker=kind.FORMAT_CHECKER if hasattr(kind, "FORMAT_CHECKER") else None)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def closing_bias(url):
    """A logit bias on the tokens of the marks that end a string, an array or an object."""
    bias = {}
    for mark in '"}]':
        tokens = post(url + "/tokenize", {"content": mark})["tokens"]
        if len(tokens) == 1:
            bias[str(tokens[0])] = 8
    return bias


def ask(url, bias, schema, seed, temperature):
    body = {
        "model": "any", "max_tokens": MAX_TOKENS, "temperature": temperature, "seed": seed, "logit_bias": bias,
        "messages": [{"role": "user", "content": "Speak."}],
        "chat_template_kwargs": {"enable_thinking": False},
        "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}},
    }
    choice = post(url + "/v1/chat/completions", body)["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


def enforceable(url, schema):
    try:
        validator(schema).check_schema(schema)
        ask(url, {}, schema, 1, 1.0)
        return True
    except jsonschema.SchemaError:
        return False
    except urllib.error.HTTPError as refused:
        if refused.code != 400:
            raise
        return False


def fault(text, schema):
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    errors = list(validator(schema).iter_errors(value))
    return errors[0].message if errors else None


def one(url, bias, name, schema, seed):
    """(finished, cut off, faults) of one wanted answer."""
    chance = random.Random(seed)
    for attempt in range(ATTEMPTS):
        temperature = chance.choice([0.3, 0.7, 1.0, 1.5]) if attempt else chance.uniform(0, 2)
        text, finish = ask(url, bias, schema, chance.getrandbits(31), temperature)
        if finish == "stop":
            wrong = fault(text, schema)
            return 1, attempt, [f"{name}: {wrong}: {text}"] if wrong else []
    return 0, ATTEMPTS, []


def run(loam, model, corpus, args):
    server = subprocess.Popen([loam, "serve", model, "--port", "0"], stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        ready = re.match(r"ready (http\S+)", line)
        if ready:
            break
    else:
        sys.exit(f"{model}: loam serve ended before it was ready")
    url = ready.group(1)
    try:
        schemas, step = [], max(1, len(corpus) // args.schemas)
        for start in range(0, len(corpus), step):
            for line in corpus[start:start + step]:
                if len(schemas) < args.schemas and enforceable(url, line["schema"]):
                    schemas.append(line)
                    break
        bias = closing_bias(url)
        wanted = [(url, bias, s["name"], s["schema"], args.seed * 1000003 + i)
                  for i, s in ((i, schemas[i % len(schemas)]) for i in range(args.count))]
        finished = cut = 0
        faults, never = [], {}
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for w, (done, cuts, wrong) in zip(wanted, pool.map(lambda w: one(*w), wanted)):
                finished += done
                cut += cuts
                faults += wrong
                if not done:
                    never[w[2]] = never.get(w[2], 0) + 1
        print(f"{model}: {len(schemas)} schemas, {finished} answers finished and checked, {len(faults)} invalid; "
              f"{cut} cut off by max_tokens", flush=True)
        for name, n in never.items():
            print(f"  {name}: {n} wanted answers never finished within {MAX_TOKENS} tokens")
        for wrong in faults:
            print("  INVALID", wrong)
        return len(faults)
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("loam")
    parser.add_argument("corpus")
    parser.add_argument("model", nargs="+")
    parser.add_argument("--schemas", type=int, default=50)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with open(args.corpus) as file:
        corpus = [json.loads(line) for line in file]
    sys.exit(1 if sum([run(args.loam, model, corpus, args) for model in args.model]) else 0)


if __name__ == "__main__":
    main()
