#!/usr/bin/python3
"""Tiny models with random weights, and what they compute: a forward pass in numpy and float64, written from the papers and
from the definitions in transformers' modeling files, sharing nothing with loam. Writes tests/models/NAME.

  tests/model/reference.py tests/models [NAME...]

A golden from here is our own reading of a definition, not another program's; docs/models.md says which rows have only that.
Rope's angles are float32 products, as in the reference. Needs numpy.
"""
import json
import math
import os
import struct
import sys
import zlib

import numpy as np

V = 128


# ---- Files ---------------------------------------------------------------------------------------
def to_bf16(x):
    """Rounded to bf16, as uint16 bit patterns."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def save_safetensors(path, tensors):
    header, data, off = {}, [], 0
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [off, off + len(raw)]}
        data.append(raw)
        off += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def load_safetensors(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        part = raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
        kind = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32, "I32": np.int32, "I64": np.int64}[t["dtype"]]
        array = np.frombuffer(part, kind).reshape(t["shape"])
        out[name] = from_bf16(array) if t["dtype"] == "BF16" else array
    return out


class Weights:
    """Tensors by name: read from a folder, or drawn the first time that the forward pass asks for them."""

    def __init__(self, seed=None, tensors=None, prefix="model."):
        self.rng = np.random.default_rng(seed) if tensors is None else None
        self.tensors = {} if tensors is None else tensors
        self.prefix = prefix

    def get(self, name, shape, std=None, around=None):
        name = name[1:] if name.startswith("/") else self.prefix + name
        if self.rng is not None and name not in self.tensors:
            x = self.rng.standard_normal(shape)
            x = around + 0.2 * x if around is not None else x * (std if std else 1.2 / math.sqrt(shape[-1]))
            self.tensors[name] = from_bf16(to_bf16(x))
        x = self.tensors[name].astype(np.float64)
        assert x.size == np.prod(shape), (name, x.shape, shape)
        return x.reshape(shape)

    def linear(self, name, x, n_out, bias=False, bias_name=None):
        y = x @ self.get(name + ".weight", (n_out, x.shape[-1])).T
        return y + self.get(name + ".bias", (n_out,), around=0.0) if bias else y

    def vector(self, name, n, around=1.0):
        return self.get(name, (n,), around=around)


# ---- Pieces --------------------------------------------------------------------------------------
def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


erf = np.vectorize(math.erf)
ACTS = {
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_pytorch_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}
ACTS["gelu_new"] = ACTS["gelu_pytorch_tanh"]


def rms(x, w, eps):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if w is None else y * w


def layer_norm(x, w, b, eps):
    y = x - x.mean(-1, keepdims=True)
    y = y / np.sqrt((y * y).mean(-1, keepdims=True) + eps) * w
    return y if b is None else y + b


def frequencies(rope, n_dims, ctx):
    """(frequencies [n_dims / 2] in float32, what cosines and sines are multiplied by)."""
    kind, theta = rope.get("rope_type", "default"), rope.get("rope_theta", 10000.0)
    if kind == "dynamic" and rope.get("alpha"):  # Hunyuan
        theta *= rope["alpha"] ** (n_dims / (n_dims - 2))
    freq = (1.0 / theta ** (np.arange(0, n_dims, 2) / n_dims)).astype(np.float32).astype(np.float64)
    scale = 1.0
    if kind == "linear":
        freq = freq / rope["factor"]
    elif kind == "llama3":
        old, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
        length = 2 * math.pi / freq
        smooth = (old / length - low) / (high - low)
        mid = (1 - smooth) * freq / rope["factor"] + smooth * freq
        freq = np.where(length > old / low, freq / rope["factor"], np.where(length < old / high, freq, mid))
    elif kind == "yarn":
        old = rope.get("original_max_position_embeddings") or ctx

        def dim_of(rotations):
            return n_dims * math.log(old / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low = max(math.floor(dim_of(rope.get("beta_fast") or 32)), 0)
        high = min(math.ceil(dim_of(rope.get("beta_slow") or 1)), n_dims - 1)
        ramp = np.clip((np.arange(n_dims // 2) - low) / max(high - low, 0.001), 0, 1)
        freq = freq / rope["factor"] * ramp + freq * (1 - ramp)

        def mscale(m):
            return 0.1 * m * math.log(rope["factor"]) + 1 if rope["factor"] > 1 else 1.0

        if rope.get("mscale") and rope.get("mscale_all_dim"):
            scale = mscale(rope["mscale"]) / mscale(rope["mscale_all_dim"])
        else:
            scale = mscale(1)
    return freq.astype(np.float32), scale


def rotate(x, positions, freq, scale, interleaved):
    """x [n, heads, dim]: its first 2 * len(freq) dimensions are rotated."""
    angle = (positions[:, None].astype(np.float32) * freq[None]).astype(np.float64)
    cos, sin = np.cos(angle)[:, None] * scale, np.sin(angle)[:, None] * scale
    n = 2 * len(freq)
    turned, y = x[..., :n], x.copy()
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        y[..., 0:n:2], y[..., 1:n:2] = a * cos - b * sin, b * cos + a * sin
    else:
        a, b = turned[..., :n // 2], turned[..., n // 2:]
        y[..., :n // 2], y[..., n // 2:n] = a * cos - b * sin, b * cos + a * sin
    return y


def attend(q, k, v, scale, window=0, softcap=0.0, both_sides=False, allowed=None):
    """q [n, heads, d], k and v [n, kv heads, d]."""
    n, heads, group = q.shape[0], q.shape[1], q.shape[1] // k.shape[1]
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    seen = np.ones((n, n), bool) if both_sides else j <= i
    if window:
        seen &= np.abs(i - j) < window
    if allowed is not None:
        seen = seen & allowed
    out = np.empty((n, heads, v.shape[-1]))
    for h in range(heads):
        s = q[:, h] @ k[:, h // group].T * scale
        if softcap:
            s = softcap * np.tanh(s / softcap)
        out[:, h] = softmax(np.where(seen, s, -np.inf)) @ v[:, h // group]
    return out.reshape(n, -1)


# ---- Mixtures of experts -------------------------------------------------------------------------
def route(logits, n_used, score, correction=None, normalize=True, scale=1.0, groups=(1, 1)):
    """Dense weights [n, n_experts], zero where an expert is not chosen."""
    if score == "topk_softmax":
        scores = logits
    else:
        scores = softmax(logits) if score == "softmax" else sigmoid(logits)
    choice = scores + (correction if correction is not None else 0)
    n, n_experts = choice.shape
    if groups[0] > 1:
        by_group = choice.reshape(n, groups[0], -1)
        value = np.sort(by_group, -1)[..., -2:].sum(-1) if score == "sigmoid" else by_group.max(-1)
        kept = np.zeros_like(value, bool)
        np.put_along_axis(kept, np.argsort(-value, -1, kind="stable")[:, :groups[1]], True, -1)
        choice = np.where(np.repeat(kept, n_experts // groups[0], -1), choice, -np.inf)
    best = np.argsort(-choice, -1, kind="stable")[:, :n_used]
    picked = np.take_along_axis(scores, best, -1)
    if score == "topk_softmax":
        picked = softmax(picked)
    elif normalize:
        picked = picked / (picked.sum(-1, keepdims=True) + (1e-20 if score == "sigmoid" else 0))
    out = np.zeros_like(scores)
    np.put_along_axis(out, best, picked * scale, -1)
    return out


def glu(w, base, x, ff, names=("gate_proj", "up_proj", "down_proj"), act="silu", bias=False):
    gate, up = w.linear(f"{base}.{names[0]}", x, ff, bias), w.linear(f"{base}.{names[1]}", x, ff, bias)
    return w.linear(f"{base}.{names[2]}", ACTS[act](gate) * up, x.shape[-1], bias)


def experts_of(w, base, x, weights, ff, names=("gate_proj", "up_proj", "down_proj")):
    return sum(weights[:, e:e + 1] * glu(w, f"{base}.{e}", x, ff, names) for e in range(weights.shape[1]))


def fused_experts(w, up_name, down_name, x, weights, ff):
    n, d = weights.shape[1], x.shape[-1]
    up = w.get(up_name, (n, 2 * ff, d))
    down = w.get(down_name, (n, d, ff))
    y = 0
    for e in range(n):
        both = x @ up[e].T
        y = y + weights[:, e:e + 1] * ((ACTS["silu"](both[:, :ff]) * both[:, ff:]) @ down[e].T)
    return y


def moe_qwen(w, c, l, x):
    base, n = f"layers.{l}.mlp", c["num_experts"]
    weights = route(w.linear(base + ".gate", x, n), c["num_experts_per_tok"], "softmax", normalize=c["norm_topk_prob"])
    ff = c.get("moe_intermediate_size", c["intermediate_size"])
    y = experts_of(w, base + ".experts", x, weights, ff)
    if c.get("shared_expert_intermediate_size"):
        gate = sigmoid(w.linear(base + ".shared_expert_gate", x, 1))
        y = y + gate * glu(w, base + ".shared_expert", x, c["shared_expert_intermediate_size"])
    return y


def moe_granite(w, c, l, x):
    base, n = f"layers.{l}.block_sparse_moe", c["num_local_experts"]
    weights = route(w.linear(base + ".router.layer", x, n), c["num_experts_per_tok"], "topk_softmax")
    y = fused_experts(w, base + ".input_linear.weight", base + ".output_linear.weight", x, weights, c["intermediate_size"])
    if c.get("shared_intermediate_size"):
        ff = c["shared_intermediate_size"]
        both = w.linear(f"layers.{l}.shared_mlp.input_linear", x, 2 * ff)
        y = y + w.linear(f"layers.{l}.shared_mlp.output_linear", ACTS["silu"](both[:, :ff]) * both[:, ff:], x.shape[-1])
    return y


def moe_deepseek(w, c, l, x):
    base, n, ff = f"layers.{l}.mlp", c["n_routed_experts"], c["moe_intermediate_size"]
    v2 = c["model_type"] == "deepseek_v2"
    logits = w.linear(base + ".gate", x, n)
    correction = None if v2 else w.get(base + ".gate.e_score_correction_bias", (n,), std=0.1)
    weights = route(logits, c["num_experts_per_tok"], "softmax" if v2 else "sigmoid", correction,
                    c["norm_topk_prob"] and not v2, c["routed_scaling_factor"],
                    (1, 1) if c.get("topk_method") == "greedy" else (c["n_group"], c["topk_group"]))
    return experts_of(w, base + ".experts", x, weights, ff) + glu(w, base + ".shared_experts", x, ff * c["n_shared_experts"])


def moe_ernie(w, c, l, x):
    base, n, ff = f"layers.{l}.mlp", c["moe_num_experts"], c["moe_intermediate_size"]
    correction = w.get(base + ".moe_statics.e_score_correction_bias", (1, n), std=0.1)
    weights = route(w.linear(base + ".gate", x, n), c["moe_k"], "softmax", correction)
    return experts_of(w, base + ".experts", x, weights, ff) + \
        glu(w, base + ".shared_experts", x, ff * c["moe_num_shared_experts"])


def moe_minimax(w, c, l, x):
    base, n = f"layers.{l}.block_sparse_moe", c["num_local_experts"]
    correction = w.get(base + ".e_score_correction_bias", (n,), std=0.1)
    weights = route(w.linear(base + ".gate", x, n), c["num_experts_per_tok"], "sigmoid", correction)
    return experts_of(w, base + ".experts", x, weights, c["intermediate_size"], ("w1", "w3", "w2"))


# ---- Mixers ----------------------------------------------------------------------------------------
def latent_attention(w, c, l, x):
    """DeepSeek V2's latent attention as it is defined, not absorbed; the sparse indexer where there is one."""
    at, n, heads = f"layers.{l}.self_attn", len(x), c["num_attention_heads"]
    nope, rope, vd, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    pos, rp = np.arange(n), c["rope_parameters"]
    freq, scale = frequencies(rp, rope, c["max_position_embeddings"])
    if c["q_lora_rank"]:
        latent = w.linear(at + ".q_a_proj", x, c["q_lora_rank"])
        latent = rms(latent, w.vector(at + ".q_a_layernorm.weight", c["q_lora_rank"]), 1e-6)
        q = w.linear(at + ".q_b_proj", latent, heads * (nope + rope))
    else:
        q = w.linear(at + ".q_proj", x, heads * (nope + rope))
    q = q.reshape(n, heads, -1)
    kv = w.linear(at + ".kv_a_proj_with_mqa", x, rank + rope)
    k_rope = rotate(kv[:, None, rank:], pos, freq, scale, True)
    kv = w.linear(at + ".kv_b_proj", rms(kv[:, :rank], w.vector(at + ".kv_a_layernorm.weight", rank), 1e-6),
                  heads * (nope + vd)).reshape(n, heads, -1)
    q = np.concatenate([q[..., :nope], rotate(q[..., nope:], pos, freq, scale, True)], -1)
    k = np.concatenate([kv[..., :nope], np.repeat(k_rope, heads, 1)], -1)
    factor = (nope + rope) ** -0.5
    if rp.get("mscale_all_dim"):
        factor *= (0.1 * rp["mscale_all_dim"] * math.log(rp["factor"]) + 1) ** 2
    allowed = None
    if c.get("index_topk"):
        ih, dim = c["index_n_heads"], c["index_head_dim"]
        iq = w.linear(at + ".indexer.wq_b", latent, ih * dim).reshape(n, ih, dim)
        ik = layer_norm(w.linear(at + ".indexer.wk", x, dim), w.vector(at + ".indexer.k_norm.weight", dim),
                        w.vector(at + ".indexer.k_norm.bias", dim, 0.0), 1e-6)[:, None]
        iq, ik = rotate(iq, pos, freq, scale, False), rotate(ik, pos, freq, scale, False)
        weights = w.linear(at + ".indexer.weights_proj", x, ih) / math.sqrt(ih * dim)
        s = np.einsum("th,ths->ts", weights, np.maximum(np.einsum("thd,sd->ths", iq, ik[:, 0]), 0))
        s = np.where(np.tril(np.ones((n, n), bool)), s, -np.inf)
        allowed = np.zeros((n, n), bool)
        np.put_along_axis(allowed, np.argsort(-s, -1, kind="stable")[:, :c["index_topk"]], True, -1)
    return w.linear(at + ".o_proj", attend(q, k, kv[..., nope:], factor, allowed=allowed), x.shape[-1])


