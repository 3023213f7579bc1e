#include "kernels/tested_ops.h"

namespace tessera {

std::unique_ptr<OpsBackend> make_tested_ops_backend(std::string_view name) {
  return name == "cpu" ? make_tested_ops() : make_ops_backend(name);
}

}  // namespace tessera
