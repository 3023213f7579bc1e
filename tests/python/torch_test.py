"""Torch tensors beside torch's own attention: on the CPU and, where there is one, a GPU."""

import unittest

import naive
import numpy as np
import tessera
from arrays import OnlyDlpack

try:
    import torch
    import torch.nn.functional as F
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
except ImportError:
    torch = None

NEEDS_TORCH = unittest.skipIf(torch is None, "torch is not installed")
# Of fp32 beside torch's fp32: each errs by tens of roundings of values about 1.
F32_BOUND = 1e-5


def devices():
    return ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def on_each_device(test):
    def run(self):
        for device in devices():
            with self.subTest(device=device), torch.no_grad():
                torch.manual_seed(0)
                test(self, device)

    return run


def close(got, expected, bound=F32_BOUND):
    torch.testing.assert_close(got, expected, rtol=0, atol=bound)


@NEEDS_TORCH
class Eager(unittest.TestCase):
    @on_each_device
    def test_sdpa_is_torchs(self, device):
        q, k, v = (torch.randn(2, h, s, 16, device=device) for h, s in ((4, 5), (2, 9), (2, 9)))
        visible = torch.rand(2, 1, 5, 9, device=device) > 0.3
        for options in (
            dict(),
            dict(is_causal=True),
            dict(scale=0.3),
            dict(attn_mask=visible),
            dict(attn_mask=torch.randn(4, 5, 9, device=device)),
            dict(attn_mask=visible.expand(2, 4, 5, 9)),
        ):
            expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
            close(tessera.sdpa(q, k, v, enable_gqa=True, **options), expected)

    @on_each_device
    def test_16_bit_types(self, device):
        for dtype in (torch.bfloat16, torch.float16):
            q, k, v = (torch.randn(1, 2, s, 64, device=device).to(dtype) for s in (33, 40, 40))
            exact = naive.attention(*(x.double().cpu().numpy() for x in (q, k, v)))[0]
            got = tessera.sdpa(q, k, v)
            self.assertEqual(got.dtype, dtype)
            # Values below 4: their roundings as weights and as results.
            error = np.abs(got.double().cpu().numpy() - exact).max()
            self.assertLess(error, 4 * 2 * torch.finfo(dtype).eps)

    @on_each_device
    def test_strides_are_used_as_they_are(self, device):
        qkv = torch.randn(2, 7, 3, 4, 16, device=device)
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
        close(tessera.sdpa(q, k, v), F.scaled_dot_product_attention(q, k, v))
        by_columns = q.transpose(-1, -2).contiguous().transpose(-1, -2)
        close(tessera.sdpa(by_columns, k, v), F.scaled_dot_product_attention(q, k, v))

    @on_each_device
    def test_a_cache_is_appended_to(self, device):
        q, k, v = (torch.randn(2, 1, h, 16, device=device) for h in (4, 2, 2))
        caches = torch.randn(2, 2, 12, 2, 16, device=device)
        lengths = torch.tensor([7, 11], dtype=torch.int32, device=device)
        k_cache, v_cache = caches.clone()
        got, lse = tessera.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True, return_softmax_lse=True)
        self.assertEqual(tuple(lse.shape), (2, 4, 1))
        for b, n in enumerate((7, 11)):
            torch.testing.assert_close(k_cache[b, n], k[b, 0])
            keys, values = (x[b : b + 1, : n + 1].transpose(1, 2) for x in (k_cache, v_cache))
            expected = F.scaled_dot_product_attention(q[b : b + 1].transpose(1, 2), keys, values, enable_gqa=True)
            close(got[b : b + 1].transpose(1, 2), expected)

    @on_each_device
    def test_pages_with_plan_and_run(self, device):
        table = torch.tensor([[5, 1, 0], [2, 4, 3]], dtype=torch.int32, device=device)
        lengths = torch.tensor([7, 11], dtype=torch.int32, device=device)
        k_pages, v_pages = torch.randn(6, 16, 2, 64, device=device), torch.randn(6, 16, 2, 64, device=device)
        q = torch.randn(2, 1, 4, 64, device=device)
        plan = tessera.plan(tessera.flash_attn_with_kvcache, q, k_pages, v_pages, cache_seqlens=lengths, block_table=table)
        out = torch.empty_like(q)
        for _ in range(2):
            q = torch.randn_like(q)
            plan.run(q, k_pages, v_pages, cache_seqlens=lengths, block_table=table, out=out)
            dense_k, dense_v = (x[table.long()].flatten(1, 2) for x in (k_pages, v_pages))
            visible = torch.arange(48, device=device)[None, None, None] < lengths[:, None, None, None]
            expected = F.scaled_dot_product_attention(q.transpose(1, 2), dense_k.transpose(1, 2), dense_v.transpose(1, 2), visible, enable_gqa=True)
            close(out.transpose(1, 2), expected)

    @on_each_device
    def test_varlen_is_each_sequence_by_itself(self, device):
        cu = torch.tensor([0, 3, 3, 8], dtype=torch.int32, device=device)
        q, k, v = (torch.randn(8, 2, 16, device=device) for _ in range(3))
        o = tessera.flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, causal=True)
        for rows in (slice(0, 3), slice(3, 8)):
            one = tuple(x[None, rows].transpose(1, 2) for x in (q, k, v))
            close(o[None, rows].transpose(1, 2), F.scaled_dot_product_attention(*one, is_causal=True))

    @on_each_device
    def test_halves_of_the_keys_make_the_whole(self, device):
        q, k, v = (torch.randn(2, h, s, 64, device=device) for h, s in ((4, 5), (2, 90), (2, 90)))
        for dtype, bound in ((torch.float32, F32_BOUND), (torch.bfloat16, 4 * 2 * 2**-7)):
            parts = [[x[:, :, s].to(dtype) for x in (k, v)] for s in (slice(0, 40), slice(40, 90))]
            a, b = (tessera.sdpa(q.to(dtype), *part, enable_gqa=True, return_lse=True) for part in parts)
            whole = [torch.cat(x, 2).double() for x in zip(*parts)]
            expected = F.scaled_dot_product_attention(q.to(dtype).double(), *whole, enable_gqa=True)
            out = torch.empty_like(a[0])
            o, lse = tessera.merge_states(*a, *b, "batch_heads_seq", out=out, return_lse=True)
            self.assertIs(o, out)
            close(o.double(), expected, bound)
            close(lse, torch.logaddexp(a[1], b[1]))

    @on_each_device
    def test_caches_of_8_bits(self, device):
        q = torch.randn(2, 1, 4, 64, device=device)
        cache = torch.randn(2, 2, 12, 2, 64, device=device).to(torch.float8_e4m3fn)
        scales = torch.rand(2, 2, 2, device=device) + 0.5  # of k and v, (sequences, kv_heads)
        lengths = torch.tensor([7, 11], dtype=torch.int32, device=device)
        visible = torch.arange(12, device=device)[None, None, None] < lengths[:, None, None, None]
        for k_descale, v_descale in ((None, None), (scales[0], scales[1]), (scales[0, 0], scales[1, 0]), (scales[0, 0, :1], scales[1, 0, :1])):
            k, v = cache.float() if k_descale is None else (x.float() * s.reshape(-1, 1, s.shape[-1], 1) for x, s in zip(cache, (k_descale, v_descale)))
            expected = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), visible, enable_gqa=True)

            def run(q):
                return tessera.flash_attn_with_kvcache(q, *cache, cache_seqlens=lengths, k_descale=k_descale, v_descale=v_descale)

            close(run(q).transpose(1, 2), expected)
            close(torch.compile(run, fullgraph=True, backend="aot_eager")(q), run(q), 0)
        # Of one sequence, whose strides lead nowhere.
        results = [
            tessera.flash_attn_with_kvcache(q[:1], *cache[:, :1], cache_seqlens=lengths[:1], k_descale=scales[0, 0], v_descale=of_v)
            for of_v in (scales[1, 0], scales[1, :1], scales[1, :1].t().contiguous().t())
        ]
        for result in results[1:]:
            close(result, results[0], 0)

    @on_each_device
    def test_caches_of_8_bits_by_dlpack(self, device):
        q, cache = torch.randn(2, 1, 4, 64, device=device), torch.randn(2, 12, 2, 64, device=device).to(torch.float8_e4m3fn)
        out = torch.empty_like(q)
        tessera.flash_attn_func(q, OnlyDlpack(cache), OnlyDlpack(cache), out=out)
        close(out, tessera.flash_attn_func(q, cache, cache), 0)

    @on_each_device
    def test_queries_of_8_bits(self, device):
        q, k, v = (torch.randn(2, n, h, 64, device=device).to(torch.float8_e4m3fn) for n, h in ((5, 4), (9, 2), (9, 2)))
        scales = torch.rand(3, 2, 2, device=device) + 0.5  # of q, k and v, (sequences, kv_heads)
        cu_q, cu_k = (torch.tensor([0, n, 2 * n], dtype=torch.int32, device=device) for n in (5, 9))

        def exact(x, scale):
            scale = scale.reshape(-1, 1, scale.shape[-1], 1)
            return (x.float() * (scale if scale.shape[2] == 1 else scale.repeat_interleave(x.shape[2] // 2, 2))).transpose(1, 2)

        for of_q, of_kv in ((scales, scales), (scales, scales[:, 0]), (scales[:, 0], scales[:, 0, :1]), (scales[:, 0, :1], scales)):
            descales = dict(q_descale=of_q[0], k_descale=of_kv[1], v_descale=of_kv[2])
            wide = [exact(x, s) for x, s in zip((q, k, v), descales.values())]
            expected = F.scaled_dot_product_attention(*wide, enable_gqa=True).transpose(1, 2)
            o = tessera.flash_attn_func(q, k, v, **descales)
            self.assertEqual(o.dtype, torch.bfloat16)
            close(o.float(), expected, 2.0**-6)
            out = torch.empty(q.shape, device=device)
            close(tessera.flash_attn_func(q, k, v, out=out, **descales), expected)
            close(torch.compile(lambda q: tessera.flash_attn_func(q, k, v, **descales), fullgraph=True, backend="aot_eager")(q), o, 0)
            close(tessera.flash_attn_with_kvcache(q, k, v, **descales).float(), expected, 2.0**-6)
            if of_kv[1].dim() == 1:
                rows = (x.flatten(0, 1) for x in (q, k, v))
                ragged = tessera.flash_attn_varlen_func(*rows, cu_q, cu_k, 5, 9, **descales)
                close(ragged.float(), expected.flatten(0, 1), 2.0**-6)
        plain = F.scaled_dot_product_attention(*(x.float().transpose(1, 2) for x in (q, k, v)), enable_gqa=True)
        close(tessera.sdpa(*(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True).float(), plain, 2.0**-6)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "k.dtype is f32"):
            tessera.flash_attn_func(q, k.float(), v.float())
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "q_scales is set although q is f32"):
            tessera.flash_attn_func(q.float(), k, v, out=out, q_descale=scales[0])
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "q_descale has shape"):
            tessera.flash_attn_func(q, k, v, q_descale=scales[0, :, :1])

    @on_each_device
    def test_varlen_takes_modifiers(self, device):
        cu = torch.tensor([0, 3, 8], dtype=torch.int32, device=device)
        q, k, v = (torch.randn(8, 2, 16, device=device) for _ in range(3))
        modified = tessera.flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, modifier=tessera.Modifier(visible="kv_idx <= q_idx"))
        close(modified, tessera.flash_attn_varlen_func(q, k, v, cu, cu, 5, 5, causal=True))

    @on_each_device
    def test_pages_of_8_bits_are_appended_to(self, device):
        # Powers of two as scales and values of 4 bits: what is stored is exact, so that the rest is fp32's rounding.
        table = torch.tensor([[5, 1, 0], [2, 4, 3]], dtype=torch.int32, device=device)
        lengths = torch.tensor([15, 30], dtype=torch.int32, device=device)
        exact = torch.randint(-8, 9, (2, 6, 16, 2, 64), device=device).float() / 4
        scales = 2.0 ** torch.randint(-2, 3, (2, 6, 2), device=device)  # of k and v, (pages, kv_heads)
        q = torch.randn(2, 1, 4, 64, device=device)
        new = torch.randint(-8, 9, (2, 2, 3, 2, 64), device=device).float() / 4
        for descales in (scales, scales[:, 0], scales[:, 0, :1]):
            of_pages = descales.reshape(2, -1, descales.shape[-1])[:, :, None, :, None]
            caches = (exact / of_pages).to(torch.float8_e4m3fn)
            dense = (caches.float() * of_pages).clone()
            for b, n in enumerate((15, 30)):
                for t in range(3):
                    dense[:, table[b, (n + t) // 16], (n + t) % 16] = new[:, b, t]
            got = tessera.flash_attn_with_kvcache(q, *caches, *new, cache_seqlens=lengths, block_table=table, causal=True,
                                                  k_descale=descales[0], v_descale=descales[1])  # fmt: skip
            torch.testing.assert_close(caches.float() * of_pages, dense, rtol=0, atol=0)
            k, v = (x[table.long()].flatten(1, 2).transpose(1, 2) for x in dense)
            visible = torch.arange(48, device=device)[None, None, None] < (lengths + 3)[:, None, None, None]
            close(got.transpose(1, 2), F.scaled_dot_product_attention(q.transpose(1, 2), k, v, visible[:, :, :1], enable_gqa=True))

    @on_each_device
    def test_modifiers(self, device):
        q, k, v = (torch.randn(2, h, 40, 64, device=device) for h in (4, 2, 2))
        documents = torch.arange(40, device=device, dtype=torch.int32) // 13
        visible = (documents[:, None] == documents[None]) & torch.ones(40, 40, dtype=torch.bool, device=device).tril()
        expected = F.scaled_dot_product_attention(q, k, v, visible, enable_gqa=True, scale=0.25)
        modifier = tessera.Modifier("gain * score", "doc[q_idx] == doc[kv_idx] && kv_idx <= q_idx", doc=documents, gain=2.0)

        def run(q):
            return tessera.sdpa(q, k, v, enable_gqa=True, modifier=modifier)

        def of_its_own(q, documents):
            made = tessera.Modifier("gain * score", "doc[q_idx] == doc[kv_idx] && kv_idx <= q_idx", doc=documents, gain=2.0)
            return tessera.sdpa(q, k, v, enable_gqa=True, modifier=made)

        try:
            close(run(q), expected)
        except tessera.UnsupportedError as error:
            # A GPU's backends take them or say so.
            self.assertEqual(device, "cuda")
            self.assertIn("it has no kernels for scores.modifier", str(error))
            return
        close(torch.compile(run, fullgraph=True, backend="aot_eager")(q), expected)
        close(torch.compile(of_its_own, fullgraph=True, backend="aot_eager")(q, documents), expected)
        if device == "cuda":
            with self.assertRaisesRegex(tessera.InvalidArgumentError, "modifier is on the CPU"):
                tessera.sdpa(q, k, v, enable_gqa=True, modifier=tessera.Modifier(visible="d[kv_idx] == 0", d=documents.cpu()))

    def test_gradients_are_refused(self):
        q = torch.randn(1, 1, 2, 8, requires_grad=True)
        with self.assertRaisesRegex(tessera.UnsupportedError, "no_grad"):
            tessera.sdpa(q, q, q)
        with torch.inference_mode():
            tessera.sdpa(q, q, q)

    def test_gradients_of_any_argument_are_refused(self):
        q, one = torch.randn(1, 1, 2, 8), torch.nn.Parameter(torch.ones(1))
        with torch.no_grad():  # so that the description is known
            tessera.sdpa(q, q, q, sinks=one)
            tessera.sdpa(q, q, q, sinks=one.detach())
        rows, lengths = torch.randn(1, 2, 1, 8), torch.tensor([0], dtype=torch.int32)
        for call in (
            lambda: tessera.sdpa(q, q, q, sinks=one),
            lambda: tessera.sdpa(q, q, q, alibi_slopes=one),
            lambda: tessera.sdpa(q, q, q, one.reshape(1, 1)),
            lambda: tessera.sdpa(q, q, q, modifier=tessera.Modifier("score * gain[h]", gain=one)),
            lambda: tessera.sdpa(q, q, q, out=torch.empty_like(q, requires_grad=True)),
            lambda: tessera.merge_states(q, q[..., 0], q, q[..., 0] * one, "batch_heads_seq"),
            lambda: tessera.flash_attn_with_kvcache(rows, rows.clone(), rows.clone(), rows * one, rows, cache_seqlens=lengths),
        ):
            with self.assertRaisesRegex(tessera.UnsupportedError, "no_grad"):
                call()

    def test_tensors_without_memory_of_their_own_are_refused(self):
        torch.set_grad_enabled(False)
        self.addCleanup(torch.set_grad_enabled, True)
        q = torch.randn(3, 1, 2, 4, 8)
        tessera.sdpa(q[0], q[0], q[0])  # the description is known from now on
        sparse, nested = q[0].to_sparse(), torch.nested.nested_tensor([torch.randn(2, 4, 8), torch.randn(2, 5, 8)])
        for call, message in (
            (lambda: torch.vmap(lambda q: tessera.sdpa(q, q, q))(q), "no memory of its own, as within torch.func"),
            (lambda: torch.func.jvp(lambda q: tessera.sdpa(q, q, q), (q[0],), (q[0],)), "no memory of its own"),
            (lambda: tessera.sdpa(sparse, q[0], q[0]), "a tensor is torch.sparse_coo; expected a dense one"),
            (lambda: tessera.sdpa(q[0], q[0], q[0], torch.ones(4, 4).to_sparse()), "a tensor is torch.sparse_coo"),
            (lambda: tessera.sdpa(nested, nested, nested), "a tensor is nested; expected a dense one"),
        ):
            with self.assertRaisesRegex(tessera.Error, message):
                call()
        fake = FakeTensorMode().from_tensor(sparse.to_dense())
        with self.assertRaisesRegex(tessera.UnsupportedError, "a tensor is a FakeTensor, .*; expected a torch.Tensor"):
            tessera.sdpa(fake, fake, fake)

    def test_tensors_of_several_devices_are_refused(self):
        q = torch.randn(1, 1, 2, 8)
        with self.assertRaises(tessera.UnsupportedError):
            tessera.sdpa(q.to("meta"), q, q)
        if torch.cuda.is_available():
            with self.assertRaisesRegex(tessera.InvalidArgumentError, "expected one device"):
                tessera.sdpa(q, q.cuda(), q)
            with self.assertRaisesRegex(tessera.InvalidArgumentError, "lse_b has shape .* on cuda:0; expected .* on the CPU"):
                tessera.merge_states(q, q[..., 0], q, q[..., 0].cuda(), "batch_heads_seq")
            with self.assertRaisesRegex(tessera.InvalidArgumentError, "lse has shape .* on cuda:0; expected .* on the CPU"):
                tessera.sdpa(q, q, q, lse=torch.zeros(1, 1, 2, device="cuda"))


@NEEDS_TORCH
class Compiled(unittest.TestCase):
    @on_each_device
    def test_whole_graphs_hold_each_function(self, device):
        q, k, v = (torch.randn(2, s, h, 16, device=device) for s, h in ((5, 4), (9, 2), (9, 2)))
        lengths = torch.tensor([7, 9], dtype=torch.int32, device=device)
        cu = torch.tensor([0, 2, 5], dtype=torch.int32, device=device)

        def heads_first(*tensors):
            return tuple(x.transpose(1, 2) for x in tensors)

        def with_lse(q, k, v):
            lse = torch.zeros(2, 4, 5, device=device)
            return tessera.flash_attn_func(q * 2, k, v, lse=lse).sum() + lse

        def merge(q, k, v):
            o_a, lse_a, _ = tessera.flash_attn_func(q * 2, k[:, :4], v[:, :4], return_attn_probs=True)
            o_b, lse_b, _ = tessera.flash_attn_func(q * 2, k[:, 4:], v[:, 4:], return_attn_probs=True)
            o, lse = tessera.merge_states(o_a, lse_a, o_b, lse_b, "batch_seq_heads", return_lse=True)
            return tessera.merge_states(o, lse, o_a, lse_a, "batch_seq_heads", out=torch.empty_like(q)) + 1

        functions = [
            lambda q, k, v: tessera.sdpa(*heads_first(q * 2, k, v), is_causal=True, enable_gqa=True, softcap=2.0) + 1,
            lambda q, k, v: sum(x.sum() for x in tessera.sdpa(*heads_first(q * 2, k, v), enable_gqa=True, return_lse=True)),
            lambda q, k, v: tessera.flash_attn_func(q * 2, k, v, causal=True, window_size=(3, 0)) + 1,
            lambda q, k, v: tessera.flash_attn_varlen_func(q[0] * 2, k[0, :5], v[0, :5], cu, cu, 3, 3, causal=True) + 1,
            lambda q, k, v: tessera.flash_attn_with_kvcache(q * 2, k, v, cache_seqlens=lengths) + 1,
            lambda q, k, v: tessera.flash_attn_with_kvcache(q * 2, k, v, cache_seqlens=7) + 1,
            lambda q, k, v: tessera.flash_attn_func(q * 2, k, v, out=torch.empty_like(q)) + 1,
            lambda q, k, v: tessera.flash_attn_with_kvcache(q * 2, k, v, cache_seqlens=lengths, config={"num_splits": 2}, settled_kv=True) + 1,
            with_lse,
            merge,
        ]
        for index, function in enumerate(functions):
            with self.subTest(index):
                compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
                close(compiled(q, k, v), function(q, k, v))

    @on_each_device
    def test_what_torch_records_is_the_function(self, device):
        def function(q):
            return tessera.sdpa(q * 2, q, q, is_causal=True)

        q = torch.randn(1, 2, 5, 16, device=device)
        close(torch.jit.trace(function, q, check_trace=False)(q + 1), function(q + 1))
        close(make_fx(function)(q)(q + 1), function(q + 1))
        with FakeTensorMode() as mode:
            self.assertEqual(function(mode.from_tensor(q)).shape, q.shape)
        with self.assertRaisesRegex(tessera.UnsupportedError, "expected stream=None"):
            make_fx(lambda q: tessera.sdpa(q, q, q, stream=1))(q)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "out has shape .* where torch records the call"):
            make_fx(lambda q: tessera.sdpa(q, q, q, out=torch.empty(3, 2, 5, 16)))(q)

    @on_each_device
    def test_appending_within_a_graph_writes_the_caches(self, device):
        q, k, v = (torch.randn(2, 1, h, 16, device=device) for h in (4, 2, 2))
        lengths = torch.tensor([7, 11], dtype=torch.int32, device=device)
        caches = torch.randn(2, 2, 12, 2, 16, device=device)

        def step(k_cache, v_cache):
            return tessera.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True)

        eager, compiled = caches.clone(), caches.clone()
        close(torch.compile(step, fullgraph=True, backend="aot_eager")(*compiled), step(*eager))
        torch.testing.assert_close(compiled, eager)

    def test_gradients_are_refused_within_a_graph(self):
        q = torch.randn(1, 1, 2, 8)
        compiled = torch.compile(lambda q, sinks: tessera.sdpa(q, q, q, sinks=sinks), fullgraph=True, backend="aot_eager")
        compiled(q, torch.zeros(1))
        with self.assertRaisesRegex(Exception, "an argument requires gradients, which tessera does not compute"):
            compiled(q, torch.zeros(1, requires_grad=True))
        with torch.no_grad():
            compiled(q, torch.zeros(1, requires_grad=True))

    def test_operators_keep_torchs_rules(self):
        import tessera._torch

        q, k, v = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)
        arguments = (q, k, v, None, 0.0, True, None, False, None, [-1, -1], None, None, "top_left", True, None, False, False, False, [])
        documents = torch.arange(4, dtype=torch.int32)
        for modifier in (None, tessera.Modifier("gain * score", "d[q_idx] <= d[kv_idx]", d=documents, gain=2.0)):
            given = (*arguments, *tessera.attention._modifier_arguments(modifier))
            torch.library.opcheck(tessera._torch.sdpa, given, test_utils=("test_schema", "test_faketensor"))
        o, lse = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3)
        given = o, lse, o + 1, lse + 1, "batch_heads_seq", True, None
        torch.library.opcheck(tessera._torch.merge_states, given, test_utils=("test_schema", "test_faketensor"))


