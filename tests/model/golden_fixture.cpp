#include "model/golden_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace tessera {
namespace {

const std::filesystem::path kModels = std::filesystem::path(TESSERA_FIXTURES) / "models";

/// A tensor of a safetensors file, read apart from the library's own reader.
template <class T>
std::vector<T> read_tensor(const std::string& file, const std::string& name, const std::string& dtype) {
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), sizeof(header_size));
  const nlohmann::json tensor = nlohmann::json::parse(file.substr(8, header_size)).at(name);
  if (tensor.at("dtype") != dtype) throw std::runtime_error(name + " is not " + dtype);
  const std::size_t begin = tensor.at("data_offsets").at(0);
  const std::size_t end = tensor.at("data_offsets").at(1);
  std::vector<T> values((end - begin) / sizeof(T));
  std::memcpy(values.data(), file.data() + 8 + header_size + begin, end - begin);
  return values;
}

/// Logits, (positions, vocab_size), in whole numbers of a row's step: of a row that has a first column every
/// fourth from there on, its largest among them, and NaN for the others.
std::vector<float> read_logits(const std::string& file, const std::string& name) {
  const std::vector<float> steps = read_tensor<float>(file, name + "_step", "F32");
  const std::vector<std::int16_t> stored = read_tensor<std::int16_t>(file, name, "I16");
  std::vector<std::int32_t> first(steps.size());
  std::size_t every = 1;
  if (file.find('"' + name + "_first\"") != file.npos) {
    first = read_tensor<std::int32_t>(file, name + "_first", "I32");
    every = 4;
  }
  const std::size_t columns = stored.size() / steps.size();
  std::vector<float> logits(stored.size() * every, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const std::size_t row = i / columns, column = static_cast<std::size_t>(first[row]) + i % columns * every;
    logits[row * columns * every + column] = stored[i] * steps[row];
  }
  return logits;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("can't read " + path.string());
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace

GoldenFixture read_golden_fixture(const std::string& name) {
  const std::filesystem::path folder = kModels / name;
  const std::string file = read_file(folder / "expected.safetensors");
  GoldenFixture fixture;
  fixture.name = name;
  fixture.model = std::filesystem::exists(folder / "model.gguf") ? folder / "model.gguf" : folder;
  fixture.tokens = read_tensor<std::int32_t>(file, "tokens", "I32");
  fixture.logits = read_logits(file, "logits");
  fixture.greedy = read_tensor<std::int32_t>(file, "greedy", "I32");
  if (file.find("\"short_logits\"") != file.npos) fixture.short_logits = read_logits(file, "short_logits");
  return fixture;
}

DemoFixture read_demo_fixture() {
  const std::string file = read_file(kModels / "demo_expected.safetensors");
  const nlohmann::json texts = nlohmann::json::parse(read_file(kModels / "demo_expected.json"));
  DemoFixture fixture;
  fixture.prompt = texts.at("prompt");
  fixture.tokens = read_tensor<std::int32_t>(file, "tokens", "I32");
  fixture.logits = read_logits(file, "logits");
  fixture.greedy = read_tensor<std::int32_t>(file, "greedy", "I32");
  fixture.greedy_text = texts.at("greedy_text");
  return fixture;
}

std::vector<std::string> golden_fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    if (std::filesystem::exists(entry.path() / "expected.safetensors"))
      names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::map<std::string, Errors16> read_golden_errors_16bit() {
  const nlohmann::json measured = nlohmann::json::parse(read_file(kModels / "errors_16bit.json"));
  std::map<std::string, Errors16> errors;
  for (const auto& [name, error] : measured.items()) {
    errors[name] = {error.at("bf16").get<double>(), error.at("f16").get<double>()};
  }
  return errors;
}

double max_relative_row_error(const std::vector<float>& a, const std::vector<float>& b,
                              std::size_t vocab_size) {
  if (a.size() != b.size()) throw std::runtime_error("different numbers of logits");
  double worst = 0;
  for (std::size_t row = 0; row < a.size(); row += vocab_size) {
    double error = 0;
    double largest = 0;
    for (std::size_t i = row; i < row + vocab_size; ++i) {
      if (std::isnan(b[i])) continue;
      if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
      error = std::max(error, std::abs(double{a[i]} - b[i]));
      largest = std::max(largest, std::abs(double{b[i]}));
    }
    if (!(largest > 0)) throw std::runtime_error("a row of logits to compare with is empty");
    worst = std::max(worst, error / largest);
  }
  return worst;
}

ModelOptions golden_options(const std::string& backend) {
  ModelOptions options;
  options.backend = backend;
  options.max_seq_len = 80;
  options.activation_dtype = DType::kF32;
  return options;
}

}  // namespace tessera
