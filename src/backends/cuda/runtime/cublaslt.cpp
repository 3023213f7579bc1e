#include "backends/cuda/runtime/cublaslt.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>

#include "backends/cuda/runtime/cublaslt_api.h"
#include "backends/cuda/runtime/toolkit.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

constexpr std::int64_t kSummandsAtOnce = 64;  // a tile's share of k, in 16-bit types

struct LoadedCublasLt {
  lt::Api api;
  CublasLtState state;
};

LoadedCublasLt load_library() {
  LoadedCublasLt loaded;
  constexpr std::array kSonames = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"};
  const SharedLibrary library = find_toolkit_library("TESSERA_CUBLASLT_LIBRARY", kSonames);
  if (!library.is_open()) {
    loaded.state.unavailable_reason =
        "cuBLASLt was not found (libcublasLt.so.13, .12 or .11). Install the CUDA toolkit's package "
        "libcublas, put its folder into LD_LIBRARY_PATH, or name the file in TESSERA_CUBLASLT_LIBRARY";
    return loaded;
  }
  loaded.state.library = library.name();
  bool complete = true;
#define TESSERA_RESOLVE(name, parameters) complete = library.resolve(#name, loaded.api.name) && complete;
  TESSERA_CUBLASLT_FUNCTIONS(TESSERA_RESOLVE)
#undef TESSERA_RESOLVE
  if (!complete)
    loaded.state.unavailable_reason = fmt::format("{} lacks functions of CUDA 11", library.name());
  return loaded;
}

const LoadedCublasLt& library() {
  static const LoadedCublasLt loaded = load_library();
  return loaded;
}

const lt::Api& api() { return library().api; }

void check_status(lt::Status status, const char* call) {
  if (status != lt::kSuccess) {
    throw Error(ErrorCode::kDevice,
                fmt::format("{} of {} failed with status {}", call, library().state.library, status));
  }
}

int real_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return lt::kReal32F;
    case DType::kF16:
      return lt::kReal16F;
    case DType::kBF16:
      return lt::kReal16BF;
    default:
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("cuBLASLt multiplies f32, f16 and bf16 here, not {}", dtype_name(dtype)));
  }
}

/// The largest power of two up to 256 that an address is a multiple of.
std::uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return address == 0 ? 256u : std::min<std::uint32_t>(256u, 1u << std::min(8, std::countr_zero(address)));
}

/// Owns one of the library's descriptors.
class OwnedDescriptor {
 public:
  explicit OwnedDescriptor(lt::Status (*destroy)(lt::Descriptor)) : destroy_(destroy) {}
  ~OwnedDescriptor() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  OwnedDescriptor(const OwnedDescriptor&) = delete;
  OwnedDescriptor& operator=(const OwnedDescriptor&) = delete;
  lt::Descriptor* out() { return &handle_; }
  lt::Descriptor get() const { return handle_; }

 private:
  lt::Status (*destroy_)(lt::Descriptor);
  lt::Descriptor handle_ = nullptr;
};

}  // namespace

/// Seen as column-major matrices, out^T (n, m) = w (n, k) x^T (k, m), where the memory of w is the transposed
/// (k, n) unless weight_is_transposed.
struct CublasLt::Plan {
  OwnedDescriptor operation{api().cublasLtMatmulDescDestroy};
  OwnedDescriptor weight{api().cublasLtMatrixLayoutDestroy};
  OwnedDescriptor x{api().cublasLtMatrixLayoutDestroy};
  OwnedDescriptor out{api().cublasLtMatrixLayoutDestroy};
  lt::Algorithm algorithm = {};
  bool usable = false;
};

const CublasLtState& cublaslt_state() { return library().state; }

CublasLt::CublasLt(CudaGpu& device, Workspace workspace) : device_(device) {
  device_.make_current();
  check_status(api().cublasLtCreate(reinterpret_cast<lt::Handle*>(&handle_)), "cublasLtCreate");
  if (workspace == Workspace::kOfEachProduct) return;
  workspace_ = device_.allocate(kWorkspaceBytes, "the workspace of cuBLASLt");
  device_.synchronize({});
}

CublasLt::~CublasLt() {
  plans_.clear();
  api().cublasLtDestroy(static_cast<lt::Handle>(handle_));
}

