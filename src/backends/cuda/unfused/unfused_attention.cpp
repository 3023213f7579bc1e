#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>

#include "backends/cuda/attention/choose_kernel.h"
#include "backends/cuda/attention/problem_params.h"
#include "backends/cuda/attention/stage_tensors.h"
#include "backends/cuda/ceilings.h"
#include "backends/cuda/runtime/cublaslt.h"
#include "backends/cuda/runtime/device.h"
#include "backends/cuda/runtime/kernel_library.h"
#include "backends/cuda/unfused/layout.h"
#include "backends/factories.h"
#include "common/attention_unfused.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using cuda::CublasLt;
using cuda::GpuDevice;
using cuda::StreamHandle;
using cuda::UnfusedLayout;

constexpr unsigned kGatherThreads = 128;
constexpr unsigned kGatherRows = kGatherThreads / 32;  // a warp a row
constexpr unsigned kMaxScoreThreads = 256;
constexpr unsigned kMaxSoftmaxThreads = 512;

StreamHandle handle_of(Stream stream) { return static_cast<StreamHandle>(stream.handle); }

unsigned divide_up(std::int64_t a, std::int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

/// The products of one GPU, shared by all calls: each brings its own workspace.
CublasLt& products_of(GpuDevice& device) {
  static std::mutex mutex;
  // Never destroyed: when the process ends the library may be gone before static objects are.
  static auto& products = *new std::map<int, std::unique_ptr<CublasLt>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<CublasLt>& entry = products[device.index()];
  if (!entry) entry = std::make_unique<CublasLt>(device, CublasLt::Workspace::kOfEachProduct);
  return *entry;
}

/// One call on tensors in GPU memory. Each member function is one step over one part.
class Pipeline {
 public:
  Pipeline(const AttentionProblem& p, std::byte* workspace, GpuDevice& device, StreamHandle stream)
      : p_(p),
        layout_(cuda::unfused_layout(p)),
        workspace_(workspace),
        device_(device),
        library_(cuda::kernel_library(device.index())),
        products_(products_of(device)),
        stream_(stream),
        what_(to_string(p)) {
    params_.attention = cuda::problem_params(p);
    params_.q = workspace + layout_.q;
    params_.k = workspace + layout_.k;
    params_.v = workspace + layout_.v;
    params_.o = reinterpret_cast<float*>(workspace + layout_.o);
    params_.scores = reinterpret_cast<float*>(workspace + layout_.scores);
    params_.v_has_holes = reinterpret_cast<int*>(workspace + layout_.holes);
    params_.qk_stride = layout_.qk_stride;
    params_.v_stride = layout_.v_stride;
    params_.key_stride = static_cast<int>(layout_.key_stride);
  }

  void run() {
    for (std::int64_t pair = 0; pair < layout_.num_pairs; pair += pairs_) {
      pairs_ = layout_.pairs_from(pair);
      params_.first_pair = pair;
      for (std::int64_t row = 0; row < layout_.rows; row += layout_.rows_at_once) {
        params_.first_row = row;
        params_.rows = static_cast<int>(std::min(layout_.rows_at_once, layout_.rows - row));
        if (row == 0) gather_kv();
        gather("unfused_gather_q", params_.rows);
        multiply_q_k();
        over_scores("unfused_scale", kMaxScoreThreads);
        if (p_.scores.diagonal || p_.scores.boolean_mask) over_scores("unfused_mask", kMaxScoreThreads);
        over_scores(typed("unfused_softmax"), kMaxSoftmaxThreads);
        multiply_p_v();
        gather("unfused_store", params_.rows);
      }
    }
  }

 private:
  std::string typed(std::string_view step) const {
    return fmt::format("{}_{}", step, cuda::dtype_suffix(p_.q.dtype));
  }

  void launch(const std::string& entry, unsigned blocks, unsigned threads) {
    const cuda::Kernel& kernel = library_.find({"common/attention_unfused.cu", {}}, entry);
    const cuda::LaunchShape shape{{blocks, static_cast<unsigned>(pairs_), 1}, {threads, 1, 1}, 0};
    cuda::launch_kernel(library_, kernel, shape, stream_, what_, params_);
  }

  /// A step that moves rows in the problem's type, a warp each.
  void gather(std::string_view step, std::int64_t rows) {
    launch(typed(step), divide_up(rows, kGatherRows), kGatherThreads);
  }

  void gather_kv() {
    device_.fill(params_.v_has_holes, 0, static_cast<std::size_t>(4 * pairs_), stream_);
    gather("unfused_gather_kv", layout_.key_stride);
  }

  /// A step over rows of scores, a block each, four columns a thread and round.
  void over_scores(const std::string& entry, unsigned max_threads) {
    const unsigned wanted = divide_up(layout_.key_stride, 4 * 32) * 32;
    launch(entry, static_cast<unsigned>(params_.rows), std::min(wanted, max_threads));
  }

  void multiply_q_k() {
    cuda::LibraryProduct product = batch_of_products();
    product.x = params_.q;
    product.weight = params_.k;
    product.out = params_.scores;
    product.n = layout_.key_stride;
    product.k = product.x_stride = product.weight_stride = layout_.qk_stride;
    product.out_stride = layout_.key_stride;
    product.x_batch_stride = product.m * layout_.qk_stride;
    product.weight_batch_stride = layout_.key_stride * layout_.qk_stride;
    product.out_batch_stride = product.m * layout_.key_stride;
    multiply(product);
  }

  void multiply_p_v() {
    cuda::LibraryProduct product = batch_of_products();
    // 16-bit weights lie at the starts of rows of fp32 scores.
    const std::int64_t weight_stride =
        layout_.key_stride * static_cast<std::int64_t>(4 / dtype_bytes(p_.q.dtype, 1));
    product.x = params_.scores;
    product.weight = params_.v;
    product.weight_is_transposed = true;
    product.out = params_.o;
    product.n = product.weight_stride = product.out_stride = layout_.v_stride;
    product.k = layout_.key_stride;
    product.x_stride = weight_stride;
    product.x_batch_stride = product.m * weight_stride;
    product.weight_batch_stride = layout_.key_stride * layout_.v_stride;
    product.out_batch_stride = product.m * layout_.v_stride;
    multiply(product);
  }

  cuda::LibraryProduct batch_of_products() const {
    cuda::LibraryProduct product;
    product.dtype = p_.q.dtype;
    product.out_dtype = DType::kF32;
    product.m = params_.rows;
    product.batch = pairs_;
    product.workspace = workspace_ + layout_.product;
    return product;
  }

  void multiply(const cuda::LibraryProduct& product) {
    if (products_.multiply(product, stream_)) return;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("cuBLASLt has no algorithm for {} products of {} x {} x {} ({}); choose another backend",
                    product.batch, product.m, product.n, product.k, what_));
  }

  const AttentionProblem& p_;
  UnfusedLayout layout_;
  std::byte* workspace_;
  GpuDevice& device_;
  cuda::KernelLibrary& library_;
  CublasLt& products_;
  StreamHandle stream_;
  std::string what_;
  kernels::UnfusedParams params_ = {};
  std::int64_t pairs_ = 0;  ///< of the present part
};

