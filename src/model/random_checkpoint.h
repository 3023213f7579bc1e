#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "model/checkpoint/checkpoint.h"
#include "tessera/model.h"

namespace tessera {

/// A checkpoint whose tensors lie in memory of its own.
struct RandomCheckpoint {
  Checkpoint checkpoint;
  std::shared_ptr<std::byte> memory;  ///< what the tensors point into
};

/// A checkpoint of the Llama architecture with random matrices, uniform with variance 1 / in_features so that
/// activations keep their size through the layers, norm weights of 1 in fp32, biases of 0 and no tokenizer.
/// The values depend on nothing but the shape and weight_dtype (one of weight_dtypes()). Throws
/// Error{kInvalidArgument} for a size that makes no sense, Error{kOutOfMemory} with the bytes that the
/// weights take.
RandomCheckpoint make_random_checkpoint(const RandomModelShape& shape, DType weight_dtype);

/// The same with matrices of the types that a mix of quantize_gguf gives them ("q4_k_m").
RandomCheckpoint make_random_checkpoint(const RandomModelShape& shape, std::string_view mix);

/// The same of the model that a config.json of Hugging Face's describes, or the one in a folder. `type` is
/// that of a mix, or else a dtype's name. Throws as parse_hf_config() does, too.
RandomCheckpoint make_random_checkpoint(const std::filesystem::path& config_json, std::string_view type);

}  // namespace tessera
