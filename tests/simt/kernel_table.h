#pragma once

#include <functional>
#include <map>
#include <string>

#include "simt/executor.h"

namespace tessera::simt {

/// A kernel compiled for the host.
struct HostKernel {
  std::function<void(const void* params)> run;
  int warp_size = 0;      ///< that it was compiled for
  long num_launches = 0;  ///< by launch()
};

/// All of them by entry.
std::map<std::string, HostKernel>& kernel_table();

/// Runs the kernel that grid.kernel names with the warps that it was compiled for.
void launch(Grid grid, const void* params);

/// Expects, in gtest's terms, that every kernel whose entry satisfies `wanted` was launched. Only if all of
/// the program's tests ran.
void expect_all_were_launched(const std::function<bool(const std::string& entry)>& wanted);

template <class Params>
HostKernel host_kernel(void (*kernel)(const Params), int warp_size) {
  return {[kernel](const void* params) { kernel(*static_cast<const Params*>(params)); }, warp_size};
}

/// Adds kernels when the program starts: a static object beside each included source.
struct AddKernels {
  explicit AddKernels(const std::map<std::string, HostKernel>& kernels) {
    kernel_table().insert(kernels.begin(), kernels.end());
  }
};

}  // namespace tessera::simt

#define TESSERA_NAME_OF(name) #name
// Of a kernel that the build renames the name that it has then.
#define TESSERA_ENTRY(name) \
  { TESSERA_NAME_OF(name), ::tessera::simt::host_kernel(name, TESSERA_WARP_SIZE) }
#define TESSERA_ENTRIES(name) TESSERA_ENTRY(name##_f32), TESSERA_ENTRY(name##_f16), TESSERA_ENTRY(name##_bf16)
