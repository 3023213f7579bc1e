#include "model/jinja/interpreter.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "core/text.h"
#include "model/jinja/builtins.h"
#include "model/jinja/operators.h"
#include "model/jinja/print.h"

namespace tessera::jinja {

Interpreter::Nesting::Nesting(Interpreter& interpreter) : interpreter_(interpreter) {
  const int most = interpreter.heap_.limits().max_depth;
  if (interpreter.depth_ >= most) {
    throw Failure{fmt::format("expressions, blocks and calls are nested more than {} deep", most)};
  }
  ++interpreter.depth_;
}

Interpreter::Interpreter(const Program& program, Heap& heap) : program_(program), heap_(heap) {}

MarkedText Interpreter::run(std::span<const std::pair<std::string, Value>> variables) {
  Scope* const globals = heap_.make<Scope>();
  for (const auto& [name, function] : global_functions())
    globals->set(heap_, name, heap_.function(name, function));
  for (const auto& [name, value] : variables) globals->set(heap_, name, value);
  Scope* const scope = heap_.make<Scope>();
  scope->parent = globals;
  MarkedText out;
  out_ = &out;
  run_block(program_.body, *scope);
  return out;
}

void Interpreter::print(const MarkedText& text) {
  heap_.charge(text.size());
  heap_.read(text.size());
  out_->append(text);
}

MarkedText Interpreter::capture(const Block& block, Scope& scope) {
  MarkedText captured;
  MarkedText* const outer = std::exchange(out_, &captured);
  run_block(block, scope);
  out_ = outer;
  return captured;
}

Interpreter::Flow Interpreter::run_block(const Block& block, Scope& scope) {
  const Nesting nesting(*this);
  for (const StatementPtr& statement : block) {
    if (const Flow flow = run_statement(*statement, scope); flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement, Scope& scope) {
  heap_.step();
  line_ = statement.line;
  const auto inner_scope = [&] {
    Scope* const inner = heap_.make<Scope>();
    inner->parent = &scope;
    return inner;
  };
  switch (statement.kind) {
    case StatementKind::kText:
      print(statement.text);
      break;
    case StatementKind::kPrint: {
      const Value value = evaluate(*statement.expression, scope);
      line_ = statement.line;
      print(to_text(heap_, value));
      break;
    }
    case StatementKind::kIf:
      for (const auto& [condition, body] : statement.branches) {
        if (truth(evaluate(*condition, scope))) return run_block(body, scope);
      }
      return run_block(statement.otherwise, scope);
    case StatementKind::kFor:
      return run_for(statement, scope);
    case StatementKind::kSet: {
      const Value value = evaluate(*statement.expression, scope);
      line_ = statement.line;
      assign(statement.target, value, scope);
      break;
    }
    case StatementKind::kSetBlock: {
      Value value = heap_.string(capture(statement.body, *inner_scope()));
      if (statement.expression) {
        block_value_ = value;
        value = evaluate(*statement.expression, scope);
      }
      assign(statement.target, value, scope);
      break;
    }
    case StatementKind::kMacro:
      scope.set(heap_, statement.macro.name, make_macro(statement.macro, scope));
      break;
    case StatementKind::kCallBlock: {
      const Expression& call = *statement.expression;
      const Value callee = evaluate(*call.operands[0], scope);
      Arguments arguments = evaluate_arguments(call.arguments, scope);
      arguments.named.emplace_back("caller", make_macro(statement.macro, scope));
      line_ = statement.line;
      print(to_text(heap_, this->call(callee, arguments)));
      break;
    }
    case StatementKind::kFilterBlock:
      block_value_ = heap_.string(capture(statement.body, *inner_scope()));
      print(to_text(heap_, evaluate(*statement.expression, scope)));
      break;
    case StatementKind::kWith: {
      Scope* const inner = inner_scope();
      for (const auto& [target, expression] : statement.assignments) {
        assign(target, evaluate(*expression, scope), *inner);
      }
      return run_block(statement.body, *inner);
    }
    case StatementKind::kScope:
      return run_block(statement.body, *inner_scope());
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_for(const Statement& statement, Scope& scope) {
  const Value iterable = evaluate(*statement.expression, scope);
  line_ = statement.line;
  run_loop(statement, scope, iterable, 0);
  return Flow::kNormal;
}

void Interpreter::run_loop(const Statement& statement, Scope& scope, Value iterable, std::int64_t depth0) {
  const Nesting nesting(*this);
  // A list is looked at as it is when an item's turn comes, as it may have grown; others don't change.
  const bool grows = iterable.is(Kind::kList);
  auto items = std::make_shared<std::vector<Value>>();
  if (!grows) *items = items_of(heap_, iterable);
  Loop* const loop = heap_.make<Loop>();
  loop->depth0 = depth0;
  loop->current = loop->previous = heap_.undefined("there is no previous item");
  loop->pull = [this, &statement, &scope, iterable, items, grows, at = std::size_t{0}](Value& value) mutable {
    for (;;) {
      const std::vector<Value>& all = grows ? iterable.sequence->items : *items;
      if (at >= all.size()) return false;
      heap_.step();
      value = all[at++];
      if (!statement.condition) return true;
      Scope* const test_scope = heap_.make<Scope>();
      test_scope->parent = &scope;
      assign(statement.target, value, *test_scope);
      if (truth(evaluate(*statement.condition, *test_scope))) return true;
    }
  };
  if (!statement.condition && !iterable.is(Kind::kIterator)) {
    loop->length = grows ? jinja::length(iterable) : static_cast<std::int64_t>(items->size());
  }
  if (statement.recursive) {
    loop->recurse = [&statement, &scope](Interpreter& self, Value children, std::int64_t depth) {
      MarkedText captured;
      MarkedText* const outer = std::exchange(self.out_, &captured);
      self.run_loop(statement, scope, children, depth);
      self.out_ = outer;
      return self.heap_.string(std::move(captured));
    };
  }
  Value loop_value;
  loop_value.kind = Kind::kLoop;
  loop_value.loop = loop;

  Scope* inner = nullptr;
  while (loop->advance()) {
    heap_.step();
    if (inner == nullptr || inner->captured) {
      inner = heap_.make<Scope>();
      inner->parent = &scope;
    }
    inner->names.clear();
    inner->set(heap_, "loop", loop_value);
    assign(statement.target, loop->current, *inner);
    if (run_block(statement.body, *inner) == Flow::kBreak) break;
  }
  if (loop->index0 < 0) {
    Scope* const empty = heap_.make<Scope>();
    empty->parent = &scope;
    run_block(statement.otherwise, *empty);
  }
  loop->pull = [](Value&) { return false; };  // its statement and scope may be gone before it is
}

void Interpreter::assign(const Target& target, Value value, Scope& scope) {
  if (target.is_tuple) {
    const std::vector<Value> items = items_of(heap_, value);
    if (items.size() != target.parts.size()) {
      throw Failure{
          fmt::format("{} values can't be assigned to {} names", items.size(), target.parts.size())};
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope);
    return;
  }
  if (target.attribute.empty()) {
    heap_.charge(sizeof(Value) + sizeof(std::string_view));
    scope.set(heap_, target.name, value);
    return;
  }
  const Value* const found = scope.find(heap_, target.name);
  if (found == nullptr || !found->is(Kind::kNamespace)) {
    throw Failure{"cannot assign attribute on non-namespace object"};
  }
  if (target.attribute.starts_with('_')) {
    throw Failure{fmt::format("a namespace's attribute can't be called '{}'", target.attribute)};
  }
  heap_.set(*found->dict, heap_.string(target.attribute), value);
}

Value Interpreter::make_macro(const MacroNode& macro, Scope& scope) {
  for (Scope* captured = &scope; captured != nullptr; captured = captured->parent) captured->captured = true;
  auto* const function = heap_.make<Function>();
  function->name = macro.name;
  function->macro = &macro;
  function->scope = &scope;
  Value value;
  value.kind = Kind::kFunction;
  value.function = function;
  return value;
}

Value Interpreter::call_macro(const Function& function, const Arguments& arguments) {
  const Nesting nesting(*this);
  const MacroNode& macro = *function.macro;
  Scope* const scope = heap_.make<Scope>();
  scope->parent = function.scope;
  std::vector<std::pair<std::string_view, Value>> named = arguments.named;
  const auto take_named = [&](std::string_view name, Value& value) {
    heap_.step(named.size() / 16);
    const auto found = std::ranges::find(named, name, &std::pair<std::string_view, Value>::first);
    if (found == named.end()) return false;
    value = found->second;
    named.erase(found);
    return true;
  };
  const std::size_t given = std::min(arguments.positional.size(), macro.parameters.size());
  std::vector<bool> missing(macro.parameters.size(), false);
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    Value value;
    if (i < given) {
      value = arguments.positional[i];
    } else if (!take_named(macro.parameters[i], value)) {
      missing[i] = true;  // also in the defaults, which see the parameters and no variables of their names
      value = heap_.undefined(fmt::format("parameter '{}' was not provided", macro.parameters[i]));
    }
    scope->set(heap_, macro.parameters[i], value);
  }
  const bool names_caller = std::ranges::find(macro.parameters, "caller") != macro.parameters.end();
  if (macro.uses_caller && !names_caller) {
    Value caller;
    if (!take_named("caller", caller)) caller = heap_.undefined("No caller defined");
    scope->set(heap_, "caller", caller);
  }
  if (macro.uses_kwargs) {
    const Value rest = heap_.dict();
    for (const auto& [name, value] : named) heap_.set(*rest.dict, heap_.string(name), value);
    scope->set(heap_, "kwargs", rest);
  } else if (!named.empty()) {
    throw Failure{
        fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, printable(named[0].first))};
  }
  if (macro.uses_varargs) {
    scope->set(
        heap_, "varargs",
        heap_.sequence(Kind::kTuple, {arguments.positional.begin() + static_cast<std::ptrdiff_t>(given),
                                      arguments.positional.end()}));
  } else if (arguments.positional.size() > macro.parameters.size()) {
    throw Failure{
        fmt::format("macro '{}' takes not more than {} argument(s)", macro.name, macro.parameters.size())};
  }
  const std::size_t first_default = macro.parameters.size() - macro.defaults.size();
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    if (missing[i] && i >= first_default)
      scope->set(heap_, macro.parameters[i], evaluate(*macro.defaults[i - first_default], *scope));
  }
  return heap_.string(capture(macro.body, *scope));
}

Value Interpreter::call(Value callee, const Arguments& arguments) {
  const Nesting nesting(*this);
  heap_.step();
  const int line = line_;
  if (callee.is(Kind::kLoop)) {
    if (!callee.loop->recurse) {
      throw Failure{"the loop must have the 'recursive' marker to be called recursively"};
    }
    if (arguments.positional.size() != 1) throw Failure{"a recursive loop takes one argument"};
    return callee.loop->recurse(*this, arguments.positional[0], callee.loop->depth0 + 1);
  }
  if (!callee.is(Kind::kFunction)) {
    require_defined(callee);
    throw Failure{fmt::format("'{}' object is not callable", type_name(callee))};
  }
  const Function& function = *callee.function;
  const Value result = function.macro != nullptr ? call_macro(function, arguments)
                                                 : function.native(*this, function.self, arguments);
  line_ = line;
  return result;
}

}  // namespace tessera::jinja
