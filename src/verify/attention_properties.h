#pragma once

#include <vector>

#include "verify/verify.h"

namespace tessera {

/// Cases that compare a backend with itself: the same bits whatever the batch, the storage and the way a
/// prompt is split; merged parts that equal the whole.
std::vector<VerifyCase> attention_property_cases();

}  // namespace tessera
