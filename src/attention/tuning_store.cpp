#include "attention/tuning_store.h"

#include <fmt/core.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "core/binary_cache.h"
#include "core/text.h"
#include "tessera/error.h"
#include "tessera/version.h"

namespace tessera {
namespace {

bool is_switched_off() {
  const char* value = std::getenv("TESSERA_TUNING");
  return value != nullptr && std::string_view(value) == "off";
}

std::string key_of(std::span<const std::string_view> identity, std::string_view device) {
  std::vector<std::string_view> parts = {"tuned attention", version(), device};
  parts.insert(parts.end(), identity.begin(), identity.end());
  return BinaryCache::make_key(parts);
}

}  // namespace

TuningStore::TuningStore(std::filesystem::path folder, std::span<const std::string_view> identity,
                         std::string_view device, std::span<const std::string_view> shipped)
    : folder_(std::move(folder)),
      key_(key_of(identity, device)),
      device_(printable(device)),
      shipped_(shipped) {}

TuningTable TuningStore::read_own() const {
  const TuningTable none = {device_, {}};
  const auto stored = BinaryCache(folder_).load(key_);
  if (!stored) return none;
  try {
    return parse_tuning({reinterpret_cast<const char*>(stored->data()), stored->size()}, "tuned shapes");
  } catch (const Error&) {
    return none;  // a new measurement replaces it
  }
}

const DeviceTuning& TuningStore::get() const {
  if (const DeviceTuning* known = tuning_.load()) return *known;
  auto tuning = std::make_unique<DeviceTuning>();
  tuning->is_off = is_switched_off();
  tuning->own = read_own();
  for (const std::string_view text : shipped_) {
    TuningTable table = parse_tuning(text, "a shipped table of tuned shapes");
    if (table.device == device_) tuning->shipped = std::move(table);
  }
  const DeviceTuning* expected = nullptr;
  if (tuning_.compare_exchange_strong(expected, tuning.get())) return *tuning.release();
  return *expected;  // another thread was sooner
}

void TuningStore::remember(const TuningTable& measured) const {
  const std::lock_guard lock(writing_);
  const DeviceTuning& before = get();
  auto tuning = std::make_unique<DeviceTuning>();
  tuning->is_off = before.is_off;
  tuning->shipped = before.shipped;
  BinaryCache cache(folder_);
  const BinaryCache::Lock folder_lock(cache);
  tuning->own = read_own();  // what another process has measured meanwhile stays
  for (const auto& [shapes, entry] : measured.entries) tuning->own.entries.insert_or_assign(shapes, entry);
  const std::string text = tuning_to_json(tuning->own);
  const std::string description =
      fmt::format("tuned attention of {}, classes of shapes: {}", device_, tuning->own.entries.size());
  if (!cache.store(key_, description, {reinterpret_cast<const std::byte*>(text.data()), text.size()}))
    throw Error(ErrorCode::kIo,
                fmt::format("the tuned shapes are not remembered: {}", cache.write_problem()));
  tuning->previous.reset(&before);
  tuning_.store(tuning.release());
}

}  // namespace tessera
