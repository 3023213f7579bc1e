#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backends/factories.h"
#include "backends/reference/ops/elements.h"
#include "core/parallel.h"
#include "ops/host_backend.h"
#include "ops/validate.h"

namespace tessera {
namespace {

using namespace reference;

constexpr ActivationDTypes kAllowed = ActivationDTypes::kDeviceOrF64;

struct Rotation {
  const float* inverse_frequencies;
  int num_pairs;
  double attention_factor;
  RopePairing pairing;
};

/// Rotates one head that lies at `head` of elements of `dtype`, into head_dim elements at `out` of
/// `out_dtype`.
void rotate_head(const Rotation& r, std::int32_t position, int head_dim, const void* data, DType dtype,
                 std::int64_t head, void* out, DType out_dtype, std::int64_t out_head) {
  std::vector<double> x(static_cast<std::size_t>(head_dim));
  for (int d = 0; d < head_dim; ++d) x[static_cast<std::size_t>(d)] = load_element(data, dtype, head + d);
  for (int pair = 0; pair < r.num_pairs; ++pair) {
    const bool halves = r.pairing == RopePairing::kHalves;
    const std::size_t i = static_cast<std::size_t>(halves ? pair : 2 * pair);
    const std::size_t j = static_cast<std::size_t>(halves ? pair + r.num_pairs : 2 * pair + 1);
    const double angle = static_cast<double>(position) * static_cast<double>(r.inverse_frequencies[pair]);
    const double c = std::cos(angle);
    const double s = std::sin(angle);
    const double a = x[i];
    const double b = x[j];
    x[i] = r.attention_factor * (a * c - b * s);
    x[j] = r.attention_factor * (a * s + b * c);
  }
  for (int d = 0; d < head_dim; ++d)
    store_element(out, out_dtype, out_head + d, x[static_cast<std::size_t>(d)]);
}

double activation(GatedActivation kind, double x) {
  switch (kind) {
    case GatedActivation::kSwiGlu:
      return x / (1 + std::exp(-x));
    case GatedActivation::kGeGlu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case GatedActivation::kGeGluTanh: {
      const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
      return x / (1 + std::exp(-2 * u));  // 0.5 x (1 + tanh u) without cancellation
    }
    case GatedActivation::kReluSquared:
      return x > 0 ? x * x : 0 * x;  // of a NaN one
    case GatedActivation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case GatedActivation::kClampedSwiGlu:
      break;
  }
  return 0;
}

double gated(GatedActivation kind, double gate, double up) {
  if (kind != GatedActivation::kClampedSwiGlu) return activation(kind, gate) * up;
  const double limit = static_cast<double>(kClampedSwiGluLimit);
  // Comparisons that leave a NaN one.
  const double g = gate > limit ? limit : gate;
  const double u = up > limit ? limit : up < -limit ? -limit : up;
  return g / (1 + std::exp(-static_cast<double>(kClampedSwiGluAlpha) * g)) * (u + 1);
}

/// The formulas of ops/arguments.h in fp64 loops; the judge of the other backends. Takes fp64 activations
/// too.
class ReferenceOps final : public HostOpsBackend {
 public:
  std::string_view name() const override { return "reference"; }

  void embedding(const EmbeddingArguments& a, Stream) override {
    validate(a, kAllowed);
    validate_contents(a);
    for (std::int64_t t = 0; t < a.out.rows; ++t) {
      for (std::int64_t c = 0; c < a.out.columns; ++c) store(a.out, t, c, load(a.table, a.tokens[t], c));
    }
  }

  void rms_norm(const RmsNormArguments& a, Stream) override {
    validate(a, kAllowed);
    std::vector<double> row(static_cast<std::size_t>(a.x.columns));
    for (std::int64_t t = 0; t < a.x.rows; ++t) {
      for (int h = 0; h < a.heads; ++h) {
        const std::int64_t head = h * a.head_stride;
        double sum = 0;
        for (std::int64_t c = 0; c < a.x.columns; ++c) {
          double value = load(a.x, t, head + c);
          if (a.residual) {
            store(*a.residual, t, c, load(*a.residual, t, c) + value);
            value = load(*a.residual, t, c);
          }
          row[static_cast<std::size_t>(c)] = value;
          sum += value * value;
        }
        const double norm =
            1 / std::sqrt(sum / static_cast<double>(a.x.columns) + static_cast<double>(a.eps));
        for (std::int64_t c = 0; c < a.x.columns; ++c) {
          store(a.out, t, head + c, row[static_cast<std::size_t>(c)] * norm * load(a.weight, 0, c));
        }
      }
    }
  }

