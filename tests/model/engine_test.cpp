// Generation through the public interface: when it stops, what it streams, what it samples, how it fails.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/factories.h"
#include "model/golden_fixture.h"
#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

ModelOptions tiny_options() {
  ModelOptions options;
  options.max_seq_len = 64;
  return options;
}

LanguageModel tiny_model(const ModelOptions& options = tiny_options(), DType dtype = DType::kF32) {
  return LanguageModel::random(random_model_shape("tiny"), dtype, options);
}

std::vector<std::int32_t> counting_prompt(int length, int first = 1) {
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(length));
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

GenerateOptions generate_options(std::int64_t max_tokens, float temperature = 0, std::uint64_t seed = 0) {
  GenerateOptions options;
  options.max_tokens = max_tokens;
  options.sampling.temperature = temperature;
  options.sampling.seed = seed;
  return options;
}

/// Expects `call` to throw an Error of this code whose message contains all of `parts`.
void expect_error(const std::function<void()>& call, ErrorCode code,
                  const std::vector<std::string>& parts = {}) {
  try {
    call();
    ADD_FAILURE() << "no error was thrown; expected one about " << (parts.empty() ? "" : parts.front());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    for (const std::string& part : parts) {
      EXPECT_NE(error.message().find(part), std::string::npos) << error.message() << "\nlacks: " << part;
    }
  }
}

// ---- What is generated

TEST(Generate, FollowsTheLargestLogitOfTheWholeSequence) {
  LanguageModel model = tiny_model();
  std::vector<std::int32_t> sequence = counting_prompt(9);
  const Generation generation = model.generate(sequence, generate_options(12));
  ASSERT_EQ(generation.tokens.size(), 12u);
  for (const std::int32_t token : generation.tokens) {
    const std::vector<float> logits = model.logits(sequence);
    // The cache was filled in other pieces than here, so that equals may differ by rounding.
    EXPECT_GE(logits[static_cast<std::size_t>(token)], *std::ranges::max_element(logits) - 1e-4f);
    sequence.push_back(token);
  }
}

TEST(Generate, TheSameSeedGivesTheSameTokensAndAnotherSeedOthers) {
  LanguageModel model = tiny_model();
  const std::vector<std::int32_t> prompt = counting_prompt(5);
  const Generation a = model.generate(prompt, generate_options(20, 1.0f, 7));
  const Generation b = model.generate(prompt, generate_options(20, 1.0f, 7));
  const Generation c = model.generate(prompt, generate_options(20, 1.0f, 8));
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_NE(a.tokens, c.tokens);
}

TEST(Generate, PromptsOfOneTokenBeginWithThatToken) {
  LanguageModel model = tiny_model();
  for (const std::int32_t token : {5, 300, 41}) {
    const std::vector<std::int32_t> prompt = {token};
    EXPECT_EQ(model.generate(prompt, generate_options(6)).tokens,
              tiny_model().generate(prompt, generate_options(6)).tokens);
  }
}

TEST(Generate, ARepetitionPenaltyAppliesToPromptAndNewTokens) {
  LanguageModel model = tiny_model();
  const std::vector<std::int32_t> prompt = counting_prompt(5);
  GenerateOptions options = generate_options(40);
  options.sampling.repetition_penalty = 1e6f;  // positive logits shrink to nothing, negative ones grow
  const Generation generation = model.generate(prompt, options);
  std::vector<std::int32_t> all = prompt;
  all.insert(all.end(), generation.tokens.begin(), generation.tokens.end());
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end()) << "a token came twice";
}

TEST(Generate, EveryWeightDTypeAndActivationDTypeRuns) {
  for (const DType weights : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    for (const DType activations : {DType::kF32, DType::kF16, DType::kBF16}) {
      ModelOptions options = tiny_options();
      options.activation_dtype = activations;
      LanguageModel model = tiny_model(options, weights);
      EXPECT_EQ(model.info().weight_dtype, weights);
      EXPECT_EQ(model.info().activation_dtype, activations);
      const std::vector<float> logits = model.logits(counting_prompt(10), true);
      EXPECT_TRUE(std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }));
      const auto [low, high] = std::ranges::minmax(logits);
      EXPECT_GT(high - low, 0.1f);
    }
  }
}

