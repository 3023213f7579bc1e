#pragma once

#include <vector>

#include "modifier/ir.h"
#include "modifier/text_error.h"
#include "tessera/attention.h"

namespace tessera::modifier {

struct Parsed {
  Program program;
  std::vector<Position> positions;  ///< where each node was written first
};

/// The graph of a modifier's texts (docs/modifiers.md has the grammar). Looks at names, dtypes and ranks of
/// its tensors and at its scalars' values, at no tensor's contents. Throws Error{kInvalidArgument} with line,
/// column and what was expected; time and memory are bounded by the texts' length, which is at most 16 KiB.
Parsed parse(const ScoreModifier& modifier);

}  // namespace tessera::modifier
