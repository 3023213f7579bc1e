"""Engines: requests side by side, streamed, cancelled, from many threads, held to forms of text."""

import asyncio
import concurrent.futures
import copy
import gc
import json
import os
import pathlib
import pickle
import re
import threading
import unittest
import unittest.mock

import numpy as np
import tessera

DEMO = pathlib.Path(os.environ["TESSERA_SOURCE_DIR"]) / "models" / "demo"
BACKEND = os.environ.get("TESSERA_TEST_BACKEND", "cpu")  # to run the same on a GPU
PROMPTS = ["Once upon a time", "The little dog", "One day, a girl", "A small boat"]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
}


class Engine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Its bits don't depend on what else runs, so that results can be compared whatever threads do.
        cls.engine = tessera.Engine(DEMO, backend=BACKEND, max_seq_len=128, max_batch=3, max_waiting=40, batch_invariant=True)
        cls.expected = [cls.engine.generate(p, max_tokens=12, temperature=0.8, seed=7) for p in PROMPTS]

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def tearDown(self):
        while self.engine.has_work:  # requests whose streams were left
            self.engine.step()
        stats = self.engine.stats
        self.assertEqual((stats.running, stats.waiting, stats.kv_pages_used), (0, 0, 0))
        self.assertEqual((self.engine._inboxes, self.engine._early, self.engine._shapes), ({}, {}, {}))

    def test_is_the_models_generation(self):
        with tessera.Model(DEMO, backend=BACKEND, max_seq_len=128, batch_invariant=True) as model:
            for prompt, expected in zip(PROMPTS, self.expected):
                alone = model.generate(prompt, max_tokens=12, temperature=0.8, seed=7)
                self.assertEqual((alone.tokens, alone.text, alone.stop_reason), (expected.tokens, expected.text, "max_tokens"))
                self.assertEqual(expected.prompt_tokens, len(model.encode(prompt)))

    def test_a_batch_is_its_requests(self):
        results = self.engine.generate_batch(PROMPTS, max_tokens=12, temperature=0.8, seed=7)
        self.assertEqual([r.tokens for r in results], [e.tokens for e in self.expected])
        self.assertTrue(any(r.cached_tokens for r in self.engine.generate_batch(["word " * 30] * 2, max_tokens=1)))

    def test_one_loop_over_steps(self):
        ids = [self.engine.submit(p, max_tokens=12, temperature=0.8, seed=7) for p in PROMPTS]
        cancelled = self.engine.submit("Once", max_tokens=100)
        self.assertTrue(self.engine.cancel(cancelled))
        self.assertFalse(self.engine.cancel(cancelled))
        texts, tokens, last = {}, {}, {}
        while self.engine.wait(0):
            for event in self.engine.step():
                self.assertNotIn(event.id, last)
                texts[event.id] = texts.get(event.id, "") + event.text
                if event.type == "token":
                    tokens.setdefault(event.id, []).append(event.token)
                else:
                    last[event.id] = event
        self.assertEqual([tokens[i] for i in ids], [e.tokens for e in self.expected])
        self.assertEqual([texts[i] for i in ids], [e.text for e in self.expected])
        self.assertEqual({last[i].stop_reason for i in ids}, {"max_tokens"})
        self.assertEqual((last[cancelled].type, last[cancelled].stop_reason), ("finished", "cancelled"))

    def test_streams_from_many_threads_beside_a_loop(self):
        own = [self.engine.submit(p, max_tokens=12, temperature=0.8, seed=7) for p in PROMPTS]

        def text_of(i):
            return "".join(self.engine.stream(PROMPTS[i % 4], max_tokens=12, temperature=0.8, seed=7))

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            texts = list(pool.map(text_of, range(24)))
        self.assertEqual(texts, [self.expected[i % 4].text for i in range(24)])
        tokens = {}
        while self.engine.has_work:
            for event in self.engine.step():
                if event.type == "token":
                    tokens.setdefault(event.id, []).append(event.token)
        self.assertEqual([tokens[i] for i in own], [e.tokens for e in self.expected])

    def test_asynchronous_streams(self):
        async def text_of(prompt):
            return "".join([piece async for piece in self.engine.stream(prompt, max_tokens=12, temperature=0.8, seed=7)])

        async def all_of_them():
            return await asyncio.gather(*[text_of(p) for p in PROMPTS])

        self.assertEqual(asyncio.run(all_of_them()), [e.text for e in self.expected])

    def test_a_waiter_that_is_cancelled_loses_no_text(self):
        async def text():
            stream = self.engine.stream(PROMPTS[0], max_tokens=12, temperature=0.8, seed=7)
            waiter = asyncio.ensure_future(stream.__anext__())
            await asyncio.sleep(0)
            waiter.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiter
            return "".join([piece async for piece in stream])

        self.assertEqual(asyncio.run(text()), self.expected[0].text)

    def test_a_stream_ends_when_another_thread_closes_it(self):
        for _ in range(5):
            stream = self.engine.stream("Once upon a time", max_tokens=100)
            next(stream)
            reader = threading.Thread(target=list, args=(stream,), daemon=True)
            reader.start()
            stream.close()
            reader.join(20)
            self.assertFalse(reader.is_alive())

    def test_an_interrupt_loses_no_text(self):
        stream, make, count = self.engine.stream(PROMPTS[0], max_tokens=12, temperature=0.8, seed=7), tessera.engine._event_of, []

        def interrupted(*arguments):  # as Ctrl-C during a step is, when the library returns
            count.append(1)
            if len(count) in (1, 3, 5):
                raise KeyboardInterrupt
            return make(*arguments)

        with unittest.mock.patch("tessera.engine._event_of", interrupted):
            for _ in range(3):
                with self.assertRaises(KeyboardInterrupt):
                    list(stream)
            list(stream)
        self.assertEqual((stream.result().text, stream.tokens), (self.expected[0].text, self.expected[0].tokens))

    def test_a_stream_that_is_left_ends_its_request(self):
        before = self.engine.stats.requests_cancelled
        for _ in self.engine.stream("Once upon a time", max_tokens=100):
            break
        gc.collect()
        self.engine.step()
        self.assertEqual(self.engine.stats.requests_cancelled, before + 1)

    def test_a_stream_that_is_cancelled_keeps_what_came(self):
        stream = self.engine.stream("Once upon a time", max_tokens=100)
        pieces = [next(stream), next(stream)]
        stream.cancel()
        result = stream.result()
        self.assertEqual((result.stop_reason, result.tokens), ("cancelled", stream.tokens))
        self.assertTrue(result.text.startswith("".join(pieces)))
        self.assertEqual(list(stream), [])

    def test_options_do_what_they_say(self):
        plain = self.engine.generate(PROMPTS[0], max_tokens=30)
        first = plain.tokens[0]
        self.assertNotIn(first, self.engine.generate(PROMPTS[0], max_tokens=30, logit_bias={first: -100.0}).tokens)
        counts = [max(r.tokens.count(t) for t in set(r.tokens)) for r in (
            self.engine.generate(PROMPTS[0], max_tokens=30, frequency_penalty=p) for p in (0.0, 30.0))]  # fmt: skip
        self.assertGreater(counts[0], 1)
        self.assertEqual(counts[1], 1)
        self.assertEqual(len(set(self.engine.generate(PROMPTS[0], max_tokens=30, presence_penalty=50.0).tokens)), 30)
        stop = plain.text[8:11]
        held = self.engine.generate(PROMPTS[0], max_tokens=30, stop=["no such", stop])
        self.assertEqual((held.text, held.stop_reason), (plain.text[: plain.text.index(stop)], "stop_string"))
        with self.assertRaises(TypeError):
            self.engine.generate("Once", no_such=1)

    def test_log_probabilities_are_the_models(self):
        prompt = self.engine.model.encode(PROMPTS[0])
        result = self.engine.generate(prompt, max_tokens=3, top_logprobs=4, temperature=0.9, seed=3)
        with tessera.Model(DEMO, backend=BACKEND, max_seq_len=128) as model:
            sequence = list(prompt)
            for token, logprob, top in zip(result.tokens, result.logprobs, result.top_logprobs):
                logits = model.logits(sequence).astype(np.float64)
                exact = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
                # The cache was filled in other pieces: bf16's rounding of logits.
                self.assertLess(abs(exact[token] - logprob), 2**-3)
                self.assertEqual(len(top), 4)
                self.assertEqual([t.logprob for t in top], sorted((t.logprob for t in top), reverse=True))
                self.assertLess(np.abs(exact[[t.token for t in top]] - [t.logprob for t in top]).max(), 2**-3)
                sequence.append(token)
        self.assertIsNone(self.engine.generate(prompt, max_tokens=1).logprobs)
        self.assertIsNone(result.prompt_logprobs)
        scored = self.engine.generate(prompt, max_tokens=0, top_logprobs=2, prompt_logprobs=True)
        self.assertEqual((scored.tokens, len(scored.prompt_logprobs.top_logprobs[0])), ([], 2))
        with tessera.Model(DEMO, backend=BACKEND, max_seq_len=128) as model:
            logits = model.logits(prompt, all=True).astype(np.float64)[:-1]
        exact = logits - logits.max(1, keepdims=True)
        exact -= np.log(np.exp(exact).sum(1, keepdims=True))
        expected = exact[np.arange(len(prompt) - 1), prompt[1:]]
        self.assertLess(np.abs(expected - scored.prompt_logprobs.logprobs).max(), 2**-3)
        lone = self.engine.generate(prompt[:1], max_tokens=0, top_logprobs=2, prompt_logprobs=True)
        self.assertEqual(lone.prompt_logprobs, ([], []))
        with self.assertRaises(tessera.InvalidArgumentError):
            self.engine.generate(prompt, prompt_logprobs=True)
        self.assertEqual(self.engine.generate(prompt, max_tokens=1, top_logprobs=0).top_logprobs, [[]])

    def test_forms_of_text(self):
        result = self.engine.generate("Tell me of a girl", max_tokens=80, temperature=1.0, json_schema=SCHEMA)
        value = json.loads(result.text)
        self.assertEqual(list(value), ["name", "age"])
        self.assertTrue(len(value["name"]) <= 5 and 0 <= value["age"] <= 120)
        again = self.engine.generate("Tell me of a girl", max_tokens=80, temperature=1.0, json_schema=json.dumps(SCHEMA))
        self.assertEqual(again.text, result.text)
        pattern = r"[A-Z][a-z]{2,5} was (happy|sad)\."
        pieces = list(self.engine.stream("One day", max_tokens=40, temperature=1.0, regex=pattern))
        self.assertRegex("".join(pieces), re.compile(rf"\A{pattern}\Z"))
        self.assertTrue(self.engine.generate("One day", max_tokens=40, json_object=True).text.startswith("{"))
        with self.assertRaisesRegex(tessera.UnsupportedError, '"not"'):
            self.engine.generate("One day", json_schema={"not": {}})
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "json_schema and json_object are given; expected one at most"):
            self.engine.generate("One day", json_schema={}, json_object=True)

    def test_embeddings(self):
        rows = self.engine.embed(PROMPTS)
        self.assertEqual((rows.shape, rows.dtype), ((4, self.engine.model.info.hidden_size), np.float32))
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
        np.testing.assert_array_equal(self.engine.embed(PROMPTS[2:])[0], rows[2])
        self.assertGreater(np.abs(self.engine.embed(PROMPTS[:1], pooling="last") - rows[0]).max(), 1e-3)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "pooling"):
            self.engine.embed(["x"], pooling="middle")
        self.assertEqual(self.engine.embed([]).shape, (0, rows.shape[1]))

    def test_attention(self):
        info, tokens = self.engine.model.info, self.engine.model.encode("One day, a girl")
        id = self.engine.submit_attention(tokens, [1, 3], layers=[0, 2])
        events = []
        while self.engine.has_work:
            events += self.engine.step()
        (event,) = events
        self.assertEqual((event.id, event.type), (id, "finished"))
        self.assertEqual(event.attention.shape, (2, info.num_heads, 2, len(tokens)))
        np.testing.assert_allclose(event.attention.sum(-1), 1, atol=1e-4)
        self.assertEqual(np.abs(event.attention[:, :, 0, 2:]).max(), 0)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "positions"):
            self.engine.submit_attention(tokens, [3, 1])
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "positions are of dtype float64; expected whole numbers"):
            self.engine.submit_attention(tokens, [1.5])
        with self.assertRaisesRegex(tessera.InvalidArgumentError, f"one of the layers is {2**32}; expected numbers of 32 bits"):
            self.engine.submit_attention(tokens, [1], layers=[2**32])

    def test_errors_are_their_requests(self):
        with tessera.Engine(self.engine.model, max_seq_len=96, max_kv_tokens=32, max_batch=2, max_waiting=2) as small:
            endless = small.stream("Once upon a time", max_tokens=80, ignore_eos=True)
            fine = small.stream("One day", max_tokens=3)
            self.assertEqual(len(fine.result().tokens), 3)
            with self.assertRaises(tessera.OutOfMemoryError):
                endless.result()
            streams = [small.stream("One", max_tokens=2) for _ in range(2)]
            with self.assertRaises(tessera.QueueFullError):
                small.stream("One")
            with self.assertRaises(tessera.QueueFullError):
                small.generate_batch(["One"] * 3)
            self.assertEqual([s.result().stop_reason for s in streams], ["max_tokens"] * 2)
            self.assertEqual(small.options.max_kv_tokens, 32)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "prompt"):
            self.engine.generate([])
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "KEEP_CACHE"):
            self.engine.generate("x", keep_cache=True)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "kv_dtype"):
            tessera.Engine(self.engine.model, kv_dtype="f99")
        with self.assertRaises(TypeError):
            tessera.Engine(self.engine.model, backend="cpu")

    def test_what_the_library_holds_is_not_copied(self):
        stream = self.engine.stream("Once", max_tokens=1)
        for held in (self.engine, self.engine.model, stream):
            for make in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, "objects can't be copied or pickled; expected one made anew"):
                    make(held)
        self.assertEqual(len(stream.result().tokens), 1)

    def test_closing_wakes_and_ends_all(self):
        engine = tessera.Engine(self.engine.model, max_seq_len=64, max_batch=2)
        waiting = threading.Thread(target=engine.wait)
        waiting.start()
        stream = engine.stream("Once", max_tokens=50)
        next(stream)
        engine.close()
        waiting.join(60)
        self.assertFalse(waiting.is_alive())
        for call in (lambda: next(stream), lambda: engine.generate("x"), engine.step):
            with self.assertRaisesRegex(tessera.InvalidArgumentError, "closed"):
                call()
        engine.close()

    def test_a_model_without_a_cache(self):
        with tessera.Model(DEMO, backend=BACKEND, cache=False) as model:
            self.assertEqual(model.info.kv_cache_bytes, 0)
            self.assertTrue(model.encode("One day"))
            with self.assertRaisesRegex(tessera.InvalidArgumentError, "cache"):
                model.generate("One day")
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "max_batch"):
            tessera.Model(DEMO, backend=BACKEND, cache=False, max_batch=4)

    def test_a_cache_of_8_bits(self):
        for kv_dtype, name in ((None, "bf16"), ("fp8", "f8_e4m3")):
            with tessera.Engine(self.engine.model, max_seq_len=64, max_batch=1, kv_dtype=kv_dtype) as engine:
                self.assertEqual(engine.options.kv_dtype.replace("_", ""), name.replace("_", ""))
                self.assertTrue(engine.generate("One day", max_tokens=3).tokens)


if __name__ == "__main__":
    unittest.main()
