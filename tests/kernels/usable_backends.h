#pragma once

#include <string>
#include <vector>

#include "tessera/attention.h"

namespace tessera {

/// Names of the attention backends that run on this machine.
inline std::vector<std::string> usable_backends() {
  std::vector<std::string> names;
  for (const BackendInfo& backend : attention_backends()) {
    if (backend.unavailable_reason.empty()) names.push_back(backend.name);
  }
  return names;
}

}  // namespace tessera