void require_config(const char* field, std::int64_t value, std::int64_t only) {
  if (value == 0 || value == only) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("config.{} is {}; the cuda_unfused backend has only {} for this problem (or 0, automatic)",
                  field, value, only));
}

int as_int(std::int64_t value) {
  return static_cast<int>(std::min<std::int64_t>(value, std::numeric_limits<int>::max()));
}

/// Classic attention on a GPU: matrix products by cuBLASLt, and between them separate kernels over fp32
/// scores in memory. The baseline of the fused kernels and, sharing nothing with their loops, a second judge
/// of them.
class CudaUnfusedAttention final : public AttentionBackend {
 public:
  std::string_view name() const override { return "cuda_unfused"; }
  std::string_view description() const override {
    return "the classic pipeline on NVIDIA GPUs: cuBLASLt's products and separate kernels over scores in "
           "memory";
  }

  DeviceKind device_kind() const override { return DeviceKind::kCuda; }

  std::string unavailable_reason() const override {
    if (!cuda::driver_state().unavailable_reason.empty()) return cuda::driver_state().unavailable_reason;
    return cuda::cublaslt_state().unavailable_reason;
  }

  std::string unsupported_reason(const AttentionProblem& p) const override {
    if (p.device.kind == DeviceKind::kHip)
      return fmt::format("the tensors are in the memory of {}", device_name(p.device));
    if (p.batch_invariant) {
      return "it can't promise batch-invariant bits: cuBLASLt chooses its tiles, and with them the rounding, "
             "by "
             "the number of queries and keys";
    }
    return cuda::unsupported_problem(p, device_of(p.device).properties());
  }

