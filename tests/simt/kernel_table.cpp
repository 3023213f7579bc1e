#include "simt/kernel_table.h"

#include <gtest/gtest.h>

#include "sanitized.h"

namespace tessera::simt {

std::map<std::string, HostKernel>& kernel_table() {
  static std::map<std::string, HostKernel> kernels;
  return kernels;
}

void launch(Grid grid, const void* params) {
  HostKernel& kernel = kernel_table().at(grid.kernel);
  ++kernel.num_launches;
  grid.warp_size = kernel.warp_size;
  run_grid(grid, [&] { kernel.run(params); });
}

void expect_all_were_launched(const std::function<bool(const std::string&)>& wanted) {
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  if (kSanitized || tests.test_to_run_count() != tests.total_test_count()) return;
  for (const auto& [entry, kernel] : kernel_table()) {
    if (wanted(entry)) {
      EXPECT_GT(kernel.num_launches, 0) << "no test reaches " << entry;
    }
  }
}

}  // namespace tessera::simt
