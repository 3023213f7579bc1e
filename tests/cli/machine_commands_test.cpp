// info, explain, bench and verify: commands that need no model.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/binary_cache.h"
#include "process.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// Parses standard output, which must hold one JSON document and nothing else.
json json_of(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return json::parse(result.out);
}

TEST(Info, NamesDevicesBackendsAndVersions) {
  const json document = json_of(run_tessera({"info", "--json"}));
  EXPECT_GE(document.at("devices").at(0).at("logical_cores").get<int>(), 1);
  EXPECT_GT(document.at("devices").at(0).at("memory_bytes").get<std::uint64_t>(), 0u);
  const auto targets = document.at("devices").at(0).at("simd_targets").get<std::set<std::string>>();
  EXPECT_EQ(targets.count(document.at("devices").at(0).at("simd_target").get<std::string>()), 1u);
  std::set<std::string> backends;
  for (const json& backend : document.at("attention_backends")) backends.insert(backend.at("name"));
  for (const char* name : {"cpu", "unfused", "reference"}) EXPECT_EQ(backends.count(name), 1u) << name;
  for (const auto& [name, version] : document.at("libraries").items()) {
    EXPECT_NE(version.get<std::string>().find('.'), std::string::npos) << name;
  }
  EXPECT_NE(document.at("compiler").get<std::string>().find("++ "), std::string::npos);
}

