"""Attention on numpy arrays against its definition in double precision."""

import copy
import ctypes
import os
import pathlib
import pickle
import re
import subprocess
import tempfile
import threading
import unittest

import naive
import numpy as np
import tessera
from arrays import F32_BOUND, RNG, OnlyDlpack, bshd, normal
from tessera import _library


class Sdpa(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = normal(2, 4, 5, 16), normal(2, 2, 9, 16), normal(2, 2, 9, 16)

    def check(self, expected, **options):
        o, lse = tessera.sdpa(self.q, self.k, self.v, enable_gqa=True, return_lse=True, **options)
        np.testing.assert_allclose(o, expected[0], rtol=0, atol=F32_BOUND)
        np.testing.assert_allclose(lse, expected[1], rtol=0, atol=F32_BOUND)
        return o

    def test_plain(self):
        o = self.check(naive.attention(self.q, self.k, self.v))
        self.assertEqual(o.shape, (2, 4, 5, 16))
        self.assertEqual(o.dtype, np.float32)

    def test_causal_is_top_left_as_torch_means_it_unless_told_otherwise(self):
        for alignment in ("top_left", "bottom_right"):
            visible = naive.band(5, 9, right=0, top_left=alignment == "top_left")
            self.check(naive.attention(self.q, self.k, self.v, visible=visible), is_causal=True, causal_alignment=alignment)

    def test_masks_broadcast(self):
        visible = RNG.random((2, 1, 5, 9)) > 0.4
        self.check(naive.attention(self.q, self.k, self.v, visible=visible), attn_mask=visible)
        bias = normal(5, 9)
        self.check(naive.attention(self.q, self.k, self.v, bias=bias), attn_mask=bias)
        keys = normal(2, 1, 1, 9)
        self.check(naive.attention(self.q, self.k, self.v, bias=keys), attn_mask=keys)

    def test_terms(self):
        sinks, slopes = normal(4), np.abs(normal(4))
        distance = np.abs(np.arange(5)[:, None] - np.arange(9)[None])
        cases = [
            (dict(scale=0.7), dict(scale=0.7)),
            (dict(softcap=0.8), dict(softcap=0.8)),
            (dict(sinks=sinks), dict(sinks=sinks)),
            (dict(alibi_slopes=slopes), dict(bias=-slopes[None, :, None, None] * distance)),
            (dict(window_size=(2, 1)), dict(visible=naive.band(5, 9, 2, 1, top_left=True))),
        ]
        for options, expected in cases:
            with self.subTest(options):
                self.check(naive.attention(self.q, self.k, self.v, **expected), **options)

    def test_modifiers(self):
        i, j = np.arange(5)[:, None], np.arange(9)[None]
        documents, slopes, bias = RNG.integers(0, 3, 9).astype(np.int32), np.abs(normal(4)), normal(4, 32)[:, ::2]
        lengths, flags, whole = np.array([3, 7], np.uint8), RNG.random((2, 9)) > 0.5, np.float32(0.5)
        s = self.scores()
        cases = [
            (tessera.Modifier(visible="kv_idx <= q_idx + shift"), dict(visible=j <= i + 4)),
            (tessera.Modifier(visible="abs(q_idx + shift - kv_idx) <= w", w=2), dict(visible=abs(i + 4 - j) <= 2)),
            (tessera.Modifier(visible="doc[q_idx] == doc[kv_idx]", doc=documents), dict(visible=documents[:5, None] == documents)),
            (tessera.Modifier(visible="kv_idx < n[b] || on[b, kv_idx]", n=lengths, on=flags),
             dict(visible=(j < lengths[:, None, None, None]) | flags[:, None, None])),
            (tessera.Modifier("score - slope[h] * float(abs(q_idx + shift - kv_idx))", slope=slopes),
             dict(bias=-slopes[:, None, None] * abs(i + 4 - j))),
            (tessera.Modifier("let d = min(abs(q_idx - kv_idx), 15); score + bias[h, d]", bias=bias),
             dict(bias=bias[:, np.minimum(abs(i - j), 15)])),
            (tessera.Modifier("cap * tanh(score / cap)", "kv_idx % 2 == 0", cap=0.8), dict(softcap=0.8, visible=j % 2 == 0)),
            (tessera.Modifier("score * score * g + z", g=0.25, z=np.array(whole)), dict(bias=s * s * 0.25 + 0.5 - s)),
        ]  # fmt: skip
        for modifier, expected in cases:
            with self.subTest(modifier):
                self.check(naive.attention(self.q, self.k, self.v, **expected), modifier=modifier, causal_alignment="bottom_right")

    def scores(self):
        k = np.repeat(self.k, 2, 1).astype(np.float64)
        return np.einsum("bhqd,bhkd->bhqk", self.q.astype(np.float64), k) / 4

    def test_a_modifiers_numbers_and_arrays_may_change(self):
        def run(documents, width):
            modifier = tessera.Modifier(visible="doc[q_idx] == doc[kv_idx] || kv_idx < w", doc=documents, w=width)
            return tessera.sdpa(self.q, self.k, self.v, enable_gqa=True, modifier=modifier)

        for width in (1, 4):
            for documents in (np.arange(9, dtype=np.int32) // 2, np.arange(9, dtype=np.int32) // 3):
                visible = (documents[:5, None] == documents) | (np.arange(9) < width)
                expected = naive.attention(self.q, self.k, self.v, visible=visible)[0]
                np.testing.assert_allclose(run(documents, width), expected, rtol=0, atol=F32_BOUND)
        modifier = tessera.Modifier("gain * score", gain=2)
        plan = tessera.plan(tessera.sdpa, self.q, self.k, self.v, enable_gqa=True, modifier=modifier)
        for gain in (2, -0.5):
            o = plan.run(self.q, self.k, self.v, enable_gqa=True, modifier=tessera.Modifier("gain * score", gain=gain))
            np.testing.assert_allclose(o, naive.attention(self.q, self.k, self.v, scale=gain / 4)[0], rtol=0, atol=F32_BOUND)
        with self.assertRaises(tessera.InvalidArgumentError):
            plan.run(self.q, self.k, self.v, enable_gqa=True)

    def test_a_modifier_is_copied_and_pickled_with_its_values(self):
        modifier = tessera.Modifier("cap * tanh(score * slope[h] / cap)", "kv_idx <= q_idx + shift", cap=3.0, slope=normal(4))
        expected = tessera.sdpa(self.q, self.k, self.v, enable_gqa=True, modifier=modifier)
        for copied in (copy.copy(modifier), copy.deepcopy(modifier), pickle.loads(pickle.dumps(modifier))):
            np.testing.assert_array_equal(tessera.sdpa(self.q, self.k, self.v, enable_gqa=True, modifier=copied), expected)
        # What was packed would not notice.
        with self.assertRaises(TypeError):
            modifier.scalars["cap"] = 4.0

    def test_values_of_modifiers_are_real_numbers_of_names(self):
        for values, message in (
            ({"cap": 10**400}, "cap is beyond the range of floating numbers; expected one within it"),
            ({"cap": np.complex64(1 + 2j)}, "dtype complex64; expected one that tessera has"),
            ({"cap\0": 3.0}, r"a name is 'cap\\x00'; expected a text without zeros"),
        ):
            with self.assertRaisesRegex(tessera.InvalidArgumentError, message):
                tessera.sdpa(self.q, self.k, self.v, enable_gqa=True, modifier=tessera.Modifier("score * cap", **values))

    def test_errors_of_modifiers(self):
        def fails(part, *args, **values):
            with self.assertRaisesRegex(tessera.InvalidArgumentError, part):
                tessera.sdpa(self.q, self.k, self.v, enable_gqa=True, modifier=tessera.Modifier(*args, **values))

        fails(r"visible:1:1: unknown name 'kv_id'; did you mean kv_idx", visible="kv_id < 3")
        fails("float64|f64", visible="x[kv_idx] > 1.0", x=np.ones(9))
        fails("5 dimensions", visible="x[0,0,0,0,0] > 1.0", x=np.ones((1,) * 5, np.float32))
        fails("x: an array has strides", visible="x[kv_idx] > 1.0", x=np.ones(9, np.float32)[::-1])
        fails("x: an argument is of type list", visible="x[kv_idx] > 1.0", x=[1.0])
        fails("without zeros", visible="kv_idx < 3\0 && kv_idx > 1")
        fails("score is None", score=None)

    def test_a_row_that_sees_nothing_is_0(self):
        o, lse = tessera.sdpa(self.q, self.k, self.v, np.zeros((5, 9), bool), enable_gqa=True, return_lse=True)
        self.assertTrue((o == 0).all() and np.isneginf(lse).all())

    def test_strides_of_any_kind_are_taken(self):
        expected = naive.attention(self.q, self.k, self.v)[0]
        wide = np.zeros((2, 5, 4, 40), np.float32)
        wide[..., 3:19] = bshd(self.q)
        reversed_k = np.ascontiguousarray(self.k[:, :, ::-1])[:, :, ::-1]  # a negative stride
        by_columns = np.asfortranarray(self.v)
        o = tessera.sdpa(bshd(wide[..., 3:19]), reversed_k, by_columns, enable_gqa=True)
        np.testing.assert_allclose(o, expected, rtol=0, atol=F32_BOUND)

    def test_a_stride_that_leads_nowhere_may_be_negative(self):
        q, k, v = self.q[:1], self.k[:1], self.v[:1]
        expected = naive.attention(q, k, v)
        mask = np.ones((2, 5, 9), np.float32)[:1, :, ::-1][..., ::-1]
        for _ in range(2):
            out = np.empty((1, 4, 5, 16), np.float32)[::-1]
            o, lse = tessera.sdpa(q[::-1], k[::-1], v[::-1], mask[::-1], enable_gqa=True, out=out, return_lse=True)
            np.testing.assert_allclose(o, expected[0], rtol=0, atol=F32_BOUND)
            np.testing.assert_allclose(lse, expected[1] + 1, rtol=0, atol=F32_BOUND)

    def test_arrays_without_elements_are_taken_whatever_their_strides(self):
        for shape in ((0, 4, 5, 16), (2, 4, 0, 16)):
            q, out = (np.lib.stride_tricks.as_strided(np.empty(0, np.float32), shape, (0,) * 4) for _ in range(2))
            self.assertIs(tessera.sdpa(q, q, q, out=out), out)
        none = np.lib.stride_tricks.as_strided(np.empty(0, np.float32), (2, 2, 0, 16), (0,) * 4)
        for _ in range(2):
            o, lse = tessera.sdpa(self.q, none, none, enable_gqa=True, return_lse=True)
            self.assertFalse(o.any())
            self.assertTrue(np.isneginf(lse).all())

    def test_out_is_written_in_place(self):
        out = np.full((2, 5, 4, 16), np.nan, np.float32)
        view = bshd(out)
        self.assertIs(tessera.sdpa(self.q, self.k, self.v, enable_gqa=True, out=view), view)
        np.testing.assert_allclose(out, bshd(naive.attention(self.q, self.k, self.v)[0]), rtol=0, atol=F32_BOUND)

    def test_windows_are_whole_numbers(self):
        for size, message in (((1.5, 2), "window_size is 1.5"), (("a", 2), "window_size is 'a'"), ((1, float("nan")), "window_size is nan")):
            with self.assertRaisesRegex(tessera.InvalidArgumentError, message + "; expected a whole number"):
                tessera.sdpa(self.q, self.k, self.v, enable_gqa=True, window_size=size)

    def test_a_backend_is_a_name(self):
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "backend is 3; expected a name"):
            tessera.sdpa(self.q, self.k, self.v, enable_gqa=True, backend=3)

    def test_masked_arrays_are_refused(self):
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "a masked one, whose mask would be lost; expected its data"):
            tessera.sdpa(np.ma.masked_less(self.q, 0), self.k, self.v, enable_gqa=True)

    def test_half_precision(self):
        q, k, v = (x.astype(np.float16) for x in (self.q, self.k, self.v))
        o = tessera.sdpa(q, k, v, enable_gqa=True)
        self.assertEqual(o.dtype, np.float16)
        # Values below 4 rounded to 11 bits, once as weights and once as results.
        np.testing.assert_allclose(o.astype(float), naive.attention(q, k, v)[0], rtol=0, atol=4 * 2**-10)

    def test_errors_say_what_is_wrong(self):
        q, k, v = self.q, self.k, self.v
        for call, part in [
            (lambda: tessera.sdpa(q, k, v), "enable_gqa"),
            (lambda: tessera.sdpa(q, k[..., :8], v, enable_gqa=True), "q has head_dim 16 and k 8"),
            (lambda: tessera.sdpa(q, k, v[:, :, :4], enable_gqa=True), "expected them to differ in head_dim only"),
            (lambda: tessera.sdpa(q, k, v, np.zeros((3, 9), bool), enable_gqa=True), "broadcasts to (2, 4, 5, 9)"),
            (lambda: tessera.sdpa(q, k, v, enable_gqa=True, out=np.zeros((2, 4, 5, 8), np.float32)), "out has shape"),
            (lambda: tessera.sdpa(q, k, v, enable_gqa=True, sinks=np.zeros(3, np.float32)), "sinks has 3"),
            (lambda: tessera.sdpa(q, k, v, enable_gqa=True, sinks=np.zeros(4)), "f64"),
            (lambda: tessera.sdpa(q, k.astype(np.float16), v, enable_gqa=True), "dtype"),
            (lambda: tessera.sdpa([1.0], k, v, enable_gqa=True), "q: an argument is of type list"),
            (lambda: tessera.sdpa(q, None, v, enable_gqa=True), "k: an argument is of type NoneType"),
            (lambda: tessera.sdpa(q, k, v, [[True]], enable_gqa=True), "the mask: an argument is of type list"),
            (lambda: tessera.sdpa(q, k, v, enable_gqa=True, sinks=[1.0] * 4), "sinks: an argument is of type list"),
            (lambda: tessera.sdpa(q, k, v, enable_gqa=True, out=[]), "out: an argument is of type list"),
            (lambda: tessera.sdpa([1.0], k, v), "of type list"),
            (lambda: tessera.sdpa(q[0, 0, 0], k, v), "q has shape (16,)"),
            (lambda: tessera.sdpa(q, k, v, enable_gqa=True, window_size=3), "window_size is 3"),
            (lambda: tessera.sdpa(q, k, v, enable_gqa=True, modifier="kv_idx < 3"), "modifier is of type str"),
            (lambda: tessera.sdpa(q, k, v, enable_gqa=True, backend="no_such"), "no_such"),
            (lambda: tessera.sdpa(q.astype("c8"), k, v, enable_gqa=True), "complex64"),
        ]:
            with self.subTest(part), self.assertRaisesRegex(tessera.InvalidArgumentError, re.escape(part)) as caught:
                call()
            self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaisesRegex(tessera.UnsupportedError, "dropout"):
            tessera.sdpa(q, k, v, None, 0.1, enable_gqa=True)

    def test_an_array_that_may_not_be_written_to_is_no_out(self):
        out = np.zeros_like(self.q)
        tessera.sdpa(self.q, self.k, self.v, enable_gqa=True, out=out)
        kept = out.copy()
        out.flags.writeable = False
        for backend in (None, "unfused"):  # of a call that is known already, and of a new one
            with self.assertRaisesRegex(tessera.InvalidArgumentError, "may not be written to"):
                tessera.sdpa(2 * self.q, self.k, self.v, enable_gqa=True, out=out, backend=backend)
        np.testing.assert_array_equal(out, kept)

    def test_each_thread_has_its_own_error(self):
        messages = {}

        def fail(heads):
            try:
                tessera.sdpa(self.q, self.k, self.v, enable_gqa=True, sinks=np.zeros(heads, np.float32))
            except tessera.Error as error:
                messages[heads] = str(error)

        threads = [threading.Thread(target=fail, args=(heads,)) for heads in range(5, 13)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertTrue(all(f"sinks has {heads} " in messages[heads] for heads in range(5, 13)))


class FlashAttn(unittest.TestCase):
    def test_func_is_bottom_right(self):
        q, k, v = normal(2, 5, 4, 16), normal(2, 9, 2, 16), normal(2, 9, 2, 16)
        slopes = np.abs(normal(4))
        distance = np.abs(np.arange(5)[:, None] + 4 - np.arange(9)[None])
        for options, expected in [
            (dict(causal=True), dict(visible=naive.band(5, 9, right=0))),
            (dict(window_size=(3, 2)), dict(visible=naive.band(5, 9, 3, 2))),
            (dict(causal=True, window_size=(3, 2)), dict(visible=naive.band(5, 9, 3, 0))),
            (dict(softmax_scale=0.3, softcap=1.5), dict(scale=0.3, softcap=1.5)),
            (dict(alibi_slopes=slopes), dict(bias=-slopes[None, :, None, None] * distance)),
        ]:
            with self.subTest(options):
                o, lse, _ = tessera.flash_attn_func(q, k, v, return_attn_probs=True, **options)
                want = naive.attention(bshd(q), bshd(k), bshd(v), **expected)
                np.testing.assert_allclose(bshd(o), want[0], rtol=0, atol=F32_BOUND)
                np.testing.assert_allclose(lse, want[1], rtol=0, atol=F32_BOUND)

    def test_varlen_is_each_sequence_by_itself(self):
        lengths_q, lengths_k = [3, 0, 5], [4, 2, 9]
        cu_q = np.cumsum([0, *lengths_q], dtype=np.int32)
        cu_k = np.cumsum([0, *lengths_k], dtype=np.int32)
        q, k, v = normal(8, 4, 16), normal(15, 2, 16), normal(15, 2, 16)
        o, lse, _ = tessera.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 5, 9, causal=True, return_attn_probs=True)
        self.assertEqual(lse.shape, (4, 8))
        for b in range(3):
            rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
            if lengths_q[b]:
                one = tessera.flash_attn_func(q[None, rows], k[None, keys], v[None, keys], causal=True)
                np.testing.assert_allclose(o[rows], one[0], rtol=0, atol=F32_BOUND)

        with self.assertRaisesRegex(tessera.InvalidArgumentError, "max_seqlen_k is 9.5; expected a whole number"):
            tessera.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 5, 9.5)

        pages = RNG.permutation(9)[:9].reshape(3, 3).astype(np.int32)
        k_pages, v_pages = np.full((9, 4, 2, 16), np.nan, np.float32), np.full((9, 4, 2, 16), np.nan, np.float32)
        for b in range(3):
            for t in range(lengths_k[b]):
                k_pages[pages[b, t // 4], t % 4] = k[cu_k[b] + t]
                v_pages[pages[b, t // 4], t % 4] = v[cu_k[b] + t]
        paged = tessera.flash_attn_varlen_func(q, k_pages, v_pages, cu_q, cu_k, 5, 9, causal=True, block_table=pages)
        np.testing.assert_allclose(paged, o, rtol=0, atol=F32_BOUND)


class KvCache(unittest.TestCase):
    def setUp(self):
        self.q = normal(2, 1, 4, 16)
        self.k_cache, self.v_cache = normal(3, 12, 2, 16), normal(3, 12, 2, 16)
        self.lengths = np.array([7, 11], np.int32)

    def expected(self, k_cache, v_cache, lengths):
        rows = []
        for b, n in enumerate(lengths):
            rows.append(naive.attention(bshd(self.q[b : b + 1]), bshd(k_cache[b : b + 1, :n]), bshd(v_cache[b : b + 1, :n]))[0])
        return bshd(np.concatenate(rows))

    def close(self, got, expected):
        np.testing.assert_allclose(got, expected, rtol=0, atol=F32_BOUND)

    def test_lengths(self):
        k, v = self.k_cache[:2], self.v_cache[:2]
        self.close(tessera.flash_attn_with_kvcache(self.q, k, v, cache_seqlens=self.lengths), self.expected(k, v, [7, 11]))
        self.close(tessera.flash_attn_with_kvcache(self.q, k, v, cache_seqlens=6), self.expected(k, v, [6, 6]))
        self.close(tessera.flash_attn_with_kvcache(self.q, k, v), self.expected(k, v, [12, 12]))
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "num_splits"):
            tessera.flash_attn_with_kvcache(self.q, k, v, num_splits=2**32 + 1)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "num_splits is 1.5; expected a whole number"):
            tessera.flash_attn_with_kvcache(self.q, k, v, num_splits=1.5)

    def test_lengths_that_are_none(self):
        pages = normal(4, 3, 2, 16)
        table = np.array([[0, 1], [2, 3]], np.int32)
        for options, message in (
            (dict(cache_seqlens=2**40), r"cache_seqlens is 1099511627776; expected a number of tokens from 0 to"),
            (dict(cache_seqlens=-1), r"cache_seqlens is -1; expected"),
            (dict(block_table=table), r"cache_seqlens is None; expected the number of tokens of each sequence in its pages"),
        ):
            with self.assertRaisesRegex(tessera.InvalidArgumentError, message):
                tessera.flash_attn_with_kvcache(normal(2, 1, 4, 16), pages, pages, **options)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "of type memoryview; expected a numpy array"):
            tessera.flash_attn_with_kvcache(memoryview(normal(2, 1, 4, 16)), pages, pages)

    def test_indices_of_the_batch(self):
        index = np.array([2, 0], np.int32)
        expected = self.expected(self.k_cache[index], self.v_cache[index], [7, 11])
        got = tessera.flash_attn_with_kvcache(self.q, self.k_cache, self.v_cache, cache_seqlens=self.lengths, cache_batch_idx=index)
        self.close(got, expected)

    def test_new_keys_are_appended(self):
        for index in (None, np.array([2, 1], np.int32)):
            k_cache, v_cache = self.k_cache.copy(), self.v_cache.copy()
            if index is None:
                k_cache, v_cache = k_cache[:2], v_cache[:2]
            k, v = normal(2, 1, 2, 16), normal(2, 1, 2, 16)
            got = tessera.flash_attn_with_kvcache(self.q, k_cache, v_cache, k, v, cache_seqlens=self.lengths, cache_batch_idx=index, causal=True)
            rows = np.arange(2) if index is None else index
            np.testing.assert_array_equal(k_cache[rows, self.lengths], k[:, 0])
            np.testing.assert_array_equal(v_cache[rows, self.lengths], v[:, 0])
            self.close(got, self.expected(k_cache[rows], v_cache[rows], [8, 12]))

    def test_pages_with_plan_and_run(self):
        table = np.array([[5, 1, 0], [2, 4, 3]], np.int32)
        k_pages, v_pages = normal(6, 4, 2, 16), normal(6, 4, 2, 16)
        dense_k, dense_v = k_pages[table].reshape(2, 12, 2, 16), v_pages[table].reshape(2, 12, 2, 16)
        arguments = dict(cache_seqlens=self.lengths, block_table=table)
        once = tessera.flash_attn_with_kvcache(self.q, k_pages, v_pages, **arguments)
        self.close(once, self.expected(dense_k, dense_v, self.lengths))

        plan = tessera.plan(tessera.flash_attn_with_kvcache, self.q, k_pages, v_pages, **arguments)
        self.assertEqual(plan.backend, "cpu")
        self.assertIn("decode", plan.kernel)
        out = np.empty_like(self.q)
        for _ in range(3):
            self.q = normal(2, 1, 4, 16)
            plan.run(self.q, k_pages, v_pages, out=out, **arguments)
            self.close(out, self.expected(dense_k, dense_v, self.lengths))
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "not what the plan was made with"):
            plan.run(self.q, k_pages, v_pages, softmax_scale=1.0, **arguments)

    def test_a_plan_takes_no_other_choice_than_its_own(self):
        q, k = normal(2, 1, 4, 16), normal(2, 40, 2, 16)
        for options in ({}, {"backend": "cpu"}, {"num_splits": 3}):
            plan = tessera.plan(tessera.flash_attn_with_kvcache, q, k, k, **options)
            expected = plan.run(q, k, k)
            for same in (options, {"backend": "cpu"}, {"num_splits": plan.config["num_splits"]}):
                np.testing.assert_array_equal(plan.run(q, k, k, **same), expected)
            for other in ("reference", "cuda", "nonsense"):
                with self.assertRaisesRegex(tessera.InvalidArgumentError, f"backend is '{other}', and the plan was made for 'cpu'"):
                    plan.run(q, k, k, backend=other)
            with self.assertRaisesRegex(tessera.InvalidArgumentError, "num_splits is 7, and the plan's is"):
                plan.run(q, k, k, num_splits=7)

    def test_a_plan_is_not_copied(self):
        q = normal(1, 2, 3, 16)
        plan = tessera.plan(tessera.sdpa, q, q, q)
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "Plan objects can't be copied or pickled; expected one made anew"):
                make(plan)

    def test_appending_to_pages(self):
        table = np.array([[5, 1, 0], [2, 4, 3]], np.int32)
        k_pages, v_pages = normal(6, 4, 2, 16), normal(6, 4, 2, 16)
        k, v = normal(2, 1, 2, 16), normal(2, 1, 2, 16)
        got = tessera.flash_attn_with_kvcache(self.q, k_pages, v_pages, k, v, cache_seqlens=self.lengths, block_table=table)
        dense_k, dense_v = k_pages[table].reshape(2, 12, 2, 16), v_pages[table].reshape(2, 12, 2, 16)
        np.testing.assert_array_equal(dense_k[[0, 1], self.lengths], k[:, 0])
        self.close(got, self.expected(dense_k, dense_v, self.lengths + 1))

    def test_appending_to_caches_that_are_read_as_copies(self):
        k, v = normal(2, 1, 2, 16), normal(2, 1, 2, 16)
        k_cache, v_cache = np.asfortranarray(self.k_cache[:2]), np.asfortranarray(self.v_cache[:2])
        arguments = self.q, k_cache, v_cache, k, v
        plan = tessera.plan(tessera.flash_attn_with_kvcache, *arguments, cache_seqlens=self.lengths)
        for run in (tessera.flash_attn_with_kvcache, plan.run):
            k[:], v[:] = normal(2, 1, 2, 16), normal(2, 1, 2, 16)
            got = run(*arguments, cache_seqlens=self.lengths)
            np.testing.assert_array_equal(k_cache[np.arange(2), self.lengths], k[:, 0])
            self.close(got, self.expected(k_cache, v_cache, [8, 12]))

    def test_what_does_not_fit_the_caches_is_not_appended(self):
        k_cache, v_cache, new = self.k_cache[:2].copy(), self.v_cache[:2].copy(), normal(2, 1, 2, 16)
        k_pages, v_pages = normal(6, 4, 2, 16), normal(6, 4, 2, 16)
        table = np.array([[5, 1, -1], [2, 4, 3]], np.int32)
        index = np.array([0, 1], np.int32)
        read_only = v_cache.copy()
        read_only.flags.writeable = False

        def lengths(*values):
            return np.array(values, np.int32)

        cases = [
            ("k has shape", k_cache, v_cache, new[:1], new[:1], dict(cache_seqlens=self.lengths)),
            ("k has shape", k_cache, v_cache, new[:, :, :1], new, dict(cache_seqlens=self.lengths)),
            ("k has shape", k_cache, v_cache, new[0], new[0], dict(cache_seqlens=self.lengths)),
            ("k has shape", k_cache, v_cache, new[..., :1], new, dict(cache_seqlens=self.lengths)),
            ("as many tokens as k", k_cache, v_cache, new[:, [0, 0]], new, dict(cache_seqlens=lengths(3, 4))),
            ("cache_seqlens puts k and v at token -1", k_cache, v_cache, new, new, dict(cache_seqlens=lengths(-1, 4))),
            ("cache_seqlens puts k and v at token 12", k_cache, v_cache, new, new, dict(cache_seqlens=lengths(3, 12))),
            ("cache_batch_idx puts k and v at cache -1", k_cache, v_cache, new, new, dict(cache_seqlens=self.lengths, cache_batch_idx=index - 1)),
            ("block_table puts k and v at page -1", k_pages, v_pages, new, new, dict(cache_seqlens=lengths(8, 4), block_table=table)),
            ("cache_seqlens puts k and v at token 12", k_pages, v_pages, new, new, dict(cache_seqlens=lengths(3, 12), block_table=table)),
            ("both given", k_pages, v_pages, new, new, dict(cache_seqlens=self.lengths, block_table=table, cache_batch_idx=index)),
            ("v is of dtype float64; expected its cache's, float32", k_cache, v_cache, new, new.astype(np.float64), dict(cache_seqlens=self.lengths)),
            ("k is of dtype int32", k_cache, v_cache, new.astype(np.int32), new, dict(cache_seqlens=self.lengths)),
            ("v: an argument is of type list", k_cache, v_cache, new, new.tolist(), dict(cache_seqlens=self.lengths)),
            ("cache_batch_idx: an argument is of type list", k_cache, v_cache, new, new, dict(cache_seqlens=self.lengths, cache_batch_idx=[0, 1])),
            ("v_cache can't be written to", k_cache, read_only, new, new, dict(cache_seqlens=self.lengths)),
            ("softcap is -1", k_cache, v_cache, new, new, dict(cache_seqlens=self.lengths, softcap=-1)),
            ("no attention backend 'abacus'", k_cache, v_cache, new, new, dict(cache_seqlens=self.lengths, backend="abacus")),
        ]
        for error, k, v, k_new, v_new, arguments in cases:
            before = k.copy(), v.copy()
            with self.subTest(error, k=np.shape(k_new)), self.assertRaisesRegex(tessera.InvalidArgumentError, error):
                tessera.flash_attn_with_kvcache(self.q, k, v, k_new, v_new, **arguments)
            np.testing.assert_array_equal((k, v), before)
        # Nor what a plan does not fit.
        plan = tessera.plan(tessera.flash_attn_with_kvcache, self.q, k_cache, v_cache, new, new, cache_seqlens=self.lengths)
        for arguments in (dict(softcap=3.0), dict(causal=True), dict(sinks=normal(4))):
            before = k_cache.copy(), v_cache.copy()
            with self.subTest(arguments), self.assertRaisesRegex(tessera.InvalidArgumentError, "not what the plan was made with"):
                plan.run(self.q, k_cache, v_cache, new, new, cache_seqlens=self.lengths, **arguments)
            np.testing.assert_array_equal((k_cache, v_cache), before)

    def test_what_is_not_supported_says_so(self):
        for name in ("rotary_cos", "cache_leftpad"):
            with self.subTest(name), self.assertRaisesRegex(tessera.UnsupportedError, name):
                tessera.flash_attn_with_kvcache(self.q, self.k_cache[:2], self.v_cache[:2], **{name: normal(1)})


