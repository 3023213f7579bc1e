#include <fmt/core.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "backends/factories.h"
#include "tessera/error.h"

namespace tessera {
namespace {

std::vector<std::unique_ptr<AttentionBackend>> make_attention_backends() {
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  // The preferred first.
  backends.push_back(make_cpu_attention());
  backends.push_back(make_cuda_attention());
  backends.push_back(make_cuda_unfused_attention());
  backends.push_back(make_unfused_attention());
  backends.push_back(make_reference_attention());
  return backends;
}

std::vector<std::unique_ptr<AttentionBackend>>& attention_backend_list() {
  static std::vector<std::unique_ptr<AttentionBackend>> backends = make_attention_backends();
  return backends;
}

}  // namespace

std::span<const std::unique_ptr<AttentionBackend>> all_attention_backends() {
  return attention_backend_list();
}

void add_attention_backend(std::unique_ptr<AttentionBackend> backend) {
  attention_backend_list().push_back(std::move(backend));
}

namespace {

// The preferred first.
constexpr std::array<std::pair<std::string_view, std::unique_ptr<OpsBackend> (*)()>, 3> kOpsBackends = {{
    {"cuda", make_cuda_ops},
    {"cpu", make_cpu_ops},
    {"reference", make_reference_ops},
}};

constexpr auto kOpsBackendNames = [] {
  std::array<std::string_view, kOpsBackends.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kOpsBackends[i].first;
  return names;
}();

}  // namespace

std::unique_ptr<OpsBackend> make_ops_backend(std::string_view name) {
  std::string known;
  for (const auto& [backend, make] : kOpsBackends) {
    if (backend == name) return make();
    known += fmt::format("{}{}", known.empty() ? "" : ", ", backend);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("no backend of ops is called '{}'; expected one of {}", name, known));
}

std::span<const std::string_view> ops_backend_names() { return kOpsBackendNames; }

std::string_view preferred_ops_backend() {
  // A backend of ops needs what the attention backend of the same name needs.
  for (const std::string_view name : kOpsBackendNames) {
    if (find_attention_backend(name).unavailable_reason().empty()) return name;
  }
  return kOpsBackendNames.back();
}

}  // namespace tessera
