#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <limits>
#include <string>
#include <utility>

#include "sanitized.h"
#include "verify/random_check.h"
#include "verify/random_verify.h"
#include "verify/verify.h"

namespace tessera::simt {

/// A case of the conformance suite on a backend that has to take it.
class ConformanceTest : public ::testing::Test {
 public:
  ConformanceTest(const VerifyCase& verify_case, std::string backend)
      : verify_case_(verify_case), backend_(std::move(backend)) {}

  void TestBody() override {
    const VerifyResult result = run_verify_case(verify_case_, backend_, VerifyMemory::cpu());
    EXPECT_TRUE(result.passed) << result.message << "\n  error " << result.error << ", bound " << result.bound
                               << "\n  lse error " << result.lse_error << ", bound " << result.lse_bound;
    EXPECT_TRUE(result.unsupported_reason.empty()) << result.unsupported_reason;
  }

 private:
  const VerifyCase& verify_case_;
  std::string backend_;
};

/// Random problems, small enough for the executor. Always the same ones: seconds would make it a matter of
/// speed.
inline void expect_random_problems_pass(const std::string& backend, std::uint64_t seed) {
  RandomVerifyOptions options;
  options.seed = seed;
  options.seconds = std::numeric_limits<double>::infinity();
  options.max_cases = kSanitized ? 3 : 24;
  options.limits.multiply_adds = 3e5;
  options.limits.takes_modifiers = false;  // kernels are compiled ahead here
  run_random_verify(backend, VerifyMemory::cpu(), options, [&](const RandomFailure& failure) {
    ADD_FAILURE() << backend << ", case " << failure.index << ": " << failure.result.message << "\n  "
                  << failure.result.name << "\nsmaller: " << failure.shrunk_result.message << "\n  "
                  << to_text(failure.shrunk);
  });
}

/// A case as printed for one that failed once. A sanitizer takes every third.
inline void expect_case_passes(const std::string& backend, const std::string& text) {
  static SomeIfSanitized cases(3);
  if (cases.leaves_out_next()) return;
  const VerifyResult result = run_random_case(parse_random_case(text), backend, VerifyMemory::cpu());
  EXPECT_TRUE(result.passed) << backend << ": " << result.message << "\n  " << text;
  EXPECT_TRUE(result.unsupported_reason.empty()) << result.unsupported_reason;
}

/// Whether the result may not depend on how keys are split: parts of a row that sees nothing but a mask's
/// lowest numbers weigh alike, however many keys they have.
inline bool may_be_split(const VerifyCase& c) {
  return c.name.find("of lowest numbers") == std::string::npos;
}

/// Adds it to the program's tests as <suite>/<backend>.<case>. Of a program's cases a sanitizer takes every
/// fifth.
inline void register_conformance_test(const VerifyCase& c, const std::string& suite,
                                      const std::string& backend) {
  static SomeIfSanitized cases(5);
  if (cases.leaves_out_next()) return;
  std::string name;
  for (const char letter : c.name)
    name += std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
  ::testing::RegisterTest((suite + "/" + backend).c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [&c, backend]() -> ConformanceTest* { return new ConformanceTest(c, backend); });
}

}  // namespace tessera::simt
