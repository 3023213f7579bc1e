"""What runs a call, and with what: forced values, workspaces, where log-sum-exps go, costs and reasons."""

import re
import threading
import unittest

import naive
import numpy as np
import tessera
from arrays import F32_BOUND, normal
from tessera import _library


def flags_of(function, *args, **kwargs):
    """The flags that the library gets of a call."""
    call = tessera.attention._call_of(function, args, kwargs)
    return _library.attention_problem.from_buffer_copy(call.problem).flags


class Forced(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = normal(2, 4, 40, 16), normal(2, 2, 200, 16), normal(2, 2, 200, 16)

    def plan(self, **options):
        return tessera.plan(tessera.sdpa, self.q, self.k, self.v, enable_gqa=True, **options)

    def test_values_are_those_of_the_plan(self):
        expected = naive.attention(self.q, self.k, self.v)[0]
        forced = {"block_m": 4, "block_n": 96, "num_splits": 3}
        plan = self.plan(config=forced)
        self.assertLessEqual(forced.items(), plan.config.items())
        self.assertNotEqual(self.plan().config, plan.config)
        for o in (
            plan.run(self.q, self.k, self.v, enable_gqa=True),
            tessera.sdpa(self.q, self.k, self.v, enable_gqa=True, config=forced),
            tessera.sdpa(self.q, self.k, self.v, enable_gqa=True, config=plan.config),  # every value filled in
        ):
            np.testing.assert_allclose(o, expected, rtol=0, atol=F32_BOUND)
        self.assertEqual(self.plan(config={"num_parts": 5}).config, self.plan().config, "which no kernel here has")
        self.assertEqual(self.plan(config={}).config, self.plan().config)

    def test_all_functions_take_them(self):
        q, k = np.swapaxes(self.q, 1, 2), np.swapaxes(self.k, 1, 2)
        cu_q, cu_k = np.array([0, 40, 80], np.int32), np.array([0, 200, 400], np.int32)
        ragged = [np.ascontiguousarray(x).reshape(-1, *x.shape[2:]) for x in (q, k)]
        for function, arguments in (
            (tessera.flash_attn_func, (q, k, k)),
            (tessera.flash_attn_varlen_func, (*ragged, ragged[1], cu_q, cu_k, 40, 200)),
            (tessera.flash_attn_with_kvcache, (q, k, k)),
        ):
            with self.subTest(function.__name__):
                config = tessera.plan(function, *arguments, config={"block_m": 4, "num_splits": 2}).config
                self.assertEqual((config["block_m"], config["num_splits"]), (4, 2))
        plan = tessera.plan(tessera.flash_attn_with_kvcache, q, k, k, num_splits=3, config={"num_splits": 3, "block_m": 4})
        self.assertEqual(plan.config["num_splits"], 3)

    def test_errors_say_what_is_wrong(self):
        q, k = np.swapaxes(self.q, 1, 2), np.swapaxes(self.k, 1, 2)
        for config, part in [
            ({"block_q": 4}, "config has 'block_q'; expected some of block_m, block_n, num_warps, num_stages, num_splits, num_parts"),
            ({"block_m": 1.5}, "config's block_m is 1.5; expected a whole number"),
            ({"block_m": 2**40}, "config's block_m is 1099511627776; expected a number of 32 bits"),
            ({"block_n": -4}, "config.block_n is -4; expected 0, which is chosen, or more"),
            ({"num_splits": 2**30}, "config.num_splits is 1073741824; the cpu kernels take"),
            ([1, 2], "config is of type list; expected a dict"),
        ]:
            with self.subTest(part), self.assertRaisesRegex(tessera.InvalidArgumentError, re.escape(part)):
                tessera.flash_attn_func(q, k, k, config=config)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "num_splits is 3 and config's 2; expected one of them"):
            tessera.flash_attn_with_kvcache(q, k, k, num_splits=3, config={"num_splits": 2})

    def test_a_plan_takes_no_other_values_than_its_own(self):
        plan = self.plan(config={"block_m": 4})
        arguments = self.q, self.k, self.v
        expected = plan.run(*arguments, enable_gqa=True)
        for same in ({"block_m": 4}, {"block_m": 0}, plan.config):
            np.testing.assert_array_equal(plan.run(*arguments, enable_gqa=True, config=same), expected)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "block_m is 8, and the plan's is 4; expected that or 0"):
            plan.run(*arguments, enable_gqa=True, config={"block_m": 8})