def causal_conv(x, kernel_weights):
    """x [n, channels], kernel [channels, k], newest tap last."""
    k = kernel_weights.shape[1]
    padded = np.concatenate([np.zeros((k - 1, x.shape[1])), x])
    return sum(padded[i:i + len(x)] * kernel_weights[:, i] for i in range(k))


def short_conv(w, c, l, x):
    d = x.shape[-1]
    b, gate, inner = np.split(w.linear(f"layers.{l}.conv.in_proj", x, 3 * d), 3, -1)
    mixed = causal_conv(b * inner, w.get(f"layers.{l}.conv.conv.weight", (d, 1, c["conv_L_cache"]), std=0.6)[:, 0])
    return w.linear(f"layers.{l}.conv.out_proj", gate * mixed, d)


def delta_net(w, c, l, x):
    """Gated DeltaNet (Yang et al. 2024) with Qwen3-Next's fused projections, token by token."""
    at, n, d = f"layers.{l}.linear_attn", len(x), x.shape[-1]
    kh, vh, kd, vd = (c["linear_" + key] for key in
                      ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
    ratio = vh // kh
    parts = w.linear(at + ".in_proj_qkvz", x, 2 * kh * kd + 2 * vh * vd).reshape(n, kh, -1)
    q, k, v, z = np.split(parts, [kd, 2 * kd, 2 * kd + ratio * vd], -1)
    ba = w.linear(at + ".in_proj_ba", x, 2 * vh).reshape(n, kh, 2 * ratio)
    b, a = ba[..., :ratio].reshape(n, vh), ba[..., ratio:].reshape(n, vh)
    mixed = np.concatenate([q.reshape(n, -1), k.reshape(n, -1), v.reshape(n, -1)], -1)
    kernel = w.get(at + ".conv1d.weight", (mixed.shape[1], 1, c["linear_conv_kernel_dim"]), std=0.6)[:, 0]
    mixed = ACTS["silu"](causal_conv(mixed, kernel))
    q, k, v = np.split(mixed, [kh * kd, 2 * kh * kd], -1)
    q, k, v = q.reshape(n, kh, kd), k.reshape(n, kh, kd), v.reshape(n, vh, vd)
    q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
    q, k = np.repeat(q, ratio, 1) / math.sqrt(kd), np.repeat(k, ratio, 1)
    decay = np.exp(-np.exp(w.vector(at + ".A_log", vh, 0.5)) * np.logaddexp(0, a + w.vector(at + ".dt_bias", vh)))
    beta, state, out = sigmoid(b), np.zeros((vh, kd, vd)), np.empty((n, vh, vd))
    for t in range(n):
        state = state * decay[t][:, None, None]
        u = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state = state + k[t][..., None] * u[:, None]
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    out = rms(out, w.vector(at + ".norm.weight", vd), c["rms_norm_eps"]) * ACTS["silu"](z.reshape(n, vh, vd))
    return w.linear(at + ".out_proj", out.reshape(n, -1), d)


def plain_attention(w, c, o, l, x):
    at, n, heads, kv_heads = f"layers.{l}.self_attn", len(x), c["num_attention_heads"], c["num_key_value_heads"]
    dim = c.get("head_dim") or c["hidden_size"] // heads
    sliding = o["layer_types"][l] == "sliding_attention"
    bias, o_bias = o.get("qkv_bias", False), o.get("o_bias", False)
    gate = None
    if o.get("gate"):
        q, gate = np.split(w.linear(at + ".q_proj", x, 2 * heads * dim, bias).reshape(n, heads, 2 * dim), 2, -1)
    else:
        q = w.linear(at + ".q_proj", x, heads * dim, bias).reshape(n, heads, dim)
    k = w.linear(at + ".k_proj", x, kv_heads * dim, bias).reshape(n, kv_heads, dim)
    v = w.linear(at + ".v_proj", x, kv_heads * dim, bias).reshape(n, kv_heads, dim)
    qk_norm, names, add = o.get("qk_norm"), o.get("qk_names", ("q_norm", "k_norm")), o.get("norm_add", 0)

    def normed(y, name, count):
        if qk_norm == "whole":
            return rms(y.reshape(n, -1), w.vector(f"{at}.{name}.weight", count * dim), c["rms_norm_eps"]).reshape(y.shape)
        eps = c.get("rms_norm_eps", c.get("norm_eps"))
        return rms(y, add + w.vector(f"{at}.{name}.weight", dim, 1.0 - add), eps)

    if qk_norm and not o.get("norm_after_rope"):
        q, k = normed(q, names[0], heads), normed(k, names[1], kv_heads)
    if sliding or not o.get("rope_sliding_only"):
        rope = o.get("rope_sliding", c["rope_parameters"]) if sliding else c["rope_parameters"]
        freq, scale = frequencies(rope, int(dim * o.get("partial", 1.0)), c["max_position_embeddings"])
        pos = np.arange(n)
        q, k = (rotate(y, pos, freq, scale, o.get("interleaved", False)) for y in (q, k))
        if o.get("query_beta"):
            old = rope["original_max_position_embeddings"]
            q = q * (1 + o["query_beta"] * np.log(1 + np.floor(pos / old)))[:, None, None]
    if qk_norm and o.get("norm_after_rope"):
        q, k = normed(q, names[0], heads), normed(k, names[1], kv_heads)
    window = c["sliding_window"] if sliding else 0
    if o.get("both_sides") and window:
        window = window // 2 + 1
    y = attend(q, k, v, o.get("scale", dim ** -0.5), window, o.get("softcap", 0.0), o.get("both_sides", False))
    if gate is not None:
        y = y * sigmoid(gate.reshape(n, -1))
    return w.linear(f"{at}.{o.get('o_name', 'o_proj')}", y, x.shape[-1], o_bias)


def mlp(w, c, o, l, x):
    base, ff, kind = f"layers.{l}.{o.get('mlp_module', 'mlp')}", c["intermediate_size"], o.get("mlp", "glu")
    act, bias = o.get("act", "silu"), o.get("mlp_bias", False)
    if kind == "fused":
        both = w.linear(base + ".gate_up_proj", x, 2 * ff)
        return w.linear(base + ".down_proj", ACTS[act](both[:, :ff]) * both[:, ff:], x.shape[-1])
    if kind == "plain":
        inner = w.linear(base + ".up_proj", x, ff, bias)
        if act == "xielu":
            ap = np.logaddexp(0, w.vector(base + ".act_fn.alpha_p", 1, 0.5))
            an = 0.5 + np.logaddexp(0, w.vector(base + ".act_fn.alpha_n", 1, 0.5))
            inner = np.where(inner > 0, ap * inner**2 + 0.5 * inner,
                             (np.expm1(np.minimum(inner, -1e-6)) - inner) * an + 0.5 * inner)
        else:
            inner = ACTS[act](inner)
        return w.linear(base + ".down_proj", inner, x.shape[-1], bias)
    return glu(w, base, x, ff, o.get("mlp_names", ("gate_proj", "up_proj", "down_proj")), act, bias)


# ---- Decoders --------------------------------------------------------------------------------------
def decoder(w, c, o, ids, taps=None):
    d, add = c["hidden_size"], o.get("norm_add", 0)
    eps = next(c[key] for key in ("rms_norm_eps", "layer_norm_eps", "norm_eps") if key in c)

    def norm(name, x):
        weight = add + w.vector(name + ".weight", d, 1.0 - add)
        if o.get("norm") == "layer":
            return layer_norm(x, weight, w.vector(name + ".bias", d, 0.0) if o.get("norm_bias") else None, eps)
        return rms(x, weight, eps)

    names = o.get("norm_names", {})
    table = w.get("embed_tokens.weight", (c["vocab_size"], d), std=0.5)
    h = table[ids] * o.get("embed_scale", 1.0)
    if taps is not None:
        taps["embed"] = h
    res, place = o.get("residual", 1.0), o.get("norms", "before")
    for l in range(c["num_hidden_layers"]):
        at = f"layers.{l}."
        kind = o["layer_types"][l]

        def mixer(x):
            if kind == "conv":
                return short_conv(w, c, l, x)
            if kind == "linear_attention":
                return delta_net(w, c, l, x)
            return latent_attention(w, c, l, x) if o.get("mla") else plain_attention(w, c, o, l, x)

        def feed_forward(x):
            return o["moe"](w, c, l, x) if "moe" in o and o["sparse"](l) else mlp(w, c, o, l, x)

        if place == "before":
            h = h + res * mixer(norm(at + names.get("in", "input_layernorm"), h))
            h = h + res * feed_forward(norm(at + names.get("mlp", "post_attention_layernorm"), h))
        elif place == "after":
            h = h + norm(at + "post_attention_layernorm", mixer(h))
            h = h + norm(at + "post_feedforward_layernorm", feed_forward(h))
        elif place == "both":
            h = h + norm(at + names.get("out", "post_attention_layernorm"), mixer(norm(at + "input_layernorm", h)))
            h = h + norm(at + names.get("mlp_out", "post_feedforward_layernorm"),
                         feed_forward(norm(at + names.get("mlp", "pre_feedforward_layernorm"), h)))
        else:  # shared
            x = norm(at + "input_layernorm", h)
            h = h + mixer(x) + feed_forward(x)
        if taps is not None:
            taps[str(l)] = h
    h = norm(o.get("final_norm", "norm"), h)
    if taps is not None:
        taps["norm"] = h
    if o.get("both_sides"):
        return h
    head = table if c.get("tie_word_embeddings") else w.get("/lm_head.weight", table.shape, std=3 / math.sqrt(d))
    logits = h @ head.T * o.get("logit_scale", 1.0)
    cap = c.get("final_logit_softcapping")
    return cap * np.tanh(logits / cap) if cap else logits


BASE = dict(vocab_size=V, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=512, rms_norm_eps=3e-3, tie_word_embeddings=False)
LLAMA3 = dict(rope_type="llama3", rope_theta=5e5, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", rope_theta=5e5, factor=4.0, original_max_position_embeddings=64, beta_fast=32.0,
            beta_slow=1.0)


def plain(theta=10000.0, **more):
    return dict(rope_type="default", rope_theta=theta, **more)


DS = dict(n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, n_shared_experts=1, first_k_dense_replace=1,
          routed_scaling_factor=1.7, norm_topk_prob=True, n_group=1, topk_group=1)
MLA = dict(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
           num_key_value_heads=4, head_dim=None)
GRANITE = dict(embedding_multiplier=2.5, logits_scaling=1.6, residual_multiplier=0.6, attention_multiplier=0.2)
GRANITE_O = dict(embed_scale=2.5, residual=0.6, scale=0.2, logit_scale=1 / 1.6)
LAYER = dict(rms_norm_eps=None, layer_norm_eps=3e-3)
SLIDE = ["sliding_attention"] * 3 + ["full_attention"]
SLIDING = dict(num_hidden_layers=4, sliding_window=32, layer_types=SLIDE)
GEMMA_SCALE = float(from_bf16(to_bf16(np.array([math.sqrt(48)])))[0])
FIRST_DENSE = dict(moe=moe_deepseek, sparse=lambda l: l >= 1)
DENSE_TYPES = ["full_attention"] * 8

# name: (model_type, what differs from BASE in the config, what the forward pass does otherwise than Llama's)
MODELS = {
    "olmo3": ("olmo3", SLIDING | dict(rope_parameters=YARN), dict(norms="after", qk_norm="whole", rope_sliding=plain(5e5))),
    "seed_oss": ("seed_oss", dict(attention_bias=True, attention_out_bias=False, rope_parameters=plain(1e6)),
                 dict(qkv_bias=True)),
    "exaone4": ("exaone4", SLIDING | dict(rope_parameters=LLAMA3),
                dict(norms="after", qk_norm="head", rope_sliding_only=True)),
    "glm4": ("glm4", dict(attention_bias=True, partial_rotary_factor=0.5, rope_parameters=plain(partial_rotary_factor=0.5)),
             dict(norms="both", qkv_bias=True, mlp="fused", interleaved=True, partial=0.5,
                  norm_names=dict(out="post_self_attn_layernorm", mlp="post_attention_layernorm",
                                  mlp_out="post_mlp_layernorm"))),
    "glm": ("glm", dict(attention_bias=True, partial_rotary_factor=0.5, rope_parameters=plain(partial_rotary_factor=0.5)),
            dict(qkv_bias=True, mlp="fused", interleaved=True, partial=0.5)),
    "cohere": ("cohere", LAYER | dict(logit_scale=0.25, use_qk_norm=False, tie_word_embeddings=True,
                                      rope_parameters=plain(5e4)),
               dict(norm="layer", norms="shared", interleaved=True, logit_scale=0.25)),
    "cohere2": ("cohere2", LAYER | SLIDING | dict(logit_scale=0.25, tie_word_embeddings=True, rope_parameters=plain(5e4)),
                dict(norm="layer", norms="shared", interleaved=True, logit_scale=0.25, rope_sliding_only=True)),
    "gemma": ("gemma", dict(hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True, rope_parameters=plain()),
              dict(norm_add=1, embed_scale=GEMMA_SCALE, act="gelu_pytorch_tanh")),
    "gemma2": ("gemma2", dict(num_hidden_layers=4, sliding_window=32, layer_types=["sliding_attention", "full_attention"] * 2,
                              query_pre_attn_scalar=24, attn_logit_softcapping=5.0, final_logit_softcapping=4.0,
                              hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True, rope_parameters=plain()),
               dict(norms="both", norm_add=1, embed_scale=GEMMA_SCALE, act="gelu_pytorch_tanh", softcap=5.0,
                    scale=24 ** -0.5)),
    "ernie4_5": ("ernie4_5", dict(use_bias=False, tie_word_embeddings=True, rope_parameters=plain(5e5)),
                 dict(interleaved=True)),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", dict(max_position_embeddings=1024, rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, alpha=1000.0,
                                                                       factor=1.0)),
                         dict(qk_norm="head", norm_after_rope=True, qk_names=("query_layernorm", "key_layernorm"))),
    "nemotron": ("nemotron", dict(rms_norm_eps=None, norm_eps=3e-3, hidden_act="relu2", partial_rotary_factor=0.5,
                                  rope_parameters=plain(partial_rotary_factor=0.5)),
                 dict(norm="layer", norm_bias=True, norm_add=1, mlp="plain", act="relu2", partial=0.5)),
    "arcee": ("arcee", dict(hidden_act="relu2", rope_parameters=YARN), dict(mlp="plain", act="relu2")),
    "stablelm": ("stablelm", LAYER | dict(use_qkv_bias=True, partial_rotary_factor=0.25,
                                          rope_parameters=plain(partial_rotary_factor=0.25)),
                 dict(norm="layer", norm_bias=True, qkv_bias=True, partial=0.25)),
    "apertus": ("apertus", dict(hidden_act="xielu", rope_parameters=LLAMA3),
                dict(qk_norm="head", mlp="plain", act="xielu",
                     norm_names=dict([("in", "attention_layernorm"), ("mlp", "feedforward_layernorm")]))),
    "ministral3": ("ministral3", dict(sliding_window=None, rope_parameters=YARN | dict(
        mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)), dict(query_beta=0.1)),
    "lfm2": ("lfm2", dict(rms_norm_eps=None, norm_eps=3e-3, num_hidden_layers=4, hidden_size=64, conv_L_cache=3,
                          conv_bias=False, block_auto_adjust_ff_dim=False, tie_word_embeddings=True,
                          layer_types=["conv", "full_attention", "conv", "full_attention"], rope_parameters=plain(1e6)),
             dict(qk_norm="head", qk_names=("q_layernorm", "k_layernorm"), o_name="out_proj", mlp_module="feed_forward",
                  mlp_names=("w1", "w3", "w2"), final_norm="embedding_norm",
                  norm_names=dict([("in", "operator_norm"), ("mlp", "ffn_norm")]))),
    "qwen2_moe": ("qwen2_moe", dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=False,
                                    shared_expert_intermediate_size=40, mlp_only_layers=[0], decoder_sparse_step=1,
                                    qkv_bias=True, rope_parameters=plain(1e6)),
                  dict(qkv_bias=True, moe=moe_qwen, sparse=lambda l: l != 0)),
    "olmoe": ("olmoe", dict(num_experts=8, num_experts_per_tok=3, intermediate_size=24, norm_topk_prob=False, clip_qkv=None,
                            rope_parameters=plain()),
              dict(qk_norm="whole", moe=moe_qwen, sparse=lambda l: True)),
    "granitemoe": ("granitemoe", GRANITE | dict(num_local_experts=8, num_experts_per_tok=2, intermediate_size=24,
                                                rope_parameters=plain()),
                   GRANITE_O | dict(moe=moe_granite, sparse=lambda l: True)),
    "granitemoeshared": ("granitemoeshared", GRANITE | dict(num_local_experts=8, num_experts_per_tok=2, intermediate_size=24,
                                                            shared_intermediate_size=40, rope_parameters=plain()),
                         GRANITE_O | dict(moe=moe_granite, sparse=lambda l: True)),
    "glm4_moe": ("glm4_moe", DS | dict(use_qk_norm=True, attention_bias=True, partial_rotary_factor=0.5,
                                       rope_parameters=plain(1e6, partial_rotary_factor=0.5)),
                 FIRST_DENSE | dict(qk_norm="head", qkv_bias=True, partial=0.5)),
    "glm4_moe_lite": ("glm4_moe_lite", DS | MLA | dict(rope_parameters=plain(1e6)), FIRST_DENSE | dict(mla=True)),
    "dots1": ("dots1", DS | dict(rope_parameters=plain()), FIRST_DENSE | dict(qk_norm="head")),
    "deepseek_v2": ("deepseek_v2", DS | MLA | dict(n_group=4, topk_group=2, topk_method="group_limited_greedy",
                                                   norm_topk_prob=False,
                                                   rope_parameters=YARN | dict(mscale=0.707, mscale_all_dim=0.707)),
                    FIRST_DENSE | dict(mla=True)),
    "deepseek_v2-lite": ("deepseek_v2", DS | MLA | dict(q_lora_rank=None, topk_method="greedy", norm_topk_prob=False, n_group=4, topk_group=2,
                                                        routed_scaling_factor=1.0, rope_parameters=plain()),
                         FIRST_DENSE | dict(mla=True)),
    "deepseek_v32": ("deepseek_v32", DS | MLA | dict(n_group=4, topk_group=2, index_n_heads=4, index_head_dim=16, index_topk=32,
                                                     rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=1.0)),
                     FIRST_DENSE | dict(mla=True)),
    "ernie4_5_moe": ("ernie4_5_moe", dict(use_bias=False, moe_num_experts=8, moe_k=2, moe_intermediate_size=24,
                                          moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_end_index=1,
                                          moe_layer_interval=1, tie_word_embeddings=True, rope_parameters=plain(5e5)),
                     dict(interleaved=True, moe=moe_ernie, sparse=lambda l: l == 1)),
    "minimax_m2": ("minimax_m2", dict(num_local_experts=8, num_experts_per_tok=2, intermediate_size=24, rotary_dim=8,
                                      use_qk_norm=True, rope_parameters=None, rope_theta=5e6),
                   dict(qk_norm="whole", partial=0.5, moe=moe_minimax, sparse=lambda l: True)),
    "qwen3_next": ("qwen3_next", dict(num_hidden_layers=4, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24,
                                      shared_expert_intermediate_size=24, norm_topk_prob=True, decoder_sparse_step=1,
                                      mlp_only_layers=[], linear_num_key_heads=2, linear_num_value_heads=4,
                                      linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4,
                                      layer_types=["linear_attention"] * 3 + ["full_attention"], partial_rotary_factor=0.25,
                                      rope_parameters=plain(1e6, partial_rotary_factor=0.25)),
                   dict(norm_add=1, gate=True, qk_norm="head", partial=0.25, moe=moe_qwen, sparse=lambda l: True)),
}


