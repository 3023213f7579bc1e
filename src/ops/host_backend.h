#pragma once

#include "ops/backend.h"

namespace tessera {

/// The memory half of a backend whose device is the host.
class HostOpsBackend : public OpsBackend {
 public:
  Device device() const override { return {}; }

  DeviceBuffer allocate(std::size_t size_bytes, std::string_view what) override;
  void upload(void* destination, const void* source, std::size_t size_bytes, Stream stream) override;
  void download(void* destination, const void* source, std::size_t size_bytes, Stream stream) override;
  void fill_zero(void* destination, std::size_t size_bytes, Stream stream) override;
  void synchronize(Stream) override {}

  /// Refers to `weight` in place if its elements are aligned, otherwise copies it.
  Weight make_weight(const HostWeight& weight) override;

  /// Null: a call on the host costs nothing that recording would save.
  std::unique_ptr<RecordedWork> record(const std::function<void()>&, Stream) override { return nullptr; }
};

}  // namespace tessera
