#include "model/jinja/parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "core/text.h"

namespace tessera::jinja {
namespace {

constexpr int kMaxParsedNesting = 100;

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kText:
      return "text";
    case TokenKind::kString:
      return "a string";
    default:
      return "'" + printable(token.text) + "'";
  }
}

}  // namespace

Parser::Nesting::Nesting(Parser& parser) : parser_(parser) {
  if (++parser.nesting_ > kMaxParsedNesting) {
    --parser.nesting_;
    parser.fail(fmt::format("expressions or blocks are nested more than {} deep", kMaxParsedNesting));
  }
}

void Parser::fail(const std::string& message) const { throw SyntaxError{current().line, message}; }

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

bool Parser::skip_operator(std::string_view sign) {
  if (!current().is_operator(sign)) return false;
  next();
  return true;
}

void Parser::expect_operator(std::string_view sign) {
  if (!skip_operator(sign)) fail(fmt::format("expected '{}', found {}", sign, describe(current())));
}

const std::string& Parser::expect_name() {
  if (current().kind != TokenKind::kName) fail(fmt::format("expected a name, found {}", describe(current())));
  return next().text;
}

Program Parser::parse() {
  Program program;
  program.body = parse_block({});
  if (current().kind != TokenKind::kEnd) fail(fmt::format("unexpected {}", describe(current())));
  program.literals = std::move(literals_);
  return program;
}

Block Parser::parse_block(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(*this);
  Block block;
  for (;;) {
    const Token& token = current();
    switch (token.kind) {
      case TokenKind::kEnd:
        if (ends.size() > 0) fail(fmt::format("the template ends; expected '{{% {} %}}'", *ends.begin()));
        return block;
      case TokenKind::kText: {
        auto statement = std::make_unique<Statement>();
        statement->line = token.line;
        statement->text = MarkedText(token.text);
        literals_ += token.text + '\0';
        block.push_back(std::move(statement));
        next();
        break;
      }
      case TokenKind::kVariableBegin: {
        next();
        auto statement = std::make_unique<Statement>();
        statement->kind = StatementKind::kPrint;
        statement->line = current().line;
        statement->expression = parse_tuple(true);
        if (current().kind != TokenKind::kVariableEnd) {
          fail(fmt::format("expected '}}}}', found {}", describe(current())));
        }
        next();
        block.push_back(std::move(statement));
        break;
      }
      default: {  // kBlockBegin: everything else stands within tags
        next();
        if (current().kind == TokenKind::kName && std::ranges::find(ends, current().text) != ends.end())
          return block;
        block.push_back(parse_statement());
      }
    }
  }
}

void Parser::expect_tag_end(std::string_view name) {
  if (current().kind != TokenKind::kBlockEnd) {
    fail(fmt::format("expected '%}}' to end the tag '{}', found {}", name, describe(current())));
  }
  next();
}

Block Parser::parse_rest_of_tag_and_block(std::initializer_list<std::string_view> ends) {
  expect_tag_end("before a block");
  return parse_block(ends);
}

StatementPtr Parser::parse_statement() {
  const int line = current().line;
  if (current().kind != TokenKind::kName)
    fail(fmt::format("a tag's name was expected, found {}", describe(current())));
  const std::string name = current().text;
  StatementPtr statement;
  if (name == "if") {
    statement = parse_if();
  } else if (name == "for") {
    statement = parse_for();
  } else if (name == "set") {
    statement = parse_set();
  } else if (name == "macro") {
    statement = parse_macro();
  } else if (name == "call") {
    statement = parse_call_block();
  } else if (name == "filter") {
    statement = parse_filter_block();
  } else if (name == "with") {
    statement = parse_with();
  } else if (name == "generation") {
    next();
    statement = std::make_unique<Statement>();
    statement->kind = StatementKind::kScope;
    statement->body = parse_rest_of_tag_and_block({"endgeneration"});
    next();
    expect_tag_end("endgeneration");
  } else if (name == "break" || name == "continue") {
    if (loops_ == 0) fail(fmt::format("'{}' outside of a loop", name));
    next();
    statement = std::make_unique<Statement>();
    statement->kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
    expect_tag_end(name);
  } else {
    constexpr std::array kOthers = {"block",      "extends", "include", "import", "from",
                                    "autoescape", "print",   "do",      "trans"};
    if (std::ranges::find(kOthers, name) != kOthers.end()) {
      throw SyntaxError{line, fmt::format("the tag '{}' is not supported in chat templates", name), true};
    }
    fail(fmt::format("unknown tag '{}'", printable(name)));
  }
  statement->line = line;
  return statement;
}

StatementPtr Parser::parse_if() {
  auto statement = std::make_unique<Statement>();
  statement->kind = StatementKind::kIf;
  for (;;) {
    next();  // if or elif
    ExpressionPtr condition = parse_tuple(false);
    Block body = parse_rest_of_tag_and_block({"elif", "else", "endif"});
    statement->branches.emplace_back(std::move(condition), std::move(body));
    if (!current().is_name("elif")) break;
  }
  if (next().is_name("else")) {
    statement->otherwise = parse_rest_of_tag_and_block({"endif"});
    next();
  }
  expect_tag_end("endif");
  return statement;
}