class OtherLibraries(unittest.TestCase):
    def test_dlpack_is_taken_in_place(self):
        q, k, v, out = normal(1, 2, 3, 8), normal(1, 2, 4, 8), normal(1, 2, 4, 8), np.zeros((1, 2, 3, 8), np.float32)
        tessera.sdpa(OnlyDlpack(q), OnlyDlpack(k), OnlyDlpack(v), out=OnlyDlpack(out))
        np.testing.assert_allclose(out, naive.attention(q, k, v)[0], rtol=0, atol=F32_BOUND)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "out="):
            tessera.sdpa(OnlyDlpack(q), OnlyDlpack(k), OnlyDlpack(v))


class Others(unittest.TestCase):
    def test_explain(self):
        q = normal(1, 4, 64, 32)
        explanation = tessera.explain(tessera.sdpa, q, q, q, is_causal=True)
        self.assertEqual(explanation.flops, 4 * 2 * 64 * 65 // 2 * 64)
        self.assertEqual(explanation.backend, "cpu")
        self.assertIn("reference", explanation.rejected)
        self.assertIn(explanation.problem, str(explanation))
        self.assertGreater(explanation.predicted_ms, 0)

    def test_backends(self):
        names = [b.name for b in tessera.backends()]
        self.assertEqual(names[0], "cpu")
        self.assertIn("reference", names)
        q = normal(1, 2, 3, 8)
        for name in ("cpu", "unfused", "reference"):
            np.testing.assert_allclose(tessera.sdpa(q, q, q, backend=name), naive.attention(q, q, q)[0], rtol=0, atol=F32_BOUND)

    def test_verify(self):
        seen = []
        results = tessera.verify("cpu", filter="softcap", on_result=seen.append)
        self.assertEqual(results, seen)
        self.assertTrue(results and all(r.passed and r.error <= r.bound for r in results if not r.unsupported_reason))

        def interrupt(_):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            tessera.verify("cpu", filter="softcap", on_result=interrupt)
        with self.assertRaises(tessera.InvalidArgumentError):
            tessera.verify("cpu", filter="no such case")

    def test_threads(self):
        before = tessera.num_threads()
        tessera.set_num_threads(2)
        self.assertLessEqual(tessera.num_threads(), 2)
        tessera.set_num_threads(before)
        with self.assertRaises(tessera.InvalidArgumentError):
            tessera.set_num_threads(-1)


class Layout(unittest.TestCase):
    def test_structs_are_those_of_the_header(self):
        structs = {
            name: struct for name, struct in vars(_library).items()
            if isinstance(struct, type) and issubclass(struct, ctypes.Structure) and hasattr(struct, "_fields_")
        }  # fmt: skip
        self.assertGreater(len(structs), 20)
        lines = []
        for name, struct in structs.items():
            lines.append(f'printf("{name} %zu", sizeof(tessera_{name}));')
            for field, *_ in struct._fields_:
                lines.append(f'printf(" %zu", offsetof(tessera_{name}, {field}));')
            lines.append('printf("\\n");')
        include = pathlib.Path(os.environ["TESSERA_SOURCE_DIR"]) / "include"
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder) / "layout.c", pathlib.Path(folder) / "layout"
            source.write_text('#include <stdio.h>\n#include "tessera/tessera.h"\nint main(void) {\n' + "\n".join(lines) + "\nreturn 0; }\n")
            subprocess.run(["cc", "-I", include, source, "-o", program], check=True)
            printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        for line in printed.splitlines():
            name, size, *offsets = line.split()
            struct = structs[name]
            self.assertEqual(int(size), ctypes.sizeof(struct), name)
            self.assertEqual([int(o) for o in offsets], [getattr(struct, f).offset for f, *_ in struct._fields_], name)


if __name__ == "__main__":
    unittest.main()
