// run, tokenize and logits on the golden models, whose numbers and tokens Hugging Face's libraries made.

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "model/golden_fixture.h"
#include "process.h"

namespace tessera::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const std::string kModels = TESSERA_FIXTURES "/models/";
const std::string kLlama = kModels + "llama3";

json json_of(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return json::parse(result.out);
}

json read_json(const fs::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

std::string joined(const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

void expect_error(const ProcessResult& result, const std::string& part) {
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err.rfind("error: ", 0), 0u) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

/// A folder that goes away with the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "tessera-cli-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

/// The llama3 golden model with a context of 65536 tokens, so that generating takes long enough to interfere.
void make_long_model(const TemporaryFolder& folder) {
  for (const auto& entry : fs::directory_iterator(kLlama)) {
    if (entry.path().filename() != "config.json") {
      fs::create_symlink(fs::canonical(entry.path()), folder.path() / entry.path().filename());
    }
  }
  json config = read_json(kLlama + "/config.json");
  config["max_position_embeddings"] = 65536;
  folder.write("config.json", config.dump());
}

class GoldenModel : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenModel, TokenizesLikeTheTokenizersPackage) {
  const std::string model = read_golden_fixture(GetParam()).model;
  const json expected = read_json(kModels + GetParam() + "/expected.json");
  ASSERT_FALSE(expected.at("tokenized").empty());
  for (const json& example : expected.at("tokenized")) {
    ProcessOptions options;
    options.input = example.at("text");
    const json document = json_of(run_tessera({"tokenize", "--model", model, "-", "--json"}, options));
    EXPECT_EQ(document.at("tokens"), example.at("tokens")) << example;
    EXPECT_EQ(document.at("pieces").size(), document.at("tokens").size());
  }
}

TEST_P(GoldenModel, GivesTransformersLogits) {
  const GoldenFixture golden = read_golden_fixture(GetParam());
  // The golden logits are fp32 results; 16-bit weights would otherwise run with 16-bit activations.
  const json document =
      json_of(run_tessera({"logits", "--model", golden.model, "--tokens", joined(golden.tokens), "--all",
                           "--activation-dtype", "f32", "--json"}));
  std::vector<float> logits;
  for (const json& row : document.at("logits")) {
    for (const json& value : row) logits.push_back(value.get<float>());
  }
  ASSERT_EQ(logits.size(), golden.logits.size());
  const std::size_t vocab_size = logits.size() / golden.tokens.size();
  EXPECT_LE(max_relative_row_error(logits, golden.logits, vocab_size), 2e-3);

  const json last = json_of(run_tessera({"logits", "--model", golden.model, "--tokens", joined(golden.tokens),
                                         "--activation-dtype", "f32", "--json"}));
  const auto last_row = last.at("logits").get<std::vector<float>>();
  const std::vector<float> golden_row(golden.logits.end() - static_cast<std::ptrdiff_t>(vocab_size),
                                      golden.logits.end());
  EXPECT_LE(max_relative_row_error(last_row, golden_row, vocab_size), 2e-3);
}

INSTANTIATE_TEST_SUITE_P(Formats, GoldenModel,
                         ::testing::Values("llama3", "qwen2", "gguf_llama_q8_0", "gguf_qwen3_bf16",
                                           "phi3_longrope", "granite", "gguf_gemma3_q8_0"));

TEST(Logits, AreThoseOfTheContextThatIsAskedFor) {
  const GoldenFixture golden = read_golden_fixture("phi3_longrope");
  const std::size_t vocab_size = golden.logits.size() / golden.tokens.size();
  const std::size_t count = golden.short_logits.size() / vocab_size;
  const std::vector<std::int32_t> tokens(golden.tokens.begin(),
                                         golden.tokens.begin() + static_cast<std::ptrdiff_t>(count));
  const json document =
      json_of(run_tessera({"logits", "--model", golden.model, "--tokens", joined(tokens), "--max-seq-len",
                           std::to_string(count), "--activation-dtype", "f32", "--json"}));
  const std::vector<float> expected(golden.short_logits.end() - static_cast<std::ptrdiff_t>(vocab_size),
                                    golden.short_logits.end());
  EXPECT_LE(max_relative_row_error(document.at("logits").get<std::vector<float>>(), expected, vocab_size),
            2e-3);
}

TEST(Tokenize, DecodesWhatItEncodes) {
  const std::string text = "The heron rested near the stone.";
  const json encoded = json_of(run_tessera({"tokenize", "--model", kLlama, text, "--json"}));
  const std::string ids = joined(encoded.at("tokens").get<std::vector<std::int32_t>>());
  const ProcessResult decoded = run_tessera({"tokenize", "--model", kLlama, "--decode", ids});
  EXPECT_EQ(decoded.exit_code, 0) << decoded.err;
  EXPECT_EQ(decoded.out, text + "\n");
  const json plain =
      json_of(run_tessera({"tokenize", "--model", kLlama, text, "--no-special-tokens", "--json"}));
  EXPECT_EQ(plain.at("tokens").size() + 1, encoded.at("tokens").size());  // the beginning-of-text token
}

TEST(Tokenize, TakesATokenizerFileAlone) {
  const json document =
      json_of(run_tessera({"tokenize", "--model", kLlama + "/tokenizer.json", "near", "--json"}));
  EXPECT_EQ(document.at("tokens"),
            json_of(run_tessera({"tokenize", "--model", kLlama, "near", "--json"})).at("tokens"));
}

TEST(Tokenize, TakesFilesWithoutWeights) {
  const TemporaryFolder folder;
  fs::copy_file(kLlama + "/tokenizer.json", folder.path() / "tokenizer.json");
  EXPECT_EQ(json_of(run_tessera({"tokenize", "-m", folder.path(), "near", "--json"})).at("tokens"),
            json_of(run_tessera({"tokenize", "-m", kLlama, "near", "--json"})).at("tokens"));
  // A .gguf file whose header counts no tensors, as those that hold a vocabulary only.
  const std::string model = read_golden_fixture("gguf_llama_q8_0").model;
  std::ifstream file(model, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  bytes.replace(8, 8, std::string(8, '\0'));
  const std::string vocabulary = folder.write("vocabulary.gguf", bytes);
  EXPECT_EQ(json_of(run_tessera({"tokenize", "-m", vocabulary, "near", "--json"})).at("tokens"),
            json_of(run_tessera({"tokenize", "-m", model, "near", "--json"})).at("tokens"));
  fs::create_directory(folder.path() / "empty");
  expect_error(run_tessera({"tokenize", "-m", folder.path() / "empty", "near"}), "has no tokenizer");
}

TEST(Tokenize, TakesTextThatIsNotUtf8) {
  const json document = json_of(run_tessera({"tokenize", "--model", kLlama, "a\xff\xfe", "--json"}));
  EXPECT_GT(document.at("tokens").size(), 1u);
}

TEST(Tokenize, RefusesIdsOutsideTheVocabulary) {
  expect_error(run_tessera({"tokenize", "--model", kLlama, "--decode", "1,100000"}), "100000");
}

TEST(Logits, TableListsTheLikeliestTokenFirst) {
  const GoldenFixture golden = read_golden_fixture("llama3");
  const ProcessResult result =
      run_tessera({"logits", "--model", kLlama, "--tokens", joined(golden.tokens), "--top", "3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 4) << result.out;
  const std::string first_row = result.out.substr(result.out.find('\n') + 1);
  std::istringstream words(first_row);
  std::int32_t position = 0, token = 0;
  words >> position >> token;
  EXPECT_EQ(position, std::ssize(golden.tokens) - 1);
  EXPECT_EQ(token, golden.greedy.front());
}

TEST(Logits, RefusesTokensOutsideTheVocabulary) {
  expect_error(run_tessera({"logits", "--model", kLlama, "--tokens", "1,288", "--json"}), "288");
}

TEST(Logits, RefusesMoreTokensThanTheContextHolds) {
  std::string ids = "1";
  for (int i = 0; i < 5000; ++i) ids += ",2";
  expect_error(run_tessera({"logits", "--model", kLlama, "--tokens", ids}), "5001");
}

TEST(Quantize, MakesAFileOfAFolderThatContinuesAsItDoes) {
  const TemporaryFolder folder;
  const std::string out = folder.path() / "made.gguf";
  const GoldenFixture fixture = read_golden_fixture("llama3");
  const json made = json_of(run_tessera({"quantize", "--model", kLlama, "--type", "F32", "--json", out}));
  EXPECT_EQ(made.at("type"), "f32");
  EXPECT_EQ(made.at("bytes_after"), made.at("bytes_before"));  // the folder's matrices are of fp32
  const json after =
      json_of(run_tessera({"logits", "--model", out, "--tokens", joined(fixture.tokens), "--json"}));
  const auto logits = after.at("logits").get<std::vector<float>>();
  EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), fixture.greedy.front());
  expect_error(run_tessera({"quantize", "--model", kLlama, out}), "exists already");
  fs::remove(out);
  expect_error(run_tessera({"quantize", "--model", kModels, out}), "has no config.json");
  EXPECT_FALSE(fs::exists(out));
}

TEST(Quantize, LeavesNothingOfAFileThatGrowsBeyondTheLargestSize) {
  const TemporaryFolder folder;
  const ProcessResult result =
      run_process("/bin/sh", {"-c", "ulimit -f 8; exec \"$@\"", "sh", TESSERA_EXECUTABLE, "quantize",
                              "--model", kLlama, "--type", "f32", folder.path() / "made.gguf"});
  expect_error(result, "File too large");
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Run, StreamsTextAndReportsRates) {
  const ProcessResult text =
      run_tessera({"run", "--model", kLlama, "--prompt", "The heron", "--max-tokens", "12"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.err.find("tokens/s"), std::string::npos) << text.err;
  EXPECT_EQ(text.err.find('\r'), std::string::npos) << "a progress bar without a terminal";
  const json document = json_of(
      run_tessera({"run", "--model", kLlama, "--prompt", "The heron", "--max-tokens", "12", "--json"}));
  EXPECT_EQ(document.at("text").get<std::string>() + "\n", text.out);
  EXPECT_EQ(document.at("generated_tokens").get<std::size_t>(), document.at("tokens").size());
  EXPECT_EQ(document.at("stop_reason"), "max_tokens");
  EXPECT_GT(document.at("prompt_tokens").get<int>(), 0);
  EXPECT_EQ(document.at("backend"), "cpu");
}

TEST(Run, FirstTokenIsTheLikeliest) {
  const json run = json_of(
      run_tessera({"run", "--model", kLlama, "--prompt", "The heron", "--max-tokens", "1", "--json"}));
  const json logits = json_of(run_tessera({"logits", "--model", kLlama, "--prompt", "The heron", "--json"}));
  const auto values = logits.at("logits").get<std::vector<float>>();
  EXPECT_EQ(run.at("tokens").at(0).get<std::ptrdiff_t>(),
            std::max_element(values.begin(), values.end()) - values.begin());
}

TEST(Run, ReadsThePromptFromStandardInput) {
  ProcessOptions options;
  options.input = "The heron";
  const ProcessResult piped =
      run_tessera({"run", "--model", kLlama, "--prompt", "-", "--max-tokens", "6"}, options);
  const ProcessResult direct =
      run_tessera({"run", "--model", kLlama, "--prompt", "The heron", "--max-tokens", "6", "--echo"});
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_EQ("The heron" + piped.out, direct.out);
}

TEST(Run, TheSeedDecidesTheText) {
  const auto text_of = [](const std::string& seed) {
    const ProcessResult result = run_tessera({"run", "--model", kLlama, "--prompt", "The", "--max-tokens",
                                              "30", "--temperature", "1.5", "--ignore-eos", "--seed", seed});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(text_of("7"), text_of("7"));
  EXPECT_NE(text_of("7"), text_of("8"));
}

TEST(Run, TokensDrawnBeforeCanBeMadeLessLikely) {
  const auto tokens_of = [](const std::string& option, const std::string& penalty) {
    const json document = json_of(run_tessera({"run", "--model", kLlama, "--prompt", "The", "--max-tokens",
                                               "40", "--ignore-eos", "--json", option, penalty}));
    const std::vector<int> tokens = document.at("tokens").get<std::vector<int>>();
    return std::set<int>(tokens.begin(), tokens.end()).size();
  };
  const std::size_t without = tokens_of("--presence-penalty", "0");
  EXPECT_GT(tokens_of("--presence-penalty", "2"), without);
  EXPECT_GT(tokens_of("--frequency-penalty", "2"), without);
  EXPECT_LE(tokens_of("--frequency-penalty", "-2"), without);
}

TEST(Run, InterruptKeepsTheTextSoFar) {
  const TemporaryFolder folder;
  make_long_model(folder);
  ProcessOptions options;
  options.signal_after_output = SIGINT;
  const ProcessResult result = run_tessera(
      {"run", "--model", folder.path(), "--prompt", "The", "--max-tokens", "60000", "--ignore-eos"}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out.back(), '\n');
  EXPECT_NE(result.err.find("stopped: cancelled"), std::string::npos) << result.err;
}

TEST(Run, InterruptEndsWithAValidJsonDocument) {
  const TemporaryFolder folder;
  make_long_model(folder);
  ProcessOptions options;
  options.signal_after = {SIGINT, std::chrono::milliseconds(1500)};
  const json document = json_of(run_tessera(
      {"run", "--model", folder.path(), "--prompt", "The", "--max-tokens", "60000", "--ignore-eos", "--json"},
      options));
  EXPECT_EQ(document.at("stop_reason"), "cancelled");
}

TEST(Run, DrawsASeedAndSaysWhich) {
  const std::vector<std::string> arguments = {"run", "-m", kLlama,          "-p",  "The",
                                              "-n",  "30", "--temperature", "1.5", "--ignore-eos"};
  std::vector<std::string> as_json = arguments;
  as_json.emplace_back("--json");
  const json first = json_of(run_tessera(as_json)), second = json_of(run_tessera(as_json));
  const auto seed = first.at("seed").get<std::uint64_t>();
  EXPECT_NE(seed, second.at("seed").get<std::uint64_t>());
  as_json.insert(as_json.end(), {"--seed", std::to_string(seed)});
  EXPECT_EQ(json_of(run_tessera(as_json)).at("text"), first.at("text"));
  const std::string err = run_tessera(arguments).err;
  EXPECT_NE(err.find("; seed "), std::string::npos) << err;
  // Where nothing is drawn there is none to tell.
  EXPECT_TRUE(
      json_of(run_tessera({"run", "-m", kLlama, "-p", "The", "-n", "2", "--json"})).at("seed").is_null());
}

TEST(Run, TakesOneNewlineFromTheEndOfAPipedPrompt) {
  const auto prompt_tokens = [](const std::string& piped) {
    ProcessOptions options;
    options.input = piped;
    return json_of(run_tessera({"run", "-m", kLlama, "-p", "-", "-n", "1", "--json"}, options))
        .at("prompt_tokens")
        .get<int>();
  };
  EXPECT_EQ(prompt_tokens("The heron\n"), prompt_tokens("The heron"));
  EXPECT_EQ(prompt_tokens("The heron\r\n"), prompt_tokens("The heron"));
  EXPECT_GT(prompt_tokens("The heron\n\n"), prompt_tokens("The heron"));
}

TEST(Run, SaysWhichNumberOfThreadsItUses) {
  const int asked = static_cast<int>(std::thread::hardware_concurrency()) + 1;
  const ProcessResult result = run_tessera(
      {"run", "-m", kLlama, "-p", "The", "-n", "2", "--threads", std::to_string(asked), "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const int threads = json::parse(result.out).at("threads").get<int>();
  EXPECT_LE(threads, asked);
  // Fewer than were asked for where the system allows no more; else more than there are processors.
  const std::string reason =
      threads < asked ? fmt::format("{} of {} threads", threads, asked) : fmt::format("--threads {}", asked);
  EXPECT_EQ(result.err.rfind("warning: " + reason, 0), 0u) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST(Run, SpeaksOfOptionsAsTheyWereTyped) {
  expect_error(run_tessera({"run", "-m", kLlama, "-p", "x", "--max-seq-len", "99999999"}),
               "--max-seq-len is 99999999; expected");
}

TEST(Run, AReaderThatGoesAwayEndsItQuietly) {
  const TemporaryFolder folder;
  make_long_model(folder);
  ProcessOptions options;
  options.close_stdout_at_once = true;
  const ProcessResult result = run_tessera(
      {"run", "--model", folder.path(), "--prompt", "The", "--max-tokens", "60000", "--ignore-eos"}, options);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
}

TEST(Run, AFullDiskIsAClearError) {
  ProcessOptions options;
  options.stdout_file = "/dev/full";
  expect_error(run_tessera({"run", "--model", kLlama, "--prompt", "The"}, options),
               "No space left on device");
  expect_error(run_tessera({"run", "--model", kLlama, "--prompt", "The", "--json"}, options),
               "No space left on device");
}

TEST(Run, APromptLongerThanTheContextIsAClearError) {
  ProcessOptions options;
  for (int i = 0; i < 5000; ++i) options.input += "stone ";
  expect_error(run_tessera({"run", "--model", kLlama, "--prompt", "-"}, options), "context");
}

TEST(Run, FilesThatAreNoSchemaAreClearErrors) {
  const auto with_schema = [](const std::string& file) {
    return run_tessera({"run", "--model", kLlama, "--prompt", "the", "--json-schema", file});
  };
  expect_error(with_schema("/no/such/schema"), "cannot read the JSON schema '/no/such/schema'");
  expect_error(with_schema(kLlama), "cannot read the JSON schema '" + kLlama + "'");
  expect_error(with_schema("/dev/zero"), "is longer than 64 MiB");
}

TEST(Serve, FilesThatHoldNoKeyAreClearErrors) {
  const TemporaryFolder folder;
  const auto with_key = [](const std::string& file) {
    return run_tessera({"serve", "--model", kLlama, "--port", "0", "--api-key-file", file});
  };
  expect_error(with_key("/no/such/key"), "cannot read a key from the first line of '/no/such/key'");
  expect_error(with_key(folder.path()), "cannot read a key");
  expect_error(with_key(folder.write("empty", "")), "cannot read a key");
  expect_error(with_key(folder.write("blank", " \r\nkey\n")), "is empty");
  expect_error(with_key("/dev/zero"), "is longer than 4096 bytes");
}

TEST(Serve, WarnsIfEverybodyMayUseIt) {
  const TemporaryFolder folder;
  const std::string key = folder.write("key", "secret\n");
  const auto warns = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"serve", "--model", kLlama, "--port", "0"});
    ProcessOptions options;
    options.signal_after_output = SIGTERM;
    const ProcessResult result = run_tessera(arguments, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err.find("warning: everybody") != std::string::npos;
  };
  EXPECT_FALSE(warns({}));
  EXPECT_TRUE(warns({"--host", "0.0.0.0"}));
  EXPECT_FALSE(warns({"--host", "0.0.0.0", "--api-key-file", key}));
}

TEST(Run, FilesThatAreNoModelAreClearErrors) {
  const TemporaryFolder folder;
  const auto run = [](const std::string& model) {
    return run_tessera({"run", "--model", model, "--prompt", "x", "--json"});
  };
  expect_error(run("/no/such/model"), "/no/such/model");
  expect_error(run(folder.path()), "config.json");
  expect_error(run("/dev/zero"), "/dev/zero");
  expect_error(run(folder.write("text.gguf", "not a model")), "text.gguf");
  expect_error(run(folder.write("empty.gguf", "")), "empty.gguf");
  // A header that promises 2^60 tensors.
  const std::string header("GGUF\x03\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0", 24);
  expect_error(run(folder.write("huge.gguf", header)), "huge.gguf");

  // Half a weight file beside a good configuration.
  fs::create_directory(folder.path() / "half");
  for (const auto& entry : fs::directory_iterator(kModels + "llama2")) {
    fs::copy_file(entry.path(), folder.path() / "half" / entry.path().filename());
  }
  const fs::path weights = folder.path() / "half" / "model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) / 2);
  expect_error(run(folder.path() / "half"), "model.safetensors");
  folder.write("half/config.json", "{\"model_type\": ");
  expect_error(run(folder.path() / "half"), "config.json");
}

TEST(Run, BackendThatCannotRunAModelIsAClearError) {
  // unfused has attention only, or runs the model with another backend's kernels: never something else
  // silently.
  const ProcessResult result = run_tessera(
      {"run", "--model", kLlama, "--prompt", "The", "--max-tokens", "2", "--backend", "unfused", "--json"});
  if (result.exit_code == 0) {
    EXPECT_NE(json::parse(result.out).at("backend").get<std::string>().find("unfused"), std::string::npos);
  } else {
    expect_error(result, "unfused");
  }
}

TEST(Run, ReferenceAndCpuAgreeOnGreedyTokens) {
  const auto tokens_of = [](const std::string& backend) {
    return json_of(run_tessera({"run", "--model", kLlama, "--prompt", "The heron rested", "--max-tokens", "8",
                                "--backend", backend, "--json"}))
        .at("tokens");
  };
  EXPECT_EQ(tokens_of("auto"), tokens_of("reference"));
}

TEST(Weights, TruncatedDuringARunAreNamedByTheError) {
  // While it loads, or soon after; and while it generates.
  for (const int delay_ms : {30, 1000}) {
    const TemporaryFolder folder;
    for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
      fs::copy_file(kModels + "llama2/" + name, folder.path() / name);
    }
    const fs::path weights = folder.path() / "model.safetensors";
    ProcessOptions options;
    options.action_after = {[&] { fs::resize_file(weights, 0); }, std::chrono::milliseconds(delay_ms)};
    const ProcessResult result =
        run_tessera({"bench", "model", "--model", folder.path().string(), "--backend", "cpu",
                     "--prompt-tokens", "100", "--gen-tokens", "100", "--repeat", "1000"},
                    options);
    EXPECT_EQ(result.signal, 0);
    EXPECT_EQ(result.exit_code, 1) << result.out;
    EXPECT_EQ(result.err.rfind("error: " + weights.string() + ": ", 0), 0u) << result.err;
    if (delay_ms == 1000) {
      EXPECT_NE(result.err.find("the file became shorter"), std::string::npos) << result.err;
    }
  }
}

TEST(Weights, TruncatedWhileSeveralThreadsReadThemAreNamedOnce) {
  // Whether threads meet it at one time is chance.
  for (int round = 0; round < 6; ++round) {
    const TemporaryFolder folder;
    for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
      fs::copy_file(TESSERA_SOURCE_DIR + std::string("/models/demo/") + name, folder.path() / name);
    }
    const fs::path weights = folder.path() / "model.safetensors";
    ProcessOptions options;
    options.action_after = {[&] { fs::resize_file(weights, 0); }, std::chrono::milliseconds(400)};
    const ProcessResult result =
        run_tessera({"bench", "model", "--model", folder.path().string(), "--backend", "cpu",
                     "--prompt-tokens", "500", "--gen-tokens", "20", "--repeat", "1000", "--threads", "8"},
                    options);
    EXPECT_EQ(result.exit_code, 1) << result.out;
    const std::size_t begin = result.err.find("error: " + weights.string() + ": the file became shorter");
    ASSERT_NE(begin, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find('\n', begin), result.err.size() - 1) << result.err;
  }
}

}  // namespace
}  // namespace tessera::testing
