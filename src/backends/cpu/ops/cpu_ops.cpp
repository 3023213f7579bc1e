#include <algorithm>
#include <cstring>
#include <limits>

#include "backends/cpu/ops/experts.h"
#include "backends/cpu/ops/gemm.h"
#include "backends/cpu/ops/logits.h"
#include "backends/cpu/ops/recurrent.h"
#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/sample.h"
#include "backends/cpu/ops/scratch.h"
#include "backends/factories.h"
#include "core/element.h"
#include "core/parallel.h"
#include "ops/host_backend.h"
#include "ops/validate.h"

namespace tessera {
namespace {

using cpu::padded_row;
using cpu::row_kernels;

/// Splits rows into tasks of at least kTaskBytes, so that handing them out costs little.
template <class Body>
void for_row_ranges(std::int64_t rows, std::int64_t row_bytes, Body body) {
  constexpr std::int64_t kTaskBytes = std::int64_t{64} << 10;
  if (rows == 0) return;
  const std::int64_t step = std::max<std::int64_t>(1, kTaskBytes / std::max<std::int64_t>(1, row_bytes));
  const std::int64_t tasks = (rows + step - 1) / step;
  parallel_for(static_cast<std::size_t>(tasks), [&](std::size_t task) {
    const std::int64_t begin = static_cast<std::int64_t>(task) * step;
    body(begin, std::min(begin + step, rows));
  });
}

std::int64_t row_bytes(const Matrix& m) {
  return static_cast<std::int64_t>(dtype_bytes(m.dtype, static_cast<std::size_t>(m.columns)));
}

/// Scratch of one task.
cpu::Scratch scratch_row(std::size_t elements) { return {elements * sizeof(float), "a scratch row"}; }

class CpuOps final : public HostOpsBackend {
 public:
  std::string_view name() const override { return "cpu"; }

  bool multiplies_bf16() const override { return cpu::multiplies_bf16_blocks(); }

  void embedding(const EmbeddingArguments& a, Stream) override {
    validate(a);
    validate_contents(a);
    for_row_ranges(a.out.rows, row_bytes(a.out), [&](std::int64_t begin, std::int64_t end) {
      const std::size_t columns = static_cast<std::size_t>(a.out.columns);
      const cpu::Scratch row = scratch_row(padded_row(a.out.columns));
      for (std::int64_t t = begin; t < end; ++t) {
        row_kernels().load_as_f32(a.table.data, a.table.dtype, a.tokens[t] * a.table.columns, columns,
                                  row.floats());
        row_kernels().store_from_f32(row.floats(), columns, a.out.data, a.out.dtype, t * a.out.row_stride);
      }
    });
  }

  void rms_norm(const RmsNormArguments& a, Stream) override {
    validate(a);
    for_row_ranges(a.x.rows * a.heads, row_bytes(a.x), [&](std::int64_t begin, std::int64_t end) {
      const cpu::Scratch row = scratch_row(padded_row(a.x.columns));
      row_kernels().rms_norm(a, begin, end, row.floats());
    });
  }

  void layer_norm(const LayerNormArguments& a, Stream) override {
    validate(a);
    for_row_ranges(a.x.rows * a.heads, row_bytes(a.x), [&](std::int64_t begin, std::int64_t end) {
      const cpu::Scratch row = scratch_row(padded_row(a.x.columns));
      row_kernels().layer_norm(a, begin, end, row.floats());
    });
  }

  void gemm(const GemmArguments& a, Stream) override {
    validate(a);
    cpu::gemm(a);
  }

  void rope(const RopeArguments& a, Stream) override {
    validate(a);
    for_row_ranges(a.x.rows, row_bytes(a.x), [&](std::int64_t begin, std::int64_t end) {
      const cpu::Scratch scratch = scratch_row(cpu::rope_scratch(a.num_pairs));
      cpu::rope_kernels().rope(a, begin, end, scratch.floats());
    });
  }