class Workspaces(unittest.TestCase):
    def setUp(self):
        self.q, self.k = normal(1, 1, 4, 64), normal(1, 2000, 2, 64)
        self.plan = tessera.plan(tessera.flash_attn_func, self.q, self.k, self.k, config={"num_splits": 4})
        self.size = self.plan.workspace_bytes
        self.assertGreater(self.size, 0)

    def test_runs_at_the_same_time_have_one_each(self):
        queries = [normal(1, 1, 4, 64) for _ in range(4)]
        expected = [self.plan.run(q, self.k, self.k) for q in queries]
        wrong = []

        def work(i):
            memory = np.empty(self.size + 63, np.uint8)
            for _ in range(20):
                if not np.array_equal(self.plan.run(queries[i], self.k, self.k, workspace=memory), expected[i]):
                    wrong.append(i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_nothing_outside_is_written(self):
        memory = np.full(self.size + 256, 0xA5, np.uint8)
        skipped = -memory.ctypes.data % 64
        self.plan.run(self.q, self.k, self.k, workspace=memory[: skipped + self.size])
        self.assertTrue((memory[:skipped] == 0xA5).all() and (memory[skipped + self.size :] == 0xA5).all())
        self.assertFalse((memory == 0xA5).all())

    def test_errors_say_what_is_wrong(self):
        aligned = np.empty(self.size + 128, np.uint8)
        aligned = aligned[-aligned.ctypes.data % 64 :]
        read_only = np.empty(self.size + 63, np.uint8)
        read_only.flags.writeable = False
        for workspace, part in [
            (aligned[: self.size - 1], f"workspace has {self.size - 1} bytes, 0 of them in front of a multiple of 64; expected {self.size} from there on"),
            (aligned[1 : 1 + self.size], f"workspace has {self.size} bytes, 63 of them in front of a multiple of 64"),
            (np.empty(self.size, np.float32), f"workspace has shape ({self.size},), strides (1,) and dtype f32; expected one dimension, contiguous, u8"),
            (np.empty((2, self.size), np.uint8), "expected one dimension"),
            (np.empty(4 * self.size, np.uint8)[::2], "strides (2,)"),
            (read_only, "workspace is an array that may not be written to"),
            (bytearray(self.size), "workspace: an argument is of type bytearray"),
        ]:
            with self.subTest(part), self.assertRaisesRegex(tessera.InvalidArgumentError, re.escape(part)):
                self.plan.run(self.q, self.k, self.k, workspace=workspace)


class LogSumExps(unittest.TestCase):
    def test_they_go_where_they_are_wanted(self):
        q, k = normal(2, 4, 5, 16), normal(2, 4, 9, 16)
        expected = naive.attention(q, k, k)[1]
        for _ in range(2):  # a new call, and one that is known
            lse = np.zeros((2, 4, 10), np.float32)
            o, its_lse = tessera.sdpa(q, k, k, lse=lse[..., ::2], return_lse=True)
            np.testing.assert_allclose(lse[..., ::2], expected, rtol=0, atol=F32_BOUND)
            self.assertFalse(lse[..., 1::2].any())
            self.assertTrue(np.shares_memory(its_lse, lse))
            lse = np.zeros((2, 4, 5), np.float32)
            np.testing.assert_array_equal(tessera.flash_attn_func(*(np.swapaxes(x, 1, 2) for x in (q, k, k)), lse=lse), np.swapaxes(o, 1, 2))
            np.testing.assert_allclose(lse, expected, rtol=0, atol=F32_BOUND)
            lse.flags.writeable = False
            with self.assertRaisesRegex(tessera.InvalidArgumentError, "lse is an array that may not be written to"):
                tessera.flash_attn_func(*(np.swapaxes(x, 1, 2) for x in (q, k, k)), lse=lse)
        for wrong, part in ((np.zeros((2, 5, 4), np.float32), r"lse has shape \(2, 5, 4\)"), (np.zeros((2, 4, 5)), "dtype f64"), ([], "lse: an argument is of type list")):
            with self.assertRaisesRegex(tessera.InvalidArgumentError, part):
                tessera.sdpa(q, k, k, lse=wrong)


class Settled(unittest.TestCase):
    def test_it_is_promised_only_of_what_the_call_does_not_write(self):
        q, k = normal(2, 1, 4, 16), normal(2, 12, 2, 16)
        lengths, table = np.array([7, 11], np.int32), np.array([[1], [0]], np.int32)
        cu_q, cu_k = np.array([0, 1, 2], np.int32), np.array([0, 7, 18], np.int32)
        new = normal(2, 1, 2, 16)
        ragged = q.reshape(2, 4, 16), normal(18, 2, 16), normal(18, 2, 16)
        cache, varlen = tessera.flash_attn_with_kvcache, tessera.flash_attn_varlen_func
        for function, arguments, options, promised in (
            (tessera.flash_attn_func, (q, k, k), {}, True),
            (tessera.flash_attn_func, (q[:, :, ::-1], k, k), {}, True),  # q may be copied
            (tessera.flash_attn_func, (q, k[:, ::-1], k), {}, False),
            (cache, (q, k, k), {}, True),
            (cache, (q, k, k), dict(cache_seqlens=lengths), True),
            (cache, (q, k, k), dict(cache_seqlens=lengths, block_table=table), True),
            (cache, (q, k, k), dict(cache_seqlens=lengths, cache_batch_idx=table[:, 0]), True),
            (cache, (q, k, k), dict(cache_batch_idx=table[:, 0]), False),
            (cache, (q, k, k), dict(cache_seqlens=7), False),
            (cache, (q, k, k, new, new), dict(cache_seqlens=lengths), False),
            (varlen, (*ragged, cu_q, cu_k, 1, 11), {}, True),
            (varlen, (ragged[0], k, k, cu_q, cu_k, 1, 12), dict(block_table=table), False),
        ):
            with self.subTest(function.__name__, options=list(options), n=len(arguments)):
                for settled in (False, True):
                    flags = flags_of(function, *arguments, **options, settled_kv=settled)
                    self.assertEqual(bool(flags & _library.SETTLED_KV), settled and promised)
        np.testing.assert_array_equal(tessera.flash_attn_func(q, k, k, settled_kv=True), tessera.flash_attn_func(q, k, k))


class Reasons(unittest.TestCase):
    def test_cost(self):
        q = normal(1, 4, 64, 32)
        cost = tessera.cost(tessera.sdpa, q, q, q, is_causal=True)
        self.assertEqual(cost.problem, "f32, batch 1, seq_len 64/64, heads 4/4, head_dim 32, causal (top-left)")
        self.assertEqual(cost.flops, 4 * 64 * 65 // 2 * 2 * 64)
        self.assertEqual(cost.bytes, 4 * q.nbytes)
        explanation = tessera.explain(tessera.sdpa, q, q, q, is_causal=True)
        self.assertEqual(cost, (explanation.problem, explanation.flops, explanation.bytes))
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "num_kv_heads is 3"):
            tessera.cost(tessera.flash_attn_func, normal(1, 5, 4, 16), *[normal(1, 5, 3, 16)] * 2)

    def test_unsupported_reason(self):
        q = normal(1, 2, 3, 8)
        for backend in ("cpu", "unfused", "reference"):
            self.assertEqual(tessera.unsupported_reason(backend, tessera.sdpa, q, q, q), "")
        wide = q.astype(np.float64)
        self.assertIn("f64", tessera.unsupported_reason("cpu", tessera.sdpa, wide, wide, wide))
        self.assertEqual(tessera.unsupported_reason("reference", tessera.sdpa, wide, wide, wide), "")
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "no attention backend 'abacus'"):
            tessera.unsupported_reason("abacus", tessera.sdpa, q, q, q)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "backend is None; expected a name"):
            tessera.unsupported_reason(None, tessera.sdpa, q, q, q)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "has no plan; expected one of tessera's sdpa, flash_attn_func"):
            tessera.unsupported_reason("cpu", np.dot, q, q, q)

    def test_explanations_of_modifiers(self):
        q = normal(1, 2, 256, 8)
        modifier = tessera.Modifier("score * 2.0", "kv_idx <= q_idx")
        lines = tessera.explain(tessera.sdpa, q, q, q, modifier=modifier).modifier
        self.assertGreater(len(lines), 2)
        # Of 4 tiles of 128 queries and keys one is hidden, one visible as a whole, and two are cut by the diagonal.
        self.assertRegex(lines[-1], "25.0% empty, 25.0% full, 50.0% mixed")
        self.assertEqual(tessera.explain(tessera.sdpa, q, q, q).modifier, [])

    def test_weights_are_of_8_bits_only_where_a_plan_says_so(self):
        q = normal(1, 2, 3, 8)
        self.assertIs(tessera.plan(tessera.sdpa, q, q, q).narrow_weights, False)


if __name__ == "__main__":
    unittest.main()