TEST(Info, TextHoldsWhatTheJsonHolds) {
  const ProcessResult text = run_tessera({"info"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(text.err, "");
  const json document = json_of(run_tessera({"info", "--json"}));
  EXPECT_NE(text.out.find(document.at("devices").at(0).at("simd_target").get<std::string>()),
            std::string::npos);
  for (const json& backend : document.at("attention_backends")) {
    // What can't be used here says why instead.
    const char* shown = backend.at("available").get<bool>() ? "description" : "unavailable_reason";
    EXPECT_NE(text.out.find(backend.at(shown).get<std::string>()), std::string::npos) << backend;
  }
}

TEST(Info, SaysWhatGpusThereAreOrWhatIsMissing) {
  const json cuda = json_of(run_tessera({"info", "--json"})).at("cuda");
  const std::string text = run_tessera({"info"}).out;
  if (cuda.at("available").get<bool>()) {
    ASSERT_FALSE(cuda.at("gpus").empty());
    for (const json& gpu : cuda.at("gpus")) {
      EXPECT_NE(text.find(gpu.at("model").get<std::string>()), std::string::npos);
      EXPECT_GE(gpu.at("memory_bytes").get<std::uint64_t>(),
                gpu.at("available_memory_bytes").get<std::uint64_t>());
      EXPECT_GT(gpu.at("multiprocessors").get<int>(), 0);
    }
    for (const char* library : {"nvrtc", "cublaslt"}) {
      const json& found = cuda.at(library);
      EXPECT_EQ(found.at("available").get<bool>(), found.at("unavailable_reason").get<std::string>().empty());
      EXPECT_NE(text.find(library), std::string::npos);
    }
  } else {
    const std::string reason = cuda.at("unavailable_reason");
    EXPECT_NE(reason.find("driver"), std::string::npos);
    EXPECT_NE(text.find("gpu        none: " + reason), std::string::npos) << text;
    EXPECT_EQ(text.find(reason), text.rfind(reason)) << "said twice: " << text;
    EXPECT_TRUE(cuda.at("gpus").empty());
  }
}

TEST(Info, NamesTheFolderOfCompiledKernels) {
  ProcessOptions options;
  options.environment = {"TESSERA_CACHE_DIR=/nowhere/kernels"};
  const ProcessResult text = run_tessera({"info"}, options);
  EXPECT_NE(text.out.find("/nowhere/kernels"), std::string::npos) << text.out;
}

TEST(Info, RefusesASimdTargetThatDoesNotExist) {
  ProcessOptions options;
  options.environment = {"TESSERA_SIMD=abacus"};
  const ProcessResult result = run_tessera({"info"}, options);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err.rfind("error: the environment variable TESSERA_SIMD: unknown SIMD target 'abacus'", 0),
            0u)
      << result.err;
  EXPECT_NE(result.err.find("avx2"), std::string::npos) << result.err;
}

TEST(Explain, NamesAForcedValueAsItWasTyped) {
  const ProcessResult result =
      run_tessera({"explain", "attention", "--backend", "cpu", "--num-splits", "99999"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err.rfind("error: --num-splits is 99999; the cpu kernels take", 0), 0u) << result.err;
}

TEST(Explain, LeavesADescriptionAndPathsAsTheyAre) {
  // A backend of GPUs that has no such type, whether or not there is a GPU.
  const ProcessResult problem =
      run_tessera({"explain", "attention", "--backend", "cuda", "--dtype", "f64", "--head-dim", "72"});
  EXPECT_EQ(problem.exit_code, 1);
  EXPECT_NE(problem.err.find("heads 16/16, head_dim 72"), std::string::npos) << problem.err;
  const ProcessResult path = run_tessera({"run", "-m", "/no/max_seq_len/top_k", "-p", "x"});
  EXPECT_EQ(path.err.rfind("error: cannot open '/no/max_seq_len/top_k'", 0), 0u) << path.err;
}

class CacheCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("tessera_cli_cache_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    options_.environment = {"TESSERA_CACHE_DIR=" + folder_.string()};
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
  ProcessOptions options_;
};

TEST_F(CacheCommand, AFolderThatIsNotThereYetIsEmpty) {
  const json document = json_of(run_tessera({"cache", "list", "--json"}, options_));
  EXPECT_EQ(document.at("folder"), folder_.string());
  EXPECT_TRUE(document.at("entries").empty());
  EXPECT_EQ(run_tessera({"cache", "verify"}, options_).exit_code, 0);
  EXPECT_EQ(run_tessera({"cache", "clear"}, options_).exit_code, 0);
  EXPECT_FALSE(fs::exists(folder_)) << "looking must not create it";
}

TEST_F(CacheCommand, FindsADamagedEntryAndClearsOnlyItsOwnFiles) {
  BinaryCache cache(folder_);
  const std::vector<std::byte> payload(1000, std::byte{7});
  const std::string whole(32, 'b'), broken(32, 'a');  // in the order of the listing's file names
  ASSERT_TRUE(cache.store(whole, "rows.cu for sm_90a", payload));
  ASSERT_TRUE(cache.store(broken, "rope.cu for sm_90a", payload));
  const std::vector<std::string> foreign = {"notes.txt", "linux.kernel", "editor.tmp"};
  for (const std::string& name : foreign) std::ofstream(folder_ / name) << "not a kernel";
  EXPECT_EQ(run_tessera({"cache", "verify"}, options_).exit_code, 0);
  fs::resize_file(folder_ / (broken + ".kernel"), 500);

  const json listed = json_of(run_tessera({"cache", "list", "--json"}, options_));
  ASSERT_EQ(listed.at("entries").size(), 2u);
  EXPECT_NE(listed.at("entries").at(0).at("damage"), "");
  EXPECT_EQ(listed.at("entries").at(1).at("kernel"), "rows.cu for sm_90a");
  EXPECT_EQ(listed.at("entries").at(1).at("damage"), "");
  const ProcessResult verified = run_tessera({"cache", "verify"}, options_);
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_NE(verified.out.find(broken + ".kernel: damaged"), std::string::npos) << verified.out;
  EXPECT_NE(verified.out.find("2 entries"), std::string::npos) << verified.out;

  const ProcessResult cleared = run_tessera({"cache", "clear"}, options_);
  EXPECT_EQ(cleared.exit_code, 0) << cleared.err;
  EXPECT_NE(cleared.out.find("2 files removed"), std::string::npos) << cleared.out;
  EXPECT_TRUE(cache.list().empty());
  for (const std::string& name : foreign) EXPECT_TRUE(fs::exists(folder_ / name)) << name;

  std::ofstream(folder_ / (whole + ".kernel")) << "somebody's notes under an entry's name";
  const ProcessResult nothing = run_tessera({"cache", "clear"}, options_);
  EXPECT_EQ(nothing.exit_code, 0) << nothing.err;
  EXPECT_NE(nothing.err.find("left 1 files alone"), std::string::npos) << nothing.err;
  EXPECT_TRUE(fs::exists(folder_ / (whole + ".kernel")));
}

TEST(Explain, CountsTheFlopsOfTheVisiblePairs) {
  const json full =
      json_of(run_tessera(words("explain attention --batch 2 --seq-len-q 64 --num-heads 4 --num-kv-heads 2 "
                                "--head-dim 32 --head-dim-v 48 --json")));
  EXPECT_EQ(full.at("flops").get<double>(), 2.0 * (32 + 48) * 64 * 64 * 2 * 4);
  const json causal =
      json_of(run_tessera(words("explain attention --batch 2 --seq-len-q 64 --num-heads 4 --num-kv-heads 2 "
                                "--head-dim 32 --head-dim-v 48 --causal --json")));
  EXPECT_EQ(causal.at("flops").get<double>(), 2.0 * (32 + 48) * (64 * 65 / 2) * 2 * 4);
  EXPECT_EQ(causal.at("backend"), "cpu");
  EXPECT_GT(causal.at("predicted_ms").get<double>(), 0);
  EXPECT_GT(causal.at("ceiling_tflops").get<double>(), 0);
  EXPECT_GT(causal.at("ceiling_gbps").get<double>(), 0);
}

TEST(Explain, CountsValuesThatAreAPartOfKeysOnce) {
  const auto bytes_of = [](const char* more) {
    std::vector<std::string> arguments = words(
        "explain attention --seq-len-q 1 --seq-len-kv 100 --num-heads 4 --num-kv-heads 1 --head-dim 32 "
        "--head-dim-v 16 --json");
    for (const std::string& word : words(more)) arguments.push_back(word);
    return json_of(run_tessera(arguments)).at("bytes").get<double>();
  };
  EXPECT_EQ(bytes_of("") - bytes_of("--values-in-keys"), 100 * 16 * 4);
}

TEST(BenchAttention, RefusesValuesThatKeysHaveNoRoomFor) {
  const ProcessResult result = run_tessera(words("bench attention --head-dim 64 --values-in-keys"));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--values-in-keys takes a --head-dim-v below --head-dim, 64; got 64"),
            std::string::npos)
      << result.err;
}

TEST(Explain, CountsTheTilesThatAModifiersMaskLeaves) {
  const auto explain = [](std::vector<std::string> arguments, const std::string& visible) {
    arguments.insert(arguments.end(), {"--modifier-visible", visible, "--json"});
    return json_of(run_tessera(arguments));
  };
  const auto prompt = words("explain attention --seq-len-q 512 --num-heads 2 --head-dim 32");
  EXPECT_EQ(explain(prompt, "q_idx / 128 == kv_idx / 128").at("flops").get<double>(),
            2.0 * 64 * 512 * 512 * 2 / 4);
  EXPECT_EQ(explain(prompt, "h == 1 || kv_idx < 0").at("flops").get<double>(), 2.0 * 64 * 512 * 512 * 2 / 2);
  const auto causal = words("explain attention --seq-len-q 256 --num-heads 1 --head-dim 32 --causal");
  EXPECT_DOUBLE_EQ(explain(causal, "q_idx / 128 == kv_idx / 128").at("flops").get<double>(),
                   2.0 * 64 * (256 * 257 / 2) * 2 / 3);
  const auto decode =
      words("explain attention --dtype f32 --seq-len-q 1 --seq-len-kv 1024 --num-heads 2 --head-dim 32");
  EXPECT_EQ(explain(decode, "kv_idx >= 896").at("bytes").get<double>(), 4.0 * 64 * 2 * (1 + 128));
}

TEST(Explain, CountsTilesOfHugeProblemsByASample) {
  auto arguments =
      words("explain attention --batch 1000 --seq-len-q 1000000 --num-heads 16 --head-dim 8 --json");
  arguments.insert(arguments.end(), {"--modifier-visible", "b >= 0 && h >= 0 && kv_idx / 256 % 2 == 0"});
  const double pairs = 1e3 * 1e6 * 1e6 * 16;
  EXPECT_NEAR(json_of(run_tessera(arguments)).at("flops").get<double>() / (2.0 * 16 * pairs), 0.5, 1e-3);
}

TEST(Explain, SaysWhichBackendsWereRejectedAndWhy) {
  const ProcessResult text = run_tessera(words("explain attention --backend unfused"));
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("unfused"), std::string::npos);
  EXPECT_NE(text.out.find("materialise"), std::string::npos) << text.out;
  const json document = json_of(run_tessera(words("explain attention --json")));
  EXPECT_FALSE(document.at("rejected").empty());
  for (const json& rejected : document.at("rejected")) {
    EXPECT_NE(rejected.at("reason").get<std::string>(), "") << rejected;
  }
}