TEST(Generate, ActivationsFollowTheWeightsUnlessAskedOtherwise) {
  ModelOptions options = tiny_options();
  options.backend = "cpu";
  EXPECT_EQ(tiny_model(options, DType::kF32).info().activation_dtype, DType::kF32);
  EXPECT_EQ(tiny_model(options, DType::kQ8_0).info().activation_dtype,
            make_cpu_ops()->multiplies_bf16() ? DType::kBF16 : DType::kF32);
  EXPECT_EQ(tiny_model(options, DType::kBF16).info().activation_dtype, DType::kBF16);
  EXPECT_EQ(tiny_model(options, DType::kF16).info().activation_dtype, DType::kF16);
}

// ---- When it stops

TEST(Stop, AtMaxTokens) {
  LanguageModel model = tiny_model();
  for (const std::int64_t max_tokens : {0, 1, 5}) {
    const Generation generation = model.generate(counting_prompt(3), generate_options(max_tokens));
    EXPECT_EQ(static_cast<std::int64_t>(generation.tokens.size()), max_tokens);
    EXPECT_EQ(generation.stop_reason, StopReason::kMaxTokens);
    EXPECT_EQ(generation.stats.generated_tokens, max_tokens);
  }
}

TEST(Stop, WhenTheContextIsFull) {
  LanguageModel model = tiny_model();
  // The last token drawn needs no place in the cache.
  const Generation generation = model.generate(counting_prompt(60), generate_options(100));
  EXPECT_EQ(generation.stop_reason, StopReason::kContextFull);
  EXPECT_EQ(generation.tokens.size(), 64u - 60u + 1u);
  const Generation full = model.generate(counting_prompt(64), generate_options(100));
  EXPECT_EQ(full.stop_reason, StopReason::kContextFull);
  EXPECT_EQ(full.tokens.size(), 1u);
}

TEST(Stop, WhenTheCallbackSaysSo) {
  LanguageModel model = tiny_model();
  int calls = 0;
  const Generation generation =
      model.generate(counting_prompt(3), generate_options(20), [&](std::int32_t, std::string_view text) {
        EXPECT_TRUE(text.empty()) << "there is no tokenizer";
        return ++calls < 4;
      });
  EXPECT_EQ(generation.stop_reason, StopReason::kCancelled);
  EXPECT_EQ(generation.tokens.size(), 4u);
  EXPECT_EQ(calls, 4);
}

TEST(Generate, ACallbackMayRunAnotherOfTheSameModel) {
  LoadOptions load;
  load.backend = "cpu";
  const Model model = Model::random(random_model_shape("tiny"), DType::kF32, load);
  LanguageModel outer(model, tiny_options()), inner(model, tiny_options());
  const std::vector<std::int32_t> expected = inner.generate(counting_prompt(4), generate_options(3)).tokens;
  const Generation generation =
      outer.generate(counting_prompt(3), generate_options(5), [&](std::int32_t, std::string_view) {
        EXPECT_EQ(inner.generate(counting_prompt(4), generate_options(3)).tokens, expected);
        return true;
      });
  EXPECT_EQ(generation.tokens, outer.generate(counting_prompt(3), generate_options(5)).tokens);
  EXPECT_EQ(generation.tokens.size(), 5u);
}

TEST(Stop, AtEndOfTextUnlessTold) {
  const GoldenFixture fixture = read_golden_fixture("llama2");
  const std::int32_t eos = 2;  // its config.json
  LanguageModel model = LanguageModel::load(fixture.model);
  // At this temperature each of the 288 tokens is about equally likely.
  GenerateOptions options = generate_options(200, 1000.0f);
  bool ended = false;
  for (options.sampling.seed = 0; options.sampling.seed < 40 && !ended; ++options.sampling.seed) {
    options.stop_at_eos = false;
    const Generation through = model.generate(fixture.tokens, options);
    EXPECT_EQ(through.stop_reason, StopReason::kMaxTokens);
    EXPECT_EQ(through.tokens.size(), 200u);
    const auto end = std::ranges::find(through.tokens, eos);
    ended = end != through.tokens.end();
    options.stop_at_eos = true;
    const Generation stopped = model.generate(fixture.tokens, options);
    EXPECT_EQ(stopped.tokens, std::vector<std::int32_t>(through.tokens.begin(), end));
    EXPECT_EQ(stopped.stop_reason, ended ? StopReason::kEndOfText : StopReason::kMaxTokens);
  }
  EXPECT_TRUE(ended) << "no seed drew the end-of-text token";
}

