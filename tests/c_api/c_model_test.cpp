// Models and generation through the C interface give what the C++ API gives.

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tessera/model.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

const std::string kModel = TESSERA_SOURCE_DIR "/models/demo";

ModelOptions cpp_options() {
  ModelOptions options;
  options.backend = "cpu";
  options.max_seq_len = 96;
  options.max_batch = 2;
  return options;
}

tessera_model_options c_options() {
  tessera_model_options options{};
  options.struct_size = sizeof(options);
  options.backend = "cpu";
  options.max_seq_len = 96;
  options.max_batch = 2;
  return options;
}

class CModel : public testing::Test {
 protected:
  CModel() {
    const tessera_model_options options = c_options();
    EXPECT_EQ(tessera_model_load(kModel.c_str(), &options, &c_model), TESSERA_OK) << tessera_last_error();
  }
  ~CModel() override { tessera_model_free(c_model); }

  static std::vector<std::int32_t> take(tessera_tokens tokens) {
    std::vector<std::int32_t> taken(tokens.data, tokens.data + tokens.size);
    tessera_tokens_free(&tokens);
    EXPECT_EQ(tokens.data, nullptr);
    return taken;
  }
  static std::string take(tessera_text text) {
    std::string taken(text.data, text.size_bytes);
    EXPECT_EQ(text.data[text.size_bytes], '\0');
    tessera_text_free(&text);
    return taken;
  }
  static std::vector<std::int32_t> tokens_of(tessera_generation* generation, tessera_generation_info& info) {
    info = {};
    info.struct_size = sizeof(info);
    EXPECT_EQ(tessera_generation_get_info(generation, &info), TESSERA_OK);
    std::vector<std::int32_t> tokens(info.tokens, info.tokens + info.num_tokens);
    tessera_generation_free(generation);
    info.tokens = nullptr;
    return tokens;
  }

  LanguageModel model = LanguageModel::load(kModel, cpp_options());
  tessera_model* c_model = nullptr;
};

TEST_F(CModel, InfoTokensAndLogitsAreThoseOfCpp) {
  tessera_model_info info{};
  info.struct_size = sizeof(info);
  ASSERT_EQ(tessera_model_get_info(c_model, &info), TESSERA_OK);
  EXPECT_EQ(info.architecture, model.info().architecture);
  EXPECT_STREQ(info.backend, "cpu");
  EXPECT_EQ(info.num_parameters, model.info().num_parameters);
  EXPECT_EQ(info.vocab_size, model.info().vocab_size);
  EXPECT_EQ(info.max_seq_len, 96);
  EXPECT_EQ(info.head_dim, model.info().head_dim);
  EXPECT_EQ(tessera_dtype_name(info.activation_dtype), dtype_name(model.info().activation_dtype));

  const std::string text = "One day, a girl";
  tessera_tokens tokens{};
  ASSERT_EQ(tessera_model_encode(c_model, text.data(), text.size(), 1, &tokens), TESSERA_OK);
  const std::vector<std::int32_t> ids = take(tokens);
  EXPECT_EQ(ids, model.encode(text));
  tessera_text decoded{};
  ASSERT_EQ(tessera_model_decode(c_model, ids.data(), ids.size(), 1, &decoded), TESSERA_OK);
  EXPECT_EQ(take(decoded), model.decode(ids));
  for (const bool all : {false, true}) {
    tessera_floats logits{};
    ASSERT_EQ(tessera_model_logits(c_model, ids.data(), ids.size(), all, &logits), TESSERA_OK);
    EXPECT_EQ(std::vector<float>(logits.data, logits.data + logits.size), model.logits(ids, all));
    tessera_floats_free(&logits);
  }
}

TEST(CModelInfo, SaysHowAFolderIsQuantised) {
  for (const auto& [folder, quantization] :
       {std::pair("llama_gptq", "gptq, 4 bits"), std::pair("llama3", "")}) {
    SCOPED_TRACE(folder);
    const std::string path = std::string(TESSERA_FIXTURES) + "/models/" + folder;
    tessera_model* model = nullptr;
    ASSERT_EQ(tessera_model_load(path.c_str(), nullptr, &model), TESSERA_OK) << tessera_last_error();
    tessera_model_info info{};
    info.struct_size = sizeof(info);
    EXPECT_EQ(tessera_model_get_info(model, &info), TESSERA_OK);
    EXPECT_STREQ(info.quantization, quantization);
    // A program with the header's third version, in whose struct it isn't.
    tessera_model_info third{};
    third.struct_size = offsetof(tessera_model_info, quantization);
    const char* const behind = "behind";
    third.quantization = behind;
    EXPECT_EQ(tessera_model_get_info(model, &third), TESSERA_OK);
    EXPECT_EQ(third.quantization, behind);
    EXPECT_EQ(third.kv_dtype, info.kv_dtype);
    EXPECT_EQ(third.struct_size, offsetof(tessera_model_info, quantization));
    tessera_model_free(model);
  }
}

