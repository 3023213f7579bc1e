#include "c_api/memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace tessera::c_api {
namespace {

template <class T>
T* copy_for_caller(std::span<const T> values) {
  T* copy = static_cast<T*>(std::malloc((values.size() + 1) * sizeof(T)));
  if (copy == nullptr) throw std::bad_alloc();
  if (!values.empty()) std::memcpy(copy, values.data(), values.size_bytes());
  copy[values.size()] = T{};
  return copy;
}

template <class Array>
void free_array(Array* array) {
  if (array == nullptr) return;
  std::free(array->data);
  *array = {};
}

}  // namespace

void give(tessera_text& out, const std::string& values) {
  out = {copy_for_caller(std::span<const char>(values)), values.size()};
}

void give(tessera_tokens& out, std::span<const std::int32_t> values) {
  out = {copy_for_caller(values), values.size()};
}

void give(tessera_floats& out, std::span<const float> values) {
  out = {copy_for_caller(values), values.size()};
}

}  // namespace tessera::c_api

using namespace tessera::c_api;

extern "C" {

void tessera_text_free(tessera_text* text) { free_array(text); }
void tessera_tokens_free(tessera_tokens* tokens) { free_array(tokens); }
void tessera_floats_free(tessera_floats* floats) { free_array(floats); }

}  // extern "C"
