#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "backends/factories.h"
#include "backends/family.h"
#include "tessera/error.h"

namespace tessera {
namespace {

template <auto... kMake>
std::vector<std::unique_ptr<AttentionBackend>> make_attention() {
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  (backends.push_back(kMake()), ...);
  return backends;
}

template <auto kMake>
std::unique_ptr<OpsBackend> make_host_ops(const Device&) {
  return kMake();
}

// The preferred first. Models rather run on a GPU (ops_backend_names), attention where its tensors are.
constexpr std::array kFamilies = {
    BackendFamily{"cpu", DeviceKind::kCpu, make_attention<make_cpu_attention>, make_host_ops<make_cpu_ops>,
                  nullptr},
    BackendFamily{"cuda", DeviceKind::kCuda, make_attention<make_cuda_attention, make_cuda_unfused_attention>,
                  make_cuda_ops, cuda_platform},
    BackendFamily{"hip", DeviceKind::kHip, make_attention<make_hip_attention, make_hip_unfused_attention>,
                  make_hip_ops, hip_platform},
    BackendFamily{"unfused", DeviceKind::kCpu, make_attention<make_unfused_attention>, nullptr, nullptr},
    BackendFamily{"reference", DeviceKind::kCpu, make_attention<make_reference_attention>,
                  make_host_ops<make_reference_ops>, nullptr},
};

std::vector<std::unique_ptr<AttentionBackend>>& attention_backend_list() {
  static std::vector<std::unique_ptr<AttentionBackend>> backends = [] {
    std::vector<std::unique_ptr<AttentionBackend>> all;
    for (const BackendFamily& family : kFamilies) {
      for (std::unique_ptr<AttentionBackend>& backend : family.make_attention())
        all.push_back(std::move(backend));
    }
    return all;
  }();
  return backends;
}

/// Families with a backend of ops, GPUs first.
std::vector<const BackendFamily*> families_with_ops() {
  std::vector<const BackendFamily*> families;
  for (const bool is_gpu : {true, false}) {
    for (const BackendFamily& family : kFamilies) {
      if (family.make_ops != nullptr && (family.platform != nullptr) == is_gpu) families.push_back(&family);
    }
  }
  return families;
}

}  // namespace

std::span<const BackendFamily> backend_families() { return kFamilies; }

Device preferred_device() {
  for (const BackendFamily& family : kFamilies) {
    if (family.platform != nullptr && family.unavailable_reason().empty()) return {family.kind, 0};
  }
  return {};
}

DeviceKind preferred_gpu_kind() {
  if (const DeviceKind kind = preferred_device().kind; kind != DeviceKind::kCpu) return kind;
  return std::ranges::find_if(kFamilies, [](const BackendFamily& f) { return f.platform != nullptr; })->kind;
}

gpu::Gpu& find_gpu(const Device& device) {
  for (const BackendFamily& family : kFamilies) {
    if (family.platform != nullptr && family.kind == device.kind) return family.platform().gpu(device.index);
  }
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is no GPU", device_name(device)));
}

std::span<const std::unique_ptr<AttentionBackend>> all_attention_backends() {
  return attention_backend_list();
}

void add_attention_backend(std::unique_ptr<AttentionBackend> backend) {
  attention_backend_list().push_back(std::move(backend));
}

std::unique_ptr<OpsBackend> make_ops_backend(std::string_view name, int device_index) {
  std::string known;
  for (const BackendFamily* family : families_with_ops()) {
    if (family->name == name) {
      const Device device{family->kind, device_index};
      if (family->platform == nullptr && device_index != 0) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("the CPU is one device, all its processors together: its index is 0, not {}",
                                device_index));
      }
      return family->make_ops(device);
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family->name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("no backend of ops is called '{}'; expected one of {}", name, known));
}

std::span<const std::string_view> ops_backend_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const BackendFamily* family : families_with_ops()) all.push_back(family->name);
    return all;
  }();
  return names;
}

std::string_view preferred_ops_backend() {
  const std::vector<const BackendFamily*> families = families_with_ops();
  for (const BackendFamily* family : families) {
    if (family->unavailable_reason().empty()) return family->name;
  }
  return families.back()->name;
}

}  // namespace tessera
