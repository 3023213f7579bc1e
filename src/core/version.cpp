#include "tessera/version.h"

namespace tessera {

std::string_view version() noexcept { return TESSERA_VERSION; }

}  // namespace tessera
