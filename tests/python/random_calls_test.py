"""Random calls of all functions on torch tensors beside attention in double precision, on the CPU and, where there is one, a GPU.

A failure names its seed, which is run again alone by TESSERA_RANDOM_SEED=… TESSERA_RANDOM_SECONDS=0. More of them, of larger
problems: TESSERA_RANDOM_SECONDS=200, several processes with seeds of their own."""

import math
import os
import random
import re
import time
import unittest

import naive
import tessera

try:
    import torch
except ImportError:
    torch = None

FIRST_SEED = int(os.environ.get("TESSERA_RANDOM_SEED", "1"))
SECONDS = float(os.environ.get("TESSERA_RANDOM_SECONDS", "5"))  # on each device; 0: one call
MOST_WORK = {"cpu": 2e7, "cuda": 4e9}  # multiply-adds of a call
NOWHERE = (-1, 2**30)  # pages that no sequence has
FENCE = 7.0  # around results

HEAD_DIMS = (4, 8, 16, 32, 40, 64, 64, 65, 72, 80, 96, 100, 112, 120, 128, 128, 128, 160, 192, 256, 300, 320, 512, 576)
QUERIES = (1, 1, 1, 2, 3, 4, 7, 8, 16, 17, 33, 64, 100, 128, 129, 200, 257, 333, 512, 700)
KEYS = (1, 3, 16, 63, 64, 65, 100, 127, 128, 129, 200, 257, 300, 511, 512, 777, 1024, 1500, 2100, 4100, 9000)
PAGE_SIZES = (1, 3, 8, 16, 16, 16, 20, 32, 48, 64, 64, 128, 256)

