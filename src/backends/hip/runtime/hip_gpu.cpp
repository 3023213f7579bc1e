#include "backends/hip/runtime/hip_gpu.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

#include "backends/hip/runtime/embedded.h"
#include "backends/hip/runtime/hiprtc.h"
#include "backends/hip/runtime/targets.h"
#include "tessera/error.h"

namespace tessera::hip {
namespace {

int attribute(int device, int which) {
  int value = 0;
  check(hip().hipDeviceGetAttribute(&value, which, device), "hipDeviceGetAttribute");
  return value;
}

EventHandle event_of(gpu::EventHandle event) { return static_cast<EventHandle>(event); }

/// "gfx90a:sramecc+:xnack-"
std::string read_target_id(int device) {
  const HipApi& api = hip();
  const auto get = api.hipGetDevicePropertiesR0600 != nullptr ? api.hipGetDevicePropertiesR0600
                                                              : api.hipGetDeviceProperties;
  alignas(std::max_align_t) std::array<char, kMaxPropertiesBytes> properties = {};
  check(get(properties.data(), device), "hipGetDeviceProperties");
  const std::string_view target_id = target_id_in(properties);
  if (target_id.empty()) {
    throw Error(ErrorCode::kDevice,
                fmt::format("the HIP runtime ({}) does not say which architecture GPU hip:{} has; expected a "
                            "name such as gfx1100 in its properties",
                            hip_state().library, device));
  }
  return std::string(target_id);
}

class HipGraph final : public gpu::Graph {
 public:
  HipGraph(HipGpu& device, StreamHandle stream, const std::function<void()>& work);
  ~HipGraph() override;
  HipGraph(const HipGraph&) = delete;
  HipGraph& operator=(const HipGraph&) = delete;
  void launch(Stream stream) override;

 private:
  HipGpu& device_;
  GraphHandle graph_ = nullptr;
  GraphExecHandle exec_ = nullptr;
};

}  // namespace

gpu::DeviceProperties read_properties(int device) {
  gpu::DeviceProperties p;
  std::array<char, 256> name = {};
  check(hip().hipDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device), "hipDeviceGetName");
  p.name = name.data();
  p.architecture = without_features(read_target_id(device));
  if (const Target* target = find_target(p.architecture)) p.same_isa = target->same_isa;
  p.warp_size = attribute(device, kAttributeWarpSize);
  p.num_multiprocessors = attribute(device, kAttributeMultiprocessorCount);
  p.l2_bytes = static_cast<std::size_t>(attribute(device, kAttributeL2CacheSize));
  p.shared_per_multiprocessor_bytes =
      static_cast<std::size_t>(attribute(device, kAttributeMaxSharedPerMultiprocessor));
  p.shared_per_block_bytes = static_cast<std::size_t>(attribute(device, kAttributeMaxSharedPerBlock));
  p.clock_khz = attribute(device, kAttributeClockRate);
  p.has_tensor_maps = false;
  check(hip().hipDeviceTotalMem(&p.total_memory_bytes, device), "hipDeviceTotalMem");
  return p;
}

HipGpu::HipGpu(int index) : Gpu({DeviceKind::kHip, index}) {
  make_current();
  properties_ = read_properties(index);
  has_memory_pools_ = attribute(index, kAttributeMemoryPoolsSupported) != 0;
  if (has_memory_pools_) {
    // Keep freed memory for the next call instead of giving it back at each synchronisation.
    MemPoolHandle pool = nullptr;
    check(hip().hipDeviceGetDefaultMemPool(&pool, index), "hipDeviceGetDefaultMemPool");
    unsigned long long keep_bytes = std::size_t{1} << 30;
    check(hip().hipMemPoolSetAttribute(pool, kMemPoolReleaseThreshold, &keep_bytes),
          "hipMemPoolSetAttribute");
  }
  kernels_ =
      std::make_unique<gpu::KernelLibrary>(*this, hiprtc_compiler(),
                                           gpu::KernelTarget{properties_.architecture, properties_.warp_size,
                                                             embedded_sources(), embedded_modules()},
                                           BinaryCache(BinaryCache::default_folder()));
}

std::size_t HipGpu::free_memory_bytes() const {
  make_current();
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  check(hip().hipMemGetInfo(&free_bytes, &total_bytes), "hipMemGetInfo");
  return free_bytes;
}

std::byte* HipGpu::take_memory(std::size_t size_bytes, std::string_view what, Stream stream) {
  make_current();
  void* pointer = nullptr;
  const Result result = has_memory_pools_ ? hip().hipMallocAsync(&pointer, size_bytes, handle_of(stream))
                                          : hip().hipMalloc(&pointer, size_bytes);
  if (result == kErrorOutOfMemory) return nullptr;
  check(result, has_memory_pools_ ? "hipMallocAsync" : "hipMalloc", what);
  return static_cast<std::byte*>(pointer);
}

