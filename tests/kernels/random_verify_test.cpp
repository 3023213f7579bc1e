// The random tester itself: what it prints can be read back, it draws what it should, it finds a backend that
// is wrong by little or seldom, and what is right passes.

#include "verify/random_verify.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/token_rows.h"
#include "core/element.h"
#include "forwarding_backend.h"
#include "sanitized.h"
#include "tessera/error.h"
#include "verify/random_check.h"

namespace tessera {
namespace {

/// What a wrong backend does to a result.
enum class Fault { kNone, kFewUnits, kLse, kBatch, kWorkspace, kFence };

/// The reference backend with a fault.
class Faulty final : public ForwardingBackend {
 public:
  Faulty(std::string name, Fault fault) : name_(std::move(name)), fault_(fault) {}

  std::string_view name() const override { return name_; }
  AttentionPlan plan(const AttentionProblem& p, const AttentionConfig& config) const override {
    AttentionPlan plan = ForwardingBackend::plan(p, config);
    plan.backend = name_;
    plan.workspace_bytes = 64;
    plan.call = std::make_shared<AttentionCall>(
        p, plan.workspace_bytes,
        [this, right = plan.call](const AttentionProblem& problem, std::span<std::byte> workspace,
                                  Stream stream) {
          right->forward(problem, {}, stream);
          spoil(problem, workspace);
        });
    return plan;
  }

 private:
  void spoil(const AttentionProblem& p, std::span<std::byte> workspace) const {
    if (p.batch == 0) return;
    const TokenRows rows(p, p.batch - 1);
    if (rows.extent.len_q == 0) return;
    const std::int64_t last = rows.query(p.o, rows.extent.len_q - 1, 0);
    const double value = load_element(p.o.data, p.o.dtype, last);
    switch (fault_) {
      case Fault::kNone:
        break;
      case Fault::kFewUnits:  // of a row of any length
        store_element(p.o.data, p.o.dtype, last, value * (1 + 64 * unit_roundoff(p.o.dtype)));
        break;
      case Fault::kLse:
        if (p.lse) p.lse->data[rows.query(*p.lse, rows.extent.len_q - 1, 0)] *= 1.001f;
        break;
      case Fault::kBatch:  // other bits in larger batches
        if (p.batch > 1) store_element(p.o.data, p.o.dtype, last, value * (1 + 2 * unit_roundoff(p.o.dtype)));
        break;
      case Fault::kWorkspace:
        workspace.data()[workspace.size()] = std::byte{1};
        break;
      case Fault::kFence:  // the element in front of the first
        static_cast<std::byte*>(p.o.data)[-1] = std::byte{1};
        break;
    }
  }

