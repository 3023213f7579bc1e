// Engines through the C interface do what the C++ API does, and log probabilities, penalties and forms of
// text reach what they are for.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "tessera/engine.h"
#include "tessera/structured_output.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

const std::string kModel = TESSERA_SOURCE_DIR "/models/demo";
constexpr std::int64_t kMaxSeqLen = 96;

template <class Struct>
Struct made() {
  Struct s{};
  s.struct_size = sizeof(s);
  return s;
}

/// What a request's events came to.
struct Answer {
  std::vector<std::int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> top_logprobs;
  std::vector<float> prompt_logprobs;
  std::vector<TokenLogprob> prompt_top_logprobs;
  std::string text;
  std::string error_message;
  tessera_status error = TESSERA_OK;
  tessera_stop_reason stop_reason = -1;
  std::int64_t prompt_tokens = 0, generated_tokens = 0;
  std::vector<float> embedding, attention;
  bool is_done = false;
};

class CEngine : public testing::Test {
 protected:
  CEngine() {
    tessera_model_options options = made<tessera_model_options>();
    options.backend = "cpu";
    options.flags = TESSERA_MODEL_WITHOUT_CACHE;
    EXPECT_EQ(tessera_model_load(kModel.c_str(), &options, &c_model), TESSERA_OK) << tessera_last_error();
    tessera_engine_options engine_options = made<tessera_engine_options>();
    engine_options.max_seq_len = kMaxSeqLen;
    engine_options.max_batch = 2;
    engine_options.max_waiting = 3;
    EXPECT_EQ(tessera_engine_create(c_model, &engine_options, &engine), TESSERA_OK) << tessera_last_error();
  }
  ~CEngine() override {
    tessera_engine_free(engine);
    tessera_model_free(c_model);
  }

  std::uint64_t submit(const std::string& prompt, const tessera_generate_options& options) {
    const std::vector<std::int32_t> tokens = model.encode(prompt);
    std::uint64_t id = 0;
    EXPECT_EQ(tessera_engine_submit(engine, tokens.data(), tokens.size(), &options, &id), TESSERA_OK)
        << tessera_last_error();
    EXPECT_NE(id, 0u);
    return id;
  }

  tessera_status refused(const tessera_generate_options& options) {
    const std::int32_t prompt[] = {1, 2};
    std::uint64_t id = 7;
    const tessera_status status = tessera_engine_submit(engine, prompt, 2, &options, &id);
    EXPECT_EQ(id, 0u);
    return status;
  }

  void step(std::map<std::uint64_t, Answer>& answers) {
    tessera_events* events = nullptr;
    ASSERT_EQ(tessera_engine_step(engine, &events), TESSERA_OK) << tessera_last_error();
    std::size_t size = 0;
    ASSERT_EQ(tessera_events_size(events, &size), TESSERA_OK);
    for (std::size_t i = 0; i < size; ++i) {
      tessera_event e = made<tessera_event>();
      ASSERT_EQ(tessera_events_get(events, i, &e), TESSERA_OK);
      take(e, answers[e.id]);
    }
    tessera_event beyond = made<tessera_event>();
    EXPECT_EQ(tessera_events_get(events, size, &beyond), TESSERA_INVALID_ARGUMENT);
    tessera_events_free(events);
  }

