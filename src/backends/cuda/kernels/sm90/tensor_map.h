#pragma once

namespace tessera::kernels {

/// What cuTensorMapEncodeTiled writes: how a tensor of up to five dimensions lies in memory, and in which
/// boxes it is copied. Part of a kernel's argument (__grid_constant__), whose address the copies take.
struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

}  // namespace tessera::kernels
