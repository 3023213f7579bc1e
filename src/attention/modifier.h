#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/modifier_tiles.h"
#include "attention/sequence.h"
#include "modifier/evaluate.h"
#include "modifier/ir.h"
#include "tessera/attention.h"

namespace tessera {

/// Checks a problem's modifier, if it has one, against its lengths: names, shapes, texts, scalars; not the
/// tensors' pointers. Throws Error{kInvalidArgument} as ScoreModifier says. Requires lengths and heads within
/// validate()'s bounds.
void validate_modifier(const AttentionProblem& problem);

/// The graph of a valid problem's modifier; one without roots if it has none. Never null.
std::shared_ptr<const modifier::Program> modifier_program(const AttentionProblem& problem);

/// What the modifier's variables are for query i of head h of sequence b; the key's is 0.
modifier::Variables modifier_variables(const AttentionProblem& problem, std::int64_t b,
                                       const SequenceExtent& extent, std::int64_t i, int h);

/// The lines of AttentionExplanation::modifier; tiles: the problem's.
std::vector<std::string> explain_modifier(const AttentionProblem& problem, const ModifierTiles& tiles);

}  // namespace tessera