TEST(Explain, ExplainsTensorsInAGpusMemoryOrSaysWhyNot) {
  const ProcessResult result = run_tessera(words("explain attention --memory gpu --dtype bf16 --json"));
  const bool has_gpu = json_of(run_tessera({"info", "--json"})).at("cuda").at("available").get<bool>();
  if (has_gpu) {
    const json document = json_of(result);
    EXPECT_EQ(document.at("backend"), "cuda");
    EXPECT_FALSE(document.at("kernels").empty());
    EXPECT_GT(document.at("ceiling_tflops").get<double>(), 0);
  } else {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find("cpu: the tensors are in the memory of cuda:0"), std::string::npos)
        << result.err;
    EXPECT_NE(result.err.find("cuda: no NVIDIA driver"), std::string::npos) << result.err;
  }
  // A named backend has its tensors where it runs.
  const ProcessResult named = run_tessera(words("explain attention --backend cuda --dtype bf16 --json"));
  EXPECT_EQ(named.exit_code, has_gpu ? 0 : 1);
}

TEST(Explain, TakesProblemsLargerThanTheMachine) {
  const json document =
      json_of(run_tessera(words("explain attention --batch 64 --seq-len-q 1048576 --num-heads 32 "
                                "--num-kv-heads 8 --head-dim 128 --dtype bf16 --causal --json")));
  // 2 (128 + 128) operations for each of n (n + 1) / 2 visible pairs of 64 sequences and 32 heads.
  EXPECT_DOUBLE_EQ(document.at("flops").get<double>(), 512.0 * (1048576.0 * 1048577.0 / 2) * 64 * 32);
}

