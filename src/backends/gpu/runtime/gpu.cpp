#include "backends/gpu/runtime/gpu.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tessera/error.h"

namespace tessera::gpu {

std::string Gpu::largest_holders() const {
  std::map<std::string, std::size_t> by_holder;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [pointer, holding] : holdings_) by_holder[holding.what] += holding.size_bytes;
  }
  std::vector<std::pair<std::size_t, std::string>> sorted;
  for (const auto& [what, size_bytes] : by_holder) sorted.emplace_back(size_bytes, what);
  std::sort(sorted.rbegin(), sorted.rend());
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(sorted.size(), 4); ++i) {
    text += fmt::format("{}{} {} MB", i == 0 ? "" : ", ", sorted[i].second, sorted[i].first >> 20);
  }
  return text.empty() ? "nothing" : text;
}

std::shared_ptr<std::byte> Gpu::allocate(std::size_t size_bytes, std::string_view what, Stream stream) {
  if (size_bytes == 0) return nullptr;
  std::byte* memory = take_memory(size_bytes, what, stream);
  if (memory == nullptr) {
    throw Error(
        ErrorCode::kOutOfMemory,
        fmt::format(
            "the GPU {} has no {} MB for {}: {} of {} MB are free, and this process holds: {}. Use a smaller "
            "model, batch or context, or free memory on the GPU",
            properties_.name, (size_bytes >> 20) + 1, what, free_memory_bytes() >> 20,
            properties_.total_memory_bytes >> 20, largest_holders()));
  }
  {
    const std::lock_guard lock(mutex_);
    holdings_.emplace(memory, Holding{size_bytes, std::string(what)});
  }
  return {memory, [this, stream](std::byte* p) { release(p, stream); }};
}

void Gpu::download(void* destination, const void* source, std::size_t size_bytes, Stream stream) {
  start_download(destination, source, size_bytes, stream);
  synchronize(stream);
}

void Gpu::release(std::byte* memory, Stream stream) noexcept {
  {
    const std::lock_guard lock(mutex_);
    holdings_.erase(memory);
  }
  give_memory(memory, stream);
}

}  // namespace tessera::gpu
