// Any bytes as a GGUF file: a checkpoint whose tensors lie within them or an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "model/checkpoint/gguf_checkpoint.h"
#include "tessera/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  try {
    const tessera::Checkpoint checkpoint = tessera::parse_gguf_checkpoint(file, "input", {});
    for (const auto& [name, tensor] : checkpoint.tensors) {
      if (tensor.data < file.data() || tensor.data + tensor.size_bytes > file.data() + size) std::abort();
    }
  } catch (const tessera::Error&) {
  }
  return 0;
}
