// Memory of the host backends, and the errors for arguments that make no sense.
#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "backends/factories.h"
#include "kernels/ops_testing.h"
#include "ops/validate.h"

namespace tessera::testing {
namespace {

class OpsBackends : public ::testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<OpsBackend> backend = make_ops_backend(GetParam());

  template <class F>
  void expect_rejected(F&& call, const std::string& part) {
    expect_error(call, ErrorCode::kInvalidArgument, part);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, OpsBackends, ::testing::Values("cpu", "reference"),
                         [](const auto& info) { return info.param; });

TEST(OpsRegistry, KnowsItsBackends) {
  for (const std::string_view name : ops_backend_names()) {
    try {
      EXPECT_EQ(make_ops_backend(name)->name(), name);
    } catch (const Error& error) {
      // A machine without a GPU says what it lacks.
      EXPECT_EQ(error.code(), ErrorCode::kDevice);
      EXPECT_NE(error.message().find(name == "hip" ? "AMD" : "NVIDIA"), std::string::npos) << error.message();
    }
  }
  EXPECT_NO_THROW(make_ops_backend(preferred_ops_backend())) << "what is preferred must be usable";
  expect_error([] { make_ops_backend("abacus"); }, ErrorCode::kInvalidArgument,
               "'abacus'; expected one of cuda, hip, cpu");
}

TEST_P(OpsBackends, MemoryGoesThereAndBack) {
  EXPECT_EQ(backend->device(), Device{});
  std::vector<std::uint8_t> source(1000);
  std::iota(source.begin(), source.end(), std::uint8_t{0});
  const DeviceBuffer buffer = backend->allocate(source.size(), "a test");
  ASSERT_EQ(buffer.size_bytes, source.size());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data.get()) % 64, 0u);
  backend->upload(buffer.data.get(), source.data(), source.size(), {});
  std::vector<std::uint8_t> copy(source.size());
  backend->download(copy.data(), buffer.data.get(), copy.size(), {});
  EXPECT_EQ(copy, source);
  backend->fill_zero(buffer.data.get(), source.size(), {});
  backend->synchronize({});
  backend->download(copy.data(), buffer.data.get(), copy.size(), {});
  EXPECT_EQ(copy, std::vector<std::uint8_t>(1000));
  EXPECT_EQ(backend->record([] { FAIL() << "nothing to record"; }, {}), nullptr);
}

TEST_P(OpsBackends, MemoryOfNoBytesIsNull) {
  const DeviceBuffer buffer = backend->allocate(0, "nothing");
  EXPECT_EQ(buffer.data, nullptr);
  EXPECT_EQ(buffer.size_bytes, 0u);
  backend->upload(nullptr, nullptr, 0, {});
  backend->download(nullptr, nullptr, 0, {});
  backend->fill_zero(nullptr, 0, {});
}

TEST_P(OpsBackends, MoreMemoryThanThereIsGivesAnError) {
  for (const std::size_t size :
       {std::size_t{1} << 45, std::size_t{1} << 62, std::numeric_limits<std::size_t>::max()}) {
    expect_error([&] { backend->allocate(size, "the KV cache"); }, ErrorCode::kOutOfMemory,
                 "the KV cache needs");
  }
}

TEST_P(OpsBackends, AlignedWeightsStayWhereTheyAre) {
  for (const DType dtype : kWeightDTypes) {
    const std::int64_t columns = std::max(block_format(dtype).elements, 64);
    const std::size_t size_bytes = dtype_bytes(dtype, static_cast<std::size_t>(4 * columns));
    std::vector<std::byte> memory(64 + size_bytes);
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i);
    const std::size_t alignment = block_format(dtype).alignment;
    for (const std::size_t offset :
         {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{4}}) {
      const Weight weight = backend->make_weight({memory.data() + offset, dtype, 4, columns, "w"});
      SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " at " << offset);
      EXPECT_EQ(weight.rows, 4);
      EXPECT_EQ(weight.columns, columns);
      EXPECT_EQ(weight.dtype, dtype);
      EXPECT_EQ(weight.data == memory.data() + offset, offset % alignment == 0);
      EXPECT_EQ(weight.owner == nullptr, offset % alignment == 0);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(weight.data) % alignment, 0u);
      EXPECT_EQ(std::memcmp(weight.data, memory.data() + offset, size_bytes), 0);
    }
  }
}

