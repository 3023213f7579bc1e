#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/element.h"
#include "core/formats/all.h"
#include "model/checkpoint/expected_tensors.h"
#include "model/checkpoint/hf_quantization.h"
#include "model/checkpoint/weights.h"
#include "tessera/error.h"

// What Hugging Face folders have of matrices stored as codes and scales, as the tensors that Checkpoint
// documents. A number is (code - zero point) * scale, exact in fp64 and rounded once to the model's dtype.
// Of a matrix of `in` columns and `out` rows:
//
//   fp8, compressed-tensors   weight            (out, in), F8_E4M3 or I8
//                             weight_scale_inv  or weight_scale: of the whole, of rows or of rectangles
//   compressed-tensors        weight_packed     (out, in / 8), words of 8 codes of a row, offset by 8
//                             weight_scale      (out, groups)
//                             weight_zero_point (out / 8, groups), words of 8 rows; without: 8
//                             weight_shape      (2), I64: out and in
//                             weight_g_idx      (in), the group of each column; without: neighbours
//   GPTQ                      qweight           (in / 8, out), words of 8 codes of a row
//                             qzeros            (groups, out / 8), words of 8 rows, in its first form less 1
//                             scales            (groups, out)
//                             g_idx             (in)
//   AWQ                       qweight           (in, out / 8), words of 8 rows in an order of its own
//                             qzeros, scales    (groups, out / 8), (groups, out)
//
// Words hold 4 codes instead of 8 where a code has 8 bits.

namespace tessera {
namespace {

template <class T>
T load(const std::byte* data, std::size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

/// Numbers of a file that others are multiplied by.
struct Scales {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  bool are_exponents = false;  ///< F8_E8M0: 2^(byte - 127)

  double at(std::size_t i) const {
    if (are_exponents) {
      const int exponent = std::to_integer<int>(data[i]) - 127;
      return exponent == 128 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, exponent);
    }
    return dispatch_activation(
        dtype, [&]<class T>() { return static_cast<double>(static_cast<float>(load<T>(data, i))); });
  }
};

/// Codes of 4 or 8 bits in words of 32 bits: lines of codes, of which a word has several of one line, or one
/// of several lines.
struct PackedCodes {
  const std::byte* words = nullptr;
  std::size_t line_words = 0;  ///< words from one line of words to the next
  unsigned bits = 4;
  bool across_lines = false;  ///< a word has codes of several lines
  bool in_awq_order = false;

  int at(std::size_t line, std::size_t i) const {
    const unsigned shift = bits == 4 ? 3 : 2;  // 8 or 4 codes in a word
    const std::size_t packed = across_lines ? line : i;
    const std::size_t word =
        across_lines ? (line >> shift) * line_words + i : line * line_words + (i >> shift);
    std::size_t place = packed & ((std::size_t{1} << shift) - 1);
    if (in_awq_order)
      place = place / 2 + (place % 2) * 4;  // codes 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits
    return static_cast<int>(load<std::uint32_t>(words, word) >> (place * bits) & ((1u << bits) - 1));
  }
};

constexpr int kQ4_0Zero = 8;

/// A matrix whose columns share scales and zero points by groups.
struct GroupedMatrix {
  std::size_t rows = 0, columns = 0, groups = 0, group_size = 0;
  bool transposed = false;  ///< lines of codes, zero points and scales are columns or groups, not rows
  PackedCodes codes;
  std::optional<PackedCodes> zeros;
  int zero = 0;  ///< what is added to zero points; without them the one of all
  Scales scales;
  const std::byte* group_of = nullptr;  ///< (columns) I32; null: neighbours

  std::size_t group(std::size_t column) const {
    return group_of == nullptr ? column / group_size
                               : static_cast<std::size_t>(load<std::int32_t>(group_of, column));
  }
  int code(std::size_t row, std::size_t column) const {
    return transposed ? codes.at(column, row) : codes.at(row, column);
  }
  int zero_point(std::size_t row, std::size_t g) const {
    return !zeros ? zero : zero + (transposed ? zeros->at(g, row) : zeros->at(row, g));
  }
  double scale(std::size_t row, std::size_t g) const {
    return scales.at(transposed ? g * rows + row : row * groups + g);
  }

