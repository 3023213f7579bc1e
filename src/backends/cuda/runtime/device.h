#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "backends/cuda/runtime/driver.h"
#include "tessera/device.h"

namespace tessera::cuda {

/// What a GPU has, as the driver says.
struct DeviceProperties {
  std::string name;
  int compute_capability = 0;  ///< 10 * major + minor: 80, 90, 120
  int num_multiprocessors = 0;
  std::size_t total_memory_bytes = 0;
  std::size_t l2_bytes = 0;
  std::size_t shared_per_multiprocessor_bytes = 0;
  std::size_t shared_per_block_bytes = 0;  ///< most that one block may ask for
  int clock_khz = 0;                       ///< highest SM clock
};

/// One GPU: its context, its memory and who holds it. Lives until the process ends; safe to use from several
/// threads.
class GpuDevice {
 public:
  explicit GpuDevice(int index);

  int index() const { return index_; }
  Device device() const { return {DeviceKind::kCuda, index_}; }
  const DeviceProperties& properties() const { return properties_; }

  /// Makes this device's context the calling thread's. Every function below does so itself.
  void make_current() const;

  /// Device memory, ordered in `stream` when the driver has memory pools; aligned to 256 bytes. `what` names
  /// the holder in later out-of-memory messages. Throws Error{kOutOfMemory}: size asked for, free, and the
  /// largest holders. The memory goes back, in the order of the same stream, with the last owner.
  std::shared_ptr<std::byte> allocate(std::size_t size_bytes, std::string_view what,
                                      StreamHandle stream = nullptr);

  /// Page-locked host memory.
  std::shared_ptr<std::byte> allocate_pinned(std::size_t size_bytes, std::string_view what);

  std::size_t free_memory_bytes() const;

  void upload(void* destination, const void* source, std::size_t size_bytes, StreamHandle stream);
  void download(void* destination, const void* source, std::size_t size_bytes, StreamHandle stream);
  void copy(void* destination, const void* source, std::size_t size_bytes, StreamHandle stream);
  void fill(void* destination, unsigned char value, std::size_t size_bytes, StreamHandle stream);
  void synchronize(StreamHandle stream) const;

 private:
  struct Holding {
    std::size_t size_bytes;
    std::string what;
  };

  void release(std::byte* pointer, StreamHandle stream) noexcept;
  std::string largest_holders() const;

  int index_;
  DeviceOrdinal ordinal_ = 0;
  Context context_ = nullptr;
  bool has_memory_pools_ = false;
  DeviceProperties properties_;
  mutable std::mutex mutex_;
  std::unordered_map<std::byte*, Holding> holdings_;  // guarded by mutex_
};

/// GPU `index` as the driver counts them, opened on first use. Throws Error{kInvalidArgument} for an index
/// that is not there, Error{kDevice} if the driver can't open it.
GpuDevice& gpu_device(int index);

/// The GPU for tensors in the memory of `device`: those in CPU memory go to the first.
GpuDevice& gpu_for(const Device& device);

inline StreamHandle handle_of(Stream stream) { return static_cast<StreamHandle>(stream.handle); }

inline constexpr std::int64_t kMaxGridYz = 65535;  // of a grid's second and third dimension

/// A stream of its own; destroyed with the object.
class OwnedStream {
 public:
  explicit OwnedStream(GpuDevice& device);
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  StreamHandle handle() const { return handle_; }

 private:
  StreamHandle handle_ = nullptr;
};

/// Times work on a stream: record() twice, then elapsed_ms() waits for the second.
class GpuTimer {
 public:
  explicit GpuTimer(GpuDevice& device);
  ~GpuTimer();
  GpuTimer(const GpuTimer&) = delete;
  GpuTimer& operator=(const GpuTimer&) = delete;
  void start(StreamHandle stream);
  void stop(StreamHandle stream);
  double elapsed_ms();

 private:
  EventHandle start_ = nullptr;
  EventHandle stop_ = nullptr;
};

/// Work captured from a stream, to be launched again as a whole.
class GpuGraph {
 public:
  /// Captures what `work` puts into `stream`. An exception from `work` ends the capture and is passed on.
  GpuGraph(GpuDevice& device, StreamHandle stream, const std::function<void()>& work);
  ~GpuGraph();
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;
  void launch(StreamHandle stream);

 private:
  GpuDevice* device_;
  GraphHandle graph_ = nullptr;
  GraphExecHandle exec_ = nullptr;
};

}  // namespace tessera::cuda
