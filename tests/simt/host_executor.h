#pragma once

// The host's side of kernels/common/platform.cuh for tests: kernels become functions that executor.cpp runs
// block by block, the threads of a block in turn.

#include <math.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifndef TESSERA_WARP_SIZE
#define TESSERA_WARP_SIZE 32
#endif

#define TESSERA_DEVICE inline
#define TESSERA_DEVICE_NOINLINE inline
#define TESSERA_KERNEL(name, threads) void name
#define TESSERA_GRID_CONSTANT const
// The address of the static tells the variables of a block apart.
#define TESSERA_SHARED(name, ...)                                \
  static char name##_identity;                                   \
  auto& name = *static_cast<std::type_identity_t<__VA_ARGS__>*>( \
      ::tessera::simt::shared_variable(&name##_identity, sizeof(__VA_ARGS__)))
#define TESSERA_DYNAMIC_SHARED(name) unsigned char* const name = ::tessera::simt::dynamic_shared()
#define TESSERA_UNROLL
#define TESSERA_UNROLL_BY(count)

namespace tessera::simt {

/// Where the running thread is.
struct Position {
  int thread = 0;
  int block[3] = {0, 0, 0};
  int block_size = 0;
  int grid_x = 0;
};
inline Position position;

/// What the block has of a static variable, the same for all of its threads; aligned to 128 bytes.
void* shared_variable(const void* identity, std::size_t size_bytes);
unsigned char* dynamic_shared();

/// Blocks of this one's cluster, and its place among them.
int cluster_blocks();
int cluster_rank();
/// What the cluster's block `rank` has as its dynamic shared memory.
unsigned char* dynamic_shared_of(int rank);
/// The second returns once all threads of the cluster have called the first.
void cluster_arrive();
void cluster_wait();

/// Return once all threads of the block, of the warp, have called it from the same line.
void block_barrier(int line);
void warp_barrier(int line);

/// A warp's lanes each bring size_bytes of a value; gives what `lane` brought.
std::uint64_t exchange(std::uint64_t value, std::size_t size_bytes, int lane, int line);

}  // namespace tessera::simt

namespace tessera::kernels {

inline float float_of_bits(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned bits_of_float(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline unsigned join_words(unsigned low, unsigned high, unsigned byte) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(high) << 32 | low) >> (8 * (byte % 4)));
}
inline unsigned pick_bytes(unsigned low, unsigned high, unsigned places) {
  const std::uint64_t both = static_cast<std::uint64_t>(high) << 32 | low;
  unsigned picked = 0;
  for (int i = 0; i < 4; ++i)
    picked |= static_cast<unsigned>(both >> (8 * (places >> (8 * i) & 7)) & 0xff) << (8 * i);
  return picked;
}
inline int uniform(int x) { return x; }
inline int thread_x() { return simt::position.thread; }
inline int block_x() { return simt::position.block[0]; }
inline int block_y() { return simt::position.block[1]; }
inline int block_z() { return simt::position.block[2]; }
inline int block_size() { return simt::position.block_size; }
inline int grid_x() { return simt::position.grid_x; }

// The line is the caller's: threads that meet must stand at the same one.
inline void sync_threads(int line = __builtin_LINE()) { simt::block_barrier(line); }
inline void sync_warp(int line = __builtin_LINE()) { simt::warp_barrier(line); }

template <class T>
T shuffle(T value, int lane, int line = __builtin_LINE()) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = simt::exchange(bits, sizeof value, lane, line);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
T shuffle_xor(T value, int lane_mask, int line = __builtin_LINE()) {
  return shuffle(value, (thread_x() % TESSERA_WARP_SIZE) ^ lane_mask, line);
}

inline bool warp_any(bool value, int line = __builtin_LINE()) {
  int any = value ? 1 : 0;
  for (int mask = TESSERA_WARP_SIZE / 2; mask > 0; mask /= 2) any |= shuffle_xor(any, mask, line);
  return any != 0;
}

inline unsigned ballot_32(bool value, int line = __builtin_LINE()) {
  const int lane = thread_x() % TESSERA_WARP_SIZE;
  unsigned bits = value && lane < 32 ? 1u << lane : 0;
  for (int mask = TESSERA_WARP_SIZE / 2; mask > 0; mask /= 2) bits |= shuffle_xor(bits, mask, line);
  return bits;
}
inline int count_bits(unsigned x) { return __builtin_popcount(x); }
inline int lowest_bit(unsigned x) { return __builtin_ctz(x); }

}  // namespace tessera::kernels
