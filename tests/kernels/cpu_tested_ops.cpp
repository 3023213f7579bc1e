#include "backends/factories.h"
#include "kernels/tested_ops.h"

namespace tessera {

std::unique_ptr<OpsBackend> make_tested_ops() { return make_cpu_ops(); }

bool tested_ops_are_slow() { return false; }

bool tested_ops_are_the_cpus() { return true; }

std::unique_ptr<OpsBackend> make_tested_ops_backend(std::string_view name) { return make_ops_backend(name); }

}  // namespace tessera
