#include "backends/cpu/attention/kernels.h"

#include "backends/cpu/attention/bf16_dot.h"
#include "backends/cpu/attention/e4m3_dot.h"
#include "backends/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/attention/kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "backends/cpu/attention/decode-inl.h"
#include "backends/cpu/attention/math-inl.h"
#include "backends/cpu/attention/modifier-inl.h"
#include "backends/cpu/attention/prefill-inl.h"
#include "backends/cpu/attention/segments-inl.h"
#include "backends/cpu/attention/softcap-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

void PrefillKernel(const CallContext& call, const TileTask& task, const Bf16DotKernels* bf16) {
  RunPrefillTile(call, task, bf16);
}

#if HWY_TARGET != HWY_SCALAR
void DecodeKernel(const CallContext& call, const TileTask& task, const Bf16DotKernels* bf16) {
  RunDecodeTile(call, task, bf16);
}
#endif

void ModifyKernel(const ModifierChunk& chunk) { RunModifier(chunk); }

void ScaleScoresKernel(const CallContext& call, float* scores, std::int64_t count) {
  const Floats d;
  const ScoreScaling scaled(d, call.scale, call.problem->scores.softcap);
  for (std::int64_t i = 0; i < count; i += kLanes) hn::Store(scaled(hn::Load(d, scores + i)), d, scores + i);
}

void ExpKernel(const float* x, float* y, std::int64_t count) {
  const Floats d;
  for (std::int64_t i = 0; i < count; i += kLanes) hn::StoreU(Exp(d, hn::LoadU(d, x + i)), d, y + i);
}

void TanhKernel(const float* x, float* y, std::int64_t count) {
  const Floats d;
  for (std::int64_t i = 0; i < count; i += kLanes) hn::StoreU(Tanh(d, hn::LoadU(d, x + i)), d, y + i);
}

KernelTable Table() {
  KernelTable table;
  table.lanes = static_cast<int>(kLanes);
  table.row_block = static_cast<int>(kRowBlock);
  table.column_block = kColumns;
  table.prefill_tile = PrefillKernel;
#if HWY_TARGET != HWY_SCALAR
  table.decode_rows = static_cast<int>(kMaxDecodeRows);
  table.decode_tile = DecodeKernel;
#endif
  table.merge_segment = MergeSegmentRows;
  table.finish_segments = FinishSegmentRows;
  table.modify = ModifyKernel;
  table.fill_bias = FillBias;
  table.scale_scores = ScaleScoresKernel;
  table.exp = ExpKernel;
  table.tanh = TanhKernel;
  return table;
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

const KernelTable& kernel_table(SimdTarget target) {
  switch (target) {
#if HWY_TARGETS & HWY_AVX3
    case SimdTarget::kAvx512:
    case SimdTarget::kAvx512Bf16:
    case SimdTarget::kAmxBf16: {
      static const KernelTable table = N_AVX3::Table();
      return table;
    }
#endif
#if HWY_TARGETS & HWY_AVX2
    case SimdTarget::kAvx2: {
      static const KernelTable table = N_AVX2::Table();
      return table;
    }
#endif
#if HWY_TARGETS & HWY_NEON
    case SimdTarget::kNeon: {
      static const KernelTable table = N_NEON::Table();
      return table;
    }
#endif
    default: {
      static const KernelTable table = HWY_STATIC_DISPATCH(Table)();
      return table;
    }
  }
}

const Bf16DotKernels* bf16_dot_kernels(SimdTarget target) {
  // Processors with AMX take dot products of pairs more slowly than twice as many multiply-adds of fp32.
  return target == SimdTarget::kAvx512Bf16 ? avx512_bf16_dot_kernels() : nullptr;
}

const E4m3DotKernels* e4m3_dot_kernels(SimdTarget target) {
  return target == SimdTarget::kAvx512Bf16 ? avx512_e4m3_dot_kernels() : nullptr;
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