  void rope_append(const RopeAppendArguments& a, Stream) override {
    validate(a);
    validate_contents(a);
    const std::int64_t token_bytes = row_bytes(a.q) + row_bytes(a.k) + row_bytes(a.v);
    for_row_ranges(a.q.rows, token_bytes, [&](std::int64_t begin, std::int64_t end) {
      const cpu::Scratch scratch = scratch_row(cpu::rope_scratch(a.num_pairs));
      cpu::rope_kernels().rope_append(a, begin, end, scratch.floats());
    });
  }

  void gated_activation(const GatedActivationArguments& a, Stream) override {
    validate(a);
    for_row_ranges(a.out.rows, row_bytes(a.out), [&](std::int64_t begin, std::int64_t end) {
      row_kernels().gated_activation(a, begin, end);
    });
  }

  void route_experts(const RouteExpertsArguments& a, Stream) override {
    validate(a);
    cpu::route_experts(a);
  }

  void expert_gemm(const ExpertGemmArguments& a, Stream) override {
    validate(a);
    validate_contents(a);
    refuse_fused(a);
    cpu::expert_gemm(a);
  }

  void combine_experts(const CombineExpertsArguments& a, Stream) override {
    validate(a);
    cpu::combine_experts(a);
  }

  void causal_conv(const CausalConvArguments& a, Stream) override {
    validate(a);
    validate_contents(a);
    cpu::causal_conv(a);
  }

  void gated_delta(const GatedDeltaArguments& a, Stream) override {
    validate(a);
    validate_contents(a);
    cpu::gated_delta(a);
  }

  void softmax(const SoftmaxArguments& a, Stream) override {
    validate(a);
    for_row_ranges(a.x.rows, row_bytes(a.x), [&](std::int64_t begin, std::int64_t end) {
      const cpu::Scratch row = scratch_row(padded_row(a.x.columns));
      row_kernels().softmax(a, begin, end, row.floats());
    });
  }

  void scale(const ScaleArguments& a, Stream) override {
    validate(a);
    for_row_ranges(a.x.rows, row_bytes(a.x),
                   [&](std::int64_t begin, std::int64_t end) { row_kernels().scale(a, begin, end); });
  }

  void softcap(const SoftcapArguments& a, Stream) override {
    validate(a);
    for_row_ranges(a.x.rows, row_bytes(a.x),
                   [&](std::int64_t begin, std::int64_t end) { row_kernels().softcap(a, begin, end); });
  }

  void causal_mask(const CausalMaskArguments& a, Stream) override {
    validate(a);
    for_row_ranges(a.x.rows, row_bytes(a.x), [&](std::int64_t begin, std::int64_t end) {
      dispatch_float(a.x.dtype, [&]<class T>() {
        const T hidden = round_to<T>(-std::numeric_limits<double>::infinity());
        for (std::int64_t i = begin; i < end; ++i) {
          T* row = static_cast<T*>(a.x.data) + i * a.x.row_stride;
          // Compared without adding to shift, which may be any number.
          const std::int64_t first = a.shift < -i                 ? 0
                                     : a.shift >= a.x.columns - i ? a.x.columns
                                                                  : i + a.shift + 1;
          std::fill(row + std::min(first, a.x.columns), row + a.x.columns, hidden);
        }
      });
    });
  }

  void adjust_logits(const AdjustLogitsArguments& a, Stream) override {
    validate(a);
    validate_contents(a);
    cpu::adjust_logits(a);
  }

  void logprobs(const LogprobsArguments& a, Stream) override {
    validate(a);
    cpu::logprobs(a);
  }

  void sample(const SampleArguments& a, Stream) override {
    validate(a);
    validate_contents(a);
    cpu::sample(a);
  }
};

}  // namespace

std::unique_ptr<OpsBackend> make_cpu_ops() { return std::make_unique<CpuOps>(); }

}  // namespace tessera