  void read(std::size_t row, std::span<double> out) const {
    std::size_t last = groups;
    double step = 0;
    int from = 0;
    for (std::size_t column = 0; column < columns; ++column) {
      const std::size_t g = group(column);
      if (g != last) {
        last = g;
        step = scale(row, g);
        from = zero_point(row, g);
      }
      out[column] = (code(row, column) - from) * step;
    }
  }

  /// Whether blocks of Q4_0 hold the numbers, even without rounding, as they do where GPTQ is symmetric.
  bool fits_q4_0() const {
    constexpr auto kElements = static_cast<std::size_t>(formats::Q4_0::kElements);
    if (codes.bits != 4 || columns % kElements != 0 || group_size % kElements != 0) return false;
    for (std::size_t column = 0; group_of != nullptr && column < columns; ++column)
      if (group(column) != column / group_size) return false;
    const bool halves = scales.dtype == DType::kF16 && !scales.are_exponents;
    for (std::size_t g = 0; g < groups; ++g) {
      for (std::size_t row = 0; row < rows; ++row) {
        if (zero_point(row, g) != kQ4_0Zero) return false;
        if (halves) continue;
        const double step = scale(row, g);
        if (static_cast<double>(Half(static_cast<float>(step))) != step) return false;
      }
    }
    return true;
  }

  void read_q4_0(std::size_t row, std::byte* out) const {
    constexpr auto kElements = static_cast<std::size_t>(formats::Q4_0::kElements), kHalf = kElements / 2;
    for (std::size_t begin = 0; begin < columns; begin += kElements) {
      const Half step(static_cast<float>(scale(row, begin / group_size)));
      std::memcpy(out, &step, sizeof step);
      out += sizeof step;
      for (std::size_t j = 0; j < kHalf; ++j)
        *out++ = static_cast<std::byte>(code(row, begin + j) | code(row, begin + j + kHalf) << 4);
    }
  }
};

/// A matrix of codes of a byte each, rectangles of which share a scale.
struct ScaledMatrix {
  std::size_t columns = 0, block_rows = 0, block_columns = 0, row_scales = 0;
  const std::byte* codes = nullptr;
  bool are_integers = false;
  Scales scales;

