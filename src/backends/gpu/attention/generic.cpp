#include <string>

#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/problem_params.h"

// common/attention_generic.cu: a warp a row, for any problem.

namespace tessera::gpu {
namespace {

using kernels::kGenericWarps;

constexpr int kKeyTile = 64;  // that splits are whole numbers of
static_assert(kernels::kMaxHeadDim == kMaxHeadDim, "kernels hold a row of any head_dim");

std::string reason_against(const AttentionProblem&, const DeviceProperties&) { return {}; }

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  KernelChoice c;
  c.entry = "attention_generic_" + types_suffix(p);
  c.module = {"common/attention_generic.cu", {}};
  c.config = {kGenericWarps, 1, kGenericWarps, 1, 0};
  cut_rows(p, c);
  cut_keys(p, forced, kKeyTile, wanted_splits(p, device, kKeyTile, c), c);
  return c;
}

}  // namespace

const AttentionKernel kGenericAttention = {
    .name = "generic",
    .merit = "takes any problem",
    .note = "the generic kernel: no tiled one has batch-invariant bits for such a problem",
    .is_plain = true,
    .takes_modifiers = true,
    .classifies_tiles = true,
    .takes_narrow_kv = true,
    .reason_against = reason_against,
    .choose = choose,
    .sequences_at_once = row_sequences_at_once,
    .shape = row_shape,
};

}  // namespace tessera::gpu
