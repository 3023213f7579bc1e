#include "model/checkpoint/gguf.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "core/block_format.h"
#include "core/text.h"
#include "tessera/error.h"

namespace tessera {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint32_t kMaxDims = 4;
constexpr int kMaxArrayDepth = 8;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxAlignment = 1 << 20;
constexpr const char* kAlignmentKey = "general.alignment";

// The least that an entry takes: a key's or name's length, and what follows it.
constexpr std::uint64_t kMinMetadataBytes = 8 + 4 + 1;
constexpr std::uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;

struct GgufTensorType {
  std::uint32_t id;
  std::string_view name;
};

// Numbers 4, 5, 31 to 33 and 36 to 38 are retired.
constexpr std::array<GgufTensorType, 34> kTensorTypes = {{
    {0, "F32"},     {1, "F16"},    {2, "Q4_0"},     {3, "Q4_1"},    {6, "Q5_0"},     {7, "Q5_1"},
    {8, "Q8_0"},    {9, "Q8_1"},   {10, "Q2_K"},    {11, "Q3_K"},   {12, "Q4_K"},    {13, "Q5_K"},
    {14, "Q6_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},      {25, "I16"},
    {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},  {30, "BF16"},    {34, "TQ1_0"},
    {35, "TQ2_0"},  {39, "MXFP4"}, {40, "NVFP4"},   {41, "Q1_0"},
}};

/// The weights' dtype that bears the type's name; none if no kernel takes it.
std::optional<DType> weight_dtype_of(std::string_view type_name) {
  for (const DType dtype : weight_dtypes()) {
    if (stored_dtype_name(dtype) == type_name) return dtype;
  }
  return std::nullopt;
}

/// Bytes of a value of fixed size; 0 for strings, arrays and unknown types.
std::size_t fixed_size(GgufType type) noexcept {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

/// The number at `bytes`, which need not be aligned. GGUF is little-endian here and so is every target.
template <class T>
T load(const std::byte* bytes) noexcept {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

std::optional<std::int64_t> load_integer(GgufType type, const std::byte* bytes) noexcept {
  switch (type) {
    case GgufType::kUint8:
      return load<std::uint8_t>(bytes);
    case GgufType::kInt8:
      return load<std::int8_t>(bytes);
    case GgufType::kUint16:
      return load<std::uint16_t>(bytes);
    case GgufType::kInt16:
      return load<std::int16_t>(bytes);
    case GgufType::kUint32:
      return load<std::uint32_t>(bytes);
    case GgufType::kInt32:
      return load<std::int32_t>(bytes);
    case GgufType::kInt64:
      return load<std::int64_t>(bytes);
    case GgufType::kUint64: {
      const auto value = load<std::uint64_t>(bytes);
      if (value <= std::uint64_t{INT64_MAX}) return static_cast<std::int64_t>(value);
      break;
    }
    default:
      break;
  }
  return std::nullopt;
}

/// Walks over the bytes in front of the tensors' data; every step checks what is left.
class Reader {
 public:
  Reader(std::span<const std::byte> file, const std::string& source) : file_(file), source_(source) {}

  std::size_t position() const noexcept { return position_; }
  std::size_t remaining() const noexcept { return file_.size() - position_; }

  std::span<const std::byte> take(std::uint64_t size, const std::string& what) {
    if (size > remaining()) {
      corrupt(fmt::format("{} at byte {} needs {} bytes, but only {} are left (is the file truncated?)", what,
                          position_, size, remaining()));
    }
    const auto bytes = file_.subspan(position_, static_cast<std::size_t>(size));
    position_ += bytes.size();
    return bytes;
  }

  template <class T>
  T number(const std::string& what) {
    return load<T>(take(sizeof(T), what).data());
  }

  std::span<const std::byte> string_bytes(const std::string& what) {
    const auto length = number<std::uint64_t>(what + "'s length");
    return take(length, what);
  }

  /// A key or a tensor's name.
  std::string name(const std::string& what) {
    const std::size_t begin = position_;
    const auto bytes = string_bytes(what);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!is_valid_utf8(text)) {
      corrupt(fmt::format("{} at byte {}, '{}', is not UTF-8", what, begin, printable(text)));
    }
    return std::string(text);
  }

  GgufValue value(const std::string& what) {
    GgufValue value;
    const std::size_t at = position_;
    value.type = static_cast<GgufType>(number<std::uint32_t>(what + "'s type"));
    value.offset = position_;
    if (value.type == GgufType::kString) {
      value.bytes = string_bytes(what);
      value.offset = position_ - value.bytes.size();
    } else if (value.type == GgufType::kArray) {
      read_array(value, what, 1);
    } else {
      const std::size_t size = fixed_size(value.type);
      if (size == 0) unknown_type(value.type, what, at);
      value.bytes = take(size, what);
      if (value.type == GgufType::kBool) check_bools(value.bytes, what);
    }
    return value;
  }

  [[noreturn]] void corrupt(const std::string& what) const {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", source_, what));
  }

 private:
  void read_array(GgufValue& array, const std::string& what, int depth) {
    const std::size_t at = position_;
    if (depth > kMaxArrayDepth) {
      corrupt(fmt::format("{} at byte {} nests arrays deeper than {}", what, at, kMaxArrayDepth));
    }
    array.element_type = static_cast<GgufType>(number<std::uint32_t>(what + "'s element type"));
    array.count = number<std::uint64_t>(what + "'s element count");
    array.offset = position_;
    const std::size_t size = fixed_size(array.element_type);
    const bool is_string = array.element_type == GgufType::kString;
    if (size == 0 && !is_string && array.element_type != GgufType::kArray) {
      unknown_type(array.element_type, what, at);
    }
    // The least that an element takes: a string has its length, an array its type and count.
    const std::uint64_t least = size != 0 ? size : is_string ? 8 : 12;
    if (array.count > remaining() / least) {
      corrupt(fmt::format("{} at byte {} has {} elements of at least {} bytes, but only {} bytes are left",
                          what, at, array.count, least, remaining()));
    }
    if (size != 0) {
      array.bytes = take(array.count * size, what);
      if (array.element_type == GgufType::kBool) check_bools(array.bytes, what);
      return;
    }
    for (std::uint64_t i = 0; i < array.count; ++i) {
      if (is_string) {
        string_bytes(what);
      } else {
        GgufValue inner;
        read_array(inner, what, depth + 1);
      }
    }
    array.bytes = file_.subspan(array.offset, position_ - array.offset);
  }

  void check_bools(std::span<const std::byte> bytes, const std::string& what) const {
    const auto wrong = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; });
    if (wrong == bytes.end()) return;
    corrupt(fmt::format("{} holds the byte {} at byte {}, where 0 or 1 must stand for a truth value", what,
                        std::to_integer<int>(*wrong), static_cast<std::size_t>(&*wrong - file_.data())));
  }

  [[noreturn]] void unknown_type(GgufType type, const std::string& what, std::size_t at) const {
    corrupt(fmt::format("{} at byte {} is of type {}; the types are 0 to 12", what, at,
                        static_cast<std::uint32_t>(type)));
  }

  std::span<const std::byte> file_;
  const std::string& source_;
  std::size_t position_ = 0;
};

void check_version(Reader& reader, const std::string& source) {
  const std::size_t at = reader.position();
  const auto version = reader.number<std::uint32_t>("the version");
  if (version == 2 || version == 3) return;
  const bool is_big_endian = (version & 0xffffu) == 0 && version != 0;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: GGUF version {} at byte {}; versions 2 and 3 are supported{}", source, version,
                          at, is_big_endian ? ", little-endian only: this file is big-endian" : ""));
}

