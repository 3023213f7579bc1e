#include "ops/host_backend.h"

#include <fmt/core.h>

#include <cstdint>
#include <cstring>

#include "core/aligned_memory.h"
#include "core/block_format.h"
#include "ops/validate.h"

namespace tessera {

DeviceBuffer HostOpsBackend::allocate(std::size_t size_bytes, std::string_view what) {
  return {allocate_aligned(size_bytes, what), size_bytes};
}

void HostOpsBackend::upload(void* destination, const void* source, std::size_t size_bytes, Stream) {
  if (size_bytes > 0) std::memcpy(destination, source, size_bytes);
}

void HostOpsBackend::download(void* destination, const void* source, std::size_t size_bytes, Stream) {
  if (size_bytes > 0) std::memcpy(destination, source, size_bytes);
}

void HostOpsBackend::fill_zero(void* destination, std::size_t size_bytes, Stream) {
  if (size_bytes > 0) std::memset(destination, 0, size_bytes);
}

Weight HostOpsBackend::make_weight(const HostWeight& weight) {
  validate(weight);
  Weight result{weight.data, weight.dtype, weight.rows, weight.columns, nullptr};
  const std::uintptr_t alignment = block_format(weight.dtype).alignment;
  if (reinterpret_cast<std::uintptr_t>(weight.data) % alignment == 0) return result;
  const std::size_t size_bytes = static_cast<std::size_t>(weight.rows) *
                                 dtype_bytes(weight.dtype, static_cast<std::size_t>(weight.columns));
  const DeviceBuffer copy = allocate(
      size_bytes, fmt::format("a copy of weight {}", weight.name.empty() ? "(unnamed)" : weight.name));
  std::memcpy(copy.data.get(), weight.data, size_bytes);
  result.data = copy.data.get();
  result.owner = copy.data;
  return result;
}

}  // namespace tessera
