#include <cstdio>

#include "backends/cuda/attention/attention_kernels.h"
#include "backends/gpu/attention/built_modules.h"

// Prints attention/built_modules.txt, which the build reads and a test compares.

int main() {
  namespace cuda = tessera::cuda;
  std::fputs(tessera::gpu::built_module_lines(cuda::attention_kernels(), cuda::largest_devices()).c_str(),
             stdout);
  return 0;
}