const CublasLt::Plan& CublasLt::plan_of(const gpu::LibraryProduct& p) {
  const std::uint32_t alignments[] = {alignment_of(p.weight), alignment_of(p.x), alignment_of(p.out)};
  const unsigned alignment_key = alignments[0] | alignments[1] << 9 | alignments[2] << 18;
  const Key key{{p.m, p.n, p.k, p.x_stride, p.weight_stride, p.out_stride, p.batch, p.x_batch_stride,
                 p.weight_batch_stride, p.out_batch_stride},
                p.dtype,
                p.out_dtype,
                p.accumulate,
                p.bias != nullptr,
                p.weight_is_transposed,
                alignment_key};
  std::unique_ptr<Plan>& plan = plans_[key];
  if (plan) return *plan;
  auto made = std::make_unique<Plan>();
  check_status(api().cublasLtMatmulDescCreate(made->operation.out(), lt::kCompute32F, lt::kReal32F),
               "cublasLtMatmulDescCreate");
  const auto set = [&](int attribute, const void* value, std::size_t bytes) {
    check_status(api().cublasLtMatmulDescSetAttribute(made->operation.get(), attribute, value, bytes),
                 "cublasLtMatmulDescSetAttribute");
  };
  if (!p.weight_is_transposed) set(lt::kDescTransA, &lt::kTranspose, sizeof lt::kTranspose);
  if (p.bias != nullptr) {
    set(lt::kDescEpilogue, &lt::kEpilogueBias, sizeof lt::kEpilogueBias);
    set(lt::kDescBiasPointer, &p.bias, sizeof p.bias);
  }
  const auto layout = [&](OwnedDescriptor& descriptor, DType dtype, std::int64_t rows, std::int64_t columns,
                          std::int64_t stride, std::int64_t batch_stride) {
    check_status(
        api().cublasLtMatrixLayoutCreate(descriptor.out(), real_type(dtype), static_cast<std::uint64_t>(rows),
                                         static_cast<std::uint64_t>(columns), std::max(stride, rows)),
        "cublasLtMatrixLayoutCreate");
    if (p.batch == 1) return;
    const auto count = static_cast<std::int32_t>(p.batch);
    check_status(
        api().cublasLtMatrixLayoutSetAttribute(descriptor.get(), lt::kLayoutBatchCount, &count, sizeof count),
        "cublasLtMatrixLayoutSetAttribute");
    check_status(api().cublasLtMatrixLayoutSetAttribute(descriptor.get(), lt::kLayoutStridedBatchOffset,
                                                        &batch_stride, sizeof batch_stride),
                 "cublasLtMatrixLayoutSetAttribute");
  };
  const std::int64_t weight_rows = p.weight_is_transposed ? p.n : p.k;
  const std::int64_t weight_columns = p.weight_is_transposed ? p.k : p.n;
  layout(made->weight, p.dtype, weight_rows, weight_columns, p.weight_stride, p.weight_batch_stride);
  layout(made->x, p.dtype, p.k, p.m, p.x_stride, p.x_batch_stride);
  layout(made->out, p.out_dtype, p.n, p.m, p.out_stride, p.out_batch_stride);

  OwnedDescriptor preference(api().cublasLtMatmulPreferenceDestroy);
  check_status(api().cublasLtMatmulPreferenceCreate(preference.out()), "cublasLtMatmulPreferenceCreate");
  const auto prefer = [&](int attribute, const void* value, std::size_t bytes) {
    check_status(api().cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, value, bytes),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  const std::uint64_t workspace_bytes = kWorkspaceBytes;
  prefer(lt::kPreferenceMaxWorkspaceBytes, &workspace_bytes, sizeof workspace_bytes);
  // Of 16-bit products over k in parts, cuBLASLt 13.0's first choice on an H200 is wrong where k is no
  // multiple of its tiles: with k = 24208, n 64 to 256 and m 1 to 16, by some tens of the summands.
  if (p.dtype != DType::kF32 && p.k % kSummandsAtOnce != 0) {
    constexpr std::uint32_t kNone = 0;
    prefer(lt::kPreferenceReductionSchemes, &kNone, sizeof kNone);
  }
  prefer(lt::kPreferenceMinAlignmentA, &alignments[0], sizeof(std::uint32_t));
  prefer(lt::kPreferenceMinAlignmentB, &alignments[1], sizeof(std::uint32_t));
  prefer(lt::kPreferenceMinAlignmentC, &alignments[2], sizeof(std::uint32_t));
  prefer(lt::kPreferenceMinAlignmentD, &alignments[2], sizeof(std::uint32_t));
  lt::HeuristicResult result = {};
  int found = 0;
  const lt::Status status = api().cublasLtMatmulAlgoGetHeuristic(
      static_cast<lt::Handle>(handle_), made->operation.get(), made->weight.get(), made->x.get(),
      made->out.get(), made->out.get(), preference.get(), 1, &result, &found);
  made->usable = status == lt::kSuccess && found > 0 && result.state == lt::kSuccess;
  made->algorithm = result.algorithm;
  plan = std::move(made);
  return *plan;
}

bool CublasLt::multiply(const gpu::LibraryProduct& p, Stream stream) {
  const std::lock_guard lock(mutex_);
  device_.make_current();
  const Plan& plan = plan_of(p);
  if (!plan.usable) return false;
  if (p.bias != nullptr) {
    check_status(api().cublasLtMatmulDescSetAttribute(plan.operation.get(), lt::kDescBiasPointer, &p.bias,
                                                      sizeof p.bias),
                 "cublasLtMatmulDescSetAttribute");
  }
  const float alpha = 1.0f;
  const float beta = p.accumulate ? 1.0f : 0.0f;
  void* const workspace = p.workspace != nullptr ? p.workspace : workspace_.get();
  check_status(
      api().cublasLtMatmul(static_cast<lt::Handle>(handle_), plan.operation.get(), &alpha, p.weight,
                           plan.weight.get(), p.x, plan.x.get(), &beta, p.out, plan.out.get(), p.out,
                           plan.out.get(), &plan.algorithm, workspace, kWorkspaceBytes, handle_of(stream)),
      "cublasLtMatmul");
  return true;
}

}  // namespace tessera::cuda
