#pragma once

#include "backends/gpu/attention/attention_kernel.h"
#include "tessera/attention.h"

// What kernels' tiles of few queries take: models, fitted to an H200's times, by which these kernels are
// chosen (docs/kernels/cuda_attention.md, hopper_attention.md). "narrow": of keys of 8 bits, which are
// widened on their way, fitted to 2 to 100 queries.

namespace tessera::cuda {

/// How often sm80's blocks follow one another on a multiprocessor, of which two take 1.5 times as long as
/// one. share: of the blocks that have keys.
double sm80_rounds(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                   const gpu::KernelChoice& choice, double share = 1);

/// What merging sm80/prefill's splits takes, in us.
double us_of_sm80_combine(const AttentionProblem& problem, const gpu::KernelChoice& choice);

/// What merging sm90/prefill's splits takes, in us.
double us_of_sm90_combine(const AttentionProblem& problem, std::int64_t splits);

/// sm90/prefill of keys of 8 bits: a tile of queries over one of so many splits of the keys, in us.
double us_of_sm90_narrow_block(const AttentionProblem& problem, const gpu::KernelChoice& choice,
                               std::int64_t splits);
/// All of its `choice`.
double us_of_sm90_narrow_tiles(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                               const gpu::KernelChoice& choice);

/// sm80/prefill.
double us_of_sm80_narrow_tiles(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                               const gpu::KernelChoice& choice);

/// sm80/decode of more than 16 rows, whose tiles read keys once each.
double us_of_narrow_decode(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                           const gpu::KernelChoice& choice);

}  // namespace tessera::cuda
