#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/dtype.h"

namespace tessera {

/// How a Hugging Face folder stores matrices as codes and scales: what config.json says of that beyond what
/// the tensors themselves do. Which matrices are stored so is seen from their tensors alone.
struct HfQuantization {
  enum class Method { kFp8, kCompressedTensors, kGptq, kAwq, kBitsAndBytes };
  Method method = Method::kFp8;
  std::string name;                  ///< for people: "gptq, 4 bits"
  int bits = 8;                      ///< of a code of GPTQ and AWQ
  std::int64_t group_size = -1;      ///< of theirs, columns that share a scale; -1: all
  bool is_symmetric = false;         ///< whether codes of 4 bits may all have the zero point 8
  bool zero_points_less_one = true;  ///< of GPTQ: what is stored is the zero point less 1
  /// Rows and columns that share a scale where scales are neither of a row nor of the whole.
  std::array<std::int64_t, 2> block = {128, 128};
  DType dtype = DType::kBF16;  ///< the model's own, which matrices are widened to
};

/// Reads quantization_config of a config.json's text; none of a file without one, and of gpt-oss, whose
/// experts' blocks are weights as any. Throws Error{kUnsupported} for methods and settings that are not read
/// here, Error{kCorruptFile} for values that make no sense; both name `source`, the field and what was
/// expected.
std::optional<HfQuantization> parse_hf_quantization(std::string_view config_json, const std::string& source);

}  // namespace tessera
