#include "backends/cuda/runtime/cuda_gpu.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "backends/cuda/runtime/embedded.h"
#include "backends/cuda/runtime/nvrtc.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

DevicePointer address(const void* pointer) { return reinterpret_cast<DevicePointer>(pointer); }

int attribute(DeviceOrdinal device, int which) {
  int value = 0;
  check(driver().cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

EventHandle event_of(gpu::EventHandle event) { return static_cast<EventHandle>(event); }

/// Hopper's own instructions are only in the architecture-specific target.
std::string architecture_of(int compute_capability) {
  return compute_capability == 90 ? "sm_90a" : fmt::format("sm_{}", compute_capability);
}

/// Two transfers a clock; 0 where a driver doesn't say.
double memory_bytes_per_us(DeviceOrdinal device) {
  int clock_khz = 0;
  int bus_bits = 0;
  if (driver().cuDeviceGetAttribute(&clock_khz, kAttributeMemoryClockRate, device) != kSuccess ||
      driver().cuDeviceGetAttribute(&bus_bits, kAttributeMemoryBusWidth, device) != kSuccess)
    return 0;
  return 2.0 * clock_khz * 1e-3 * bus_bits / 8;
}

gpu::DeviceProperties read_properties(DeviceOrdinal device) {
  gpu::DeviceProperties p;
  std::array<char, 256> name = {};
  check(driver().cuDeviceGetName(name.data(), static_cast<int>(name.size()), device), "cuDeviceGetName");
  p.name = name.data();
  p.compute_capability = 10 * attribute(device, kAttributeComputeCapabilityMajor) +
                         attribute(device, kAttributeComputeCapabilityMinor);
  p.architecture = architecture_of(p.compute_capability);
  p.warp_size = attribute(device, kAttributeWarpSize);
  p.num_multiprocessors = attribute(device, kAttributeMultiprocessorCount);
  p.l2_bytes = static_cast<std::size_t>(attribute(device, kAttributeL2CacheSize));
  p.shared_per_multiprocessor_bytes =
      static_cast<std::size_t>(attribute(device, kAttributeMaxSharedPerMultiprocessor));
  p.shared_per_block_bytes = static_cast<std::size_t>(attribute(device, kAttributeMaxSharedPerBlockOptin));
  p.clock_khz = attribute(device, kAttributeClockRate);
  p.memory_bytes_per_us = memory_bytes_per_us(device);
  p.has_tensor_maps = driver().cuTensorMapEncodeTiled != nullptr;
  check(driver().cuDeviceTotalMem(&p.total_memory_bytes, device), "cuDeviceTotalMem");
  return p;
}

class CudaGraph final : public gpu::Graph {
 public:
  CudaGraph(CudaGpu& device, StreamHandle stream, const std::function<void()>& work);
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void launch(Stream stream) override;

 private:
  CudaGpu& device_;
  GraphHandle graph_ = nullptr;
  GraphExecHandle exec_ = nullptr;
};

}  // namespace

CudaGpu::CudaGpu(int index) : Gpu({DeviceKind::kCuda, index}) {
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
  kernels_ =
      std::make_unique<gpu::KernelLibrary>(*this, nvrtc_compiler(),
                                           gpu::KernelTarget{properties_.architecture, properties_.warp_size,
                                                             embedded_sources(), embedded_modules()},
                                           BinaryCache(BinaryCache::default_folder()));
}

void CudaGpu::make_current() const { check(driver().cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }

std::size_t CudaGpu::free_memory_bytes() const {
  make_current();
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  check(driver().cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
  return free_bytes;
}

std::byte* CudaGpu::take_memory(std::size_t size_bytes, std::string_view what, Stream stream) {
  make_current();
  DevicePointer pointer = 0;
  const Result result = has_memory_pools_ ? driver().cuMemAllocAsync(&pointer, size_bytes, handle_of(stream))
                                          : driver().cuMemAlloc(&pointer, size_bytes);
  if (result == kErrorOutOfMemory) return nullptr;
  check(result, has_memory_pools_ ? "cuMemAllocAsync" : "cuMemAlloc", what);
  return reinterpret_cast<std::byte*>(pointer);
}

void CudaGpu::give_memory(std::byte* memory, Stream stream) noexcept {
  // A failure here means that the context is lost, which the next call reports.
  const DriverApi& api = driver_state().api;
  if (api.cuCtxSetCurrent(context_) != kSuccess) return;
  if (has_memory_pools_) {
    api.cuMemFreeAsync(address(memory), handle_of(stream));
  } else {
    api.cuMemFree(address(memory));
  }
}

std::shared_ptr<std::byte> CudaGpu::allocate_pinned(std::size_t size_bytes, std::string_view what) {
  make_current();
  void* pointer = nullptr;
  check(driver().cuMemAllocHost(&pointer, std::max<std::size_t>(size_bytes, 1)), "cuMemAllocHost", what);
  return {static_cast<std::byte*>(pointer), [this](std::byte* p) {
            const DriverApi& api = driver_state().api;
            if (api.cuCtxSetCurrent(context_) == kSuccess) api.cuMemFreeHost(p);
          }};
}

void CudaGpu::upload(void* destination, const void* source, std::size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return;
  make_current();
  check(driver().cuMemcpyHtoDAsync(address(destination), source, size_bytes, handle_of(stream)),
        "cuMemcpyHtoDAsync");
}

void CudaGpu::start_download(void* destination, const void* source, std::size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return;
  make_current();
  check(driver().cuMemcpyDtoHAsync(destination, address(source), size_bytes, handle_of(stream)),
        "cuMemcpyDtoHAsync");
}

void CudaGpu::copy(void* destination, const void* source, std::size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return;
  make_current();
  check(driver().cuMemcpyDtoDAsync(address(destination), address(source), size_bytes, handle_of(stream)),
        "cuMemcpyDtoDAsync");
}

void CudaGpu::fill(void* destination, unsigned char value, std::size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return;
  make_current();
  check(driver().cuMemsetD8Async(address(destination), value, size_bytes, handle_of(stream)),
        "cuMemsetD8Async");
}

void CudaGpu::synchronize(Stream stream) const {
  make_current();
  check(driver().cuStreamSynchronize(handle_of(stream)), "cuStreamSynchronize");
}

Stream CudaGpu::create_stream() {
  make_current();
  StreamHandle stream = nullptr;
  check(driver().cuStreamCreate(&stream, kStreamNonBlocking), "cuStreamCreate");
  return {stream};
}

void CudaGpu::destroy_stream(Stream stream) noexcept {
  const DriverApi& api = driver_state().api;
  api.cuStreamSynchronize(handle_of(stream));
  api.cuStreamDestroy(handle_of(stream));
}

gpu::EventHandle CudaGpu::create_event(gpu::EventKind kind) {
  make_current();
  EventHandle event = nullptr;
  check(driver().cuEventCreate(&event, kind == gpu::EventKind::kTimed ? 0 : kEventDisableTiming),
        "cuEventCreate");
  return event;
}

void CudaGpu::destroy_event(gpu::EventHandle event) noexcept {
  driver_state().api.cuEventDestroy(event_of(event));
}

void CudaGpu::record(gpu::EventHandle event, Stream stream) {
  make_current();
  check(driver().cuEventRecord(event_of(event), handle_of(stream)), "cuEventRecord");
}

void CudaGpu::wait_for(gpu::EventHandle event) {
  check(driver().cuEventSynchronize(event_of(event)), "cuEventSynchronize");
}

double CudaGpu::elapsed_ms(gpu::EventHandle start, gpu::EventHandle stop) {
  float ms = 0;
  check(driver().cuEventElapsedTime(&ms, event_of(start), event_of(stop)), "cuEventElapsedTime");
  return ms;
}

std::unique_ptr<gpu::Graph> CudaGpu::capture(Stream stream, const std::function<void()>& work) {
  return std::make_unique<CudaGraph>(*this, handle_of(stream), work);
}

gpu::CodeFit CudaGpu::fit_of(std::string_view architecture) const {
  if (architecture == properties_.architecture) return gpu::CodeFit::kExact;
  // "a" targets run on exactly theirs.
  const std::size_t underscore = architecture.find('_');
  if (underscore == std::string_view::npos || architecture.ends_with('a')) return gpu::CodeFit::kNone;
  const int built_for = std::stoi(std::string(architecture.substr(underscore + 1)));
  const int compute_capability = properties_.compute_capability;
  if (built_for > compute_capability) return gpu::CodeFit::kNone;
  if (architecture.starts_with("compute_")) return gpu::CodeFit::kTranslated;
  // Machine code runs on its own major version at the same or a later minor one.
  return built_for / 10 == compute_capability / 10 ? gpu::CodeFit::kRuns : gpu::CodeFit::kNone;
}

void* CudaGpu::load_module(std::span<const std::byte> image, std::string_view what) {
  std::array<char, 4096> log = {};
  std::array<int, 2> options = {kJitErrorLogBuffer, kJitErrorLogBufferSizeBytes};
  std::array<void*, 2> values = {log.data(), reinterpret_cast<void*>(log.size())};
  make_current();
  ModuleHandle module = nullptr;
  const Result result = driver().cuModuleLoadDataEx(
      &module, image.data(), static_cast<unsigned>(options.size()), options.data(), values.data());
  check(result, "cuModuleLoadDataEx", fmt::format("{} {}", what, log.data()));
  return module;
}

gpu::Kernel CudaGpu::find_function(void* module, const std::string& entry, gpu::CodeFit fit,
                                   std::string_view what) {
  make_current();
  gpu::Kernel kernel;
  kernel.name = entry;
  FunctionHandle function = nullptr;
  check(driver().cuModuleGetFunction(&function, static_cast<ModuleHandle>(module), entry.c_str()),
        "cuModuleGetFunction", what);
  const auto read = [&](int& value, int which) {
    check(driver().cuFuncGetAttribute(&value, which, function), "cuFuncGetAttribute", what);
  };
  int shared_bytes = 0;
  read(shared_bytes, kFunctionSharedBytes);
  read(kernel.num_registers, kFunctionNumRegisters);
  read(kernel.local_bytes, kFunctionLocalBytes);
  kernel.function = function;
  kernel.shared_bytes = static_cast<std::size_t>(shared_bytes);
  // What the driver translates was made for older architectures.
  kernel.can_wait = properties_.compute_capability >= 90 && fit != gpu::CodeFit::kTranslated;
  return kernel;
}

void CudaGpu::allow_shared(gpu::Kernel& kernel, std::size_t dynamic_bytes, std::string_view what) {
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  if (dynamic_bytes <= kernel.dynamic_shared_bytes || dynamic_bytes + kernel.shared_bytes <= kWithoutAsking)
    return;
  make_current();
  check(driver().cuFuncSetAttribute(static_cast<FunctionHandle>(kernel.function),
                                    kFunctionMaxDynamicSharedBytes, static_cast<int>(dynamic_bytes)),
        "cuFuncSetAttribute",
        fmt::format("{} bytes of shared memory of kernel {} of {}", dynamic_bytes, kernel.name, what));
  kernel.dynamic_shared_bytes = dynamic_bytes;
}

void CudaGpu::launch(const gpu::Kernel& kernel, const gpu::LaunchShape& shape,
                     std::span<void* const> parameters, Stream stream, std::string_view problem) {
  make_current();
  std::array<LaunchAttribute, 2> attributes;
  unsigned num_attributes = 0;
  if (shape.overlaps_prior && kernel.can_wait)
    attributes[num_attributes++] = {kLaunchProgrammaticSerialization, 0, {1}};
  if (shape.cluster_blocks > 1)
    attributes[num_attributes++] = {
        kLaunchClusterDimension, 0, {static_cast<int>(shape.cluster_blocks), 1, 1}};
  LaunchConfig config;
  config.grid_x = shape.grid[0];
  config.grid_y = shape.grid[1];
  config.grid_z = shape.grid[2];
  config.block_x = shape.block[0];
  config.block_y = shape.block[1];
  config.block_z = shape.block[2];
  config.shared_bytes = static_cast<unsigned>(shape.shared_bytes);
  config.stream = handle_of(stream);
  config.attributes = attributes.data();
  config.num_attributes = num_attributes;
  const Result result = driver().cuLaunchKernelEx(reinterpret_cast<const CUlaunchConfig_st*>(&config),
                                                  static_cast<FunctionHandle>(kernel.function),
                                                  const_cast<void**>(parameters.data()), nullptr);
  if (result == kSuccess) return;
  check(result, "cuLaunchKernelEx",
        fmt::format("{} (grid {}, block {}, {} B shared): {}", kernel.name, fmt::join(shape.grid, " x "),
                    fmt::join(shape.block, " x "), shape.shared_bytes, problem));
}

CudaGraph::CudaGraph(CudaGpu& device, StreamHandle stream, const std::function<void()>& work)
    : device_(device) {
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

CudaGraph::~CudaGraph() {
  driver_state().api.cuGraphExecDestroy(exec_);
  driver_state().api.cuGraphDestroy(graph_);
}

void CudaGraph::launch(Stream stream) {
  device_.make_current();
  check(driver().cuGraphLaunch(exec_, handle_of(stream)), "cuGraphLaunch");
}

CudaGpu& gpu_device(int index) {
  const int count = driver().cuInit != nullptr ? driver_state().num_devices : 0;
  if (index < 0 || index >= count) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("there is no GPU cuda:{}; expected 0 to {}", index, count - 1));
  }
  static std::mutex mutex;
  static std::vector<std::unique_ptr<CudaGpu>> devices;
  const std::lock_guard lock(mutex);
  devices.resize(static_cast<std::size_t>(count));
  std::unique_ptr<CudaGpu>& device = devices[static_cast<std::size_t>(index)];
  if (!device) device = std::make_unique<CudaGpu>(index);
  return *device;
}

}  // namespace tessera::cuda
