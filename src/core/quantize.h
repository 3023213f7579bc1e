#pragma once

#include <cstddef>
#include <span>

#include "tessera/dtype.h"

namespace tessera {

/// Stores values as blocks of `dtype`, a format of blocks: each group's step (and offset) is sought so that
/// the squared error is small, larger values weighing more. out: dtype_bytes(dtype, values.size()) bytes.
/// The same values give the same bytes. Throws Error{kInvalidArgument} if values are not whole blocks, or one
/// is not finite or too large for the blocks' fp16 steps; Error{kUnsupported} for formats of codebooks, IQ1
/// to IQ3, of which few bits are worth having only if it is known how much each weight matters to the model.
void quantize_blocks(DType dtype, std::span<const float> values, std::byte* out);

/// Whether quantize_blocks makes blocks of `dtype`.
bool is_quantizable(DType dtype);

/// Blocks for tests and benchmarks: those of quantize_blocks; of a format that it does not make, blocks of
/// bits that `values` decide and whose numbers have their mean square, which say nothing else about them.
void fill_blocks(DType dtype, std::span<const float> values, std::byte* out);

}  // namespace tessera