  static void take(const tessera_event& e, Answer& answer) {
    EXPECT_FALSE(answer.is_done);
    EXPECT_EQ(e.text[e.text_bytes], '\0');
    answer.text.append(e.text, e.text_bytes);
    for (std::size_t i = 0; i < e.num_prompt_logprobs; ++i) {
      answer.prompt_logprobs.push_back(e.prompt_logprobs[i]);
      for (std::size_t j = 0; j < e.num_prompt_top_logprobs; ++j) {
        const tessera_token_logprob& l = e.prompt_top_logprobs[i * e.num_prompt_top_logprobs + j];
        answer.prompt_top_logprobs.push_back({l.token, l.logprob});
      }
    }
    if (e.type == TESSERA_EVENT_TOKEN) {
      answer.tokens.push_back(e.token);
      answer.logprobs.push_back(e.logprob);
      answer.top_logprobs.emplace_back();
      for (std::size_t i = 0; i < e.num_top_logprobs; ++i) {
        answer.top_logprobs.back().push_back({e.top_logprobs[i].token, e.top_logprobs[i].logprob});
      }
      return;
    }
    answer.is_done = true;
    answer.error = e.error;
    answer.error_message = e.error_message;
    answer.stop_reason = e.stop_reason;
    answer.prompt_tokens = e.prompt_tokens;
    answer.generated_tokens = e.generated_tokens;
    answer.embedding.assign(e.embedding, e.embedding + e.embedding_size);
    answer.attention.assign(e.attention, e.attention + e.attention_size);
  }

  std::map<std::uint64_t, Answer> run() {
    std::map<std::uint64_t, Answer> answers;
    for (std::int32_t has_work = 1; has_work != 0;) {
      step(answers);
      EXPECT_EQ(tessera_engine_has_work(engine, &has_work), TESSERA_OK);
    }
    return answers;
  }

  static tessera_generate_options of_tokens(std::int64_t max_tokens) {
    tessera_generate_options options = made<tessera_generate_options>();
    options.flags = TESSERA_GENERATE_HAS_MAX_TOKENS;
    options.max_tokens = max_tokens;
    return options;
  }

  Model model =
      Model::load(kModel, {.backend = "cpu", .device = {}, .activation_dtype = {}, .on_progress = {}});
  tessera_model* c_model = nullptr;
  tessera_engine* engine = nullptr;
};