TEST_P(OpsBackends, WeightsThatMakeNoSenseAreRejected) {
  std::byte memory[64] = {};
  expect_rejected(
      [&] {
        backend->make_weight({nullptr, DType::kF32, 1, 4, "lm_head"});
      },
      "lm_head: weight.data is null");
  expect_rejected([&] { backend->make_weight({memory, DType::kF32, 0, 4, "w"}); }, "weight.rows is 0");
  expect_rejected([&] { backend->make_weight({memory, DType::kF32, 1, -4, "w"}); }, "weight.columns is -4");
  expect_rejected([&] { backend->make_weight({memory, DType::kI32, 1, 4, "w"}); }, "weight.dtype is i32");
  expect_rejected([&] { backend->make_weight({memory, DType::kQ8_0, 1, 33, "w"}); }, "multiple of 32");
  expect_rejected(
      [&] {
        backend->make_weight({memory, DType::kF32, std::int64_t{1} << 40, std::int64_t{1} << 40, "w"});
      },
      "smaller than 2^63");
}

TEST_P(OpsBackends, NoTokensAreNoWork) {
  const TestWeight weight(DType::kF32, 4, 4, Values(16, 1));
  const TestWeight vector(DType::kF32, 1, 4, Values(4, 1));
  const Matrix none{nullptr, DType::kF32, 0, 4, 4};
  backend->embedding({nullptr, weight.weight(), none}, {});
  backend->rms_norm({none, none, vector.weight(), 0, none, 1, 0}, {});
  backend->layer_norm({none, none, vector.weight(), std::nullopt, 0, none}, {});
  backend->gemm({none, weight.weight(), vector.weight(), none, true, false}, {});
  const float frequency = 1;
  backend->rope({none, 2, 2, nullptr, &frequency, 1, 1, RopePairing::kHalves}, {});
  KvCacheView cache;
  cache.page_size = 1;
  backend->rope_append(
      {none, none, none, 2, 1, 2, nullptr, nullptr, &frequency, 1, 1, RopePairing::kHalves, cache}, {});
  backend->gated_activation({GatedActivation::kSwiGlu, none, none, none}, {});
  const ExpertRouting routing{4, 2, nullptr, nullptr, nullptr, nullptr};
  backend->route_experts({none, routing, true}, {});
  const TestWeight experts(DType::kF32, 16, 4, Values(64, 1));
  backend->expert_gemm({none, experts.weight(), std::nullopt, none, routing}, {});
  backend->combine_experts({none, nullptr, none, 2, false}, {});
  backend->softmax({none, none}, {});
  backend->scale({none, 1}, {});
  backend->softcap({none, 1}, {});
  backend->causal_mask({none, 0}, {});
  backend->sample({none, nullptr, nullptr, nullptr, nullptr, 0, nullptr}, {});
}

TEST_P(OpsBackends, MatricesThatMakeNoSenseAreRejected) {
  std::vector<float> memory(64);
  const Matrix good{memory.data(), DType::kF32, 2, 4, 4};
  const auto scaled = [&](auto change) {
    Matrix m = good;
    change(m);
    return [this, m] { backend->scale({m, 2}, {}); };
  };
  EXPECT_NO_THROW(scaled([](Matrix&) {})());
  expect_rejected(scaled([](Matrix& m) { m.data = nullptr; }), "scale: x.data is null");
  expect_rejected(scaled([](Matrix& m) { m.dtype = DType::kI32; }),
                  "x.dtype is i32; expected f32, f16 or bf16");
  expect_rejected(scaled([](Matrix& m) { m.dtype = DType::kQ8_0; }), "x.dtype is q8_0");
  expect_rejected(scaled([](Matrix& m) { m.rows = -1; }), "x.rows is -1; expected at least 0");
  expect_rejected(scaled([](Matrix& m) { m.columns = 0; }), "x.columns is 0; expected at least 1");
  expect_rejected(scaled([](Matrix& m) { m.row_stride = 3; }), "x.row_stride is 3; expected at least 4");
  expect_rejected(scaled([](Matrix& m) { m.row_stride = -4; }), "x.row_stride is -4");
  expect_rejected(scaled([](Matrix& m) { m.data = static_cast<std::byte*>(m.data) + 1; }), "not aligned");
  expect_rejected(scaled([](Matrix& m) { m.rows = m.row_stride = std::int64_t{1} << 40; }),
                  "smaller than 2^63");
}