TEST(Explain, RefusesSizesThatOverflow) {
  const ProcessResult result =
      run_tessera(words("explain attention --batch 1048576 --seq-len-q 1099511627776"));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.err.rfind("error: ", 0), 0u) << result.err;
}

TEST(BenchAttention, ReportsEveryBackendItWasAskedFor) {
  const json document =
      json_of(run_tessera(words("bench attention --backend cpu,unfused,reference --seq-len-q 48 --num-heads "
                                "4 --num-kv-heads 2 --head-dim 40 --causal --repeat 3 --json")));
  for (const char* key : {"version", "commit", "device", "threads", "simd_target", "problem"}) {
    EXPECT_TRUE(document.contains(key)) << key;
  }
  const json& results = document.at("results");
  ASSERT_EQ(results.size(), 3u);
  const std::vector<std::string> names = {"cpu", "unfused", "reference"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const json& r = results[i];
    EXPECT_EQ(r.at("backend"), names[i]);
    EXPECT_NE(r.at("kernel").get<std::string>(), "");
    EXPECT_EQ(r.at("samples"), 3);
    EXPECT_LE(r.at("ms_min").get<double>(), r.at("ms").get<double>());
    EXPECT_LE(r.at("ms").get<double>(), r.at("ms_max").get<double>());
    EXPECT_GT(r.at("ms_min").get<double>(), 0);
    EXPECT_LE(r.at("error").get<double>(), r.at("error_bound").get<double>());
    // Rates follow from the time and the counts.
    const double ms = r.at("ms").get<double>();
    EXPECT_NEAR(r.at("tflops").get<double>(), r.at("flops").get<double>() / ms * 1e-9, 1e-9);
    EXPECT_NEAR(r.at("gbps").get<double>(), r.at("bytes").get<double>() / ms * 1e-6, 1e-6);
    const double rate =
        r.at("ceiling_kind") == "compute" ? r.at("tflops").get<double>() : r.at("gbps").get<double>();
    EXPECT_NEAR(r.at("share_of_ceiling").get<double>(), rate / r.at("ceiling").get<double>(), 1e-9);
  }
}