  void layer_norm(const LayerNormArguments& a, Stream) override {
    validate(a, kAllowed);
    const double columns = static_cast<double>(a.x.columns);
    for (std::int64_t t = 0; t < a.x.rows; ++t) {
      if (a.residual) {
        for (std::int64_t c = 0; c < a.x.columns; ++c)
          store(*a.residual, t, c, load(*a.residual, t, c) + load(a.x, t, c));
      }
      const Matrix& normed = a.residual ? *a.residual : a.x;
      for (int h = 0; h < a.heads; ++h) {
        const std::int64_t head = h * a.head_stride;
        double sum = 0, squares = 0;
        for (std::int64_t c = 0; c < a.x.columns; ++c) sum += load(normed, t, head + c);
        const double mean = sum / columns;
        for (std::int64_t c = 0; c < a.x.columns; ++c)
          squares += std::pow(load(normed, t, head + c) - mean, 2);
        const double norm = 1 / std::sqrt(squares / columns + static_cast<double>(a.eps));
        for (std::int64_t c = 0; c < a.x.columns; ++c) {
          const double bias = a.bias ? load(*a.bias, h, c) : 0;
          store(a.out, t, head + c, (load(normed, t, head + c) - mean) * norm * load(a.weight, h, c) + bias);
        }
      }
    }
  }

  void gemm(const GemmArguments& a, Stream) override {
    validate(a, kAllowed);
    const std::int64_t k = a.x.columns;
    std::vector<double> x(static_cast<std::size_t>(a.x.rows * k));
    for (std::int64_t i = 0; i < a.x.rows * k; ++i) x[static_cast<std::size_t>(i)] = load(a.x, i / k, i % k);
    parallel_for(static_cast<std::size_t>(a.weight.rows), [&](std::size_t task) {
      const std::int64_t n = static_cast<std::int64_t>(task);
      std::vector<double> w(static_cast<std::size_t>(k));
      for (std::int64_t i = 0; i < k; ++i) w[static_cast<std::size_t>(i)] = load(a.weight, n, i);
      for (std::int64_t m = 0; m < a.x.rows; ++m) {
        double sum = a.bias ? load(*a.bias, 0, n) : 0;
        if (a.accumulate) sum += load(a.out, m, n);
        const double* row = x.data() + m * k;
        for (std::int64_t i = 0; i < k; ++i) sum += row[i] * w[static_cast<std::size_t>(i)];
        store(a.out, m, n, sum);
      }
    });
  }

  void rope(const RopeArguments& a, Stream) override {
    validate(a, kAllowed);
    const Rotation r{a.inverse_frequencies, a.num_pairs, a.attention_factor, a.pairing};
    for (std::int64_t t = 0; t < a.x.rows; ++t) {
      for (int h = 0; h < a.heads; ++h) {
        const std::int64_t head = t * a.x.row_stride + std::int64_t{h} * a.head_dim;
        rotate_head(r, a.positions[t], a.head_dim, a.x.data, a.x.dtype, head, a.x.data, a.x.dtype, head);
      }
    }
  }

  void rope_append(const RopeAppendArguments& a, Stream) override {
    validate(a, kAllowed);
    validate_contents(a);
    const Rotation r{a.inverse_frequencies, a.num_pairs, a.attention_factor, a.pairing};
    const KvCacheView& c = a.cache;
    for (std::int64_t t = 0; t < a.q.rows; ++t) {
      const std::int32_t position = a.positions[t];
      for (int h = 0; h < a.num_heads; ++h) {
        const std::int64_t head = t * a.q.row_stride + std::int64_t{h} * a.head_dim;
        rotate_head(r, position, a.head_dim, a.q.data, a.q.dtype, head, a.q.data, a.q.dtype, head);
      }
      const std::int64_t page =
          c.block_table == nullptr
              ? a.sequences[t]
              : c.block_table[a.sequences[t] * c.block_table_stride + position / c.page_size];
      const std::int64_t slot = page * c.page_stride + position % c.page_size * c.token_stride;
      for (int h = 0; h < a.num_kv_heads; ++h) {
        const std::int64_t destination = slot + h * c.head_stride;
        rotate_head(r, position, a.head_dim, a.k.data, a.k.dtype,
                    t * a.k.row_stride + std::int64_t{h} * a.head_dim, c.k, c.dtype, destination);
        for (int d = 0; d < a.head_dim; ++d) {
          store_element(c.v, c.dtype, destination + d, load(a.v, t, std::int64_t{h} * a.head_dim + d));
        }
      }
    }
  }