# ---- Encoders --------------------------------------------------------------------------------------
TEXTS = ["the king is dead", "a b c",
         "What light through yonder window breaks? It is the east, and Juliet is the sun.", "no",
         "to be or not to be that is the question whether tis nobler in the mind to suffer the slings and arrows of "
         "outrageous fortune or to take arms against a sea of troubles and by opposing end them"]
WORDS = ["the", "and", "king", "is", "to", "be", "or", "not", "that", "of", "##s", "##ing", "##er", "##ou", "##ed"]
LETTERS = [chr(c) for c in range(97, 123)]
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
XLM_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
GEMMA_SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]


def word_pieces(text, vocab, unknown):
    """BERT's tokens: lower case, punctuation apart, then the longest piece first (Devlin et al. 2018)."""
    words, out = "".join(f" {c} " if not c.isalnum() and not c.isspace() else c for c in text.lower()).split(), []
    for word in words:
        pieces, at = [], 0
        while at < len(word):
            end = len(word)
            while end > at and ("##" if at else "") + word[at:end] not in vocab:
                end -= 1
            if end == at:
                pieces = [unknown]
                break
            pieces.append(vocab[("##" if at else "") + word[at:end]])
            at = end
        out += pieces
    return out


def save_tokenizer(folder, specials, first, last):
    pieces = specials + LETTERS + ["##" + c for c in LETTERS] + list("?,.!;") + WORDS
    pieces += [f"[unused{i}]" for i in range(len(pieces), V)]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    unknown = next(s for s in specials if "unk" in s.lower())

    def special(token, type_id):
        return {"SpecialToken": {"id": token, "type_id": type_id}}

    def sequence(name, type_id):
        return {"Sequence": {"id": name, "type_id": type_id}}

    json.dump({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [dict(id=vocab[s], content=s, single_word=False, lstrip=False, rstrip=False, normalized=False,
                              special=True) for s in specials],
        "normalizer": dict(type="BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None,
                           lowercase=True),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": [special(first, 0), sequence("A", 0), special(last, 0)],
            "pair": [special(first, 0), sequence("A", 0), special(last, 0), sequence("B", 1), special(last, 1)],
            "special_tokens": {s: {"id": s, "ids": [vocab[s]], "tokens": [s]} for s in (first, last)}},
        "decoder": dict(type="WordPiece", prefix="##", cleanup=True),
        "model": dict(type="WordPiece", unk_token=unknown, continuing_subword_prefix="##", max_input_chars_per_word=100,
                      vocab=vocab)}, open(folder + "/tokenizer.json", "w"), indent=1)
    json.dump(dict(tokenizer_class="PreTrainedTokenizerFast", model_max_length=150, unk_token=unknown),
              open(folder + "/tokenizer_config.json", "w"), indent=1)
    return lambda text: np.array([vocab[first]] + word_pieces(text, vocab, vocab[unknown]) + [vocab[last]], np.int32)