@NEEDS_TORCH
@unittest.skipIf(torch is None or not torch.cuda.is_available(), "torch sees no GPU")
class OnAGpu(unittest.TestCase):
    def test_work_is_on_the_current_stream(self):
        q, k, v = (torch.zeros(1, 8, 2048, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        expected = torch.ones_like(v)
        stream = torch.cuda.Stream()
        tessera.sdpa(q, k, v)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream), torch.no_grad():
            torch.cuda._sleep(200_000_000)  # cycles: on another stream attention would come before what follows
            v.fill_(1)
            out = tessera.sdpa(q, k, v)
        stream.synchronize()
        torch.testing.assert_close(out, expected)

    def test_cuda_graphs_hold_plans_and_calls(self):
        q, k, v = (torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        out, out_plan = torch.empty_like(q), torch.empty_like(q)
        plan = tessera.plan(tessera.sdpa, q, k, v, is_causal=True)
        tessera.sdpa(q, k, v, is_causal=True, out=out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tessera.sdpa(q, k, v, is_causal=True, out=out)
            plan.run(q, k, v, is_causal=True, out=out_plan)
        for _ in range(3):
            q.copy_(torch.randn_like(q))
            graph.replay()
            expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
            for got in (out, out_plan):
                torch.testing.assert_close(got.float(), expected, rtol=0, atol=4 * 2**-7)

    def test_cuda_graphs_hold_calls_that_append(self):
        q, k, v = (torch.randn(2, 1, h, 64, device="cuda", dtype=torch.bfloat16) for h in (4, 2, 2))
        k_cache, v_cache = torch.randn(2, 2, 100, 2, 64, device="cuda", dtype=torch.bfloat16)
        lengths = torch.tensor([70, 3], dtype=torch.int32, device="cuda")
        step = lambda keys, values: tessera.flash_attn_with_kvcache(q, keys, values, k, v, cache_seqlens=lengths, causal=True)
        step(k_cache.clone(), v_cache.clone())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step(k_cache, v_cache)
        for tokens in ([70, 3], [71, 99]):
            lengths.copy_(torch.tensor(tokens))
            eager = k_cache.clone(), v_cache.clone()
            graph.replay()
            expected = step(*eager)
            for got, want in ((out, expected), (k_cache, eager[0]), (v_cache, eager[1])):
                torch.testing.assert_close(got, want, rtol=0, atol=0)

    def test_inductor_with_cuda_graphs(self):
        q, k, v = (torch.randn(1, 4, 64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        compiled = torch.compile(lambda q, k, v: tessera.sdpa(q * 2, k, v, is_causal=True) + 1, fullgraph=True, mode="reduce-overhead")
        with torch.no_grad():
            for _ in range(3):
                got = compiled(q, k, v).clone()
            expected = F.scaled_dot_product_attention(q.float() * 2, k.float(), v.float(), is_causal=True) + 1
        torch.testing.assert_close(got.float(), expected, rtol=0, atol=8 * 2**-7)


if __name__ == "__main__":
    unittest.main()
