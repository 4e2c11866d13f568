#!/usr/bin/env python3
"""An independent model of sampling, in plain Python and float64: writes goldens.json.

Definitions, each in its author's own terms:
  penalties, top_p, min_p, XTC, top_k and their order: mlx-lm, mlx_lm/sample_utils.py (make_logits_processors,
    make_sampler); windows count tokens of prompt and answer together
  typical_p: Meister et al. 2022, as transformers' TypicalLogitsWarper
  DRY: llama.cpp, src/llama-sampling.cpp (llama_sampler_dry)
Run: tests/sample/goldens.py models/shakespeare/tokenizer.json > tests/sample/goldens.json
"""
import json
import math
import sys


def logits_of(seed, n, spread):
    """Multiples of 1/1024 within spread/1024, the same in C: a 64-bit LCG's high bits."""
    out, state = [], seed
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        x = (state >> 44) - 2**19  # 20 bits, signed
        out.append(((x * spread) // 2**19) / 1024)
    return out


def window(tokens, size):
    return tokens[-size:] if size else tokens[:]


def process(logits, p, tokens):
    x = logits[:]
    for token, bias in p.get("logit_bias", {}).items():
        x[int(token)] += bias
    r = p.get("repetition_penalty", 0)
    if r:
        for t in set(window(tokens, p.get("repetition_context_size", 20))):
            x[t] = x[t] * r if x[t] < 0 else x[t] / r
    for t in set(window(tokens, p.get("presence_context_size", 20))):
        x[t] -= p.get("presence_penalty", 0)
    for t in window(tokens, p.get("frequency_context_size", 20)):
        x[t] -= p.get("frequency_penalty", 0)
    return x


def log_softmax(x):
    top = max(x)
    total = math.log(sum(math.exp(v - top) for v in x if v > -math.inf)) + top
    return [v - total for v in x]


def softmax(x):
    return [math.exp(v) for v in log_softmax(x)]


NONE = -math.inf


def typical(x, mass):
    p = softmax(x)
    entropy = -sum(q * math.log(q) for q in p if q > 0)
    order = sorted((i for i in range(len(x)) if p[i] > 0), key=lambda i: (abs(-math.log(p[i]) - entropy), i))
    keep, reached = set(), 0
    for i in order:
        if reached >= mass:
            break
        keep.add(i)
        reached += p[i]
    return [v if i in keep else NONE for i, v in enumerate(x)]


def top_p(x, mass):
    p = softmax(x)
    order = sorted(range(len(x)), key=lambda i: p[i])
    keep, reached = set(), 0
    for i in order:  # ascending, as mlx-lm has it
        reached += p[i]
        if reached > 1 - mass:
            keep.add(i)
    return [v if i in keep else NONE for i, v in enumerate(x)]


def min_p(x, share):
    floor = max(x) + math.log(share)
    return [v if v >= floor else NONE for v in x]


def xtc(x, threshold, spared):
    p = softmax(x)
    above = [q for q in p if q > threshold]
    if not above:
        return x
    least = min(above)
    return [NONE if p[i] > least and i not in spared else v for i, v in enumerate(x)]


def top_k(x, k):
    keep = set(sorted(range(len(x)), key=lambda i: (-x[i], i))[:k])
    return [v if i in keep else NONE for i, v in enumerate(x)]


def distribution(x, p, spared):
    """Of the drawn token: the mixture over whether XTC fires."""
    t = p.get("temperature", 1)
    if t == 0:
        best = max(range(len(x)), key=lambda i: (x[i], -i))
        return [float(i == best) for i in range(len(x))]
    out = [0.0] * len(x)
    chance = p.get("xtc_probability", 0)
    for fires, weight in ((True, chance), (False, 1 - chance)):
        if weight == 0:
            continue
        y = x
        if p.get("typical_p", 1) < 1:
            y = typical(y, p["typical_p"])
        if 0 < p.get("top_p", 1) < 1:
            # mlx-lm sums the probabilities of the whole distribution: after typical_p that is what is left
            y = top_p(y, p["top_p"])
        if p.get("min_p", 0):
            y = min_p(y, p["min_p"])
        if fires:
            y = xtc(y, p.get("xtc_threshold", 0.1), spared)
        if p.get("top_k", 0) > 0:
            y = top_k(y, p["top_k"])
        for i, q in enumerate(softmax([v / t for v in y])):
            out[i] += weight * q
    return out


def case(name, seed, n, spread, params, tokens=(), n_prompt=0, mask=None, ends=(), newlines=()):
    logits = logits_of(seed, n, spread)
    processed = process(logits, params, list(tokens))
    reported = log_softmax(processed)
    x = processed
    if mask is not None:
        x = [v if i in mask else NONE for i, v in enumerate(x)]
    if len(tokens) - n_prompt < params.get("min_tokens", 0):
        y = [NONE if i in ends else v for i, v in enumerate(x)]
        if any(v > NONE for v in y):
            x = y
    d = distribution(x, params, set(ends) | set(newlines))
    best = sorted(range(n), key=lambda i: (-reported[i], i))[:20]
    out = {"name": name, "seed": seed, "n": n, "spread": spread, "params": params, "tokens": list(tokens),
           "n_prompt": n_prompt, "ends": list(ends), "newlines": list(newlines),
           "top": [[i, round(reported[i], 7)] for i in best]}
    if mask is not None:
        out["mask"] = sorted(mask)
    if n <= 64:
        out["probabilities"] = [round(q, 7) for q in d]
    else:  # by id modulo 16, how many can come, and the least likely of them
        kept = [i for i in range(n) if d[i] > 0]
        out["kept"] = len(kept)
        out["buckets"] = [round(sum(d[i] for i in kept if i % 16 == b), 7) for b in range(16)]
        out["least"] = min(logits[i] for i in kept)
        out["most"] = max(logits[i] for i in kept)
    return out


# ---- DRY: by looking at every earlier place, without any clever algorithm --------------------------
def byte_text(token):
    """GPT-2's printable bytes back to bytes."""
    table = {}
    visible = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    n = 0
    for b in range(256):
        if b in visible:
            table[chr(b)] = b
        else:
            table[chr(256 + n)] = b
            n += 1
    return bytes(table[c] for c in token)


def dry_case(name, vocab, tokens, multiplier, base, allowed, last_n, breakers):
    texts = {i: byte_text(t) for t, i in vocab.items()}
    ids = {t: i for i, t in texts.items()}
    single, pairs = set(), set()
    for b in breakers:
        b = b.encode()
        for i, t in texts.items():
            if b in t:
                single.add(i)
            elif len(b) == 2 and t.endswith(b[:1]):  # its rest is one byte, and so one token
                pairs.add((i, ids[b[1:]]))
    ctx = tokens if last_n < 0 else tokens[-last_n:] if last_n else []
    n = len(ctx)
    limit = n
    for back in range(n):
        i = n - 1 - back
        lengths = [0] if ctx[i] in single else []
        if i + 1 < n and (ctx[i], ctx[i + 1]) in pairs:
            lengths.append(1)
        if lengths:
            limit = back - max(lengths)
            break
    longest = {}
    if n > allowed and limit >= allowed:
        for j in range(n - 1):  # an earlier end, followed by ctx[j + 1]
            length = 0
            while length <= j and ctx[j - length] == ctx[n - 1 - length]:
                length += 1
            length = min(length, limit)
            if length >= allowed:
                longest[ctx[j + 1]] = max(longest.get(ctx[j + 1], 0), length)
    cap = int(88.7228391 / math.log(base)) if base > 1.000001 else 0
    changed = {}
    for t, length in sorted(longest.items()):
        exponent = length - allowed
        if cap and exponent > cap:
            exponent = cap
        if t not in single:
            changed[t] = multiplier * base**exponent
    return {"name": name, "tokens": tokens, "multiplier": multiplier, "base": base, "allowed_length": allowed,
            "last_n": last_n, "breakers": breakers, "penalties": [[t, v] for t, v in changed.items()]}


def main():
    text = [3, 9, 3, 30, 1, 3, 9, 14, 9, 9, 2, 2, 5, 7, 11, 13, 17, 19, 23, 29, 31, 30, 12, 9]
    cases = [
        case("plain", 1, 32, 3000, {}),
        case("warm", 2, 32, 3000, {"temperature": 1.7}),
        case("cold", 2, 32, 3000, {"temperature": 0.4}),
        case("greedy", 3, 32, 3000, {"temperature": 0}),
        case("bias", 4, 32, 3000, {"logit_bias": {"7": 2.5, "9": -3.25, "31": 1}}),
        case("bias forbids", 4, 32, 3000, {"logit_bias": {"7": -100}, "temperature": 0.8}),
        case("repetition", 5, 32, 4000, {"repetition_penalty": 1.3}, text, 8),
        case("repetition of all", 5, 32, 4000, {"repetition_penalty": 1.7, "repetition_context_size": 0}, text, 8),
        case("repetition in a window", 6, 32, 4000, {"repetition_penalty": 2, "repetition_context_size": 3}, text, 8),
        case("presence", 7, 32, 3000, {"presence_penalty": 1.5}, text, 4),
        case("presence in a window", 7, 32, 3000, {"presence_penalty": -1, "presence_context_size": 5}, text, 4),
        case("frequency", 8, 32, 3000, {"frequency_penalty": 0.75}, text, 4),
        case("frequency of all", 8, 32, 3000, {"frequency_penalty": 1.25, "frequency_context_size": 0}, text, 4),
        case("all penalties and bias", 9, 32, 4000,
             {"repetition_penalty": 1.2, "repetition_context_size": 10, "presence_penalty": 0.5,
              "presence_context_size": 15, "frequency_penalty": 0.4, "frequency_context_size": 0,
              "logit_bias": {"3": 1.5, "9": 2}, "temperature": 0.9, "top_p": 0.95}, text, 4),
        case("greedy with penalties", 10, 32, 3000, {"repetition_penalty": 1.8, "temperature": 0}, text, 4),
        case("top_p", 11, 32, 3000, {"top_p": 0.7}),
        case("top_p of one", 11, 32, 6000, {"top_p": 0.01}),
        case("min_p", 12, 32, 3000, {"min_p": 0.15}),
        case("top_k", 13, 32, 3000, {"top_k": 5, "temperature": 1.3}),
        case("top_p, min_p, top_k", 14, 32, 3000, {"top_p": 0.9, "min_p": 0.05, "top_k": 7}),
        case("typical_p", 15, 32, 3000, {"typical_p": 0.5}),
        case("typical_p and top_p", 16, 32, 3000, {"typical_p": 0.8, "top_p": 0.6}),
        case("typical_p and min_p", 16, 32, 3000, {"typical_p": 0.8, "min_p": 0.4}),
        case("xtc always", 17, 32, 3000, {"xtc_probability": 1, "xtc_threshold": 0.08}),
        case("xtc half of the time", 17, 32, 3000, {"xtc_probability": 0.5, "xtc_threshold": 0.08}),
        case("xtc with nothing above", 18, 32, 1000, {"xtc_probability": 1, "xtc_threshold": 0.4}),
        case("xtc spares ends and newlines", 17, 32, 3000, {"xtc_probability": 1, "xtc_threshold": 0.03},
             ends=(int(max(range(32), key=lambda i: logits_of(17, 32, 3000)[i])),), newlines=(4,)),
        case("xtc then top_k", 19, 32, 3000, {"xtc_probability": 1, "xtc_threshold": 0.05, "top_k": 4}),
        case("top_p then xtc", 20, 32, 3000, {"xtc_probability": 0.3, "xtc_threshold": 0.1, "top_p": 0.8}),
        case("min_p then xtc then top_k", 21, 32, 3000,
             {"xtc_probability": 1, "xtc_threshold": 0.2, "min_p": 0.3, "top_k": 2}),
        case("mask", 22, 32, 3000, {"top_p": 0.9}, mask={1, 2, 3, 5, 8, 13, 21}),
        case("mask and penalties", 22, 32, 3000, {"presence_penalty": 1}, text, 4, mask={1, 2, 3, 5, 8, 13, 21}),
        case("too early to end", 23, 32, 3000, {"min_tokens": 21}, text, 4, ends=(2, 17, 30)),
        case("no longer too early", 23, 32, 3000, {"min_tokens": 20}, text, 4, ends=(2, 17, 30)),
        case("too early but nothing else fits", 23, 32, 3000, {"min_tokens": 50}, text, 4, mask={2, 30}, ends=(2, 17, 30)),
        case("wide plain", 31, 50000, 12000, {}),
        case("wide top_p", 31, 50000, 12000, {"top_p": 0.95}),
        case("wide flat top_p", 32, 50000, 700, {"top_p": 0.9}),
        case("wide top_k", 33, 50000, 9000, {"top_k": 40}),
        case("wide flat top_k", 33, 50000, 100, {"top_k": 3000}),
        case("wide min_p", 34, 50000, 9000, {"min_p": 0.02}),
        case("wide typical_p", 35, 50000, 6000, {"typical_p": 0.6}),
        case("wide xtc and top_k", 36, 50000, 9000, {"xtc_probability": 1, "xtc_threshold": 0.0002, "top_k": 50}),
        case("wide xtc", 36, 50000, 9000, {"xtc_probability": 1, "xtc_threshold": 0.0002}),
    ]
    vocab = json.load(open(sys.argv[1]))["model"]["vocab"]
    a, b, c, d = (vocab[t] for t in "abcd")
    colon, newline, star = vocab[":"], vocab["\u010a"], vocab["*"] if "*" in vocab else vocab["!"]
    runs = [c, c, c, c, c, c, c, c]
    long_run = [a, b] * 60
    dry = [
        dry_case("no repetition", vocab, [a, b, c, d], 0.8, 1.75, 2, -1, ["\n"]),
        dry_case("two again", vocab, [a, b, c, d, a, b], 0.8, 1.75, 2, -1, ["\n"]),
        dry_case("three again", vocab, [a, b, c, d, c, a, b, c], 0.8, 1.75, 2, -1, ["\n"]),
        dry_case("the longest counts", vocab, [b, c, a, a, b, c, d, b, c, d, a, b, c], 1, 2, 2, -1, []),
        dry_case("a run", vocab, runs, 0.5, 1.5, 2, -1, []),
        dry_case("a capped exponent", vocab, long_run, 1e-30, 2.5, 1, -1, []),
        dry_case("within the last", vocab, [a, b, c, d, a, b, d, d, a, b], 0.8, 1.75, 1, 6, []),
        dry_case("not within the last", vocab, [a, b, c, d, d, a, b], 0.8, 1.75, 2, 4, []),
        dry_case("allowed length", vocab, [a, b, c, d, a, b, c], 0.8, 1.75, 4, -1, []),
        dry_case("a breaker in between", vocab, [a, b, colon, c, d, a, b, colon, c], 0.8, 1.75, 1, -1, [":"]),
        dry_case("a breaker shortens", vocab, [a, b, colon, c, d, a, b, colon, c, d], 0.8, 1.75, 1, -1, [":"]),
        dry_case("a breaker is never held back", vocab, [a, b, colon, a, b], 0.8, 1.75, 1, -1, [":"]),
        dry_case("the default breakers", vocab, [a, b, newline, a, b, c, newline, a, b], 0.8, 1.75, 1, -1,
                 ["\n", ":", "\"", "*"]),
        dry_case("a breaker of two tokens", vocab, [c, a, b, c, d, c, a, b, c, d], 0.8, 1.75, 1, -1, ["ab"]),
        dry_case("half a breaker is none", vocab, [c, a, d, c, d, c, a, d, c, d], 0.8, 1.75, 1, -1, ["ab"]),
    ]
    json.dump({"cases": cases, "dry": dry}, sys.stdout, separators=(",", ":"))
    print()


main()
