#pragma once

#include "core/formats/groups.h"

// GGUF's formats of 32 integers of 4 or 5 bits and one or two halves.

namespace tessera::formats {

/// A half, then 4 bits an element: step * (bits - 8).
struct Q4_0 : InGroups<Q4_0, 32, false> {
  static constexpr const char* kName = "q4_0";
  static constexpr int kElements = 32;
  static constexpr int kBytes = 18;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int) {
    return {static_cast<Number>(load_half(block)), 0};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    return nibble_of_32(block + 2, i) - 8;
  }
};

/// Two halves, then 4 bits an element: step * bits + offset.
struct Q4_1 : InGroups<Q4_1, 32, true> {
  static constexpr const char* kName = "q4_1";
  static constexpr int kElements = 32;
  static constexpr int kBytes = 20;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int) {
    return {static_cast<Number>(load_half(block)), static_cast<Number>(load_half(block + 2))};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) { return nibble_of_32(block + 4, i); }
};

/// A half, a word of the elements' fifth bits, then 4 bits an element: step * (bits - 16).
struct Q5_0 : InGroups<Q5_0, 32, false> {
  static constexpr const char* kName = "q5_0";
  static constexpr int kElements = 32;
  static constexpr int kBytes = 22;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int) {
    return {static_cast<Number>(load_half(block)), 0};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    const int fifth = (block[2 + i / 8] >> (i % 8)) & 1;
    return (nibble_of_32(block + 6, i) | fifth << 4) - 16;
  }
};

/// Two halves, a word of fifth bits, then 4 bits an element: step * bits + offset.
struct Q5_1 : InGroups<Q5_1, 32, true> {
  static constexpr const char* kName = "q5_1";
  static constexpr int kElements = 32;
  static constexpr int kBytes = 24;
  static constexpr int kAlignment = 2;

  template <class Number>
  TESSERA_FORMAT static Step<Number> step(const unsigned char* block, int) {
    return {static_cast<Number>(load_half(block)), static_cast<Number>(load_half(block + 2))};
  }
  TESSERA_FORMAT static int integer(const unsigned char* block, int i) {
    const int fifth = (block[4 + i / 8] >> (i % 8)) & 1;
    return nibble_of_32(block + 8, i) | fifth << 4;
  }
};

}  // namespace tessera::formats
