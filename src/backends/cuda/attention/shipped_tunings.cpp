#include "backends/cuda/attention/shipped_tunings.h"

#include <array>

#include "core/embed.h"

// The build names the files.
TESSERA_EMBED(tessera_tuned_h200, TESSERA_TUNED_H200)

namespace tessera::cuda {

std::span<const std::string_view> shipped_tunings() {
  static const std::array tables = {
      embedded_text(tessera_tuned_h200, tessera_tuned_h200_end),
  };
  return tables;
}

}  // namespace tessera::cuda
