#include "backends/cuda/attention/shipped_tunings.h"

#include <array>
#include <cstddef>

// The build names the files; the assembler puts their bytes into the read-only data.
#define TESSERA_EMBED(symbol, path)                                                    \
  __asm__(".section .rodata\n.balign 64\n" #symbol ":\n.incbin \"" path "\"\n" #symbol \
          "_end:\n.byte 0\n.previous\n");                                              \
  extern "C" __attribute__((visibility("hidden"))) const char symbol[];                \
  extern "C" __attribute__((visibility("hidden"))) const char symbol##_end[];

TESSERA_EMBED(tessera_tuned_h200, TESSERA_TUNED_H200)

namespace tessera::cuda {

std::span<const std::string_view> shipped_tunings() {
  static const std::array tables = {
      std::string_view(tessera_tuned_h200,
                       static_cast<std::size_t>(tessera_tuned_h200_end - tessera_tuned_h200)),
  };
  return tables;
}

}  // namespace tessera::cuda
