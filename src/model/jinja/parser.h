#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "model/jinja/ast.h"
#include "model/jinja/lexer.h"

namespace tessera::jinja {

/// Makes a Program of a template's tokens, by recursive descent.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  /// Throws SyntaxError.
  Program parse();

 private:
  // Statements, in parser.cpp. `ends` are the names of the tags that end a block.
  Block parse_block(std::initializer_list<std::string_view> ends);
  StatementPtr parse_statement();
  StatementPtr parse_if();
  StatementPtr parse_for();
  StatementPtr parse_set();
  StatementPtr parse_macro();
  StatementPtr parse_call_block();
  StatementPtr parse_filter_block();
  StatementPtr parse_with();
  Block parse_rest_of_tag_and_block(std::initializer_list<std::string_view> ends);
  void parse_parameters(MacroNode& macro);
  void parse_macro_body(MacroNode& macro, std::string_view end);
  Target parse_target(bool with_attribute);
  Target parse_single_target(bool with_attribute);
  void expect_tag_end(std::string_view name);

  // Expressions, in parser_expressions.cpp.
  ExpressionPtr parse_tuple(bool with_condition, bool parenthesized = false);
  ExpressionPtr parse_expression();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_postfix(ExpressionPtr operand);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr operand);
  ExpressionPtr parse_filter(ExpressionPtr operand);
  ExpressionPtr parse_test(ExpressionPtr operand);
  ExpressionPtr parse_subscript(ExpressionPtr operand);
  CallArguments parse_arguments();
  ExpressionPtr parse_literal();
  ExpressionPtr make(ExpressionKind kind, int line, std::vector<ExpressionPtr> operands = {}) const;
  ExpressionPtr make_binary(Operation operation, int line, ExpressionPtr left, ExpressionPtr right) const;

  // What both use.
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view sign);
  void expect_operator(std::string_view sign);
  const std::string& expect_name();
  [[noreturn]] void fail(const std::string& message) const;

  /// Counts nesting for as long as it lives.
  struct Nesting {
    explicit Nesting(Parser& parser);
    ~Nesting() { --parser_.nesting_; }
    Parser& parser_;
  };

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
  std::vector<MacroNode*> macros_;  // those around what is being parsed
  std::string literals_;
};

}  // namespace tessera::jinja
