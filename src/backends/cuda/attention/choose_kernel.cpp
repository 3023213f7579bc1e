#include "backends/cuda/attention/choose_kernel.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "backends/cuda/attention/decode_splits.h"
#include "core/rounding.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

constexpr std::int64_t kMaxSeqLen = std::int64_t{1} << 29;  // kernels count tokens and packed rows in 32 bits
constexpr int kDecodeRows = 16;
constexpr int kDecodeKeys = 16;        // of each warp of a block
constexpr int kMaxDecodeWarps = 12;    // leave a thread 168 registers
constexpr int kNarrowDecodeWarps = 4;  // of 16-bit types
constexpr int kWideDecodeWarps = 8;    // of a block that has a multiprocessor for itself
constexpr int kGenericWarps = 4;
constexpr int kMaxSplits = 128;                // of attention_combine.cu
constexpr std::size_t kReservedShared = 1024;  // that the driver takes of each block
constexpr int kPadding = 8;                    // elements after each shared-memory row
constexpr int kMmaStateBytes = 96;             // attention_mma.cu's BlockState

/// kernels::ScoreTermFlags of what the scores need beyond a positive scale and the diagonal.
int term_flags(const ScoreTerms& s) {
  constexpr int kSoftcap = 1, kAlibi = 2, kAdditiveMask = 4, kBooleanMask = 8, kScale = 16;
  return (s.softcap ? kSoftcap : 0) | (s.alibi ? kAlibi : 0) | (s.additive_mask ? kAdditiveMask : 0) |
         (s.boolean_mask ? kBooleanMask : 0) | (s.softmax_scale && *s.softmax_scale <= 0 ? kScale : 0);
}

/// kernels::MaskDType of the additive mask; 0 without one, so that it makes no further modules.
int mask_dtype_flag(const ScoreTerms& s) {
  if (!s.additive_mask) return 0;
  return s.additive_mask->dtype == DType::kF16 ? 1 : s.additive_mask->dtype == DType::kBF16 ? 2 : 0;
}

template <class Tensor>
bool rows_are_aligned(const Tensor& t, int head_dim) {
  const std::int64_t elements = t.dtype == DType::kF32 ? 4 : 8;  // 16 bytes
  return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && t.batch_stride % elements == 0 &&
         t.seq_stride % elements == 0 && t.head_stride % elements == 0 && head_dim % elements == 0;
}

/// Whether rows can be moved 16 bytes at a time.
bool has_aligned_rows(const AttentionProblem& p) {
  return rows_are_aligned(p.q, p.head_dim_qk) && rows_are_aligned(p.k, p.head_dim_qk) &&
         rows_are_aligned(p.v, p.head_dim_v) && rows_are_aligned(p.o, p.head_dim_v);
}

struct MmaTiles {
  int block_m;
  int block_n;
  int num_warps;
  int num_stages;
  int min_blocks;  // a multiprocessor
};

/// For the padded head_dim, the preferred first: of those whose min_blocks fit in a multiprocessor's shared
/// memory the first is taken, else the first that fits at all. Measured in docs/kernels/cuda_attention.md.
std::array<MmaTiles, 4> mma_tiles(int head_dim) {
  if (head_dim <= 64) return {{{128, 64, 4, 2, 3}, {128, 64, 4, 1, 2}, {64, 64, 4, 1, 2}, {64, 32, 4, 1, 1}}};
  if (head_dim <= 128)
    return {{{128, 64, 4, 2, 2}, {128, 64, 4, 1, 2}, {64, 64, 4, 1, 2}, {64, 32, 4, 1, 1}}};
  return {{{128, 64, 8, 2, 1}, {64, 32, 4, 1, 2}, {64, 32, 4, 1, 1}, {64, 16, 4, 1, 1}}};
}

/// The layout of attention_mma.cu's shared memory.
std::size_t mma_shared_bytes(const MmaTiles& t, int head_dim_qk, int head_dim_v) {
  const int stride_qk = head_dim_qk + kPadding;
  const int stride_v = head_dim_v + kPadding;
  const bool shares_rows =
      std::max(head_dim_qk, head_dim_v) > 128 && head_dim_v % 32 == 0 && t.block_n % 32 == 0;
  const int elements = t.block_m * std::max(stride_qk, stride_v) +
                       t.num_stages * t.block_n * (stride_qk + stride_v) +
                       (shares_rows ? t.block_m * (t.block_n + kPadding) : 0);
  const int row_bytes = shares_rows ? 16 : 8;  // a row's key range, and what its two warps tell each other
  return static_cast<std::size_t>(2 * elements + kMmaStateBytes + row_bytes * t.block_m);
}