def self_attention(q, k, v, heads, window=0, rope=None):
    n = len(q)
    q, k, v = (x.reshape(n, heads, -1) for x in (q, k, v))
    if rope:
        freq, scale = frequencies(rope, q.shape[-1], 512)
        q, k = (rotate(x, np.arange(n), freq, scale, False) for x in (q, k))
    return attend(q, k, v, q.shape[-1] ** -0.5, window, both_sides=True)


def bert(w, c, ids, position_off=0):
    d, heads, eps = c["hidden_size"], c["num_attention_heads"], c["layer_norm_eps"]

    def norm(name, x):
        return layer_norm(x, w.vector(name + ".weight", d), w.vector(name + ".bias", d, 0.0), eps)

    n_types = c["type_vocab_size"]
    h = w.get("embeddings.word_embeddings.weight", (V, d), std=0.5)[ids] + \
        w.get("embeddings.token_type_embeddings.weight", (n_types, d), std=0.5)[0] + \
        w.get("embeddings.position_embeddings.weight", (c["max_position_embeddings"], d), std=0.5)[
            np.arange(len(ids)) + position_off]
    h = norm("embeddings.LayerNorm", h)
    for l in range(c["num_hidden_layers"]):
        at = f"encoder.layer.{l}."
        q, k, v = (w.linear(f"{at}attention.self.{part}", h, d, True) for part in ("query", "key", "value"))
        mixed = w.linear(at + "attention.output.dense", self_attention(q, k, v, heads), d, True)
        h = norm(at + "attention.output.LayerNorm", h + mixed)
        inner = ACTS[c.get("hidden_act", "gelu")](w.linear(at + "intermediate.dense", h, c["intermediate_size"], True))
        h = norm(at + "output.LayerNorm", h + w.linear(at + "output.dense", inner, d, True))
    w.linear("pooler.dense", h, d, True)  # there, and of no use to embeddings
    return h