void HipGpu::give_memory(std::byte* memory, Stream stream) noexcept {
  // A failure here means that the device is lost, which the next call reports.
  const HipApi& api = hip_state().api;
  if (api.hipSetDevice(index()) != kSuccess) return;
  if (has_memory_pools_) {
    api.hipFreeAsync(memory, handle_of(stream));
  } else {
    api.hipFree(memory);
  }
}

std::shared_ptr<std::byte> HipGpu::allocate_pinned(std::size_t size_bytes, std::string_view what) {
  make_current();
  void* pointer = nullptr;
  check(hip().hipHostMalloc(&pointer, std::max<std::size_t>(size_bytes, 1), 0), "hipHostMalloc", what);
  return {static_cast<std::byte*>(pointer), [this](std::byte* p) {
            const HipApi& api = hip_state().api;
            if (api.hipSetDevice(index()) == kSuccess) api.hipHostFree(p);
          }};
}

void HipGpu::upload(void* destination, const void* source, std::size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return;
  make_current();
  check(hip().hipMemcpyAsync(destination, source, size_bytes, kCopyHostToDevice, handle_of(stream)),
        "hipMemcpyAsync to the device");
}

void HipGpu::start_download(void* destination, const void* source, std::size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return;
  make_current();
  check(hip().hipMemcpyAsync(destination, source, size_bytes, kCopyDeviceToHost, handle_of(stream)),
        "hipMemcpyAsync to the host");
}

void HipGpu::copy(void* destination, const void* source, std::size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return;
  make_current();
  check(hip().hipMemcpyAsync(destination, source, size_bytes, kCopyDeviceToDevice, handle_of(stream)),
        "hipMemcpyAsync on the device");
}

void HipGpu::fill(void* destination, unsigned char value, std::size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return;
  make_current();
  check(hip().hipMemsetD8Async(destination, value, size_bytes, handle_of(stream)), "hipMemsetD8Async");
}

void HipGpu::synchronize(Stream stream) const {
  make_current();
  check(hip().hipStreamSynchronize(handle_of(stream)), "hipStreamSynchronize");
}

Stream HipGpu::create_stream() {
  make_current();
  StreamHandle stream = nullptr;
  check(hip().hipStreamCreateWithFlags(&stream, kStreamNonBlocking), "hipStreamCreateWithFlags");
  return {stream};
}

void HipGpu::destroy_stream(Stream stream) noexcept {
  const HipApi& api = hip_state().api;
  api.hipStreamSynchronize(handle_of(stream));
  api.hipStreamDestroy(handle_of(stream));
}

gpu::EventHandle HipGpu::create_event(gpu::EventKind kind) {
  make_current();
  EventHandle event = nullptr;
  check(hip().hipEventCreateWithFlags(&event, kind == gpu::EventKind::kTimed ? 0 : kEventDisableTiming),
        "hipEventCreateWithFlags");
  return event;
}

void HipGpu::destroy_event(gpu::EventHandle event) noexcept {
  hip_state().api.hipEventDestroy(event_of(event));
}

void HipGpu::record(gpu::EventHandle event, Stream stream) {
  make_current();
  check(hip().hipEventRecord(event_of(event), handle_of(stream)), "hipEventRecord");
}

void HipGpu::wait_for(gpu::EventHandle event) {
  check(hip().hipEventSynchronize(event_of(event)), "hipEventSynchronize");
}

double HipGpu::elapsed_ms(gpu::EventHandle start, gpu::EventHandle stop) {
  float ms = 0;
  check(hip().hipEventElapsedTime(&ms, event_of(start), event_of(stop)), "hipEventElapsedTime");
  return ms;
}

std::unique_ptr<gpu::Graph> HipGpu::capture(Stream stream, const std::function<void()>& work) {
  return std::make_unique<HipGraph>(*this, handle_of(stream), work);
}

gpu::CodeFit HipGpu::fit_of(std::string_view architecture) const {
  if (architecture == properties_.architecture) return gpu::CodeFit::kExact;
  return runs_code_for(properties_.architecture, architecture) ? gpu::CodeFit::kRuns : gpu::CodeFit::kNone;
}

void* HipGpu::load_module(std::span<const std::byte> image, std::string_view what) {
  const void* code = image.data();
  const Target* own = find_target(properties_.architecture);
  const Target* same = own != nullptr ? find_target(own->same_isa) : nullptr;
  if (same != nullptr && is_code_for(image, *same)) {
    const std::lock_guard lock(mutex_);
    code = relabelled_.emplace_back(relabelled_code(image, *same, *own)).data();
  }
  make_current();
  ModuleHandle module = nullptr;
  check(hip().hipModuleLoadData(&module, code), "hipModuleLoadData",
        fmt::format("{} on {}", what, properties_.architecture));
  return module;
}