TEST_P(OpsBackends, ShapesThatDoNotFitAreRejected) {
  std::vector<float> memory(400);
  const auto matrix = [&](std::size_t offset, std::int64_t rows, std::int64_t columns) {
    return Matrix{memory.data() + offset, DType::kF32, rows, columns, columns};
  };
  const TestWeight w(DType::kF32, 3, 4, Values(12, 1));
  const TestWeight v3(DType::kF32, 1, 3, Values(3, 1));
  const TestWeight v4(DType::kF32, 1, 4, Values(4, 1));
  const Weight none;
  const auto gemm = [&](Matrix x, Weight weight, std::optional<Weight> bias, Matrix out) {
    return [=, this] { backend->gemm({x, weight, bias, out, false, false}, {}); };
  };
  EXPECT_NO_THROW(gemm(matrix(0, 2, 4), w.weight(), v3.weight(), matrix(100, 2, 3))());
  expect_rejected(gemm(matrix(0, 2, 5), w.weight(), {}, matrix(100, 2, 3)),
                  "gemm: x.columns is 5; expected weight.columns = 4");
  expect_rejected(gemm(matrix(0, 2, 4), w.weight(), {}, matrix(100, 2, 4)),
                  "out.columns is 4; expected weight.rows = 3");
  expect_rejected(gemm(matrix(0, 2, 4), w.weight(), {}, matrix(100, 1, 3)),
                  "out.rows is 1; expected x.rows = 2");
  expect_rejected(gemm(matrix(0, 2, 4), w.weight(), v4.weight(), matrix(100, 2, 3)), "bias.columns is 4");
  expect_rejected(gemm(matrix(0, 2, 4), none, {}, matrix(100, 2, 3)), "weight.rows is 0");
  expect_rejected(gemm(matrix(0, 2, 4), w.weight(), {}, matrix(4, 2, 3)), "out overlaps x");

  const auto norm = [&](Matrix x, Matrix out, Weight weight, float eps, std::optional<Matrix> residual,
                        int heads, std::int64_t head_stride) {
    return [=, this] { backend->rms_norm({x, out, weight, eps, residual, heads, head_stride}, {}); };
  };
  const Matrix x = matrix(0, 2, 4);
  EXPECT_NO_THROW(norm(x, x, v4.weight(), 0, matrix(100, 2, 4), 1, 0)());
  expect_rejected(norm(x, matrix(100, 2, 3), v4.weight(), 0, {}, 1, 0), "rms_norm: out.columns is 3");
  expect_rejected(norm(x, matrix(100, 3, 4), v4.weight(), 0, {}, 1, 0), "out.rows is 3");
  expect_rejected(norm(x, x, v3.weight(), 0, {}, 1, 0), "weight.columns is 3");
  expect_rejected(norm(x, x, v4.weight(), -1, {}, 1, 0), "eps is -1");
  expect_rejected(norm(x, matrix(1, 2, 4), v4.weight(), 0, {}, 1, 0), "out overlaps x");
  expect_rejected(norm(x, x, v4.weight(), 0, x, 1, 0), "residual overlaps x");
  expect_rejected(norm(x, x, v4.weight(), 0, {}, 0, 0), "heads is 0");
  expect_rejected(norm(x, x, v4.weight(), 0, {}, 2, 3), "head_stride is 3; expected at least 4");
  expect_rejected(norm(x, x, v4.weight(), 0, {}, 2, 4), "x.row_stride is 4; expected at least 8");
  Matrix wide = matrix(0, 2, 4);
  wide.row_stride = 8;
  expect_rejected(norm(wide, wide, v4.weight(), 0, matrix(100, 2, 4), 2, 4), "heads is 2 with a residual");

  const std::vector<std::int32_t> tokens = {0, 3};
  expect_rejected(
      [&] {
        backend->embedding({tokens.data(), w.weight(), x}, {});
      },
      "tokens[1] is 3; expected an id from 0 to 2");
  expect_rejected([&] { backend->embedding({nullptr, w.weight(), x}, {}); }, "tokens is null");
  expect_rejected(
      [&] {
        backend->embedding({tokens.data(), w.weight(), matrix(0, 2, 5)}, {});
      },
      "out.columns is 5");
  expect_rejected([&] { backend->softmax({x, matrix(2, 2, 4)}, {}); }, "softmax: out overlaps x");
  const TestWeight square(DType::kF32, 4, 4, Values(16, 1));
  std::int32_t places[16] = {};
  float slot_weights[4] = {};
  ExpertRouting routing{3, 2, places, slot_weights, places, places};
  expect_rejected(
      [&] {
        backend->route_experts({x, routing, true}, {});
      },
      "route_experts: logits.columns is 4; expected routing.num_experts = 3");
  routing.num_experts = 4;
  const auto route = [&](int num_groups, int num_groups_used, float weight_scale) {
    return [&, num_groups, num_groups_used, weight_scale] {
      backend->route_experts(
          {x, routing, true, ExpertScoring::kSigmoid, nullptr, num_groups, num_groups_used, weight_scale},
          {});
    };
  };
  expect_rejected(route(3, 2, 1), "num_groups is 3; expected a divisor of routing.num_experts, 4");
  expect_rejected(route(2, 0, 1), "num_groups_used is 0; expected at least 1");
  expect_rejected(route(2, 3, 1), "num_groups is 2; expected at least 3, num_groups_used");
  expect_rejected(route(4, 1, 1), "in the groups used is 1; expected at least 2, routing.num_slots");
  expect_rejected(
      [&] {
        RouteExpertsArguments a{x, routing, true, ExpertScoring::kSoftmax, nullptr, 2, 1};
        a.num_experts_of_group = 3;
        backend->route_experts(a, {});
      },
      "num_experts_of_group is 3; expected 1 or 2");
  expect_rejected(route(1, 1, std::numeric_limits<float>::infinity()), "weight_scale is inf");
  routing.num_experts = 1;
  expect_rejected(
      [&] {
        backend->expert_gemm({x, square.weight(), std::nullopt, matrix(100, 4, 4), routing}, {});
      },
      "routing.num_experts is 1; expected at least 2, its num_slots");
  routing.num_experts = 2;
  expect_rejected(
      [&] {
        backend->expert_gemm({x, square.weight(), std::nullopt, matrix(100, 4, 4), routing}, {});
      },
      "weight.rows is 4; expected those of all experts = 8");
  expect_rejected(
      [&] {
        backend->expert_gemm({x, square.weight(), std::nullopt, matrix(100, 3, 2), routing}, {});
      },
      "slots % num_slots is 1; expected slots of whole rows = 0");
  places[1] = 2;
  expect_rejected(
      [&] {
        backend->expert_gemm({x, square.weight(), std::nullopt, matrix(100, 4, 2), routing}, {});
      },
      "routing.experts[1] is 2; expected 0 to 1");
  expect_rejected(
      [&] {
        backend->combine_experts({matrix(100, 3, 4), slot_weights, x, 2, false}, {});
      },
      "combine_experts: x.rows is 3; expected out.rows * num_slots = 4");
  expect_rejected(
      [&] {
        backend->combine_experts({matrix(100, 4, 4), slot_weights, matrix(100, 2, 4), 2, false}, {});
      },
      "combine_experts: out overlaps x");
  expect_rejected(
      [&] {
        backend->gated_activation({GatedActivation::kSwiGlu, x, matrix(100, 2, 3), matrix(200, 2, 4)}, {});
      },
      "gated_activation: up.columns is 3");
}

