// Which backend runs a problem and what the library says about it.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "tessera/error.h"

namespace tessera {
namespace {

/// A backend that only has opinions.
class Fake : public AttentionBackend {
 public:
  Fake(std::string name, std::string unavailable, std::string unsupported)
      : name_(std::move(name)), unavailable_(std::move(unavailable)), unsupported_(std::move(unsupported)) {}

  std::string_view name() const override { return name_; }
  std::string_view description() const override { return "a stand-in"; }
  std::string unavailable_reason() const override { return unavailable_; }
  std::string unsupported_reason(const AttentionProblem&) const override {
    EXPECT_TRUE(unavailable_.empty()) << "a backend that is not there was asked what it can run";
    return unsupported_;
  }
  AttentionPlan plan(const AttentionProblem&, const AttentionConfig&) const override { return {}; }
  std::shared_ptr<std::byte> allocate_workspace(const Device&, std::size_t, Stream) const override {
    return nullptr;
  }
  std::string unsupported_reason(const MergeStatesProblem&) const override { return {}; }
  void merge_states(const MergeStatesProblem&, Stream) const override {}
  Ceilings ceilings(DType) const override { return {}; }

 private:
  std::string name_, unavailable_, unsupported_;
};

/// One whose device fails as soon as it is asked for anything.
class Broken final : public Fake {
 public:
  Broken() : Fake("broken", "", "") {}
  using Fake::unsupported_reason;
  std::string unsupported_reason(const AttentionProblem&) const override {
    throw Error(ErrorCode::kDevice, "the device is lost");
  }
};

/// One that runs modifiers.
class Modifying final : public Fake {
 public:
  Modifying() : Fake("modifying", "", "") {}
  bool runs_modifiers() const override { return true; }
};

using Backends = std::vector<std::unique_ptr<AttentionBackend>>;

Backends four_backends() {
  Backends backends;
  backends.push_back(std::make_unique<Fake>("absent", "there is no such device", ""));
  backends.push_back(std::make_unique<Fake>("picky", "", "head_dim is odd"));
  backends.push_back(std::make_unique<Fake>("first", "", ""));
  backends.push_back(std::make_unique<Fake>("second", "", ""));
  return backends;
}

AttentionOptions named(const std::string& backend, bool allow_fallback = false) {
  AttentionOptions options;
  options.backend = backend;
  options.allow_fallback = allow_fallback;
  return options;
}

AttentionProblem some_problem() {
  AttentionProblem p;
  p.num_heads = p.num_kv_heads = p.head_dim_qk = p.head_dim_v = 1;
  return p;
}

TEST(ChooseBackend, TakesTheFirstThatCanAndSaysWhyNotTheOthers) {
  const Backends backends = four_backends();
  const BackendChoice choice = choose_backend(some_problem(), named("auto"), backends);
  EXPECT_EQ(choice.backend, backends[2].get());
  EXPECT_TRUE(choice.fallback_reason.empty());
  const auto rejected = reasons_against_others(some_problem(), named("auto"), choice, backends);
  ASSERT_EQ(rejected.size(), 3u);
  EXPECT_EQ(rejected[0].backend, "absent");
  EXPECT_EQ(rejected[0].reason, "there is no such device");
  EXPECT_EQ(rejected[1].backend, "picky");
  EXPECT_EQ(rejected[1].reason, "head_dim is odd");
  EXPECT_EQ(rejected[2].backend, "second");
  EXPECT_NE(rejected[2].reason.find("'first' is preferred"), std::string::npos);
}

TEST(ChooseBackend, TakesNoBackendThatWouldLeaveAModifierOut) {
  Backends backends = four_backends();
  AttentionProblem p = some_problem();
  p.scores.modifier = ScoreModifier{.score = "score * 2", .visible = "", .tensors = {}, .scalars = {}};
  try {
    choose_backend(p, named("first"), backends);
    ADD_FAILURE() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(error.message().find("it has no kernels for scores.modifier"), std::string::npos);
  }
  backends.push_back(std::make_unique<Modifying>());
  EXPECT_EQ(choose_backend(p, named("auto"), backends).backend, backends[4].get());
}

TEST(ChooseBackend, TakesTheOneAskedFor) {
  const Backends backends = four_backends();
  const BackendChoice choice = choose_backend(some_problem(), named("second"), backends);
  EXPECT_EQ(choice.backend, backends[3].get());
  EXPECT_TRUE(choice.fallback_reason.empty());
  EXPECT_EQ(reasons_against_others(some_problem(), named("second"), choice, backends).size(), 3u);
}

TEST(ChooseBackend, AsksNoBackendThatItNeedNot) {
  Backends backends = four_backends();
  backends.push_back(std::make_unique<Broken>());
  EXPECT_EQ(choose_backend(some_problem(), named("auto"), backends).backend, backends[2].get());
  const BackendChoice choice = choose_backend(some_problem(), named("second"), backends);
  EXPECT_EQ(choice.backend, backends[3].get());
  const auto rejected = reasons_against_others(some_problem(), named("second"), choice, backends);
  EXPECT_EQ(rejected.back().reason, "the device is lost");
}

TEST(ChooseBackend, RefusesRatherThanFallBackSilently) {
  const Backends backends = four_backends();
  for (const auto& [name, reason] :
       {std::pair{"picky", "head_dim is odd"}, {"absent", "there is no such device"}}) {
    try {
      choose_backend(some_problem(), named(name), backends);
      FAIL() << "expected an Error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(error.message().find(name), std::string::npos) << error.message();
      EXPECT_NE(error.message().find(reason), std::string::npos) << error.message();
    }
  }
}

TEST(ChooseBackend, FallsBackWhenAllowedAndSaysSo) {
  const Backends backends = four_backends();
  const BackendChoice choice = choose_backend(some_problem(), named("picky", true), backends);
  EXPECT_EQ(choice.backend, backends[2].get());
  EXPECT_NE(choice.fallback_reason.find("picky"), std::string::npos);
  EXPECT_NE(choice.fallback_reason.find("head_dim is odd"), std::string::npos);
}

TEST(ChooseBackend, NamesTheKnownBackends) {
  try {
    choose_backend(some_problem(), named("fastest", true), four_backends());
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    for (const char* part : {"'fastest'", "auto", "absent", "picky", "first", "second"}) {
      EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
    }
  }
}

TEST(ChooseBackend, GivesEveryReasonWhenNoneCan) {
  Backends backends = four_backends();
  backends.resize(2);
  try {
    choose_backend(some_problem(), named("auto"), backends);
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(error.message().find("there is no such device"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("head_dim is odd"), std::string::npos) << error.message();
  }
}

// ---- The backends of the library

/// One query, three keys, one head of one element.
struct Tiny {
  // With room for f64.
  alignas(64) float q = 1;
  alignas(64) float k[3] = {1, 2, 3};
  alignas(64) float v[3] = {4, 5, 6};
  alignas(64) float o = 0;
  AttentionProblem p = some_problem();

  explicit Tiny(DType dtype = DType::kF32) {
    p.batch = p.seq_len_q = 1;
    p.seq_len_kv = 3;
    p.q = {&q, dtype, 1, 1, 1};
    p.k = {k, dtype, 3, 1, 1};
    p.v = {v, dtype, 3, 1, 1};
    p.o = {&o, dtype, 1, 1, 1};
  }
};

/// The backends that take problems in CPU memory on this machine.
std::vector<std::string> usable_cpu_backends() {
  std::vector<std::string> names;
  for (const BackendInfo& info : attention_backends()) {
    if (info.unavailable_reason.empty() && info.name != "cuda") names.push_back(info.name);
  }
  return names;
}

TEST(AttentionBackends, AreListedWithDescriptions) {
  std::vector<std::string> names;
  for (const BackendInfo& info : attention_backends()) {
    names.push_back(info.name);
    EXPECT_FALSE(info.description.empty()) << info.name;
  }
  for (const char* name : {"unfused", "reference"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
}

TEST(AttentionBackends, SayWhyTheyCannotRunAProblem) {
  Tiny f64(DType::kF64);
  EXPECT_EQ(unsupported_reason("reference", f64.p), "");
  EXPECT_NE(unsupported_reason("unfused", f64.p).find("f64"), std::string::npos);
  Tiny invariant;
  invariant.p.batch_invariant = true;
  EXPECT_EQ(unsupported_reason("reference", invariant.p), "");
  EXPECT_NE(unsupported_reason("unfused", invariant.p).find("batch-invariant"), std::string::npos);
  Tiny gpu;
  gpu.p.device = {DeviceKind::kCuda, 0};
  for (const std::string& name : usable_cpu_backends()) {
    EXPECT_NE(unsupported_reason(name, gpu.p).find("cuda:0"), std::string::npos) << name;
  }
  for (const BackendInfo& info : attention_backends()) {
    if (info.unavailable_reason.empty()) continue;
    EXPECT_EQ(unsupported_reason(info.name, Tiny().p), info.unavailable_reason);
    EXPECT_THROW(plan_attention(Tiny().p, named(info.name)), Error);
  }
}

TEST(AttentionBackends, RunTheChosenOneAndSayWhich) {
  Tiny tiny;
  EXPECT_EQ(attention_forward(tiny.p, named("reference")).backend, "reference");
  Tiny f64(DType::kF64);
  AttentionPlan plan = plan_attention(f64.p, named("unfused", true));
  EXPECT_EQ(plan.backend, "reference");
  EXPECT_NE(plan.fallback_reason.find("f64"), std::string::npos);
}

TEST(AttentionBackends, PlansFillInEveryValueAndTakeThemBack) {
  for (const std::string& name : usable_cpu_backends()) {
    Tiny tiny;
    const AttentionPlan plan = plan_attention(tiny.p, named(name));
    EXPECT_FALSE(plan.kernel.empty()) << name;
    EXPECT_GT(plan.config.block_m, 0) << name;
    EXPECT_GT(plan.config.block_n, 0) << name;
    EXPECT_GT(plan.config.num_splits, 0) << name;
    EXPECT_GT(plan.num_q_tiles, 0) << name;
    EXPECT_GT(plan.num_kv_tiles, 0) << name;
    AttentionOptions options = named(name);
    options.config = plan.config;
    const AttentionPlan again = plan_attention(tiny.p, options);
    EXPECT_EQ(again.kernel, plan.kernel);
    EXPECT_EQ(again.workspace_bytes, plan.workspace_bytes);
  }
}

TEST(AttentionBackends, RefuseValuesThatNoKernelHas) {
  for (const char* name : {"unfused", "reference"}) {
    Tiny tiny;
    AttentionOptions options = named(name);
    options.config.block_m = 7;
    try {
      plan_attention(tiny.p, options);
      FAIL() << "expected an Error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(error.message().find("block_m is 7"), std::string::npos) << error.message();
    }
  }
}

TEST(AttentionBackends, RunAPlanInMemoryOfTheCallers) {
  for (const std::string& name : usable_cpu_backends()) {
    Tiny tiny, expected;
    attention_forward(expected.p, named(name));
    const AttentionPlan plan = plan_attention(tiny.p, named(name));
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    std::vector<Line> memory(plan.workspace_bytes / sizeof(Line) + 1);
    const std::span<std::byte> workspace(memory[0].bytes, memory.size() * sizeof(Line));
    attention_forward(tiny.p, plan, workspace);
    EXPECT_EQ(tiny.o, expected.o) << name;
    if (plan.workspace_bytes == 0) continue;
    try {
      attention_forward(tiny.p, plan, workspace.first(plan.workspace_bytes - 1));
      FAIL() << "expected an Error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(error.message().find("workspace has"), std::string::npos) << error.message();
    }
  }
}

// ---- Work

TEST(AttentionCost, CountsTheVisiblePairs) {
  AttentionProblem p = some_problem();
  p.batch = 3;
  p.seq_len_q = 5;
  p.seq_len_kv = 9;
  p.num_heads = 4;
  p.num_kv_heads = 2;
  p.head_dim_qk = 6;
  p.head_dim_v = 10;
  EXPECT_EQ(attention_flops(p), 3 * 4 * 5 * 9 * 2 * 16);
  for (const DiagonalMask& diagonal :
       {DiagonalMask::causal(), DiagonalMask::causal(DiagonalAlignment::kTopLeft),
        DiagonalMask::sliding_window(2, 1)}) {
    p.scores.diagonal = diagonal;
    int pairs = 0;
    const int shift = diagonal.alignment == DiagonalAlignment::kTopLeft ? 0 : 4;
    for (int i = 0; i < 5; ++i) {
      for (int j = 0; j < 9; ++j) {
        pairs += (!diagonal.window_right || j <= i + shift + *diagonal.window_right) &&
                 (!diagonal.window_left || j >= i + shift - *diagonal.window_left);
      }
    }
    EXPECT_EQ(attention_flops(p), 3.0 * 4 * pairs * 2 * 16);
  }
}

TEST(AttentionCost, FollowsTheLengthsOfSequences) {
  AttentionProblem p = some_problem();
  p.batch = 2;
  p.seq_len_q = 5;
  p.seq_len_kv = 9;
  p.head_dim_qk = p.head_dim_v = 2;
  const std::int32_t lens[] = {4, 0};
  p.seq_lens_kv = lens;
  EXPECT_EQ(attention_flops(p), 5 * 4 * 2 * 4);
  EXPECT_EQ(attention_bytes(p), (2 * 5 + 4) * 4 * 4);  // q and o of both sequences, k and v of 4 keys, in f32
}

}  // namespace
}  // namespace tessera
