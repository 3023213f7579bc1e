// What every sub-command has in common: help, wrong usage, where output goes.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "process.h"

namespace tessera::testing {
namespace {

class Help : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(Help, GoesToStandardOutputWithExamples) {
  std::vector<std::string> arguments = GetParam();
  arguments.emplace_back("--help");
  const ProcessResult result = run_tessera(arguments);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_NE(result.out.find("Usage: "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("Examples:"), std::string::npos) << result.out;
}

INSTANTIATE_TEST_SUITE_P(
    EverySubCommand, Help,
    ::testing::Values(std::vector<std::string>{}, std::vector<std::string>{"run"},
                      std::vector<std::string>{"tokenize"}, std::vector<std::string>{"logits"},
                      std::vector<std::string>{"bench"}, std::vector<std::string>{"bench", "attention"},
                      std::vector<std::string>{"bench", "kernels"},
                      std::vector<std::string>{"bench", "model"}, std::vector<std::string>{"verify"},
                      std::vector<std::string>{"tune"}, std::vector<std::string>{"tune", "attention"},
                      std::vector<std::string>{"explain"}, std::vector<std::string>{"explain", "attention"},
                      std::vector<std::string>{"info"}));

struct WrongUsage {
  std::vector<std::string> arguments;
  std::string message;  ///< a part of what has to be said
};

class Usage : public ::testing::TestWithParam<WrongUsage> {};

TEST_P(Usage, IsRefusedWithExitCodeTwoAndOneError) {
  const ProcessResult result = run_tessera(GetParam().arguments);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err.rfind("error: ", 0), 0u) << result.err;
  EXPECT_NE(result.err.find(GetParam().message), std::string::npos) << result.err;
}

INSTANTIATE_TEST_SUITE_P(
    WrongCommandLines, Usage,
    ::testing::Values(
        WrongUsage{{}, "expected one of run, chat, serve"},
        WrongUsage{{"dance"}, "'tessera dance' is not known"},
        WrongUsage{{"bench"},
                   "'tessera bench' needs a command behind it; expected one of attention, kernels, model\n"},
        WrongUsage{{"bench", "dance", "--causal"}, "'tessera bench dance' is not known"},
        WrongUsage{{"run"}, "--model is required"},
        WrongUsage{{"run", "--model", "x"}, "--prompt is required"},
        WrongUsage{{"run", "--model", "x", "--prompt", "y", "--top-p", "1.5"},
                   "--top-p: 1.5 is not between 0 (excluded) and 1"},
        WrongUsage{{"run", "-m", "x", "-p", "y", "--temperature", "-1"},
                   "--temperature: -1 is not at least 0\n"},
        WrongUsage{{"run", "-m", "x", "-p", "y", "-n", "0"}, "error: -n: 0 is not at least 1\n"},
        WrongUsage{{"run", "-m", "x", "-p", "y", "--max-tokens", "0"}, "--max-tokens: 0 is not at least 1\n"},
        WrongUsage{{"run", "-m", "x", "-p", "y", "--max-tokens", "99999999999999"},
                   "is not at most 1099511627776"},
        WrongUsage{{"run", "-m", "x", "-p", "y", "--temperature", "nan"}, "--temperature: nan is not"},
        WrongUsage{{"run", "-m", "x", "-p", "y", "--temperature", "1e50"},
                   "--temperature: 1e50 is not at most 1000000\n"},
        WrongUsage{{"run", "-m", "x", "-p", "y", "--top-p", "1e-50"},
                   "--top-p: 1e-50 is not between 0 (excluded) and 1\n"},
        WrongUsage{{"verify", "--random", "--seconds", "0"}, "--seconds: 0 is not above 0\n"},
        WrongUsage{{"run", "-m", "x", "--promt", "y"}, "has no option --promt; did you mean --prompt?"},
        WrongUsage{{"run", "-m", "x", "-p", "y", "--max-token=3"}, "--max-token; did you mean --max-tokens?"},
        WrongUsage{{"serve", "-m", "x", "--api-key", ""}, "--api-key is empty; expected a key"},
        WrongUsage{{"serve", "-m", "x", "--api-key", "y", "--api-key-file", "z"}, "exclude each other"},
        WrongUsage{{"run", "-m", "x", "-p", "y", "-p", "z"},
                   "-p is given more than once; expected it once\n"},
        WrongUsage{{"run", "-m", "x", "--prompt"}, "--prompt has no value; expected TEXT\n"},
        WrongUsage{{"run", "-m", "x", "-p", "y", "more"}, "does not know what to do with 'more'"},
        WrongUsage{{"bench", "atention"}, "'tessera bench atention' is not known; did you mean attention?"},
        WrongUsage{{"tokenise", "x"}, "did you mean tokenize?"},
        WrongUsage{{"run", "--model", "x", "--prompt", "y", "--max-tokens", "many"}, "--max-tokens"},
        WrongUsage{{"run", "--model", "x", "--prompt", "y", "--max-tokens", "0x10"},
                   "--max-tokens: 0x10 is not"},
        WrongUsage{{"run", "--model", "x", "--prompt", "y", "--max-tokens", "7.0"},
                   "--max-tokens: 7.0 is not"},
        WrongUsage{{"run", "--model", "x", "--prompt", "y", "--max-tokens", "99999999999999999999"},
                   "--max-tokens: 99999999999999999999 is not"},
        WrongUsage{{"run", "--model", "x", "--prompt", "y", "--seed", "-1"}, "--seed: -1 is not at least 0"},
        WrongUsage{{"run", "--model", "x", "--prompt", "y", "--seed", "18446744073709551616"},
                   "--seed: 18446744073709551616 is not at most 18446744073709551615"},
        WrongUsage{{"run", "--model", "x", "--prompt", "y", "--seed", "0x7"}, "--seed: 0x7 is not"},
        WrongUsage{{"run", "--model", "x", "--prompt", "y", "--top-k", "4294967297"},
                   "--top-k: 4294967297 is"},
        WrongUsage{{"explain", "attention", "--batch", "08x"}, "--batch: 08x is not a whole number"},
        WrongUsage{{"run", "--model", "x", "--prompt", "y", "--backend", "abacus"}, "no backend 'abacus'"},
        WrongUsage{{"run", "--model", "x", "--prompt", "y", "--speed", "9"}, "--speed"},
        WrongUsage{{"tokenize", "--model", "x"}, "either TEXT"},
        WrongUsage{{"tokenize", "--model", "x", "y", "--decode", "1"}, "either TEXT"},
        WrongUsage{{"tokenize", "--model", "x", "--decode", "1,two"}, "'two' is not a token id"},
        WrongUsage{{"logits", "--model", "x"}, "either --tokens"},
        WrongUsage{{"logits", "--model", "x", "--tokens", "1,-2"}, "'-2' is not a token id"},
        WrongUsage{{"logits", "--model", "x", "--tokens", ","}, "',' is not a token id"},
        WrongUsage{{"logits", "--model", "x", "--tokens", "99999999999999999999"}, "is not a token id"},
        WrongUsage{{"logits", "--model", "x", "--tokens", "1,,2"}, "',2' is not a token id"},
        WrongUsage{{"logits", "--model", "x", "--tokens", ",1"}, "',1' is not a token id"},
        WrongUsage{{"tokenize", "--model", "x", "--decode", "1,2,"}, "'' is not a token id"},
        WrongUsage{{"tokenize", "--model", "x", "--decode", " "}, "no token ids"},
        WrongUsage{{"run", "--model", "x", "--prompt", "y", "--stop", ""},
                   "--stop: a stop string has 0 bytes"},
        WrongUsage{{"chat", "--model", "x", "--stop", std::string(1025, 'x')}, "expected 1 to 1024"},
        WrongUsage{{"serve", "--model", "x", "--cors-origin", "example.com"},
                   "--cors-origin: 'example.com' is not where pages come from"},
        WrongUsage{{"bench", "attention", "--backend", "unfused,abacus"}, "no backend 'abacus'"},
        WrongUsage{{"bench", "attention", "--dtype", "f31"}, "unknown dtype"},
        WrongUsage{{"bench", "attention", "--num-heads", "3", "--num-kv-heads", "2"}, "--num-kv-heads"},
        WrongUsage{{"bench", "attention", "--head-dim", "577"}, "--head-dim: 577 is not between 1 and 576"},
        WrongUsage{{"bench", "attention", "--causal", "--window-right", "4"}, "--window-right"},
        WrongUsage{{"bench", "attention", "--top-left"}, "--top-left"},
        WrongUsage{{"bench", "kernels", "--backend", "unfused"}, "no backend 'unfused' with these kernels"},
        WrongUsage{{"bench", "kernels", "--filter", "abacus"}, "no kernel"},
        WrongUsage{{"bench", "model"}, "one of --model"},
        WrongUsage{{"bench", "model", "--shape", "llama-9000b"}, "llama-1b"},
        WrongUsage{{"explain", "attention", "--mask", "paper"}, "'paper' is not one of"},
        WrongUsage{{"explain", "attention", "--batch", "0"}, "--batch: 0 is not at least 1"},
        WrongUsage{{"explain", "attention", "--modifier-visible", "kv_idx < n[0]", "--modifier-tensor",
                    "n=i32[1]:2.5"},
                   "2.5 is no number of its type, i32"},
        WrongUsage{{"explain", "attention", "--modifier-visible", "n[h] < 9", "--modifier-tensor",
                    "n=u8[300]:steps/1"},
                   "256 is no number of its type, u8"},
        WrongUsage{
            {"explain", "attention", "--modifier-visible", "n[h] < 9", "--modifier-tensor", "n=i32[1]:3e9"},
            "3e+09 is no number of its type, i32"},
        WrongUsage{{"explain", "attention", "--modifier-score", "n[h]", "--modifier-tensor", "n=f16[1]:1e9"},
                   "1e+09 is no number of its type, f16"},
        WrongUsage{{"tune", "attention", "--backend", "abacus"}, "no backend 'abacus'"},
        WrongUsage{{"tune", "attention", "--backend", "reference"},
                   "backend 'reference' has nothing to tune; expected one of cpu, cuda, hip"},
        WrongUsage{{"tune", "attention", "--batch-invariant"}, "has no option --batch-invariant"},
        WrongUsage{{"tune", "attention", "--num-splits", "4"}, "has no option --num-splits"},
        WrongUsage{{"verify", "--backend", "abacus"}, "no backend 'abacus'"},
        WrongUsage{{"verify", "--filter", "no case is called this"}, "no case"},
        WrongUsage{{"verify", "--seconds", "5"}, "--seconds requires --random"},
        WrongUsage{{"verify", "--quick", "--random"}, "excludes --"},
        WrongUsage{{"verify", "--case", "x", "--random"}, "excludes --"},
        WrongUsage{{"quantize", "-m", "in.gguf", "out.gguf", "--type", "iq3_xxs"},
                   "files of iq3_xxs can be read, not made"},
        WrongUsage{{"quantize", "-m", "in.gguf", "out.gguf", "--type", "q4"},
                   "no mix of formats called 'q4'"},
        WrongUsage{{"info", "--now"}, "--now"}));

TEST(Integers, AreDecimalWhateverZerosTheyOpenWith) {
  const ProcessResult plain = run_tessera({"explain", "attention", "--seq-len-q", "10", "--seq-len-kv", "8"});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  const ProcessResult zeros =
      run_tessera({"explain", "attention", "--seq-len-q", "010", "--seq-len-kv", "08"});
  EXPECT_EQ(zeros.exit_code, 0) << zeros.err;
  EXPECT_EQ(zeros.out.substr(0, zeros.out.find('\n')), plain.out.substr(0, plain.out.find('\n')));
}

TEST(Version, NamesTheProgram) {
  const ProcessResult result = run_tessera({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.rfind("tessera 0.", 0), 0u) << result.out;
}

TEST(Output, ToAFullDiskIsAnError) {
  ProcessOptions options;
  options.stdout_file = "/dev/full";
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"info"}, {"info", "--json"}, {"--help"}, {"--version"}}) {
    const ProcessResult result = run_tessera(arguments, options);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.err, "error: cannot write to standard output: No space left on device\n");
  }
}

