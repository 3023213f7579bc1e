#include "backends/hip/runtime/rocblas.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <system_error>

#include "backends/hip/runtime/rocblas_api.h"
#include "backends/hip/runtime/rocm.h"
#include "tessera/error.h"

namespace tessera::hip {
namespace {

namespace fs = std::filesystem;

struct LoadedRocBlas {
  blas::Api api;
  RocBlasState state;
};

/// $ROCBLAS_TENSILE_LIBPATH, or rocblas/library beside the library's file.
std::string find_kernels_folder(const void* symbol) {
  if (const char* named = std::getenv("ROCBLAS_TENSILE_LIBPATH")) return named;
  Dl_info info;
  if (::dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const fs::path file = fs::canonical(info.dli_fname, error);
  return error ? std::string() : (file.parent_path() / "rocblas" / "library").string();
}

LoadedRocBlas load_library() {
  LoadedRocBlas loaded;
  constexpr std::array kSonames = {"librocblas.so.5", "librocblas.so.4", "librocblas.so.0", "librocblas.so"};
  const SharedLibrary library = find_rocm_library("TESSERA_ROCBLAS_LIBRARY", kSonames);
  if (!library.is_open()) {
    loaded.state.unavailable_reason =
        "rocBLAS was not found (librocblas.so.5, .4 or .0). Install ROCm's package rocblas, put its folder "
        "into LD_LIBRARY_PATH, or name the file in TESSERA_ROCBLAS_LIBRARY";
    return loaded;
  }
  loaded.state.library = library.name();
  bool complete = true;
#define TESSERA_RESOLVE(name, parameters) complete = library.resolve(#name, loaded.api.name) && complete;
  TESSERA_ROCBLAS_FUNCTIONS(TESSERA_RESOLVE)
#undef TESSERA_RESOLVE
  if (!complete) {
    loaded.state.unavailable_reason = fmt::format("{} lacks functions of ROCm 5", library.name());
    return loaded;
  }
  loaded.state.kernels_folder = find_kernels_folder(library.symbol("rocblas_create_handle"));
  return loaded;
}

const LoadedRocBlas& library() {
  static const LoadedRocBlas loaded = load_library();
  return loaded;
}

const blas::Api& api() { return library().api; }

void check_status(blas::Status status, const char* call) {
  if (status == blas::kSuccess || status == blas::kPerformanceDegraded) return;
  throw Error(ErrorCode::kDevice,
              fmt::format("{} of {} failed with status {}", call, library().state.library, status));
}

int real_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return blas::kReal32F;
    case DType::kF16:
      return blas::kReal16F;
    case DType::kBF16:
      return blas::kReal16BF;
    default:
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("rocBLAS multiplies f32, f16 and bf16 here, not {}", dtype_name(dtype)));
  }
}

}  // namespace

const RocBlasState& rocblas_state() { return library().state; }

std::string no_kernels_reason(const std::string& folder, const std::string& architecture) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const std::size_t found = name.find(architecture);
    if (found == std::string::npos) continue;
    // "gfx90a" is no file for gfx90, nor "gfx1100" one for gfx110.
    const std::size_t next = found + architecture.size();
    if (next == name.size() || !std::isalnum(static_cast<unsigned char>(name[next]))) return {};
  }
  return fmt::format("rocBLAS has no kernels for {} in {}", architecture,
                     folder.empty() ? "the folder of its kernels, which was not found" : folder);
}

std::string rocblas_reason_against(const std::string& architecture) {
  const RocBlasState& state = rocblas_state();
  if (!state.unavailable_reason.empty()) return state.unavailable_reason;
  return no_kernels_reason(state.kernels_folder, architecture);
}

std::optional<BlasGemm> blas_gemm(const gpu::LibraryProduct& p) {
  // Seen as column-major matrices, out^T (n, m) = w (n, k) x^T (k, m), where the memory of w is the
  // transposed (k, n) unless weight_is_transposed.
  const std::int64_t weight_rows = p.weight_is_transposed ? p.n : p.k;
  const std::int64_t lda = std::max({p.weight_stride, weight_rows, std::int64_t{1}});
  const std::int64_t ldb = std::max({p.x_stride, p.k, std::int64_t{1}});
  const std::int64_t ldd = std::max({p.out_stride, p.n, std::int64_t{1}});
  const std::int64_t largest = std::max({p.m, p.n, p.k, p.batch, lda, ldb, ldd});
  if (p.bias != nullptr || largest > std::numeric_limits<std::int32_t>::max()) return std::nullopt;
  const auto narrow = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  return BlasGemm{p.weight_is_transposed ? blas::kNoTranspose : blas::kTranspose,
                  narrow(p.n),
                  narrow(p.m),
                  narrow(p.k),
                  narrow(p.batch),
                  p.weight,
                  p.x,
                  p.out,
                  narrow(lda),
                  narrow(ldb),
                  narrow(ldd),
                  p.weight_batch_stride,
                  p.x_batch_stride,
                  p.out_batch_stride,
                  p.accumulate ? 1.0f : 0.0f};
}

RocBlasHandle::RocBlasHandle() {
  check_status(api().rocblas_create_handle(reinterpret_cast<blas::Handle*>(&handle_)),
               "rocblas_create_handle");
  // Sums by atomic additions would come in another order each time.
  check_status(api().rocblas_set_atomics_mode(static_cast<blas::Handle>(handle_), blas::kAtomicsNotAllowed),
               "rocblas_set_atomics_mode");
}

RocBlasHandle::~RocBlasHandle() { api().rocblas_destroy_handle(static_cast<blas::Handle>(handle_)); }

bool RocBlasHandle::multiply(const gpu::LibraryProduct& p, StreamHandle stream, void* workspace) {
  const std::optional<BlasGemm> g = blas_gemm(p);
  if (!g) return false;
  const auto handle = static_cast<blas::Handle>(handle_);
  check_status(api().rocblas_set_stream(handle, stream), "rocblas_set_stream");
  // Its own memory would be allocated on the way, which fails while a stream is captured.
  check_status(api().rocblas_set_workspace(handle, workspace, gpu::LibraryProducts::kWorkspaceBytes),
               "rocblas_set_workspace");
  constexpr float kAlpha = 1.0f;
  const int in = real_type(p.dtype);
  const int out = real_type(p.out_dtype);
  const blas::Status status = api().rocblas_gemm_strided_batched_ex(
      handle, g->transpose_a, blas::kNoTranspose, g->m, g->n, g->k, &kAlpha, g->a, in, g->lda, g->stride_a,
      g->b, in, g->ldb, g->stride_b, &g->beta, g->d, out, g->ldd, g->stride_d, g->d, out, g->ldd, g->stride_d,
      g->batch, blas::kReal32F, blas::kAlgorithmStandard, 0, 0);
  if (status == blas::kNotImplemented) return false;
  check_status(status, "rocblas_gemm_strided_batched_ex");
  return true;
}

RocBlas::RocBlas(HipGpu& device) : device_(device) {
  device_.make_current();
  handle_.emplace();
}

bool RocBlas::multiply(const gpu::LibraryProduct& p, Stream stream) {
  const std::lock_guard lock(mutex_);
  device_.make_current();
  void* workspace = p.workspace;
  if (workspace == nullptr) {
    if (!workspace_) {
      workspace_ = device_.allocate(kWorkspaceBytes, "the workspace of rocBLAS");
      device_.synchronize({});
    }
    workspace = workspace_.get();
  }
  return handle_->multiply(p, handle_of(stream), workspace);
}

}  // namespace tessera::hip
