#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tessera/model.h"

namespace tessera {

/// What transformers computed with one of the models of tests/fixtures/models.
struct GoldenFixture {
  std::string name;
  std::filesystem::path model;       ///< a folder or a .gguf file
  std::vector<std::int32_t> tokens;  ///< the prompt
  std::vector<float> logits;         ///< (tokens, vocab_size), NaN where the fixture says nothing
  std::vector<std::int32_t> greedy;  ///< what greedy decoding appends
  /// Of a model whose RoPE has other frequencies for short contexts: the logits of a prompt that ends with
  /// such a context.
  std::vector<float> short_logits;
};

/// Reads tests/fixtures/models/<name>.
GoldenFixture read_golden_fixture(const std::string& name);

/// What transformers computed with the demo model.
struct DemoFixture {
  std::string prompt;
  std::vector<std::int32_t> tokens;  ///< of the prompt
  std::vector<float> logits;         ///< of the prompt's last positions, (positions, vocab_size)
  std::vector<std::int32_t> greedy;
  std::string greedy_text;
};

/// Reads tests/fixtures/models/demo_expected.safetensors and .json.
DemoFixture read_demo_fixture();

/// The folders of tests/fixtures/models, sorted.
std::vector<std::string> golden_fixture_names();

/// Largest max|a - b| / max|b| over the prompt's positions of transformers' own logits in 16 bits.
struct Errors16 {
  double bf16 = 0;
  double f16 = 0;
};

/// By model, for those that transformers reads: tests/fixtures/models/errors_16bit.json.
std::map<std::string, Errors16> read_golden_errors_16bit();

/// Largest max|a - b| / max|b| over the rows of `vocab_size` columns, where b is not NaN.
double max_relative_row_error(const std::vector<float>& a, const std::vector<float>& b,
                              std::size_t vocab_size);

/// Options that give a golden model what it needs and no more.
ModelOptions golden_options(const std::string& backend);

}  // namespace tessera