TEST(Output, ToAClosedStreamGoesIntoNoOtherFile) {
  // What the number of standard error leads to while a server has its sockets open.
  const ProcessResult result =
      run_process("/bin/sh", {"-c", R"(
        folder=$(mktemp -d) && mkfifo "$folder/out" || exit 1
        "$0" serve --model "$1" --port 0 > "$folder/out" 2>&- &
        read -r line < "$folder/out"
        readlink "/proc/$!/fd/2"
        kill $!
        rm -r "$folder")",
                              TESSERA_EXECUTABLE, TESSERA_SOURCE_DIR "/models/demo"});
  EXPECT_EQ(result.out, "/dev/null\n") << result.err;
  // As before they can be neither read nor written to.
  const ProcessResult closed = run_process("/bin/sh", {"-c", "\"$0\" info >&-", TESSERA_EXECUTABLE});
  EXPECT_EQ(closed.exit_code, 1);
  EXPECT_EQ(closed.err, "error: cannot write to standard output: Bad file descriptor\n");
}

TEST(Output, ToAPipeThatNobodyReadsEndsQuietly) {
  ProcessOptions options;
  options.close_stdout_at_once = true;
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"info"}, {"info", "--json"}, {"--help"}}) {
    const ProcessResult result = run_tessera(arguments, options);
    EXPECT_EQ(result.signal, 0);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
  }
}

}  // namespace
}  // namespace tessera::testing