TEST_F(CModel, GeneratesAndStreamsWhatCppDoes) {
  const std::vector<std::int32_t> prompt = model.encode("Once upon a time");
  GenerateOptions options;
  options.max_tokens = 12;
  options.sampling = {0.8f, 20, 0.9f, 0.01f, 1.1f, 5};
  options.stop = {"no such text", "nor this"};
  std::string text;
  const Generation expected = model.generate(prompt, options, [&](std::int32_t, std::string_view piece) {
    text += piece;
    return true;
  });

  tessera_generate_options c{};
  c.struct_size = sizeof(c);
  c.flags =
      TESSERA_GENERATE_HAS_MAX_TOKENS | TESSERA_GENERATE_HAS_TOP_P | TESSERA_GENERATE_HAS_REPETITION_PENALTY;
  c.max_tokens = 12;
  c.temperature = 0.8f;
  c.top_k = 20;
  c.top_p = 0.9f;
  c.min_p = 0.01f;
  c.repetition_penalty = 1.1f;
  c.seed = 5;
  const char* stop[] = {"no such text", "nor this"};
  c.stop = stop;
  c.num_stop = 2;
  std::string c_text;
  tessera_generation* generation = nullptr;
  const auto append = [](void* user_data, std::int32_t, const char* piece, std::size_t size) -> std::int32_t {
    static_cast<std::string*>(user_data)->append(piece, size);
    return 0;
  };
  ASSERT_EQ(tessera_model_generate(c_model, prompt.data(), prompt.size(), &c, append, &c_text, &generation),
            TESSERA_OK)
      << tessera_last_error();
  tessera_generation_info info;
  EXPECT_EQ(tokens_of(generation, info), expected.tokens);
  EXPECT_EQ(c_text, text);
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(info.stop_reason, TESSERA_STOP_MAX_TOKENS);
  EXPECT_EQ(info.prompt_tokens, static_cast<std::int64_t>(prompt.size()));
  EXPECT_EQ(info.generated_tokens, 12);

  const auto stop_at_once = [](void*, std::int32_t, const char*, std::size_t) -> std::int32_t { return 1; };
  ASSERT_EQ(
      tessera_model_generate(c_model, prompt.data(), prompt.size(), &c, stop_at_once, nullptr, &generation),
      TESSERA_OK);
  EXPECT_EQ(tokens_of(generation, info).size(), 1u);
  EXPECT_EQ(info.stop_reason, TESSERA_STOP_CANCELLED);
}

TEST_F(CModel, ABatchHasAResultEachWithItsOwnOptions) {
  std::vector<std::int32_t> first = model.encode("Once upon"), second = model.encode("The little dog");
  GenerateOptions options;
  options.max_tokens = 5;
  GenerateOptions shorter;
  shorter.max_tokens = 3;
  const std::vector<std::vector<std::int32_t>> prompts = {first, second};
  const std::vector<GenerateOptions> all_options = {options, shorter};
  const std::vector<Generation> expected = model.generate_batch(prompts, all_options);

  tessera_generate_options c_first{}, c_second{};
  c_first.struct_size = c_second.struct_size = sizeof(c_first);
  c_first.flags = c_second.flags = TESSERA_GENERATE_HAS_MAX_TOKENS;
  c_first.max_tokens = 5;
  c_second.max_tokens = 3;
  const tessera_generate_options* c_all[] = {&c_first, &c_second};
  const tessera_tokens c_prompts[] = {{first.data(), first.size()}, {second.data(), second.size()}};
  tessera_generation* generations[2] = {};
  ASSERT_EQ(tessera_model_generate_batch(c_model, c_prompts, 2, c_all, generations), TESSERA_OK)
      << tessera_last_error();
  for (std::size_t i = 0; i < 2; ++i) {
    tessera_generation_info info;
    EXPECT_EQ(tokens_of(generations[i], info), expected[i].tokens);
  }
}

