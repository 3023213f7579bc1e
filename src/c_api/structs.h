#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "c_api/status.h"

namespace tessera::c_api {

/// Checks the struct_size of a struct that a caller made with its own version of the header: at least
/// `first_size`, that of the struct's first version, and of a longer one than ours nothing used that we don't
/// know. Returns how many bytes of it are ours. Throws Error{kInvalidArgument}.
std::size_t checked_input_size(const void* given, std::size_t our_size, std::size_t first_size,
                               const char* name);
/// The same for a struct that the library fills in: whatever is behind our part is the caller's.
std::size_t checked_output_size(const void* given, std::size_t our_size, std::size_t first_size,
                                const char* name);

/// Throws Error{kInvalidArgument} if the struct called `name` has flags that this version doesn't know.
void check_flags(const char* name, std::uint64_t flags, std::uint64_t known);

/// Throws Error{kInvalidArgument} unless a member that may get a meaning in a later version is 0.
void check_reserved(const char* name, std::int32_t reserved);

/// Size of a struct in the first version of the header that had it. A struct that grew gets a specialisation.
template <class Struct>
inline constexpr std::size_t kFirstSize = sizeof(Struct);
template <>
inline constexpr std::size_t kFirstSize<tessera_attention_problem> = offsetof(tessera_attention_problem,
                                                                              kv_scales);
template <>
inline constexpr std::size_t kFirstSize<tessera_attention_options> = offsetof(tessera_attention_options,
                                                                              num_parts);
template <>
inline constexpr std::size_t kFirstSize<tessera_attention_plan_info> = offsetof(tessera_attention_plan_info,
                                                                                num_parts);
template <>
inline constexpr std::size_t kFirstSize<tessera_attention_explanation_info> =
    offsetof(tessera_attention_explanation_info, modifier_lines);
template <>
inline constexpr std::size_t kFirstSize<tessera_model_options> = offsetof(tessera_model_options, kv_dtype);
template <>
inline constexpr std::size_t kFirstSize<tessera_model_info> = offsetof(tessera_model_info, kv_dtype);
template <>
inline constexpr std::size_t kFirstSize<tessera_generate_options> = offsetof(tessera_generate_options,
                                                                             presence_penalty);
template <>
inline constexpr std::size_t kFirstSize<tessera_generation_info> = offsetof(tessera_generation_info,
                                                                            logprobs);

/// What the caller's struct says; members that its version of the header lacks are 0.
/// Throws Error{kInvalidArgument} that calls it `name`.
template <class Struct>
Struct read_struct(const Struct* given, const char* name) {
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, struct_size) == 0);
  const std::size_t size = checked_input_size(given, sizeof(Struct), kFirstSize<Struct>, name);
  Struct ours{};
  std::memcpy(&ours, given, size);
  ours.struct_size = sizeof(Struct);
  return ours;
}

/// The same, and all members 0 for a null pointer.
template <class Struct>
Struct read_optional_struct(const Struct* given, const char* name) {
  return given == nullptr ? Struct{} : read_struct(given, name);
}

/// Writes as much of `ours` as the caller's struct holds, but for its struct_size.
template <class Struct>
void write_struct(Struct* given, const Struct& ours, const char* name) {
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, struct_size) == 0);
  const std::size_t size = checked_output_size(given, sizeof(Struct), kFirstSize<Struct>, name);
  constexpr std::size_t kBegin = sizeof(std::size_t);
  std::memcpy(reinterpret_cast<std::byte*>(given) + kBegin,
              reinterpret_cast<const std::byte*>(&ours) + kBegin, size - kBegin);
}

/// The elements of an array that may be null if it has none. Throws Error{kInvalidArgument} that names it.
template <class T>
std::span<const T> array(const T* data, std::size_t size, const char* name) {
  if (size > 0) required(data, name);
  return {data, size};
}

/// Pointers to the texts, which must outlive them.
std::vector<const char*> c_strings(const std::vector<std::string>& texts);

}  // namespace tessera::c_api
