"""Models: the same tokens as the program's, streamed, cancelled, in batches."""

import json
import os
import pathlib
import tempfile
import threading
import unittest

import numpy as np
import tessera

DEMO = pathlib.Path(os.environ["TESSERA_SOURCE_DIR"]) / "models" / "demo"
BACKEND = os.environ.get("TESSERA_TEST_BACKEND", "cpu")  # to run the same on a GPU


class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = tessera.Model(DEMO, backend=BACKEND, max_seq_len=128, max_batch=2)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()

    def test_info(self):
        info = self.model.info
        self.assertEqual((info.architecture, info.backend, info.device.split(":")[0]), ("llama", BACKEND, BACKEND))
        self.assertEqual(info.max_seq_len, 128)
        self.assertIs(info.has_tokenizer, True)

    def test_text_to_tokens_and_back(self):
        text = "Once upon a time"
        tokens = self.model.encode(text)
        self.assertEqual(self.model.decode(tokens).strip(), text)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "99999"):
            self.model.decode([99999])

    def test_greedy_generation_follows_the_logits(self):
        prompt = self.model.encode("One day, a girl")
        generation = self.model.generate(prompt, max_tokens=6, ignore_eos=True)
        sequence = list(prompt)
        for token in generation.tokens:
            logits = self.model.logits(sequence)
            self.assertEqual(logits.shape, (self.model.info.vocab_size,))
            # The cache was filled in other pieces, so that equals may differ by bf16's rounding.
            self.assertGreaterEqual(logits[token], logits.max() - 2**-4)
            sequence.append(token)
        self.assertEqual(self.model.logits(prompt, all=True).shape, (len(prompt), self.model.info.vocab_size))
        self.assertEqual(generation.text, self.model.decode(sequence)[len(self.model.decode(prompt)) :])
        self.assertEqual((generation.stop_reason, generation.generated_tokens), ("max_tokens", 6))
        self.assertEqual(generation.prompt_tokens, len(prompt))

    def test_streams_what_it_generates(self):
        options = dict(max_tokens=20, temperature=0.8, seed=3)
        pieces = list(self.model.stream("Once upon a time", **options))
        self.assertGreater(len(pieces), 5)
        self.assertEqual("".join(pieces), self.model.generate("Once upon a time", **options).text)

    def test_a_stream_may_be_left(self):
        for _ in self.model.stream("Once upon a time", max_tokens=100):
            break
        self.assertFalse(any(t.name == "tessera.Model.stream" for t in threading.enumerate()))
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "temperature"):
            list(self.model.stream("Once", temperature=-1.0))

    def test_on_token_stops_and_may_raise(self):
        seen = []
        generation = self.model.generate("Once", max_tokens=50, on_token=lambda token, text: seen.append(token) or len(seen) == 3)
        self.assertEqual((len(generation.tokens), generation.stop_reason), (3, "cancelled"))

        def fail(token, text):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            self.model.generate("Once", on_token=fail)

    def test_callbacks_may_not_call_the_model_that_runs(self):
        for call in (lambda: self.model.generate("x"), lambda: self.model.logits([1]), self.model.close):
            with self.assertRaisesRegex(tessera.InvalidArgumentError, "called from a callback of its own"):
                self.model.generate("Once", on_token=lambda *_: call())
        seen = []
        self.model.generate("Once", max_tokens=2, on_token=lambda token, _: seen.append(self.model.decode([token])))
        self.assertEqual(len(seen), 2)

    def test_closing_waits_for_calls_of_other_threads(self):
        for _ in range(5):
            model, calls, errors = tessera.Model(DEMO, backend=BACKEND, cache=False), threading.Semaphore(0), []

            def call():
                try:
                    while True:
                        model.encode("Once upon a time " * 300)
                        calls.release()
                except tessera.InvalidArgumentError as error:
                    errors.append(str(error))

            threads = [threading.Thread(target=call) for _ in range(4)]
            for thread in threads:
                thread.start()
            calls.acquire()
            model.close()
            for thread in threads:
                thread.join()
            self.assertEqual(errors, ["the model is closed; expected an open one"] * 4)

    def test_texts_are_not_cut_at_a_zero_character(self):
        for options in ({"stop": "a\0b"}, {"stop": ["a", "\0"]}, {"regex": "a\0b"}, {"json_schema": "{}\0x"}):
            with self.assertRaisesRegex(tessera.InvalidArgumentError, "expected a text without zeros"):
                self.model.generate("Once", **options)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "path is .*; expected a text without zeros"):
            tessera.Model(str(DEMO) + "\0x")
        self.assertEqual(len(self.model.encode("a\0b", add_special_tokens=False)), 3)

    def test_a_stop_string_is_left_out(self):
        whole = self.model.generate("Once upon a time", max_tokens=30).text
        stop = whole[8:11]
        generation = self.model.generate("Once upon a time", max_tokens=30, stop=stop)
        self.assertEqual((generation.text, generation.stop_reason), (whole[: whole.index(stop)], "stop_string"))

    def test_a_batch(self):
        prompts = ["Once upon", self.model.encode("The little dog")]
        results = self.model.generate_batch(prompts, max_tokens=5)
        self.assertEqual([r.tokens for r in results], [self.model.generate(p, max_tokens=5).tokens for p in prompts])
        with self.assertRaises(TypeError):
            self.model.generate_batch(prompts, no_such=1)

    def test_text_goes_on_from_the_prompts(self):
        folder = DEMO.parents[1] / "tests" / "fixtures" / "models" / "llama2"  # SentencePiece's tokens
        with tessera.Model(folder, backend=BACKEND) as model, tessera.Engine(model) as engine:
            options = dict(max_tokens=3, logit_bias={model.encode("the")[1]: 1000.0})
            for prompt, text in (("in", " the the the"), ("", "the the the")):
                self.assertEqual(model.generate(prompt, **options).text, text)
                self.assertEqual(engine.generate(prompt, **options).text, text)
                self.assertEqual(model.generate_batch([prompt], **options)[0].text, text)
                self.assertEqual(model.generate_batch([prompt], **options, stop=["he t"])[0].text, text[: text.index("he t")])
            self.assertEqual(model.generate("", regex=" [a-z]{3}").text[0], " ")

    def test_forms_of_text_log_probabilities_and_biases(self):
        result = self.model.generate("One day", max_tokens=20, regex="[xy]{4}", top_logprobs=2)
        self.assertRegex(result.text, r"\A[xy]{4}\Z")
        self.assertEqual([len(result.tokens)] * 2, [len(result.logprobs), len(result.top_logprobs)])
        self.assertTrue(all(len(top) == 2 and top[0].logprob >= top[1].logprob for top in result.top_logprobs))
        plain = self.model.generate("One day", max_tokens=5)
        self.assertIsNone(plain.logprobs)
        other = self.model.generate("One day", max_tokens=5, logit_bias={plain.tokens[0]: -100.0})
        self.assertNotIn(plain.tokens[0], other.tokens)
        text = "".join(self.model.stream("One day", max_tokens=60, json_schema={"type": "boolean"}))
        self.assertIn(text, ("true", "false"))
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "PREFIX_CACHE"):
            self.model.generate("One day", prefix_cache=False)
        with tessera.Model(DEMO, backend=BACKEND, max_seq_len=64, kv_dtype="fp8") as small:
            self.assertEqual((small.info.activation_dtype, small.info.kv_dtype), ("bf16", "f8e4m3"))
            self.assertTrue(small.generate("One day", max_tokens=3).tokens)
            self.assertEqual(small.info.quantization, "")
        folder = DEMO.parents[1] / "tests" / "fixtures" / "models" / "llama_gptq"
        with tessera.Model(folder, backend=BACKEND, max_seq_len=64) as quantised:
            self.assertEqual(quantised.info.quantization, "gptq, 4 bits")

    def test_conversations(self):
        messages = [{"role": "user", "content": "Hello"}, ("assistant", "Yes?"), tessera.ChatMessage("user", "Go on")]
        text = self.model.render_chat(messages)
        self.assertIn("Hello", text)
        self.assertTrue(self.model.encode_chat(messages))
        self.assertTrue(self.model.chat(messages, max_tokens=4).tokens)

    def test_messages_that_are_none_are_named(self):
        for messages, named in (("hello", "'h'"), ([("user",)], r"\('user',\)"), ([("user", 5)], r"\('user', 5\)")):
            with self.assertRaisesRegex(tessera.InvalidArgumentError, rf"messages\[0\] is {named}; expected a pair"):
                self.model.render_chat(messages)

    def test_messages_keep_all_their_fields(self):
        call = {"type": "function", "function": {"name": "f", "arguments": {"a": [1, "é"]}}}
        messages = [("user", "Hello"), {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "content": [{"type": "text", "text": "5"}], "name": "f"}]  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            for file in pathlib.Path(DEMO).iterdir():
                os.symlink(file.resolve(), pathlib.Path(folder, file.name))
            template = pathlib.Path(folder, "chat_template.jinja")
            template.unlink()
            template.write_text("{{ messages|tojson }}", encoding="utf-8")
            with tessera.Model(folder, backend=BACKEND, max_seq_len=64) as model:
                written = json.loads(model.render_chat(messages))
                self.assertTrue(model.encode_chat(messages))
        self.assertEqual(written, [{"role": "user", "content": "Hello"}, *messages[1:]])
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "role"):
            self.model.render_chat([{"content": "Hello"}])

    def test_numbers_are_not_cut(self):
        for call, message in (
            (lambda: self.model.generate("a", max_tokens=2**64 + 3), f"max_tokens is {2**64 + 3}; expected a number of 64 bits"),
            (lambda: self.model.generate("a", top_k=-(2**40)), "top_k is -1099511627776; expected a number of 32 bits"),
            (lambda: self.model.generate("a", top_k=np.int64(2**32 + 1)), "top_k is 4294967297; expected a number of 32 bits"),
            (lambda: self.model.generate("a", top_k=1.5), "top_k is 1.5; expected a whole number"),
            (lambda: self.model.generate("a", temperature="hot"), "temperature is 'hot'; expected a number"),
            (lambda: self.model.generate("a", logit_bias={2**32 + 5: 1}), "one of the tokens of logit_bias is 4294967301; expected"),
            (lambda: self.model.generate("a", logit_bias={3.7: 1}), "tokens of logit_bias are of dtype float64; expected whole numbers"),
            (lambda: self.model.generate("a", logit_bias={3: "x"}), "bias is 'x'; expected a number"),
            (lambda: self.model.generate("a", logit_bias=[3]), "logit_bias is \\[3\\]; expected a dict"),
            (lambda: self.model.generate("a", seed=2**64), "seed is 18446744073709551616; expected a number of 64 bits"),
            (lambda: self.model.generate([2**40]), "one of the tokens is 1099511627776; expected numbers of 32 bits"),
            (lambda: self.model.generate([1.5]), "tokens are of dtype float64; expected whole numbers"),
            (lambda: tessera.Model("unopened", max_batch=2**32 + 1), f"max_batch is {2**32 + 1}; expected a number of 32 bits"),
            (lambda: tessera.Model("unopened", device=2**32), f"device is {2**32}; expected a number of 32 bits"),
            (lambda: tessera.Model("unopened", device=0.5), "device is 0.5; expected a whole number"),
            (lambda: tessera.set_num_threads(2**32 + 1), f"the number of threads is {2**32 + 1}; expected a number of 32 bits"),
        ):
            with self.assertRaisesRegex(tessera.InvalidArgumentError, message):
                call()
        self.assertEqual(self.model.generate("a", seed=-1, max_tokens=3).stop_reason, "max_tokens")

    def test_errors(self):
        with self.assertRaisesRegex(tessera.FileError, "/no/such/model"):
            tessera.Model("/no/such/model")
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "no_such"):
            tessera.Model(DEMO, backend="no_such")
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "activation_dtype"):
            tessera.Model(DEMO, activation_dtype="f99")

        def interrupt(stage, done, total):
            raise KeyError(stage)

        with self.assertRaisesRegex(KeyError, "load"):
            tessera.Model(DEMO, backend=BACKEND, max_seq_len=32, on_progress=interrupt)
        with tessera.Model(DEMO, backend=BACKEND, max_seq_len=32) as model:
            self.assertEqual(model.logits(np.array([1, 2, 3])).dtype, np.float32)
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "closed"):
            model.generate("Once")


if __name__ == "__main__":
    unittest.main()
