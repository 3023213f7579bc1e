// The launches of layers that carry a state along.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "backends/gpu/ops/device_kernels.h"
#include "backends/gpu/ops/kernel_arguments.h"
#include "common/ops_params.h"
#include "core/rounding.h"
#include "ops/validate.h"

namespace tessera::gpu {
namespace {

kernels::SequenceRowsParams sequence_params(const SequenceRows& s) {
  return {s.cu_seqlens, s.seq_lens, s.slots};
}

/// "bf16" or the like where all are of that type, those of `in_groups` in whole groups of columns at
/// multiples of 16 bytes; else "any".
std::string type_for(std::initializer_list<Matrix> all, std::initializer_list<Matrix> in_groups,
                     std::int64_t columns) {
  const DType dtype = all.begin()->dtype;
  bool fits = columns % kernels::kGroupSize == 0;
  for (const Matrix& m : all) fits = fits && m.dtype == dtype;
  for (const Matrix& m : in_groups) fits = fits && rows_of(m).vector != 0;
  return fits ? std::string(dtype_name(dtype)) : "any";
}

const float* floats_of(const Weight& weight) { return static_cast<const float*>(weight.data); }

}  // namespace

void DeviceKernels::causal_conv(const CausalConvArguments& a, Stream stream) {
  validate(a);
  if (a.x.rows == 0) return;
  kernels::CausalConvParams p{};
  p.x = rows_of(a.x);
  p.out = rows_of(a.out);
  if (a.x_gate) p.x_gate = rows_of(*a.x_gate);
  if (a.out_gate) p.out_gate = rows_of(*a.out_gate);
  p.weight = floats_of(a.weight);
  if (a.bias) p.bias = floats_of(*a.bias);
  p.state = a.state;
  p.sequences = sequence_params(a.sequences);
  p.channels = a.x.columns;
  p.taps = static_cast<int>(a.weight.rows);
  p.is_activated = a.is_activated ? 1 : 0;
  const std::int64_t groups = divide_up<std::int64_t>(a.x.columns, kernels::kGroupSize);
  p.channel_blocks = static_cast<int>(divide_up<std::int64_t>(groups, kernels::kConvThreads));
  p.row_tiles = static_cast<int>(divide_up<std::int64_t>(a.sequences.seq_len_q, kernels::kConvRows));
  const Matrix x_gate = a.x_gate.value_or(a.x), out_gate = a.out_gate.value_or(a.x);
  const std::string type =
      type_for({a.x, x_gate, out_gate, a.out}, {a.x, x_gate, out_gate, a.out}, p.channels);
  launch("common/causal_conv.cu", p.taps <= 4 ? "causal_conv_4_" + type : "causal_conv_8_any",
         a.sequences.batch * p.row_tiles * p.channel_blocks, kernels::kConvThreads, p, stream);
}

void DeviceKernels::gated_delta(const GatedDeltaArguments& a, Stream stream) {
  validate(a);
  if (a.out.rows == 0) return;
  kernels::GatedDeltaParams p{};
  p.q = rows_of(a.q);
  p.k = rows_of(a.k);
  p.v = rows_of(a.v);
  p.a = rows_of(a.a);
  p.b = rows_of(a.b);
  p.out = rows_of(a.out);
  p.a_log = floats_of(a.a_log);
  p.dt_bias = floats_of(a.dt_bias);
  p.state = a.state;
  p.sequences = sequence_params(a.sequences);
  p.num_value_heads = a.num_value_heads;
  p.num_key_heads = a.num_key_heads;
  p.values_of_key = a.takes_turns ? 0 : a.num_value_heads / a.num_key_heads;
  p.key_dim = a.key_dim;
  p.value_dim = a.value_dim;
  const std::string type = type_for({a.q, a.k, a.v, a.a, a.b, a.out}, {a.q, a.k}, a.key_dim);
  p.column_blocks = static_cast<int>(divide_up<std::int64_t>(a.value_dim, kernels::kDeltaColumns));
  launch("common/gated_delta.cu", a.key_dim <= 128 ? "gated_delta_128_" + type : "gated_delta_256_any",
         a.sequences.batch * a.num_value_heads * p.column_blocks,
         a.key_dim <= 128 ? kernels::kDeltaThreads<128> : kernels::kDeltaThreads<256>, p, stream);
}

}  // namespace tessera::gpu
