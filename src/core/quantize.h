#pragma once

#include <cstddef>
#include <span>

#include "tessera/dtype.h"

namespace tessera {

/// Stores values as blocks of `dtype`, a format of blocks: each group's step (and offset) is sought so that
/// the squared error is small, larger values weighing more. out: dtype_bytes(dtype, values.size()) bytes.
/// The same values give the same bytes. Throws Error{kInvalidArgument} if values are not whole blocks, or one
/// is not finite or too large for the blocks' fp16 steps.
void quantize_blocks(DType dtype, std::span<const float> values, std::byte* out);

}  // namespace tessera
