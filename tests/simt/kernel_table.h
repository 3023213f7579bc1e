#pragma once

#include <functional>
#include <map>
#include <string>

namespace tessera::simt {

/// A kernel, given a pointer to its parameters.
using KernelFunction = std::function<void(const void* params)>;

/// All kernels that were compiled for the host, by entry.
std::map<std::string, KernelFunction>& kernel_table();

template <class Params>
KernelFunction kernel_function(void (*kernel)(const Params)) {
  return [kernel](const void* params) { kernel(*static_cast<const Params*>(params)); };
}

/// Adds kernels when the program starts: a static object beside each included source.
struct AddKernels {
  explicit AddKernels(const std::map<std::string, KernelFunction>& kernels) {
    kernel_table().insert(kernels.begin(), kernels.end());
  }
};

}  // namespace tessera::simt

#define TESSERA_ENTRY(name) \
  { #name, ::tessera::simt::kernel_function(name) }
#define TESSERA_ENTRIES(name) TESSERA_ENTRY(name##_f32), TESSERA_ENTRY(name##_f16), TESSERA_ENTRY(name##_bf16)
