#include "kernels/tested_ops.h"

namespace tessera {

bool tested_ops_are_the_cpus() { return false; }

std::unique_ptr<OpsBackend> make_tested_ops_backend(std::string_view name) {
  return name == "cpu" ? make_tested_ops() : make_ops_backend(name);
}

}  // namespace tessera
