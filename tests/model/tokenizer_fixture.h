#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"

/// The files of tests/fixtures/tokenizers, as tools/fixtures/make_tokenizer_fixtures.py writes them.
namespace tessera::fixture {

inline nlohmann::json read(const std::string& name) {
  std::ifstream file(std::string(TESSERA_FIXTURES) + "/tokenizers/" + name + ".json");
  return nlohmann::json::parse(file);
}

inline const std::vector<std::string>& strings() {
  static const auto all = read("strings").get<std::vector<std::string>>();
  return all;
}

/// Ids that are stored as two characters each.
inline std::vector<TokenId> unpack(std::string_view packed) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i + 1 < packed.size(); i += 2)
    ids.push_back(static_cast<TokenId>(kDigits.find(packed[i]) << 6 | kDigits.find(packed[i + 1])));
  return ids;
}

/// What string `index` decodes to: stored only if it is not the string itself.
inline std::string decoded(const nlohmann::json& expected, std::size_t index, const std::string& string) {
  const auto& decoded = expected.at("decoded");
  const auto found = decoded.find(std::to_string(index));
  return found == decoded.end() ? string : found->get<std::string>();
}

inline std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return bytes;
}

inline std::shared_ptr<const Tokenizer> tokenizer(const std::string& name) {
  return load_tokenizer_json(std::string(TESSERA_FIXTURES) + "/tokenizers/" + name + ".json");
}

}  // namespace tessera::fixture