# (score, visible, what the first does to scores s, whether key j is visible to query i by the second). m: the values of the
# texts' names; i, j and h broadcast to (heads, queries, keys).
MODIFIERS = (
    ("", "kv_idx <= q_idx + shift", None, lambda m, i, j: j <= i + m["shift"]),
    ("", "abs(q_idx + shift - kv_idx) <= w", None, lambda m, i, j: (i + m["shift"] - j).abs() <= m["w"]),
    ("", "doc[q_idx] == doc[kv_idx]", None, lambda m, i, j: m["doc"][i] == m["doc"][j]),
    ("", "kv_idx <= q_idx && (q_idx - kv_idx < w || kv_idx < 4)", None, lambda m, i, j: (j <= i) & ((i - j < m["w"]) | (j < 4))),
    ("", "q_idx / w == kv_idx / w && kv_idx <= q_idx", None, lambda m, i, j: (i // m["w"] == j // m["w"]) & (j <= i)),
    ("", "(q_idx - kv_idx) % 3 == 0", None, lambda m, i, j: (i - j) % 3 == 0),
    ("cap * tanh(score / cap)", "", lambda m, s, i, j, h: m["cap"] * torch.tanh(s / m["cap"]), None),
    ("score - slope[h] * float(abs(q_idx + shift - kv_idx))", "",
     lambda m, s, i, j, h: s - m["slope"][h] * (i + m["shift"] - j).abs(), None),
    ("score + slope[h] * float(kv_idx - q_idx)", "kv_idx <= q_idx + shift",
     lambda m, s, i, j, h: s + m["slope"][h] * (j - i), lambda m, i, j: j <= i + m["shift"]),
    ("score * 0.5 + of_key[kv_idx]", "of_query[q_idx] || kv_idx < 3",
     lambda m, s, i, j, h: s * 0.5 + m["of_key"][j], lambda m, i, j: m["of_query"][i] | (j < 3)),
    ("h % 2 == 0 ? score : score * 2.0", "", lambda m, s, i, j, h: torch.where(h % 2 == 0, s, s * 2), None),
    ("let d = max(q_idx + shift - kv_idx, 0); score + bias[h, min(d, 31)]", "",
     lambda m, s, i, j, h: s + m["bias"][h, (i + m["shift"] - j).clamp(0, 31)], None),
)  # fmt: skip


def as_double(x):
    return x.float().double() if x.dtype == torch.float8_e4m3fn else x.double()


def bits(x):
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32)


class Draw:
    """Numbers and tensors of a seed."""

    def __init__(self, seed, device):
        self.random = random.Random(seed)
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.device = device

    def chance(self, p):
        return self.random.random() < p

    def of(self, *choices):
        return self.random.choice(choices)

    def number(self, low, high):
        return self.random.randint(low, high)

    def length(self, most):
        """Of a sequence in a ragged batch: lengths a hundredfold apart, and none."""
        return self.of(0, most, self.number(0, most), self.number(1, max(1, most // 50)))

    def order(self, n):
        return self.random.sample(range(n), n)

    def normal(self, shape, dtype=None):
        return torch.randn(shape, generator=self.generator, device=self.device).to(dtype or torch.float32)

    def poisoned(self, shape, dtype):
        if dtype == torch.float8_e4m3fn:
            return torch.full(shape, 0x7F, dtype=torch.uint8, device=self.device).view(dtype)
        return torch.full(shape, True if dtype == torch.bool else math.nan, dtype=dtype, device=self.device)

    def laid_out(self, x):
        """The same numbers with other strides: dimensions exchanged, rows apart, an odd beginning, or as they are."""
        way = self.number(0, 3)
        if way == 1 and x.dim() > 2:
            dims = [*self.order(x.dim() - 1), x.dim() - 1]
            return x.permute(dims).contiguous().permute([dims.index(n) for n in range(x.dim())])
        if way == 2:
            wide = self.poisoned([n + self.of(0, 0, 1, 2, 8) for n in x.shape], x.dtype)
            place = tuple(slice(first, first + n) for n, first in ((n, self.number(0, w - n)) for n, w in zip(x.shape, wide.shape)))
            put(wide, place, x)
            return wide[place]
        if way == 3 and x.numel() > 0:
            begin = self.of(1, 2, 4, 8)
            flat = self.poisoned((x.numel() + begin,), x.dtype)
            put(flat, slice(begin, None), x.reshape(-1))
            return flat[begin:].view(x.shape)
        return x.contiguous()


def put(to, place, x):
    """to[place] = x, of 8 bits, too."""
    if x.dtype == torch.float8_e4m3fn:
        to, x = to.view(torch.uint8), x.view(torch.uint8)
    to[place] = x


class Call:
    """A random call, and what it should give. Structure (types, terms, function) changes with every fourth seed only: kernels
    that are compiled when they are first used serve several calls."""

    def __init__(self, seed, device):
        self.device = device
        self.draw_structure(Draw(seed // 4, device))
        d = self.draw = Draw(seed, device)
        self.draw_lengths(d)
        self.draw_tensors(d)
        self.kwargs = self.draw_terms(d)
        getattr(self, "make_" + self.function)(d)

    def __str__(self):
        return ", ".join(f"{k}={v}" for k, v in vars(self).items() if isinstance(v, (int, float, str, tuple, list, torch.dtype)))

    def draw_structure(self, d):
        self.function = d.of("sdpa", "sdpa", "flash_attn", "varlen", "varlen", "kvcache", "kvcache")
        self.is_paged = self.function in ("varlen", "kvcache") and d.chance(0.6)
        self.dtype = d.of(torch.bfloat16, torch.bfloat16, torch.float16, torch.float32)
        self.is_narrow = self.function != "sdpa" and d.chance(0.2)
        self.head_dim = d.of(*HEAD_DIMS)
        self.head_dim_v = self.head_dim if d.chance(0.85) else d.of(*HEAD_DIMS)
        self.causal, self.top_left = d.chance(0.4), self.function == "sdpa" and d.chance(0.5)
        self.left, self.right = d.of(-1, -1, -1, 0, 3, 20, 130, 600), d.of(-1, -1, -1, 0, 2, 64)
        self.scale, self.softcap = d.of(None, None, 0.3, 0.05), d.of(0.0, 0.0, 0.0, 5.0, 50.0)
        self.has_alibi, self.has_sinks, self.invariant, self.with_lse = d.chance(0.2), d.chance(0.2), d.chance(0.15), d.chance(0.6)
        self.modifier = d.number(0, len(MODIFIERS) - 1) if d.chance(0.25) else -1
        self.mask = d.of("none", "none", "boolean", "additive") if self.function == "sdpa" else "none"

    def draw_lengths(self, d):
        b, kv_heads, group, q, kv = d.of(1, 1, 2, 3, 5, 17), d.of(1, 1, 2, 3, 4, 8), d.of(1, 1, 2, 4, 5, 8, 16), d.of(*QUERIES), d.of(*KEYS)
        while b * kv_heads * group * q * kv * (self.head_dim + self.head_dim_v) > MOST_WORK[self.device]:
            way = d.number(0, 3)
            b, kv_heads = (max(1, b // 2), kv_heads) if way == 0 else (b, max(1, kv_heads // 2)) if way == 1 else (b, kv_heads)
            q, kv = (max(1, q * 2 // 3), kv) if way == 2 else (q, max(1, kv * 2 // 3)) if way == 3 else (q, kv)
        self.batch, self.kv_heads, self.group, self.heads = b, kv_heads, group, kv_heads * group
        is_ragged = self.function in ("varlen", "kvcache") and d.chance(0.8)
        self.lens_q = [d.length(q) if is_ragged and self.function == "varlen" else q for _ in range(b)]
        self.lens_kv = [d.length(kv) if is_ragged else kv for _ in range(b)]
        self.num_new = d.number(1, 3) if self.function == "kvcache" and not self.is_narrow and d.chance(0.3) else 0
        self.lens_kv = [max(n, self.num_new) for n in self.lens_kv]

    def draw_tensors(self, d):
        dtype_kv = torch.float8_e4m3fn if self.is_narrow else self.dtype
        self.q = [d.normal((n, self.heads, self.head_dim), self.dtype) for n in self.lens_q]
        self.k = [d.normal((n, self.kv_heads, self.head_dim), dtype_kv) for n in self.lens_kv]
        self.v = [d.normal((n, self.kv_heads, self.head_dim_v), dtype_kv) for n in self.lens_kv]

    def draw_terms(self, d):
        """The keyword arguments that all functions have; the tensors of the terms are kept for expected()."""
        kwargs = {"softcap": self.softcap or (None if self.function == "sdpa" else 0.0), "window_size": (self.left, self.right),
                  "batch_invariant": self.invariant}  # fmt: skip
        if self.has_alibi:
            kwargs["alibi_slopes"] = d.normal(d.of((self.heads,), (self.batch, self.heads))).abs() * 0.1
        if self.has_sinks:
            kwargs["sinks"] = d.normal((self.heads,))
        if self.is_narrow and not self.is_paged and d.chance(0.7):
            shape = d.of((1,), (self.kv_heads,), *(() if self.function == "varlen" else ((self.batch, self.kv_heads),)))
            kwargs["k_descale"], kwargs["v_descale"] = (d.normal(shape).abs() * 0.5 + 0.3 for _ in range(2))
        if self.modifier >= 0:
            score, visible = MODIFIERS[self.modifier][:2]
            most = max(1, *self.lens_q, *self.lens_kv)
            names = {"w": d.of(3, 50, 200), "cap": d.of(5.0, 30.0), "slope": d.normal((self.heads,)) * 0.05,
                     "doc": (torch.arange(most, device=self.device) // d.of(7, 100, 400)).int(), "of_key": d.normal((most,), self.dtype),
                     "of_query": d.normal((most,)) > 0, "bias": d.normal((self.heads, 32), self.dtype)}  # fmt: skip
            used = re.findall(r"\w+", f"{score} {visible}")
            names = {name: value for name, value in names.items() if name in used}
            self.names = {k: as_double(v) if torch.is_tensor(v) and v.is_floating_point() else v for k, v in names.items()}
            kwargs["modifier"] = tessera.Modifier(score, visible, **names)
        return kwargs

    # ---- Functions: self.run() calls, self.parts() takes o and lse apart, by sequences

    def make_sdpa(self, d):
        arrays = [d.laid_out(torch.stack(x).transpose(1, 2)) for x in (self.q, self.k, self.v)]
        shape = (self.batch, self.heads, self.lens_q[0], self.lens_kv[0])
        if self.mask != "none":
            of_mask = tuple(d.of(1, n) if d.chance(0.4) else n for n in shape)[d.of(0, 0, 2) :]
            given = d.normal(of_mask) > -0.5
            if self.mask == "additive":
                given = torch.where(given, d.normal(of_mask), -math.inf).to(d.of(torch.float32, self.dtype))
            self.mask_values = given.expand(shape)
            self.kwargs["attn_mask"] = d.laid_out(given)
        self.fence = torch.full((*shape[:2], shape[2] + 2, self.head_dim_v + 3), FENCE, dtype=self.dtype, device=self.device)
        if d.chance(0.4):
            self.kwargs["out"] = self.fence[:, :, 1:-1, 1:-2]
        self.run = lambda: tessera.sdpa(*arrays, is_causal=self.causal, scale=self.scale, enable_gqa=True, return_lse=self.with_lse,
                                        causal_alignment="top_left" if self.top_left else "bottom_right", **self.kwargs)  # fmt: skip
        self.parts = lambda o, lse: ([x.transpose(0, 1) for x in o], lse)

    def make_flash_attn(self, d):
        arrays = [d.laid_out(torch.stack(x)) for x in (self.q, self.k, self.v)]
        self.run = lambda: tessera.flash_attn_func(*arrays, softmax_scale=self.scale, causal=self.causal, return_attn_probs=self.with_lse,
                                                   **self.kwargs)  # fmt: skip
        self.parts = lambda o, lse: (o, lse)

    def make_varlen(self, d):
        ends = [torch.tensor([0, *torch.tensor(lens).cumsum(0)], dtype=torch.int32, device=self.device) for lens in (self.lens_q, self.lens_kv)]
        keys, values = self.pages(d, self.lens_kv) if self.is_paged else (d.laid_out(torch.cat(self.k)), d.laid_out(torch.cat(self.v)))
        arrays = [d.laid_out(torch.cat(self.q)), keys, values]
        most = [max(lens) + d.of(0, 0, 3) for lens in (self.lens_q, self.lens_kv)]
        self.moving = [] if self.is_paged else ends
        self.run = lambda: tessera.flash_attn_varlen_func(*arrays, *ends, *most, softmax_scale=self.scale, causal=self.causal,
                                                          return_attn_probs=self.with_lse, **self.kwargs)  # fmt: skip
        self.parts = lambda o, lse: (o.split(self.lens_q), None if lse is None else lse.split(self.lens_q, 1))

    def make_kvcache(self, d):
        old = [n - self.num_new for n in self.lens_kv]
        if self.is_paged:
            keys, values = self.pages(d, old)
        else:
            rows, outer = max(1, *self.lens_kv) + d.number(0, 9), self.batch + d.number(0, 3)
            index = d.order(outer)[: self.batch] if outer > self.batch else range(self.batch)
            keys, values = (d.poisoned((outer, rows, self.kv_heads, n), self.k[0].dtype) for n in (self.head_dim, self.head_dim_v))
            for b, place in enumerate(index):
                put(keys, (place, slice(old[b])), self.k[b][: old[b]])
                put(values, (place, slice(old[b])), self.v[b][: old[b]])
            if outer > self.batch:
                self.kwargs["cache_batch_idx"] = torch.tensor(index, dtype=torch.int32, device=self.device)
                self.spread_descales(index, outer)
        if self.num_new:
            self.kwargs["k"], self.kwargs["v"] = (d.laid_out(torch.stack([x[n:] for x, n in zip(xs, old)])) for xs in (self.k, self.v))
        q, lens = d.laid_out(torch.stack(self.q)), torch.tensor(old, dtype=torch.int32, device=self.device)
        self.moving = [] if self.num_new else [lens]
        self.num_splits = 0 if self.invariant else d.of(0, 0, 0, 1, 3, 7)
        self.run = lambda: tessera.flash_attn_with_kvcache(q, keys, values, cache_seqlens=lens, softmax_scale=self.scale, causal=self.causal,
                                                           num_splits=self.num_splits, return_softmax_lse=self.with_lse, **self.kwargs)  # fmt: skip
        self.parts = lambda o, lse: (o, lse)

    def spread_descales(self, index, outer):
        """Those of sequences as those of the caches that these have."""
        for name in ("k_descale", "v_descale"):
            if self.kwargs.get(name) is not None and self.kwargs[name].dim() == 2:
                of_caches = torch.ones(outer, self.kv_heads, device=self.device)
                of_caches[list(index)] = self.kwargs[name]
                setattr(self, name, self.kwargs[name])
                self.kwargs[name] = of_caches

    def pages(self, d, filled):
        """Pages in any order, of which sequences fill the first `filled` tokens, and what nobody may read is NaN."""
        size = self.page_size = d.of(*PAGE_SIZES)
        counts = [-(-n // size) for n in self.lens_kv]
        places = d.order(sum(counts) + d.number(1, 3))
        table = torch.full((self.batch, max(1, *counts) + d.number(0, 2)), d.of(*NOWHERE), dtype=torch.int32)
        pages = [d.poisoned((len(places), size, self.kv_heads, n), self.k[0].dtype) for n in (self.head_dim, self.head_dim_v)]
        for b, count in enumerate(counts):
            table[b, :count] = torch.tensor(places[:count])
            for n, place in enumerate(places[:count]):
                here = slice(n * size, min(filled[b], (n + 1) * size))
                if here.start < here.stop:
                    for to, x in zip(pages, (self.k[b], self.v[b])):
                        put(to, (place, slice(here.stop - here.start)), x[here])
            del places[:count]
        self.kwargs["block_table"] = table.to(self.device)
        if d.chance(0.3):  # heads before tokens
            pages = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in pages]
        return pages

    # ---- Running

    def result(self):
        result = self.run()
        return result[:2] if self.with_lse else (result[0] if isinstance(result, tuple) else result, None)

    def recorded(self):
        """From a graph, whose lengths are others while it is recorded and first run."""
        meant = [x.clone() for x in self.moving]
        for x in self.moving:
            x.copy_(x // 2 if self.function == "kvcache" else torch.cat((x[:1], (x[1:] - x[:-1]).flip(0).cumsum(0).int())))
        self.result()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = self.result()
        graph.replay()
        for x, meaning in zip(self.moving, meant):
            x.copy_(meaning)
        graph.replay()
        return result

    def elsewhere(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self.result()
        stream.synchronize()
        return result

    def twice(self):
        first = [None if x is None else x.clone() for x in self.result()]
        again = self.result()
        if not torch.equal(bits(first[0]), bits(again[0])):
            raise AssertionError("the same call has other bits")
        return again

    def checked(self):
        self.way = self.draw.of("result", "twice", *(("recorded", "recorded", "elsewhere") if self.device == "cuda" else ()))
        self.moving = getattr(self, "moving", [])
        o, lse = getattr(self, self.way)()
        if "out" in self.kwargs:
            o = o.clone()
            self.kwargs["out"].fill_(FENCE)
            if not (self.fence == FENCE).all():
                raise AssertionError("something beside out was written")
        of_sequences, of_lse = self.parts(o, lse)
        for b in range(self.batch):
            if self.lens_q[b] > 0:
                self.compare(b, of_sequences[b].transpose(0, 1).double(), None if of_lse is None else of_lse[b].double())

    # ---- What it should be

    def scores(self, b):
        """(heads, queries, keys), -inf where a key is hidden, and what their fp32 errors are in proportion to."""
        q, k = (as_double(x[b]).transpose(0, 1) for x in (self.q, self.k))
        k = (k * self.descale("k_descale", b)).repeat_interleave(self.group, 0)
        scale = self.head_dim**-0.5 if self.scale is None else float(torch.tensor(self.scale))
        s, size = (q @ k.transpose(1, 2)) * scale, (q.abs() @ k.abs().transpose(1, 2)) * scale
        i, j = torch.arange(s.shape[1], device=self.device)[:, None], torch.arange(s.shape[2], device=self.device)
        h, shift = torch.arange(self.heads, device=self.device)[:, None, None], 0 if self.top_left else s.shape[2] - s.shape[1]
        s = self.softcap * torch.tanh(s / self.softcap) if self.softcap else s
        if self.has_alibi:
            bias = self.kwargs["alibi_slopes"].expand(self.batch, -1)[b].double()[:, None, None] * (i + shift - j).abs()
            s, size = s - bias, size + bias
        left, right = (None if n < 0 else n for n in (self.left, 0 if self.causal else self.right))
        band = naive.band(s.shape[1], s.shape[2], left, right, self.top_left)
        visible = torch.as_tensor(band, device=self.device).expand(s.shape)
        if self.mask == "boolean":
            visible = visible & self.mask_values[b]
        if self.mask == "additive":
            added = self.mask_values[b].double()
            s, size, visible = s + added, size + added.abs().nan_to_num(posinf=0), visible & (added > -math.inf)
        if self.modifier >= 0 and s.numel() > 0:
            _, _, of_score, of_place = MODIFIERS[self.modifier]
            names = {**self.names, "shift": shift}
            if of_score is not None:
                s = of_score(names, torch.where(visible, s, 0.0), i, j, h)
                size = 2 * size + s.abs() + (130 * self.names["slope"].abs().max() if "slope" in self.names else 1)
            if of_place is not None:
                visible = visible & of_place(names, i, j)
        return torch.where(visible, s, -math.inf), torch.where(visible, size, 0.0)

    def descale(self, name, b):
        given = getattr(self, name, self.kwargs.get(name))
        if given is None:
            return 1.0
        return (given[b] if given.dim() == 2 else given).expand(self.kv_heads).double()[:, None, None]

    def compare(self, b, o, lse):
        s, size = self.scores(b)
        v = (as_double(self.v[b]).transpose(0, 1) * self.descale("v_descale", b)).repeat_interleave(self.group, 0)
        sinks = self.kwargs["sinks"].double()[:, None] if self.has_sinks else torch.full((self.heads, 1), -math.inf, device=self.device)
        top = torch.cat((s, sinks[..., None].expand(-1, s.shape[1], 1)), 2).amax(2).nan_to_num(neginf=0)
        p = torch.exp(s - top[..., None])
        total, is_seen = p.sum(2) + torch.exp(sinks - top), (s > -math.inf).any(2)
        p = torch.where(is_seen[..., None], p / total[..., None], 0.0)
        # Of keys that weigh anything.
        error = torch.where(s >= s.amax(2, keepdim=True) - 30, size, 0.0).amax(2) if s.shape[2] > 0 else torch.zeros_like(total)
        rounding = {torch.float32: 0.0, torch.float16: 3 * 2.0**-11, torch.bfloat16: 6 * 2.0**-8}[self.dtype]
        bound = (p @ v.abs()) * (rounding + 2 * (error * 6e-7 + 4e-6)[..., None] + 4e-6) + 1e-5
        self.expect("o", b, o, p @ v, bound)
        if lse is not None:
            expected = torch.where(is_seen, torch.log(total) + top, -math.inf)
            self.expect("lse", b, lse, expected, error * 2e-6 + 2e-5 + 1e-6 * expected.nan_to_num(neginf=0).abs())

    def expect(self, what, b, got, expected, bound):
        wrong = ~(((got - expected).abs() <= bound) | (got == expected))
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            place = f"{what} of sequence {b}, {at}"
            raise AssertionError(f"{place} is {got[at]} instead of {expected[at]} (+- {bound[at]:.2g}); {int(wrong.sum())} are wrong")


@unittest.skipIf(torch is None, "torch is not installed")
class RandomCallsTest(unittest.TestCase):
    def setUp(self):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # of which small problems take more time than they save
        self.addCleanup(torch.set_num_threads, threads)

    def check(self, device):
        begin, seed = time.monotonic(), FIRST_SEED
        while True:
            call = None
            try:
                with torch.no_grad():
                    call = Call(seed, device)
                    call.checked()
            except Exception as error:
                raise AssertionError(f"seed {seed} on {device}: {call}") from error
            seed += 1
            if time.monotonic() - begin >= SECONDS:
                break
        print(f"{seed - FIRST_SEED} random calls on {device}")

    def test_on_the_cpu(self):
        self.check("cpu")

    @unittest.skipUnless(torch is not None and torch.cuda.is_available(), "there is no GPU")
    def test_on_a_gpu(self):
        self.check("cuda")


if __name__ == "__main__":
    unittest.main()