TEST(BenchAttention, TakesEveryKindOfProblem) {
  for (const char* problem :
       {"--dtype bf16 --seq-len-q 1 --seq-len-kv 300 --num-heads 8 --num-kv-heads 2",
        "--dtype f16 --seq-len-q 33 --ragged --batch 3 --causal --lse --sinks",
        "--seq-len-q 33 --page-size 7 --batch 2 --seq-len-kv 90 --window-left 20 --alibi --causal",
        "--seq-len-q 20 --page-size 16 --ragged --batch 2 --softcap 20 --head-dim-v 16",
        "--seq-len-q 33 --decodes 3 --batch 5 --page-size 8 --seq-len-kv 70 --causal",
        "--seq-len-q 33 --mask boolean --layout batch-heads-seq --batch-invariant",
        "--seq-len-q 33 --mask additive --layout packed --softmax-scale 0.2 --window-left 9 --window-right 3 "
        "--top-left",
        "--seq-len-q 3 --seq-len-kv 90 --num-heads 4 --num-kv-heads 1 --head-dim-v 16 --values-in-keys "
        "--page-size 8",
        "--seq-len-q 33 --seq-len-kv 0"}) {
    std::vector<std::string> arguments = words("bench attention --head-dim 24 --repeat 1 --json");
    for (const std::string& word : words(problem)) arguments.push_back(word);
    const ProcessResult result = run_tessera(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err << "with " << problem;
    if (result.exit_code == 0) {
      EXPECT_EQ(json::parse(result.out).at("results").size(), 1u);
    }
  }
}

TEST(BenchAttention, RefusesMoreDecodesThanSequences) {
  const ProcessResult result = run_tessera(words("bench attention --batch 2 --decodes 3"));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--decodes is 3; expected at most --batch, 2"), std::string::npos) << result.err;
}

TEST(BenchAttention, MeasuresOnTensorsInAGpusMemory) {
  if (!json_of(run_tessera({"info", "--json"})).at("cuda").at("available").get<bool>())
    GTEST_SKIP() << "no GPU";
  for (const char* cache : {"--warm", "--lse"}) {  // with copies beyond the cache if not warm
    const json document = json_of(run_tessera(
        words("bench attention --backend cuda,cuda_unfused --dtype bf16 --seq-len-q 100 --batch 2 "
              "--num-heads 4 --num-kv-heads 2 --causal --repeat 3 --json " +
              std::string(cache))));
    EXPECT_NE(document.at("gpu").at("model").get<std::string>(), "");
    ASSERT_EQ(document.at("results").size(), 2u);
    for (const json& r : document.at("results")) {
      EXPECT_EQ(r.at("device"), "cuda:0");
      EXPECT_EQ(r.at("samples"), 3);
      EXPECT_GT(r.at("ms_min").get<double>(), 0);
      EXPECT_LE(r.at("error").get<double>(), r.at("error_bound").get<double>());
      EXPECT_GT(r.at("share_of_ceiling").get<double>(), 0);
      EXPECT_LT(r.at("share_of_ceiling").get<double>(), 1);
    }
  }
}

bool has_gpu(const std::string& family) {
  return json_of(run_tessera({"info", "--json"})).at(family).at("available").get<bool>();
}

class TuneAttention : public CacheCommand, public ::testing::WithParamInterface<std::string> {};

// What explain says follows what was measured, until the cache is cleared.
TEST_P(TuneAttention, RemembersUntilTheCacheIsCleared) {
  const std::string backend = GetParam();
  if (backend != "cpu" && !has_gpu(backend)) GTEST_SKIP() << "no GPU";
  options_.environment.push_back("TESSERA_TUNING=on");
  const auto command = [&](const std::string& text) {
    return json_of(
        run_tessera(words(text + " --json --dtype f16 --seq-len-q 1 --seq-len-kv 1500 --num-heads 4 " +
                          "--page-size 16 --backend " + backend),
                    options_));
  };
  const auto is_tuned = [&] {
    const json lines = command("explain attention").at("kernels");
    return std::ranges::any_of(
        lines, [](const std::string& line) { return line.starts_with("tuned on this machine"); });
  };
  const fs::path output = fs::path(::testing::TempDir()) / ("tessera_tuned_" + std::to_string(::getpid()));
  const json dry = command("tune attention --dry-run --output " + output.string());
  EXPECT_FALSE(is_tuned());
  const json tuned = command("tune attention");
  for (const json& document : {dry, tuned}) {
    ASSERT_EQ(document.at("results").size(), 1u);
    const json& result = document.at("results")[0];
    EXPECT_EQ(result.at("class"), "f16 d128 group1 paged16 q1 kv2048 kvheads4");
    EXPECT_GT(result.at("candidates").size(), 1u);
    EXPECT_LE(result.at("us"), result.at("default_us"));
    for (const json& candidate : result.at("candidates")) EXPECT_EQ(candidate.at("failure"), "");
  }
  std::ifstream file(output);
  const json table = json::parse(file);
  ASSERT_EQ(table.at("entries").size(), 1u);
  EXPECT_EQ(table.at("entries")[0].at("class"), "f16 d128 group1 paged16 q1 kv2048 kvheads4");
  const ProcessResult again = run_tessera({"tune", "attention", "--output", output.string()});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_EQ(again.out, "");  // said before anything is measured
  EXPECT_NE(again.err.find("exists already"), std::string::npos) << again.err;
  fs::remove(output);
  EXPECT_TRUE(is_tuned());
  EXPECT_EQ(json_of(run_tessera({"cache", "list", "--json"}, options_)).at("entries").empty(), false);
  EXPECT_EQ(run_tessera({"cache", "clear"}, options_).exit_code, 0);
  EXPECT_FALSE(is_tuned());
}

INSTANTIATE_TEST_SUITE_P(Backends, TuneAttention, ::testing::Values("cpu", "cuda", "hip"),
                         [](const auto& info) { return info.param; });

TEST_F(CacheCommand, TuningSaysWhereItCannotRemember) {
  std::ofstream(folder_) << "a file where the folder should be";
  const ProcessResult result =
      run_tessera(words("tune attention --backend cpu --seq-len-q 16 --num-heads 1 --head-dim 16"), options_);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("the tuned shapes are not remembered"), std::string::npos) << result.err;
}

