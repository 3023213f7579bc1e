#pragma once

#include "modifier/parse.h"
#include "modifier/ranges.h"
#include "tessera/attention.h"

namespace tessera {

/// Checks a problem's modifier, if it has one, against its lengths: names, shapes, texts, scalars; not the
/// tensors' pointers. Throws Error{kInvalidArgument} as ScoreModifier says. Requires lengths and heads within
/// validate()'s bounds.
void validate_modifier(const AttentionProblem& problem);

/// The graph of a valid problem's modifier; one without roots if it has none.
modifier::Program modifier_program(const AttentionProblem& problem);

}  // namespace tessera
