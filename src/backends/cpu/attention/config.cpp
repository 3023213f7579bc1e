#include "backends/cpu/attention/config.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "attention/modifier.h"
#include "attention/narrow.h"
#include "backends/cpu/attention/amx_decode.h"
#include "backends/cpu/attention/amx_prefill.h"
#include "backends/cpu/attention/kernels.h"
#include "core/parallel.h"
#include "tessera/error.h"

namespace tessera::cpu {
namespace {

constexpr int kMaxBlockM = 4096;
constexpr int kMaxBlockN = 1024;
constexpr int kMaxSplits = 1024;
constexpr int kKeyStep = 8;  // keys that a register block takes

// Of q and o, which have to stay in the second-level cache: 1 MiB of it, 2 where there is AMX.
constexpr std::int64_t kQueryTileBytes = 384 << 10;
constexpr std::int64_t kAmxQueryTileBytes = 1 << 20;
constexpr std::int64_t kMinSplitKeys = 256;  // below, a split costs more than it spreads
constexpr std::int64_t kTasksPerThread = 4;  // so that unequal tasks balance

// Of a batch_invariant call, whose keys are cut at multiples of it whatever else there is. Part of the
// arithmetic.
constexpr std::int64_t kSegmentKeys = 512;
// That all partial results of its segments may take. Beyond, a task takes all segments of its rows.
constexpr std::int64_t kMaxSegmentBytes = std::int64_t{64} << 20;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void require_config(std::string_view field, int value, int low, int high, int step) {
  if (value >= low && value <= high && value % step == 0) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("config.{} is {}; the cpu kernels take a multiple of {} from {} to {}, or 0 for automatic",
                  field, value, step, low, high));
}

/// simd_target(), unless nobody asked for it and a lower one is quicker: where pairs of bf16 don't pay,
/// avx512_bf16 has 0.7 times avx512's rate in prefill and 0.85 in decode.
SimdTarget choose_target() {
  const SimdTarget target = simd_target();
  const bool slow = target == SimdTarget::kAvx512Bf16 && !bf16_pairs_pay();
  return slow && !simd_target_is_forced() ? SimdTarget::kAvx512 : target;
}

/// Keys of a segment: whole blocks, so that the cuts change nothing about the blocks.
std::int64_t segment_keys(std::int64_t block_n) {
  return std::max<std::int64_t>(kSegmentKeys / block_n, 1) * block_n;
}

/// Segments of the longest sequence; 1 if its keys are not cut.
std::int64_t num_segments(const AttentionProblem& problem, std::int64_t block_n) {
  if (!problem.batch_invariant) return 1;
  return std::max<std::int64_t>(ceil_div(problem.seq_len_kv, segment_keys(block_n)), 1);
}

/// Key-value heads that a task of the decode kernel takes: where they lie next to each other in memory, as
/// many as make long runs of addresses to read. `splits`: the keys can be split at will, if there are too few
/// tasks for the threads.
int choose_decode_heads(const AttentionProblem& problem, const KernelTable& kernels, std::int64_t block_n,
                        bool splits) {
  constexpr std::int64_t kRunBytes = 4096;
  if (problem.k.head_stride != problem.head_dim_qk || problem.v.head_stride != problem.head_dim_v) return 1;
  TileShape shape;
  shape.head_dim_qk = problem.head_dim_qk;
  shape.head_dim_v = problem.head_dim_v;
  shape.narrow_kv = has_narrow_kv(problem);
  const std::size_t element_bytes = dtype_bytes(problem.k.dtype, 1);
  if (!decode_reads_keys(shape, kernels.lanes, element_bytes, problem.batch_invariant)) return 1;
  if (!decode_reads_values(shape, kernels.lanes, problem.batch_invariant)) return 1;
  const std::int64_t head_bytes =
      static_cast<std::int64_t>(element_bytes) * std::min(problem.head_dim_qk, problem.head_dim_v);
  const std::int64_t segments = problem.batch * num_segments(problem, block_n);
  const std::int64_t wanted = !splits && num_threads() > 1 ? 2 * num_threads() : 1;
  int heads = 1;
  for (int i = 1; i <= problem.num_kv_heads && heads * head_bytes < kRunBytes; ++i) {
    if (problem.num_kv_heads % i == 0 && segments * (problem.num_kv_heads / i) >= wanted) heads = i;
  }
  return heads;
}

/// Whether tiles of many queries take AMX's kernel. Keys and values of 8 bits are multiplied by scales: fp32
/// arithmetic holds the products.
bool takes_amx(const AttentionProblem& problem, SimdTarget target) {
  return target == SimdTarget::kAmxBf16 && amx_takes(wide_dtype(problem)) && !has_narrow_kv(problem);
}

/// Whether it has a kernel on AMX's tiles: those of few queries do if they must have the same bits.
bool runs_amx(const AttentionProblem& problem, SimdTarget target, bool is_decode) {
  return (!is_decode || problem.batch_invariant) && takes_amx(problem, target);
}

/// Whether q, k, p and v meet as pairs of bf16: e4m3 beside bf16 too, which can't keep the bits of
/// batch_invariant, since scales that pairs don't hold take fp32's arithmetic.
bool takes_bf16_pairs(const AttentionProblem& problem, SimdTarget target) {
  if (wide_dtype(problem) != DType::kBF16 || bf16_dot_kernels(target) == nullptr) return false;
  return !has_narrow_kv(problem) || (!problem.batch_invariant && e4m3_dot_kernels(target) != nullptr);
}

/// Most rows of a sequence that takes the decode kernel; 0: none does.
std::int64_t decode_rows(const AttentionProblem& problem, SimdTarget target) {
  if (problem.batch_invariant) {
    // A kernel with the same arithmetic, row by row, as the one that takes prompts.
    if (takes_amx(problem, target)) return problem.scores.modifier ? 0 : kAmxDecodeRows;
  }
  return kernel_table(target).decode_rows;
}

/// The target whose code a kernel for `target` consists of, which plans name: AMX has tiles for long prompts
/// alone, and dot products of pairs are for bf16; all else on such processors is AVX-512's.
SimdTarget target_of_code(const AttentionProblem& problem, SimdTarget target, bool is_decode) {
  if (runs_amx(problem, target, is_decode)) return target;
  if (takes_bf16_pairs(problem, target)) return target;
  return target == SimdTarget::kAmxBf16 || target == SimdTarget::kAvx512Bf16 ? SimdTarget::kAvx512 : target;
}

int choose_block_m(const AttentionProblem& problem, SimdTarget target, std::int64_t rows) {
  const KernelTable& kernels = kernel_table(target);
  if (rows <= decode_rows(problem, target)) return static_cast<int>(std::max<std::int64_t>(rows, 1));
  const bool amx = takes_amx(problem, target);
  const int row_block = amx ? kAmxRowBlock : kernels.row_block;
  const std::int64_t row_bytes = 4 * (std::int64_t{problem.head_dim_qk} + problem.head_dim_v);
  const std::int64_t fitting = (amx ? kAmxQueryTileBytes : kQueryTileBytes) / row_bytes / row_block;
  const std::int64_t wanted = (amx ? 1024 : 288) / row_block;
  std::int64_t blocks = std::clamp<std::int64_t>(fitting, 1, wanted);
  // Smaller tiles if threads would have nothing to do.
  const std::int64_t heads = problem.batch * problem.num_kv_heads;
  while (blocks > 1 && heads * ceil_div(rows, blocks * row_block) < kTasksPerThread * num_threads()) {
    --blocks;
  }
  return static_cast<int>(std::min(blocks, std::max<std::int64_t>(ceil_div(rows, row_block), 1)) * row_block);
}

std::int64_t partial_bytes(const AttentionProblem& problem, std::int64_t splits) {
  const std::int64_t rows = problem.seq_len_q * (problem.num_heads / problem.num_kv_heads);
  return problem.batch * problem.num_kv_heads * splits * rows * partial_stride(problem.head_dim_v) * 4;
}

/// How many tasks as long as the longest one the work of `tasks` is, a number for each sequence: while a
/// thread has the longest sequence, the others may have none left.
std::int64_t longest_tasks(const AttentionProblem& problem, std::int64_t tasks) {
  if (tasks == 0 || !(problem.ragged_kv || problem.paged_kv || problem.seq_lens_kv != nullptr)) return tasks;
  std::int64_t longest = 1;
  double total = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t length = sequence_extent(problem, b).len_kv;
    longest = std::max(longest, length);
    total += static_cast<double>(length);
  }
  const double of_a_sequence = static_cast<double>(tasks / problem.batch);
  return static_cast<std::int64_t>(std::ceil(of_a_sequence * total / static_cast<double>(longest)));
}