struct DecodeTiles {
  int num_warps;
  int num_stages;
};

std::size_t decode_shared_bytes(const DecodeTiles& t, DType dtype, int head_dim_qk, int head_dim_v) {
  const int element_bytes = dtype == DType::kF32 ? 4 : 2;
  const int bytes_qk = element_bytes * head_dim_qk + 16;
  const int bytes_v = element_bytes * head_dim_v + 16;
  const int scale_bytes = dtype == DType::kF32 ? 4 * (kDecodeRows + 2 * t.num_warps * kDecodeKeys) : 0;
  return static_cast<std::size_t>(
      kDecodeRows * bytes_qk + t.num_warps * t.num_stages * kDecodeKeys * (bytes_qk + bytes_v) + scale_bytes);
}

std::vector<std::string> common_defines(const AttentionProblem& p, int head_dim_qk, int head_dim_v) {
  return {fmt::format("TESSERA_DTYPE={}", dtype_suffix(p.q.dtype)),
          fmt::format("TESSERA_HEAD_DIM_QK={}", head_dim_qk),
          fmt::format("TESSERA_HEAD_DIM_V={}", head_dim_v),
          fmt::format("TESSERA_TERMS={}", term_flags(p.scores)),
          fmt::format("TESSERA_MASK_DTYPE={}", mask_dtype_flag(p.scores)),
          fmt::format("TESSERA_PAGED={}", p.paged_kv ? 1 : 0),
          fmt::format("TESSERA_VECTOR={}", has_aligned_rows(p) ? 1 : 0)};
}

void reject_forced(const char* field, int value, std::string_view expected) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("config.{} is {}; expected {} on the CUDA backend", field, value, expected));
}

void reject_large_tiles(std::size_t shared_bytes, const DeviceProperties& device) {
  if (shared_bytes <= device.shared_per_block_bytes) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the tiles need {} bytes of shared memory and a block has {}; expected a smaller "
                          "block_m or block_n",
                          shared_bytes, device.shared_per_block_bytes));
}

KernelChoice choose_mma(const AttentionProblem& p, const DeviceProperties& device,
                        const AttentionConfig& forced) {
  const int head_dim_qk = round_up(p.head_dim_qk, 16);
  const int head_dim_v = round_up(p.head_dim_v, 16);
  MmaTiles tiles = {};
  bool found = false;
  for (MmaTiles candidate : mma_tiles(std::max(head_dim_qk, head_dim_v))) {
    if (forced.num_warps > 0) candidate.num_warps = forced.num_warps;
    if (forced.block_m > 0) candidate.block_m = forced.block_m;
    if (forced.block_n > 0) candidate.block_n = forced.block_n;
    if (forced.num_stages > 0) candidate.num_stages = forced.num_stages;
    const std::size_t bytes = mma_shared_bytes(candidate, head_dim_qk, head_dim_v);
    const bool fits = bytes <= device.shared_per_block_bytes;
    const bool fits_well =
        fits && static_cast<std::size_t>(candidate.min_blocks) * (bytes + kReservedShared) <=
                    device.shared_per_multiprocessor_bytes;
    if (fits_well || (fits && !found) || tiles.block_m == 0) tiles = candidate;
    found = found || fits;
    if (fits_well) break;
  }
  if (tiles.num_warps != 2 && tiles.num_warps != 4 && tiles.num_warps != 8)
    reject_forced("num_warps", tiles.num_warps, "2, 4 or 8");
  if (tiles.block_m % (16 * tiles.num_warps) != 0)
    reject_forced("block_m", tiles.block_m, "a multiple of 16 * num_warps");
  if (tiles.block_n % 16 != 0) reject_forced("block_n", tiles.block_n, "a multiple of 16");
  if (tiles.num_stages > 2) reject_forced("num_stages", tiles.num_stages, "1 or 2");
  const std::size_t shared_bytes = mma_shared_bytes(tiles, head_dim_qk, head_dim_v);
  reject_large_tiles(shared_bytes, device);
  const auto by_shared =
      static_cast<int>(device.shared_per_multiprocessor_bytes / (shared_bytes + kReservedShared));
  const int by_threads = 65536 / (tiles.num_warps * 32 * 168);  // leave registers for the accumulators
  const int min_blocks = std::clamp(std::min({tiles.min_blocks, by_shared, by_threads}), 1, 8);

  KernelChoice c;
  c.kind = KernelChoice::Kind::kMma;
  c.name = "sm80/prefill";
  c.entry = "attention_mma";
  c.min_blocks = min_blocks;
  c.config = {tiles.block_m, tiles.block_n, tiles.num_warps, tiles.num_stages, 0};
  c.shared_bytes = shared_bytes;
  const int group = p.num_heads / p.num_kv_heads;
  // Packing lets a short prompt's heads fill a tile; a long one fills it anyway.
  c.pack_heads = p.seq_len_q < tiles.block_m ? group : 1;
  return c;
}

