#pragma once

#include <span>
#include <string>

namespace tessera {

/// A shared library opened at run time. It stays loaded until the process ends: GPU drivers don't survive
/// being unloaded.
class SharedLibrary {
 public:
  /// Opens the first of `names` that the dynamic loader finds. If none: is_open() is false and error() says
  /// why for each.
  explicit SharedLibrary(std::span<const char* const> names);

  bool is_open() const { return handle_ != nullptr; }
  const std::string& name() const { return name_; }    ///< the one that was opened
  const std::string& error() const { return error_; }  ///< empty if open

  /// Null if the library has no such symbol.
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string name_;
  std::string error_;
};

}  // namespace tessera
