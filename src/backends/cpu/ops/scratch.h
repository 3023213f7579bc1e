#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace tessera::cpu {

/// Scratch memory from a pool of the whole process, given back when destroyed. Fresh memory of a megabyte
/// costs as much as the work done in it: the system clears each page at its first use.
class Scratch {
 public:
  /// At least size_bytes, aligned to 64 bytes, not initialised. Throws Error{kOutOfMemory} that names `what`.
  Scratch(std::size_t size_bytes, std::string_view what);
  ~Scratch();
  Scratch(Scratch&& other) noexcept = default;
  Scratch& operator=(Scratch&& other) noexcept;

  void* data() const { return memory_.get(); }
  float* floats() const { return reinterpret_cast<float*>(memory_.get()); }

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t size_bytes_ = 0;
};

/// Scratch for rows * columns fp32 numbers.
Scratch scratch_floats(std::int64_t rows, std::int64_t columns, std::string_view what);

}  // namespace tessera::cpu