int choose_num_splits(const AttentionProblem& problem, std::int64_t tasks, int block_n) {
  if (!problem.batch_invariant) tasks = longest_tasks(problem, tasks);
  if (tasks == 0 || tasks >= 2 * num_threads()) return 1;
  if (problem.batch_invariant) {
    const std::int64_t segments = num_segments(problem, block_n);
    const bool fits = partial_bytes(problem, 1) <= kMaxSegmentBytes / segments;
    return fits ? static_cast<int>(segments) : 1;
  }
  const std::int64_t wanted = ceil_div(kTasksPerThread * num_threads(), tasks);
  return static_cast<int>(
      std::clamp<std::int64_t>(std::min(wanted, problem.seq_len_kv / kMinSplitKeys), 1, kMaxSplits));
}

constexpr std::string_view kPrefill = "prefill/";
constexpr std::string_view kDecode = "decode/";

}  // namespace

AttentionPlan make_plan(const AttentionProblem& problem, const AttentionConfig& config) {
  const SimdTarget target = choose_target();
  const KernelTable& kernels = kernel_table(target);
  const std::int64_t rows = problem.seq_len_q * (problem.num_heads / problem.num_kv_heads);
  const bool decode = rows <= decode_rows(problem, target);

  AttentionPlan plan;
  plan.backend = "cpu";
  plan.kernel = fmt::format("{}{}", decode ? kDecode : kPrefill,
                            simd_target_name(target_of_code(problem, target, decode)));
  plan.config.block_m = config.block_m != 0 ? config.block_m : choose_block_m(problem, target, rows);
  const int block_n = runs_amx(problem, target, decode) ? 256 : 64;
  plan.config.block_n = config.block_n != 0 ? config.block_n : block_n;
  plan.config.num_warps = 0;
  plan.config.num_stages = 0;
  require_config("block_m", plan.config.block_m, 1, kMaxBlockM, 1);
  require_config("block_n", plan.config.block_n, kKeyStep, kMaxBlockN, kKeyStep);
  const std::int64_t tiles = ceil_div(rows, plan.config.block_m);
  const int decode_heads =
      decode ? choose_decode_heads(problem, kernels, plan.config.block_n, !problem.batch_invariant) : 1;
  plan.config.num_splits =
      config.num_splits != 0
          ? config.num_splits
          : choose_num_splits(problem, problem.batch * (problem.num_kv_heads / decode_heads) * tiles,
                              plan.config.block_n);
  if (config.num_splits != 0) require_config("num_splits", config.num_splits, 1, kMaxSplits, 1);
  if (problem.batch_invariant && config.num_splits > 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("config.num_splits is {} for a batch_invariant problem; expected 1 or 0, since the "
                    "bits of a row must not depend on how its keys are split",
                    config.num_splits));
  }

  plan.num_q_tiles = problem.batch * problem.num_kv_heads * tiles;
  plan.num_kv_tiles = ceil_div(problem.seq_len_kv, plan.config.block_n);
  set_workspace(make_call(problem, plan), plan);
  if (has_narrow_kv(problem)) {
    plan.notes.push_back(fmt::format(
        "{} of {} are widened to {}", has_narrow_q(problem) ? "queries, keys and values" : "keys and values",
        dtype_name(problem.k.dtype),
        takes_bf16_pairs(problem, target) ? "bf16; where scales are below 2^-64 or above 2^64, to fp32"
                                          : "fp32, which neither AMX nor pairs of bf16 multiply"));
  }
  const std::int64_t most_decode_rows = decode_rows(problem, target);
  if (!decode && problem.ragged_q && problem.num_heads / problem.num_kv_heads <= most_decode_rows) {
    plan.notes.push_back(
        fmt::format("sequences of up to {} rows (queries times heads of a group) run decode/{}",
                    most_decode_rows, simd_target_name(target_of_code(problem, target, true))));
  }
  return plan;
}