TEST_F(CEngine, GivesEachRequestTheTokensTextsAndLogProbabilitiesOfCpp) {
  const std::vector<std::string> prompts = {"Once upon a time", "The little dog", "One day, a girl"};
  EngineOptions options;
  options.max_seq_len = kMaxSeqLen;
  options.max_batch = 2;
  Engine cpp(model, options);
  std::vector<std::uint64_t> ids;
  std::map<std::uint64_t, Answer> expected;
  const tessera_logit_bias biases[] = {{20, -3.0f}, {35, 1.5f}};
  const char* stop[] = {"no such text", "nor this"};
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    GenerateOptions g;
    g.max_tokens = 10 + static_cast<std::int64_t>(i);
    g.sampling = {0.8f, 20, 0.9f, 0.01f, 1.1f, 5 + i, 0.3f, 0.2f, {{20, -3.0f}, {35, 1.5f}}};
    g.stop = {"no such text", "nor this"};
    g.top_logprobs = static_cast<int>(i);
    Request request = make_request(model.encode(prompts[i]), g);
    request.prompt_logprobs = i > 0;
    cpp.submit(std::move(request));

    tessera_generate_options c = of_tokens(g.max_tokens);
    c.flags |=
        TESSERA_GENERATE_HAS_TOP_P | TESSERA_GENERATE_HAS_REPETITION_PENALTY | TESSERA_GENERATE_HAS_LOGPROBS;
    c.temperature = 0.8f;
    c.top_k = 20;
    c.top_p = 0.9f;
    c.min_p = 0.01f;
    c.repetition_penalty = 1.1f;
    c.seed = 5 + i;
    c.presence_penalty = 0.3f;
    c.frequency_penalty = 0.2f;
    c.logit_bias = biases;
    c.num_logit_bias = 2;
    c.stop = stop;
    c.num_stop = 2;
    c.top_logprobs = static_cast<std::int32_t>(i);
    if (i > 0) c.flags |= TESSERA_GENERATE_PROMPT_LOGPROBS;
    ids.push_back(submit(prompts[i], c));
  }
  while (cpp.has_work()) {
    for (const Event& e : cpp.step()) {
      Answer& answer = expected[e.id];
      answer.text += e.text;
      for (const PromptLogprob& p : e.prompt_logprobs) {
        answer.prompt_logprobs.push_back(p.logprob);
        answer.prompt_top_logprobs.insert(answer.prompt_top_logprobs.end(), p.top_logprobs.begin(),
                                          p.top_logprobs.end());
      }
      if (e.type != Event::Type::kToken) continue;
      answer.tokens.push_back(e.token);
      answer.logprobs.push_back(e.logprob);
      answer.top_logprobs.push_back(e.top_logprobs);
    }
  }

  const std::map<std::uint64_t, Answer> answers = run();
  ASSERT_EQ(answers.size(), prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Answer& got = answers.at(ids[i]);
    const Answer& want = expected.at(i + 1);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.text, want.text);
    EXPECT_FALSE(got.text.empty());
    EXPECT_EQ(got.logprobs, want.logprobs);
    EXPECT_EQ(got.prompt_logprobs, want.prompt_logprobs);
    EXPECT_EQ(got.prompt_logprobs.size(), i > 0 ? model.encode(prompts[i]).size() - 1 : 0);
    ASSERT_EQ(got.prompt_top_logprobs.size(), i * got.prompt_logprobs.size());
    for (std::size_t j = 0; j < got.prompt_top_logprobs.size(); ++j) {
      EXPECT_EQ(got.prompt_top_logprobs[j].token, want.prompt_top_logprobs[j].token);
      EXPECT_EQ(got.prompt_top_logprobs[j].logprob, want.prompt_top_logprobs[j].logprob);
    }
    for (std::size_t t = 0; t < got.tokens.size(); ++t) {
      EXPECT_LT(got.logprobs[t], 0);
      ASSERT_EQ(got.top_logprobs[t].size(), i);
      for (std::size_t j = 0; j < i; ++j) {
        EXPECT_EQ(got.top_logprobs[t][j].token, want.top_logprobs[t][j].token);
        EXPECT_EQ(got.top_logprobs[t][j].logprob, want.top_logprobs[t][j].logprob);
      }
    }
    EXPECT_TRUE(got.is_done);
    EXPECT_EQ(got.error, TESSERA_OK);
    EXPECT_EQ(got.stop_reason, TESSERA_STOP_MAX_TOKENS);
    EXPECT_EQ(got.prompt_tokens, std::ssize(model.encode(prompts[i])));
    EXPECT_EQ(got.generated_tokens, 10 + static_cast<std::int64_t>(i));
  }
  tessera_engine_stats stats = made<tessera_engine_stats>();
  ASSERT_EQ(tessera_engine_get_stats(engine, &stats), TESSERA_OK);
  EXPECT_EQ(stats.requests_finished, 3u);
  EXPECT_EQ(stats.generated_tokens, 33u);
  EXPECT_EQ(stats.steps, cpp.stats().steps);
  EXPECT_EQ(stats.running + stats.waiting, 0);
}

TEST_F(CEngine, HoldsTextsToTheirForms) {
  tessera_generate_options schema = of_tokens(70), regex = of_tokens(40), object = of_tokens(70);
  schema.json_schema =
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":5},"age":{"type":"integer",)"
      R"("minimum":0,"maximum":120}},"required":["name","age"]})";
  regex.regex = "[A-Z][a-z]{2,5} was (happy|sad)\\.";
  object.flags |= TESSERA_GENERATE_JSON_OBJECT;
  object.temperature = schema.temperature = regex.temperature = 1;
  const std::uint64_t with_schema = submit("Tell me of a girl", schema);
  const std::uint64_t with_regex = submit("One day", regex);
  const std::uint64_t with_object = submit("One day", object);
  const std::map<std::uint64_t, Answer> answers = run();

  ASSERT_EQ(answers.at(with_schema).stop_reason, TESSERA_STOP_END_OF_TEXT) << answers.at(with_schema).text;
  const nlohmann::json json = nlohmann::json::parse(answers.at(with_schema).text, nullptr, false);
  EXPECT_TRUE(json.is_object() && json["name"].is_string() && json["age"].is_number_integer())
      << answers.at(with_schema).text;
  EXPECT_EQ(answers.at(with_regex).stop_reason, TESSERA_STOP_END_OF_TEXT);
  EXPECT_TRUE(std::regex_match(answers.at(with_regex).text, std::regex(regex.regex)))
      << answers.at(with_regex).text;
  EXPECT_EQ(answers.at(with_object).text.front(), '{');
}

