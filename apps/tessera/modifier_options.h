#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "command.h"
#include "tessera/attention.h"

namespace tessera::cli {

/// A score modifier as the command line describes it.
struct ModifierOptions {
  std::string score;
  std::string visible;
  std::vector<std::string> tensors;
  std::vector<std::string> scalars;

  bool is_given() const { return !score.empty() || !visible.empty(); }
};

void add_modifier_options(Command& command, ModifierOptions& options);

/// The modifier; the contents of its tensors go to `memory`, which must outlive it. Throws UsageError for
/// what is no tensor or scalar.
ScoreModifier make_modifier(const ModifierOptions& options, std::vector<std::vector<std::byte>>& memory);

}  // namespace tessera::cli
