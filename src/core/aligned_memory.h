#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string_view>

namespace tessera {

/// Bytes of main memory that can still be taken without swapping, as the operating system estimates it,
/// within the limits of this process and of its control groups.
std::uint64_t available_memory_bytes();

/// Main memory aligned to 256 bytes, not initialised; null for 0 bytes. Throws Error{kOutOfMemory} with the
/// size, what is available and `what` it was for. Asks what is available first, because the system hands out
/// more addresses than it has memory and would kill the process later.
std::shared_ptr<std::byte> allocate_aligned(std::size_t size_bytes, std::string_view what);

/// a * b * c …, or Error{kOutOfMemory} that names `what` if it does not fit.
std::size_t checked_product(std::initializer_list<std::int64_t> factors, std::string_view what);

}  // namespace tessera
