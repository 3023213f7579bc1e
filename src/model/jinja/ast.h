#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/jinja/operators.h"
#include "model/jinja/value.h"

namespace tessera::jinja {

enum class ExpressionKind {
  kConstant,   // constant
  kString,     // text
  kName,       // name
  kList,       // operands
  kTuple,      // operands
  kDict,       // operands: key, value, key, value, …
  kAttribute,  // operands[0].name
  kItem,       // operands[0][operands[1]]
  kSlice,      // operands: value, start, stop, step; null: left out
  kCall,       // operands[0](arguments)
  kFilter,     // operands[0] | name(arguments); operands[0] is null for what a block gives
  kTest,       // operands[0] is name(arguments)
  kNot,
  kNegate,
  kPositive,
  kAnd,
  kOr,
  kConditional,  // operands: condition, then, otherwise (may be null)
  kCompare,      // operands and, between them, comparisons
  kConcatenate,
  kArithmetic,  // operation
};

enum class Comparison { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

/// What stands between the parentheses of a call.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr sequence, mapping;  // of *sequence and **mapping; may be null
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int line = 0;
  int depth = 1;  // of the tree
  std::string name;
  MarkedText text;
  Value constant;
  Operation operation = Operation::kAdd;
  std::vector<Comparison> comparisons;
  std::vector<ExpressionPtr> operands;
  CallArguments arguments;
};

/// What can be assigned to: a name, a namespace's attribute, or a tuple of targets.
struct Target {
  int line = 0;
  std::string name;
  std::string attribute;  // empty: a name
  std::vector<Target> parts;
  bool is_tuple = false;
};

enum class StatementKind {
  kText,         // text
  kPrint,        // expression
  kIf,           // branches, otherwise
  kFor,          // target, expression, condition (may be null), body, otherwise
  kSet,          // target, expression
  kSetBlock,     // target, body, expression: the filters, or null
  kMacro,        // macro
  kCallBlock,    // expression: the call, macro: the caller
  kFilterBlock,  // expression: the filters, body
  kWith,         // assignments, body
  kScope,        // body, in a scope of its own
  kBreak,
  kContinue,
};

struct Statement;
using StatementPtr = std::unique_ptr<Statement>;
using Block = std::vector<StatementPtr>;

struct MacroNode {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Block body;
  // Whether the body speaks of these names: then it takes any such arguments.
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  MarkedText text;
  ExpressionPtr expression, condition;
  Target target;
  Block body, otherwise;
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  MacroNode macro;
  bool recursive = false;
};

/// A parsed template.
struct Program {
  Block body;
  std::string literals;  // all of its text and strings, each ended by a zero byte
};

}  // namespace tessera::jinja
