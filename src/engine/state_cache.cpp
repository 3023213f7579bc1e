#include "engine/state_cache.h"

#include <fmt/core.h>

#include <algorithm>

#include "tessera/error.h"

namespace tessera {
namespace {

std::size_t state_bytes(const ModelConfig& config, std::int64_t num_slots) {
  const RecurrentStateSize size = recurrent_state_size(config);
  const auto layers = std::ranges::count(config.layer_has_attention, false);
  constexpr double kMaxBytes = 0x1p62;  // far beyond any memory; the product stays below 2^64
  const double bytes = static_cast<double>(layers) * static_cast<double>(num_slots) *
                       static_cast<double>(size.conv + size.matrix) * sizeof(float);
  if (bytes > kMaxBytes) {
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("the states of {} sequences take {:.3g} bytes; ask for a smaller max_batch",
                            num_slots, bytes));
  }
  return static_cast<std::size_t>(layers * num_slots * (size.conv + size.matrix)) * sizeof(float);
}

}  // namespace

StateCache::StateCache(const ModelConfig& config, std::int64_t num_slots, OpsBackend& ops)
    : memory_(ops.allocate(state_bytes(config, num_slots),
                           "states of layers without attention (max_batch sets their number)")) {
  for (std::int64_t slot = num_slots; slot-- > 0;) free_.push_back(static_cast<std::int32_t>(slot));
  if (memory_.size_bytes == 0) return;
  const RecurrentStateSize size = recurrent_state_size(config);
  float* next = memory_.as<float>();
  for (int layer = 0; layer < config.num_layers; ++layer) {
    RecurrentStateView& view = layers_.emplace_back();
    if (has_attention(config, layer)) continue;
    view.conv = next;
    view.matrix = next + num_slots * size.conv;
    next = view.matrix + num_slots * size.matrix;
  }
}

StateSlot& StateSlot::operator=(StateSlot&& other) noexcept {
  if (this != &other) {
    release();
    cache_ = other.cache_;
    index_ = std::exchange(other.index_, kNone);
  }
  return *this;
}

void StateSlot::take() {
  if (index_ != kNone) return;
  if (cache_->free_.empty()) {
    throw Error(ErrorCode::kOutOfMemory, "no state is left for a sequence; expected one for each that runs");
  }
  index_ = cache_->free_.back();
  cache_->free_.pop_back();
}

void StateSlot::release() noexcept {
  if (index_ != kNone) cache_->free_.push_back(std::exchange(index_, kNone));
}

}  // namespace tessera