TEST(Stop, AtAStopString) {
  const GoldenFixture fixture = read_golden_fixture("llama2");
  LanguageModel model = LanguageModel::load(fixture.model);
  GenerateOptions options = generate_options(24);
  std::string whole;
  model.generate(fixture.tokens, options, [&](std::int32_t, std::string_view text) {
    whole += text;
    return true;
  });
  ASSERT_GT(whole.size(), 12u);
  const std::string stop = whole.substr(whole.size() / 2, 3);
  options.stop = {"not in it", stop};
  std::string text;
  const Generation generation =
      model.generate(fixture.tokens, options, [&](std::int32_t, std::string_view piece) {
        text += piece;
        return true;
      });
  EXPECT_EQ(generation.stop_reason, StopReason::kStopString);
  EXPECT_EQ(text, whole.substr(0, whole.find(stop)));
  EXPECT_LT(generation.tokens.size(), 24u);
  EXPECT_EQ(model.generate(fixture.tokens, options).tokens, generation.tokens) << "without a callback, too";
  LanguageModel without_tokenizer = tiny_model();
  EXPECT_THROW(without_tokenizer.generate(counting_prompt(3), options), Error);
}

// ---- Keys and values that are kept

TEST(KeepCache, GivesTheSameTokensAndComputesOnlyWhatIsNew) {
  ModelOptions model_options = tiny_options();
  model_options.batch_invariant = true;
  LanguageModel model = tiny_model(model_options), fresh = tiny_model(model_options);
  GenerateOptions keep = generate_options(4, 0.7f);
  keep.keep_cache = true;
  std::vector<std::int32_t> prompt = counting_prompt(9);
  std::int64_t in_cache = 0;
  for (int turn = 0; turn < 4; ++turn) {
    const Generation kept = model.generate(prompt, keep);
    EXPECT_EQ(kept.tokens, fresh.generate(prompt, generate_options(4, 0.7f)).tokens) << turn;
    EXPECT_EQ(kept.stats.cached_tokens, in_cache);
    // The last token drawn is in no cache yet.
    in_cache = static_cast<std::int64_t>(prompt.size() + kept.tokens.size()) - 1;
    prompt.insert(prompt.end(), kept.tokens.begin(), kept.tokens.end());
    prompt.push_back(5);
  }
  prompt[3] = 7;  // from here on another conversation
  EXPECT_EQ(model.generate(prompt, keep).stats.cached_tokens, 3);
  EXPECT_EQ(model.generate(prompt, keep).stats.cached_tokens, static_cast<std::int64_t>(prompt.size()) - 1);
  model.generate(prompt, generate_options(1));  // forgets
  EXPECT_EQ(model.generate(prompt, keep).stats.cached_tokens, 0);
  const std::vector<std::vector<std::int32_t>> two = {prompt, prompt};
  EXPECT_THROW(model.generate_batch(two, {&keep, 1}), Error);
}

// ---- Text

TEST(Text, StreamsWhatDecodeGives) {
  for (const char* name : {"llama2", "llama3", "gguf_llama_q8_0", "gguf_qwen3_bf16"}) {
    const GoldenFixture fixture = read_golden_fixture(name);
    LanguageModel model = LanguageModel::load(fixture.model);
    ASSERT_TRUE(model.info().has_tokenizer);
    for (const std::uint64_t seed : {1, 2, 3}) {
      std::string streamed;
      std::vector<std::int32_t> tokens;
      const Generation generation = model.generate(fixture.tokens, generate_options(100, 1000.0f, seed),
                                                   [&](std::int32_t token, std::string_view text) {
                                                     tokens.push_back(token);
                                                     streamed += text;
                                                     return true;
                                                   });
      EXPECT_EQ(std::vector<std::int32_t>(
                    tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(generation.tokens.size())),
                generation.tokens);
      EXPECT_EQ(streamed, model.decode(generation.tokens)) << name << " seed " << seed;
    }
  }
}