void set_workspace(const CallPlan& call, AttentionPlan& plan) {
  const std::int64_t threads = std::min<std::int64_t>(num_threads(), call.num_tasks);
  plan.shared_bytes = call.scratch_bytes;
  plan.workspace_bytes = call.partial_bytes + static_cast<std::size_t>(threads) * call.scratch_bytes;
}

CallPlan make_call(const AttentionProblem& problem, const AttentionPlan& plan) {
  const std::size_t slash = plan.kernel.find('/');
  CallPlan result;
  result.target =
      parse_simd_target(std::string_view(plan.kernel).substr(slash == std::string::npos ? 0 : slash + 1));
  const KernelTable& kernels = kernel_table(result.target);

  const ScoreTerms& scores = problem.scores;
  CallContext& call = result.call;
  call.problem = &problem;
  call.group = problem.num_heads / problem.num_kv_heads;
  call.scale = scores.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(problem.head_dim_qk)));
  call.has_bias = scores.alibi || scores.additive_mask || scores.boolean_mask;
  // A scale that is not positive would turn -inf around.
  call.transforms_scores = call.has_bias || scores.softcap || !(call.scale > 0);
  call.target = result.target;
  if (scores.modifier) {
    result.modifier = std::make_shared<ModifierPlan>(plan_modifier(*modifier_program(problem)));
    call.modifier_scales = !call.transforms_scores && result.modifier->score >= 0;
    call.transforms_scores |= result.modifier->score >= 0;
  }
  call.shape.head_dim_qk = problem.head_dim_qk;
  call.shape.head_dim_v = problem.head_dim_v;
  call.shape.block_m = plan.config.block_m;
  call.shape.block_n = plan.config.block_n;
  call.shape.row_block = kernels.row_block;
  call.shape.bf16_dot = takes_bf16_pairs(problem, result.target);
  call.shape.narrow_q = has_narrow_q(problem);
  call.shape.narrow_kv = has_narrow_kv(problem);
  result.rows = problem.seq_len_q * call.group;
  result.decode_rows = decode_rows(problem, result.target);
  result.decode = result.rows <= result.decode_rows;
  // Of a ragged batch there may be sequences that take the decode kernel beside others that don't.
  if (result.decode || (problem.ragged_q && call.group <= result.decode_rows)) {
    call.shape.decode_heads =
        choose_decode_heads(problem, kernels, plan.config.block_n, result.decode && !problem.batch_invariant);
  }
  result.heads_per_task = result.decode ? call.shape.decode_heads : 1;
  call.shape.amx = runs_amx(problem, result.target, result.decode);
  if (num_segments(problem, plan.config.block_n) > 1) result.segment_keys = segment_keys(plan.config.block_n);
  call.shape.segments = result.segment_keys > 0 && plan.config.num_splits == 1;
  // Beside AMX's kernel there may be sequences that take decode's.
  TileShape shape = call.shape;
  if (shape.amx) shape.block_m = shape.row_block;
  call.layout = scratch_layout(shape);

  result.tiles = ceil_div(result.rows, plan.config.block_m);
  result.num_splits = plan.config.num_splits;
  result.num_tasks =
      problem.batch * (problem.num_kv_heads / result.heads_per_task) * result.tiles * result.num_splits;
  result.scratch_bytes = call.layout.size_bytes;
  if (shape.bf16_dot && shape.narrow_kv) {
    shape.bf16_dot = false;
    result.scratch_bytes = std::max(result.scratch_bytes, scratch_layout(shape).size_bytes);
  }
  if (call.shape.amx) {
    const DType dtype = wide_dtype(problem);
    result.scratch_bytes = std::max(result.scratch_bytes, amx_scratch_bytes(call.shape, dtype));
    if (result.decode_rows > 0 && problem.batch_invariant)
      result.scratch_bytes = std::max(result.scratch_bytes, amx_decode_scratch_bytes(call.shape, dtype));
  }
  if (call.shape.segments) {
    result.segment_floats = call.shape.decode_heads * result.decode_rows * partial_stride(problem.head_dim_v);
    result.scratch_bytes += 2 * static_cast<std::size_t>(result.segment_floats) * sizeof(float);
  }
  if (result.num_splits > 1) {
    const double bytes = static_cast<double>(problem.batch) * problem.num_kv_heads * result.num_splits *
                         static_cast<double>(result.rows) *
                         static_cast<double>(partial_stride(problem.head_dim_v) * 4);
    if (bytes > 0x1p60) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("config.num_splits is {}, whose partial results would take {:.3g} bytes; expected "
                      "fewer splits",
                      result.num_splits, bytes));
    }
    result.partial_bytes = static_cast<std::size_t>(bytes);
  }
  return result;
}

}  // namespace tessera::cpu
