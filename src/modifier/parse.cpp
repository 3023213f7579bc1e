#include "modifier/parse.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <string>

#include "core/text.h"
#include "modifier/builder.h"
#include "modifier/lexer.h"
#include "tessera/error.h"

namespace tessera::modifier {
namespace {

constexpr std::size_t kMaxTextBytes = 16 * 1024;
constexpr int kMaxDepth = 64;  // of brackets in each other

struct Function {
  std::string_view name;
  int num_arguments;
  Op op;
};

constexpr Op kClampOp = Op::kSelect;  // clamp is two operations

constexpr std::array kFunctions = {
    Function{"abs", 1, Op::kAbs},   Function{"min", 2, Op::kMin},     Function{"max", 2, Op::kMax},
    Function{"clamp", 3, kClampOp}, Function{"exp", 1, Op::kExp},     Function{"exp2", 1, Op::kExp2},
    Function{"log", 1, Op::kLog},   Function{"log2", 1, Op::kLog2},   Function{"tanh", 1, Op::kTanh},
    Function{"sqrt", 1, Op::kSqrt}, Function{"floor", 1, Op::kFloor}, Function{"float", 1, Op::kToFloat},
    Function{"int", 1, Op::kToInt}, Function{"bit", 2, Op::kBit},
};

const Function* find_function(std::string_view name) {
  const auto found =
      std::find_if(kFunctions.begin(), kFunctions.end(), [&](const Function& f) { return f.name == name; });
  return found == kFunctions.end() ? nullptr : &*found;
}

std::optional<Variable> find_variable(std::string_view name) {
  for (int i = 0; i < kNumVariables; ++i) {
    if (name == name_of(static_cast<Variable>(i))) return static_cast<Variable>(i);
  }
  return std::nullopt;
}

bool is_reserved(std::string_view name) {
  return name == "let" || name == "score" || find_variable(name) || find_function(name) != nullptr;
}

/// What a tensor or scalar can't be called, in words; empty for a name.
std::string wrong_name(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (name.empty() || name.size() > 64 || !is_letter(name[0]) ||
      !std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || is_digit(c); }))
    return "expected up to 64 letters, digits and _, the first no digit";
  return is_reserved(name) ? "the language has that name itself; expected another" : "";
}

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorCode::kInvalidArgument, message); }

/// Checks names, dtypes and ranks; which names are of what.
class Captured {
 public:
  explicit Captured(const ScoreModifier& modifier) {
    if (modifier.tensors.size() > kMaxTensors) {
      fail(fmt::format("scores.modifier.tensors has {} tensors; expected at most {}", modifier.tensors.size(),
                       kMaxTensors));
    }
    if (modifier.scalars.size() > kMaxScalars) {
      fail(fmt::format("scores.modifier.scalars has {} scalars; expected at most {}", modifier.scalars.size(),
                       kMaxScalars));
    }
    for (std::size_t i = 0; i < modifier.tensors.size(); ++i) {
      const CapturedTensor& tensor = modifier.tensors[i];
      take_name(fmt::format("scores.modifier.tensors[{}]", i), tensor.name, tensors_, static_cast<int>(i));
      const bool known = tensor.dtype == DType::kF32 || tensor.dtype == DType::kF16 ||
                         tensor.dtype == DType::kBF16 || tensor.dtype == DType::kI32 ||
                         tensor.dtype == DType::kU8 || tensor.dtype == DType::kBool;
      if (!known) {
        fail(fmt::format("scores.modifier.tensors[{}] ({}) is {}; expected f32, f16, bf16, i32, u8 or bool",
                         i, tensor.name, dtype_name(tensor.dtype)));
      }
      if (tensor.sizes.size() > kMaxTensorRank) {
        fail(fmt::format("scores.modifier.tensors[{}] ({}) has {} dimensions; expected at most {}", i,
                         tensor.name, tensor.sizes.size(), kMaxTensorRank));
      }
    }
    for (std::size_t i = 0; i < modifier.scalars.size(); ++i)
      take_name(fmt::format("scores.modifier.scalars[{}]", i), modifier.scalars[i].first, scalars_,
                static_cast<int>(i));
  }

  const std::map<std::string, int, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, int, std::less<>>& scalars() const { return scalars_; }
  bool has(std::string_view name) const { return tensors_.contains(name) || scalars_.contains(name); }

 private:
  void take_name(const std::string& field, const std::string& name,
                 std::map<std::string, int, std::less<>>& names, int index) {
    if (const std::string wrong = wrong_name(name); !wrong.empty())
      fail(fmt::format("{} is called '{}'; {}", field, printable(name), wrong));
    if (has(name))
      fail(fmt::format("{} is called '{}' as another is; expected names that differ", field, name));
    names[name] = index;
  }

