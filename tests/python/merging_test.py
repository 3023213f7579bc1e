"""merge_states beside its formula and beside attention over all keys, both in double precision."""

import re
import unittest

import naive
import numpy as np
import tessera
from arrays import F32_BOUND, bshd, normal


def merged(o_a, lse_a, o_b, lse_b):
    """o: (batch, heads, seq, head_dim), lse: (batch, heads, seq). Returns (o, lse)."""
    o_a, lse_a, o_b, lse_b = (np.asarray(x, np.float64) for x in (o_a, lse_a, o_b, lse_b))
    lse = np.logaddexp(lse_a, lse_b)
    with np.errstate(invalid="ignore"):
        weight_a, weight_b = (np.where(np.isneginf(lse), 0, np.exp(x - lse))[..., None] for x in (lse_a, lse_b))
    return weight_a * o_a + weight_b * o_b, lse


class MergeStates(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = normal(2, 4, 5, 16), normal(2, 2, 9, 16), normal(2, 2, 9, 16)

    def halves(self, **options):
        """(o, lse) over the first four keys, and over the other five."""
        both = [(self.k[:, :, :4], self.v[:, :, :4]), (self.k[:, :, 4:], self.v[:, :, 4:])]
        return [tessera.sdpa(self.q, k, v, enable_gqa=True, return_lse=True, **options) for k, v in both]

    def close(self, got, expected, bound=F32_BOUND):
        np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=0, atol=bound)

    def test_halves_of_the_keys_make_the_whole(self):
        expected = naive.attention(self.q, self.k, self.v)
        (o_a, lse_a), (o_b, lse_b) = self.halves()
        o, lse = tessera.merge_states(o_a, lse_a, o_b, lse_b, "batch_heads_seq", return_lse=True)
        self.close(o, expected[0])
        self.close(lse, expected[1])
        only_o = tessera.merge_states(bshd(o_a), lse_a, bshd(o_b), lse_b, "batch_seq_heads")
        np.testing.assert_array_equal(bshd(only_o), o)

    def test_all_backends_and_dtypes_follow_the_formula(self):
        for backend in (None, "cpu", "reference"):
            for dtype, unit in ((np.float32, 2**-24), (np.float16, 2**-11)):
                o_a, o_b = normal(3, 2, 6, 24, dtype=dtype), normal(3, 2, 6, 24, dtype=dtype)
                lse_a, lse_b = 5 * normal(3, 2, 6), 5 * normal(3, 2, 6)
                with self.subTest(backend=backend, dtype=dtype):
                    o, lse = tessera.merge_states(o_a, lse_a, o_b, lse_b, "batch_heads_seq", return_lse=True, backend=backend)
                    self.assertEqual((o.dtype, lse.dtype), (dtype, np.float32))
                    expected = merged(o_a, lse_a, o_b, lse_b)
                    # A result below 4 is rounded once; fp32's exponentials and products before that.
                    self.close(o, expected[0], 4 * unit + F32_BOUND)
                    self.close(lse, expected[1], 20 * 2**-23)

    def test_ragged_results(self):
        cu_q, cu_k = np.array([0, 3, 5], np.int32), np.array([0, 4, 11], np.int32)
        q, k, v = normal(5, 4, 16), normal(11, 2, 16), normal(11, 2, 16)
        more_k, more_v, cu_more = normal(6, 2, 16), normal(6, 2, 16), np.array([0, 0, 6], np.int32)  # none of the first sequence
        o_a, lse_a, _ = tessera.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 3, 7, return_attn_probs=True)
        o_b, lse_b, _ = tessera.flash_attn_varlen_func(q, more_k, more_v, cu_q, cu_more, 3, 6, return_attn_probs=True)
        o, lse = tessera.merge_states(o_a, lse_a, o_b, lse_b, return_lse=True)
        self.assertEqual((o.shape, lse.shape), ((5, 4, 16), (4, 5)))
        np.testing.assert_array_equal(o[:3], o_a[:3])
        for rows, keys, values in (
            (slice(0, 3), k[:4], v[:4]),
            (slice(3, 5), np.concatenate([k[4:], more_k]), np.concatenate([v[4:], more_v])),
        ):
            want = naive.attention(bshd(q[None, rows]), bshd(keys[None]), bshd(values[None]))
            self.close(o[rows], bshd(want[0])[0])
            self.close(lse[:, rows], want[1][0])

    def test_what_saw_nothing_adds_nothing(self):
        nothing, none = np.zeros((1, 2, 3, 8), np.float32), np.full((1, 2, 3), -np.inf, np.float32)
        o, lse = normal(1, 2, 3, 8), normal(1, 2, 3)
        for first, second in (((o, lse), (nothing, none)), ((nothing, none), (o, lse))):
            got = tessera.merge_states(*first, *second, "batch_heads_seq", return_lse=True)
            np.testing.assert_array_equal(got[0], o)
            np.testing.assert_array_equal(got[1], lse)
        got = tessera.merge_states(o, none, o, none, "batch_heads_seq", return_lse=True)
        self.assertTrue((got[0] == 0).all() and np.isneginf(got[1]).all())
        wrong = lse.copy()
        wrong[0, 1, 2] = np.nan
        got = tessera.merge_states(o, wrong, nothing, none, "batch_heads_seq", return_lse=True)
        np.testing.assert_array_equal(np.isnan(got[1]), np.isnan(wrong))
        np.testing.assert_array_equal(np.isnan(got[0]).all(-1), np.isnan(wrong))
        np.testing.assert_array_equal(np.isnan(got[0]).any(-1), np.isnan(wrong))

    def test_strides_and_places_of_results(self):
        (o_a, lse_a), (o_b, lse_b) = self.halves()
        expected = merged(o_a, lse_a, o_b, lse_b)
        by_columns, reversed_o = np.asfortranarray(o_a), np.ascontiguousarray(o_b[::-1])[::-1]
        of_heads_last = np.ascontiguousarray(np.moveaxis(lse_a, 1, 2)).transpose(0, 2, 1)
        out, lse = np.zeros((2, 5, 4, 20), np.float32), np.zeros((2, 4, 10), np.float32)
        o = tessera.merge_states(by_columns, of_heads_last, reversed_o, lse_b, "batch_heads_seq", out=bshd(out[..., 2:18]), lse=lse[..., ::2])
        self.assertTrue(np.shares_memory(o, out))
        self.close(bshd(out[..., 2:18]), expected[0])
        self.close(lse[..., ::2], expected[1])
        self.assertFalse(out[..., :2].any() or out[..., 18:].any() or lse[..., 1::2].any(), "between the results")
        # In the place of either argument.
        for a, b in ((0, 1), (1, 0)):
            states = [[o_a.copy(), lse_a.copy()], [o_b.copy(), lse_b.copy()]]
            got = tessera.merge_states(*states[0], *states[1], "batch_heads_seq", out=states[a][0], lse=states[b][1], return_lse=True)
            self.assertIs(got[0], states[a][0])
            self.assertIs(got[1], states[b][1])
            self.close(got[0], expected[0])
            self.close(got[1], expected[1])

    def test_no_rows(self):
        for shape in ((0, 4, 5, 16), (2, 4, 0, 16)):
            o, lse = np.zeros(shape, np.float32), np.zeros(shape[:3], np.float32)
            self.assertEqual(tessera.merge_states(o, lse, o, lse, "batch_heads_seq").shape, shape)
        o, lse = np.zeros((0, 4, 16), np.float32), np.zeros((4, 0), np.float32)
        self.assertEqual(tessera.merge_states(o, lse, o, lse).shape, (0, 4, 16))

    def test_errors_say_what_is_wrong(self):
        o, lse = normal(2, 4, 5, 16), normal(2, 4, 5)
        twice, lses = normal(3, 4, 5, 16), normal(3, 4, 5)
        read_only = np.zeros_like(o)
        read_only.flags.writeable = False
        layout = "batch_heads_seq"
        for arguments, options, part in [
            ((o, lse, o, lse), {}, "layout is None; expected 'batch_heads_seq' for results of sdpa, 'batch_seq_heads' for those of flash_attn_"),
            ((o, lse, o, lse, "bhsd"), {}, "layout is 'bhsd'; expected"),
            ((o[0], lse[0], o[0], lse[0], layout), {}, "layout is 'batch_heads_seq' with o_a of shape (4, 5, 16); expected None"),
            ((o[0, 0], lse[0, 0], o[0, 0], lse[0, 0], layout), {}, "o_a has shape (5, 16); expected 4 dimensions, or 3"),
            ((o, lse, o[:, :, :4], lse, layout), {}, "o_b has shape (2, 4, 4, 16) and dtype f32 on the CPU; expected (2, 4, 5, 16), f32, on the CPU, as o_a"),
            ((o, lse, o.astype(np.float16), lse, layout), {}, "o_b has shape (2, 4, 5, 16) and dtype f16"),
            ((o, lse[..., None], o, lse, layout), {}, "lse_a has shape (2, 4, 5, 1) and dtype f32 on the CPU; expected (2, 4, 5), f32"),
            ((o, lse, o, lse.astype(np.float64), layout), {}, "lse_b has shape (2, 4, 5) and dtype f64"),
            ((o, lse, o, lse, "batch_seq_heads"), {}, "lse_a has shape (2, 4, 5) and dtype f32 on the CPU; expected (2, 5, 4)"),
            ((o, lse, o, lse[..., ::-1], layout), {}, "lse_b: an array has strides of (80, 20, -4) bytes; expected whole elements, not negative"),
            ((o.tolist(), lse, o, lse, layout), {}, "o_a: an argument is of type list"),
            ((o, None, o, lse, layout), {}, "lse_a: an argument is of type NoneType"),
            ((o.astype("c8"), lse, o, lse, layout), {}, "o_a: an array is of dtype complex64"),
            ((o.astype(np.int32), lse, o.astype(np.int32), lse, layout), {}, "o_a.dtype is i32; expected f32, f16, bf16"),
            ((o, lse, o, lse, layout), dict(out=normal(2, 4, 5, 8)), "out has shape (2, 4, 5, 8)"),
            ((o, lse, o, lse, layout), dict(out=read_only), "out is an array that may not be written to; expected one that may"),
            ((o, lse, o, lse, layout), dict(out=np.zeros((2, 4, 5, 32), np.float32)[..., ::2]), "out has strides (640, 160, 32, 2); expected 1"),
            ((o, lse, o, lse, layout), dict(lse=normal(2, 5, 4)), "lse has shape (2, 5, 4)"),
            ((twice[:2], lse, o, lse, layout), dict(out=twice[1:]), "expected memory that o_a"),
            ((o, lse, o, lses[:2], layout), dict(lse=lses[1:]), "expected memory that lse_b"),
            ((o, lse, o, lse, layout), dict(backend="abacus"), "no attention backend 'abacus'"),
            ((o, lse, o, lse, layout), dict(backend=3), "backend is 3; expected a name"),
        ]:
            with self.subTest(part), self.assertRaisesRegex(tessera.InvalidArgumentError, re.escape(part)):
                tessera.merge_states(*arguments, **options)
        with self.assertRaisesRegex(tessera.UnsupportedError, "backend 'cpu' can't merge these states"):
            tessera.merge_states(o.astype(np.float64), lse, o.astype(np.float64), lse, layout, backend="cpu")


if __name__ == "__main__":
    unittest.main()
