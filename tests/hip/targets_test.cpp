// What is decided by an AMD GPU's architecture alone, without any library: whose code objects it runs, and
// what users read where it runs none.

#include "backends/hip/runtime/targets.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "backends/gpu/runtime/code_archive.h"
#include "backends/hip/hip_platform.h"
#include "backends/hip/runtime/embedded.h"
#include "backends/hip/runtime/hip_api.h"

namespace tessera::hip {
namespace {

/// A hipDeviceProp_t with a name and, at `offset`, an architecture.
std::vector<char> properties_with(const std::string& target_id, std::size_t offset) {
  std::vector<char> properties(kMaxPropertiesBytes, '\0');
  std::strcpy(properties.data(), "AMD Radeon gfx9 Graphics");
  std::memset(properties.data() + 256, 0x7f, 24);  // sizes
  std::memcpy(properties.data() + offset, target_id.data(), target_id.size());
  return properties;
}

TEST(Target, IsFoundInThePropertiesOfEveryVersionOfHip) {
  constexpr std::size_t kRocm5 = 396;
  constexpr std::size_t kRocm6 = 1160;
  for (const std::size_t offset : {kRocm5, kRocm6, std::size_t{2000}}) {
    const std::vector<char> properties = properties_with("gfx90a:sramecc+:xnack-", offset);
    EXPECT_EQ(target_id_in(properties), "gfx90a:sramecc+:xnack-") << offset;
  }
  EXPECT_EQ(target_id_in(properties_with("", 396)), "");
  EXPECT_EQ(target_id_in(properties_with("gfx", 396)), "") << "no number";
  const std::vector<char> cut = properties_with("gfx1100", kMaxPropertiesBytes - 7);
  EXPECT_EQ(target_id_in(cut), "gfx1100") << "without an end";
}

TEST(Target, LosesItsFeatures) {
  EXPECT_EQ(without_features("gfx90a:sramecc+:xnack-"), "gfx90a");
  EXPECT_EQ(without_features("gfx1100"), "gfx1100");
  EXPECT_EQ(without_features(""), "");
}

TEST(Target, RunsItsOwnCodeAndThatOfOneWithTheSameInstructions) {
  EXPECT_TRUE(runs_code_for("gfx942", "gfx942"));
  EXPECT_TRUE(runs_code_for("gfx906", "gfx906")) << "not in the table";
  EXPECT_TRUE(runs_code_for("gfx1101", "gfx1100"));
  EXPECT_TRUE(runs_code_for("gfx1103", "gfx1102"));
  EXPECT_TRUE(runs_code_for("gfx1150", "gfx1151"));
  EXPECT_TRUE(runs_code_for("gfx1152", "gfx1151"));
  EXPECT_TRUE(runs_code_for("gfx1200", "gfx1201"));
  // Not in the other direction, and not where instructions or hazards differ.
  EXPECT_FALSE(runs_code_for("gfx1102", "gfx1103"));
  EXPECT_FALSE(runs_code_for("gfx1102", "gfx1100"));
  EXPECT_FALSE(runs_code_for("gfx1103", "gfx1100"));
  EXPECT_FALSE(runs_code_for("gfx1150", "gfx1100"));
  EXPECT_FALSE(runs_code_for("gfx942", "gfx90a"));
  EXPECT_FALSE(runs_code_for("gfx950", "gfx942"));
  EXPECT_FALSE(runs_code_for("gfx906", ""));
}

TEST(Target, WithTheSameInstructionsHasTheSameMatrixUnitAndANameOfTheSameLength) {
  for (const char* name : {"gfx1101", "gfx1103", "gfx1150", "gfx1152", "gfx1200"}) {
    const Target* target = find_target(name);
    ASSERT_NE(target, nullptr) << name;
    const Target* same = find_target(target->same_isa);
    ASSERT_NE(same, nullptr) << name;
    EXPECT_TRUE(same->same_isa.empty()) << name;
    EXPECT_EQ(same->matrix_unit, target->matrix_unit) << name;
    EXPECT_EQ(same->name.size(), target->name.size()) << name;
  }
  EXPECT_EQ(matrix_unit("gfx942"), MatrixUnit::kMfma);
  EXPECT_EQ(matrix_unit("gfx1100"), MatrixUnit::kWmma11);
  EXPECT_EQ(matrix_unit("gfx1201"), MatrixUnit::kWmma12);
  EXPECT_EQ(matrix_unit("gfx1030"), MatrixUnit::kNone);
}

TEST(Target, OfCdna2AloneTakesSmallF16As0) {
  EXPECT_TRUE(flushes_f16("gfx90a"));
  for (const char* name : {"gfx942", "gfx1100", "gfx1201", "gfx1030"})
    EXPECT_FALSE(flushes_f16(name)) << name;
}

std::vector<std::byte> code_object(unsigned machine, const std::string& metadata) {
  std::vector<std::byte> code(64);
  std::memcpy(code.data(), "\177ELF", 4);
  code[0x30] = static_cast<std::byte>(machine);
  for (const char c : metadata) code.push_back(static_cast<std::byte>(c));
  return code;
}

TEST(CodeObject, IsRelabelledInItsHeaderAndItsMetadata) {
  const Target& from = *find_target("gfx1102");
  const Target& to = *find_target("gfx1103");
  const std::vector<std::byte> code = code_object(0x47, "amdgcn-amd-amdhsa--gfx1102 gfx1102");
  EXPECT_TRUE(is_code_for(code, from));
  EXPECT_FALSE(is_code_for(code, to));
  EXPECT_EQ(relabelled_code(code, from, to), code_object(0x44, "amdgcn-amd-amdhsa--gfx1103 gfx1102"));
  EXPECT_FALSE(is_code_for(std::span(code).first(63), from)) << "cut off";
  EXPECT_FALSE(is_code_for(std::as_bytes(std::span("__CLANG_OFFLOAD_BUNDLE__")), from));
}

TEST(CodeObjects, ThatTheBuildMadeAreForWhatTheirLabelSays) {
  for (const gpu::EmbeddedModule& module : embedded_modules()) {
    const Target* target = find_target(module.architecture);
    ASSERT_NE(target, nullptr) << module.architecture << " is not in the table";
    EXPECT_TRUE(is_code_for(module.archive->find(module.member), *target))
        << module.source << " for " << module.architecture;
  }
}

gpu::DeviceProperties device(const std::string& architecture, int warp_size) {
  gpu::DeviceProperties p;
  p.name = "Radeon";
  p.architecture = architecture;
  p.warp_size = warp_size;
  return p;
}

TEST(ReasonAgainst, NamesTheArchitectureWhatThereIsCodeForAndWhatToInstall) {
  const std::set<std::string> built = {"gfx1102", "gfx942"};
  const std::string no_compiler = "hipRTC was not found. Install it";
  EXPECT_EQ(reason_against(device("gfx942", 64), built, no_compiler), "");
  EXPECT_EQ(reason_against(device("gfx1103", 32), built, no_compiler), "");
  EXPECT_EQ(reason_against(device("gfx906", 64), built, ""), "") << "is compiled for";
  const std::string reason = reason_against(device("gfx906", 64), built, no_compiler);
  EXPECT_EQ(reason,
            "Radeon is a gfx906, this binary has machine code for gfx1102, gfx942, and hipRTC was not found. "
            "Install it");
  EXPECT_NE(reason_against(device("gfx942", 64), {}, no_compiler).find("machine code for no AMD GPU"),
            std::string::npos);
  EXPECT_NE(reason_against(device("gfx9999", 16), built, "").find("waves of 16"), std::string::npos);
}

}  // namespace
}  // namespace tessera::hip
