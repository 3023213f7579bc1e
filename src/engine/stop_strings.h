#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Watches a text that comes in pieces for strings that end it, and gives out what is certainly before the
/// first.
class StopStrings {
 public:
  /// Throws Error{kInvalidArgument} for an empty one, one longer than 1024 bytes, or more than 64.
  explicit StopStrings(std::vector<std::string> strings);

  bool empty() const { return strings_.empty(); }

  /// The text that may be given out, now that `piece` is known: all before the first stop string, or, if
  /// there is none, before what may yet become one. After it has stopped nothing more comes.
  std::string push(std::string_view piece);
  bool stopped() const { return stopped_; }
  /// What was held back.
  std::string finish();

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace tessera