  void read(std::size_t row, std::span<double> out) const {
    static const std::array<float, 256> values = [] {
      std::array<float, 256> table;
      for (std::size_t i = 0; i < table.size(); ++i) {
        Float8E4M3 number;
        number.bits = static_cast<std::uint8_t>(i);
        table[i] = static_cast<float>(number);
      }
      return table;
    }();
    const std::byte* const line = codes + row * columns;
    for (std::size_t begin = 0; begin < columns; begin += block_columns) {
      const double step = scales.at(row / block_rows * row_scales + begin / block_columns);
      for (std::size_t i = begin; i < std::min(columns, begin + block_columns); ++i) {
        const auto code = std::to_integer<std::uint8_t>(line[i]);
        out[i] = (are_integers ? static_cast<float>(static_cast<std::int8_t>(code)) : values[code]) * step;
      }
    }
  }
};

template <class Matrix>
std::function<void(std::int64_t, std::byte*)> row_reader(const Matrix& matrix, DType dtype) {
  return [matrix, dtype](std::int64_t row, std::byte* out) {
    std::vector<double> numbers(matrix.columns);
    matrix.read(static_cast<std::size_t>(row), numbers);
    dispatch_activation(dtype, [&]<class T>() {
      for (const double number : numbers) {
        const T value = round_to<T>(number);
        std::memcpy(out, &value, sizeof value);
        out += sizeof value;
      }
    });
  };
}

/// What says how activations, keys and values were quantised while a model ran, which doesn't happen here.
bool is_of_activations(std::string_view name) {
  constexpr std::string_view kEndings[] = {".input_scale", ".activation_scale", ".output_scale", ".q_scale",
                                           ".k_scale",     ".v_scale",          ".kv_scale"};
  return std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace

/// Makes matrices of their parts.
class WeightCollector::Widener {
 public:
  Widener(std::map<std::string, Item, std::less<>>& tensors, const HfQuantization& quantization,
          const ModelConfig& config)
      : tensors_(tensors), quantization_(quantization), config_(config) {}

  void run() {
    std::vector<std::string> names;
    for (const auto& [name, item] : tensors_) names.push_back(name);
    const bool is_gptq = quantization_.method == HfQuantization::Method::kGptq;
    const bool is_awq = quantization_.method == HfQuantization::Method::kAwq;
    for (const std::string& name : names) {
      if (const auto stem = stem_of(name, ".qweight"); stem && (is_gptq || is_awq)) {
        widen_groups(*stem, is_awq);
      } else if (const auto packed = stem_of(name, ".weight_packed")) {
        widen_packed(*packed);
      } else if (const auto scaled = stem_of(name, ".weight")) {
        const std::string_view dtype = tensors_.find(name)->second.dtype_name;
        if (dtype == "F8_E4M3" || dtype == "I8") widen_scaled(*scaled);
      }
    }
    std::erase_if(tensors_, [](const auto& entry) { return is_of_activations(entry.first); });
    drop_empty_biases();
  }

 private:
  static std::optional<std::string> stem_of(const std::string& name, std::string_view ending) {
    if (!name.ends_with(ending)) return std::nullopt;
    return name.substr(0, name.size() - ending.size());
  }

  [[noreturn]] static void fail(const Item& item, const std::string& what) {
    throw Error(ErrorCode::kCorruptFile,
                fmt::format("{} (byte {}): {}", item.tensor.source, item.offset, what));
  }

  static std::string described(const Item& item) {
    return fmt::format("it is {} {}", item.dtype_name, shape_text(item.tensor.shape));
  }

  const Item* find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }

  /// A part of the matrix that `of` belongs to.
  const Item& require(const std::string& name, const Item& of) const {
    const Item* const item = find(name);
    if (item == nullptr) fail(of, fmt::format("the tensor '{}', which goes with it, is missing", name));
    return *item;
  }

  /// Checks that the item is of this dtype and shape.
  static void expect(const Item& item, std::string_view dtype, std::initializer_list<std::size_t> shape) {
    const std::vector<std::int64_t> expected(shape.begin(), shape.end());
    if (item.dtype_name != dtype || item.tensor.shape != expected)
      fail(item, fmt::format("{}; {} {} was expected", described(item), dtype, shape_text(expected)));
  }

  static std::array<std::size_t, 2> extents(const Item& item, std::string_view expected) {
    const std::vector<std::int64_t>& shape = item.tensor.shape;
    if (shape.size() != 2 || item.tensor.size_bytes == 0)
      fail(item, fmt::format("{}; {} was expected", described(item), expected));
    return {static_cast<std::size_t>(shape[0]), static_cast<std::size_t>(shape[1])};
  }

  static Scales scales_of(const Item& item) {
    if (item.dtype_name == "F8_E8M0") return {item.tensor.data, DType::kF32, true};
    if (!item.has_weight_dtype)
      fail(item, described(item) + "; scales of F32, F16, BF16 or F8_E8M0 were expected");
    return {item.tensor.data, item.tensor.dtype, false};
  }

  /// Puts a matrix in the place of what it is made of.
  void put(const std::string& stem, const Item& like, std::size_t rows, std::size_t columns, DType dtype,
           std::function<void(std::int64_t, std::byte*)> read_part,
           std::initializer_list<const char*> parts) {
    Item item = like;
    item.tensor.dtype = dtype;
    item.dtype_name = dtype_name(dtype);
    item.has_weight_dtype = true;
    item.tensor.shape = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)};
    item.tensor.size_bytes = rows * dtype_bytes(dtype, columns);
    item.tensor.data = nullptr;
    item.tensor.read_part = std::move(read_part);
    for (const char* part : parts) tensors_.erase(stem + part);
    tensors_.insert_or_assign(stem + ".weight", std::move(item));
    stems_.push_back(stem);
  }

  void put(const std::string& stem, const Item& like, const GroupedMatrix& matrix,
           std::initializer_list<const char*> parts) {
    // A layer's experts are of one dtype, so that what only some of them fit is not looked for.
    const bool may_fit = stem.find(".experts.") == stem.npos || matrix.scales.dtype == DType::kF16;
    if (may_fit && quantization_.is_symmetric && matrix.fits_q4_0()) {
      return put(
          stem, like, matrix.rows, matrix.columns, DType::kQ4_0,
          [matrix](std::int64_t row, std::byte* out) {
            matrix.read_q4_0(static_cast<std::size_t>(row), out);
          },
          parts);
    }
    put(stem, like, matrix.rows, matrix.columns, quantization_.dtype, row_reader(matrix, quantization_.dtype),
        parts);
  }

