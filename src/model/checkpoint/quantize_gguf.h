#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "tessera/dtype.h"

namespace tessera {

/// The names of the mixes of formats that quantize_gguf knows: "q8_0", "q4_k_m", ...
std::vector<std::string> quantization_mixes();

/// Why quantize_gguf takes no mix of this name, with those that it takes; empty if it takes it.
std::string mix_problem(std::string_view name);

/// The format in which a mix stores a matrix of a model: of Checkpoint's name
/// ("layers.3.mlp.down_proj.weight", "lm_head.weight"), with rows of so many columns. The mixes are
/// llama.cpp's: matrices that matter more get more bits, and rows that are not whole blocks of 256 a format
/// of blocks of 32, or F16 if not even those fit. Throws Error{kInvalidArgument} that lists the mixes for a
/// name that is none.
DType mixed_dtype(std::string_view mix, std::string_view tensor, std::int64_t columns,
                  const ModelConfig& config);

struct QuantizedSizes {
  std::uint64_t bytes_before = 0, bytes_after = 0;  ///< of all tensors
};

/// Writes the model of a Hugging Face folder or of a GGUF file (or of the first of its parts) to the GGUF
/// file `out`, matrices stored as `mix` says, all else as it is; a folder's vectors as F32. The file appears
/// under its name when it is whole. on_progress gets the bytes of tensors done and of all, and may throw to
/// cancel. Throws what open_checkpoint and gguf_model_of_folder throw, Error{kInvalidArgument} for a mix that
/// is none or a number that a format can't hold, and Error{kIo} if there is a file `out` already or it can't
/// be written.
QuantizedSizes quantize_gguf(const std::filesystem::path& in, std::string_view mix,
                             const std::filesystem::path& out,
                             const std::function<void(std::uint64_t, std::uint64_t)>& on_progress = {});

}  // namespace tessera