TEST(Text, NeedsATokenizer) {
  LanguageModel model = tiny_model();
  EXPECT_FALSE(model.info().has_tokenizer);
  expect_error([&] { model.encode("text"); }, ErrorCode::kUnsupported, {"tokenizer"});
  expect_error([&] { model.decode(counting_prompt(3)); }, ErrorCode::kUnsupported, {"tokenizer"});
}

// ---- Batches and pages

TEST(Batch, MorePromptsThanPagesTakeTurns) {
  ModelOptions options = tiny_options();
  options.batch_invariant = true;
  options.page_size = 4;
  options.prefill_chunk = 8;
  LanguageModel alone = tiny_model(options);
  options.max_batch = 5;
  options.max_kv_tokens = 72;  // two sequences at their full length, or four at their shortest
  LanguageModel model = tiny_model(options);
  std::vector<std::vector<std::int32_t>> prompts;
  for (int i = 0; i < 5; ++i) prompts.push_back(counting_prompt(12 + 3 * i, 20 * i + 1));
  const GenerateOptions generation_options = generate_options(16, 1.0f, 3);
  const std::vector<Generation> together = model.generate_batch(prompts, {&generation_options, 1});
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Generation expected = alone.generate(prompts[i], generation_options);
    EXPECT_EQ(together[i].tokens, expected.tokens) << "prompt " << i;
    EXPECT_EQ(together[i].stats.prompt_tokens, 12 + 15 + 18 + 21 + 24);
    EXPECT_EQ(together[i].stats.generated_tokens, 5 * 16);
  }
}

TEST(Batch, ASequenceThatDoesNotFitAloneIsAnErrorAndLeavesTheModelUsable) {
  ModelOptions options = tiny_options();
  options.max_kv_tokens = 32;
  LanguageModel model = tiny_model(options);
  const Generation before = model.generate(counting_prompt(10), generate_options(10));
  expect_error([&] { model.generate(counting_prompt(20), generate_options(30)); }, ErrorCode::kOutOfMemory,
               {"33 tokens", "1 more pages", "0 of 2"});
  expect_error([&] { model.logits(counting_prompt(40)); }, ErrorCode::kOutOfMemory, {"40 tokens", "2 of 2"});
  EXPECT_EQ(model.generate(counting_prompt(10), generate_options(10)).tokens, before.tokens);
}

TEST(Batch, AnExceptionOutOfACallbackGivesThePagesBack) {
  ModelOptions options = tiny_options();
  options.max_kv_tokens = 32;
  LanguageModel model = tiny_model(options);
  const Generation expected = model.generate(counting_prompt(20), generate_options(12));
  EXPECT_THROW(
      model.generate(counting_prompt(20), generate_options(12),
                     [](std::int32_t, std::string_view) -> bool { throw std::runtime_error("stop"); }),
      std::runtime_error);
  EXPECT_EQ(model.generate(counting_prompt(20), generate_options(12)).tokens, expected.tokens);
}

TEST(Batch, NoPromptsGiveNoGenerations) {
  LanguageModel model = tiny_model();
  EXPECT_TRUE(model.generate_batch({}, {}).empty());
}

// ---- Progress