std::map<std::string, GgufValue, std::less<>> read_metadata(Reader& reader, std::uint64_t count) {
  std::map<std::string, GgufValue, std::less<>> metadata;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t at = reader.position();
    std::string key = reader.name("a metadata key");
    const std::string what = fmt::format("the metadata key '{}'", printable(key));
    const GgufValue value = reader.value(what);
    if (!metadata.emplace(std::move(key), value).second) {
      reader.corrupt(fmt::format("{} at byte {} is there twice", what, at));
    }
  }
  return metadata;
}

StoredTensor read_tensor(Reader& reader, const std::string& what, const std::string& source) {
  const std::size_t at = reader.position();
  const auto num_dims = reader.number<std::uint32_t>(what + "'s number of dimensions");
  if (num_dims > kMaxDims) {
    reader.corrupt(
        fmt::format("{} at byte {} has {} dimensions; at most {} are allowed", what, at, num_dims, kMaxDims));
  }
  StoredTensor tensor;
  for (std::uint32_t i = 0; i < num_dims; ++i) {
    const auto dim = reader.number<std::uint64_t>(what + "'s dimensions");
    // What doesn't fit becomes -1, which the product below refuses.
    tensor.shape.push_back(dim <= std::uint64_t{INT64_MAX} ? static_cast<std::int64_t>(dim) : -1);
  }
  std::reverse(tensor.shape.begin(), tensor.shape.end());  // the file has the innermost first

  const std::size_t type_at = reader.position();
  const auto type_id = reader.number<std::uint32_t>(what + "'s type");
  const auto type = std::find_if(kTensorTypes.begin(), kTensorTypes.end(),
                                 [&](const GgufTensorType& t) { return t.id == type_id; });
  const std::optional<DType> dtype = type == kTensorTypes.end() ? std::nullopt : weight_dtype_of(type->name);
  if (!dtype) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: {} is of type {} (byte {}); supported are {}, so convert the model to one of these",
                    source, what,
                    type == kTensorTypes.end() ? fmt::format("number {}", type_id) : std::string(type->name),
                    type_at, stored_dtype_list("and")));
  }
  tensor.dtype_name = type->name;
  tensor.dtype = dtype;

  const auto overflows = [&] {
    reader.corrupt(fmt::format("{} at byte {}: the shape {} overflows", what, at, shape_text(tensor.shape)));
  };
  const std::optional<std::int64_t> elements = checked_num_elements(tensor.shape);
  if (!elements) overflows();
  std::int64_t bytes = *elements;
  const BlockFormat& format = block_format(*dtype);
  if (format.elements > 1) {
    if (tensor.shape.empty() || tensor.shape.back() % format.elements != 0) {
      reader.corrupt(fmt::format("{} at byte {}: the rows of shape {} are no multiple of {}, {}'s block",
                                 what, at, shape_text(tensor.shape), format.elements, type->name));
    }
    bytes /= format.elements;
  }
  if (__builtin_mul_overflow(bytes, static_cast<std::int64_t>(format.bytes), &bytes)) overflows();
  tensor.size_bytes = static_cast<std::size_t>(bytes);
  tensor.offset = reader.number<std::uint64_t>(what + "'s offset");  // from where the data begins, so far
  return tensor;
}

