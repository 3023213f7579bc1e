// Any text as config.json and, behind a zero byte, generation_config.json: a configuration in range or an
// Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/checkpoint/hf_config.h"
#include "model/checkpoint/hf_quantization.h"
#include "tessera/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = text.find('\0');
  const std::string_view generation = zero == text.npos ? std::string_view() : text.substr(zero + 1);
  try {
    const tessera::ModelConfig config =
        tessera::parse_hf_config(text.substr(0, zero), "config.json", generation, "generation_config.json");
    if (config.num_layers < 1 || config.num_layers > 10'000) std::abort();
    if (config.num_heads % config.num_kv_heads != 0) std::abort();
    for (const std::int32_t id : config.eos_token_ids) {
      if (id < 0 || id >= config.vocab_size) std::abort();
    }
    const auto quantization = tessera::parse_hf_quantization(text.substr(0, zero), "config.json");
    if (quantization && (quantization->block[0] < 1 || quantization->block[1] < 1)) std::abort();
  } catch (const tessera::Error&) {
  }
  return 0;
}
