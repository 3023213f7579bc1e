#pragma once

// The host's side of kernels/common/platform.cuh for tests: kernels become functions that host_executor.cpp
// runs block by block, each thread of a block a fiber. A barrier or a shuffle passes control to the next
// fiber until all have arrived.

#include <math.h>

#include <cstddef>
#include <cstring>

#ifndef TESSERA_WARP_SIZE
#define TESSERA_WARP_SIZE 32
#endif

#define TESSERA_DEVICE inline
#define TESSERA_DEVICE_NOINLINE inline
#define TESSERA_KERNEL(name, threads) void name
// Blocks run one after the other.
#define TESSERA_SHARED(name, ...) static ::tessera::kernels::Identity<__VA_ARGS__> name
#define TESSERA_DYNAMIC_SHARED(name) unsigned char* const name = ::tessera::simt::dynamic_shared()
#define TESSERA_UNROLL

namespace tessera::simt {

/// Where the running fiber is.
struct Position {
  int thread = 0;
  int block[3] = {0, 0, 0};
  int block_size = 0;
  int grid_x = 0;
};
const Position& position();

unsigned char* dynamic_shared();
void block_barrier();
void warp_barrier();
/// 8 bytes of the calling thread, for the other lanes of its warp to read between two barriers.
unsigned char* exchange_slot(int thread);

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
inline int thread_x() { return simt::position().thread; }
inline int block_x() { return simt::position().block[0]; }
inline int block_y() { return simt::position().block[1]; }
inline int block_z() { return simt::position().block[2]; }
inline int block_size() { return simt::position().block_size; }
inline int grid_x() { return simt::position().grid_x; }
inline void sync_threads() { simt::block_barrier(); }
inline void sync_warp() { simt::warp_barrier(); }

template <class T>
T shuffle(T value, int lane) {
  static_assert(sizeof(T) <= 8);
  const int thread = thread_x();
  std::memcpy(simt::exchange_slot(thread), &value, sizeof value);
  simt::warp_barrier();
  std::memcpy(&value, simt::exchange_slot(thread / TESSERA_WARP_SIZE * TESSERA_WARP_SIZE + lane),
              sizeof value);
  simt::warp_barrier();
  return value;
}

template <class T>
T shuffle_xor(T value, int lane_mask) {
  return shuffle(value, (thread_x() % TESSERA_WARP_SIZE) ^ lane_mask);
}

inline bool warp_any(bool value) {
  int any = value ? 1 : 0;
  for (int mask = TESSERA_WARP_SIZE / 2; mask > 0; mask /= 2) any |= shuffle_xor(any, mask);
  return any != 0;
}

}  // namespace tessera::kernels