gpu::Kernel HipGpu::find_function(void* module, const std::string& entry, gpu::CodeFit,
                                  std::string_view what) {
  make_current();
  gpu::Kernel kernel;
  kernel.name = entry;
  FunctionHandle function = nullptr;
  check(hip().hipModuleGetFunction(&function, static_cast<ModuleHandle>(module), entry.c_str()),
        "hipModuleGetFunction", what);
  const auto read = [&](int& value, int which) {
    check(hip().hipFuncGetAttribute(&value, which, function), "hipFuncGetAttribute", what);
  };
  int shared_bytes = 0;
  read(shared_bytes, kFunctionSharedBytes);
  read(kernel.num_registers, kFunctionNumRegisters);
  read(kernel.local_bytes, kFunctionLocalBytes);
  kernel.function = function;
  kernel.shared_bytes = static_cast<std::size_t>(shared_bytes);
  return kernel;
}

void HipGpu::allow_shared(gpu::Kernel& kernel, std::size_t dynamic_bytes, std::string_view what) {
  // Nothing has to be asked for: launches may take all that a compute unit has.
  if (kernel.shared_bytes + dynamic_bytes > properties_.shared_per_block_bytes) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("kernel {} of {} takes {} bytes of shared memory; {} has {} for a block",
                            kernel.name, what, kernel.shared_bytes + dynamic_bytes, properties_.name,
                            properties_.shared_per_block_bytes));
  }
  kernel.dynamic_shared_bytes = std::max(kernel.dynamic_shared_bytes, dynamic_bytes);
}

void HipGpu::launch(const gpu::Kernel& kernel, const gpu::LaunchShape& shape,
                    std::span<void* const> parameters, Stream stream, std::string_view problem) {
  make_current();
  const auto describe = [&] {
    return fmt::format("{} (grid {}, block {}, {} B shared): {}", kernel.name, fmt::join(shape.grid, " x "),
                       fmt::join(shape.block, " x "), shape.shared_bytes, problem);
  };
  // HIP counts threads in 32 bits.
  for (std::size_t i = 0; i < 3; ++i) {
    if (std::uint64_t{shape.grid[i]} * shape.block[i] > std::numeric_limits<std::uint32_t>::max()) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("an AMD GPU takes fewer than 2^32 threads along each side of a grid, not {}; "
                              "use smaller tensors or a smaller batch",
                              describe()));
    }
  }
  const Result result = hip().hipModuleLaunchKernel(
      static_cast<FunctionHandle>(kernel.function), shape.grid[0], shape.grid[1], shape.grid[2],
      shape.block[0], shape.block[1], shape.block[2], static_cast<unsigned>(shape.shared_bytes),
      handle_of(stream), const_cast<void**>(parameters.data()), nullptr);
  if (result != kSuccess) check(result, "hipModuleLaunchKernel", describe());
}

HipGraph::HipGraph(HipGpu& device, StreamHandle stream, const std::function<void()>& work) : device_(device) {
  device.make_current();
  check(hip().hipStreamBeginCapture(stream, kCaptureModeThreadLocal), "hipStreamBeginCapture");
  try {
    work();
  } catch (...) {
    GraphHandle partial = nullptr;
    hip_state().api.hipStreamEndCapture(stream, &partial);
    if (partial != nullptr) hip_state().api.hipGraphDestroy(partial);
    throw;
  }
  check(hip().hipStreamEndCapture(stream, &graph_), "hipStreamEndCapture");
  const Result result = hip().hipGraphInstantiate(&exec_, graph_, nullptr, nullptr, 0);
  if (result != kSuccess) {
    hip_state().api.hipGraphDestroy(graph_);
    check(result, "hipGraphInstantiate");
  }
}

HipGraph::~HipGraph() {
  hip_state().api.hipGraphExecDestroy(exec_);
  hip_state().api.hipGraphDestroy(graph_);
}

void HipGraph::launch(Stream stream) {
  device_.make_current();
  check(hip().hipGraphLaunch(exec_, handle_of(stream)), "hipGraphLaunch");
}

HipGpu& gpu_device(int index) {
  const int count = hip().hipInit != nullptr ? hip_state().num_devices : 0;
  if (index < 0 || index >= count) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("there is no GPU hip:{}; expected 0 to {}", index, count - 1));
  }
  static std::mutex mutex;
  // Never destroyed: when the process ends the runtime may be gone before static objects are.
  static auto& devices = *new std::vector<std::unique_ptr<HipGpu>>;
  const std::lock_guard lock(mutex);
  devices.resize(static_cast<std::size_t>(count));
  std::unique_ptr<HipGpu>& device = devices[static_cast<std::size_t>(index)];
  if (!device) device = std::make_unique<HipGpu>(index);
  return *device;
}

}  // namespace tessera::hip