TEST_F(CEngine, RefusesFormsAndOptionsThatMakeNoSense) {
  tessera_generate_options options = of_tokens(4);
  options.json_schema = "{\"not\": {}}";
  EXPECT_EQ(refused(options), TESSERA_UNSUPPORTED);
  EXPECT_NE(std::string(tessera_last_error()).find("\"not\""), std::string::npos);
  options.json_schema = "no json";
  EXPECT_EQ(refused(options), TESSERA_INVALID_ARGUMENT);
  options.json_schema = "{}";
  options.regex = "a";
  EXPECT_EQ(refused(options), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tessera_last_error()).find("one at most"), std::string::npos);
  options.regex = nullptr;
  options.flags |= TESSERA_GENERATE_IGNORE_EOS;
  EXPECT_EQ(refused(options), TESSERA_INVALID_ARGUMENT);

  options = of_tokens(4);
  options.flags |= TESSERA_GENERATE_HAS_LOGPROBS;
  options.top_logprobs = 65;
  EXPECT_EQ(refused(options), TESSERA_INVALID_ARGUMENT);
  options = of_tokens(4);
  options.flags |= TESSERA_GENERATE_PROMPT_LOGPROBS;
  EXPECT_EQ(refused(options), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tessera_last_error()).find("HAS_LOGPROBS"), std::string::npos);
  options = of_tokens(4);
  options.flags |= TESSERA_GENERATE_KEEP_CACHE;
  EXPECT_EQ(refused(options), TESSERA_INVALID_ARGUMENT);
  options = of_tokens(4);
  const tessera_logit_bias twice[] = {{5, 1.0f}, {5, 2.0f}};
  options.logit_bias = twice;
  options.num_logit_bias = 2;
  EXPECT_EQ(refused(options), TESSERA_INVALID_ARGUMENT);
  options = of_tokens(4);
  options.presence_penalty = NAN;
  EXPECT_EQ(refused(options), TESSERA_INVALID_ARGUMENT);
  options = of_tokens(4);
  options.reserved_2 = 1;
  EXPECT_EQ(refused(options), TESSERA_INVALID_ARGUMENT);
}

TEST_F(CEngine, CancelsAndRefusesWhatTheQueueDoesNotHold) {
  std::vector<std::uint64_t> ids;
  const tessera_generate_options options = of_tokens(50);
  for (int i = 0; i < 3; ++i) ids.push_back(submit("Once upon a time", options));
  EXPECT_EQ(refused(options), TESSERA_QUEUE_FULL);
  EXPECT_STREQ(tessera_status_name(TESSERA_QUEUE_FULL), "QueueFull");
  std::int32_t was_alive = 7;
  ASSERT_EQ(tessera_engine_cancel(engine, ids[1], &was_alive), TESSERA_OK);
  EXPECT_EQ(was_alive, 1);
  ASSERT_EQ(tessera_engine_cancel(engine, ids[1], &was_alive), TESSERA_OK);
  EXPECT_EQ(was_alive, 0);
  ASSERT_EQ(tessera_engine_cancel(engine, 12345, nullptr), TESSERA_OK);
  std::map<std::uint64_t, Answer> answers = run();
  EXPECT_EQ(answers[ids[1]].stop_reason, TESSERA_STOP_CANCELLED);
  EXPECT_TRUE(answers[ids[1]].tokens.empty());
  EXPECT_EQ(answers[ids[0]].tokens, answers[ids[2]].tokens);
  EXPECT_FALSE(answers[ids[0]].tokens.empty());
}

