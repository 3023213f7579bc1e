#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/gguf_writer.h"

namespace tessera {

/// A model as a GGUF file holds it.
struct GgufModel {
  Checkpoint checkpoint;            ///< the model that it was made of, whose files the tensors point into
  GgufMetadata metadata;            ///< without the file's type
  std::vector<GgufTensor> tensors;  ///< by name; vectors as F32, matrices as they are stored
  /// What tensors of these names point to.
  std::map<std::string, std::vector<float>> made;
};

/// The model of a Hugging Face folder under GGUF's names and in its order of rows. Throws what
/// open_checkpoint throws, Error{kIo} if there is no tokenizer, and Error{kUnsupported} naming what a GGUF
/// file can't say: an activation, a sliding window in some of the layers, a RoPE scaling's setting, tokens, a
/// tokenizer.
GgufModel gguf_model_of_folder(const std::filesystem::path& folder);

}  // namespace tessera
