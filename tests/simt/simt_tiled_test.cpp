// The conformance suite of attention with the tiled kernel for any GPU on the host. A problem takes one of
// the modules that the build has, by turns those that suit it with the least head_dims; what it doesn't take
// is the generic kernel's.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "attention/narrow.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/problem_params.h"
#include "common/attention_tiled_traits.h"
#include "simt/conformance_test.h"
#include "simt/kernel_table.h"
#include "simt/simt_attention.h"
#include "verify/verify.h"

namespace tessera {
namespace {

/// As its entry's name says.
struct Module {
  std::string entry;
  std::string types;  // "bf16_bf16"
  kernels::TiledShape shape;
  int piece = 0;
};

const std::vector<Module>& modules() {
  static const std::vector<Module> all = [] {
    std::vector<Module> found;
    for (const auto& [entry, kernel] : simt::kernel_table()) {
      Module m;
      char q[8];
      char kv[8];
      if (std::sscanf(entry.c_str(), "attention_tiled_%7[^_]_%7[^_]_%d_%d_%d_%d_%d", q, kv, &m.shape.block_m,
                      &m.shape.head_dim_qk, &m.shape.head_dim_v, &m.piece, &m.shape.shared_kib) != 7)
        continue;
      m.entry = entry;
      m.types = fmt::format("{}_{}", q, kv);
      found.push_back(m);
    }
    return found;
  }();
  return all;
}

std::vector<Module> modules_for(const AttentionProblem& p) {
  std::vector<Module> found;
  const auto size_of = [](const Module& m) { return m.shape.head_dim_qk + m.shape.head_dim_v; };
  const std::string types = fmt::format("{}_{}", dtype_name(wide_dtype(p)), dtype_name(p.k.dtype));
  for (const Module& m : modules()) {
    if (m.types != types || p.head_dim_qk > m.shape.head_dim_qk || p.head_dim_v > m.shape.head_dim_v ||
        gpu::row_alignment(p) % m.piece != 0)
      continue;
    if (!found.empty() && size_of(m) < size_of(found.front())) found.clear();
    if (found.empty() || size_of(m) == size_of(found.front())) found.push_back(m);
  }
  return found;
}

std::string reason_against(const AttentionProblem& p, const gpu::DeviceProperties& device) {
  if (modules_for(p).empty()) return "no module for it was built";
  return gpu::kTiledAttention.reason_against(p, device);
}

gpu::KernelChoice choose(const AttentionProblem& p, const gpu::DeviceProperties& device,
                         const AttentionConfig& given) {
  const std::vector<Module> all = modules_for(p);
  const Module& m = all[static_cast<std::size_t>(p.seq_len_q + p.seq_len_kv + p.head_dim_v) % all.size()];
  AttentionConfig forced = given;
  forced.block_m = m.shape.block_m;
  gpu::KernelChoice choice = gpu::kTiledAttention.choose(p, device, forced);
  choice.entry = m.entry;
  choice.shared_bytes = static_cast<std::size_t>(kernels::tiled_shared_bytes(kernels::tiled_layout(m.shape)));
  return choice;
}

const gpu::AttentionKernel& tested_kernel() {
  static const gpu::AttentionKernel kernel = [] {
    gpu::AttentionKernel changed = gpu::kTiledAttention;
    changed.reason_against = reason_against;
    changed.choose = choose;
    return changed;
  }();
  return kernel;
}

gpu::AttentionKernels tested_kernels() {
  static const std::array kernels = {&tested_kernel(), &gpu::kGenericAttention};
  return kernels;
}

bool is_wide() { return simt::kernel_table().begin()->second.warp_size == 64; }

bool is_wanted(const VerifyCase& c) {
  // Modules are compiled without a modifier's text, and batch-invariant calls are another kernel's.
  if (c.name.starts_with("modifier ") || c.name.find("batch_invariant") != std::string::npos) return false;
  // Of the long ones those that others are not like.
  if (c.name.starts_with("q f8e4m3, ") || c.name.starts_with("long prompts, unaligned")) return false;
  return c.quick || c.name.find("all terms, odd strides") != std::string::npos ||
         c.name.find("head_dim") != std::string::npos;
}

void register_tests() {
  int count = 0;
  for (const VerifyCase& c : attention_verify_cases()) {
    if (!is_wanted(c) || c.name.ends_with("/bf16") != is_wide()) continue;
    const bool is_split = count % 2 != count / 2 % 2 && simt::may_be_split(c);
    const std::string backend = is_split ? "tiled_split" : "tiled";
    ++count;
    simt::register_conformance_test(c, "SimtTiled", backend);
  }
}

TEST(SimtTiled, ProblemsOfEveryKindPass) {
  const std::uint64_t seed = is_wide() ? 64 : 32;
  for (const char* backend : {"tiled", "tiled_split"}) simt::expect_random_problems_pass(backend, seed);
}

class Coverage final : public testing::Environment {
 public:
  void TearDown() override {
    simt::expect_all_were_launched(
        [](const std::string& entry) { return entry.starts_with("attention_tiled_"); });
  }
};

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  tessera::add_attention_backend(tessera::simt::make_simt_attention("tiled", 1, tessera::tested_kernels()));
  tessera::add_attention_backend(
      tessera::simt::make_simt_attention("tiled_split", 3, tessera::tested_kernels()));
  tessera::register_tests();
  testing::AddGlobalTestEnvironment(new tessera::Coverage);
  return RUN_ALL_TESTS();
}
