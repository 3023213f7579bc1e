#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "c_api/structs.h"
#include "tessera/model.h"
#include "tessera/structured_output.h"
#include "tessera/tessera.h"

namespace tessera::c_api {

/// What a tessera_model and its engines share.
class SharedModel {
 public:
  explicit SharedModel(Model model) : model_(std::move(model)) {}

  const Model& model() const { return model_; }

  /// Made when first asked for: it looks at every token.
  const StructuredOutput& structured_output() {
    const std::lock_guard lock(mutex_);
    if (!structured_output_) structured_output_.emplace(model_);
    return *structured_output_;
  }

 private:
  Model model_;
  std::mutex mutex_;  // guards what follows
  std::optional<StructuredOutput> structured_output_;
};

}  // namespace tessera::c_api

struct tessera_model {
  explicit tessera_model(tessera::Model model)
      : shared(std::make_shared<tessera::c_api::SharedModel>(std::move(model))) {}
  explicit tessera_model(tessera::LanguageModel model) : tessera_model(model.model()) {
    with_cache.emplace(std::move(model));
  }

  const tessera::Model& model() const { return shared->model(); }
  const tessera::ModelInfo& info() const { return with_cache ? with_cache->info() : model().info(); }

  /// Throws Error{kInvalidArgument} if it has none.
  tessera::LanguageModel& language_model() {
    if (!with_cache) {
      throw tessera::Error(
          tessera::ErrorCode::kInvalidArgument,
          "the model was opened with TESSERA_MODEL_WITHOUT_CACHE; expected one with a cache, "
          "or an engine over it");
    }
    return *with_cache;
  }

  std::shared_ptr<tessera::c_api::SharedModel> shared;
  std::optional<tessera::LanguageModel> with_cache;
};