  std::string name_;
  Fault fault_;
};

RandomLimits small() { return {.multiply_adds = 2e5, .takes_f64 = false}; }

/// The first failure on a backend within `count` cases.
std::string first_failure(const std::string& backend, int count, RandomCase* failing = nullptr) {
  for (int n = 0; n < count; ++n) {
    const RandomCase random_case = draw_random_case(3, static_cast<std::uint64_t>(n), small());
    const VerifyResult result = run_random_case(random_case, backend, VerifyMemory::cpu());
    if (result.passed) continue;
    if (failing != nullptr) *failing = random_case;
    return result.message;
  }
  return {};
}

TEST(RandomCases, ReadBackAsTheyWerePrinted) {
  for (std::uint64_t n = 0; n < 500; ++n) {
    const std::string text = to_text(draw_random_case(5, n, {.multiply_adds = 1e7, .takes_f64 = true}));
    EXPECT_EQ(to_text(parse_random_case(text)), text);
  }
  EXPECT_EQ(to_text(RandomCase()), "");
}

TEST(RandomCases, AreTheSameForTheSameSeedAndIndex) {
  EXPECT_EQ(to_text(draw_random_case(5, 7, small())), to_text(draw_random_case(5, 7, small())));
  EXPECT_NE(to_text(draw_random_case(5, 7, small())), to_text(draw_random_case(5, 8, small())));
  EXPECT_NE(to_text(draw_random_case(5, 7, small())), to_text(draw_random_case(6, 7, small())));
}

TEST(RandomCases, HaveEveryFeature) {
  std::set<std::string> seen;
  for (std::uint64_t n = 0; n < 2000; ++n) {
    const RandomCase r = draw_random_case(1, n, {});
    const AttentionCase& c = r.attention;
    seen.insert(std::string(dtype_name(c.dtype)));
    seen.insert(fmt::format("strides {}", static_cast<int>(c.strides)));
    seen.insert(fmt::format("storage {}", static_cast<int>(c.kv_storage)));
    seen.insert(fmt::format("content {}", static_cast<int>(c.content)));
    for (const auto& [name, has] : {std::pair{"softcap", c.softcap.has_value()},
                                    {"alibi", c.alibi},
                                    {"sinks", c.sinks},
                                    {"additive", c.additive_mask.has_value()},
                                    {"boolean", c.boolean_mask.has_value()},
                                    {"diagonal", c.diagonal.has_value()},
                                    {"ragged queries", !c.lens_q.empty()},
                                    {"shared", c.shared_kv},
                                    {"values in keys", c.values_in_keys},
                                    {"exponents", c.exponent_spread > 0},
                                    {"odd head_dim", c.head_dim_qk % 2 == 1},
                                    {"large head_dim", c.head_dim_v > 256},
                                    {"invariant", c.batch_invariant},
                                    {"no lse", !c.with_lse},
                                    {"host", r.host_tensors},
                                    {"replayed", r.replayed},
                                    {"repeated", r.repeated},
                                    {"forced splits", r.num_splits > 0},
                                    {"many keys", c.seq_len_kv > 8000},
                                    {"empty batch", c.batch == 0},
                                    {"no keys", c.seq_len_kv == 0}}) {
      if (has) seen.insert(name);
    }
  }
  EXPECT_EQ(seen.size(), 3u + 4 + 4 + 10 + 21);
}

TEST(RandomCases, TextThatDescribesNoneIsRefused) {
  for (const char* text : {"nonsense",
                           "batch=x",
                           "batch=-1",
                           "batch=5000",
                           "dtype=q8_0",
                           "dtype=f99",
                           "heads=3 kv_heads=2",
                           "dim_v=577",
                           "dim_qk=8 dim_v=9 values_in_keys=1",
                           "lens_q=1,2,3",
                           "storage=paged",
                           "storage=shelved",
                           "content=5",
                           "additive=f32,b,0.3",
                           "boolean=f32,b,0.3,1",
                           "diagonal=1,2",
                           "alibi=2",
                           "q_spread=nan",
                           "batch=4096 len_q=1048576",
                           "len_kv=1048576 heads=4096",
                           "page_size=0",
                           "storage=padded lens_kv=900,1 batch=2"}) {
    EXPECT_THROW(parse_random_case(text), Error) << text;
  }
}

TEST(RandomVerify, FindsAFaultOfEachKind) {
  EXPECT_EQ(first_failure("right", 60), "");
  EXPECT_NE(first_failure("few_units", 60).find("o is "), std::string::npos);
  EXPECT_NE(first_failure("lse", 60).find("lse is "), std::string::npos);
  EXPECT_NE(first_failure("batch", 60).find("gives other bits"), std::string::npos);
  EXPECT_NE(first_failure("workspace", 60).find("outside its workspace"), std::string::npos);
  EXPECT_NE(first_failure("fence", 60).find("outside its output"), std::string::npos);
}

TEST(RandomVerify, CasesThatFailedOncePass) {
  for (const auto& [backend, text] : {
           std::pair{"unfused",  // a weight too small for a float
                     "dtype=bf16 batch=1 len_q=1 len_kv=4 heads=1 kv_heads=1 dim_qk=1 dim_v=1 alibi=1 "
                     "content=nan_values "
                     "exponents=7 seed=937669023 lse=0"},
           {"unfused",
            "batch=1 len_q=1 len_kv=13 heads=1 kv_heads=1 dim_qk=192 dim_v=3 content=nan_values q_spread=50 "
            "seed=926510305 lse=0"},
           {"reference",  // an output whose square is no double
            "dtype=f64 batch=1 len_q=3 len_kv=10 heads=1 kv_heads=1 dim_qk=6 dim_v=2 page_size=48 "
            "kv_dtype=f8e4m3 "
            "kv_scales=page_head scale=0.0078125 exponents=17 seed=1308733990 lse=0"},
           {"cpu",  // an infinite score that a mask adds to, before a softcap makes a number of it
            "dtype=bf16 batch=1 len_q=10 len_kv=15 heads=1 kv_heads=1 dim_qk=53 dim_v=1 page_size=256 "
            "additive=f32,bhqk,0.97,2 diagonal=all,0,bottom_right modifier=softcap content=infinite_keys "
            "seed=774540048 lse=0"},
       }) {
    const VerifyResult result = run_random_case(parse_random_case(text), backend, VerifyMemory::cpu());
    EXPECT_TRUE(result.passed) << backend << ": " << result.message << "\n  " << text;
  }
}

// A fixed seed, so that a change that breaks something fails each time; other seeds are for `tessera verify
// --random`.
TEST(RandomVerify, ProblemsOfEveryKindPassOnTheCpu) {
  for (const auto& [name, cases] : {std::pair{"cpu", 300}, {"unfused", 80}, {"reference", 80}}) {
    const std::string backend = name;
    RandomVerifyOptions options;
    options.seconds = std::numeric_limits<double>::infinity();  // a number of them: the same on any machine
    options.max_cases = static_cast<std::uint64_t>(kSanitized ? cases / 5 : cases);
    options.limits.takes_f64 = backend == "reference";
    run_random_verify(backend, VerifyMemory::cpu(), options, [&](const RandomFailure& failure) {
      ADD_FAILURE() << backend << ", case " << failure.index << ": " << failure.result.message << "\n  "
                    << failure.result.name << "\nsmaller: " << failure.shrunk_result.message
                    << "\ntessera verify --backend " << backend << " --case '" << to_text(failure.shrunk)
                    << "'";
    });
  }
}

TEST(RandomVerify, ShrinksToASmallCaseThatStillFails) {
  RandomCase failing;
  ASSERT_NE(first_failure("batch", 60, &failing), "");
  const auto fails = [](const RandomCase& c) {
    return !run_random_case(c, "batch", VerifyMemory::cpu()).passed;
  };
  const RandomCase small_case = shrink_random_case(failing, fails, 20);
  EXPECT_TRUE(fails(small_case));
  EXPECT_TRUE(fails(parse_random_case(to_text(small_case))));
  EXPECT_TRUE(small_case.attention.batch_invariant);
  EXPECT_LE(small_case.attention.batch, 3) << to_text(small_case);
  EXPECT_LE(small_case.attention.num_heads * small_case.attention.head_dim_v, 4) << to_text(small_case);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  using tessera::Fault;
  for (const auto& [name, fault] : {std::pair{"right", Fault::kNone},
                                    {"few_units", Fault::kFewUnits},
                                    {"lse", Fault::kLse},
                                    {"batch", Fault::kBatch},
                                    {"workspace", Fault::kWorkspace},
                                    {"fence", Fault::kFence}})
    tessera::add_attention_backend(std::make_unique<tessera::Faulty>(name, fault));
  return RUN_ALL_TESTS();
}