StoredTensors read_tensors(Reader& reader, std::uint64_t count, const std::string& source) {
  StoredTensors tensors;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t at = reader.position();
    std::string name = reader.name("a tensor's name");
    const std::string what = fmt::format("tensor '{}'", printable(name));
    StoredTensor tensor = read_tensor(reader, what, source);
    if (!tensors.emplace(std::move(name), std::move(tensor)).second) {
      reader.corrupt(fmt::format("{} at byte {} is there twice", what, at));
    }
  }
  return tensors;
}

/// Makes the tensors' offsets count from the file's first byte, checking that they lie in the file apart from
/// each other.
void place_tensors(StoredTensors& tensors, const Reader& reader, std::uint64_t alignment,
                   std::size_t file_size) {
  const std::uint64_t data_begin = (reader.position() + alignment - 1) / alignment * alignment;
  std::vector<const StoredTensors::value_type*> in_order;
  in_order.reserve(tensors.size());
  for (auto& item : tensors) {
    auto& [name, tensor] = item;
    if (tensor.offset % alignment != 0) {
      reader.corrupt(fmt::format("tensor '{}' has the offset {}, no multiple of the alignment {}",
                                 printable(name), tensor.offset, alignment));
    }
    const std::uint64_t data_bytes = file_size < data_begin ? 0 : file_size - data_begin;
    if (tensor.offset > data_bytes || tensor.size_bytes > data_bytes - tensor.offset) {
      reader.corrupt(
          fmt::format("tensor '{}' needs {} bytes at offset {} behind byte {}, but only {} bytes follow that "
                      "(is the file "
                      "truncated?)",
                      printable(name), tensor.size_bytes, tensor.offset, data_begin, data_bytes));
    }
    tensor.offset = static_cast<std::size_t>(std::min<std::uint64_t>(tensor.offset + data_begin, file_size));
    if (tensor.size_bytes != 0) in_order.push_back(&item);
  }
  std::sort(in_order.begin(), in_order.end(),
            [](const auto* a, const auto* b) { return a->second.offset < b->second.offset; });
  for (std::size_t i = 1; i < in_order.size(); ++i) {
    const auto& [before_name, before] = *in_order[i - 1];
    const auto& [name, tensor] = *in_order[i];
    if (tensor.offset < before.offset + before.size_bytes) {
      reader.corrupt(fmt::format("tensor '{}' begins at byte {}, inside '{}', which ends at byte {}",
                                 printable(name), tensor.offset, printable(before_name),
                                 before.offset + before.size_bytes));
    }
  }
}

}  // namespace

std::uint32_t gguf_tensor_type(DType dtype) {
  const std::string name = stored_dtype_name(dtype);
  const auto type = std::find_if(kTensorTypes.begin(), kTensorTypes.end(),
                                 [&](const GgufTensorType& t) { return t.name == name; });
  if (type == kTensorTypes.end()) throw_no_weight_dtype(dtype);
  return type->id;
}

bool has_gguf_magic(std::span<const std::byte> file) noexcept {
  return file.size() >= kMagic.size() && std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
}

