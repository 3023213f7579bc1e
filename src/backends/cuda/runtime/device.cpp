#include "backends/cuda/runtime/device.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "tessera/error.h"

namespace tessera::cuda {
namespace {

DevicePointer address(const void* pointer) { return reinterpret_cast<DevicePointer>(pointer); }

int attribute(DeviceOrdinal device, int which) {
  int value = 0;
  check(driver().cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

DeviceProperties read_properties(DeviceOrdinal device) {
  DeviceProperties p;
  std::array<char, 256> name = {};
  check(driver().cuDeviceGetName(name.data(), static_cast<int>(name.size()), device), "cuDeviceGetName");
  p.name = name.data();
  p.compute_capability = 10 * attribute(device, kAttributeComputeCapabilityMajor) +
                         attribute(device, kAttributeComputeCapabilityMinor);
  p.num_multiprocessors = attribute(device, kAttributeMultiprocessorCount);
  p.l2_bytes = static_cast<std::size_t>(attribute(device, kAttributeL2CacheSize));
  p.shared_per_multiprocessor_bytes =
      static_cast<std::size_t>(attribute(device, kAttributeMaxSharedPerMultiprocessor));
  p.shared_per_block_bytes = static_cast<std::size_t>(attribute(device, kAttributeMaxSharedPerBlockOptin));
  p.clock_khz = attribute(device, kAttributeClockRate);
  check(driver().cuDeviceTotalMem(&p.total_memory_bytes, device), "cuDeviceTotalMem");
  return p;
}

}  // namespace

GpuDevice::GpuDevice(int index) : index_(index) {
  check(driver().cuDeviceGet(&ordinal_, index), "cuDeviceGet");
  check(driver().cuDevicePrimaryCtxRetain(&context_, ordinal_), "cuDevicePrimaryCtxRetain");
  properties_ = read_properties(ordinal_);
  has_memory_pools_ = attribute(ordinal_, kAttributeMemoryPoolsSupported) != 0;
  make_current();
  if (has_memory_pools_) {
    // Keep freed memory for the next call instead of giving it back at each synchronisation.
    MemPoolHandle pool = nullptr;
    check(driver().cuDeviceGetDefaultMemPool(&pool, ordinal_), "cuDeviceGetDefaultMemPool");
    unsigned long long keep_bytes = std::size_t{1} << 30;
    check(driver().cuMemPoolSetAttribute(pool, kMemPoolReleaseThreshold, &keep_bytes),
          "cuMemPoolSetAttribute");
  }
}

void GpuDevice::make_current() const { check(driver().cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }

std::size_t GpuDevice::free_memory_bytes() const {
  make_current();
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  check(driver().cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
  return free_bytes;
}

std::string GpuDevice::largest_holders() const {
  std::map<std::string, std::size_t> by_holder;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [pointer, holding] : holdings_) by_holder[holding.what] += holding.size_bytes;
  }
  std::vector<std::pair<std::size_t, std::string>> sorted;
  for (const auto& [what, size_bytes] : by_holder) sorted.emplace_back(size_bytes, what);
  std::sort(sorted.rbegin(), sorted.rend());
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(sorted.size(), 4); ++i) {
    text += fmt::format("{}{} {} MB", i == 0 ? "" : ", ", sorted[i].second, sorted[i].first >> 20);
  }
  return text.empty() ? "nothing" : text;
}

std::shared_ptr<std::byte> GpuDevice::allocate(std::size_t size_bytes, std::string_view what,
                                               StreamHandle stream) {
  if (size_bytes == 0) return nullptr;
  make_current();
  DevicePointer pointer = 0;
  Result result = has_memory_pools_ ? driver().cuMemAllocAsync(&pointer, size_bytes, stream)
                                    : driver().cuMemAlloc(&pointer, size_bytes);
  if (result == kErrorOutOfMemory) {
    throw Error(
        ErrorCode::kOutOfMemory,
        fmt::format(
            "the GPU {} has no {} MB for {}: {} of {} MB are free, and this process holds: {}. Use a smaller "
            "model, batch or context, or free memory on the GPU",
            properties_.name, (size_bytes >> 20) + 1, what, free_memory_bytes() >> 20,
            properties_.total_memory_bytes >> 20, largest_holders()));
  }
  check(result, has_memory_pools_ ? "cuMemAllocAsync" : "cuMemAlloc", what);
  auto* data = reinterpret_cast<std::byte*>(pointer);
  {
    const std::lock_guard lock(mutex_);
    holdings_.emplace(data, Holding{size_bytes, std::string(what)});
  }
  return {data, [this, stream](std::byte* p) { release(p, stream); }};
}

void GpuDevice::release(std::byte* pointer, StreamHandle stream) noexcept {
  {
    const std::lock_guard lock(mutex_);
    holdings_.erase(pointer);
  }
  // A failure here means that the context is lost, which the next call reports.
  const DriverApi& api = driver_state().api;
  if (api.cuCtxSetCurrent(context_) != kSuccess) return;
  if (has_memory_pools_) {
    api.cuMemFreeAsync(address(pointer), stream);
  } else {
    api.cuMemFree(address(pointer));
  }
}

std::shared_ptr<std::byte> GpuDevice::allocate_pinned(std::size_t size_bytes, std::string_view what) {
  make_current();
  void* pointer = nullptr;
  check(driver().cuMemAllocHost(&pointer, std::max<std::size_t>(size_bytes, 1)), "cuMemAllocHost", what);
  return {static_cast<std::byte*>(pointer), [this](std::byte* p) {
            const DriverApi& api = driver_state().api;
            if (api.cuCtxSetCurrent(context_) == kSuccess) api.cuMemFreeHost(p);
          }};
}

void GpuDevice::upload(void* destination, const void* source, std::size_t size_bytes, StreamHandle stream) {
  if (size_bytes == 0) return;
  make_current();
  check(driver().cuMemcpyHtoDAsync(address(destination), source, size_bytes, stream), "cuMemcpyHtoDAsync");
}

void GpuDevice::download(void* destination, const void* source, std::size_t size_bytes, StreamHandle stream) {
  make_current();
  if (size_bytes > 0) {
    check(driver().cuMemcpyDtoHAsync(destination, address(source), size_bytes, stream), "cuMemcpyDtoHAsync");
  }
  check(driver().cuStreamSynchronize(stream), "cuStreamSynchronize");
}

void GpuDevice::copy(void* destination, const void* source, std::size_t size_bytes, StreamHandle stream) {
  if (size_bytes == 0) return;
  make_current();
  check(driver().cuMemcpyDtoDAsync(address(destination), address(source), size_bytes, stream),
        "cuMemcpyDtoDAsync");
}

void GpuDevice::fill(void* destination, unsigned char value, std::size_t size_bytes, StreamHandle stream) {
  if (size_bytes == 0) return;
  make_current();
  check(driver().cuMemsetD8Async(address(destination), value, size_bytes, stream), "cuMemsetD8Async");
}

void GpuDevice::synchronize(StreamHandle stream) const {
  make_current();
  check(driver().cuStreamSynchronize(stream), "cuStreamSynchronize");
}

GpuDevice& gpu_device(int index) {
  const int count = driver().cuInit != nullptr ? driver_state().num_devices : 0;
  if (index < 0 || index >= count) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("there is no GPU cuda:{}; expected 0 to {}", index, count - 1));
  }
  static std::mutex mutex;
  static std::vector<std::unique_ptr<GpuDevice>> devices;
  const std::lock_guard lock(mutex);
  devices.resize(static_cast<std::size_t>(count));
  std::unique_ptr<GpuDevice>& device = devices[static_cast<std::size_t>(index)];
  if (!device) device = std::make_unique<GpuDevice>(index);
  return *device;
}

