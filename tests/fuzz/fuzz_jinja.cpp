// Any text as a template and, behind a zero byte, its variables as JSON: valid UTF-8 within the limits, or an
// Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/text.h"
#include "model/jinja/json.h"
#include "model/jinja/template.h"
#include "tessera/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera::jinja;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = text.find('\0');
  const std::string_view json = zero == text.npos ? std::string_view("{}") : text.substr(zero + 1);
  Heap heap({.max_steps = 20'000, .max_bytes = 1 << 22});
  try {
    const Template parsed(text.substr(0, zero), "template");
    std::vector<std::pair<std::string, Value>> variables;
    const Value root = parse_json(heap, json, true);
    if (!root.is(Kind::kDict)) return 0;
    for (const auto& [key, value] : root.dict->entries)
      variables.emplace_back(std::string(key.view()), value);
    const MarkedText out = parsed.render(heap, variables);
    if (!tessera::is_valid_utf8(out.view())) std::abort();
    std::size_t end = 0;
    for (const tessera::TextRange range : out.foreign()) {
      if (range.begin >= range.end || (end > 0 && range.begin <= end) || range.end > out.size()) std::abort();
      end = range.end;
    }
  } catch (const tessera::Error&) {
  } catch (const Failure&) {
  }
  return 0;
}
