#include "c_api/structs.h"

#include <fmt/core.h>

#include <algorithm>

namespace tessera::c_api {
namespace {

/// Larger than any struct will be: a struct_size beyond it was never set.
constexpr std::size_t kLargestStruct = 1 << 16;

std::size_t given_size(const void* given, std::size_t our_size, std::size_t first_size, const char* name) {
  if (given == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is null; expected a struct", name));
  }
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  // A size that no compiler gives would cut a pointer in two.
  if (size < first_size || size > kLargestStruct || size % sizeof(std::size_t) != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}.struct_size is {}; expected sizeof of the struct, {} in this version", name,
                            size, our_size));
  }
  return size;
}

}  // namespace

std::size_t checked_input_size(const void* given, std::size_t our_size, std::size_t first_size,
                               const char* name) {
  const std::size_t size = given_size(given, our_size, first_size, name);
  const auto* bytes = static_cast<const std::byte*>(given);
  if (size > our_size &&
      std::any_of(bytes + our_size, bytes + size, [](std::byte b) { return b != std::byte{0}; })) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} has {} bytes and uses some beyond the {} that this version of the library "
                            "knows; expected a library as new as the program's tessera.h, or zeros there",
                            name, size, our_size));
  }
  return std::min(size, our_size);
}

std::size_t checked_output_size(const void* given, std::size_t our_size, std::size_t first_size,
                                const char* name) {
  return std::min(given_size(given, our_size, first_size, name), our_size);
}

void check_flags(const char* name, std::uint64_t flags, std::uint64_t known) {
  if ((flags & ~known) != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}.flags has {:#x}, which this version of the library does not know; expected "
                            "flags of its tessera.h",
                            name, flags & ~known));
  }
}

void check_reserved(const char* name, std::int32_t reserved) {
  if (reserved != 0) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}.reserved is {}; expected 0", name, reserved));
  }
}

std::vector<const char*> c_strings(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  pointers.reserve(texts.size());
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  return pointers;
}

}  // namespace tessera::c_api
