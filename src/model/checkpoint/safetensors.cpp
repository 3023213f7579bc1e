#include "model/checkpoint/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/json_parse.h"
#include "core/text.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // what the format's own library accepts
constexpr std::size_t kMaxEntryValues = std::size_t{1} << 20;

struct SafetensorsDType {
  std::string_view name;
  std::int64_t bytes;
  std::optional<DType> weights;
};

constexpr std::array<SafetensorsDType, 17> kDTypes = {{
    {"F32", 4, DType::kF32},
    {"F16", 2, DType::kF16},
    {"BF16", 2, DType::kBF16},
    {"F64", 8, std::nullopt},
    {"C64", 8, std::nullopt},
    {"I64", 8, std::nullopt},
    {"U64", 8, std::nullopt},
    {"I32", 4, std::nullopt},
    {"U32", 4, std::nullopt},
    {"I16", 2, std::nullopt},
    {"U16", 2, std::nullopt},
    {"I8", 1, std::nullopt},
    {"U8", 1, std::nullopt},
    {"BOOL", 1, std::nullopt},
    {"F8_E4M3", 1, std::nullopt},
    {"F8_E5M2", 1, std::nullopt},
    {"F8_E8M0", 1, std::nullopt},
}};

class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> file, const std::string& source) : file_(file), source_(source) {}

  StoredTensors read() {
    const std::string_view header = find_header();
    // What follows the object may only be white space, but what goes before it is nothing at all.
    if (!header.starts_with('{')) corrupt("the header must open with '{' at byte 8");
    const JsonStream entries{{}, [this](const std::string& name, const json& entry, std::size_t offset) {
                               add(name, entry, offset + kLengthBytes);
                             }};
    parse_json_bounded(header, source_ + " (header)", {.max_values = kMaxEntryValues}, {&entries, 1});
    check_coverage();
    return std::move(tensors_);
  }

 private:
  std::string_view find_header() {
    if (file_.size() < kLengthBytes) {
      corrupt(fmt::format("the file has {} bytes, too few for the header's length at byte 0", file_.size()));
    }
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i) {
      length |= std::to_integer<std::uint64_t>(file_[i]) << (8 * i);
    }
    if (length > kMaxHeaderBytes) {
      corrupt(fmt::format("byte 0 says that the header has {} bytes; at most {} are allowed", length,
                          kMaxHeaderBytes));
    }
    if (length > file_.size() - kLengthBytes) {
      corrupt(
          fmt::format("byte 0 says that the header has {} bytes, but only {} follow (is the file truncated?)",
                      length, file_.size() - kLengthBytes));
    }
    data_begin_ = kLengthBytes + static_cast<std::size_t>(length);
    return {reinterpret_cast<const char*>(file_.data()) + kLengthBytes, static_cast<std::size_t>(length)};
  }

  void add(const std::string& name, const json& entry, std::size_t header_offset) {
    if (name == "__metadata__") return check_metadata(entry, header_offset);
    const std::string where = fmt::format("tensor '{}' (byte {})", printable(name), header_offset);
    if (!entry.is_object()) corrupt(where + ": an object with dtype, shape and data_offsets was expected");
    const SafetensorsDType& dtype = find_dtype(entry, where);
    StoredTensor tensor;
    tensor.dtype_name = dtype.name;
    tensor.dtype = dtype.weights;
    for (const std::uint64_t dim : whole_numbers(entry, "shape", where)) {
      tensor.shape.push_back(static_cast<std::int64_t>(dim));
    }
    const std::optional<std::int64_t> elements = num_elements(tensor.shape);
    std::int64_t expected_bytes = 0;
    if (!elements || __builtin_mul_overflow(*elements, dtype.bytes, &expected_bytes)) {
      corrupt(fmt::format("{}: the shape {} overflows", where, shape_text(tensor.shape)));
    }
    const std::vector<std::uint64_t> offsets = whole_numbers(entry, "data_offsets", where);
    if (offsets.size() != 2) corrupt(where + ": data_offsets must hold two numbers");
    const std::uint64_t data_bytes = file_.size() - data_begin_;
    if (offsets[0] > offsets[1] || offsets[1] > data_bytes) {
      corrupt(
          fmt::format("{}: data_offsets [{}, {}] are not a range within the {} bytes of data from byte {} on "
                      "(is the file "
                      "truncated?)",
                      where, offsets[0], offsets[1], data_bytes, data_begin_));
    }
    tensor.offset = data_begin_ + static_cast<std::size_t>(offsets[0]);
    tensor.size_bytes = static_cast<std::size_t>(offsets[1] - offsets[0]);
    if (tensor.size_bytes != static_cast<std::uint64_t>(expected_bytes)) {
      corrupt(fmt::format("{}: data_offsets [{}, {}] span {} bytes, but {} {} takes {}", where, offsets[0],
                          offsets[1], tensor.size_bytes, dtype.name, shape_text(tensor.shape),
                          expected_bytes));
    }
    if (!tensors_.emplace(name, std::move(tensor)).second) corrupt(where + " stands twice in the header");
  }

  /// A map of texts, for people.
  void check_metadata(const json& entry, std::size_t header_offset) {
    const std::string where = fmt::format("__metadata__ (byte {})", header_offset);
    if (std::exchange(has_metadata_, true)) corrupt(where + " stands twice in the header");
    if (entry.is_null()) return;
    const bool is_map = entry.is_object() && std::all_of(entry.begin(), entry.end(),
                                                         [](const json& value) { return value.is_string(); });
    if (!is_map) corrupt(where + ": a map from texts to texts was expected");
  }

  /// The product as the format's own library takes it, from left to right: a 0 does not make up for an
  /// overflow before it.
  static std::optional<std::int64_t> num_elements(const std::vector<std::int64_t>& shape) {
    std::int64_t product = 1;
    for (const std::int64_t dim : shape) {
      if (__builtin_mul_overflow(product, dim, &product)) return std::nullopt;
    }
    return product;
  }

  const SafetensorsDType& find_dtype(const json& entry, const std::string& where) const {
    const auto field = entry.find("dtype");
    if (field == entry.end() || !field->is_string()) corrupt(where + ": dtype must be a string");
    const auto& name = field->get_ref<const std::string&>();
    const auto found =
        std::find_if(kDTypes.begin(), kDTypes.end(), [&](const auto& d) { return d.name == name; });
    if (found == kDTypes.end()) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: {}: the dtype '{}' is not known here; weights may be F32, F16 or BF16",
                              source_, where, printable(name)));
    }
    return *found;
  }

  std::vector<std::uint64_t> whole_numbers(const json& entry, const char* key,
                                           const std::string& where) const {
    const auto field = entry.find(key);
    if (field == entry.end() || !field->is_array()) corrupt(fmt::format("{}: {} must be a list", where, key));
    std::vector<std::uint64_t> numbers;
    numbers.reserve(field->size());
    for (const json& item : *field) {
      if (!item.is_number_unsigned() || item.get<std::uint64_t>() > std::uint64_t{INT64_MAX}) {
        corrupt(fmt::format("{}: {} must hold whole numbers from 0 to 2^63 - 1", where, key));
      }
      numbers.push_back(item.get<std::uint64_t>());
    }
    return numbers;
  }

  /// Every byte behind the header belongs to exactly one tensor.
  void check_coverage() const {
    std::vector<const StoredTensors::value_type*> in_order;
    in_order.reserve(tensors_.size());
    for (const auto& item : tensors_) in_order.push_back(&item);
    std::sort(in_order.begin(), in_order.end(), [](const auto* a, const auto* b) {
      return std::pair(a->second.offset, a->second.size_bytes) <
             std::pair(b->second.offset, b->second.size_bytes);
    });
    std::size_t covered = data_begin_;
    for (const auto* item : in_order) {
      const auto& [name, tensor] = *item;
      if (tensor.offset < covered) {
        corrupt(fmt::format("tensor '{}' begins at byte {}, inside the one before it, which ends at byte {}",
                            printable(name), tensor.offset, covered));
      }
      if (tensor.offset > covered) {
        corrupt(fmt::format("bytes {} to {}, before tensor '{}', belong to no tensor", covered, tensor.offset,
                            printable(name)));
      }
      covered += tensor.size_bytes;
    }
    if (covered != file_.size()) {
      corrupt(fmt::format("{} bytes from byte {} on belong to no tensor", file_.size() - covered, covered));
    }
  }

  [[noreturn]] void corrupt(const std::string& what) const {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", source_, what));
  }

  std::span<const std::byte> file_;
  const std::string& source_;
  std::size_t data_begin_ = 0;
  bool has_metadata_ = false;
  StoredTensors tensors_;
};

}  // namespace

StoredTensors parse_safetensors(std::span<const std::byte> file, const std::string& source) {
  return HeaderReader(file, source).read();
}

}  // namespace tessera
