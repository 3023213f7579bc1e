#pragma once

#include <optional>

#include "tessera/device.h"
#include "tessera/dtype.h"
#include "tessera/tessera.h"

namespace tessera::c_api {

/// Throws Error{kInvalidArgument} that calls it `name` and `member` for a number that is no type, and for
/// none.
DType dtype_of(tessera_dtype dtype, const char* name, const char* member = "");
/// The same, and none for TESSERA_DTYPE_NONE.
std::optional<DType> optional_dtype(tessera_dtype dtype, const char* name);
tessera_dtype c_dtype(DType dtype) noexcept;

/// Throws Error{kInvalidArgument} for a kind that is none.
Device device_of(const tessera_device& device);
tessera_device c_device(const Device& device) noexcept;

}  // namespace tessera::c_api