TEST_F(CEngine, ARequestThatOutgrowsTheCacheFailsAlone) {
  tessera_engine_options options = made<tessera_engine_options>();
  options.max_seq_len = kMaxSeqLen;
  options.max_kv_tokens = 32;
  options.max_batch = 2;
  tessera_engine_free(engine);
  ASSERT_EQ(tessera_engine_create(c_model, &options, &engine), TESSERA_OK) << tessera_last_error();
  tessera_generate_options endless = of_tokens(80);
  endless.flags |= TESSERA_GENERATE_IGNORE_EOS;
  const std::uint64_t too_long = submit("Once upon a time", endless);
  const std::uint64_t short_one = submit("One day", of_tokens(3));
  const std::map<std::uint64_t, Answer> answers = run();
  EXPECT_EQ(answers.at(too_long).error, TESSERA_OUT_OF_MEMORY);
  EXPECT_FALSE(answers.at(too_long).error_message.empty());
  EXPECT_EQ(answers.at(short_one).error, TESSERA_OK);
  EXPECT_EQ(answers.at(short_one).tokens.size(), 3u);
}

TEST_F(CEngine, EmbedsAndShowsAttentionAsCppDoes) {
  const std::vector<std::int32_t> tokens = model.encode("Once upon a time");
  EngineOptions options;
  options.max_seq_len = kMaxSeqLen;
  Engine cpp(model, options);
  EmbeddingRequest embedding;
  embedding.prompt = tokens;
  embedding.pooling = Pooling::kLast;
  embedding.normalize = false;
  AttentionRequest attention{tokens, {1, 3}, {0, 2}};
  cpp.submit(embedding);
  cpp.submit(attention);
  std::map<std::uint64_t, Answer> expected;
  while (cpp.has_work()) {
    for (const Event& e : cpp.step()) {
      expected[e.id].embedding = e.embedding;
      expected[e.id].attention = e.attention;
    }
  }

  tessera_embedding_options c = made<tessera_embedding_options>();
  c.pooling = TESSERA_POOLING_LAST;
  c.no_normalize = 1;
  std::uint64_t first = 0, second = 0;
  ASSERT_EQ(tessera_engine_submit_embedding(engine, tokens.data(), tokens.size(), &c, &first), TESSERA_OK);
  const std::int64_t positions[] = {1, 3};
  const std::int32_t layers[] = {0, 2};
  ASSERT_EQ(
      tessera_engine_submit_attention(engine, tokens.data(), tokens.size(), positions, 2, layers, 2, &second),
      TESSERA_OK)
      << tessera_last_error();
  const std::map<std::uint64_t, Answer> answers = run();
  EXPECT_EQ(answers.at(first).embedding, expected.at(1).embedding);
  EXPECT_FALSE(answers.at(first).embedding.empty());
  EXPECT_EQ(answers.at(second).attention, expected.at(2).attention);
  EXPECT_FALSE(answers.at(second).attention.empty());
  c.pooling = 9;
  EXPECT_EQ(tessera_engine_submit_embedding(engine, tokens.data(), tokens.size(), &c, &first),
            TESSERA_INVALID_ARGUMENT);
}

TEST_F(CEngine, WaitsUntilAnotherThreadSubmitsOrWakes) {
  std::int32_t has_work = 7;
  ASSERT_EQ(tessera_engine_wait(engine, 0, &has_work), TESSERA_OK);
  EXPECT_EQ(has_work, 0);
  const std::vector<std::int32_t> prompt = model.encode("One day");
  std::thread other([&] {
    std::uint64_t id = 0;
    EXPECT_EQ(tessera_engine_submit(engine, prompt.data(), prompt.size(), nullptr, &id), TESSERA_OK);
  });
  ASSERT_EQ(tessera_engine_wait(engine, INT64_MAX, &has_work), TESSERA_OK);
  EXPECT_EQ(has_work, 1);
  other.join();
  run();
  std::thread waker([&] { EXPECT_EQ(tessera_engine_wake(engine), TESSERA_OK); });
  ASSERT_EQ(tessera_engine_wait(engine, INT64_MAX, nullptr), TESSERA_OK);
  waker.join();
}

