#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/drawable_tokens.h"
#include "model/checkpoint/checkpoint.h"
#include "model/weights.h"
#include "ops/backend.h"
#include "tessera/model.h"

namespace tessera {

/// What a Model's copies, and the engines over it, share. Nothing changes after it is made but the device's
/// queue, which step_mutex() guards. Members are destroyed from the last to the first: each refers to those
/// above it.
class LoadedModel {
 public:
  /// `memory` holds random weights; null for files.
  LoadedModel(Checkpoint checkpoint, std::shared_ptr<std::byte> memory, const LoadOptions& options);

  /// Throws what making the model would if its backend or device is not there.
  static void require_device(const LoadOptions& options);

  const ModelConfig& config() const { return checkpoint_.config; }
  const ModelWeights& weights() const { return weights_; }
  OpsBackend& ops() const { return *ops_; }
  const std::string& attention_backend() const { return attention_backend_; }
  DType activation_dtype() const { return info_.activation_dtype; }
  const ModelInfo& info() const { return info_; }
  const ChatTemplateData& chat() const { return checkpoint_.chat; }
  const DrawableTokens& drawable() const { return drawable_; }
  /// What ends a text, ascending.
  const std::vector<std::int32_t>& end_tokens() const { return end_tokens_; }

  /// Null if there is none.
  const Tokenizer* tokenizer() const { return checkpoint_.tokenizer.get(); }
  /// Throws Error{kUnsupported} if there is none.
  const Tokenizer& require_tokenizer() const;

  /// Held by whoever allocates on the device or gives it work.
  std::mutex& step_mutex() { return step_mutex_; }

 private:
  void describe(const std::string& backend);

  std::shared_ptr<std::byte> memory_;
  Checkpoint checkpoint_;
  std::unique_ptr<OpsBackend> ops_;
  ModelWeights weights_;
  std::string attention_backend_;
  DrawableTokens drawable_;
  std::vector<std::int32_t> end_tokens_;
  ModelInfo info_;
  std::mutex step_mutex_;
};

}  // namespace tessera
