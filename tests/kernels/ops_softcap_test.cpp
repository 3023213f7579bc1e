// softcap against cap tanh(x / cap) in fp64.
#include <cmath>
#include <limits>

#include "backends/factories.h"
#include "kernels/ops_testing.h"

namespace tessera::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class OpsSoftcap : public ::testing::TestWithParam<DType> {
 protected:
  const DType dtype = GetParam();
  const std::unique_ptr<OpsBackend> tested = make_tested_ops();
  const std::unique_ptr<OpsBackend> reference = make_reference_ops();
};

INSTANTIATE_TEST_SUITE_P(DTypes, OpsSoftcap, ::testing::ValuesIn(kActivationDTypes),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST_P(OpsSoftcap, IsAsExactAsTheNaiveOne) {
  constexpr std::int64_t kRows = 3;
  // Rows of whole groups of 8 columns at multiples of 16 bytes, which GPUs have kernels of their own for,
  // and others.
  for (const std::int64_t columns : {1, 7, 8, 33, 264, 1000, 4104, 4099}) {
    for (const float cap : {30.0f, 0.7f}) {
      SCOPED_TRACE(::testing::Message() << columns << " columns, cap " << cap);
      // From a small part of the cap to many times it.
      Values values = random_values(static_cast<std::size_t>(kRows * columns), 1, 40);
      for (std::size_t i = 0; i < values.size(); i += 3) values[i] *= 1e-3;
      FencedMatrix x(dtype, kRows, columns, values, columns + 8);
      const Values inputs = x.values();
      FencedMatrix exact(DType::kF64, kRows, columns, inputs);
      reference->softcap({exact.view(), cap}, {});
      Values naive = inputs;
      for (double& v : naive) v = static_cast<double>(cap * std::tanh(static_cast<float>(v) / cap));
      for_each_simd_target([&] {
        x.fill(values);
        tested->softcap({x.view(), cap}, {});
        expect_at_most_twice_naive(x.values(), naive, exact.values(), dtype);
        x.expect_fences_intact();
      });
    }
  }
}

TEST_P(OpsSoftcap, EndsAtTheCapAndKeepsWhatHides) {
  // In whole groups and one by one.
  for (const std::int64_t columns : {8, 5}) {
    Values values = {-kInfinity, kInfinity, 6e4, -6e4, std::numeric_limits<double>::quiet_NaN()};
    values.resize(static_cast<std::size_t>(columns));
    FencedMatrix exact(DType::kF64, 1, columns, values);
    reference->softcap({exact.view(), 30}, {});
    for (const Values& got : {exact.values(), [&] {
                                FencedMatrix x(dtype, 1, columns, values, columns + 8);
                                tested->softcap({x.view(), 30}, {});
                                x.expect_fences_intact();
                                return x.values();
                              }()}) {
      EXPECT_EQ(got[0], -kInfinity);
      EXPECT_EQ(got[1], 30);
      EXPECT_EQ(got[2], 30);
      EXPECT_EQ(got[3], -30);
      EXPECT_TRUE(std::isnan(got[4]));
      for (std::size_t i = 5; i < got.size(); ++i) EXPECT_EQ(got[i], 0);
    }
  }
}

TEST(OpsSoftcapArguments, CapsThatMakeNoSenseAreRejected) {
  std::vector<float> memory(8);
  const Matrix x{memory.data(), DType::kF32, 1, 8, 8};
  for (const std::unique_ptr<OpsBackend>& backend : {make_tested_ops(), make_reference_ops()}) {
    for (const float cap : {0.0f, -1.0f, 1e-40f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      expect_error(
          [&] {
            backend->softcap({x, cap}, {});
          },
          ErrorCode::kInvalidArgument, "expected a positive number");
    }
  }
}

}  // namespace
}  // namespace tessera::testing