  std::map<std::string, int, std::less<>> tensors_, scalars_;
};

/// Reads one of the texts, a member function a rule of the grammar.
class Parser {
 public:
  Parser(const ScoreModifier& modifier, bool in_visible, const Captured& captured, Builder& builder)
      : modifier_(modifier),
        captured_(captured),
        builder_(builder),
        lexer_(modifier, in_visible),
        in_visible_(in_visible) {}

  /// The root.
  int text() {
    while (lexer_.next().kind == TokenKind::kName && lexer_.next().text == "let") let();
    const Position position = lexer_.next().position;
    const Value value = expression();
    if (lexer_.next().kind != TokenKind::kEnd) {
      fail(lexer_.next(), fmt::format("expected an operator or the end of the text, found {}",
                                      Lexer::describe(lexer_.next())));
    }
    return builder_.node_of(value, in_visible_ ? Type::kBool : Type::kFloat32, "the text is", position);
  }

 private:
  using Rule = Value (Parser::*)();
  struct Operator {
    std::string_view sign;
    Op op;
    bool swapped = false;  // a > b is b < a
  };

  [[noreturn]] void fail(const Token& token, const std::string& what) const {
    fail_at(modifier_, token.position, what);
  }

  void let() {
    lexer_.take();
    const Token name = lexer_.take();
    if (name.kind != TokenKind::kName)
      fail(name, fmt::format("expected a name after let, found {}", Lexer::describe(name)));
    if (is_reserved(name.text) || captured_.has(name.text) || lets_.contains(name.text))
      fail(name, fmt::format("'{}' has a meaning already; expected a new name", name.text));
    lexer_.expect("=");
    const Value value = expression();
    lexer_.expect(";");
    lets_.emplace(name.text, value);
  }

  Value expression() {
    const Nesting nesting(*this);
    const Value condition = either();
    const Position position = lexer_.next().position;
    if (!lexer_.take_if("?")) return condition;
    const Value if_true = expression();
    lexer_.expect(":");
    const Value if_false = expression();
    return builder_.select(condition, if_true, if_false, position);
  }

  /// operand {operator operand}
  template <std::size_t kCount>
  Value chain(Rule operand, const std::array<Operator, kCount>& operators) {
    Value left = (this->*operand)();
    while (true) {
      const Position position = lexer_.next().position;
      const auto found = std::find_if(operators.begin(), operators.end(),
                                      [&](const Operator& o) { return lexer_.take_if(o.sign); });
      if (found == operators.end()) return left;
      const Value right = (this->*operand)();
      left = found->swapped ? builder_.binary(found->op, found->sign, right, left, position)
                            : builder_.binary(found->op, found->sign, left, right, position);
    }
  }

  Value either() { return chain(&Parser::both, std::array{Operator{"||", Op::kOr}}); }
  Value both() { return chain(&Parser::equality, std::array{Operator{"&&", Op::kAnd}}); }
  Value equality() {
    return chain(&Parser::relation, std::array{Operator{"==", Op::kEqual}, Operator{"!=", Op::kNotEqual}});
  }
  Value relation() {
    return chain(&Parser::sum,
                 std::array{Operator{"<", Op::kLess}, Operator{"<=", Op::kLessEqual},
                            Operator{">", Op::kLess, true}, Operator{">=", Op::kLessEqual, true}});
  }
  Value sum() {
    return chain(&Parser::term, std::array{Operator{"+", Op::kAdd}, Operator{"-", Op::kSubtract}});
  }
  Value term() {
    return chain(&Parser::unary, std::array{Operator{"*", Op::kMultiply}, Operator{"/", Op::kDivide},
                                            Operator{"%", Op::kModulo}});
  }

  Value unary() {
    const Position position = lexer_.next().position;
    if (lexer_.take_if("-")) return builder_.unary(Op::kNegate, "-", atom(), position);
    if (lexer_.take_if("!")) return builder_.unary(Op::kNot, "!", atom(), position);
    return atom();
  }

  Value atom() {
    const Token token = lexer_.next();
    if (token.kind == TokenKind::kNumber) return number(lexer_.take());
    if (token.kind == TokenKind::kName) return name(lexer_.take());
    if (lexer_.take_if("(")) {
      const Value value = expression();
      lexer_.expect(")");
      return value;
    }
    fail(token, fmt::format("expected a number, a name or '(', found {}", Lexer::describe(token)));
  }

