#include "backends/cpu/ceilings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "backends/cpu/amx_tiles.h"
#include "backends/cpu/fetch_ahead.h"
#include "backends/cpu/highway_targets.h"
#include "backends/cpu/simd_target.h"
#include "core/aligned_memory.h"
#include "core/parallel.h"
#include "tessera/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/ceilings.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// `rounds` times 12 independent multiply-adds of whole vectors. Returns the number of operations, two each.
double MultiplyAdds(std::int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  // More than latency (4 or 5) times units (2 or 3) need, and few enough for 16 registers.
  // They start from different numbers, or the compiler would keep one of them for all.
  V a0 = hn::Set(d, 0.0f), a1 = hn::Set(d, 1.0f), a2 = hn::Set(d, 2.0f), a3 = hn::Set(d, 3.0f),
    a4 = hn::Set(d, 4.0f), a5 = hn::Set(d, 5.0f), a6 = hn::Set(d, 6.0f), a7 = hn::Set(d, 7.0f),
    a8 = hn::Set(d, 8.0f), a9 = hn::Set(d, 9.0f), a10 = hn::Set(d, 10.0f), a11 = hn::Set(d, 11.0f);
  const V x = hn::Set(d, sink[0]);
  const V y = hn::Set(d, sink[1]);
  for (std::int64_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, x, y);
    a1 = hn::MulAdd(a1, x, y);
    a2 = hn::MulAdd(a2, x, y);
    a3 = hn::MulAdd(a3, x, y);
    a4 = hn::MulAdd(a4, x, y);
    a5 = hn::MulAdd(a5, x, y);
    a6 = hn::MulAdd(a6, x, y);
    a7 = hn::MulAdd(a7, x, y);
    a8 = hn::MulAdd(a8, x, y);
    a9 = hn::MulAdd(a9, x, y);
    a10 = hn::MulAdd(a10, x, y);
    a11 = hn::MulAdd(a11, x, y);
  }
  const V sum =
      hn::Add(hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7))),
              hn::Add(hn::Add(a8, a9), hn::Add(a10, a11)));
  sink[2] = hn::GetLane(sum);
  return static_cast<double>(rounds) * 12 * 2 * static_cast<double>(hn::Lanes(d));
}

/// Reads `size_bytes`, a multiple of 1024, once, and asks for what lies the distances ahead.
std::uint32_t ReadMemory(const std::byte* data, std::size_t size_bytes, const FetchAhead& distances) {
  const hn::ScalableTag<std::uint32_t> d;
  auto a = hn::Zero(d), b = a, c = a, e = a;
  const std::size_t step = hn::Lanes(d);
  const auto* words = reinterpret_cast<const std::uint32_t*>(data);
  for (std::size_t i = 0; i < size_bytes / 4; i += 4 * step) {
    cpu::fetch_ahead<4 * hn::MaxLanes(d) * sizeof(std::uint32_t)>(words + i, distances);
    a = hn::Xor(a, hn::Load(d, words + i));
    b = hn::Xor(b, hn::Load(d, words + i + step));
    c = hn::Xor(c, hn::Load(d, words + i + 2 * step));
    e = hn::Xor(e, hn::Load(d, words + i + 3 * step));
  }
  return hn::GetLane(hn::Xor(hn::Xor(a, b), hn::Xor(c, e)));
}

}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

HWY_EXPORT(MultiplyAdds);
HWY_EXPORT(ReadMemory);

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

#if defined(__x86_64__)
/// MultiplyAdds for dot products of bf16 pairs.
__attribute__((target("avx512f,avx512bf16"))) double bf16_dot_products(std::int64_t rounds, float* sink) {
  constexpr int kSums = 12;
  __m512 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_ps(sink[0]));
  const __m512bh y = reinterpret_cast<__m512bh>(_mm512_set1_ps(sink[1]));
  for (std::int64_t i = 0; i < rounds; ++i) {
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, x, y);
  }
  for (int i = 1; i < kSums; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  sink[2] = _mm512_cvtss_f32(sums[0]);
  return static_cast<double>(rounds) * kSums * 4 * 16;
}

