"""Tiny random models of Hugging Face's transformers on tessera's attention beside eager attention, on the CPU."""

import unittest

import tessera

try:
    import torch
    import transformers
    from tessera.integrations.transformers import attention_forward, register
except ImportError:
    torch = None

SIZES = dict(vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=None)  # fmt: skip
ALTERNATING = ["sliding_attention", "full_attention"] * 2

# Logits of fp32 models of 4 layers: some thousands of roundings of 6e-8 of values about 1.
BOUND = 1e-4


def configs():
    t = transformers
    yield "llama", t.LlamaConfig(**SIZES)
    yield "gemma2", t.Gemma2Config(**SIZES, head_dim=16, sliding_window=5, attn_logit_softcapping=2.0, query_pre_attn_scalar=8)
    yield "gemma3", t.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=5, layer_types=ALTERNATING)
    yield "qwen3", t.Qwen3Config(**SIZES, head_dim=16)
    yield "qwen3_moe", t.Qwen3MoeConfig(**SIZES, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    yield "gpt_oss", t.GptOssConfig(**SIZES, head_dim=16, sliding_window=5, layer_types=ALTERNATING, num_local_experts=4,
                                    num_experts_per_tok=2, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})  # fmt: skip


@unittest.skipIf(torch is None, "torch and transformers are not installed")
class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        register()
        transformers.logging.set_verbosity_error()
        cls.models = {}
        for name, config in configs():
            torch.manual_seed(1)
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
            with torch.no_grad():  # larger than at first, so that attention is not nearly even
                for key, value in model.named_parameters():
                    if key.endswith(("q_proj.weight", "k_proj.weight")):
                        value.mul_(12)
                    elif key.endswith("sinks"):
                        value.normal_()
            cls.models[name] = model

    def beside_eager(self, run, expect_equal=False):
        """run(model) under both attentions gives the same, for each model."""
        for name, model in self.models.items():
            with self.subTest(model=name), torch.inference_mode():
                results = {}
                for attention in ("eager", "tessera"):
                    model.set_attn_implementation(attention)
                    results[attention] = run(model)
                self.assertEqual(model.config._attn_implementation, "tessera")
                if expect_equal:
                    self.assertEqual(results["tessera"].tolist(), results["eager"].tolist())
                else:
                    torch.testing.assert_close(results["tessera"], results["eager"], rtol=0, atol=BOUND)

    @staticmethod
    def tokens(batch, length):
        return torch.randint(2, 99, (batch, length), generator=torch.Generator().manual_seed(length))

    def test_the_models_attend(self):
        """Else nothing here would test anything: a model whose attention is broken differs by far more than the bound."""
        for name, model in self.models.items():
            with self.subTest(model=name), torch.inference_mode():
                model.set_attn_implementation("eager")
                tokens = self.tokens(1, 17)
                changed = tokens.clone()
                changed[0, 14] = 1 + changed[0, 14] % 90
                difference = (model(tokens).logits - model(changed).logits)[0].abs().amax(-1)
                self.assertLess(difference[:14].max(), BOUND)
                self.assertGreater(difference[16], 100 * BOUND)

    def test_logits(self):
        self.beside_eager(lambda model: model(self.tokens(2, 17)).logits)

    def test_padding(self):
        for side in ("left", "right"):
            mask = torch.ones(2, 17, dtype=torch.long)
            mask[1, :6] = 0
            mask = mask if side == "left" else mask.flip(1)
            seen = mask.bool()
            with self.subTest(side=side):
                self.beside_eager(lambda model: model(self.tokens(2, 17), attention_mask=mask).logits[seen])

    def test_a_bias_of_positions(self):
        sizes = dict(vocab_size=99, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0, eos_token_id=None)
        torch.manual_seed(1)
        model = transformers.T5ForConditionalGeneration._from_config(transformers.T5Config(**sizes), attn_implementation="eager").eval()
        mask = torch.ones(2, 17, dtype=torch.long)
        mask[1, 11:] = 0
        with torch.no_grad():
            for name, value in model.named_parameters():
                if "relative_attention_bias" in name:
                    value.normal_()
        results = {}
        for attention in ("eager", "tessera"):
            model.set_attn_implementation(attention)
            with torch.inference_mode():
                logits = model(self.tokens(2, 17), attention_mask=mask, decoder_input_ids=self.tokens(2, 9)).logits
                text = model.generate(self.tokens(2, 17), attention_mask=mask, max_new_tokens=9, num_beams=2, do_sample=False)
            results[attention] = logits, text
        torch.testing.assert_close(results["tessera"][0], results["eager"][0], rtol=0, atol=BOUND)
        self.assertEqual(results["tessera"][1].tolist(), results["eager"][1].tolist())

    def test_a_model_that_appends_numbers_to_its_masks(self):
        if not hasattr(transformers, "DeepseekV4Config"):
            self.skipTest("this version of transformers has no DeepSeek V4")
        sizes = dict(SIZES, num_key_value_heads=1, head_dim=16, q_lora_rank=16, o_lora_rank=8, o_groups=2, n_routed_experts=4,
                     num_experts_per_tok=2, index_n_heads=2, index_head_dim=16, index_topk=2, sliding_window=5)  # fmt: skip
        config = transformers.DeepseekV4Config(**sizes, layer_types=["compressed_sparse_attention"] * 4)
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        logits = {}
        for attention in ("eager", "tessera"):
            model.set_attn_implementation(attention)
            with torch.inference_mode():
                logits[attention] = model(self.tokens(2, 17)).logits
        torch.testing.assert_close(logits["tessera"], logits["eager"], rtol=0, atol=BOUND)

    def test_a_model_with_attention_of_its_own_is_refused(self):
        for config in (
            transformers.BloomConfig(vocab_size=99, hidden_size=32, n_head=4, n_layer=1),
            transformers.MPNetConfig(**{**SIZES, "num_hidden_layers": 1}),
        ):
            model = transformers.AutoModel.from_config(config, attn_implementation="tessera").eval()
            with torch.inference_mode(), self.assertRaisesRegex(tessera.UnsupportedError, "Model computes its attention itself"):
                model(self.tokens(2, 5))

    def test_what_selects_keys_otherwise_is_refused(self):
        q = torch.zeros(1, 2, 3, 8)
        for name in ("indices", "block_indices", "sinks"):
            with self.assertRaisesRegex(tessera.UnsupportedError, f"Linear hands {name} to its attention"), torch.inference_mode():
                attention_forward(torch.nn.Linear(1, 1), q, q, q, None, **{name: q})

    def test_weights_are_refused(self):
        model = self.models["llama"]
        model.set_attn_implementation("tessera")
        with torch.inference_mode(), self.assertRaisesRegex(tessera.UnsupportedError, "output_attentions asks for weights"):
            model(self.tokens(1, 5), output_attentions=True)

    def test_autocast(self):
        model, tokens = self.models["llama"], self.tokens(2, 17)

        def logits(attention, autocast):
            model.set_attn_implementation(attention)
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                return model(tokens).logits.float()

        exact = logits("eager", autocast=False)
        error = {name: (logits(name, autocast=True) - exact).abs().max() for name in ("sdpa", "tessera")}
        self.assertGreater(error["tessera"], BOUND)
        self.assertLessEqual(error["tessera"], 2 * error["sdpa"])

    def test_generation_with_each_cache(self):
        mask = torch.ones(2, 11, dtype=torch.long)
        mask[1, :4] = 0
        for cache in ("dynamic", "static"):
            with self.subTest(cache=cache):
                self.beside_eager(
                    lambda model: model.generate(self.tokens(2, 11), attention_mask=mask, max_new_tokens=12, do_sample=False,
                                                 cache_implementation=cache, disable_compile=True),
                    expect_equal=True,
                )  # fmt: skip

    def test_a_static_caches_first_prompt_does_not_see_its_rest(self):
        def first_prompt(model):
            cache = transformers.StaticCache(config=model.config, max_cache_len=32)
            return model(self.tokens(1, 7), past_key_values=cache, cache_position=torch.arange(7)).logits

        self.beside_eager(first_prompt)


if __name__ == "__main__":
    unittest.main()