  Value number(const Token& token) {
    const std::string_view digits = token.text;
    const bool is_whole = digits.find_first_of(".eE") == std::string_view::npos;
    double value = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc())
      fail(token, "the number is beyond fp32's range");
    return builder_.literal(value, is_whole, token.position);
  }

  std::vector<Value> list(std::string_view end) {
    std::vector<Value> values;
    do values.push_back(expression());
    while (lexer_.take_if(","));
    lexer_.expect(end);
    return values;
  }

  Value name(const Token& token) {
    if (const auto variable = find_variable(token.text)) return builder_.variable(*variable, token.position);
    if (token.text == "score") {
      if (in_visible_) fail(token, "visible can't use score: which keys are seen doesn't depend on it");
      return builder_.score(token.position);
    }
    if (const auto found = lets_.find(token.text); found != lets_.end()) return found->second;
    if (const auto found = captured_.scalars().find(token.text); found != captured_.scalars().end())
      return builder_.scalar(found->second, token.position);
    if (const auto found = captured_.tensors().find(token.text); found != captured_.tensors().end())
      return load(token, found->second);
    if (const Function* function = find_function(token.text)) return call(token, *function);
    const std::vector<std::string> known = names();
    std::string expected;
    for (const std::string& one : known) expected += (expected.empty() ? "" : ", ") + one;
    fail(token, fmt::format("unknown name '{}'{} expected one of {}", printable(token.text),
                            known.empty() ? ";" : suggestion(token.text, known), expected));
  }

  static std::string suggestion(std::string_view name, const std::vector<std::string>& known) {
    const std::string found = did_you_mean(name, known);
    return found.empty() ? ";" : found;
  }

  /// All that a name may be here.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    if (!in_visible_) names.emplace_back("score");
    for (int i = 0; i < kNumVariables; ++i) names.emplace_back(name_of(static_cast<Variable>(i)));
    for (const auto& [name, index] : captured_.tensors()) names.push_back(name);
    for (const auto& [name, index] : captured_.scalars()) names.push_back(name);
    for (const auto& [name, value] : lets_) names.emplace_back(name);
    for (const Function& function : kFunctions) names.emplace_back(function.name);
    return names;
  }

  Value load(const Token& token, int tensor) {
    const std::size_t rank = modifier_.tensors[static_cast<std::size_t>(tensor)].sizes.size();
    std::vector<Value> indices;
    if (lexer_.take_if("[")) indices = list("]");
    if (indices.size() != rank) {
      fail(token, fmt::format("{} has {} dimension{} and is read with {} ind{}; expected {}", token.text,
                              rank, rank == 1 ? "" : "s", indices.size(), indices.size() == 1 ? "ex" : "ices",
                              rank == 0 ? "no index" : "as many in [ ]"));
    }
    return builder_.load(tensor, indices, token.position);
  }

  Value call(const Token& token, const Function& function) {
    lexer_.expect("(");
    const std::vector<Value> arguments = list(")");
    if (arguments.size() != static_cast<std::size_t>(function.num_arguments)) {
      fail(token, fmt::format("{} takes {} argument{}, found {}", token.text, function.num_arguments,
                              function.num_arguments == 1 ? "" : "s", arguments.size()));
    }
    if (function.num_arguments == 1)
      return builder_.unary(function.op, token.text, arguments[0], token.position);
    if (function.op == kClampOp) {
      const Value raised = builder_.binary(Op::kMax, token.text, arguments[0], arguments[1], token.position);
      return builder_.binary(Op::kMin, token.text, raised, arguments[2], token.position);
    }
    return builder_.binary(function.op, token.text, arguments[0], arguments[1], token.position);
  }

  /// One more bracket around what is read now.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxDepth) {
        parser_.fail(
            parser_.lexer_.next(),
            fmt::format("more than {} expressions within each other; expected let for the inner ones",
                        kMaxDepth));
      }
    }
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  const ScoreModifier& modifier_;
  const Captured& captured_;
  Builder& builder_;
  Lexer lexer_;
  bool in_visible_;
  int depth_ = 0;
  std::map<std::string_view, Value> lets_;
};

int root_of(const ScoreModifier& modifier, bool in_visible, const Captured& captured, Builder& builder) {
  const std::string& text = in_visible ? modifier.visible : modifier.score;
  if (text.empty()) return Program::kNone;
  if (text.size() > kMaxTextBytes) {
    fail(fmt::format("scores.modifier.{} has {} bytes; expected at most {}", in_visible ? "visible" : "score",
                     text.size(), kMaxTextBytes));
  }
  return Parser(modifier, in_visible, captured, builder).text();
}

}  // namespace

Parsed parse(const ScoreModifier& modifier) {
  const Captured captured(modifier);
  Builder builder(modifier);
  const int score = root_of(modifier, false, captured, builder);
  const int visible = root_of(modifier, true, captured, builder);
  Parsed parsed;
  parsed.program = builder.finish(score, visible, parsed.positions);
  return parsed;
}

}  // namespace tessera::modifier