/// MultiplyAdds for products of bf16 tiles; an eighth as many rounds, since each does more.
double bf16_tile_products(std::int64_t rounds, float* sink) {
  const std::int64_t tile_rounds = rounds / 8;
  alignas(64) float numbers[16 * 16];
  std::fill(std::begin(numbers), std::end(numbers), sink[0]);
  const amx::TilesInUse tiles;
  amx::tileloadd<6>(numbers, amx::kTileRowBytes);
  amx::tileloadd<7>(numbers, amx::kTileRowBytes);
  amx::tilezero<0>();
  amx::tilezero<1>();
  amx::tilezero<2>();
  amx::tilezero<3>();
  amx::tilezero<4>();
  amx::tilezero<5>();
  for (std::int64_t i = 0; i < tile_rounds; ++i) {
    amx::tdpbf16ps<0, 6, 7>();
    amx::tdpbf16ps<1, 6, 7>();
    amx::tdpbf16ps<2, 6, 7>();
    amx::tdpbf16ps<3, 6, 7>();
    amx::tdpbf16ps<4, 6, 7>();
    amx::tdpbf16ps<5, 6, 7>();
  }
  amx::tilestored<0>(numbers, amx::kTileRowBytes);
  sink[2] = numbers[0];
  constexpr double kOperations = 2.0 * 16 * 16 * 32;
  return static_cast<double>(tile_rounds) * 6 * kOperations;
}
#endif

double multiply_adds(DType dtype, std::int64_t rounds, float* sink) {
#if defined(__x86_64__)
  const SimdTarget best = best_simd_target();
  if (best >= SimdTarget::kAmxBf16) {
    if (dtype == DType::kBF16) return bf16_tile_products(rounds, sink);
    // As sums of two bf16, whose low parts' product is too small to matter.
    if (dtype == DType::kF16) return bf16_tile_products(rounds, sink) / 3;
  }
  if (dtype == DType::kBF16 && best >= SimdTarget::kAvx512Bf16) return bf16_dot_products(rounds, sink);
#endif
  static_cast<void>(dtype);
  return HWY_DYNAMIC_DISPATCH(MultiplyAdds)(rounds, sink);
}

/// Best rate of `pass`, which returns how much it did, within `seconds` and at least three passes.
template <class Pass>
double best_rate(double seconds, Pass&& pass) {
  double best = 0;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < 3 || seconds_since(start) < seconds; ++i) {
    const Clock::time_point begin = Clock::now();
    const double amount = pass();
    best = std::max(best, amount / seconds_since(begin));
  }
  return best;
}

double measure_flops(DType dtype, double seconds) {
  const auto tasks = static_cast<std::size_t>(num_threads()) * 8;
  // About a millisecond a task at 10^11 operations a second.
  const std::int64_t rounds = 200000;
  std::atomic<double> done{0};
  return best_rate(seconds, [&] {
    done = 0;
    parallel_for(tasks, [&](std::size_t) {
      float sink[3] = {0.5f, 0.25f, 0};
      const double operations = multiply_adds(dtype, rounds, sink);
      // The result is used, so the work can't be left out.
      done.fetch_add(sink[2] == -1.0f ? 0.0 : operations);
    });
    return done.load();
  });
}

std::size_t last_level_cache_bytes() {
  long size_bytes = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  size_bytes = std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE));
#endif
  return size_bytes > 0 ? static_cast<std::size_t>(size_bytes) : std::size_t{32} << 20;
}

double measure_read_rate(double seconds) {
  constexpr std::size_t kChunk = std::size_t{4} << 20;
  const std::size_t chunks =
      std::clamp<std::size_t>(3 * last_level_cache_bytes(), std::size_t{64} << 20, std::size_t{1} << 30) /
      kChunk;
  const std::shared_ptr<std::byte> buffer =
      allocate_aligned(chunks * kChunk, "measuring the read rate of memory");
  parallel_for(chunks, [&](std::size_t i) {
    std::byte* begin = buffer.get() + i * kChunk;
    std::fill(begin, begin + kChunk, std::byte{1});
  });
  std::atomic<std::uint32_t> sum{0};
  const auto rate = [&](const FetchAhead& distances) {
    return best_rate(seconds / 2, [&] {
      parallel_for(chunks, [&](std::size_t i) {
        sum.fetch_xor(HWY_DYNAMIC_DISPATCH(ReadMemory)(buffer.get() + i * kChunk, kChunk, distances));
      });
      return static_cast<double>(chunks * kChunk);
    });
  };
  // What helps kernels that compute meanwhile may hold up one that only reads.
  return std::max(rate(FetchAhead()), rate(fetch_ahead_distances()));
}

}  // namespace

Ceilings measure_ceilings(DType dtype, double seconds) {
  Ceilings ceilings;
  ceilings.flops_per_s = measure_flops(dtype, seconds / 3);
  // The other third goes into touching the memory first.
  ceilings.bytes_per_s = measure_read_rate(seconds / 3);
  return ceilings;
}

Ceilings cpu_ceilings(DType dtype) {
  static std::mutex mutex;
  static std::map<DType, Ceilings> measured;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = measured.try_emplace(dtype);
  if (is_new) entry->second = measure_ceilings(dtype, 0.1);
  return entry->second;
}

}  // namespace tessera
#endif  // HWY_ONCE
