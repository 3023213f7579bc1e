#include <vector>

#include "backends/factories.h"

namespace tessera {
namespace {

std::vector<std::unique_ptr<AttentionBackend>> make_attention_backends() {
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  // The preferred first.
  backends.push_back(make_unfused_attention());
  backends.push_back(make_reference_attention());
  return backends;
}

}  // namespace

std::span<const std::unique_ptr<AttentionBackend>> all_attention_backends() {
  static const std::vector<std::unique_ptr<AttentionBackend>> backends = make_attention_backends();
  return backends;
}

}  // namespace tessera