  AttentionPlan plan(const AttentionProblem& p, const AttentionConfig& config) const override {
    const UnfusedLayout layout = cuda::unfused_layout(p);
    AttentionPlan plan;
    plan.backend = name();
    plan.kernel = "pipeline/cublaslt";
    plan.config = {as_int(layout.rows_at_once), as_int(layout.key_stride), 0, 0, 1};
    require_config("block_m", config.block_m, plan.config.block_m);
    require_config("block_n", config.block_n, plan.config.block_n);
    require_config("num_splits", config.num_splits, 1);
    plan.num_q_tiles = layout.num_pairs * divide_up(layout.rows, layout.rows_at_once);
    plan.num_kv_tiles = p.seq_len_kv > 0 ? 1 : 0;
    plan.workspace_bytes = layout.total_bytes;
    plan.notes.push_back(fmt::format("materialises {:.1f} MB of scores, {} heads of keys at a time",
                                     layout.all_scores_bytes() / 1e6, layout.pairs_at_once));
    if (p.device.kind == DeviceKind::kCpu) {
      plan.workspace_bytes += cuda::stage_problem(p, {DeviceKind::kCuda, 0}, nullptr).size_bytes;
      plan.notes.push_back("the tensors are in CPU memory: they are copied to the GPU and back");
    }
    return plan;
  }

  std::shared_ptr<std::byte> allocate_workspace(const Device& device, std::size_t size_bytes,
                                                Stream stream) const override {
    return device_of(device).allocate(size_bytes, "workspace of unfused attention", handle_of(stream));
  }

  void forward(const AttentionProblem& p, const AttentionPlan& plan, std::span<std::byte> workspace,
               Stream stream) const override {
    GpuDevice& device = device_of(p.device);
    const auto run = [&](const AttentionProblem& problem) {
      const std::int64_t tokens_q = problem.ragged_q ? problem.ragged_q->total_tokens : problem.seq_len_q;
      if (problem.batch == 0 || problem.seq_len_q == 0 || tokens_q == 0) return;
      Pipeline(problem, workspace.data(), device, handle_of(stream)).run();
    };
    if (p.device.kind == DeviceKind::kCpu) {
      cuda::run_staged(p, device, workspace.first(plan.workspace_bytes), handle_of(stream), run);
    } else {
      run(p);
    }
  }

  std::string unsupported_reason(const MergeStatesProblem&) const override {
    return "merging partial results is no step of the unfused pipeline";
  }
  void merge_states(const MergeStatesProblem& problem, Stream) const override {
    throw Error(ErrorCode::kUnsupported, unsupported_reason(problem));
  }

  Ceilings ceilings(DType dtype) const override { return cuda::measured_ceilings(0, dtype); }

 private:
  /// Problems in CPU memory run on the first GPU.
  static GpuDevice& device_of(const Device& device) {
    return cuda::gpu_device(device.kind == DeviceKind::kCuda ? device.index : 0);
  }
};

}  // namespace

std::unique_ptr<AttentionBackend> make_cuda_unfused_attention() {
  return std::make_unique<CudaUnfusedAttention>();
}

}  // namespace tessera
