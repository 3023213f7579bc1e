#include "core/aligned_memory.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <new>
#include <string>

#include "core/control_groups.h"
#include "tessera/error.h"

namespace tessera {
namespace {

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }

/// Asks for large pages, which are several times quicker to get and miss the TLB less often. Only advice:
/// where the system has none to give, nothing changes.
void advise_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t size_bytes) {
#ifdef MADV_HUGEPAGE
  const std::uintptr_t page = page_bytes();
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page;
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(memory) + size_bytes) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

std::uint64_t available_in_the_machine() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  for (std::uint64_t kib = 0; meminfo >> key >> kib;) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(meminfo, unit);
  }
  return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes();
}

/// What `ulimit -v` leaves of addresses.
std::uint64_t available_addresses() {
  rlimit limit{};
  std::uint64_t pages = 0;
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return ~std::uint64_t{0};
  std::ifstream("/proc/self/statm") >> pages;
  return limit.rlim_cur - std::min<std::uint64_t>(pages * page_bytes(), limit.rlim_cur);
}

}  // namespace

std::uint64_t available_memory_bytes() {
  const std::uint64_t bytes = std::min(available_in_the_machine(), available_addresses());
  return std::min(bytes, control_group_limits().free_memory_bytes.value_or(bytes));
}

std::shared_ptr<std::byte> allocate_aligned(std::size_t size_bytes, std::string_view what) {
  constexpr std::size_t kAlignment = 256;  // as GPUs align memory: copies there keep the offset
  constexpr std::size_t kAskFrom = std::size_t{64} << 20;  // asking costs more than a small allocation
  if (size_bytes == 0) return nullptr;
  void* memory = nullptr;
  if (size_bytes < kAskFrom || size_bytes <= available_memory_bytes()) {
    memory = ::operator new (size_bytes, std::align_val_t{kAlignment}, std::nothrow);
  }
  if (memory == nullptr) {
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("{} needs {:.1f} MB, but only {:.1f} MB of memory are available", what,
                            static_cast<double>(size_bytes) / 1e6,
                            static_cast<double>(available_memory_bytes()) / 1e6));
  }
  if (size_bytes >= kAskFrom) advise_huge_pages(memory, size_bytes);
  return {static_cast<std::byte*>(memory),
          [](std::byte* p) { ::operator delete (p, std::align_val_t{kAlignment}); }};
}

std::size_t checked_product(std::initializer_list<std::int64_t> factors, std::string_view what) {
  std::size_t product = 1;
  for (const std::int64_t factor : factors) {
    if (factor < 0 || __builtin_mul_overflow(product, static_cast<std::size_t>(factor), &product)) {
      double size = 1;
      for (const std::int64_t f : factors) size *= static_cast<double>(f);
      throw Error(ErrorCode::kOutOfMemory,
                  fmt::format("{} would need {:.3g} bytes, more than this machine can address", what, size));
    }
  }
  return product;
}

}  // namespace tessera