TEST(CModelChat, RendersAndEncodesWhatCppDoes) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "c_model_chat";
  std::filesystem::remove_all(path);
  std::filesystem::copy(TESSERA_FIXTURES "/models/qwen3", path);
  std::ofstream(path / "chat_template.jinja")
      << "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
         "{% if add_generation_prompt %}[go on]{% endif %}{{ (tools or []) | length }}{{ extra }}";
  const LanguageModel model = LanguageModel::load(path, cpp_options());
  const tessera_model_options options = c_options();
  tessera_model* c_model = nullptr;
  ASSERT_EQ(tessera_model_load(path.c_str(), &options, &c_model), TESSERA_OK) << tessera_last_error();

  const std::vector<ChatMessage> messages = {{"user", "Hello"}, {"assistant", "Yes?"}, {"user", ""}};
  const tessera_chat_message c_messages[] = {
      {"user", "Hello", 5}, {"assistant", "Yes?", 4}, {"user", nullptr, 0}};
  for (const bool with_options : {false, true}) {
    ChatOptions chat;
    tessera_chat_options c_chat{};
    c_chat.struct_size = sizeof(c_chat);
    if (with_options) {
      chat.add_generation_prompt = false;
      chat.tools = c_chat.tools = R"([{"type": "function"}])";
      chat.variables = c_chat.variables = R"({"extra": "!"})";
      c_chat.no_generation_prompt = 1;
    }
    tessera_text text{};
    tessera_tokens tokens{};
    ASSERT_EQ(tessera_model_render_chat(c_model, c_messages, 3, &c_chat, &text), TESSERA_OK)
        << tessera_last_error();
    EXPECT_EQ(std::string(text.data, text.size_bytes), model.render_chat(messages, chat));
    ASSERT_EQ(tessera_model_encode_chat(c_model, c_messages, 3, &c_chat, &tokens), TESSERA_OK);
    EXPECT_EQ(std::vector<std::int32_t>(tokens.data, tokens.data + tokens.size),
              model.encode_chat(messages, chat));
    tessera_text_free(&text);
    tessera_tokens_free(&tokens);
    const char* const json = R"([{"role": "user", "content": "Hello", "name": "Mia"}])";
    ASSERT_EQ(tessera_model_render_chat_json(c_model, json, &c_chat, &text), TESSERA_OK)
        << tessera_last_error();
    EXPECT_EQ(std::string(text.data, text.size_bytes), model.model().render_chat_json(json, chat));
    ASSERT_EQ(tessera_model_encode_chat_json(c_model, json, &c_chat, &tokens), TESSERA_OK);
    EXPECT_EQ(std::vector<std::int32_t>(tokens.data, tokens.data + tokens.size),
              model.model().encode_chat_json(json, chat));
    tessera_text_free(&text);
    tessera_tokens_free(&tokens);
    EXPECT_EQ(tessera_model_render_chat_json(c_model, "{}", &c_chat, &text), TESSERA_INVALID_ARGUMENT);
  }
  tessera_model_free(c_model);
  std::filesystem::remove_all(path);
}

TEST(CModelErrors, AreCodesAndTexts) {
  tessera_model* model = nullptr;
  EXPECT_EQ(tessera_model_load("/no/such/model", nullptr, &model), TESSERA_IO);
  EXPECT_NE(std::string(tessera_last_error()).find("/no/such/model"), std::string::npos);
  EXPECT_EQ(model, nullptr);
  EXPECT_EQ(tessera_model_load(nullptr, nullptr, &model), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_model_create_random("no such shape", TESSERA_F32, nullptr, &model),
            TESSERA_INVALID_ARGUMENT);
  tessera_model_options options = c_options();
  options.flags = UINT64_C(1) << 40;
  EXPECT_EQ(tessera_model_load(kModel.c_str(), &options, &model), TESSERA_INVALID_ARGUMENT);
  options = c_options();
  options.on_progress = [](void*, std::int32_t, std::uint64_t, std::uint64_t) -> std::int32_t { return 1; };
  EXPECT_EQ(tessera_model_load(kModel.c_str(), &options, &model), TESSERA_CANCELLED);

  options = c_options();
  ASSERT_EQ(tessera_model_create_random("tiny", TESSERA_F32, &options, &model), TESSERA_OK)
      << tessera_last_error();
  tessera_tokens tokens{};
  EXPECT_EQ(tessera_model_encode(model, "x", 1, 1, &tokens), TESSERA_UNSUPPORTED);
  tessera_generation* generation = nullptr;
  EXPECT_EQ(tessera_model_generate(model, nullptr, 3, nullptr, nullptr, nullptr, &generation),
            TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_model_generate(nullptr, nullptr, 0, nullptr, nullptr, nullptr, &generation),
            TESSERA_INVALID_ARGUMENT);
  tessera_model_free(model);
}

}  // namespace
}  // namespace tessera