struct F32Tiles {
  int block_m;
  int num_warps;
};

/// Keys of f32 tiles that fit beside the queries in two buffers, for the padded head_dim. Rows' bits depend
/// on it, so that it is the same for all problems on a device.
int f32_block_n(int head_dim, const DeviceProperties& device) {
  const std::size_t kib = device.shared_per_block_bytes / 1024;
  if (head_dim <= 64) return kib >= 200 ? 64 : 32;
  if (head_dim <= 128) return kib >= 200 ? 64 : kib >= 140 ? 32 : 16;
  return 16;
}

/// What attention_f32.cu's SharedStorage takes.
std::size_t f32_shared_bytes(const F32Tiles& t, int block_n, int head_dim_qk, int head_dim_v) {
  const int bytes_qk = 4 * head_dim_qk + 16;
  const int bytes_v = 4 * head_dim_v + 16;
  const int stage_bytes = round_up(block_n * (bytes_qk + bytes_v) + 8 * block_n + 4, 16);
  return static_cast<std::size_t>(round_up(t.block_m * (bytes_qk + 12) + 2 * stage_bytes, 16));
}

/// Blocks of most rows first: they read K and V least often, and smaller ones are for problems that would
/// leave multiprocessors without a block.
KernelChoice choose_f32(const AttentionProblem& p, const DeviceProperties& device,
                        const AttentionConfig& forced) {
  const int head_dim_qk = round_up(p.head_dim_qk, 16);
  const int head_dim_v = round_up(p.head_dim_v, 16);
  const int head_dim = std::max(head_dim_qk, head_dim_v);
  const int group = p.num_heads / p.num_kv_heads;
  const int block_n = forced.block_n > 0 ? forced.block_n : f32_block_n(head_dim, device);
  // Terms are unrolled over a thread's scores: with half the rows a warp they compile in half the time.
  const bool has_terms = term_flags(p.scores) != 0;
  const std::array<F32Tiles, 3> candidates =
      head_dim <= 64 ? std::array<F32Tiles, 3>{{{has_terms ? 64 : 128, 4}, {64, 4}, {64, 2}}}
                     : std::array<F32Tiles, 3>{{{128, 8}, {64, 4}, {32, 2}}};
  F32Tiles tiles = {};
  std::size_t shared_bytes = 0;
  for (const F32Tiles& candidate : candidates) {
    tiles = candidate;
    if (forced.block_m > 0) tiles.block_m = forced.block_m;
    if (forced.num_warps > 0) tiles.num_warps = forced.num_warps;
    shared_bytes = f32_shared_bytes(tiles, block_n, head_dim_qk, head_dim_v);
    if (shared_bytes > device.shared_per_block_bytes) continue;
    const std::int64_t blocks = divide_up(p.seq_len_q * group, tiles.block_m) * p.num_kv_heads * p.batch;
    if (blocks >= device.num_multiprocessors || tiles.block_m <= 64) break;
  }
  if (tiles.num_warps != 1 && tiles.num_warps != 2 && tiles.num_warps != 4 && tiles.num_warps != 8)
    reject_forced("num_warps", tiles.num_warps, "1, 2, 4 or 8");
  if (tiles.block_m % (16 * tiles.num_warps) != 0)
    reject_forced("block_m", tiles.block_m, "a multiple of 16 * num_warps");
  if (block_n != 16 && block_n != 32 && block_n != 64 && block_n != 128)
    reject_forced("block_n", block_n, "16, 32, 64 or 128 for f32");
  if (forced.num_stages > 0 && forced.num_stages != 2)
    reject_forced("num_stages", forced.num_stages, "2 for f32");
  reject_large_tiles(shared_bytes, device);
  KernelChoice c;
  c.kind = KernelChoice::Kind::kMma;
  c.name = "sm80/prefill_f32";
  c.entry = "attention_f32";
  const bool fits_twice = 2 * (shared_bytes + kReservedShared) <= device.shared_per_multiprocessor_bytes;
  c.min_blocks = tiles.num_warps <= 4 && fits_twice ? 2 : 1;
  c.config = {tiles.block_m, block_n, tiles.num_warps, 2, 0};
  c.shared_bytes = shared_bytes;
  c.pack_heads = p.seq_len_q < tiles.block_m ? group : 1;
  return c;
}

