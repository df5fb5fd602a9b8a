#include "convert/gguf/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "convert/gguf/block_formats.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;

constexpr std::array<char, 4> kMagic = {'G', 'G', 'U', 'F'};
constexpr uint64_t kMaxMetadataBytes = uint64_t{128} << 20;
constexpr uint64_t kMaxArrayElements = uint64_t{1} << 24;  // the largest vocabularies have 2^18
constexpr uint64_t kMaxNameBytes = 65535;
constexpr uint32_t kMaxDimensions = 4;
constexpr int kMaxArrayDepth = 4;
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kMaxAlignment = int64_t{1} << 20;
constexpr int64_t kMaxParts = 99999;  // five digits in the parts' names

// Takes the header from its front, through a window on the file.
class HeaderReader {
 public:
  HeaderReader(const std::function<void(uint64_t, std::span<std::byte>)>& read, uint64_t size,
               std::string_view where)
      : read_(read), where_(where), size_(size) {}

  [[nodiscard]] uint64_t position() const { return position_; }
  [[nodiscard]] uint64_t left() const { return size_ - position_; }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(std::string(where_) + ": " + what);
  }

  template <typename T>
  T number() {
    T value;
    take(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

  // The bytes of a string or an array, whose count the file says.
  std::string bytes(uint64_t count) {
    check(count);
    std::string bytes(count, '\0');
    take(std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  std::string string() { return bytes(number<uint64_t>()); }

  std::string name(const char* what) {
    const auto size = number<uint64_t>();
    if (size == 0 || size > kMaxNameBytes) {
      fail(std::string("has ") + what + " with a name of " + std::to_string(size) +
           " bytes; the file is damaged");
    }
    return bytes(size);
  }

  // A count of things that take at least `least_bytes` each.
  uint64_t count(uint64_t least_bytes, const char* what) {
    const auto value = number<uint64_t>();
    if (value > left() / least_bytes) {
      fail("promises " + std::to_string(value) + " " + what +
           ", more than the file has room for; it is truncated or damaged");
    }
    return value;
  }

 private:
  void check(uint64_t count) const {
    if (count > left()) fail("is truncated; download it again");
    if (position_ + count > kMaxMetadataBytes) {
      fail("has more than 128 MB of metadata; the file is damaged");
    }
  }

  void take(std::span<std::byte> out) {
    check(out.size());
    while (!out.empty()) {
      if (window_begin_ == window_.size()) refill();
      const size_t n = std::min(out.size(), window_.size() - window_begin_);
      std::memcpy(out.data(), window_.data() + window_begin_, n);
      window_begin_ += n;
      position_ += n;
      out = out.subspan(n);
    }
  }

  void refill() {
    constexpr uint64_t kWindowBytes = uint64_t{1} << 20;
    window_.resize(std::min(left(), kWindowBytes));
    window_begin_ = 0;
    read_(position_, window_);
  }

  const std::function<void(uint64_t, std::span<std::byte>)>& read_;
  std::string_view where_;
  uint64_t size_;
  uint64_t position_ = 0;
  std::vector<std::byte> window_;  // bytes of the file, from position_ on at window_begin_
  size_t window_begin_ = 0;
};

// An array's elements into `value`; those of arrays of arrays are read over.
void read_array(HeaderReader& in, const std::string& key, int depth, GgufValue& value) {
  if (depth > kMaxArrayDepth) in.fail(in_quotes(key) + " nests arrays too deeply");
  value.element = static_cast<GgufType>(in.number<uint32_t>());
  const size_t size = gguf_type_size(value.element);
  if (size == 0 && value.element != GgufType::string && value.element != GgufType::array) {
    in.fail(in_quotes(key) + " is an array of the unknown type " +
            std::to_string(static_cast<uint32_t>(value.element)) +
            "; the file is damaged or newer than this program");
  }
  constexpr uint64_t kLeastString = sizeof(uint64_t);
  constexpr uint64_t kLeastArray = sizeof(uint32_t) + sizeof(uint64_t);
  const uint64_t least = size > 0                            ? size
                         : value.element == GgufType::string ? kLeastString
                                                             : kLeastArray;
  const uint64_t count = in.count(least, "array elements");
  if (count > kMaxArrayElements) {
    in.fail(in_quotes(key) + " has " + std::to_string(count) +
            " elements, more than 16777216; the file is damaged");
  }
  if (size > 0) {
    value.bytes = in.bytes(count * size);
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (value.element == GgufType::string) {
      value.strings.push_back(in.string());
    } else {
      GgufValue passed_over;
      read_array(in, key, depth + 1, passed_over);
    }
  }
}

GgufValue read_value(HeaderReader& in, const std::string& key) {
  GgufValue value;
  value.type = static_cast<GgufType>(in.number<uint32_t>());
  if (value.type == GgufType::string) {
    value.bytes = in.string();
  } else if (value.type == GgufType::array) {
    read_array(in, key, 1, value);
  } else if (const size_t size = gguf_type_size(value.type)) {
    value.bytes = in.bytes(size);
  } else {
    in.fail(in_quotes(key) + " has the unknown type " +
            std::to_string(static_cast<uint32_t>(value.type)) +
            "; the file is damaged or newer than this program");
  }
  return value;
}

void read_version(HeaderReader& in) {
  const auto magic = in.number<std::array<char, 4>>();
  if (magic != kMagic) in.fail("is not a GGUF file");
  const auto version = in.number<uint32_t>();
  if (version == 2 || version == 3) return;
  if ((version & 0xFFFFU) == 0) {
    in.fail("is a big-endian GGUF file, which is not supported; convert its original");
  }
  in.fail("is a GGUF file of version " + std::to_string(version) +
          "; this version reads 2 and 3, so convert its original");
}

// A tensor whose offset still counts from where the data begins.
SourceTensor read_tensor(HeaderReader& in, uint64_t file_size) {
  SourceTensor tensor;
  tensor.name = in.name("a tensor");
  const std::string what = "tensor " + in_quotes(tensor.name) + " ";
  const auto n_dimensions = in.number<uint32_t>();
  if (n_dimensions < 1 || n_dimensions > kMaxDimensions) {
    in.fail(what + "has " + std::to_string(n_dimensions) + " dimensions; the file is damaged");
  }
  // Elements are at least a quarter of a byte, so products of more than this cannot be in the file.
  const uint64_t most = std::min<uint64_t>(file_size, uint64_t{1} << 60) * 4;
  uint64_t elements = 1;
  for (uint32_t i = 0; i < n_dimensions; ++i) {
    const auto extent = in.number<uint64_t>();
    if (extent == 0 || elements > most / extent) {
      in.fail(what + (extent == 0 ? "is empty" : "is larger than the file") +
              "; the file is damaged or truncated");
    }
    elements *= extent;
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
  }
  const auto type = in.number<uint32_t>();
  tensor.format = find_ggml_format(type);
  if (tensor.format == nullptr) {
    in.fail(what + "has the type " + ggml_type_name(type) + "; " + convertible_ggml_types() +
            " can be converted");
  }
  if (tensor.shape.back() % tensor.format->block_elements != 0 ||
      (tensor.shape.size() == 1 && tensor.format->block_elements > 1)) {
    in.fail(what + "has rows of " +
            std::to_string(tensor.shape.size() == 1 ? 1 : tensor.shape.back()) +
            " elements, which " + std::string(tensor.format->name) +
            " cannot have; the file is damaged");
  }
  tensor.offset = in.number<uint64_t>();
  return tensor;
}

uint64_t alignment(const GgufMetadata& metadata) {
  const int64_t value = metadata.find_integer("general.alignment").value_or(kDefaultAlignment);
  if (value < 1 || value > kMaxAlignment || !std::has_single_bit(static_cast<uint64_t>(value))) {
    metadata.fail("general.alignment",
                  "is " + std::to_string(value) + ", which is no power of two up to 1048576");
  }
  return static_cast<uint64_t>(value);
}

// Makes the tensors' offsets those of the file.
void place_tensors(const HeaderReader& in, uint64_t header_end, uint64_t file_size,
                   GgufHeader& header) {
  if (header.tensors.empty()) return;
  const uint64_t step = alignment(header.metadata);
  const uint64_t data_start = (header_end + step - 1) / step * step;
  for (SourceTensor& tensor : header.tensors) {
    const std::string what = "tensor " + in_quotes(tensor.name) + " ";
    if (tensor.offset % step != 0) in.fail(what + "is not aligned; the file is damaged");
    if (data_start > file_size || tensor.offset > file_size - data_start ||
        tensor.bytes() > file_size - data_start - tensor.offset) {
      in.fail(what + "reaches past the end of the file, which may be truncated; download it again");
    }
    tensor.offset += data_start;
  }
}

GgufHeader read_header(const InputFile& file) {
  return parse_gguf([&](uint64_t offset, std::span<std::byte> out) { file.read(offset, out); },
                    file.size(), file.path().string());
}

void add_part(Checkpoint& weights, InputFile file, std::vector<SourceTensor> tensors) {
  const size_t number = weights.add_file(std::move(file));
  for (SourceTensor& tensor : tensors) {
    tensor.file = number;
    weights.add_tensor(std::move(tensor));
  }
}

// "model-00001-of-00003.gguf" for part 2: "model-00002-of-00003.gguf".
fs::path part_path(const fs::path& first, int64_t part, int64_t n_parts) {
  std::array<char, 64> ending;
  const auto write = [&](int64_t number) {
    std::snprintf(ending.data(), ending.size(), "-%05d-of-%05d.gguf", static_cast<int>(number),
                  static_cast<int>(n_parts));
    return std::string(ending.data());
  };
  const std::string name = first.filename().string();
  const std::string expected = write(1);
  if (!name.ends_with(expected)) {
    throw Error(first.string() + ": is the first of " + std::to_string(n_parts) +
                " parts, which are found by its name; it must end in \"" + expected + "\"");
  }
  return first.parent_path() / (name.substr(0, name.size() - expected.size()) + write(part));
}

}  // namespace

GgufHeader parse_gguf(const std::function<void(uint64_t, std::span<std::byte>)>& read,
                      uint64_t file_size, std::string_view where) {
  HeaderReader in(read, file_size, where);
  read_version(in);
  constexpr uint64_t kLeastTensor = 8 + 1 + 4 + 8 + 4 + 8;  // name, dimensions, type, offset
  constexpr uint64_t kLeastPair = 8 + 1 + 4 + 1;            // key, type, value
  const uint64_t n_tensors = in.count(kLeastTensor, "tensors");
  const uint64_t n_pairs = in.count(kLeastPair, "metadata entries");
  GgufHeader header{GgufMetadata(where), {}};
  for (uint64_t i = 0; i < n_pairs; ++i) {
    const std::string key = in.name("a metadata entry");
    if (!header.metadata.add(key, read_value(in, key))) {
      in.fail("has " + in_quotes(key) + " twice; the file is damaged");
    }
  }
  for (uint64_t i = 0; i < n_tensors; ++i) header.tensors.push_back(read_tensor(in, file_size));
  place_tensors(in, in.position(), file_size, header);
  refuse_overlaps(header.tensors, where);
  return header;
}

bool is_gguf(const InputFile& file) {
  std::array<char, 4> magic{};
  if (file.size() < magic.size()) return false;
  file.read(0, std::as_writable_bytes(std::span(magic)));
  return magic == kMagic;
}

GgufFile open_gguf_file(const fs::path& path, SourceFiles& files) {
  InputFile first = files.open(path);
  GgufHeader header = read_header(first);
  GgufFile gguf{std::move(header.metadata), Checkpoint(path.string())};
  const int64_t n_parts = gguf.metadata.find_integer("split.count").value_or(1);
  if (n_parts < 0 || n_parts > kMaxParts) gguf.metadata.fail("split.count", "is out of range");
  if (gguf.metadata.find_integer("split.no").value_or(0) != 0) {
    throw Error(path.string() +
                ": is not the first part of its model; give the one whose name has " +
                "\"-00001-of-\"");
  }
  add_part(gguf.weights, std::move(first), std::move(header.tensors));
  for (int64_t part = 2; part <= n_parts; ++part) {
    const fs::path part_name = part_path(path, part, n_parts);
    if (!fs::exists(part_name)) {
      throw Error(part_name.string() + ": is missing, although " + path.filename().string() +
                  " says that there are " + std::to_string(n_parts) + " parts; download it");
    }
    InputFile file = files.open(part_name);
    GgufHeader more = read_header(file);
    if (more.metadata.find_integer("split.no") != part - 1 ||
        more.metadata.find_integer("split.count") != n_parts) {
      throw Error(part_name.string() + ": is not part " + std::to_string(part) + " of " +
                  std::to_string(n_parts) + ", as its name says; download it again");
    }
    add_part(gguf.weights, std::move(file), std::move(more.tensors));
  }
  const auto n_tensors = static_cast<int64_t>(gguf.weights.tensors().size());
  if (const auto total = gguf.metadata.find_integer("split.tensors.count");
      total && *total != n_tensors) {
    throw Error(path.string() + ": has " + std::to_string(n_tensors) +
                " tensors in all parts, not " + std::to_string(*total) +
                " as its metadata says; download it again");
  }
  return gguf;
}

}  // namespace faststream::convert
