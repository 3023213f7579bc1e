#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/ast.h"
#include "model/jinja/value.h"

namespace tessera::jinja {

/// Runs a program once. Throws Failure; line() then is where it happened.
class Interpreter {
 public:
  Interpreter(const Program& program, Heap& heap);

  MarkedText run(std::span<const std::pair<std::string, Value>> variables);
  int line() const { return line_; }

  // What filters, tests and methods use.
  Heap& heap() { return heap_; }
  Value call(Value callee, const Arguments& arguments);
  Value apply_filter(std::string_view name, Value value, const Arguments& arguments);
  bool apply_test(std::string_view name, Value value, const Arguments& arguments);
  Value attribute(Value object, std::string_view name);  ///< object.name
  Value item(Value object, Value key);                   ///< object[key]

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  // interpreter.cpp
  Flow run_block(const Block& block, Scope& scope);
  Flow run_statement(const Statement& statement, Scope& scope);
  Flow run_for(const Statement& statement, Scope& scope);
  void run_loop(const Statement& statement, Scope& scope, Value iterable, std::int64_t depth0);
  MarkedText capture(const Block& block, Scope& scope);
  void assign(const Target& target, Value value, Scope& scope);
  Value make_macro(const MacroNode& macro, Scope& scope);
  Value call_macro(const Function& function, const Arguments& arguments);
  void print(const MarkedText& text);

  // expressions.cpp
  Value evaluate(const Expression& expression, Scope& scope);
  Value evaluate_compare(const Expression& expression, Scope& scope);
  Value evaluate_call(const Expression& expression, Scope& scope);
  Arguments evaluate_arguments(const CallArguments& arguments, Scope& scope);
  Value evaluate_filter(const Expression& expression, Scope& scope);
  Value operand(const Expression& expression, std::size_t index, Scope& scope);

  /// Counts nesting for as long as it lives.
  struct Nesting {
    explicit Nesting(Interpreter& interpreter);
    ~Nesting() { --interpreter_.depth_; }
    Interpreter& interpreter_;
  };

  const Program& program_;
  Heap& heap_;
  MarkedText* out_ = nullptr;
  Value block_value_;  // what a filter block or a set block gives to its filters
  int line_ = 1;
  int depth_ = 0;
};

}  // namespace tessera::jinja