/// Warps hide each other's waiting: fp32, which they split themselves, wants as many as fit, and only then
/// more buffers for each. Of 16-bit types four warps with up to four buffers suffice, in two blocks a
/// multiprocessor, or eight in one, see widen().
DecodeTiles decode_tiles(const AttentionProblem& p, const DeviceProperties& device) {
  const int head_dim_qk = round_up(p.head_dim_qk, 16);
  const int head_dim_v = round_up(p.head_dim_v, 16);
  const auto fits = [&](const DecodeTiles& t, std::size_t blocks) {
    const std::size_t bytes = decode_shared_bytes(t, p.q.dtype, head_dim_qk, head_dim_v);
    return bytes <= device.shared_per_block_bytes &&
           bytes * blocks <= device.shared_per_multiprocessor_bytes - 2 * kReservedShared;
  };
  DecodeTiles tiles;
  if (p.q.dtype == DType::kF32) {
    // Twelve warps leave a thread 168 registers.
    const int most_warps = std::max(head_dim_qk, head_dim_v) <= 128 ? 12 : 6;
    for (const int num_warps : {12, 8, 6, 4, 3, 2}) {
      tiles = {num_warps, 1};
      if (num_warps <= most_warps && fits(tiles, 1)) break;
    }
    if (fits({tiles.num_warps, 2}, 1)) tiles.num_stages = 2;
    return tiles;
  }
  tiles = {kNarrowDecodeWarps, 4};
  while (tiles.num_stages > 2 && !fits(tiles, head_dim_qk <= 128 ? 2 : 1)) --tiles.num_stages;
  return tiles;
}

/// Whether the decode kernel's pipeline fits; it does but for large heads on devices with little
/// shared memory.
bool decode_fits(const AttentionProblem& p, const DeviceProperties& device) {
  return decode_shared_bytes(decode_tiles(p, device), p.q.dtype, round_up(p.head_dim_qk, 16),
                             round_up(p.head_dim_v, 16)) <= device.shared_per_block_bytes;
}

/// What choose_decode_splits has to know.
DecodeWork decode_work(const AttentionProblem& p, const DeviceProperties& device, const DecodeTiles& tiles) {
  const std::size_t shared_bytes =
      decode_shared_bytes(tiles, p.q.dtype, round_up(p.head_dim_qk, 16), round_up(p.head_dim_v, 16));
  const bool fits_twice = 2 * (shared_bytes + kReservedShared) <= device.shared_per_multiprocessor_bytes;
  const std::int64_t key_bytes = static_cast<std::int64_t>(
      dtype_bytes(p.k.dtype, static_cast<std::size_t>(p.head_dim_qk + p.head_dim_v)));
  const std::int64_t key_tile = kDecodeKeys * tiles.num_warps;
  DecodeWork work;
  work.blocks = std::max<std::int64_t>(p.num_kv_heads * p.batch, 1);
  work.key_tiles = std::max<std::int64_t>(divide_up(p.seq_len_kv, key_tile), 1);
  work.tile_bytes = key_tile * key_bytes;
  work.bytes = std::max<std::int64_t>(p.seq_len_kv, 1) * key_bytes;
  work.num_multiprocessors = device.num_multiprocessors;
  work.blocks_a_multiprocessor = fits_twice ? 2 : 1;
  work.is_f32 = p.q.dtype == DType::kF32;
  return work;
}

