#pragma once

#include <vector>

#include "modifier/ir.h"
#include "modifier/kernel_text.h"

// What printed code needs of each node, and where it computes that.

namespace tessera::modifier {

/// The functions' parts of a program: each holds what the later ones need.
enum Stage { kUniformStage, kRowStage, kKeyStage, kPairStage };

constexpr Stage stage_of(Rank rank) {
  switch (rank) {
    case Rank::kUniform:
      return kUniformStage;
    case Rank::kQuery:
      return kRowStage;
    case Rank::kKey:
      return kKeyStage;
    default:
      return kPairStage;
  }
}

struct NodeUse {
  bool is_data = false;  ///< int32 that depends on a tensor's contents or on fp32: it may wrap around
  int leaves = 0;  ///< of an int32 that fp32 can have exactly: how many indices it is made of; 0: it can't
  /// Of such a one: how much it grows from a key to the next, where that is the same for all; else it is not
  /// `is_linear`.
  int step = 0;
  bool is_linear = false;
  bool needed = false, needed_as_real = false;
  bool needed_inverse = false;    ///< as a divisor: its reciprocal
  bool needed_tanh_unit = false;  ///< as a factor or divisor of tanh's argument: what takes that to its units
  /// Whether its value takes so long that threads compute it for each other, and whether it is read behind
  /// such values.
  bool is_stored = false, is_member = false;
  bool has_score_tanh = false;  ///< whether a tanh of rank score is in it
};

class NodeUses {
 public:
  NodeUses(const Program& program, const KernelTextOptions& options);

  const NodeUse& operator[](int i) const { return uses_[static_cast<std::size_t>(i)]; }

  /// Whether a conversion takes its operand as fp32 from the beginning.
  bool converts_early(const Node& n) const;
  /// Whether a quotient or rest is of so small a dividend (2^21) that fp32 finds it. Of lower rank it is
  /// computed seldom.
  bool divides_small(const Node& n) const;
  /// Whether a division multiplies by what its divisor's own stage has made of it.
  bool divides_by_inverse(const Node& n) const;
  /// Whether an operation of int32 may leave its range.
  bool wraps_around(const Node& n) const;
  /// Whether node i is a tanh that a polynomial may take: of a score, and of no other such tanh.
  bool is_score_tanh(int i) const;
  /// The operand of a tanh's argument that is of rank score, if that is a product with or quotient by
  /// something uniform; which of the argument's operands that is. kNone: it is neither.
  int tanh_unit_of(const Node& tanh) const;
  /// A product of something that is the same for all keys of a row with a linear distance: which operand is
  /// the distance, as it is before its conversion. kNone: it is none.
  int linear_factor_of(const Node& n) const;
  /// The same of a product with the magnitude of a linear distance, of the one such that the scores have.
  int magnitude_factor_of(const Node& n) const;
  /// That distance, whose sign tiles away from the diagonal know. kNone: there is none, or several.
  int signed_distance() const { return signed_distance_; }

 private:
  const Node& node(int i) const { return program_.nodes[static_cast<std::size_t>(i)]; }
  NodeUse& use(int i) { return uses_[static_cast<std::size_t>(i)]; }
  NodeUse analysed(const Node& n) const;
  /// Of a product with a converted distance that is no key's own: which operand is the conversion, or kNone.
  template <class IsDistance>
  int factor_of(const Node& n, IsDistance is_distance) const;
  void find_signed_distance();
  void need(int i, bool as_real);
  void store(int i);

  const Program& program_;
  KernelTextOptions options_;
  std::vector<NodeUse> uses_;
  int signed_distance_ = Program::kNone;
};

inline int operand(const Node& n, int k) { return n.operands[static_cast<std::size_t>(k)]; }

}  // namespace tessera::modifier
