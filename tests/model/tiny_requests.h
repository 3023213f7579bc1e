#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/engine.h"

namespace tessera {

inline Model tiny_model(const std::string& backend = "cpu") {
  LoadOptions options;
  options.backend = backend;
  return Model::random(random_model_shape("tiny"), DType::kF32, options);
}

inline Request request_of(std::vector<std::int32_t> prompt, std::int64_t max_tokens, float temperature = 0,
                          std::uint64_t seed = 0) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  return request;
}

}  // namespace tessera