GgufFile::GgufFile(std::span<const std::byte> file, std::string source) : source_(std::move(source)) {
  Reader reader(file, source_);
  if (!has_gguf_magic(file)) reader.corrupt("the file does not begin with the bytes 'GGUF' at byte 0");
  reader.take(kMagic.size(), "the magic");
  check_version(reader, source_);
  const auto num_tensors = reader.number<std::uint64_t>("the number of tensors");
  const auto num_metadata = reader.number<std::uint64_t>("the number of metadata entries");
  if (num_metadata > reader.remaining() / kMinMetadataBytes) {
    reader.corrupt(fmt::format("byte 16 says that there are {} metadata entries, but only {} bytes follow",
                               num_metadata, reader.remaining()));
  }
  if (num_tensors > reader.remaining() / kMinTensorBytes) {
    reader.corrupt(fmt::format("byte 8 says that there are {} tensors, but only {} bytes follow", num_tensors,
                               reader.remaining()));
  }
  metadata_ = read_metadata(reader, num_metadata);
  const std::int64_t alignment = integer(kAlignmentKey).value_or(kDefaultAlignment);
  if (alignment <= 0 || (alignment & (alignment - 1)) != 0 ||
      static_cast<std::uint64_t>(alignment) > kMaxAlignment) {
    fail(kAlignmentKey, fmt::format("is {}, expected a power of two up to {}", alignment, kMaxAlignment));
  }
  tensors_ = read_tensors(reader, num_tensors, source_);
  place_tensors(tensors_, reader, static_cast<std::uint64_t>(alignment), file.size());
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

const GgufValue* GgufFile::find_array(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value != nullptr && value->type != GgufType::kArray) fail(key, "an array was expected");
  return value;
}

void GgufFile::fail(std::string_view key, const std::string& what) const {
  const GgufValue* value = find(key);
  const std::string where = value == nullptr ? "" : fmt::format(" (byte {})", value->offset);
  throw Error(ErrorCode::kCorruptFile,
              fmt::format("{}: the metadata key '{}'{}: {}", source_, printable(key), where, what));
}

std::optional<std::int64_t> GgufFile::integer(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto integer = load_integer(value->type, value->bytes.data());
  if (!integer) fail(key, "a whole number below 2^63 was expected");
  return integer;
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type == GgufType::kFloat32) return load<float>(value->bytes.data());
  if (value->type == GgufType::kFloat64) return load<double>(value->bytes.data());
  const auto integer = load_integer(value->type, value->bytes.data());
  if (!integer) fail(key, "a number was expected");
  return static_cast<double>(*integer);
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::kBool) fail(key, "a truth value was expected");
  return value->bytes.front() != std::byte{0};
}

std::optional<std::string_view> GgufFile::text(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::kString) fail(key, "a string was expected");
  return std::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size());
}

std::optional<std::vector<std::int64_t>> GgufFile::integers(std::string_view key) const {
  const GgufValue* array = find_array(key);
  if (array == nullptr) return std::nullopt;
  std::vector<std::int64_t> values;
  values.reserve(array->count);
  const std::size_t size = fixed_size(array->element_type);
  for (std::uint64_t i = 0; i < array->count; ++i) {
    const auto value = load_integer(array->element_type, array->bytes.data() + i * size);
    if (!value) fail(key, "an array of whole numbers below 2^63 was expected");
    values.push_back(*value);
  }
  return values;
}

std::optional<std::vector<bool>> GgufFile::booleans(std::string_view key) const {
  const GgufValue* array = find_array(key);
  if (array == nullptr) return std::nullopt;
  if (array->element_type != GgufType::kBool) fail(key, "an array of truth values was expected");
  std::vector<bool> values;
  values.reserve(array->count);
  for (const std::byte value : array->bytes) values.push_back(value != std::byte{0});
  return values;
}

std::optional<std::vector<float>> GgufFile::floats(std::string_view key) const {
  const GgufValue* array = find_array(key);
  if (array == nullptr) return std::nullopt;
  if (array->element_type != GgufType::kFloat32) fail(key, "an array of 32-bit floats was expected");
  std::vector<float> values(array->count);
  if (!values.empty()) std::memcpy(values.data(), array->bytes.data(), array->bytes.size());
  return values;
}

std::optional<std::vector<std::string>> GgufFile::texts(std::string_view key) const {
  const GgufValue* array = find_array(key);
  if (array == nullptr) return std::nullopt;
  if (array->element_type != GgufType::kString) fail(key, "an array of strings was expected");
  std::vector<std::string> values;
  values.reserve(array->count);
  const std::byte* at = array->bytes.data();
  for (std::uint64_t i = 0; i < array->count; ++i) {  // the lengths were checked when the file was read
    const auto length = static_cast<std::size_t>(load<std::uint64_t>(at));
    values.emplace_back(reinterpret_cast<const char*>(at) + 8, length);
    at += 8 + length;
  }
  return values;
}

}  // namespace tessera
