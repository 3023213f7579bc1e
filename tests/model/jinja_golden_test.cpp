// Templates against what jinja2 renders in transformers' environment (tools/fixtures/make_jinja_fixtures.py).
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "model/jinja/json.h"
#include "model/jinja/template.h"
#include "tessera/error.h"

namespace tessera::jinja {
namespace {

using Variables = std::vector<std::pair<std::string, Value>>;

std::string read(const std::string& name) {
  std::ifstream file(TESSERA_FIXTURES "/jinja/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Value at(Value dict, std::string_view key) {
  const Value* const found = dict.dict->find(key);
  if (found == nullptr) throw std::runtime_error("the fixture has no " + std::string(key));
  return *found;
}

/// A deep copy, as templates may change what they are given.
Value copy(Heap& heap, Value value) { return parse_json(heap, dump_json(heap, value, {}).view(), true); }

/// What comes out, or why nothing does; `failed` says which.
std::string rendered(Value source, Value variables, const Variables& more, bool& failed) {
  Heap heap;
  Variables all = more;
  const Value copied = copy(heap, variables);
  for (const auto& [key, value] : copied.dict->entries) all.emplace_back(std::string(key.view()), value);
  try {
    failed = false;
    return std::string(Template(source.view(), "template").render(heap, all).view());
  } catch (const Error& error) {
    failed = true;
    return error.message();
  }
}

void expect_output(Value expected, Value source, Value variables, const Variables& more,
                   const std::string& what) {
  bool failed = false;
  const std::string output = rendered(source, variables, more, failed);
  if (expected.is(Kind::kNone)) {
    EXPECT_TRUE(failed) << what << "\n" << source.view() << "\ngave " << output;
    EXPECT_TRUE(!failed || output.starts_with("template, line ")) << output;
  } else {
    EXPECT_EQ(failed ? "error: " + output : output, expected.view()) << what << "\n" << source.view();
  }
}

TEST(JinjaGolden, FamiliesTemplatesRenderAsTransformersDoes) {
  Heap heap;
  const Value file = parse_json(heap, read("families.json"), false);
  const std::vector<Value>& conversations = at(file, "conversations").sequence->items;
  const Variables special = {{"bos_token", heap.string("<s>")},
                             {"eos_token", heap.string("</s>")},
                             {"tools", Value::none()},
                             {"documents", Value::none()}};
  std::size_t count = 0;
  for (const Value& family : at(file, "templates").sequence->items) {
    const std::vector<Value>& outputs = at(family, "outputs").sequence->items;
    ASSERT_EQ(outputs.size(), conversations.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      expect_output(outputs[i], at(family, "template"), conversations[i], special,
                    std::string(at(family, "name").view()) + ", conversation " + std::to_string(i));
    }
    ++count;
  }
  EXPECT_GE(count, 40u);
}

TEST(JinjaGolden, RandomTemplatesRenderAsJinja2Does) {
  Heap heap;
  const Value file = parse_json(heap, read("random.json"), false);
  const std::vector<Value>& cases = at(file, "cases").sequence->items;
  EXPECT_GE(cases.size(), 500u);
  for (const Value& c : cases)
    expect_output(at(c, "output"), at(c, "template"), at(file, "variables"), {}, "");
}

}  // namespace
}  // namespace tessera::jinja
