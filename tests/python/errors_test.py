"""What calls say of arguments that are wrong: which one, how, and what was expected."""

import re
import unittest

import numpy as np
import tessera
from arrays import OnlyDlpack, normal


def ints(*values):
    return np.array(values, np.int32)


class Errors(unittest.TestCase):
    def check(self, function, cases, kind=tessera.InvalidArgumentError):
        for arguments, options, part in cases:
            with self.subTest(part), self.assertRaisesRegex(kind, re.escape(part)):
                function(*arguments, **options)

    def test_sdpa(self):
        q, k = normal(2, 4, 5, 16), normal(2, 4, 9, 16)
        given = q, k, k
        wide = np.zeros((2, 4, 5, 32), np.float32)
        self.check(tessera.sdpa, [
            ((q[0], k[0], k[0]), {}, "q has shape (4, 5, 16); expected (batch, heads, seq, head_dim)"),
            ((q, k[0], k[0]), {}, "k has shape (4, 9, 16); expected (batch, heads, seq, head_dim)"),
            ((q, k[:1], k[:1]), {}, "k has 1 sequences and q 2; expected as many"),
            ((q, k[:, :2], k[:, :2]), {}, "query has 4 heads and key 2; expected as many, or enable_gqa=True"),
            ((q, k[:, :3], k[:, :3]), dict(enable_gqa=True), "num_kv_heads is 3; expected"),
            ((q, k.astype(np.float16), k), {}, "k.dtype is f16; expected f32"),
            ((q, k, k.astype(np.int32)), {}, "v.dtype is i32; expected f32"),
            ((q.astype(np.int32),) * 3, {}, "dtype is i32; expected"),
            ((q.astype(">f4"), k, k), {}, "q: an array is of dtype >f4; expected one that tessera has"),
            ((OnlyDlpack(q[..., ::2]), k[..., :8], k), dict(out=q), "q: a tensor has strides (320, 80, 16, 2); expected 1 along the last dimension"),
            (given, dict(out=wide[..., ::2]), "out has shape (2, 4, 5, 16) and strides (640, 160, 32, 2) on the CPU; expected"),
            (given, dict(out=np.zeros((2, 4, 5, 16), np.float16)), "o.dtype is f16; expected f32"),
            (given, dict(out=q), "expected memory that q"),
            (given, dict(attn_mask=np.zeros((5, 9), np.int64)), "the mask is of dtype i64; expected bool (True is visible), or f32, f16 or bf16"),
            (given, dict(attn_mask=np.zeros((5, 9), np.uint8)), "the mask is of dtype u8; expected bool"),
            (given, dict(attn_mask=np.zeros((5, 9), bool)[:, ::-1]), "the mask: an array has strides of (9, -1) bytes; expected whole elements, not negative"),
            (given, dict(alibi_slopes=normal(3)), "alibi_slopes has shape (3,); expected (4,) or (2, 4)"),
            (given, dict(alibi_slopes=normal(4, dtype=np.float64)), "alibi_slopes is of dtype f64; expected f32"),
            (given, dict(sinks=normal(4, 1)), "sinks has shape (4, 1); expected 1 dimension"),
            (given, dict(scale="0.5"), "scale is '0.5'; expected a number"),
            (given, dict(scale=None, softcap=[1]), "softcap is [1]; expected a number"),
            (given, dict(softcap=-1), "softcap is -1; expected"),
            (given, dict(scale=1e300), "a size or number of the call is out of range"),
            (given, dict(window_size=(2**70, 0)), "a size or number of the call is out of range"),
            (given, dict(causal_alignment="left"), "causal_alignment is 'left'; expected 'top_left' or 'bottom_right'"),
            (given, dict(stream="0"), "stream is '0'; expected the address of a CUstream or hipStream_t"),
        ])  # fmt: skip
        # Heads are compared for arrays of any library.
        self.check(tessera.sdpa, [((q, OnlyDlpack(k[:, :2]), OnlyDlpack(k[:, :2])), {}, "query has 4 heads and key 2")])

    def test_varlen(self):
        q, k, cu_q, cu_k = normal(5, 4, 16), normal(11, 2, 16), ints(0, 3, 5), ints(0, 4, 11)
        pages, table = normal(6, 4, 2, 16), ints(0, 1, 2, 3).reshape(2, 2)
        self.check(tessera.flash_attn_varlen_func, [
            ((q[None], k, k, cu_q, cu_k, 3, 7), {}, "q has shape (1, 5, 4, 16); expected (total_q, heads, head_dim)"),
            ((q, k[None], k[None], cu_q, cu_k, 3, 7), {}, "k has shape (1, 11, 2, 16); expected (total_kv, kv_heads, head_dim)"),
            ((q, k, k, cu_q.astype(np.int64), cu_k, 3, 7), {}, "cu_seqlens_q is of dtype i64; expected i32"),
            ((q, k, k, cu_q, cu_k[:2], 3, 7), {}, "cu_seqlens_k has 2 elements; expected 3, one more than sequences"),
            ((q, k, k, [0, 3, 5], cu_k, 3, 7), {}, "cu_seqlens_q: an argument is of type list; expected a numpy array"),
            ((q, k, k, cu_q, cu_k, 3, 7), dict(softmax_scale="0.5"), "softmax_scale is '0.5'; expected a number"),
            ((q, k, k, cu_q, cu_k, "3", 7), {}, "max_seqlen_q is '3'; expected a whole number"),
            ((q, k, k, cu_q, cu_k, 2, 7), {}, "seq_len_q"),
            ((q, k, k, cu_q, ints(0, 12, 11), 3, 12), {}, "cu_seqlens"),
            ((q, k, k, cu_q, cu_k, 3, 7), dict(block_table=table), "k has shape (11, 2, 16); expected (pages, page_size, kv_heads, head_dim)"),
            ((q, pages, pages, cu_q, [0, 4, 8], 3, 8), dict(block_table=table), "cu_seqlens_k: an argument is of type list; expected a numpy array"),
            ((q, pages, pages, cu_q, OnlyDlpack(ints(0, 4, 8)), 3, 8), dict(block_table=table),
             "cu_seqlens_k is of type OnlyDlpack; expected a numpy array or a torch tensor, with which the call computes"),
            ((q, pages, pages, cu_q, ints(0, 4), 3, 8), dict(block_table=table), "block_table has 2 rows and cu_seqlens_k's lengths 1 elements; expected 2"),
        ])  # fmt: skip

    def test_kvcache(self):
        q, cache, new = normal(2, 1, 4, 16), normal(2, 12, 2, 16), normal(2, 1, 2, 16)
        pages, table, lengths = normal(6, 4, 2, 16), ints(0, 1, 2, 3).reshape(2, 2), ints(3, 4)
        self.check(tessera.flash_attn_with_kvcache, [
            ((q[0], cache, cache), {}, "q has shape (1, 4, 16); expected (batch, seq, heads, head_dim)"),
            ((q, cache[0], cache[0]), {}, "k_cache has shape (12, 2, 16); expected (batch, seq, heads, head_dim)"),
            ((q, cache[:1], cache[:1]), {}, "k_cache has 1 sequences and q 2; expected as many"),
            ((q, cache, cache[:, :4]), {}, "k_cache has shape (2, 12, 2, 16) and v_cache (2, 4, 2, 16); expected them to differ in head_dim only"),
            ((q, cache[..., :8], cache), {}, "q has head_dim 16 and k_cache 8; expected the same"),
            ((q, cache.tolist(), cache), dict(cache_seqlens=lengths), "k_cache: an argument is of type list"),
            ((q.tolist(), cache, cache), dict(cache_seqlens=3), "q: an argument is of type list"),
            ((q, cache, cache), dict(cache_seqlens=lengths.astype(np.int64)), "cache_seqlens is of dtype i64; expected i32"),
            ((q, cache, cache), dict(cache_seqlens=lengths[:1]), "cache_seqlens has 1 elements; expected 2, the sequences of q"),
            ((q, cache, cache), dict(cache_seqlens=[3, 4]), "cache_seqlens: an argument is of type list"),
            ((q, cache, cache, new, new), dict(cache_seqlens=[3, 4]), "cache_seqlens: an argument is of type list"),
            ((q, cache, cache, new, new), dict(cache_seqlens=OnlyDlpack(lengths)), "cache_seqlens is of type OnlyDlpack; expected a numpy array or a torch tensor"),
            ((q, cache, cache), dict(cache_seqlens=lengths, cache_batch_idx=OnlyDlpack(lengths)), "cache_batch_idx is of type OnlyDlpack"),
            ((q, cache, cache, new), dict(cache_seqlens=lengths), "one of k and v is None; expected both or neither"),
            ((q, cache, cache, new, new), {}, "cache_seqlens is None; expected the number of tokens that each cache has"),
            ((q, pages[0], pages[0]), dict(cache_seqlens=lengths, block_table=table), "k_cache has shape (4, 2, 16); expected (pages, page_size, kv_heads, head_dim)"),
            ((q, pages, pages), dict(cache_seqlens=lengths, block_table=table[:1]), "block_table has 1 rows and cache_seqlens 2 elements; expected 2, the sequences of q"),
            ((q, pages, pages), dict(cache_seqlens=lengths, block_table=table[0]), "block_table has shape (2,); expected 2 dimensions"),
            ((q, pages, pages), dict(cache_seqlens=lengths, block_table=table.astype(np.int64)), "block_table is of dtype i64; expected i32"),
            ((q, pages, pages), dict(cache_seqlens=lengths, block_table=table + 9), "block_table"),
        ])  # fmt: skip
        np.testing.assert_array_equal(
            tessera.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=np.int64(6)), tessera.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=6)
        )


if __name__ == "__main__":
    unittest.main()
