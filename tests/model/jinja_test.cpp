#include <gtest/gtest.h>

#include "model/jinja/json.h"
#include "model/jinja/template.h"
#include "tessera/error.h"

namespace tessera::jinja {
namespace {

MarkedText render(std::string_view source, std::string_view json = "{}", const Limits& limits = {}) {
  Heap heap(limits);
  std::vector<std::pair<std::string, Value>> variables;
  const Value root = parse_json(heap, json, true);
  for (const auto& [key, value] : root.dict->entries) variables.emplace_back(std::string(key.view()), value);
  return Template(source, "chat template").render(heap, variables);
}

/// The message of the error that must come.
std::string error_of(std::string_view source, ErrorCode code, const Limits& limits = {}) {
  try {
    const MarkedText text = render(source, "{}", limits);
    ADD_FAILURE() << source.substr(0, 100) << " gave " << text.view().substr(0, 100);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    return error.message();
  }
  return "";
}

TEST(Jinja, ErrorsNameTheLine) {
  EXPECT_EQ(error_of("a\n{% if %}", ErrorCode::kCorruptFile),
            "chat template, line 2: expected an expression");
  EXPECT_EQ(error_of("{% for x in y %}\n\n", ErrorCode::kCorruptFile).substr(0, 21), "chat template, line 2");
  EXPECT_EQ(error_of("\n\n{{ raise_exception('no tools') }}", ErrorCode::kInvalidArgument),
            "chat template, line 3: the template refuses: no tools");
  EXPECT_EQ(
      error_of("{% macro m() %}\n{{ 1 + 'a' }}{% endmacro %}\n\n{{ m() }}", ErrorCode::kInvalidArgument),
      "chat template, line 2: unsupported operand type(s) for +: 'int' and 'str'");
  EXPECT_EQ(error_of("{{ x.y }}", ErrorCode::kInvalidArgument), "chat template, line 1: 'x' is undefined");
  EXPECT_EQ(error_of("{{ x|attr('y') }}", ErrorCode::kInvalidArgument),
            "chat template, line 1: 'x' is undefined");
  EXPECT_EQ(error_of("\n{{ 1|nothing }}", ErrorCode::kInvalidArgument),
            "chat template, line 2: no filter named 'nothing'");
  EXPECT_EQ(error_of("\n{% include 'x' %}", ErrorCode::kUnsupported),
            "chat template, line 2: the tag 'include' is not supported in chat templates");
  error_of("{{ 9223372036854775807 + 1 }}", ErrorCode::kUnsupported);
  error_of("\xff", ErrorCode::kCorruptFile);
  error_of("{# never ends", ErrorCode::kCorruptFile);
  error_of("{% raw %} {{", ErrorCode::kCorruptFile);
}

TEST(Jinja, TakesNoMoreThanItsLimits) {
  for (const char* source : {
           "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{% macro m(x) %}{{ x|map('m') }}{{ m(x)|list }}{% endmacro %}{{ m([1]) }}",
           "{{ 'x' * 1000000000000 }}",
           "{{ [0] * 4000000000 }}",
           "{{ ['x' * 1000000] * 1000000 }}",
           "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
           "{% set l = [0] %}{% for x in l %}{% set y = l.append(x) %}{% endfor %}",
           "{% set l = [] %}{% set y = l.append(l) %}{{ l }}",
           "{% set l = [] %}{% set y = l.append(l) %}{{ l|tojson }}",
           "{% set l = [] %}{% set m = [l] %}{% set y = l.append(m) %}{{ l == m }}",
           "{{ range(1000000000) }}",
           "{{ '%999999999d' % 1 }}",
           "{{ '{:999999999}'.format(1) }}",
           "{{ 'a'.center(99999999999999) }}",
           "{{ 'ab'.ljust(9223372036854775807) }}",
           "{{ [1]|batch(99999999999, 0)|list }}",
           "{{ [1]|slice(99999999999)|list }}",
           "{{ 'x'|indent(99999999999, true) }}",
           "{{ {}|tojson(indent=99999999999) }}",
           "{{ 'a' * 100000000 * 100 }}",
           // Values that share their parts are looked at as often as they are reached.
           "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(90) %}{% set ns.a = [ns.a, ns.a] %}"
           "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
           "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(90) %}{% set ns.a = [ns.a, ns.a] %}"
           "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a < ns.b }}",
           "{% set ns = namespace(a=(1,)) %}{% for i in range(90) %}{% set ns.a = (ns.a, ns.a) %}{% endfor %}"
           "{{ {ns.a: 1} }}",
           "{% set l = range(50000)|list %}{% set m = l + [] %}{% for i in range(100) %}{{ l == m }}{% "
           "endfor %}",
           "{% set s = 'a' * 1000000 %}{{ s.rfind('a' * 500000 + 'b') }}",
           "{% set s = 'a' * 1000000 %}{{ s.rsplit('b' + 'a' * 500000) }}",
           "{% set s = '1' * 1000000 %}{% for i in range(1000) %}{% set x = s|float %}{% endfor %}",
           "{% set s = 'a' * 1000000 %}{% for i in range(1000) %}{% set x = s.zfill(3) ~ s|length %}{% "
           "endfor %}",
           "{% set l = range(100000)|list %}{% for i in l + [] %}{% set x = l.pop(0) %}{% endfor %}",
       }) {
    error_of(source, ErrorCode::kInvalidArgument, {.max_steps = 1'000'000, .max_bytes = 1 << 24});
  }
  // Not a product of both lengths.
  EXPECT_EQ(
      render("{% set s = 'a' * 4000000 %}{{ s.find('a' * 2000000 + 'b') }}{{ 'a' * 2000000 + 'b' in s }}"
             "{{ s.count('a' * 2000000 + 'b') }}{{ '' in '' }}")
          .view(),
      "-1False0True");
  std::string names;
  for (int i = 0; i < 100'000; ++i) names += "{% set a" + std::to_string(i) + " = 1 %}";
  error_of(names, ErrorCode::kInvalidArgument, {.max_steps = 1'000'000});
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[";
  error_of("{{ " + deep + " }}", ErrorCode::kCorruptFile);
  std::string blocks;
  for (int i = 0; i < 100'000; ++i) blocks += "{% if 1 %}";
  error_of(blocks, ErrorCode::kCorruptFile);
  std::string sum = "{{ 1";
  for (int i = 0; i < 100'000; ++i) sum += "+1";
  error_of(sum + " }}", ErrorCode::kCorruptFile);
  std::string negations = "{{ ";
  for (int i = 0; i < 100'000; ++i) negations += "not ";
  error_of(negations + "1 }}", ErrorCode::kCorruptFile);
  Limits small;
  small.max_steps = 100;
  EXPECT_EQ(error_of("{% for x in range(1000) %}{% endfor %}", ErrorCode::kInvalidArgument, small),
            "chat template, line 1: the template takes more than 100 steps");
}

/// The rendered text with what came from outside in brackets.
std::string marked(std::string_view source, std::string_view json) {
  const MarkedText text = render(source, json);
  std::string out;
  std::size_t done = 0;
  for (const TextRange range : text.foreign()) {
    out += std::string(text.view().substr(done, range.begin - done)) + "[";
    out += std::string(text.view().substr(range.begin, range.end - range.begin)) + "]";
    done = range.end;
  }
  return out + std::string(text.view().substr(done));
}

TEST(Jinja, TextFromOutsideStaysMarked) {
  constexpr std::string_view kJson = R"({"s": " aXb\n", "d": {"k": "v<"}, "l": ["p", "q"]})";
  EXPECT_EQ(marked("<{{ s }}>", kJson), "<[ aXb\n]>");
  EXPECT_EQ(marked("<{{ '(' + s.strip() ~ ')' }}>", kJson), "<([aXb])>");
  EXPECT_EQ(marked("{{ s.split('X')|join('-') }}", kJson), "[ a]-[b\n]");
  EXPECT_EQ(marked("{{ s|upper|replace('X', 'yy')|trim }}", kJson), "[A]yy[B]");
  EXPECT_EQ(marked("{{ s[1] }}{{ s[::-1] }}", kJson), "[a\nbXa ]");
  EXPECT_EQ(marked("{{ d|tojson }}", kJson), "{\"[k]\": \"[v<]\"}");
  EXPECT_EQ(marked("{{ s|tojson }}", kJson), "\"[ aXb\\n]\"");
  EXPECT_EQ(marked("{{ l }}", kJson), "['[p]', '[q]']");
  EXPECT_EQ(marked("{{ '%s|%s' % (l[0], 1) }}{{ '{}!'.format(l[1]) }}", kJson), "[p]|1[q]!");
  EXPECT_EQ(marked("{% set x %}a{{ l[0] }}b{% endset %}{{ x|center(5) }}", kJson), " a[p]b ");
  EXPECT_EQ(marked("{{ s|indent(2) }}{{ s|title }}{{ s|e }}", kJson), "[ aXb]\n[ Axb\n aXb\n]");
  EXPECT_EQ(marked("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(l[0]) }}", kJson), "<[p]>");
}

TEST(Jinja, DateIsOfToday) {
  EXPECT_EQ(render("{{ strftime_now('%Y-%m-%d')|length }}").view(), "10");
  EXPECT_EQ(render("{{ strftime_now('') }}|").view(), "|");
}

// What Python's str makes of the same.
TEST(Jinja, LettersChangeCaseAsUnicodeSays) {
  const std::pair<const char*, const char*> cases[] = {
      {"'ﬁ Straße ǆ ΐ'|upper", "FI STRASSE Ǆ \u0399\u0308\u0301"},
      {"\"ΟΔΟΣ Σ ΑΣ' Σ.Α\"|lower", "οδος σ ας' σ.α"},
      {"'ﬁn ßa ǆx ΌΣΟΣ 日a'.title()", "Fin Ssa ǅx Όσος 日A"},
      {"'ﬁn ǆa ΑΣ ΌΣΟΣ'|title", "FIn Ǆa Ασ Όσος"},
      {"'ǆΑΣ'|capitalize", "ǅας"},
      {"'ﬁǅ ΑΣ'.swapcase()", "FIǅ ας"},
      {"'ﬁ Straße ΑΣ ſ'.casefold()", "fi strasse ασ s"},
      {"['Ⅷ🅐'.isupper(), 'ʰa'.islower(), 'Aǅ'.isupper(), 'ǅa' is lower]", "[True, True, False, False]"},
  };
  for (const auto& [expression, expected] : cases)
    EXPECT_EQ(render(std::string("{{ ") + expression + " }}").view(), expected) << expression;
}

TEST(Jinja, CeilAndFloorHaveNoNegativeZero) {
  EXPECT_EQ(render("{{ -0.3|round(0, 'ceil') }} {{ -0.0|round(0, 'floor') }} {{ -0.0|round }}").view(),
            "0.0 0.0 -0.0");
}

TEST(Jinja, ListsCanGrow) {
  EXPECT_EQ(render("{% set l = [1] %}{% set _ = l.append(2) %}{{ l.pop(0) }}{{ l }}").view(), "1[2]");
}

TEST(Jinja, DefaultsOfMacrosSeeItsParameters) {
  constexpr std::string_view kMacro =
      "{% macro m(a, b=b, c=a, d=e, e=5) %}{{ [a, b, c, d, e] }}{% endmacro %}";
  const auto call = [&](const std::string& arguments) {
    const std::string source = std::string(kMacro) + "{{ m(" + arguments + ") }}";
    return std::string(render(source, R"({"b": "outer", "e": "outer"})").view());
  };
  EXPECT_EQ(call("1"), "[1, Undefined, 1, Undefined, 5]");
  EXPECT_EQ(call("1, 2, e=3"), "[1, 2, 1, 3, 3]");
  EXPECT_EQ(call(""), "[Undefined, Undefined, Undefined, Undefined, 5]");
}

TEST(JinjaJson, KeepsTheOrderAndRefusesWhatIsNoJson) {
  EXPECT_EQ(render("{{ d|tojson }}", R"({"d": {"z": 1, "a": [1.0, 1e2, true, null, "\u00e9"]}})").view(),
            R"({"z": 1, "a": [1.0, 100.0, true, null, "é"]})");
  Heap heap;
  for (const char* text :
       {"", "{", "[1,]", "{\"a\": 1, \"a\": 2}", "nan", "1 2", "\"\xff\"", "99999999999999999999"}) {
    EXPECT_THROW(parse_json(heap, text, false), Failure) << text;
  }
  EXPECT_THROW(parse_json(heap, std::string(100'000, '['), false), Failure);
}

}  // namespace
}  // namespace tessera::jinja
