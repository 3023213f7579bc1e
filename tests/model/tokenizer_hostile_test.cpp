// Tokenizers made to take long or to take much memory, and long texts that are none of that.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "cpu_time.h"
#include "model/model_files.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/regex.h"
#include "model/tokenizer/vocabulary.h"
#include "model/tokenizer_fixture.h"
#include "tessera/error.h"

namespace {

std::atomic<std::size_t> live_bytes{0}, most_live_bytes{0};

void* count_and_allocate(std::size_t size) {
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  const std::size_t live = live_bytes += malloc_usable_size(memory);
  std::size_t most = most_live_bytes;
  while (live > most && !most_live_bytes.compare_exchange_weak(most, live)) {
  }
  return memory;
}

void count_and_free(void* memory) noexcept {
  live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

// All of this program's memory, and the library's, goes through here.
void* operator new(std::size_t size) { return count_and_allocate(size); }
void* operator new[](std::size_t size) { return count_and_allocate(size); }
// std::stable_sort's; a sanitizer brings its own, which doesn't call the one above.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return count_and_allocate(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { count_and_free(memory); }
void operator delete[](void* memory) noexcept { count_and_free(memory); }
void operator delete(void* memory, std::size_t) noexcept { count_and_free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { count_and_free(memory); }

namespace tessera {
namespace {

using nlohmann::json;
using testing_files::error_of;
using tokenizers::Regex;
using tokenizers::Vocabulary;
using tokenizers::WorkBudget;

/// A tokenizer whose tokens are the printable ASCII characters, and `more` of 18 letters a that differ at
/// their ends.
json ascii_tokenizer(int more = 0) {
  json vocabulary = json::object();
  for (char c = '!'; c <= '~'; ++c) vocabulary[std::string(1, c)] = c - '!';
  for (int i = 0; i < more; ++i) {
    std::string text(18, 'a');
    for (std::size_t digit = 0, rest = static_cast<std::size_t>(i); rest > 0; rest /= 26, ++digit) {
      text[17 - digit] = static_cast<char>('a' + rest % 26);
    }
    vocabulary[text + "!"] = 94 + i;
  }
  return {{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}},
          {"decoder", {{"type", "Fuse"}}}};
}

// Takes a time that grows exponentially with the letters a it finds: a moment for 18 of them.
constexpr const char* kSlowPattern = "(?:a|a)*[0-9]";

json slow_replace() { return {{"type", "Replace"}, {"pattern", {{"Regex", kSlowPattern}}}, {"content", ""}}; }

TEST(HostileRegex, OneBudgetHoldsForAWholeLoad) {
  // Each of the tokens takes a moment in each of the steps, and none reaches a limit of its own.
  json file = ascii_tokenizer(300);
  file["decoder"] = {{"type", "Sequence"}, {"decoders", json::array()}};
  for (int i = 0; i < 40; ++i) file["decoder"]["decoders"].push_back(slow_replace());
  const std::string message =
      error_of(ErrorCode::kUnsupported, [&] { parse_tokenizer_json(file.dump(), "tokenizer.json"); });
  EXPECT_TRUE(message.starts_with("tokenizer.json: decoder.decoders[")) << message;
}

TEST(HostileRegex, OneBudgetHoldsForAWholeText) {
  json file = ascii_tokenizer();
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", json::array()}};
  // The first cuts the text into pieces of 18, which are short enough to match one by one.
  for (const char* pattern : {"a{18}", kSlowPattern, kSlowPattern, kSlowPattern, kSlowPattern}) {
    file["pre_tokenizer"]["pretokenizers"].push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}});
  }
  const auto tokenizer = parse_tokenizer_json(file.dump(), "tokenizer.json");
  EXPECT_EQ(tokenizer->encode(std::string(18, 'b')).size(), 18u);
  const std::string message =
      error_of(ErrorCode::kUnsupported, [&] { tokenizer->encode(std::string(18 * 2000, 'a')); });
  EXPECT_TRUE(message.starts_with("tokenizer.json: pre_tokenizer.pretokenizers[")) << message;
}

TEST(LongTexts, OfTheUsualPatternsHaveNoLimit) {
  const char* const kLlama3 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
      R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const char* const kTekken =
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
      R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
      R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::string source = "test";
  for (const std::string_view pattern :
       {std::string_view(kLlama3), std::string_view(kTekken), tokenizers::kGpt2Pattern}) {
    const Regex regex(pattern, source);
    for (const std::string unit : {" ", "A", "\u00C9", "\u02B0", "\u0301", "\u6F22", "\n", "\u3000"}) {
      constexpr std::size_t kCharacters = 11'000'000;
      std::string text;
      text.reserve(kCharacters * unit.size() + 1);
      for (std::size_t i = 0; i < kCharacters; ++i) text += unit;
      text += '!';
      std::vector<TextRange> matches;
      WorkBudget budget(source, text.size());
      EXPECT_NO_THROW(regex.find_all(text, budget, matches)) << pattern << " on " << unit;
      EXPECT_LE(matches.size(), 3u);
    }
  }
}

TEST(HostileErrors, QuoteAtMostAShortPiece) {
  const std::string kLong(20000, 'x');
  const auto changed = [&](const char* pointer, const json& value) {
    json file = ascii_tokenizer();
    file[json::json_pointer(pointer)] = value;
    return file;
  };
  for (const json& file : {
           changed("/model/type", kLong),
           changed("/model/vocab", json{{kLong, -1}}),
           changed("/model/vocab", json{{"a", kLong}}),
           changed("/model/vocab", json{{"a", {{"b", kLong}}}}),
           changed("/model/vocab", json{{kLong, 1}, {kLong + "y", 1}}),
           changed("/model/vocab", json{{kLong, 10'000'000}}),
           changed("/model/merges", json::array({kLong + " a"})),
           changed("/model/merges", json::array({json::array({kLong, kLong, kLong})})),
           changed("/model/unk_token", kLong),
           changed("/model/end_of_word_suffix", kLong),
           changed("/normalizer", json{{"type", kLong}}),
           changed("/pre_tokenizer", json{{"type", kLong}}),
           changed("/pre_tokenizer",
                   json{{"type", "Split"}, {"pattern", {{"Regex", "(" + kLong}}}, {"behavior", "Isolated"}}),
           changed("/pre_tokenizer",
                   json{{"type", "Split"}, {"pattern", {{"String", "x"}}}, {"behavior", kLong}}),
           changed("/decoder", json{{"type", kLong}}),
           changed("/post_processor", json{{"type", "TemplateProcessing"},
                                           {"single", json::array({json{{"SpecialToken", {{"id", kLong}}}}})},
                                           {"special_tokens", json::object()}}),
       }) {
    try {
      parse_tokenizer_json(file.dump(), "tokenizer.json");
      ADD_FAILURE() << "accepted " << file.dump().substr(0, 100);
    } catch (const Error& error) {
      EXPECT_TRUE(error.message().starts_with("tokenizer.json: ")) << error.message().substr(0, 200);
      EXPECT_LT(error.message().size(), 500u) << error.message().substr(0, 200);
    }
  }
}

// ---- Hash flooding

/// MurmurHash64A's last step of one 8-byte block, which std::hash of libstdc++ is made of, and its inverse.
constexpr std::uint64_t kMul = 0xc6a4a7935bd1e995u;
std::uint64_t shift_mix(std::uint64_t v) { return v ^ (v >> 47); }
std::uint64_t mixed(std::uint64_t block) { return shift_mix(block * kMul) * kMul; }
std::uint64_t unmixed(std::uint64_t value) {
  std::uint64_t inverse = kMul;  // modulo 2^64, by Newton's iteration
  for (int i = 0; i < 6; ++i) inverse *= 2 - kMul * inverse;
  return shift_mix(value * inverse) * inverse;
}

/// Text i of many whose std::hash is the same.
std::string colliding_text(std::uint64_t i) {
  constexpr std::uint64_t kSeed = 0xc70f6907u, kLength = 16;
  const std::uint64_t after_first = ((kSeed ^ (kLength * kMul)) ^ mixed(i)) * kMul;
  const std::uint64_t second = unmixed(after_first ^ 0x1234);  // so that both make 0x1234
  std::string text(kLength, '\0');
  std::memcpy(text.data(), &i, 8);
  std::memcpy(text.data() + 8, &second, 8);
  return text;
}

TEST(HashFlooding, TokensOfEqualStdHashTakeNoLongerThanOthers) {
  constexpr TokenId kTokens = 100'000;
  if (std::hash<std::string>()(colliding_text(1)) != std::hash<std::string>()(colliding_text(2))) {
    GTEST_SKIP() << "this standard library hashes texts in another way";
  }
  const auto fill = [](bool colliding) {
    Vocabulary vocabulary;
    for (TokenId id = 0; id < kTokens; ++id) {
      const auto i = static_cast<std::uint64_t>(id);
      EXPECT_TRUE(
          vocabulary.add(id, colliding ? colliding_text(i) : std::to_string(i * 0x9e3779b97f4a7c15u)));
    }
    EXPECT_EQ(vocabulary.find(colliding ? colliding_text(77) : "0"), colliding ? 77 : 0);
    EXPECT_EQ(vocabulary.find("not there"), std::nullopt);
  };
  fill(false);  // memory is warm then
  const double ordinary = cpu_seconds([&] { fill(false); });
  // A table of std::hash takes thousands of times as long.
  EXPECT_LT(cpu_seconds([&] { fill(true); }), 50 * ordinary);
}

TEST(Vocabulary, FindsTheFirstOfEqualTextsAndReplacesTexts) {
  Vocabulary vocabulary;
  vocabulary.set(5, "a");
  vocabulary.set(3, "a");
  vocabulary.set(4, "");
  EXPECT_EQ(vocabulary.find("a"), 5);
  EXPECT_EQ(vocabulary.find(""), 4);
  EXPECT_EQ(vocabulary.id_limit(), 6);
  EXPECT_FALSE(vocabulary.contains(0));
  EXPECT_FALSE(vocabulary.add(7, "a"));
  EXPECT_FALSE(vocabulary.add(3, "b"));
  EXPECT_TRUE(vocabulary.add(7, "b"));
  vocabulary.set(3, "c");
  EXPECT_EQ(vocabulary.text(3), "c");
  EXPECT_EQ(vocabulary.text(5), "a");
  EXPECT_EQ(vocabulary.find("c"), 3);
}

// ---- Memory

TEST(HostileMemory, ALoadTakesAFewTimesTheFile) {
  std::string tokens = R"({"model": {"type": "BPE", "vocab": {)", merges = tokens, added = tokens;
  // The shortest entries that there can be: the most values a byte.
  for (int i = 0; i < 300'000; ++i)
    tokens += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":" + std::to_string(i);
  tokens += R"(}, "merges": []}})";
  merges += R"("a":0,"aa":1}, "merges": [)";
  for (int i = 0; i < 600'000; ++i) merges += i == 0 ? R"("a a")" : R"(,"a a")";
  merges += "]}}";
  added += R"("a":0}, "merges": []}, "added_tokens": [)";
  for (int i = 0; i < 300'000; ++i)
    added += (i == 0 ? "" : ",") + (R"({"content":")" + std::to_string(i)) + R"("})";
  added += "]}";
  std::string other = R"({"model": {"type": "BPE", "vocab": {}, "merges": []}, "version": [)";
  for (int i = 0; i < 3'000'000; ++i) other += i == 0 ? "1" : ",1";
  other += "]}";
  for (const std::string& file : {tokens, merges, added, other}) {
    const std::size_t before = live_bytes;
    most_live_bytes = before;
    try {
      parse_tokenizer_json(file, "tokenizer.json");
    } catch (const Error& error) {
      EXPECT_HAS(error.message(), "values that belong together");
    }
    // A document of JSON values takes 20 to 35 times.
    EXPECT_LT(most_live_bytes - before, 20 * file.size()) << file.substr(0, 80);
  }
}

}  // namespace
}  // namespace tessera
