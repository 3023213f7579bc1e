#include "verify/prepare_cases.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "attention/backend.h"
#include "core/parallel.h"
#include "tessera/error.h"
#include "verify/attention_data.h"

namespace tessera {

void prepare_cases(std::span<const AttentionCase> cases, const std::string& backend,
                   const VerifyMemory& memory) {
  if (find_attention_backend(backend).device_kind() == DeviceKind::kCpu) return;
  // Neighbours often share a kernel, which only one thread can compile: out of order fewer wait for another.
  std::vector<std::size_t> order(cases.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937(0));
  AttentionOptions options;
  options.backend = backend;
  parallel_for(order.size(), [&](std::size_t i) {
    try {
      AttentionStorage storage = store_attention_data(make_attention_data(cases[order[i]]));
      storage.problem.device = memory.device;
      prepare_attention(storage.problem, options);
    } catch (const Error&) {
      // The case itself meets it again.
    }
  });
}

}  // namespace tessera
