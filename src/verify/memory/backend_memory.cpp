#include "verify/memory/backend_memory.h"

#include <algorithm>
#include <memory>

#include "attention/backend.h"
#include "backends/family.h"

namespace tessera {

VerifyMemory verify_memory_of(const std::string& name) {
  const DeviceKind kind = find_attention_backend(name).device_kind();
  if (kind == DeviceKind::kCpu) return VerifyMemory::cpu();
  gpu::Gpu& gpu = find_gpu({kind, 0});
  VerifyMemory memory;
  memory.device = gpu.device();
  memory.allocate = [&gpu](std::size_t size_bytes) {
    return gpu.allocate(std::max<std::size_t>(size_bytes, 1), "verify");
  };
  memory.upload = [&gpu](void* destination, const void* source, std::size_t size_bytes) {
    gpu.upload(destination, source, size_bytes, {});
    gpu.synchronize({});
  };
  memory.download = [&gpu](void* destination, const void* source, std::size_t size_bytes) {
    gpu.download(destination, source, size_bytes, {});
  };
  memory.replay = [&gpu](const std::function<void(Stream)>& work) {
    const gpu::OwnedStream stream(gpu);
    gpu.synchronize({});
    const std::unique_ptr<gpu::Graph> graph = gpu.capture(stream.handle(), [&] { work({stream.handle()}); });
    graph->launch(stream.handle());
    gpu.synchronize(stream.handle());
  };
  return memory;
}

std::vector<std::string> backends_to_verify(const std::string& name) {
  if (name != "all") return {name};
  std::vector<std::string> names;
  for (const BackendInfo& backend : attention_backends()) {
    if (backend.unavailable_reason.empty()) names.push_back(backend.name);
  }
  return names;
}

}  // namespace tessera
