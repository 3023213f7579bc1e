#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "attention/tuning.h"

namespace tessera {

/// What is known of a device's attention by measurement.
struct DeviceTuning {
  TuningTable own;
  TuningTable shipped;
  bool is_off = false;                             ///< TESSERA_TUNING=off
  std::unique_ptr<const DeviceTuning> previous{};  ///< for those who still read it

  AttentionTunings tables() const { return is_off ? AttentionTunings{} : AttentionTunings{&own, &shipped}; }
};

/// The tuned shapes of one device. The user's own are one entry of the folder of compiled kernels
/// (core/binary_cache.h), which is read when it is first asked for; one that can't be read counts as none.
/// Safe to use from several threads; reading takes no lock, which a process that forks could leave locked in
/// its child.
class TuningStore {
 public:
  /// identity: all that measurements are only valid for, such as the device's size and the kernels' text:
  /// results of another are never taken. device: its name. shipped: tables as JSON, each for devices of the
  /// name that it says; they outlive the store.
  TuningStore(std::filesystem::path folder, std::span<const std::string_view> identity,
              std::string_view device, std::span<const std::string_view> shipped = {});

  ~TuningStore() { delete tuning_.load(); }
  TuningStore(const TuningStore&) = delete;
  TuningStore& operator=(const TuningStore&) = delete;

  /// Lives as long as this, whatever is remembered meanwhile.
  const DeviceTuning& get() const;

  /// Adds what was measured to the own results, for this process and later ones. Throws Error{kIo} if they
  /// can't be written.
  void remember(const TuningTable& measured) const;

 private:
  TuningTable read_own() const;

  std::filesystem::path folder_;
  std::string key_;
  std::string device_;
  std::span<const std::string_view> shipped_;
  mutable std::atomic<const DeviceTuning*> tuning_{nullptr};  // owned; null: not read yet
  mutable std::mutex writing_;
};

}  // namespace tessera