TEST(TuneAttention, TellsItsResultsAlsoWhereTheirFileCannotBeWritten) {
  const ProcessResult result = run_tessera(words(
      "tune attention --backend cpu --dry-run --seq-len-q 4 --seq-len-kv 64 --num-heads 2 --head-dim 32 "
      "--output /nowhere/tuned.json"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("classes of shapes measured: 1"), std::string::npos) << result.out;
  EXPECT_NE(result.err.find("cannot write '/nowhere/tuned.json'"), std::string::npos) << result.err;
}

TEST(BenchAttention, TakesAListOfProblems) {
  ProcessOptions options;
  options.input =
      "--seq-len-q 20 --causal\n\n--seq-len-q 1 --seq-len-kv 50 --dtype bf16\n--dtype f64 --seq-len-q 4\n";
  const ProcessResult result = run_tessera(
      words("bench attention --list --backend cpu --num-heads 2 --head-dim 16 --repeat 1 --json"), options);
  // The last problem is none for this backend: the others' results are printed all the same.
  EXPECT_EQ(result.exit_code, 1);
  const json document = json::parse(result.out);
  ASSERT_EQ(document.at("results").size(), 2u);
  EXPECT_EQ(document.at("results")[0].at("problem_index"), 0);
  EXPECT_EQ(document.at("results")[0].at("causal"), true);
  EXPECT_EQ(document.at("results")[0].at("num_heads"), 2);
  EXPECT_EQ(document.at("results")[1].at("problem_index"), 1);
  EXPECT_EQ(document.at("results")[1].at("seq_len_kv"), 50);
  EXPECT_EQ(document.at("results")[1].at("dtype"), "bf16");
  ASSERT_EQ(document.at("failures").size(), 1u);
  EXPECT_EQ(document.at("failures")[0].at("problem_index"), 2);
  EXPECT_NE(document.at("failures")[0].at("message").get<std::string>().find("f64"), std::string::npos);
}

TEST(BenchAttention, TakesTextsOfModifiersInAList) {
  ProcessOptions options;
  options.input =
      "--seq-len-q 20 --num-heads 1 --modifier-visible 'doc[q_idx] == doc[kv_idx]' --modifier-tensor "
      "doc=i32[20]:steps/7\n"
      "--seq-len-q 20 --num-heads 1 --modifier-score \"cap * tanh(score / cap)\" --modifier-scalar cap=30\n";
  const json document = json_of(
      run_tessera({"bench", "attention", "--list", "--backend", "cpu", "--repeat", "1", "--json"}, options));
  EXPECT_EQ(document.at("results").size(), 2u) << document.dump(1);
  EXPECT_TRUE(document.at("failures").empty()) << document.dump(1);
}

TEST(BenchAttention, RefusesAListThatIsNone) {
  for (const auto& [text, reason] : {std::pair{"", "one a line"}, std::pair{"''\n", "problem ''''"},
                                     std::pair{"--seq-len-q x\n", "--seq-len-q"},
                                     std::pair{"--modifier-score 'score + 1\n", "never closed"}}) {
    ProcessOptions options;
    options.input = text;
    const ProcessResult result = run_tessera({"bench", "attention", "--list"}, options);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find(reason), std::string::npos) << result.err;
  }
}

