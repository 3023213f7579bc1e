#pragma once

#include <string>

#include "verify/verify.h"

namespace tessera {

/// Memory where backend `name` wants its tensors. Throws Error{kInvalidArgument} for an unknown name,
/// Error{kDevice} if its device can't be opened.
VerifyMemory verify_memory_of(const std::string& name);

/// The backends that can run on this machine, or `name` alone unless it is "all".
std::vector<std::string> backends_to_verify(const std::string& name);

}  // namespace tessera