def xlm_roberta(w, c, ids):
    return bert(w, c, ids, c["pad_token_id"] + 1)


def nomic_bert(w, c, ids):
    d, heads, ff = c["n_embd"], c["n_head"], c["n_inner"]

    def norm(name, x):
        return layer_norm(x, w.vector(name + ".weight", d), w.vector(name + ".bias", d, 0.0), c["layer_norm_epsilon"])

    h = norm("emb_ln", w.get("embeddings.word_embeddings.weight", (V, d), std=0.5)[ids] +
             w.get("embeddings.token_type_embeddings.weight", (2, d), std=0.5)[0])
    for l in range(c["n_layer"]):
        at = f"encoder.layers.{l}."
        q, k, v = np.split(w.linear(at + "attn.Wqkv", h, 3 * d), 3, -1)
        mixed = self_attention(q, k, v, heads, rope=dict(rope_theta=c["rotary_emb_base"]))
        h = norm(at + "norm1", h + w.linear(at + "attn.out_proj", mixed, d))
        inner = w.linear(at + "mlp.fc11", h, ff) * ACTS["silu"](w.linear(at + "mlp.fc12", h, ff))
        h = norm(at + "norm2", h + w.linear(at + "mlp.fc2", inner, d))
    return h


def modernbert(w, c, ids):
    d, heads, ff = c["hidden_size"], c["num_attention_heads"], c["intermediate_size"]

    def norm(name, x):
        return layer_norm(x, w.vector(name + ".weight", d), None, c["norm_eps"])

    h = norm("embeddings.norm", w.get("embeddings.tok_embeddings.weight", (V, d), std=0.5)[ids])
    for l in range(c["num_hidden_layers"]):
        at, full = f"layers.{l}.", l % c["global_attn_every_n_layers"] == 0
        x = norm(at + "attn_norm", h) if l else h
        q, k, v = np.split(w.linear(at + "attn.Wqkv", x, 3 * d), 3, -1)
        mixed = self_attention(q, k, v, heads, 0 if full else c["local_attention"] // 2 + 1,
                               dict(rope_theta=c["global_rope_theta" if full else "local_rope_theta"]))
        h = h + w.linear(at + "attn.Wo", mixed, d)
        inner = w.linear(at + "mlp.Wi", norm(at + "mlp_norm", h), 2 * ff)
        h = h + w.linear(at + "mlp.Wo", ACTS["gelu"](inner[:, :ff]) * inner[:, ff:], d)
    return norm("final_norm", h)


