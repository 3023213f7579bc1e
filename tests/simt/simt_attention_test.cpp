// The conformance suite of attention with the GPU's generic kernel on the host: its short form, and all terms
// in every kind of storage. Each case runs for the dtypes and with the keys in one piece or split by turns,
// so that the two sizes of warps together see them all.

#include "simt/simt_attention.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "simt/conformance_test.h"
#include "simt/kernel_table.h"
#include "verify/verify.h"

namespace tessera {
namespace {

bool is_wanted(const VerifyCase& c) {
  // These are there for kernels with large tiles. The generic kernel takes a warp a row and nothing is tiled,
  // so that each row of theirs is one that shorter cases have, and they would take ten times as long as all
  // others.
  if (c.name.starts_with("long prompts")) return false;
  if (c.name.find("of lowest numbers, head_dim 128, prompt") != std::string::npos) return false;
  // Kernels are compiled ahead here, without a modifier's text: modifier_text_test runs those.
  if (c.name.starts_with("modifier ")) return false;
  return c.quick || c.name.find("all terms, odd strides") != std::string::npos ||
         c.name.find("head_dim 576, decode") != std::string::npos ||
         c.name.find("q f8e4m3, odd strides") != std::string::npos ||
         c.name.find("head_dim 40 and 17") != std::string::npos;
}

void register_tests() {
  const bool is_wide = simt::kernel_table().begin()->second.warp_size == 64;
  int count = 0;
  for (const VerifyCase& c : attention_verify_cases()) {
    // The dtypes have the same code but for loads and stores. What many launches compare with one another
    // takes longest and is the same for both sizes of warps.
    const bool is_bf16 = c.name.ends_with("/bf16");
    if (!is_wanted(c) || is_bf16 != is_wide || (is_wide && c.name.starts_with("batch_invariant"))) continue;
    // f32 and f16 follow one another: both ways for each case, and over the cases both ways for each dtype.
    const bool is_split = count % 2 != count / 2 % 2 && simt::may_be_split(c);
    const std::string backend = is_split ? "simt_split" : "simt";
    ++count;
    simt::register_conformance_test(c, "SimtAttention", backend);
  }
}

TEST(SimtRandom, ProblemsOfEveryKindPass) {
  const auto seed = static_cast<std::uint64_t>(simt::kernel_table().begin()->second.warp_size);
  for (const char* backend : {"simt", "simt_split"}) simt::expect_random_problems_pass(backend, seed);
}

TEST(SimtRandom, ARowWhoseVisibleScoresAreNanIsNanWhereverItsKeysAreSplit) {
  for (const char* dtype : {"f32", "bf16"}) {
    simt::expect_case_passes("simt_split",
                             std::string("dtype=") + dtype +
                                 " batch=1 len_q=2 len_kv=300 diagonal=20,0,bottom_right content=nan_keys");
  }
}

// Where the keys are several segments, whose results many blocks have or one. They are compared over many
// launches: each size of warps has its dtypes alone.
TEST(SimtRandom, BatchInvariantBitsDoNotDependOnWhoHasASegment) {
  const bool is_wide = simt::kernel_table().begin()->second.warp_size == 64;
  for (const char* text :
       {"dtype=f32 batch=2 len_q=3 len_kv=1300 heads=4 kv_heads=2 storage=padded lens_kv=1300,513 sinks=1 "
        "lse=1 "
        "diagonal=all,0,bottom_right",
        "dtype=bf16 batch=1 len_q=2 len_kv=1700 heads=2 kv_heads=1 diagonal=600,0,bottom_right "
        "content=nan_keys lse=1",
        "dtype=f16 batch=2 len_q=2 len_kv=1100 heads=2 kv_heads=2 dim_qk=130 dim_v=130 kv_dtype=f8e4m3 "
        "kv_scales=head boolean=bool,bq,0.995,1 lse=1",
        "dtype=f16 batch=1 len_q=1 len_kv=1030 heads=2 kv_heads=1 dim_qk=40 dim_v=17 lse=1"}) {
    if (std::string_view(text).starts_with("dtype=bf16") != is_wide) continue;
    for (const char* backend : {"simt", "simt_split"})
      simt::expect_case_passes(backend, std::string(text) + " invariant=1");
  }
}

TEST(SimtRandom, ValuesNearTheLargestNumberHaveAFiniteMean) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    for (const char* backend : {"simt", "simt_split"})
      simt::expect_case_passes(backend,
                               std::string("dtype=") + dtype +
                                   " batch=1 len_q=3 len_kv=290 dim_qk=3 dim_v=5 content=largest_values");
  }
}

// A sum of segments' means may be infinite although no segment's sum is, and their mean isn't either.
TEST(SimtRandom, BatchInvariantValuesNearTheLargestNumberHaveAFiniteMean) {
  for (const char* dtype : {"f32", "bf16"}) {
    for (const char* backend : {"simt", "simt_split"})
      simt::expect_case_passes(
          backend,
          std::string("dtype=") + dtype +
              " batch=1 len_q=2 len_kv=1600 heads=1 kv_heads=1 dim_qk=3 dim_v=20 boolean=bool,bq,0.99,1 "
              "content=constant_value v_spread=8.5e37 sinks=1 lse=1 invariant=1");
  }
}

TEST(SimtRandom, InfiniteKeysThatWeighNothingHideTheirInfiniteValues) {
  for (const char* backend : {"simt", "simt_split"})
    simt::expect_case_passes(backend, "batch=1 len_q=3 len_kv=290 dim_qk=3 dim_v=5 content=infinite_keys");
}

// 1024 rows and more, which attention_combine_rows takes: with whole vectors of columns and without.
TEST(SimtRandom, AWarpMergesTheSplitsOfARowWhereThereAreManyRows) {
  const bool is_wide = simt::kernel_table().begin()->second.warp_size == 64;
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    if ((std::string_view(dtype) == "bf16") != is_wide) continue;
    for (const char* dims : {"dim_qk=3 dim_v=8", "dim_qk=3 dim_v=150 sinks=1"}) {
      simt::expect_case_passes("simt_split", std::string("dtype=") + dtype + ' ' + dims +
                                                 " batch=2 len_q=64 len_kv=70 heads=8 kv_heads=2 "
                                                 "diagonal=20,0,bottom_right lse=1");
    }
  }
}

class Coverage final : public testing::Environment {
 public:
  void TearDown() override {
    const bool is_wide = simt::kernel_table().begin()->second.warp_size == 64;
    simt::expect_all_were_launched([is_wide](const std::string& entry) {
      if (entry == "align_rows" || entry.starts_with("split_rows_")) return true;
      return (entry.starts_with("attention_") || entry.starts_with("merge_states_") ||
              entry.starts_with("widen_queries_")) &&
             entry.ends_with("_bf16") == is_wide;
    });
  }
};

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  tessera::add_attention_backend(
      tessera::simt::make_simt_attention("simt", 1, tessera::simt::generic_kernel()));
  tessera::add_attention_backend(
      tessera::simt::make_simt_attention("simt_split", 3, tessera::simt::generic_kernel()));
  tessera::register_tests();
  testing::AddGlobalTestEnvironment(new tessera::Coverage);
  return RUN_ALL_TESTS();
}
