#pragma once

#include <span>

#include "core/element.h"

namespace tessera {

/// Stored numbers of a floating-point type as fp32, out.size() of them.
inline void convert_to_floats(const void* data, DType dtype, std::span<float> out) {
  dispatch_stored(dtype, [&]<class T>() {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(static_cast<const T*>(data)[i]);
  });
}

}  // namespace tessera