TEST_F(CEngine, OutlivesItsModelAndTellsItsSizes) {
  tessera_model_free(c_model);
  c_model = nullptr;
  tessera_engine_options options = made<tessera_engine_options>();
  ASSERT_EQ(tessera_engine_get_options(engine, &options), TESSERA_OK);
  EXPECT_EQ(options.max_seq_len, kMaxSeqLen);
  EXPECT_EQ(options.max_kv_tokens, 2 * kMaxSeqLen);
  EXPECT_EQ(options.page_size, 16);
  EXPECT_GT(options.prefill_chunk, 0);
  EXPECT_EQ(options.kv_dtype, TESSERA_BF16);
  EXPECT_EQ(options.flags, 0u);
  tessera_generate_options generate = of_tokens(3);
  generate.regex = "abc";  // the tokenizer's vocabulary is still there
  submit("One day", generate);
  EXPECT_EQ(run().begin()->second.text, "abc");
}

TEST_F(CEngine, AModelWithoutACacheKnowsTokensAndGeneratesNothing) {
  tessera_model_info info = made<tessera_model_info>();
  ASSERT_EQ(tessera_model_get_info(c_model, &info), TESSERA_OK);
  EXPECT_EQ(info.kv_cache_bytes, 0);
  EXPECT_EQ(info.max_seq_len, model.info().max_seq_len);
  tessera_tokens tokens{};
  ASSERT_EQ(tessera_model_encode(c_model, "One day", 7, 1, &tokens), TESSERA_OK);
  tessera_generation* generation = nullptr;
  EXPECT_EQ(tessera_model_generate(c_model, tokens.data, tokens.size, nullptr, nullptr, nullptr, &generation),
            TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tessera_last_error()).find("TESSERA_MODEL_WITHOUT_CACHE"), std::string::npos);
  tessera_floats logits{};
  EXPECT_EQ(tessera_model_logits(c_model, tokens.data, tokens.size, 0, &logits), TESSERA_INVALID_ARGUMENT);
  tessera_tokens_free(&tokens);

  tessera_model_options options = made<tessera_model_options>();
  options.flags = TESSERA_MODEL_WITHOUT_CACHE;
  options.max_batch = 2;
  tessera_model* other = nullptr;
  EXPECT_EQ(tessera_model_load(kModel.c_str(), &options, &other), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(other, nullptr);
}

