#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>

#include "c_api/status.h"
#include "tessera/model.h"
#include "tessera/tessera.h"

struct tessera_model {
  tessera::LanguageModel model;
};

namespace tessera::c_api {

/// The elements of an array that may be null if it has none. Throws Error{kInvalidArgument} that names it.
template <class T>
std::span<const T> array(const T* data, std::size_t size, const char* name) {
  if (size > 0) required(data, name);
  return {data, size};
}

/// A copy of `values`, with a zero behind it, that std::free frees. Throws std::bad_alloc.
template <class T>
T* copy_for_caller(std::span<const T> values) {
  T* copy = static_cast<T*>(std::malloc((values.size() + 1) * sizeof(T)));
  if (copy == nullptr) throw std::bad_alloc();
  if (!values.empty()) std::memcpy(copy, values.data(), values.size_bytes());
  copy[values.size()] = T{};
  return copy;
}

}  // namespace tessera::c_api
