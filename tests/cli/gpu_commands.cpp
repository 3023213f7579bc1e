#include "gpu_commands.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace tessera::testing {

ProcessResult run_in(const std::vector<std::string>& arguments, std::vector<std::string> environment) {
  ProcessOptions options;
  options.environment = std::move(environment);
  return run_tessera(arguments, options);
}

ProcessResult run_model(const std::string& backend, const std::vector<std::string>& environment) {
  return run_in({"run", "--model", std::string(TESSERA_SOURCE_DIR) + "/models/demo", "--prompt", "Once",
                 "--max-tokens", "3", "--backend", backend, "--json"},
                environment);
}

void expect_cpu_and_reason(const std::string& backend, const std::vector<std::string>& environment,
                           const std::string& reason) {
  const ProcessResult by_itself = run_model("auto", environment);
  ASSERT_EQ(by_itself.exit_code, 0) << by_itself.err;
  EXPECT_EQ(nlohmann::json::parse(by_itself.out).at("backend"), "cpu");
  const ProcessResult named = run_model(backend, environment);
  EXPECT_EQ(named.exit_code, 1);
  EXPECT_EQ(named.out, "");
  EXPECT_EQ(named.err.rfind("error: ", 0), 0u) << named.err;
  EXPECT_NE(named.err.find(reason), std::string::npos) << named.err;
  const ProcessResult info = run_in({"info"}, environment);
  EXPECT_EQ(info.exit_code, 0);
  EXPECT_NE(info.out.find(reason), std::string::npos) << info.out;
}

}  // namespace tessera::testing