// The same members through a model of its own.
TEST(CModelOptions, GenerationsHaveLogProbabilitiesFormsAndCachesOf8Bits) {
  tessera_model_options options = made<tessera_model_options>();
  options.backend = "cpu";
  options.max_seq_len = kMaxSeqLen;
  options.max_batch = 2;
  options.kv_dtype = TESSERA_F8_E4M3;
  tessera_model* model = nullptr;
  ASSERT_EQ(tessera_model_load(kModel.c_str(), &options, &model), TESSERA_OK) << tessera_last_error();
  tessera_model_info model_info = made<tessera_model_info>();
  ASSERT_EQ(tessera_model_get_info(model, &model_info), TESSERA_OK);
  EXPECT_EQ(model_info.kv_dtype, TESSERA_F8_E4M3);

  std::vector<std::int32_t> prompt = {1, 2, 3};
  tessera_generate_options plain = made<tessera_generate_options>(), held = plain;
  plain.flags = held.flags = TESSERA_GENERATE_HAS_MAX_TOKENS;
  plain.max_tokens = held.max_tokens = 5;
  held.flags |= TESSERA_GENERATE_HAS_LOGPROBS;
  held.top_logprobs = 3;
  held.regex = "[xy]{4}";
  const tessera_generate_options* both[] = {&plain, &held};
  const tessera_tokens prompts[] = {{prompt.data(), prompt.size()}, {prompt.data(), prompt.size()}};
  tessera_generation* generations[2] = {};
  ASSERT_EQ(tessera_model_generate_batch(model, prompts, 2, both, generations), TESSERA_OK)
      << tessera_last_error();
  tessera_generation_info info = made<tessera_generation_info>();
  ASSERT_EQ(tessera_generation_get_info(generations[0], &info), TESSERA_OK);
  EXPECT_EQ(info.logprobs, nullptr);
  EXPECT_EQ(info.num_top_logprobs, 0u);
  ASSERT_EQ(tessera_generation_get_info(generations[1], &info), TESSERA_OK);
  tessera_text text{};
  ASSERT_EQ(tessera_model_decode(model, info.tokens, info.num_tokens, 1, &text), TESSERA_OK);
  EXPECT_TRUE(std::regex_search(text.data, std::regex("[xy]{4}$"))) << text.data;
  ASSERT_EQ(info.num_top_logprobs, 3u);
  for (std::size_t i = 0; i < info.num_tokens; ++i) {
    const tessera_token_logprob* likeliest = info.top_logprobs + 3 * i;
    EXPECT_GE(likeliest[0].logprob, likeliest[1].logprob);
    EXPECT_GE(likeliest[1].logprob, likeliest[2].logprob);
    // The model's own probabilities, which know nothing of the form.
    EXPECT_LE(info.logprobs[i], likeliest[0].logprob);
    for (int j = 0; j < 3; ++j) {
      if (likeliest[j].token == info.tokens[i]) {
        EXPECT_EQ(likeliest[j].logprob, info.logprobs[i]);
      }
    }
  }
  tessera_text_free(&text);
  for (tessera_generation* generation : generations) tessera_generation_free(generation);
  tessera_model_free(model);
}

TEST(CEngineErrors, AreCodesAndTexts) {
  tessera_engine* engine = nullptr;
  EXPECT_EQ(tessera_engine_create(nullptr, nullptr, &engine), TESSERA_INVALID_ARGUMENT);
  tessera_model_options options = made<tessera_model_options>();
  options.backend = "cpu";
  options.flags = TESSERA_MODEL_WITHOUT_CACHE;
  tessera_model* model = nullptr;
  ASSERT_EQ(tessera_model_create_random("tiny", TESSERA_F32, &options, &model), TESSERA_OK);
  tessera_engine_options engine_options = made<tessera_engine_options>();
  engine_options.max_batch = -1;
  EXPECT_EQ(tessera_engine_create(model, &engine_options, &engine), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(engine, nullptr);
  engine_options = made<tessera_engine_options>();
  engine_options.flags = UINT64_C(1) << 50;
  EXPECT_EQ(tessera_engine_create(model, &engine_options, &engine), TESSERA_INVALID_ARGUMENT);
  engine_options = made<tessera_engine_options>();
  engine_options.max_seq_len = 32;
  ASSERT_EQ(tessera_engine_create(model, &engine_options, &engine), TESSERA_OK) << tessera_last_error();
  std::uint64_t id = 0;
  EXPECT_EQ(tessera_engine_submit(engine, nullptr, 3, nullptr, &id), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_engine_submit(engine, nullptr, 0, nullptr, &id), TESSERA_INVALID_ARGUMENT);
  const std::int32_t prompt[] = {1};
  EXPECT_EQ(tessera_engine_submit(engine, prompt, 1, nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  tessera_generate_options generate = made<tessera_generate_options>();
  generate.regex = "a";  // without a tokenizer there is no text
  EXPECT_EQ(tessera_engine_submit(engine, prompt, 1, &generate, &id), TESSERA_UNSUPPORTED);
  EXPECT_EQ(tessera_engine_step(engine, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_engine_step(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  tessera_engine_free(engine);
  tessera_engine_free(nullptr);
  tessera_events_free(nullptr);
  tessera_model_free(model);
}

}  // namespace
}  // namespace tessera
