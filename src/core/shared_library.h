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

  /// Sets `function` to the library's function of that name; false if it has none.
  template <class Function>
  bool resolve(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
    return function != nullptr;
  }

 private:
  void* handle_ = nullptr;
  std::string name_;
  std::string error_;
};

/// Where a library that may be absent is looked for.
struct LibrarySearch {
  const char* variable;  ///< of the environment: if set it names the file, and nothing else is tried
  std::span<const char* const> sonames;  ///< the preferred first
  /// Variables of the environment that name folders of toolkits, then such folders; libraries are in lib64 or
  /// lib of each. Looked into after the places that the dynamic loader knows.
  std::span<const char* const> toolkit_variables = {};
  std::span<const char* const> toolkits = {};
};

SharedLibrary find_library(const LibrarySearch& search);

}  // namespace tessera