/// Most warps that a module of 16-bit types takes. Large heads leave neither memory nor registers for more.
int most_decode_warps(const AttentionProblem& p) {
  return std::max(p.head_dim_qk, p.head_dim_v) <= 128 ? kWideDecodeWarps : kNarrowDecodeWarps;
}

/// Eight warps a block unless that is slower: half as many blocks fit, which may fill the device without
/// splits where four warps need two, and each has a multiprocessor for itself, also where the next call's
/// blocks come before this call's have ended.
DecodeTiles widen(const AttentionProblem& p, const DeviceProperties& device, const DecodeTiles& tiles) {
  if (p.seq_len_kv <= kDecodeKeys * tiles.num_warps) return tiles;  // the others would have no keys
  const DecodeTiles wide = {most_decode_warps(p), tiles.num_stages};
  if (decode_shared_bytes(wide, p.q.dtype, round_up(p.head_dim_qk, 16), round_up(p.head_dim_v, 16)) >
      device.shared_per_block_bytes)
    return tiles;
  const double time = choose_decode_splits(decode_work(p, device, tiles), kMaxSplits).time;
  return choose_decode_splits(decode_work(p, device, wide), kMaxSplits).time <= time ? wide : tiles;
}

KernelChoice choose_decode(const AttentionProblem& p, const DeviceProperties& device,
                           const AttentionConfig& forced) {
  const int head_dim_qk = round_up(p.head_dim_qk, 16);
  const int head_dim_v = round_up(p.head_dim_v, 16);
  DecodeTiles tiles = decode_tiles(p, device);
  if (p.q.dtype != DType::kF32 && forced.num_stages == 0 && forced.num_splits == 0)
    tiles = widen(p, device, tiles);
  if (forced.num_warps > 0) tiles.num_warps = forced.num_warps;
  if (forced.num_stages > 0) tiles.num_stages = forced.num_stages;
  const std::size_t shared_bytes = decode_shared_bytes(tiles, p.q.dtype, head_dim_qk, head_dim_v);
  if (forced.block_m > 0 && forced.block_m != kDecodeRows)
    reject_forced("block_m", forced.block_m, "16 for decode");
  const int block_n = kDecodeKeys * tiles.num_warps;
  if (forced.block_n > 0 && forced.block_n != block_n)
    reject_forced("block_n", forced.block_n, fmt::format("{} for decode", block_n));
  if (tiles.num_warps > kMaxDecodeWarps)
    reject_forced("num_warps", forced.num_warps, fmt::format("1 to {} for decode", kMaxDecodeWarps));
  const int fewest_stages = p.q.dtype == DType::kF32 ? 1 : 2;
  if (tiles.num_stages < fewest_stages || tiles.num_stages > 8)
    reject_forced("num_stages", forced.num_stages, fmt::format("{} to 8 for decode", fewest_stages));
  reject_large_tiles(shared_bytes, device);
  KernelChoice c;
  c.kind = KernelChoice::Kind::kDecode;
  c.name = "sm80/decode";
  c.entry = "attention_decode";
  c.config = {kDecodeRows, block_n, tiles.num_warps, tiles.num_stages, 0};
  c.shared_bytes = shared_bytes;
  c.pack_heads = p.num_heads / p.num_kv_heads;
  return c;
}

KernelChoice choose_generic(const AttentionProblem& p) {
  KernelChoice c;
  c.name = "generic";
  c.entry = fmt::format("attention_generic_{}", dtype_suffix(p.q.dtype));
  c.config = {kGenericWarps, 1, kGenericWarps, 1, 0};
  return c;
}

