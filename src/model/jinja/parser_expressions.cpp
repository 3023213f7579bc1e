// Precedence, lowest first: conditional, or, and, not, comparisons, + and -, ~, * / // %, **, unary signs,
// filters and tests, calls and subscripts.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/text.h"
#include "model/jinja/parser.h"

namespace tessera::jinja {
namespace {

// Of an expression's tree: a chain of n sums is n deep.
constexpr int kMaxDepth = 250;

std::optional<Comparison> comparison_of(const Token& token) {
  if (token.kind != TokenKind::kOperator) return std::nullopt;
  constexpr std::pair<std::string_view, Comparison> kSigns[] = {
      {"==", Comparison::kEqual},     {"!=", Comparison::kNotEqual}, {"<", Comparison::kLess},
      {"<=", Comparison::kLessEqual}, {">", Comparison::kGreater},   {">=", Comparison::kGreaterEqual}};
  for (const auto& [sign, comparison] : kSigns) {
    if (token.text == sign) return comparison;
  }
  return std::nullopt;
}

}  // namespace

ExpressionPtr Parser::make(ExpressionKind kind, int line, std::vector<ExpressionPtr> operands) const {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = line;
  for (const ExpressionPtr& operand : operands) {
    if (operand) expression->depth = std::max(expression->depth, operand->depth + 1);
  }
  if (expression->depth > kMaxDepth)
    fail(fmt::format("an expression is more than {} operations deep", kMaxDepth));
  expression->operands = std::move(operands);
  return expression;
}

namespace {

template <class... Operands>
std::vector<ExpressionPtr> list(Operands... operands) {
  std::vector<ExpressionPtr> result;
  (result.push_back(std::move(operands)), ...);
  return result;
}

}  // namespace

ExpressionPtr Parser::make_binary(Operation operation, int line, ExpressionPtr left,
                                  ExpressionPtr right) const {
  ExpressionPtr expression = make(ExpressionKind::kArithmetic, line, list(std::move(left), std::move(right)));
  expression->operation = operation;
  return expression;
}

ExpressionPtr Parser::parse_tuple(bool with_condition, bool parenthesized) {
  const int line = current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  const auto at_end = [&] {
    const Token& token = current();
    return token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd ||
           token.is_operator(")");
  };
  while (!at_end()) {
    items.push_back(with_condition ? parse_expression() : parse_or());
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (items.empty() && (is_tuple || !parenthesized)) fail("expected an expression");
  return make(ExpressionKind::kTuple, line, std::move(items));
}

ExpressionPtr Parser::parse_expression() {
  const Nesting nesting(*this);
  int line = current().line;
  ExpressionPtr then = parse_or();
  while (skip_name("if")) {
    ExpressionPtr condition = parse_or();
    ExpressionPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
    then = make(ExpressionKind::kConditional, line,
                list(std::move(condition), std::move(then), std::move(otherwise)));
    line = current().line;
  }
  return then;
}

ExpressionPtr Parser::parse_or() {
  const int line = current().line;
  ExpressionPtr left = parse_and();
  while (skip_name("or")) left = make(ExpressionKind::kOr, line, list(std::move(left), parse_and()));
  return left;
}

ExpressionPtr Parser::parse_and() {
  const int line = current().line;
  ExpressionPtr left = parse_not();
  while (skip_name("and")) left = make(ExpressionKind::kAnd, line, list(std::move(left), parse_not()));
  return left;
}

ExpressionPtr Parser::parse_not() {
  const Nesting nesting(*this);
  const int line = current().line;
  if (skip_name("not")) return make(ExpressionKind::kNot, line, list(parse_not()));
  return parse_comparison();
}

ExpressionPtr Parser::parse_comparison() {
  const int line = current().line;
  std::vector<ExpressionPtr> operands = list(parse_sum());
  std::vector<Comparison> comparisons;
  for (;;) {
    if (const std::optional<Comparison> comparison = comparison_of(current())) {
      next();
      comparisons.push_back(*comparison);
    } else if (skip_name("in")) {
      comparisons.push_back(Comparison::kIn);
    } else if (current().is_name("not") && ahead().is_name("in")) {
      next();
      next();
      comparisons.push_back(Comparison::kNotIn);
    } else {
      break;
    }
    operands.push_back(parse_sum());
  }
  if (comparisons.empty()) return std::move(operands.front());
  ExpressionPtr expression = make(ExpressionKind::kCompare, line, std::move(operands));
  expression->comparisons = std::move(comparisons);
  return expression;
}

ExpressionPtr Parser::parse_sum() {
  ExpressionPtr left = parse_concatenation();
  while (current().is_operator("+") || current().is_operator("-")) {
    const Token& sign = next();
    const Operation operation = sign.text == "+" ? Operation::kAdd : Operation::kSubtract;
    left = make_binary(operation, sign.line, std::move(left), parse_concatenation());
  }
  return left;
}

ExpressionPtr Parser::parse_concatenation() {
  const int line = current().line;
  std::vector<ExpressionPtr> parts = list(parse_product());
  while (skip_operator("~")) parts.push_back(parse_product());
  if (parts.size() == 1) return std::move(parts.front());
  return make(ExpressionKind::kConcatenate, line, std::move(parts));
}

ExpressionPtr Parser::parse_product() {
  constexpr std::pair<std::string_view, Operation> kSigns[] = {{"*", Operation::kMultiply},
                                                               {"/", Operation::kDivide},
                                                               {"//", Operation::kFloorDivide},
                                                               {"%", Operation::kModulo}};
  ExpressionPtr left = parse_power();
  for (;;) {
    const auto sign =
        std::ranges::find_if(kSigns, [&](const auto& s) { return current().is_operator(s.first); });
    if (sign == std::end(kSigns)) return left;
    const int line = next().line;
    left = make_binary(sign->second, line, std::move(left), parse_power());
  }
}

ExpressionPtr Parser::parse_power() {
  ExpressionPtr left = parse_unary(true);
  while (current().is_operator("**")) {
    const int line = next().line;
    left = make_binary(Operation::kPower, line, std::move(left), parse_unary(true));
  }
  return left;
}

ExpressionPtr Parser::parse_unary(bool with_filters) {
  const Nesting nesting(*this);
  const int line = current().line;
  ExpressionPtr expression;
  if (skip_operator("-")) {
    expression = make(ExpressionKind::kNegate, line, list(parse_unary(false)));
  } else if (skip_operator("+")) {
    expression = make(ExpressionKind::kPositive, line, list(parse_unary(false)));
  } else {
    expression = parse_primary();
  }
  expression = parse_postfix(std::move(expression));
  return with_filters ? parse_filters_and_tests(std::move(expression)) : std::move(expression);
}

ExpressionPtr Parser::parse_primary() {
  const Token& token = current();
  if (token.kind == TokenKind::kName) {
    next();
    const bool is_true = token.text == "true" || token.text == "True";
    if (is_true || token.text == "false" || token.text == "False") {
      ExpressionPtr constant = make(ExpressionKind::kConstant, token.line);
      constant->constant = Value::of(is_true);
      return constant;
    }
    if (token.text == "none" || token.text == "None") {
      ExpressionPtr constant = make(ExpressionKind::kConstant, token.line);
      constant->constant = Value::none();
      return constant;
    }
    for (MacroNode* const macro : macros_) {
      macro->uses_caller |= token.text == "caller";
      macro->uses_varargs |= token.text == "varargs";
      macro->uses_kwargs |= token.text == "kwargs";
    }
    ExpressionPtr name = make(ExpressionKind::kName, token.line);
    name->name = token.text;
    return name;
  }
  if (token.is_operator("(")) {
    const Nesting nesting(*this);
    next();
    ExpressionPtr inner = parse_tuple(true, true);
    expect_operator(")");
    return inner;
  }
  return parse_literal();
}

ExpressionPtr Parser::parse_literal() {
  const Token& token = current();
  if (token.kind == TokenKind::kString) {
    ExpressionPtr string = make(ExpressionKind::kString, token.line);
    std::string text;
    while (current().kind == TokenKind::kString) text += next().text;
    literals_ += text + '\0';
    string->text = MarkedText(std::move(text));
    return string;
  }
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) {
    next();
    ExpressionPtr constant = make(ExpressionKind::kConstant, token.line);
    constant->constant = token.kind == TokenKind::kInteger ? Value::of(token.integer) : Value::of(token.real);
    return constant;
  }
  const bool is_dict = token.is_operator("{");
  if (!is_dict && !token.is_operator("[")) {
    fail(fmt::format("expected an expression, found '{}'", printable(token.text)));
  }
  const Nesting nesting(*this);
  const std::string_view end = is_dict ? "}" : "]";
  next();
  std::vector<ExpressionPtr> items;
  while (!current().is_operator(end)) {
    if (!items.empty()) {
      expect_operator(",");
      if (current().is_operator(end)) break;
    }
    items.push_back(parse_expression());
    if (!is_dict) continue;
    expect_operator(":");
    items.push_back(parse_expression());
  }
  next();
  return make(is_dict ? ExpressionKind::kDict : ExpressionKind::kList, token.line, std::move(items));
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr operand) {
  for (;;) {
    const int line = current().line;
    if (current().is_operator(".") || current().is_operator("[")) {
      operand = parse_subscript(std::move(operand));
    } else if (current().is_operator("(")) {
      operand = make(ExpressionKind::kCall, line, list(std::move(operand)));
      operand->arguments = parse_arguments();
    } else {
      return operand;
    }
  }
}

ExpressionPtr Parser::parse_filters_and_tests(ExpressionPtr operand) {
  for (;;) {
    const int line = current().line;
    if (skip_operator("|")) {
      operand = parse_filter(std::move(operand));
    } else if (current().is_name("is")) {
      operand = parse_test(std::move(operand));
    } else if (current().is_operator("(")) {
      operand = make(ExpressionKind::kCall, line, list(std::move(operand)));
      operand->arguments = parse_arguments();
    } else {
      return operand;
    }
  }
}

ExpressionPtr Parser::parse_filter(ExpressionPtr operand) {
  const int line = current().line;
  ExpressionPtr filter = make(ExpressionKind::kFilter, line, list(std::move(operand)));
  filter->name = expect_name();
  if (current().is_operator("(")) filter->arguments = parse_arguments();
  return filter;
}

ExpressionPtr Parser::parse_test(ExpressionPtr operand) {
  const int line = next().line;
  const bool negated = skip_name("not");
  ExpressionPtr test = make(ExpressionKind::kTest, line, list(std::move(operand)));
  test->name = expect_name();
  const Token& token = current();
  const bool opens = token.is_operator("[") || token.is_operator("{");
  const bool is_value = token.kind == TokenKind::kString || token.kind == TokenKind::kInteger ||
                        token.kind == TokenKind::kFloat;
  const bool ends = token.is_name("else") || token.is_name("or") || token.is_name("and");
  if (token.is_operator("(")) {
    test->arguments = parse_arguments();
  } else if (opens || is_value || (token.kind == TokenKind::kName && !ends)) {
    if (token.is_name("is")) fail("tests can't be chained with 'is'");
    test->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  return negated ? make(ExpressionKind::kNot, line, list(std::move(test))) : std::move(test);
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr operand) {
  const Nesting nesting(*this);
  const Token& token = next();
  if (token.text == ".") {
    const Token& key = next();
    if (key.kind == TokenKind::kName) {
      ExpressionPtr attribute = make(ExpressionKind::kAttribute, token.line, list(std::move(operand)));
      attribute->name = key.text;
      return attribute;
    }
    if (key.kind != TokenKind::kInteger) fail("expected a name or number behind '.'");
    ExpressionPtr index = make(ExpressionKind::kConstant, key.line);
    index->constant = Value::of(key.integer);
    return make(ExpressionKind::kItem, token.line, list(std::move(operand), std::move(index)));
  }
  const auto at_end = [&] {
    return current().is_operator("]") || current().is_operator(":") || current().is_operator(",");
  };
  ExpressionPtr start = current().is_operator(":") ? nullptr : parse_expression();
  if (start != nullptr && !current().is_operator(":")) {
    if (current().is_operator(",")) {  // a tuple as the key
      std::vector<ExpressionPtr> items = list(std::move(start));
      while (skip_operator(",")) items.push_back(parse_expression());
      start = make(ExpressionKind::kTuple, token.line, std::move(items));
    }
    expect_operator("]");
    return make(ExpressionKind::kItem, token.line, list(std::move(operand), std::move(start)));
  }
  next();
  ExpressionPtr stop = at_end() ? nullptr : parse_expression();
  ExpressionPtr step = skip_operator(":") && !at_end() ? parse_expression() : nullptr;
  expect_operator("]");
  return make(ExpressionKind::kSlice, token.line,
              list(std::move(operand), std::move(start), std::move(stop), std::move(step)));
}

CallArguments Parser::parse_arguments() {
  const Nesting nesting(*this);
  CallArguments arguments;
  expect_operator("(");
  const auto require = [&](bool holds) {
    if (!holds) fail("invalid syntax for function call expression");
  };
  for (bool first = true; !current().is_operator(")"); first = false) {
    if (!first) {
      expect_operator(",");
      if (current().is_operator(")")) break;
    }
    if (skip_operator("*")) {
      require(!arguments.sequence && !arguments.mapping);
      arguments.sequence = parse_expression();
    } else if (skip_operator("**")) {
      require(!arguments.mapping);
      arguments.mapping = parse_expression();
    } else if (current().kind == TokenKind::kName && ahead().is_operator("=")) {
      require(!arguments.mapping);
      const std::string name = next().text;
      next();
      arguments.named.emplace_back(name, parse_expression());
    } else {
      require(!arguments.sequence && !arguments.mapping && arguments.named.empty());
      arguments.positional.push_back(parse_expression());
    }
  }
  next();
  return arguments;
}

}  // namespace tessera::jinja