GpuDevice& gpu_for(const Device& device) {
  return gpu_device(device.kind == DeviceKind::kCuda ? device.index : 0);
}

OwnedStream::OwnedStream(GpuDevice& device) {
  device.make_current();
  check(driver().cuStreamCreate(&handle_, kStreamNonBlocking), "cuStreamCreate");
}

OwnedStream::~OwnedStream() {
  const DriverApi& api = driver_state().api;
  api.cuStreamSynchronize(handle_);
  api.cuStreamDestroy(handle_);
}

GpuTimer::GpuTimer(GpuDevice& device) {
  device.make_current();
  check(driver().cuEventCreate(&start_, 0), "cuEventCreate");
  check(driver().cuEventCreate(&stop_, 0), "cuEventCreate");
}

GpuTimer::~GpuTimer() {
  driver_state().api.cuEventDestroy(start_);
  driver_state().api.cuEventDestroy(stop_);
}

void GpuTimer::start(StreamHandle stream) { check(driver().cuEventRecord(start_, stream), "cuEventRecord"); }
void GpuTimer::stop(StreamHandle stream) { check(driver().cuEventRecord(stop_, stream), "cuEventRecord"); }

double GpuTimer::elapsed_ms() {
  float ms = 0;
  check(driver().cuEventSynchronize(stop_), "cuEventSynchronize");
  check(driver().cuEventElapsedTime(&ms, start_, stop_), "cuEventElapsedTime");
  return ms;
}

GpuGraph::GpuGraph(GpuDevice& device, StreamHandle stream, const std::function<void()>& work)
    : device_(&device) {
  device.make_current();
  check(driver().cuStreamBeginCapture(stream, kCaptureModeThreadLocal), "cuStreamBeginCapture");
  try {
    work();
  } catch (...) {
    GraphHandle partial = nullptr;
    driver_state().api.cuStreamEndCapture(stream, &partial);
    if (partial != nullptr) driver_state().api.cuGraphDestroy(partial);
    throw;
  }
  check(driver().cuStreamEndCapture(stream, &graph_), "cuStreamEndCapture");
  const Result result = driver().cuGraphInstantiateWithFlags(&exec_, graph_, 0);
  if (result != kSuccess) {
    driver_state().api.cuGraphDestroy(graph_);
    check(result, "cuGraphInstantiateWithFlags");
  }
}

GpuGraph::~GpuGraph() {
  driver_state().api.cuGraphExecDestroy(exec_);
  driver_state().api.cuGraphDestroy(graph_);
}

void GpuGraph::launch(StreamHandle stream) {
  device_->make_current();
  check(driver().cuGraphLaunch(exec_, stream), "cuGraphLaunch");
}

}  // namespace tessera::cuda
