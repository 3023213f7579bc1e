#include "backends/cpu/ops/scratch.h"

#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "core/aligned_memory.h"

namespace tessera::cpu {
namespace {

class Pool {
 public:
  /// A buffer of size_bytes to four times that, or null.
  std::pair<std::shared_ptr<std::byte>, std::size_t> take(std::size_t size_bytes) {
    const std::lock_guard lock(mutex_);
    std::size_t best = free_.size();
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (free_[i].second < size_bytes || free_[i].second / 4 > size_bytes) continue;
      if (best == free_.size() || free_[i].second < free_[best].second) best = i;
    }
    if (best == free_.size()) return {};
    std::pair<std::shared_ptr<std::byte>, std::size_t> buffer = std::move(free_[best]);
    free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(best));
    kept_bytes_ -= buffer.second;
    return buffer;
  }

  void give_back(std::shared_ptr<std::byte> memory, std::size_t size_bytes) noexcept {
    const std::lock_guard lock(mutex_);
    // The oldest go first: they belong to shapes that are no longer used.
    while (!free_.empty() && (free_.size() >= kMostBuffers || kept_bytes_ + size_bytes > kMostBytes)) {
      kept_bytes_ -= free_.front().second;
      free_.erase(free_.begin());
    }
    if (size_bytes > kMostBytes) return;
    kept_bytes_ += size_bytes;
    free_.emplace_back(std::move(memory), size_bytes);  // never grows past what was reserved
  }

  Pool() { free_.reserve(kMostBuffers); }

 private:
  static constexpr std::size_t kMostBuffers = 64;
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  std::mutex mutex_;
  std::vector<std::pair<std::shared_ptr<std::byte>, std::size_t>>
      free_;                    // guarded by mutex_, the oldest first
  std::size_t kept_bytes_ = 0;  // guarded by mutex_
};

Pool& pool() {
  static Pool instance;
  return instance;
}

}  // namespace

Scratch::Scratch(std::size_t size_bytes, std::string_view what) {
  constexpr std::size_t kGranularity = 4096;  // sizes that differ by little share buffers
  if (size_bytes == 0) return;
  std::tie(memory_, size_bytes_) = pool().take(size_bytes);
  if (memory_ != nullptr) return;
  size_bytes_ = (size_bytes + kGranularity - 1) / kGranularity * kGranularity;
  memory_ = allocate_aligned(size_bytes_, what);
}

Scratch::~Scratch() {
  if (memory_ != nullptr) pool().give_back(std::move(memory_), size_bytes_);
}

Scratch& Scratch::operator=(Scratch&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

Scratch scratch_floats(std::int64_t rows, std::int64_t columns, std::string_view what) {
  return Scratch(checked_product({rows, columns, sizeof(float)}, what), what);
}

}  // namespace tessera::cpu