TEST_P(OpsBackends, RotationsThatMakeNoSenseAreRejected) {
  std::vector<float> memory(1000);
  const std::vector<float> frequencies = {1, 0.1f};
  const std::vector<std::int32_t> positions = {0, 5};
  const std::vector<std::int32_t> sequences = {0, 1};
  const std::vector<std::int32_t> table = {0, 1, 2, 9};
  RopeArguments rope{{memory.data(), DType::kF32, 2, 8, 8},
                     2,
                     4,
                     positions.data(),
                     frequencies.data(),
                     2,
                     1,
                     RopePairing::kHalves};
  const auto rope_with = [&](auto change) {
    RopeArguments a = rope;
    change(a);
    return [this, a] { backend->rope(a, {}); };
  };
  EXPECT_NO_THROW(rope_with([](RopeArguments&) {})());
  expect_rejected(rope_with([](RopeArguments& a) { a.heads = 0; }), "rope: heads is 0");
  expect_rejected(rope_with([](RopeArguments& a) { a.num_pairs = 3; }),
                  "num_pairs is 3; expected at most head_dim / 2 = 2");
  expect_rejected(rope_with([](RopeArguments& a) { a.heads = 3; }), "x.columns is 8; expected at least 12");
  expect_rejected(rope_with([](RopeArguments& a) { a.positions = nullptr; }), "positions is null");
  expect_rejected(rope_with([](RopeArguments& a) { a.inverse_frequencies = nullptr; }),
                  "inverse_frequencies is null");
  expect_rejected(rope_with([](RopeArguments& a) { a.attention_factor = std::nanf(""); }),
                  "attention_factor is nan");

  RopeAppendArguments append;
  append.q = {memory.data(), DType::kF32, 2, 8, 8};
  append.k = append.v = {memory.data() + 100, DType::kF32, 2, 4, 4};
  append.num_heads = 2;
  append.num_kv_heads = 1;
  append.head_dim = 4;
  append.positions = positions.data();
  append.sequences = sequences.data();
  append.inverse_frequencies = frequencies.data();
  append.num_pairs = 2;
  append.cache = {memory.data() + 200, memory.data() + 400, DType::kF32, 16, 4, 4, 4, 3, table.data(), 2};
  const auto append_with = [&](auto change) {
    RopeAppendArguments a = append;
    change(a);
    return [this, a] { backend->rope_append(a, {}); };
  };
  expect_rejected(append_with([](RopeAppendArguments&) {}),
                  "token 1 (sequence 1, position 5) falls on page 9; expected 0 to 2");
  expect_rejected(append_with([](RopeAppendArguments& a) { a.cache.block_table_stride = 1; }),
                  "positions[1] is 5; expected 0 to 3");
  expect_rejected(append_with([](RopeAppendArguments& a) { a.cache.block_table = nullptr; }),
                  "positions[1] is 5; expected 0 to 3");
  expect_rejected(append_with([](RopeAppendArguments& a) { a.cache.page_size = 0; }), "cache.page_size is 0");
  expect_rejected(append_with([](RopeAppendArguments& a) { a.cache.k = nullptr; }), "cache.k is null");
  expect_rejected(append_with([](RopeAppendArguments& a) { a.cache.token_stride = 3; }),
                  "cache.token_stride is 3");
  expect_rejected(append_with([](RopeAppendArguments& a) { a.sequences = nullptr; }), "sequences is null");
  expect_rejected(append_with([](RopeAppendArguments& a) { a.k.columns = 3; }), "k.columns is 3");
  expect_rejected(append_with([](RopeAppendArguments& a) { a.v.rows = 1; }),
                  "v.rows is 1; expected q.rows = 2");
  expect_rejected(append_with([](RopeAppendArguments& a) { a.num_kv_heads = 0; }), "num_kv_heads is 0");
  const std::vector<std::int32_t> negative = {0, -1};
  expect_rejected(append_with([&](RopeAppendArguments& a) { a.positions = negative.data(); }),
                  "positions[1] is -1");
  expect_rejected(append_with([&](RopeAppendArguments& a) { a.sequences = negative.data(); }),
                  "sequences[1] is -1");
}

