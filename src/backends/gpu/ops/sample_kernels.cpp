#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "backends/gpu/ops/device_kernels.h"
#include "backends/gpu/ops/kernel_arguments.h"
#include "core/rounding.h"
#include "ops/validate.h"
#include "tessera/error.h"

// The sampler's launches; common/sample.cu says what its kernels do.

namespace tessera::gpu {
namespace {

using kernels::SampleParams;
using kernels::SampleScratch;

// The kernels read SamplingParameters as their own struct.
static_assert(sizeof(SamplingParameters) == sizeof(kernels::SamplerSettings));
static_assert(offsetof(SamplingParameters, top_k) == offsetof(kernels::SamplerSettings, top_k));
static_assert(offsetof(SamplingParameters, top_p) == offsetof(kernels::SamplerSettings, top_p));
static_assert(offsetof(SamplingParameters, min_p) == offsetof(kernels::SamplerSettings, min_p));
static_assert(offsetof(SamplingParameters, repetition_penalty) ==
              offsetof(kernels::SamplerSettings, repetition_penalty));
static_assert(offsetof(SamplingParameters, seed) == offsetof(kernels::SamplerSettings, seed));
static_assert(sizeof(std::int64_t) == sizeof(kernels::int64));

// Scratch memory is for as many.
constexpr std::int64_t kRowsAtOnce = 128;
// As many as registers let run at once, so that all blocks of a batch do.
constexpr std::int64_t kBlocksAMultiprocessor = 3;

/// How the rows of a call are cut into blocks. Results do not depend on it.
void choose_blocks(SampleParams& p, std::int64_t rows, std::int64_t num_multiprocessors) {
  const std::int64_t tiles = divide_up(std::int64_t{p.vocab_size}, kernels::kSampleTile);
  const std::int64_t segment_tiles = divide_up(tiles, kernels::kMaxSegments);
  const std::int64_t segments = divide_up(tiles, segment_tiles);
  const std::int64_t most_blocks =
      std::clamp<std::int64_t>(num_multiprocessors * kBlocksAMultiprocessor / rows, 1, segments);
  const std::int64_t segments_a_block = divide_up(segments, most_blocks);
  p.segment_tokens = static_cast<int>(segment_tiles * kernels::kSampleTile);
  p.num_segments = static_cast<int>(segments);
  p.blocks_per_row = static_cast<int>(divide_up(segments, segments_a_block));
}

/// The same for rows from `begin` on.
SampleParams from_row(SampleParams p, const SampleArguments& a, std::int64_t begin) {
  p.logits.data = static_cast<std::byte*>(p.logits.data) +
                  dtype_bytes(a.logits.dtype, static_cast<std::size_t>(begin * a.logits.row_stride));
  p.settings += begin;
  p.steps += begin;
  p.tokens += begin;
  if (p.history != nullptr) {
    p.history += begin * p.history_stride;
    p.history_lens += begin;
  }
  return p;
}

}  // namespace

void DeviceKernels::sample(const SampleArguments& a, Stream stream) {
  validate(a);
  // Counting tiles and segments takes some more than ids.
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;
  if (a.logits.columns > kMostTokens) {
    throw Error(ErrorCode::kUnsupported, fmt::format("sample: a vocabulary of {} tokens; expected at most {}",
                                                     a.logits.columns, kMostTokens));
  }
  if (a.logits.rows == 0) return;
  SampleParams p{};
  p.logits = rows_of(a.logits);
  p.settings = reinterpret_cast<const kernels::SamplerSettings*>(a.parameters);
  p.steps = reinterpret_cast<const kernels::int64*>(a.steps);
  p.history = a.history;
  p.history_lens = a.history_lens;
  p.history_stride = a.history_stride;
  p.tokens = a.tokens;
  p.vocab_size = static_cast<int>(a.logits.columns);
  // 45 bits are as fine as weights that are cut off (e^-32) need; fewer only so that 2^62 holds the sum.
  p.weight_bits =
      std::min(45, 62 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(a.logits.columns))));
  const std::int64_t most_rows = std::min(a.logits.rows, kRowsAtOnce);
  choose_blocks(p, most_rows, launcher_.num_multiprocessors());
  if (a.history != nullptr) p.penalized_words = std::int64_t{p.num_segments} * p.segment_tokens / 32;

  const std::size_t rows_of_scratch = static_cast<std::size_t>(most_rows);
  const std::size_t scratch_bytes = rows_of_scratch * sizeof(SampleScratch);
  const std::size_t penalized_bytes = rows_of_scratch * static_cast<std::size_t>(p.penalized_words) * 4;
  std::byte* const workspace = launcher_.workspace(scratch_bytes + penalized_bytes, stream);
  p.scratch = reinterpret_cast<SampleScratch*>(workspace);
  if (a.history != nullptr) p.penalized = reinterpret_cast<unsigned*>(workspace + scratch_bytes);

  for (std::int64_t begin = 0; begin < a.logits.rows; begin += kRowsAtOnce) {
    SampleParams part = from_row(p, a, begin);
    const std::int64_t rows = std::min(kRowsAtOnce, a.logits.rows - begin);
    const auto launch = [&](const char* entry, std::int64_t blocks) {
      launcher_.launch(
          {"common/sample.cu", entry, static_cast<unsigned>(blocks), 1, kernels::kSampleThreads, 0, &part, 0},
          stream);
    };
    launch("sample_largest", rows * p.blocks_per_row);
    launch("sample_measure", rows * p.blocks_per_row);
    launch("sample_gather", rows * p.blocks_per_row);
    launch("sample_draw", rows);
  }
}

}  // namespace tessera::gpu
