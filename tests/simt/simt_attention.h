#pragma once

#include <memory>
#include <string_view>

#include "attention/backend.h"
#include "backends/gpu/attention/attention_kernel.h"

namespace tessera::simt {

/// GPUs' attention kernels, the preferred first, attention_combine and merge_states on the host; `name` and
/// `kernels` must outlive it. num_splits: parts that the keys are divided into if there are enough and the
/// bits may depend on it; 1: never.
std::unique_ptr<AttentionBackend> make_simt_attention(std::string_view name, int num_splits,
                                                      gpu::AttentionKernels kernels);

/// The generic kernel, which needs no aligned rows, with copies to such.
gpu::AttentionKernels generic_kernel();

}  // namespace tessera::simt
