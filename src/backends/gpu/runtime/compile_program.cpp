#include "backends/gpu/runtime/compile_program.h"

#include <cstdlib>

namespace tessera::gpu {

void throw_not_compiled(const SourceFile& source, const std::string& architecture,
                        const std::string& unavailable_reason) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("kernel {} is not built into this binary for {} and can't be compiled: {}",
                          source.name, architecture, unavailable_reason));
}

std::string quoted_lines(const std::string& log, const SourceFile& source) {
  const std::string mark = std::string(source.name) + "(";
  std::string quoted;
  std::size_t at = log.find(mark);
  for (int count = 0; at != std::string::npos && count < 5; at = log.find(mark, at + 1), ++count) {
    const int wanted = std::atoi(log.c_str() + at + mark.size());
    std::size_t begin = 0;
    for (int line = 1; line < wanted && begin != std::string_view::npos; ++line) {
      begin = source.text.find('\n', begin);
      if (begin != std::string_view::npos) ++begin;
    }
    if (wanted < 1 || begin == std::string_view::npos) continue;
    quoted +=
        fmt::format("\n  {}: {}", wanted, source.text.substr(begin, source.text.find('\n', begin) - begin));
  }
  return quoted;
}

const char** CStrings::data() {
  pointers_.clear();
  for (const std::string& text : texts_) pointers_.push_back(text.c_str());
  return pointers_.data();
}

}  // namespace tessera::gpu