TEST(OnProgress, CountsBytesOfWeightsAndTokensOfThePrompt) {
  std::vector<Progress> load;
  std::vector<Progress> prefill;
  ModelOptions options = tiny_options();
  options.prefill_chunk = 7;
  options.on_progress = [&](const Progress& progress) {
    (progress.stage == Progress::Stage::kLoad ? load : prefill).push_back(progress);
  };
  LanguageModel model = tiny_model(options);
  ASSERT_FALSE(load.empty());
  EXPECT_EQ(load.back().done, static_cast<std::uint64_t>(model.info().weight_bytes));
  for (std::size_t i = 0; i < load.size(); ++i) {
    EXPECT_EQ(load[i].total, static_cast<std::uint64_t>(model.info().weight_bytes));
    EXPECT_GT(load[i].done, i == 0 ? 0 : load[i - 1].done);
  }
  EXPECT_TRUE(prefill.empty());
  model.generate(counting_prompt(20), generate_options(5));
  std::vector<std::uint64_t> done;
  for (const Progress& progress : prefill) {
    EXPECT_EQ(progress.total, 20u);
    done.push_back(progress.done);
  }
  // Where a chunk takes long there are reports within it as well.
  EXPECT_TRUE(std::ranges::is_sorted(done, std::less_equal<>()));
  const std::vector<std::uint64_t> ends = {7, 14, 20};
  EXPECT_TRUE(std::ranges::includes(done, ends)) << ::testing::PrintToString(done);
  EXPECT_EQ(done.back(), ends.back());
}

TEST(OnProgress, MayCancelLoadingAndPrefill) {
  ModelOptions options = tiny_options();
  options.on_progress = [](const Progress&) { throw std::runtime_error("enough"); };
  EXPECT_THROW(tiny_model(options), std::runtime_error);

  bool cancel = true;
  options.on_progress = [&](const Progress& progress) {
    if (cancel && progress.stage == Progress::Stage::kPrefill) throw std::runtime_error("enough");
  };
  LanguageModel model = tiny_model(options);
  EXPECT_THROW(model.generate(counting_prompt(20), generate_options(5)), std::runtime_error);
  cancel = false;
  EXPECT_EQ(model.generate(counting_prompt(20), generate_options(5)).tokens.size(), 5u);
}

TEST(OnProgress, ComesAndMayCancelWithinAChunk) {
  RandomModelShape shape = random_model_shape("tiny");
  shape.hidden_size = shape.num_heads * shape.head_dim;
  shape.intermediate_size = 2048;
  shape.max_seq_len = 256;
  shape.num_layers = 4;
  ModelOptions options;
  options.backend = "reference";  // slow, so that one chunk takes long enough
  std::vector<std::uint64_t> done;
  bool cancel = false;
  options.on_progress = [&](const Progress& progress) {
    if (progress.stage != Progress::Stage::kPrefill) return;
    done.push_back(progress.done);
    EXPECT_EQ(progress.total, 250u);
    if (cancel) throw std::runtime_error("enough");
  };
  LanguageModel model = LanguageModel::random(shape, DType::kF32, options);
  const Generation whole = model.generate(counting_prompt(250), generate_options(2));
  constexpr double kSomeIntervals = 250;  // ms; many processors may need less for all of it
  EXPECT_GE(done.size(), whole.stats.prefill_ms > kSomeIntervals ? 3u : 1u)
      << "within " << whole.stats.prefill_ms << " ms";
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_LT(done.front(), 250u);
  EXPECT_EQ(done.back(), 250u);

  done.clear();
  model.logits(counting_prompt(250));
  EXPECT_LT(done.front(), 250u);
  EXPECT_EQ(done.back(), 250u);

  done.clear();
  cancel = true;
  EXPECT_THROW(model.generate(counting_prompt(250), generate_options(2)), std::runtime_error);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_LT(done.front(), 250u);
  cancel = false;
  EXPECT_EQ(model.generate(counting_prompt(250), generate_options(2)).tokens, whole.tokens);
}

// ---- Errors