def embedding_gemma(w, c, ids):
    layer_types = c["layer_types"]
    return decoder(w, c, dict(norms="both", norm_add=1, qk_norm="head", embed_scale=GEMMA_SCALE, act="gelu_pytorch_tanh",
                              scale=c["query_pre_attn_scalar"] ** -0.5, both_sides=True, layer_types=layer_types,
                              rope_sliding=plain(1e4)), ids)


BERT = dict(model_type="bert", vocab_size=V, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80,
            max_position_embeddings=160, type_vocab_size=2, layer_norm_eps=3e-3, hidden_act="gelu", pad_token_id=0)
# name: (config, forward pass, prefix of its tensors, special tokens, first and last token, pooling)
ENCODERS = {
    "bert": (BERT, bert, "", BERT_SPECIALS, ("[CLS]", "[SEP]"), "mean"),
    "bert-cls": (BERT | dict(hidden_act="gelu_new"), bert, "bert.", BERT_SPECIALS, ("[CLS]", "[SEP]"), "cls"),
    "xlm-roberta": (BERT | dict(model_type="xlm-roberta", type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2),
                    xlm_roberta, "roberta.", XLM_SPECIALS, ("<s>", "</s>"), "cls"),
    "nomic_bert": (dict(model_type="nomic_bert", vocab_size=V, n_embd=48, n_layer=3, n_head=4, n_inner=80, n_positions=160,
                        activation_function="swiglu", layer_norm_epsilon=3e-3, rotary_emb_base=1000, rotary_emb_fraction=1.0,
                        rotary_emb_interleaved=False, qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False,
                        prenorm=False, use_rms_norm=False, parallel_block=False, type_vocab_size=2),
                   nomic_bert, "", BERT_SPECIALS, ("[CLS]", "[SEP]"), "mean"),
    "modernbert": (dict(model_type="modernbert", vocab_size=V, hidden_size=48, num_hidden_layers=4, num_attention_heads=4,
                        intermediate_size=80, max_position_embeddings=160, hidden_activation="gelu", norm_eps=3e-3,
                        norm_bias=False, attention_bias=False, mlp_bias=False, local_attention=16,
                        global_attn_every_n_layers=3, global_rope_theta=160000.0, local_rope_theta=10000.0, pad_token_id=0),
                   modernbert, "model.", BERT_SPECIALS, ("[CLS]", "[SEP]"), "cls"),
    "embeddinggemma": (BASE | dict(model_type="gemma3_text", num_hidden_layers=4, sliding_window=32, layer_types=SLIDE,
                                   use_bidirectional_attention=True, query_pre_attn_scalar=24, tie_word_embeddings=True,
                                   hidden_activation="gelu_pytorch_tanh", rope_parameters=plain(1e6)),
                       embedding_gemma, "", GEMMA_SPECIALS, ("<bos>", "<eos>"), "mean"),
}
QUERY_PROMPT = "to the king: "