/// The source and its definitions; CMakeLists.txt writes the same for the modules that it builds ahead.
ModuleSpec module_of(const AttentionProblem& p, const KernelChoice& c) {
  if (c.kind == KernelChoice::Kind::kGeneric) return {"common/attention_generic.cu", {}};
  ModuleSpec spec = {fmt::format("sm80/{}.cu", c.entry),
                     common_defines(p, round_up(p.head_dim_qk, 16), round_up(p.head_dim_v, 16))};
  const auto define = [&](const char* name, int value) {
    spec.defines.push_back(fmt::format("TESSERA_{}={}", name, value));
  };
  if (c.kind == KernelChoice::Kind::kMma) {
    define("BLOCK_M", c.config.block_m);
    define("BLOCK_N", c.config.block_n);
  }
  const bool takes_fewer_warps = c.kind == KernelChoice::Kind::kDecode && p.q.dtype != DType::kF32;
  define("NUM_WARPS",
         takes_fewer_warps ? std::max(c.config.num_warps, most_decode_warps(p)) : c.config.num_warps);
  if (p.q.dtype != DType::kF32 || c.kind == KernelChoice::Kind::kDecode)
    define("STAGES", c.config.num_stages);
  if (c.kind == KernelChoice::Kind::kMma) define("MIN_BLOCKS", c.min_blocks);
  return spec;
}

/// Under a causal mask the blocks of a head's last rows take longest. Heads take turns, so that short blocks
/// are left for the end, and as many do as have their keys and values in the cache together: more read them
/// from memory again and again. Measured in docs/kernels/cuda_attention.md.
int choose_heads_at_once(const AttentionProblem& p, const DeviceProperties& device, const KernelChoice& c) {
  constexpr double kShareOfCache = 0.6;
  constexpr std::int64_t kMostBlocks = 1 << 20;
  if (c.kind != KernelChoice::Kind::kMma || c.config.num_splits > 1) return 1;
  if (!p.scores.diagonal || !p.scores.diagonal->window_right) return 1;
  const int sharing = c.pack_heads == 1 ? p.num_heads / p.num_kv_heads : 1;  // heads with the same keys
  const auto row_bytes =
      static_cast<double>(dtype_bytes(p.k.dtype, static_cast<std::size_t>(p.head_dim_qk + p.head_dim_v)));
  const double head_bytes = row_bytes * (static_cast<double>(p.seq_len_kv) / sharing +
                                         c.config.block_m);  // queries and results too
  const double fitting = kShareOfCache * static_cast<double>(device.l2_bytes) / head_bytes;
  const std::int64_t most = std::min<std::int64_t>(static_cast<std::int64_t>(std::min(fitting, 1e6)),
                                                   kMostBlocks / c.num_row_tiles);
  if (most >= c.num_head_blocks)
    return static_cast<int>(std::min(most / c.num_head_blocks, std::max<std::int64_t>(p.batch, 1)) *
                            c.num_head_blocks);
  auto heads = static_cast<int>(std::max<std::int64_t>(most, 1));
  while (c.num_head_blocks % heads != 0) --heads;
  return heads;
}

/// Splits the keys where their blocks alone would not fill the device.
void choose_splits(const AttentionProblem& p, const DeviceProperties& device, const AttentionConfig& forced,
                   KernelChoice& c) {
  const int group = p.num_heads / p.num_kv_heads;
  const std::int64_t rows = p.seq_len_q * c.pack_heads;
  c.num_row_tiles = divide_up(std::max<std::int64_t>(rows, 1), c.config.block_m);
  c.num_head_blocks = c.pack_heads == 1 ? p.num_heads : p.num_heads / group;
  const std::int64_t key_tile = c.kind == KernelChoice::Kind::kGeneric ? 64 : c.config.block_n;
  const std::int64_t key_tiles = std::max<std::int64_t>(divide_up(p.seq_len_kv, key_tile), 1);
  const std::int64_t blocks = std::max<std::int64_t>(c.num_row_tiles * c.num_head_blocks * p.batch, 1);
  std::int64_t splits = 1;
  if (p.batch_invariant) {
    if (forced.num_splits > 1) reject_forced("num_splits", forced.num_splits, "1 with batch_invariant");
  } else if (forced.num_splits > 0) {
    if (forced.num_splits > kMaxSplits) reject_forced("num_splits", forced.num_splits, "at most 128");
    splits = forced.num_splits;
  } else if (c.kind == KernelChoice::Kind::kDecode) {
    const DecodeTiles tiles = {c.config.num_warps, c.config.num_stages};
    splits = choose_decode_splits(decode_work(p, device, tiles), kMaxSplits).splits;
  } else {
    splits = std::min(device.num_multiprocessors / blocks, key_tiles / 4);
    splits = std::clamp<std::int64_t>(splits, 1, kMaxSplits);
  }
  splits = std::min(splits, key_tiles);
  c.keys_per_split = divide_up(key_tiles, splits) * key_tile;
  c.config.num_splits =
      static_cast<int>(std::max<std::int64_t>(divide_up(p.seq_len_kv, c.keys_per_split), 1));
  if (c.config.num_splits > 1) {
    c.partial_bytes = static_cast<std::size_t>(c.config.num_splits * p.batch * p.num_heads * p.seq_len_q) *
                      static_cast<std::size_t>(p.head_dim_v + 1) * sizeof(float);
  }
}

}  // namespace