TEST(BenchAttention, RefusesWhatDoesNotFitIntoMemory) {
  const ProcessResult result =
      run_tessera(words("bench attention --batch 1024 --seq-len-q 1048576 --repeat 1"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("available"), std::string::npos) << result.err;
}

TEST(BenchAttention, SaysWhyABackendCannotRunAProblem) {
  const ProcessResult result = run_tessera(
      {"bench", "attention", "--backend", "cpu", "--dtype", "f64", "--seq-len-q", "8", "--repeat", "1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err.rfind("error: ", 0), 0u);
  EXPECT_NE(result.err.find("cpu"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("f64"), std::string::npos) << result.err;
}

TEST(BenchKernels, ReportsRatesOfVerifiedKernels) {
  const json document =
      json_of(run_tessera({"bench", "kernels", "--filter", "rms_norm", "--repeat", "3", "--json"}));
  ASSERT_FALSE(document.at("results").empty());
  for (const json& r : document.at("results")) {
    EXPECT_NE(r.at("kernel").get<std::string>().find("rms_norm"), std::string::npos);
    EXPECT_EQ(r.at("samples"), 3);
    EXPECT_LE(r.at("error").get<double>(), r.at("error_bound").get<double>());
    EXPECT_NEAR(r.at("gbps").get<double>(), r.at("bytes").get<double>() / r.at("ms").get<double>() * 1e-6,
                1e-6);
    EXPECT_GT(r.at("share_of_ceiling").get<double>(), 0);
  }
}

TEST(BenchModel, ReportsRatesAndTheMemoryCeiling) {
  const json document =
      json_of(run_tessera({"bench", "model", "--model", TESSERA_FIXTURES "/models/llama3", "--prompt-tokens",
                           "16", "--gen-tokens", "8", "--batch", "2", "--json"}));
  const json& r = document.at("results").at(0);
  EXPECT_NEAR(r.at("prefill_tokens_per_second").get<double>(),
              2 * 16 * 1e3 / r.at("prefill_ms").get<double>(), 1e-6);
  EXPECT_NEAR(r.at("decode_tokens_per_second").get<double>(), 2 * 7 * 1e3 / r.at("decode_ms").get<double>(),
              1e-6);
  EXPECT_GT(r.at("share_of_ceiling").get<double>(), 0);
  EXPECT_GT(document.at("model").at("num_parameters").get<std::int64_t>(), 0);
}

TEST(BenchModel, SaysThatThereIsNoGpuBeforeItFillsMemory) {
  if (json_of(run_tessera({"info", "--json"})).at("cuda").at("available").get<bool>())
    GTEST_SKIP() << "there is a GPU";
  const ProcessResult result =
      run_tessera(words("bench model --shape llama-8b --backend cuda --prompt-tokens 8 --gen-tokens 2"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("driver"), std::string::npos) << result.err;
  EXPECT_LT(result.peak_memory_bytes, std::size_t{1} << 30);
}

TEST(Verify, PassesOneCaseALineAndSumsUp) {
  const ProcessResult text = run_tessera(words("verify --quick --backend cpu"));
  EXPECT_EQ(text.exit_code, 0) << text.out << text.err;
  EXPECT_NE(text.out.find("passed       cpu"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find(" 0 failed"), std::string::npos) << text.out;
  const json document = json_of(run_tessera(words("verify --quick --backend cpu --json")));
  EXPECT_EQ(document.at("failed"), 0);
  EXPECT_GT(document.at("passed").get<int>(), 10);
  for (const json& result : document.at("results")) {
    if (result.at("outcome") != "passed") continue;
    EXPECT_LE(result.at("error").get<double>(), result.at("bound").get<double>()) << result;
  }
}

}  // namespace
}  // namespace tessera::testing