TEST(Errors, OfPromptsSayWhatWasGivenAndExpected) {
  LanguageModel model = tiny_model();
  expect_error([&] { model.generate(counting_prompt(65)); }, ErrorCode::kInvalidArgument, {"65", "64"});
  expect_error([&] { model.logits(counting_prompt(65)); }, ErrorCode::kInvalidArgument, {"65", "64"});
  expect_error([&] { model.generate({}); }, ErrorCode::kInvalidArgument, {"no tokens"});
  expect_error([&] { model.logits({}); }, ErrorCode::kInvalidArgument, {"no tokens"});
  const std::vector<std::int32_t> outside = {1, 2, 512};
  expect_error([&] { model.generate(outside); }, ErrorCode::kInvalidArgument, {"token 2", "512", "511"});
  const std::vector<std::int32_t> negative = {-1};
  expect_error([&] { model.logits(negative); }, ErrorCode::kInvalidArgument, {"token 0", "-1"});
}

TEST(Devices, AreThoseOfTheBackend) {
  const auto model_on = [](const std::string& backend, std::optional<Device> device) {
    ModelOptions options = tiny_options();
    options.backend = backend;
    options.device = device;
    return tiny_model(options).info();
  };
  const Device cpu{DeviceKind::kCpu, 0};
  EXPECT_EQ(model_on("cpu", std::nullopt).device, cpu);
  EXPECT_EQ(model_on("auto", cpu).backend, "cpu");
  EXPECT_EQ(model_on("auto", cpu).device, cpu);
  EXPECT_EQ(model_on("reference", cpu).device, cpu);
  EXPECT_EQ(model_on("unfused", cpu).backend, "unfused");
  expect_error(
      [&] {
        model_on("cpu", Device{DeviceKind::kCpu, 1});
      },
      ErrorCode::kInvalidArgument, {"index is 0, not 1"});
  expect_error(
      [&] {
        model_on("auto", Device{DeviceKind::kCpu, -1});
      },
      ErrorCode::kInvalidArgument, {"index is 0, not -1"});
  for (const char* backend : {"cpu", "unfused", "reference"}) {
    expect_error(
        [&] {
          model_on(backend, Device{DeviceKind::kCuda, 0});
        },
        ErrorCode::kInvalidArgument, {"device is cuda:0", backend, "runs on cpu"});
  }
  expect_error([&] { model_on("cuda", cpu); }, ErrorCode::kInvalidArgument,
               {"device is cpu", "runs on cuda:0"});
}

TEST(Errors, OfGenerateOptionsNameTheField) {
  LanguageModel model = tiny_model();
  const auto expect_rejected = [&](const char* field, const std::function<void(GenerateOptions&)>& change) {
    GenerateOptions options;
    change(options);
    expect_error([&] { model.generate(counting_prompt(3), options); }, ErrorCode::kInvalidArgument, {field});
  };
  expect_rejected("max_tokens", [](GenerateOptions& o) { o.max_tokens = -1; });
  expect_rejected("temperature", [](GenerateOptions& o) { o.sampling.temperature = -0.5f; });
  expect_rejected("temperature", [](GenerateOptions& o) { o.sampling.temperature = NAN; });
  expect_rejected("top_k", [](GenerateOptions& o) { o.sampling.top_k = -1; });
  expect_rejected("top_p", [](GenerateOptions& o) { o.sampling.top_p = 0; });
  expect_rejected("top_p", [](GenerateOptions& o) { o.sampling.top_p = 1.5f; });
  expect_rejected("min_p", [](GenerateOptions& o) { o.sampling.min_p = 2; });
  expect_rejected("repetition_penalty", [](GenerateOptions& o) { o.sampling.repetition_penalty = 0; });
}

TEST(Errors, OfModelOptionsNameTheField) {
  const auto expect_rejected = [&](const char* field, const std::function<void(ModelOptions&)>& change) {
    ModelOptions options;
    change(options);
    expect_error([&] { tiny_model(options); }, ErrorCode::kInvalidArgument, {field});
  };
  expect_rejected("nonesuch", [](ModelOptions& o) { o.backend = "nonesuch"; });
  expect_rejected("max_seq_len", [](ModelOptions& o) { o.max_seq_len = 100000; });
  expect_rejected("max_seq_len", [](ModelOptions& o) { o.max_seq_len = -1; });
  expect_rejected("max_batch", [](ModelOptions& o) { o.max_batch = 0; });
  expect_rejected("page_size", [](ModelOptions& o) { o.page_size = 0; });
  expect_rejected("max_kv_tokens", [](ModelOptions& o) { o.max_kv_tokens = -1; });
  expect_rejected("prefill_chunk", [](ModelOptions& o) { o.prefill_chunk = -1; });
  expect_rejected("activation_dtype", [](ModelOptions& o) { o.activation_dtype = DType::kI32; });
}