def save_sentence(folder, d, pooling, dense, default_prompt):
    """The files that sentence-transformers puts beside a model, and its dense layers."""
    kinds, layers = [("Transformer", ""), ("Pooling", "1_Pooling")], []
    os.makedirs(folder + "/1_Pooling", exist_ok=True)
    json.dump({"word_embedding_dimension": d} | {f"pooling_mode_{mode}": mode.startswith(pooling) for mode in (
        "cls_token", "mean_tokens", "max_tokens", "lasttoken")}, open(folder + "/1_Pooling/config.json", "w"), indent=1)
    rng = np.random.default_rng(3)
    for i, (n_in, n_out) in enumerate(dense):
        path = f"{i + 2}_Dense"
        os.makedirs(f"{folder}/{path}", exist_ok=True)
        kinds.append(("Dense", path))
        layers.append((rng.standard_normal((n_out, n_in)) / math.sqrt(n_in)).astype(np.float32))
        json.dump(dict(in_features=n_in, out_features=n_out, bias=False,
                       activation_function="torch.nn.modules.linear.Identity"),
                  open(f"{folder}/{path}/config.json", "w"), indent=1)
        save_safetensors(f"{folder}/{path}/model.safetensors", {"linear.weight": ("F32", layers[-1])})
    kinds.append(("Normalize", f"{len(kinds)}_Normalize"))
    json.dump([dict(idx=i, name=str(i), path=path, type="sentence_transformers.models." + kind)
               for i, (kind, path) in enumerate(kinds)], open(folder + "/modules.json", "w"), indent=1)
    json.dump(dict(prompts=dict(query=QUERY_PROMPT, document=""), default_prompt_name=default_prompt,
                   similarity_fn_name="cosine"), open(folder + "/config_sentence_transformers.json", "w"), indent=1)
    return layers