  void gated_activation(const GatedActivationArguments& a, Stream) override {
    validate(a, kAllowed);
    for (std::int64_t row = 0; row < a.out.rows; ++row) {
      for (std::int64_t c = 0; c < a.out.columns; ++c) {
        store(a.out, row, c, gated(a.activation, load(a.gate, row, c), a.up ? load(*a.up, row, c) : 1));
      }
    }
  }

  void route_experts(const RouteExpertsArguments& a, Stream) override {
    validate(a, kAllowed);
    reference::route_experts(a);
  }

  void expert_gemm(const ExpertGemmArguments& a, Stream) override {
    validate(a, kAllowed);
    validate_contents(a);
    refuse_fused(a);
    reference::expert_gemm(a);
  }

  void combine_experts(const CombineExpertsArguments& a, Stream) override {
    validate(a, kAllowed);
    reference::combine_experts(a);
  }

  void causal_conv(const CausalConvArguments& a, Stream) override {
    validate(a, kAllowed);
    validate_contents(a);
    reference::causal_conv(a);
  }

  void gated_delta(const GatedDeltaArguments& a, Stream) override {
    validate(a, kAllowed);
    validate_contents(a);
    reference::gated_delta(a);
  }

  void softmax(const SoftmaxArguments& a, Stream) override {
    validate(a, kAllowed);
    std::vector<double> e(static_cast<std::size_t>(a.x.columns));
    for (std::int64_t row = 0; row < a.x.rows; ++row) {
      double maximum = -std::numeric_limits<double>::infinity();
      for (std::int64_t c = 0; c < a.x.columns; ++c) maximum = std::max(maximum, load(a.x, row, c));
      const bool hidden = maximum == -std::numeric_limits<double>::infinity();
      double sum = 0;
      for (std::int64_t c = 0; c < a.x.columns; ++c) {
        const double x = load(a.x, row, c);
        const double value = hidden && !std::isnan(x) ? 0 : std::exp(x - maximum);
        e[static_cast<std::size_t>(c)] = value;
        sum += value;
      }
      for (std::int64_t c = 0; c < a.x.columns; ++c) {
        store(a.out, row, c, sum == 0 ? 0 : e[static_cast<std::size_t>(c)] / sum);
      }
    }
  }

  void scale(const ScaleArguments& a, Stream) override {
    validate(a, kAllowed);
    for (std::int64_t row = 0; row < a.x.rows; ++row) {
      for (std::int64_t c = 0; c < a.x.columns; ++c) {
        store(a.x, row, c, load(a.x, row, c) * static_cast<double>(a.factor));
      }
    }
  }

  void softcap(const SoftcapArguments& a, Stream) override {
    validate(a, kAllowed);
    const double cap = static_cast<double>(a.cap);
    for (std::int64_t row = 0; row < a.x.rows; ++row) {
      for (std::int64_t c = 0; c < a.x.columns; ++c) {
        const double x = load(a.x, row, c);
        if (x != -std::numeric_limits<double>::infinity()) store(a.x, row, c, cap * std::tanh(x / cap));
      }
    }
  }

  void causal_mask(const CausalMaskArguments& a, Stream) override {
    validate(a, kAllowed);
    for (std::int64_t i = 0; i < a.x.rows; ++i) {
      for (std::int64_t j = 0; j < a.x.columns; ++j) {
        if (j - i > a.shift) store(a.x, i, j, -std::numeric_limits<double>::infinity());
      }
    }
  }

  void adjust_logits(const AdjustLogitsArguments& a, Stream) override {
    validate(a, kAllowed);
    validate_contents(a);
    reference::adjust_logits(a);
  }

  void logprobs(const LogprobsArguments& a, Stream) override {
    validate(a, kAllowed);
    reference::logprobs(a);
  }

  void sample(const SampleArguments& a, Stream) override {
    validate(a, kAllowed);
    validate_contents(a);
    reference::sample(a);
  }
};

}  // namespace

std::unique_ptr<OpsBackend> make_reference_ops() { return std::make_unique<ReferenceOps>(); }

}  // namespace tessera