TEST(Errors, OfBatchesSayTheCounts) {
  ModelOptions options = tiny_options();
  options.max_batch = 2;
  LanguageModel model = tiny_model(options);
  const std::vector<std::vector<std::int32_t>> prompts(3, counting_prompt(3));
  const std::vector<GenerateOptions> two(2);
  expect_error([&] { model.generate_batch(prompts, std::span(two).first(1)); }, ErrorCode::kInvalidArgument,
               {"3 prompts", "max_batch, 2"});
  expect_error([&] { model.generate_batch(prompts, two); }, ErrorCode::kInvalidArgument,
               {"2 sets of options", "3 prompts"});
}

TEST(Errors, OfRandomShapesNameTheField) {
  expect_error([] { random_model_shape("llama-9b"); }, ErrorCode::kInvalidArgument, {"llama-9b", "llama-8b"});
  RandomModelShape shape = random_model_shape("tiny");
  shape.num_kv_heads = 3;
  expect_error([&] { LanguageModel::random(shape, DType::kF32); }, ErrorCode::kInvalidArgument,
               {"num_kv_heads"});
  shape = random_model_shape("tiny");
  shape.intermediate_size = 100;
  expect_error([&] { LanguageModel::random(shape, DType::kQ8_0); }, ErrorCode::kInvalidArgument,
               {"100", "32"});
  expect_error([&] { LanguageModel::random(shape, DType::kI64); }, ErrorCode::kInvalidArgument, {"i64"});
}

TEST(RandomModels, OfAConfigHaveTheParametersOfItsModel) {
  const std::filesystem::path models = TESSERA_FIXTURES "/models";
  for (const char* name :
       {"gemma3", "qwen3_moe", "deepseek_v3", "starcoder2", "gpt_oss", "gemma4_e", "gemma4_moe"}) {
    SCOPED_TRACE(name);
    LanguageModel model = LanguageModel::random_like(models / name, "f32", tiny_options());
    const LanguageModel loaded = LanguageModel::load(models / name, tiny_options());
    EXPECT_EQ(model.info().num_parameters, loaded.info().num_parameters);
    EXPECT_EQ(model.generate(counting_prompt(5), generate_options(3)).tokens.size(), 3u);
  }
  const LanguageModel half = LanguageModel::random_like(models / "llama3/config.json", "f16", tiny_options());
  EXPECT_EQ(half.info().weight_dtype, DType::kF16);
  expect_error([&] { LanguageModel::random_like(models / "llama3", "q9"); }, ErrorCode::kInvalidArgument,
               {"q9", "q4_k_m"});
  expect_error([&] { LanguageModel::random_like(models, "f32"); }, ErrorCode::kIo, {"config.json"});
}

TEST(Info, CountsWhatTheShapeCallsFor) {
  const ModelInfo info = tiny_model().info();
  const std::int64_t layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 192 * 64 + 2 * 64;
  EXPECT_EQ(info.num_parameters, 512 * 64 + 2 * layer + 64);
  EXPECT_EQ(info.weight_bytes, 4 * info.num_parameters);
  EXPECT_EQ(info.decode_bytes, info.weight_bytes);
  EXPECT_EQ(info.kv_cache_bytes, 2 * 2 * 2 * 16 * 64 * 4);
  EXPECT_EQ(info.max_seq_len, 64);
  RandomModelShape shape = random_model_shape("tiny");
  shape.tied_embeddings = false;
  const ModelInfo untied = LanguageModel::random(shape, DType::kF32, tiny_options()).info();
  EXPECT_EQ(untied.num_parameters, info.num_parameters + 512 * 64);
  EXPECT_EQ(untied.decode_bytes, info.decode_bytes);
}

}  // namespace
}  // namespace tessera