StatementPtr Parser::parse_for() {
  auto statement = std::make_unique<Statement>();
  statement->kind = StatementKind::kFor;
  next();
  statement->target = parse_target(false);
  if (!skip_name("in")) fail(fmt::format("expected 'in', found {}", describe(current())));
  statement->expression = parse_tuple(false);
  if (skip_name("if")) statement->condition = parse_expression();
  statement->recursive = skip_name("recursive");
  ++loops_;
  statement->body = parse_rest_of_tag_and_block({"endfor", "else"});
  --loops_;
  if (next().is_name("else")) {
    statement->otherwise = parse_rest_of_tag_and_block({"endfor"});
    next();
  }
  expect_tag_end("endfor");
  return statement;
}

Target Parser::parse_single_target(bool with_attribute) {
  const Nesting nesting(*this);
  Target target;
  target.line = current().line;
  if (skip_operator("(")) {
    target = parse_target(with_attribute);
    expect_operator(")");
    return target;
  }
  target.name = expect_name();
  constexpr std::array kConstants = {"true", "false", "none", "True", "False", "None"};
  if (std::ranges::find(kConstants, target.name) != kConstants.end()) {
    fail(fmt::format("can't assign to '{}'", target.name));
  }
  if (with_attribute && skip_operator(".")) target.attribute = expect_name();
  return target;
}

Target Parser::parse_target(bool with_attribute) {
  Target first = parse_single_target(with_attribute);
  if (!current().is_operator(",")) return first;
  Target tuple;
  tuple.line = first.line;
  tuple.is_tuple = true;
  tuple.parts.push_back(std::move(first));
  while (skip_operator(",")) {
    if (current().kind != TokenKind::kName && !current().is_operator("(")) break;
    if (current().is_name("in")) break;
    tuple.parts.push_back(parse_single_target(with_attribute));
  }
  return tuple;
}

StatementPtr Parser::parse_set() {
  auto statement = std::make_unique<Statement>();
  next();
  statement->target = parse_target(true);
  if (skip_operator("=")) {
    statement->kind = StatementKind::kSet;
    statement->expression = parse_tuple(true);
    expect_tag_end("set");
    return statement;
  }
  statement->kind = StatementKind::kSetBlock;
  while (skip_operator("|")) statement->expression = parse_filter(std::move(statement->expression));
  statement->body = parse_rest_of_tag_and_block({"endset"});
  next();
  expect_tag_end("endset");
  return statement;
}

void Parser::parse_parameters(MacroNode& macro) {
  expect_operator("(");
  while (!current().is_operator(")")) {
    if (!macro.parameters.empty()) expect_operator(",");
    if (current().is_operator(")")) break;
    macro.parameters.push_back(expect_name());
    if (skip_operator("=")) {
      macro.defaults.push_back(parse_expression());
    } else if (!macro.defaults.empty()) {
      fail("non-default argument follows default argument");
    }
  }
  next();
}

void Parser::parse_macro_body(MacroNode& macro, std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  macros_.push_back(&macro);
  macro.body = parse_rest_of_tag_and_block({end});
  macros_.pop_back();
  loops_ = loops;
  next();
  expect_tag_end(end);
}

StatementPtr Parser::parse_macro() {
  auto statement = std::make_unique<Statement>();
  statement->kind = StatementKind::kMacro;
  next();
  statement->macro.name = expect_name();
  parse_parameters(statement->macro);
  parse_macro_body(statement->macro, "endmacro");
  return statement;
}

StatementPtr Parser::parse_call_block() {
  auto statement = std::make_unique<Statement>();
  statement->kind = StatementKind::kCallBlock;
  next();
  statement->macro.name = "caller";
  if (current().is_operator("(")) parse_parameters(statement->macro);
  statement->expression = parse_expression();
  if (statement->expression->kind != ExpressionKind::kCall) fail("expected a call behind 'call'");
  parse_macro_body(statement->macro, "endcall");
  return statement;
}

StatementPtr Parser::parse_filter_block() {
  auto statement = std::make_unique<Statement>();
  statement->kind = StatementKind::kFilterBlock;
  next();
  do {
    statement->expression = parse_filter(std::move(statement->expression));
  } while (skip_operator("|"));
  statement->body = parse_rest_of_tag_and_block({"endfilter"});
  next();
  expect_tag_end("endfilter");
  return statement;
}

StatementPtr Parser::parse_with() {
  auto statement = std::make_unique<Statement>();
  statement->kind = StatementKind::kWith;
  next();
  while (current().kind != TokenKind::kBlockEnd) {
    if (!statement->assignments.empty()) expect_operator(",");
    Target target = parse_single_target(false);
    expect_operator("=");
    statement->assignments.emplace_back(std::move(target), parse_expression());
  }
  statement->body = parse_rest_of_tag_and_block({"endwith"});
  next();
  expect_tag_end("endwith");
  return statement;
}

}  // namespace tessera::jinja
