// tessera chat without a terminal, and run's options for conversations.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "process.h"

namespace tessera::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const std::string kDemo = TESSERA_SOURCE_DIR "/models/demo";

ProcessResult chat(const std::string& input, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"chat", "--model", kDemo, "--max-tokens", "8"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  ProcessOptions options;
  options.input = input;
  return run_tessera(arguments, options);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Chat, AnswersEachLineAndKeepsTheConversation) {
  const ProcessResult one = chat("Once upon a time\n");
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(count(one.out, "\n"), 1u) << one.out;
  EXPECT_TRUE(contains(one.err, "generated: 8 tokens")) << one.err;
  const ProcessResult two = chat("Once upon a time\nand then\n");
  EXPECT_EQ(two.out.rfind(one.out, 0), 0u) << two.out;
  EXPECT_TRUE(contains(two.err, " kept)")) << two.err;
  EXPECT_NE(two.out.substr(one.out.size()), chat("and then\n").out)
      << "the first turn is part of the second's prompt";
  // What is kept of a prompt decides how many rows are multiplied at once: in bf16 tokens that are nearly as
  // likely as one another may change places.
  const auto exact = [](const std::string& input) { return chat(input, {"--activation-dtype", "f32"}).out; };
  EXPECT_EQ(exact("Once upon a time\n/reset\nand then\n"), exact("Once upon a time\n") + exact("and then\n"));
}

TEST(Chat, KnowsItsCommands) {
  const fs::path file = fs::temp_directory_path() / ("tessera-chat-" + std::to_string(getpid()) + ".json");
  const ProcessResult result = chat("/system\nOnce\\\nmore\n\"\"\"\na\n\nb\n\"\"\"\n/save " + file.string() +
                                        "\n/nothing\n/help\n/quit\nnever\n",
                                    {"--system", "Be kind."});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(contains(result.out, "Be kind.\n")) << result.out;
  EXPECT_TRUE(contains(result.out, "/reset")) << result.out;
  EXPECT_TRUE(contains(result.err, "there is no command '/nothing'")) << result.err;
  EXPECT_EQ(count(result.err, "generated:"), 2u) << result.err;
  std::ifstream stream(file);
  const json saved = json::parse(stream);
  // A conversation is written over no file.
  EXPECT_TRUE(contains(chat("/save " + file.string() + "\n").err, "exists already"));
  EXPECT_EQ(fs::file_size(file), saved.dump(2).size() + 1);
  fs::remove(file);
  ASSERT_EQ(saved.size(), 5u);
  EXPECT_EQ(saved[0].at("content"), "Be kind.");
  EXPECT_EQ(saved[1].at("content"), "Once\nmore");
  EXPECT_EQ(saved[2].at("role"), "assistant");
  EXPECT_EQ(saved[3].at("content"), "a\n\nb");
  EXPECT_TRUE(contains(chat("/save /no/such/folder/x\n").err, "cannot write"));
}

TEST(Chat, ReadsNoCommandWithinQuotes) {
  const ProcessResult result =
      chat("\"\"\"\n/quit is a word\n\"\"\"\n\"\"\"\n/etc/hosts\n\"\"\"\n/quit\nnever\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count(result.err, "generated:"), 2u) << result.err;
}

TEST(Chat, TakesLinesAsWindowsEndsThem) {
  const ProcessResult result = chat("\"\"\"\r\nOnce upon\r\n\"\"\"\r\n/quit\r\nnever\r\n");
  EXPECT_EQ(result.out, chat("\"\"\"\nOnce upon\n\"\"\"\n").out);
  EXPECT_EQ(count(result.err, "generated:"), 1u) << result.err;
}

TEST(Chat, EndsWhereItCantWrite) {
  ProcessOptions options;
  options.input = "Once upon a time\nand then\n";
  options.stdout_file = "/dev/full";
  const ProcessResult result = run_tessera({"chat", "--model", kDemo, "-n", "4"}, options);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(count(result.err, "error: cannot write to standard output: No space left on device"), 1u)
      << result.err;
}

TEST(Chat, SaysWhenAModelHasNoTemplate) {
  const ProcessResult result = run_tessera({"chat", "--model", TESSERA_FIXTURES "/models/llama3"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(contains(result.err, "has no chat template")) << result.err;
}

TEST(Chat, GoesOnAfterAnError) {
  const fs::path folder = fs::temp_directory_path() / ("tessera-chat-model-" + std::to_string(getpid()));
  fs::copy(kDemo, folder);
  std::ofstream(folder / "chat_template.jinja")
      << "{% for m in messages %}\n{% if m.content == 'no' %}{{ raise_exception('not that') }}{% endif %}{{ "
         "m.content }}{% endfor %}";
  ProcessOptions options;
  options.input = "no\nOnce upon a time\n";
  const ProcessResult result = run_tessera({"chat", "--model", folder.string(), "-n", "4"}, options);
  fs::remove_all(folder);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(contains(result.err, "chat template, line 2: the template refuses: not that")) << result.err;
  EXPECT_TRUE(contains(result.err, "generated: 4 tokens")) << result.err;
}

TEST(Chat, SaysWhenTheConversationGetsTooLong) {
  const ProcessResult result =
      chat("Once upon a time there was a girl who lived by the sea\n", {"--max-seq-len", "8"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(contains(result.err, "of which 8 fit; /reset begins anew, --max-seq-len makes room"))
      << result.err;
}

TEST(RunChat, FramesThePromptByTheTemplate) {
  const auto text_of = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"run",          "--model", kDemo,      "--json",
                                          "--max-tokens", "8",       "--prompt", " Once upon a time "};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProcessResult result = run_tessera(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  };
  EXPECT_EQ(text_of({"--chat"}).at("text").get<std::string>() + "\n", chat("Once upon a time\n").out);
  EXPECT_LT(text_of({"--chat", "--system", "x"}).at("prompt_tokens"), text_of({}).at("prompt_tokens"))
      << "the demo's template trims messages and takes no system prompt";
  EXPECT_EQ(run_tessera({"run", "--model", kDemo, "--prompt", "x", "--system", "y"}).exit_code, 2);
}

TEST(RunChat, StopsAtStrings) {
  const std::vector<std::string> arguments = {"run",          "--model", kDemo,      "--json",
                                              "--max-tokens", "60",      "--prompt", "Once upon a time"};
  const std::string whole = json::parse(run_tessera(arguments).out).at("text");
  const std::size_t dot = whole.find('.');
  ASSERT_NE(dot, whole.npos);
  std::vector<std::string> stopping = arguments;
  stopping.insert(stopping.end(), {"--stop", "@@", "--stop", "."});
  const json stopped = json::parse(run_tessera(stopping).out);
  EXPECT_EQ(stopped.at("text"), whole.substr(0, dot));
  EXPECT_EQ(stopped.at("stop_reason"), "stop_string");
}

}  // namespace
}  // namespace tessera::testing
