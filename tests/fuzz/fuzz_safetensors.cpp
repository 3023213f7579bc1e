// Any bytes as a .safetensors file: tensors within them or an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "model/checkpoint/safetensors.h"
#include "tessera/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    for (const auto& [name, tensor] :
         tessera::parse_safetensors(std::as_bytes(std::span(data, size)), "input")) {
      if (tensor.offset > size || tensor.size_bytes > size - tensor.offset) std::abort();
    }
  } catch (const tessera::Error&) {
  }
  return 0;
}
