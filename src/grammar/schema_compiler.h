#pragma once

#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/json_parts.h"
#include "grammar/json_value.h"
#include "grammar/number_texts.h"
#include "grammar/pushdown.h"

namespace tessera::grammar {

/// Turns one JSON Schema document into parts of a grammar.
class SchemaCompiler {
 public:
  /// `source` names the document in errors. All but `source` must outlive the compiler.
  SchemaCompiler(const JsonValue& document, PushdownBuilder& builder, JsonParts& parts, std::string source);

  /// Adds the values of the document's schema.
  void add(StateId from, StateId to);

 private:
  /// A schema and where it stands.
  struct Member {
    std::string name;
    const JsonValue* schema;
    std::string path;
    bool is_required;
  };
  struct PatternKey {
    CharAutomaton keys;
    const JsonValue* schema;
    std::string path;
  };
  struct ObjectKeys;
  /// The states between an object's members: none is written yet, and some is.
  struct BetweenMembers {
    StateId empty, filled;
    bool may_be_empty;
  };

  [[noreturn]] void fail(const std::string& path, const std::string& message) const;
  [[noreturn]] void refuse(const std::string& path, const std::string& message) const;

  void add_schema(const JsonValue& schema, const std::string& path, StateId from, StateId to);
  void add_keywords(const JsonValue& schema, const std::string& path, StateId from, StateId to);
  bool add_combined(const JsonValue& schema, const std::string& path, StateId from, StateId to);
  void add_values(std::span<const JsonValue> values, const JsonValue& schema, const std::string& path,
                  StateId from, StateId to);
  void add_type(std::string_view type, const JsonValue& schema, const std::string& path, StateId from,
                StateId to);
  void add_string(const JsonValue& schema, const std::string& path, StateId from, StateId to);
  void add_number(bool is_integer, const JsonValue& schema, const std::string& path, StateId from,
                  StateId to);
  void add_array(const JsonValue& schema, const std::string& path, StateId from, StateId to);
  void add_object(const JsonValue& schema, const std::string& path, StateId from, StateId to);
  ObjectKeys keys_of(const JsonValue& schema, const std::string& path);
  /// Of "properties" and "required", in the order in which they come.
  std::vector<Member> named_members(const ObjectKeys& keys);
  BetweenMembers add_named_members(std::span<const Member> members, BetweenMembers at);
  /// A member with any other key. False if there is none.
  bool add_other_members(const ObjectKeys& keys, std::span<const Member> named, StateId before_key,
                         StateId after_value);
  void add_dictionary(StateId from, StateId to, StateId before_key, StateId after_value, std::uint32_t min,
                      std::uint32_t max);

  void check_keywords(const JsonValue& schema, const std::string& path) const;
  std::vector<std::string_view> types_of(const JsonValue& schema, const std::string& path) const;
  /// What patterns, formats and lengths leave of all texts; none where that is all of those lengths.
  std::optional<CharAutomaton> texts_of(const JsonValue& schema, const std::string& path) const;
  CharAutomaton key_texts(const JsonValue& schema, const std::string& path);
  std::optional<Bound> bound_of(const JsonValue& schema, std::string_view inclusive,
                                std::string_view exclusive, bool is_lower, const std::string& path) const;
  std::uint32_t count_of(const JsonValue& schema, std::string_view keyword, std::uint32_t otherwise,
                         const std::string& path) const;

  const JsonValue& resolve(const std::string& reference, const std::string& path) const;
  const Rule& rule_of(const JsonValue& schema, const std::string& path);
  const JsonValue& keep(JsonValue schema);
  /// merge_schemas, as long as all that is merged stays small: each of many alternatives is merged with what
  /// stands beside them.
  JsonValue merge(const JsonValue& a, const JsonValue& b, const std::string& path);

  const JsonValue& document_;
  PushdownBuilder& builder_;
  JsonParts& parts_;
  std::string source_;
  std::map<const JsonValue*, Rule> rules_;
  std::map<std::string, std::optional<Rule>> strings_;  // by their keywords; none: no text fits
  std::size_t merged_values_ = 0;
  std::deque<JsonValue> made_;  // schemas that merging made
  int depth_ = 0;

  /// A rule that was called and has no states of its own yet.
  struct Pending {
    const JsonValue* schema;
    std::string path;
    Rule rule;
  };
  std::vector<Pending> pending_;
};

}  // namespace tessera::grammar
