#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/json_parse.h"
#include "model/checkpoint/expected_tensors.h"
#include "model/checkpoint/hf_quantization.h"
#include "model/checkpoint/json_fields.h"
#include "model/checkpoint/quantized_matrices.h"
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
//   bitsandbytes              weight            U8: bytes of 2 codes of 4 bits, row after row
//                             weight.absmax     of blocks, F32; or U8, with
//                             weight.nested_absmax, weight.nested_quant_map
//                             weight.quant_map  (16)
//                             weight.quant_state.bitsandbytes__nf4 or __fp4
//                                               a JSON text: shape, sizes of blocks
//                             weight, SCB       (out, in), I8, and (out): a scale is SCB / 127
//
// Words hold 4 codes instead of 8 where a code has 8 bits.

namespace tessera {

namespace {

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
      } else if (const auto four_bits = stem_of_codebook(name)) {
        widen_codebook(*four_bits, name);
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

  static std::optional<std::string> stem_of_codebook(const std::string& name) {
    const auto stem = stem_of(name, ".weight.quant_state.bitsandbytes__nf4");
    return stem ? stem : stem_of(name, ".weight.quant_state.bitsandbytes__fp4");
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

  static quantized::Scales scales_of(const Item& item) {
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

  void put(const std::string& stem, const Item& like, const quantized::GroupedMatrix& matrix,
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
    put(stem, like, matrix.rows, matrix.columns, quantization_.dtype,
        quantized::row_reader(matrix, quantization_.dtype), parts);
  }

  void widen_scaled(const std::string& stem) {
    const Item codes = tensors_.find(stem + ".weight")->second;
    const bool is_bitsandbytes = quantization_.method == HfQuantization::Method::kBitsAndBytes;
    const char* const scale_name = is_bitsandbytes                               ? ".SCB"
                                   : find(stem + ".weight_scale_inv") != nullptr ? ".weight_scale_inv"
                                                                                 : ".weight_scale";
    const Item& scale = require(stem + scale_name, codes);
    const auto [rows, columns] = extents(codes, "a matrix that isn't empty");
    quantized::ScaledMatrix matrix;
    matrix.columns = columns;
    matrix.codes = codes.tensor.data;
    matrix.are_integers = codes.dtype_name == "I8";
    matrix.scales = scales_of(scale);
    if (is_bitsandbytes) matrix.divisor = 127;
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
    put(stem, codes, rows, columns, quantization_.dtype, quantized::row_reader(matrix, quantization_.dtype),
        {".weight_scale_inv", ".weight_scale", ".SCB", ".weight_format"});
  }

  /// The groups of the matrix' columns; `name` says which each is in, if it is there.
  void find_groups(const std::string& name, quantized::GroupedMatrix& matrix) {
    const Item* const item = find(name);
    if (item == nullptr) return;
    expect(*item, "I32", {matrix.columns});
    for (std::size_t column = 0; column < matrix.columns; ++column) {
      const auto group = quantized::load<std::int32_t>(item->tensor.data, column);
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
    quantized::GroupedMatrix matrix;
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
      matrix.zeros = quantized::PackedCodes{present.tensor.data, zeros_width, bits, false, is_awq};
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
    const auto columns = quantized::load<std::int64_t>(shape.tensor.data, 1);
    quantized::GroupedMatrix matrix;
    unsigned bits = 0;
    for (const unsigned known : {4u, 8u}) {
      const auto in_word = static_cast<std::int64_t>(32 / known);
      if (columns > 0 && columns <= static_cast<std::int64_t>(width) * in_word &&
          columns > (static_cast<std::int64_t>(width) - 1) * in_word) {
        bits = known;
      }
    }
    if (bits == 0 || quantized::load<std::int64_t>(shape.tensor.data, 0) != static_cast<std::int64_t>(rows)) {
      fail(shape,
           fmt::format("it says ({}, {}); {} rows, and columns of 4 or 8 bits in {} words, were expected",
                       quantized::load<std::int64_t>(shape.tensor.data, 0), columns, rows, width));
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
      matrix.zeros = quantized::PackedCodes{zeros->tensor.data, matrix.groups, bits, true, false};
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

  /// Numbers of F32, so many of them.
  const std::byte* floats(const std::string& name, std::size_t count, const Item& of) const {
    const Item& item = require(name, of);
    expect(item, "F32", {count});
    return item.tensor.data;
  }

  void widen_codebook(const std::string& stem, const std::string& state_name) {
    const Item state = tensors_.find(state_name)->second;
    const std::string_view text(reinterpret_cast<const char*>(state.tensor.data), state.tensor.size_bytes);
    const nlohmann::json document = parse_json_bounded(text, state.tensor.source);
    const JsonFields fields(document, state.tensor.source);
    const auto positive = [&](const char* key, const nlohmann::json& value) {
      const std::int64_t number = fields.as_integer(key, value);
      if (number < 1 || number > 1 << 24) fields.fail(key, value, "a positive number was expected");
      return static_cast<std::size_t>(number);
    };
    const nlohmann::json* const shape = fields.find("shape");
    const nlohmann::json* const block = fields.find("blocksize");
    if (shape == nullptr || block == nullptr) fields.missing(shape == nullptr ? "shape" : "blocksize");
    if (!shape->is_array() || shape->size() != 2)
      fields.fail("shape", *shape, "two numbers were expected, of rows and columns");
    quantized::CodebookMatrix matrix;
    const std::size_t rows = positive("shape", (*shape)[0]);
    matrix.columns = positive("shape", (*shape)[1]);
    matrix.block = positive("blocksize", *block);

    const std::string prefix = stem + ".weight";
    const Item& codes = require(prefix, state);
    const std::size_t elements = rows * matrix.columns, blocks = (elements + matrix.block - 1) / matrix.block;
    if (codes.dtype_name != "U8" || codes.tensor.size_bytes != (elements + 1) / 2)
      fail(codes, fmt::format("{}; {} bytes of U8 were expected, of {} by {} numbers", described(codes),
                              (elements + 1) / 2, rows, matrix.columns));
    matrix.codes = codes.tensor.data;
    std::memcpy(matrix.values.data(), floats(prefix + ".quant_map", matrix.values.size(), codes),
                sizeof matrix.values);
    if (const Item* const nested = find(prefix + ".nested_quant_map")) {
      const Item& scales = require(prefix + ".absmax", codes);
      expect(scales, "U8", {blocks});
      matrix.scales = scales.tensor.data;
      const nlohmann::json* const nested_block = fields.find("nested_blocksize");
      if (nested_block == nullptr) fields.missing("nested_blocksize");
      matrix.scale_block = positive("nested_blocksize", *nested_block);
      matrix.scale_values = floats(prefix + ".nested_quant_map", 256, *nested);
      matrix.scale_scales =
          floats(prefix + ".nested_absmax", (blocks + matrix.scale_block - 1) / matrix.scale_block, codes);
      matrix.offset = fields.real("nested_offset").value_or(0);
    } else {
      matrix.scales = floats(prefix + ".absmax", blocks, codes);
    }
    tensors_.erase(state_name);
    put(stem, state, rows, matrix.columns, quantization_.dtype,
        quantized::row_reader(matrix, quantization_.dtype),
        {".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map"});
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
