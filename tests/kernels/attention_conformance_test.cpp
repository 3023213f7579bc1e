// The conformance suite on every backend; the CPU backend once for each SIMD target that this machine can
// run. --quick: the short suite alone. The subjects of a case follow one another and share its judge.

#include <gtest/gtest.h>

#include <cctype>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "backends/cpu/simd_target.h"
#include "sanitized.h"
#include "tessera/attention.h"
#include "verify/attention_judge.h"
#include "verify/verify.h"

namespace tessera {
namespace {

// A sanitizer sees of a case of the short suite one subject in twelve, each another's, and of every fourth
// other case one. For ThreadSanitizer the short suite has all that threads do.
#if defined(TESSERA_SANITIZE_THREAD)
constexpr bool kAlwaysQuick = true;
#else
constexpr bool kAlwaysQuick = false;
#endif
constexpr std::size_t kEvery = kSanitized ? 12 : 1;
constexpr std::size_t kEveryOfLongSuite = kSanitized ? 48 : 1;
// The reference takes as long as all others together, its own bounds included, and it has the same loops for
// every case: it runs the short suite and a part of the rest.
constexpr std::size_t kEveryOfReference = 6;
// The CPU's other targets are the same loops for other vectors: likewise, each another part.
constexpr std::size_t kEveryOfOtherTargets = 3;

/// A backend, and for "cpu" the SIMD target to run it with.
struct Subject {
  std::string backend;
  std::optional<SimdTarget> simd_target;
};

AttentionJudge& judge() {
  static AttentionJudge the_judge;
  return the_judge;
}

class AttentionConformance : public testing::Test {
 public:
  AttentionConformance(const VerifyCase& verify_case, Subject subject)
      : verify_case_(verify_case), subject_(std::move(subject)) {}

  void TestBody() override {
    set_simd_target(subject_.simd_target);
    const VerifyResult result = run_verify_case(verify_case_, subject_.backend, VerifyMemory::cpu(), judge());
    set_simd_target(std::nullopt);
    EXPECT_TRUE(result.passed) << result.message << "\n  kernel " << result.kernel << "\n  error "
                               << result.error << ", bound " << result.bound << "\n  lse error "
                               << result.lse_error << ", bound " << result.lse_bound;
    if (!result.unsupported_reason.empty() && result.passed) GTEST_SKIP() << result.unsupported_reason;
  }

 private:
  const VerifyCase& verify_case_;
  Subject subject_;
};

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const BackendInfo& backend : attention_backends()) {
    if (!backend.unavailable_reason.empty()) continue;
    if (backend.name != "cpu") {
      all.push_back({backend.name, std::nullopt});
      continue;
    }
    for (const SimdTarget target : attainable_simd_targets()) all.push_back({backend.name, target});
  }
  return all;
}

std::string test_name(std::string name) {
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

/// Whether a case of the long suite comes with the other 16-bit type alone, by turns: most of its time goes
/// to the judge, for whom both are the same. `tessera verify` has all.
bool is_left_to_other_16_bits(const VerifyCase& verify_case) {
  static std::map<std::string, std::size_t> number_of;
  const std::string& name = verify_case.name;
  const bool is_bf16 = name.ends_with("/bf16");
  if (verify_case.quick || !(is_bf16 || name.ends_with("/f16"))) return false;
  const auto [number, is_new] = number_of.try_emplace(name.substr(0, name.rfind('/')), number_of.size());
  return number->second % 2 == (is_bf16 ? 1 : 0);
}

/// AttentionConformance/<case>.<subject>
void register_tests(bool only_quick) {
  const std::vector<Subject> all_subjects = subjects();
  std::size_t number = 0;  // of the case
  for (const VerifyCase& verify_case : attention_verify_cases()) {
    if ((only_quick && !verify_case.quick) || is_left_to_other_16_bits(verify_case)) continue;
    const std::string suite = "AttentionConformance/" + test_name(verify_case.name);
    for (std::size_t n = 0; n < all_subjects.size(); ++n) {
      if ((number + n) % (verify_case.quick ? kEvery : kEveryOfLongSuite) != 0) continue;
      const Subject& subject = all_subjects[n];
      if (!verify_case.quick && subject.backend == "reference" && number % kEveryOfReference != 0) continue;
      const bool is_other_target = subject.simd_target && subject.simd_target != best_simd_target();
      if (!verify_case.quick && is_other_target && (number + n) % kEveryOfOtherTargets != 0) continue;
      std::string name = subject.backend;
      if (subject.simd_target) name += "_" + std::string(simd_target_name(*subject.simd_target));
      testing::RegisterTest(suite.c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                            [&verify_case, subject]() -> AttentionConformance* {
                              return new AttentionConformance(verify_case, subject);
                            });
    }
    ++number;
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  tessera::register_tests(tessera::kAlwaysQuick || (argc > 1 && std::string_view(argv[1]) == "--quick"));
  return RUN_ALL_TESTS();
}