std::string_view dtype_suffix(DType dtype) { return dtype_name(dtype); }

std::string unsupported_problem(const AttentionProblem& p, const DeviceProperties& device) {
  if (p.q.dtype == DType::kF64) return "dtype f64 has no GPU kernel; use the reference";
  if (p.scores.additive_mask && p.scores.additive_mask->dtype == DType::kF64)
    return "an additive mask of f64 has no GPU kernel";
  if (device.compute_capability < 80) {
    return fmt::format("{} has compute capability {}.{}; the kernels need 8.0 or later", device.name,
                       device.compute_capability / 10, device.compute_capability % 10);
  }
  const std::int64_t longest = std::max({p.seq_len_q * (p.num_heads / p.num_kv_heads), p.seq_len_kv});
  if (longest > kMaxSeqLen)
    return fmt::format("a sequence has {} tokens (times grouped heads); at most {} are supported", longest,
                       kMaxSeqLen);
  if (p.num_heads > kMaxGridYz)
    return fmt::format("num_heads is {}; at most {} are supported", p.num_heads, kMaxGridYz);
  return {};
}

std::string reason_against_mma(const AttentionProblem& p) {
  constexpr int kMaxHeadDim = 256;
  const int head_dim = std::max(p.head_dim_qk, p.head_dim_v);
  if (head_dim > kMaxHeadDim)
    return fmt::format("it takes head_dims up to {}, not {}", kMaxHeadDim, head_dim);
  return {};
}

std::string reason_against_decode(const AttentionProblem& p, const DeviceProperties& device) {
  if (std::string reason = reason_against_mma(p); !reason.empty()) return reason;
  const int group = p.num_heads / p.num_kv_heads;
  if (p.seq_len_q * group > kDecodeRows) {
    return fmt::format("it takes up to {} rows a kv head, not {} queries of {} head{}", kDecodeRows,
                       p.seq_len_q, group, group == 1 ? "" : "s");
  }
  if (p.batch_invariant) return "its bits depend on how the keys are split, and batch_invariant is asked for";
  if (!decode_fits(p, device)) {
    return fmt::format("its tiles do not fit into the {} bytes of shared memory that a block of {} has",
                       device.shared_per_block_bytes, device.name);
  }
  return {};
}

KernelChoice choose_without_module(const AttentionProblem& p, const DeviceProperties& device,
                                   const AttentionConfig& forced) {
  KernelChoice choice;
  if (!reason_against_mma(p).empty()) {
    choice = choose_generic(p);
  } else if (reason_against_decode(p, device).empty()) {
    choice = choose_decode(p, device, forced);
  } else if (p.q.dtype == DType::kF32) {
    choice = choose_f32(p, device, forced);
  } else {
    choice = choose_mma(p, device, forced);
  }
  choose_splits(p, device, forced, choice);
  choice.heads_at_once = choose_heads_at_once(p, device, choice);
  return choice;
}

KernelChoice choose_kernel(const AttentionProblem& p, const DeviceProperties& device,
                           const AttentionConfig& forced) {
  KernelChoice choice = choose_without_module(p, device, forced);
  choice.module = module_of(p, choice);
  return choice;
}

KernelChoice choose_generic_kernel(const AttentionProblem& p, const DeviceProperties& device,
                                   const AttentionConfig& forced) {
  KernelChoice choice = choose_generic(p);
  choose_splits(p, device, forced, choice);
  choice.module = module_of(p, choice);
  return choice;
}

}  // namespace tessera::cuda