  void widen_scaled(const std::string& stem) {
    const Item codes = tensors_.find(stem + ".weight")->second;
    const bool is_inverse = find(stem + ".weight_scale_inv") != nullptr;
    const Item& scale = require(stem + (is_inverse ? ".weight_scale_inv" : ".weight_scale"), codes);
    const auto [rows, columns] = extents(codes, "a matrix that isn't empty");
    ScaledMatrix matrix;
    matrix.columns = columns;
    matrix.codes = codes.tensor.data;
    matrix.are_integers = codes.dtype_name == "I8";
    matrix.scales = scales_of(scale);
    const std::vector<std::int64_t>& shape = scale.tensor.shape;
    const std::size_t scale_rows = shape.empty() ? 1 : static_cast<std::size_t>(shape[0]);
    const std::size_t scale_columns = shape.size() < 2 ? 1 : static_cast<std::size_t>(shape[1]);
    const auto extent = [](std::size_t all, std::size_t scales, std::int64_t block) {
      if (scales <= 1) return all;
      return scales == all ? 1 : static_cast<std::size_t>(block);
    };
    matrix.row_scales = scale_columns;
    matrix.block_rows = extent(rows, scale_rows, quantization_.block[0]);
    matrix.block_columns = extent(columns, scale_columns, quantization_.block[1]);
    // Groups of a row, as compressed-tensors has them.
    if (scale_rows == rows && scale_columns > 1 && columns % scale_columns == 0)
      matrix.block_columns = columns / scale_columns;
    const auto blocks = [](std::size_t all, std::size_t of) { return (all + of - 1) / of; };
    if (shape.size() > 2 || scale_rows != blocks(rows, matrix.block_rows) ||
        scale_columns != blocks(columns, matrix.block_columns)) {
      fail(scale,
           fmt::format("{}; scales of the whole, of {} rows or of rectangles of {} by {} were expected",
                       described(scale), rows, quantization_.block[0], quantization_.block[1]));
    }
    put(stem, codes, rows, columns, quantization_.dtype, row_reader(matrix, quantization_.dtype),
        {".weight_scale_inv", ".weight_scale"});
  }

  /// The groups of the matrix' columns; `name` says which each is in, if it is there.
  void find_groups(const std::string& name, GroupedMatrix& matrix) {
    const Item* const item = find(name);
    if (item == nullptr) return;
    expect(*item, "I32", {matrix.columns});
    for (std::size_t column = 0; column < matrix.columns; ++column) {
      const auto group = load<std::int32_t>(item->tensor.data, column);
      if (group < 0 || static_cast<std::size_t>(group) >= matrix.groups)
        fail(*item, fmt::format("number {} is {}; a group, 0 to {}, was expected", column, group,
                                matrix.groups - 1));
    }
    matrix.group_of = item->tensor.data;
  }

  void widen_groups(const std::string& stem, bool is_awq) {
    const Item codes = tensors_.find(stem + ".qweight")->second;
    const auto [lines, width] = extents(codes, "words of codes");
    const auto bits = static_cast<unsigned>(quantization_.bits);
    const std::size_t in_word = 32 / bits;
    GroupedMatrix matrix;
    matrix.transposed = true;
    matrix.columns = is_awq ? lines : lines * in_word;
    matrix.rows = is_awq ? width * in_word : width;
    expect(codes, "I32", {lines, width});
    const Item& scale = require(stem + ".scales", codes);
    matrix.groups = extents(scale, "scales of groups and rows")[0];
    matrix.group_size =
        quantization_.group_size == -1 ? matrix.columns : static_cast<std::size_t>(quantization_.group_size);
    matrix.scales = scales_of(scale);
    expect(scale, scale.dtype_name, {matrix.groups, matrix.rows});
    matrix.codes = {codes.tensor.data, width, bits, !is_awq, is_awq};
    if (const Item* const zeros = find(stem + ".qzeros"); zeros != nullptr || !is_awq) {
      const Item& present = require(stem + ".qzeros", codes);
      const std::size_t zeros_width = (matrix.rows + in_word - 1) / in_word;
      expect(present, "I32", {matrix.groups, zeros_width});
      matrix.zeros = PackedCodes{present.tensor.data, zeros_width, bits, false, is_awq};
    }
    if (!is_awq) find_groups(stem + ".g_idx", matrix);
    if (!is_awq && quantization_.zero_points_less_one) matrix.zero = 1;
    if (!matrix.zeros) matrix.zero = 1 << (bits - 1);
    if (matrix.group_of == nullptr &&
        (matrix.columns + matrix.group_size - 1) / matrix.group_size != matrix.groups) {
      fail(scale, fmt::format("{}; one for each {} of {} columns was expected", described(scale),
                              matrix.group_size, matrix.columns));
    }
    put(stem, codes, matrix, {".qweight", ".qzeros", ".scales", ".g_idx"});
  }

