#include "grammar/formats.h"

#include <array>
#include <utility>

namespace tessera::grammar {
namespace {

// RFC 3339, section 5.6. Years from 0001, days as months have them, no leap seconds.
#define TESSERA_DATE                                                                                         \
  "(([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]" \
  "|11)-"                                                                                                    \
  "(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][" \
  "048]|[13579][26])00)-02-29)"
#define TESSERA_TIME \
  R"(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))"
#define TESSERA_LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define TESSERA_HOST TESSERA_LABEL R"((\.)" TESSERA_LABEL ")*"
// Within a URI a label's length has no bound, whose count each other bound would multiply.
#define TESSERA_URI_LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
#define TESSERA_URI_HOST TESSERA_URI_LABEL R"((\.)" TESSERA_URI_LABEL ")*"
#define TESSERA_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define TESSERA_IPV4 "(" TESSERA_BYTE R"(\.){3})" TESSERA_BYTE
#define TESSERA_HEX "[0-9a-fA-F]{1,4}"
#define TESSERA_URI_CHAR R"(([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}))"

constexpr std::array<std::pair<std::string_view, std::string_view>, 18> kFormats = {{
    {"date", TESSERA_DATE},
    {"time", TESSERA_TIME},
    {"date-time", TESSERA_DATE "T" TESSERA_TIME},
    {"duration",
     "P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)(T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+"
     "M([0-9]+S)?|"
     "[0-9]+S))?|T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))"},
    {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    {"email", R"([A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@)" TESSERA_HOST},
    {"hostname", TESSERA_HOST},
    {"ipv4", TESSERA_IPV4},
    {"ipv6",
     "((" TESSERA_HEX ":){7}" TESSERA_HEX "|(" TESSERA_HEX ":){1,7}:|(" TESSERA_HEX ":){1,6}:" TESSERA_HEX
     "|(" TESSERA_HEX ":){1,5}(:" TESSERA_HEX "){1,2}|(" TESSERA_HEX ":){1,4}(:" TESSERA_HEX
     "){1,3}|(" TESSERA_HEX ":){1,3}(:" TESSERA_HEX "){1,4}|(" TESSERA_HEX ":){1,2}(:" TESSERA_HEX
     "){1,5}|" TESSERA_HEX ":(:" TESSERA_HEX "){1,6}|:((:" TESSERA_HEX "){1,7}|:))"},
    {"uri", R"([A-Za-z][A-Za-z0-9+.-]*:(//)" TESSERA_URI_HOST "(:[0-9]{1,5})?(/" TESSERA_URI_CHAR
            "*)*|" TESSERA_URI_CHAR "+(/" TESSERA_URI_CHAR R"(*)*)(\?()" TESSERA_URI_CHAR
            R"(|[/?])*)?(#()" TESSERA_URI_CHAR R"(|[/?])*)?)"},
    {"uri-reference", "(" TESSERA_URI_CHAR "+(/" TESSERA_URI_CHAR "*)*|(/" TESSERA_URI_CHAR
                      R"(+)+/?)(\?()" TESSERA_URI_CHAR "|[/?])*)?"},
    {"json-pointer", "(/([^/~]|~[01])*)*"},
    {"password", "[^]*"},  // these say nothing of the text
    {"path", "[^]*"},
    {"binary", "[^]*"},
    {"byte", "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},
    {"base64", "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},  // pydantic's names
    {"base64url", "([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?"},
}};

}  // namespace

std::optional<CharAutomaton> format_texts(std::string_view format, std::string_view source) {
  for (const auto& [name, pattern] : kFormats) {
    if (name == format) return CharAutomaton::from_regex(pattern, false, source);
  }
  return std::nullopt;
}

std::uint32_t format_longest(std::string_view format) {
  if (format == "hostname") return 253;        // RFC 1035, 2.3.4: 255 bytes with those around the text
  if (format == "email") return 64 + 1 + 255;  // RFC 5321, 4.5.3.1
  return RegexNode::kUnbounded;
}

std::string format_list() {
  std::string list;
  for (const auto& [name, pattern] : kFormats) list += (list.empty() ? "" : ", ") + std::string(name);
  return list;
}

}  // namespace tessera::grammar