TEST_P(OpsBackends, ProductsOfNormedRowsAreTakenOnlyWhereThereIsAKernel) {
  const TestWeight w(DType::kF32, 4, 8, Values(32)), norm(DType::kF32, 1, 8, Values(8));
  FencedMatrix x(DType::kF32, 1, 8, Values(8)), out(DType::kF32, 1, 4);
  NormedGemmArguments a;
  a.gemm = {x.view(), w.weight(), std::nullopt, out.view(), false, false};
  a.norm_weight = norm.weight();
  EXPECT_FALSE(backend->takes_normed_gemm(a));
  expect_error([&] { backend->normed_gemm(a, {}); }, ErrorCode::kUnsupported, "takes_normed_gemm()");
}

TEST(OpsValidate, ProductsOfNormedRowsThatMakeNoSenseAreRejected) {
  const TestWeight w(DType::kF32, 4, 8, Values(32)), norm(DType::kF32, 1, 8, Values(8));
  FencedMatrix x(DType::kF32, 1, 8, Values(8)), half(DType::kF16, 1, 8, Values(8)), out(DType::kF32, 1, 4);
  NormedGemmArguments valid;
  valid.gemm = {x.view(), w.weight(), std::nullopt, out.view(), false, false};
  valid.norm_weight = norm.weight();
  EXPECT_NO_THROW(validate(valid));
  const auto expect_rejected = [&](const std::function<void(NormedGemmArguments&)>& change,
                                   const std::string& part) {
    NormedGemmArguments a = valid;
    change(a);
    expect_error([&] { validate(a); }, ErrorCode::kInvalidArgument, part);
  };
  expect_rejected([&](auto& a) { a.gemm.x = half.view(); }, "x.dtype is f16; expected f32");
  expect_rejected([&](auto& a) { a.norm_weight.columns = 7; }, "norm_weight.columns is 7");
  expect_rejected([&](auto& a) { a.eps = -1; }, "eps is -1");
  expect_rejected([&](auto& a) { a.activation = GatedActivation::kSwiGlu; }, "weight.rows is 4");
  expect_rejected([&](auto& a) { a.gemm.out.columns = 3; }, "out.columns is 3");
  const TestWeight below(DType::kBF16, 1, 8, Values(8)), bias(DType::kF32, 1, 1, Values(1));
  FencedMatrix out_of_both(DType::kF32, 1, 5);
  const auto with_lower = [&](NormedGemmArguments& a) {
    a.lower = {below.weight(), bias.weight()};
    a.gemm.out = out_of_both.view();
  };
  NormedGemmArguments of_both = valid;
  with_lower(of_both);
  EXPECT_NO_THROW(validate(of_both));
  expect_rejected(
      [&](auto& a) {
        a.lower = {below.weight(), bias.weight()};
      },
      "out.columns is 4; expected all w's rows = 5");
  expect_rejected([&](auto& a) { with_lower(a), a.lower->weight.columns = 4; }, "weight.columns = 4");
  expect_rejected([&](auto& a) { with_lower(a), a.lower->bias = norm.weight(); }, "bias");
  expect_rejected([&](auto& a) { with_lower(a), a.activation = GatedActivation::kSwiGlu; },
                  "lower rows are given with an activation");
  RopeAppendArguments rope;
  rope.q = rope.k = rope.v = out.view();
  rope.num_heads = rope.num_kv_heads = 1;
  rope.head_dim = rope.q.columns = rope.k.columns = rope.v.columns = 1;
  rope.k.data = out.data() + 4;
  rope.v.data = out.data() + 8;
  const std::int32_t zero = 0;
  rope.positions = rope.sequences = &zero;
  rope.cache.page_size = 1;
  rope.cache.head_stride = rope.cache.token_stride = rope.cache.page_stride = 1;
  expect_rejected([&](auto& a) { a.rope = rope; },
                  "columns of q, k and v from first_head on is 3; expected at least 4, out.columns");
  expect_rejected([&](auto& a) { a.rope = rope, a.first_head = -1; },
                  "first_head is -1; expected at least 0");
  expect_rejected([&](auto& a) { a.rope = rope, a.gemm.accumulate = true; }, "expected it alone");
}

TEST(OpsCpu, TakesNoFp64) {
  // Only the reference computes with it.
  std::vector<double> memory(4);
  const Matrix m{memory.data(), DType::kF64, 1, 4, 4};
  EXPECT_NO_THROW(make_reference_ops()->scale({m, 2}, {}));
  expect_error([&] { make_cpu_ops()->scale({m, 2}, {}); }, ErrorCode::kInvalidArgument, "x.dtype is f64");
}

}  // namespace
}  // namespace tessera::testing