  void widen_packed(const std::string& stem) {
    const Item codes = tensors_.find(stem + ".weight_packed")->second;
    const auto [rows, width] = extents(codes, "words of codes");
    expect(codes, "I32", {rows, width});
    const Item& shape = require(stem + ".weight_shape", codes);
    expect(shape, "I64", {2});
    const auto columns = load<std::int64_t>(shape.tensor.data, 1);
    GroupedMatrix matrix;
    unsigned bits = 0;
    for (const unsigned known : {4u, 8u}) {
      const auto in_word = static_cast<std::int64_t>(32 / known);
      if (columns > 0 && columns <= static_cast<std::int64_t>(width) * in_word &&
          columns > (static_cast<std::int64_t>(width) - 1) * in_word) {
        bits = known;
      }
    }
    if (bits == 0 || load<std::int64_t>(shape.tensor.data, 0) != static_cast<std::int64_t>(rows)) {
      fail(shape,
           fmt::format("it says ({}, {}); {} rows, and columns of 4 or 8 bits in {} words, were expected",
                       load<std::int64_t>(shape.tensor.data, 0), columns, rows, width));
    }
    matrix.rows = rows;
    matrix.columns = static_cast<std::size_t>(columns);
    const Item& scale = require(stem + ".weight_scale", codes);
    matrix.groups = extents(scale, "scales of rows and groups")[1];
    expect(scale, scale.dtype_name, {rows, matrix.groups});
    matrix.scales = scales_of(scale);
    matrix.codes = {codes.tensor.data, width, bits, false, false};
    matrix.zero = 1 << (bits - 1);
    const std::size_t in_word = 32 / bits;
    if (const Item* const zeros = find(stem + ".weight_zero_point")) {
      expect(*zeros, "I32", {(rows + in_word - 1) / in_word, matrix.groups});
      matrix.zeros = PackedCodes{zeros->tensor.data, matrix.groups, bits, true, false};
      matrix.zero = 0;
    }
    find_groups(stem + ".weight_g_idx", matrix);
    if (matrix.columns % matrix.groups != 0)
      fail(scale,
           fmt::format("{}; groups of equal size of {} columns were expected", described(scale), columns));
    matrix.group_size = matrix.columns / matrix.groups;
    put(stem, codes, matrix,
        {".weight_packed", ".weight_shape", ".weight_scale", ".weight_zero_point", ".weight_g_idx"});
  }

  /// The first writers of GPTQ gave every layer a bias, of zeros where the model has none.
  void drop_empty_biases() {
    std::set<std::string> expected;
    for (ExpectedTensor& tensor : expected_tensors(config_)) expected.insert(std::move(tensor.name));
    for (const std::string& stem : stems_) {
      const auto bias = tensors_.find(stem + ".bias");
      if (bias == tensors_.end() || expected.contains(bias->first)) continue;
      const CheckpointTensor& tensor = bias->second.tensor;
      if (std::all_of(tensor.data, tensor.data + tensor.size_bytes,
                      [](std::byte b) { return b == std::byte{0}; }))
        tensors_.erase(bias);
    }
  }

  std::map<std::string, Item, std::less<>>& tensors_;
  const HfQuantization& quantization_;
  const ModelConfig& config_;
  std::vector<std::string> stems_;  ///< of the matrices that were made
};

void WeightCollector::widen(const HfQuantization& quantization, const ModelConfig& config) {
  Widener(tensors_, quantization, config).run();
}

}  // namespace tessera
