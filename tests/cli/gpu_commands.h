#pragma once

#include <string>
#include <vector>

#include "process.h"

namespace tessera::testing {

/// Runs tessera with further environment variables.
ProcessResult run_in(const std::vector<std::string>& arguments, std::vector<std::string> environment);

/// Generates three tokens of the demo model and prints JSON.
ProcessResult run_model(const std::string& backend, const std::vector<std::string>& environment);

/// Expects that with such an environment `auto` takes the CPU, and `backend`, a GPU's, by name is an error
/// that holds `reason`, as info does.
void expect_cpu_and_reason(const std::string& backend, const std::vector<std::string>& environment,
                           const std::string& reason);

}  // namespace tessera::testing
