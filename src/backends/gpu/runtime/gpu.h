#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "backends/gpu/runtime/device_properties.h"
#include "backends/gpu/runtime/module_loader.h"
#include "tessera/device.h"

namespace tessera::gpu {

class KernelLibrary;

/// A mark in a stream; the driver's.
using EventHandle = void*;

enum class EventKind { kTimed, kUntimed };

/// Work captured from a stream, to be launched again as a whole.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream stream) = 0;
};

/// One GPU, whoever made it: its memory and who holds it, streams, graphs and kernels. Lives until the
/// process ends; safe to use from several threads. Everything throws Error{kDevice} where the driver fails.
class Gpu : public ModuleLoader {
 public:
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  int index() const { return device_.index; }
  const Device& device() const { return device_; }
  const DeviceProperties& properties() const { return properties_; }
  /// The kernels of this GPU.
  virtual KernelLibrary& kernels() = 0;

  // ---- Memory

  /// Device memory, ordered in `stream` where the driver has memory pools; aligned to 256 bytes; null for 0
  /// bytes. `what` names the holder in later out-of-memory messages. Throws Error{kOutOfMemory}: size asked
  /// for, free, and the largest holders. The memory goes back, in the order of the same stream, with the last
  /// owner.
  std::shared_ptr<std::byte> allocate(std::size_t size_bytes, std::string_view what, Stream stream = {});

  /// Page-locked host memory.
  virtual std::shared_ptr<std::byte> allocate_pinned(std::size_t size_bytes, std::string_view what) = 0;

  virtual std::size_t free_memory_bytes() const = 0;

  virtual void upload(void* destination, const void* source, std::size_t size_bytes, Stream stream) = 0;
  /// Ends in the stream's order; `destination` is page-locked, or the call takes until then.
  virtual void start_download(void* destination, const void* source, std::size_t size_bytes,
                              Stream stream) = 0;
  /// Has finished when the call returns, with all work before it.
  void download(void* destination, const void* source, std::size_t size_bytes, Stream stream);
  virtual void copy(void* destination, const void* source, std::size_t size_bytes, Stream stream) = 0;
  virtual void fill(void* destination, unsigned char value, std::size_t size_bytes, Stream stream) = 0;

  // ---- Streams and what is put into them

  /// A stream that does not wait for the default one.
  virtual Stream create_stream() = 0;
  /// Waits for its work.
  virtual void destroy_stream(Stream stream) noexcept = 0;
  virtual void synchronize(Stream stream) const = 0;

  virtual EventHandle create_event(EventKind kind) = 0;
  virtual void destroy_event(EventHandle event) noexcept = 0;
  virtual void record(EventHandle event, Stream stream) = 0;
  /// Returns when the work before the event has ended.
  virtual void wait_for(EventHandle event) = 0;
  /// Between two recorded events of EventKind::kTimed; the second has happened.
  virtual double elapsed_ms(EventHandle start, EventHandle stop) = 0;

  /// Captures what `work` puts into `stream`. An exception from `work` ends the capture and is passed on.
  virtual std::unique_ptr<Graph> capture(Stream stream, const std::function<void()>& work) = 0;

  /// Launches; parameters are pointers to the kernel's arguments. `problem` says what for, in errors.
  virtual void launch(const Kernel& kernel, const LaunchShape& shape, std::span<void* const> parameters,
                      Stream stream, std::string_view problem) = 0;

 protected:
  explicit Gpu(const Device& device) : device_(device) {}

  DeviceProperties properties_;  ///< filled in by the constructor of what derives from this

 private:
  struct Holding {
    std::size_t size_bytes;
    std::string what;
  };

  /// Null if there is not enough.
  virtual std::byte* take_memory(std::size_t size_bytes, std::string_view what, Stream stream) = 0;
  virtual void give_memory(std::byte* memory, Stream stream) noexcept = 0;

  void release(std::byte* memory, Stream stream) noexcept;
  std::string largest_holders() const;

  Device device_;
  mutable std::mutex mutex_;
  std::unordered_map<std::byte*, Holding> holdings_;  // guarded by mutex_
};

/// A stream of its own; destroyed with the object.
class OwnedStream {
 public:
  explicit OwnedStream(Gpu& gpu) : gpu_(gpu), stream_(gpu.create_stream()) {}
  ~OwnedStream() { gpu_.destroy_stream(stream_); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  Stream handle() const { return stream_; }

 private:
  Gpu& gpu_;
  Stream stream_;
};

/// An event of its own; destroyed with the object.
class OwnedEvent {
 public:
  OwnedEvent(Gpu& gpu, EventKind kind) : gpu_(gpu), event_(gpu.create_event(kind)) {}
  ~OwnedEvent() { gpu_.destroy_event(event_); }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  EventHandle handle() const { return event_; }

 private:
  Gpu& gpu_;
  EventHandle event_;
};

/// Times work on a stream: start(), stop(), then elapsed_ms() waits for the second.
class GpuTimer {
 public:
  explicit GpuTimer(Gpu& gpu) : gpu_(gpu), start_(gpu, EventKind::kTimed), stop_(gpu, EventKind::kTimed) {}
  void start(Stream stream) { gpu_.record(start_.handle(), stream); }
  void stop(Stream stream) { gpu_.record(stop_.handle(), stream); }
  double elapsed_ms() {
    gpu_.wait_for(stop_.handle());
    return gpu_.elapsed_ms(start_.handle(), stop_.handle());
  }

 private:
  Gpu& gpu_;
  OwnedEvent start_;
  OwnedEvent stop_;
};

/// Launches with arguments as the kernel takes them; each must have exactly the parameter's type.
template <class... Arguments>
void launch_kernel(Gpu& gpu, const Kernel& kernel, const LaunchShape& shape, Stream stream,
                   std::string_view problem, Arguments... arguments) {
  void* const pointers[] = {static_cast<void*>(&arguments)...};
  gpu.launch(kernel, shape, pointers, stream, problem);
}

}  // namespace tessera::gpu
