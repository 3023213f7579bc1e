#pragma once

#include <cstddef>
#include <span>
#include <string_view>

/// Puts a file's bytes into the read-only data, between `symbol` and `symbol`_end. By the assembler:
/// compilers are slow with long literals. Outside of namespaces.
#define TESSERA_EMBED(symbol, path)                                                    \
  __asm__(".section .rodata\n.balign 64\n" #symbol ":\n.incbin \"" path "\"\n" #symbol \
          "_end:\n.byte 0\n.previous\n");                                              \
  extern "C" __attribute__((visibility("hidden"))) const char symbol[];                \
  extern "C" __attribute__((visibility("hidden"))) const char symbol##_end[];

namespace tessera {

inline std::string_view embedded_text(const char* begin, const char* end) {
  return {begin, static_cast<std::size_t>(end - begin)};
}

inline std::span<const std::byte> embedded_bytes(const char* begin, const char* end) {
  return {reinterpret_cast<const std::byte*>(begin), static_cast<std::size_t>(end - begin)};
}

}  // namespace tessera