def make_encoder(out, name):
    c, forward, prefix, specials, ends, pooling = ENCODERS[name]
    folder = f"{out}/{name}"
    w = Weights(zlib.crc32(name.encode()), prefix=prefix)
    os.makedirs(folder, exist_ok=True)
    encode = save_tokenizer(folder, specials, *ends)
    forward(w, c, encode(TEXTS[0]))
    save_model(folder, w, c)
    d = c.get("hidden_size", c.get("n_embd"))
    prompted = name == "bert-cls"
    dense = save_sentence(folder, d, pooling, [(d, 96), (96, d)] if name == "embeddinggemma" else [],
                          "query" if prompted else None)
    gold = {}
    for i, text in enumerate(TEXTS):
        ids = encode((QUERY_PROMPT if prompted else "") + text)
        h = forward(w, c, ids)
        v = h.mean(0) if pooling == "mean" else h[0]
        for layer in dense:
            v = layer.astype(np.float64) @ v
        gold |= {f"text{i}.ids": ids, f"text{i}.hidden": h, f"text{i}.vec": v / np.sqrt(v @ v)}
    save_golden(folder, gold, dict(name=name, arch=c["model_type"], made_by="tests/model/reference.py", texts=TEXTS))
    print(f"{name}: texts of {[len(gold[f'text{i}.ids']) for i in range(len(TEXTS))]} tokens")


def setup(name):
    model_type, changes, o = MODELS[name]
    c = {key: value for key, value in (BASE | changes).items() if value is not None or key in ("q_lora_rank", "clip_qkv")}
    c["model_type"] = model_type
    o = dict(o)
    o["layer_types"] = c.get("layer_types", DENSE_TYPES)
    forward = dict(c)
    forward.setdefault("rope_parameters", dict(rope_theta=c.get("rope_theta", 10000.0)))
    return c, forward, o


def prompts():
    rng = np.random.default_rng(7)
    return [rng.integers(3, V, n).astype(np.int32) for n in (7, 70, 300)]


def run_all(forward):
    """The goldens of three prompts, in the zoo's names."""
    gold = {}
    for i, ids in enumerate(prompts()):
        taps = {} if i == 0 else None
        logits = forward(ids, taps)
        gold[f"prompt{i}.ids"] = ids
        gold[f"prompt{i}.last_logits"] = logits[-1]
        if i == 0:
            gold["prompt0.logits"] = logits
            gold.update({f"prompt0.hidden.{key}": value for key, value in taps.items()})
        if i == 1:
            top = logits.max(-1, keepdims=True)
            lse = (top + np.log(np.exp(logits - top).sum(-1, keepdims=True)))[:, 0]
            gold["prompt1.token_nll"] = (lse - np.take_along_axis(logits, np.r_[ids[1:], 0][:, None], -1)[:, 0])[:-1]
        greedy, margins = [], []
        for _ in range((16, 8, 4)[i]):
            order = np.sort(logits[-1])
            greedy.append(int(logits[-1].argmax()))
            margins.append(order[-1] - order[-2])
            ids = np.append(ids, np.int32(greedy[-1]))
            logits = forward(ids, None)
        gold[f"prompt{i}.greedy_ids"] = np.array(greedy, np.int32)
        gold[f"prompt{i}.greedy_margin"] = np.array(margins)
    return gold


def save_golden(folder, gold, info):
    save_safetensors(folder + "/golden.safetensors", {
        name: ("I32", x) if x.dtype == np.int32 else ("F32", x.astype(np.float32)) for name, x in gold.items()})
    json.dump(info, open(folder + "/golden.json", "w"), indent=1)


# Tensors that the hub keeps in float32.
F32_NAMES = ("e_score_correction_bias", "A_log")


def save_model(folder, w, c):
    os.makedirs(folder, exist_ok=True)
    save_safetensors(folder + "/model.safetensors", {
        name: ("F32", x) if name.endswith(F32_NAMES) else ("BF16", to_bf16(x)) for name, x in w.tensors.items()})
    json.dump(c, open(folder + "/config.json", "w"), indent=1)


def make(out, name):
    c, forward_config, o = setup(name)
    w = Weights(zlib.crc32(name.encode()))
    decoder(w, forward_config, o, prompts()[0])  # draws them
    folder = f"{out}/{name}"
    save_model(folder, w, c | dict(bos_token_id=0, eos_token_id=1, pad_token_id=2))
    gold = run_all(lambda ids, taps: decoder(w, forward_config, o, ids, taps))
    save_golden(folder, gold, dict(name=name, arch=c["model_type"], made_by="tests/model/reference.py"))
    print(f"{name}: logits std {gold['prompt0.logits'].std():.2f}, {sum(x.size for x in w.tensors.values())} weights, "
          f"greedy {len(set(gold['prompt0.greedy_ids'].tolist()))} different")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for name in sys.argv[2:] or [*MODELS, *ENCODERS]:
        (make if name in MODELS else make_encoder)(sys.argv[1], name)


if __name__ == "__main__":
    main()
