#pragma once

#include <memory>

#include "modifier/parse.h"

namespace tessera::modifier {

/// parse(), whose results for the last few texts a thread keeps: a problem's are asked for more than once a
/// call, and calls without a plan ask again each time. Throws as parse() does; what is wrong is not kept.
std::shared_ptr<const Parsed> parse_once(const ScoreModifier& modifier);

}  // namespace tessera::modifier
