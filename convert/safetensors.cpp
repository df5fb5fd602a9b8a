#include "convert/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "support/error.h"
#include "support/json.h"

namespace faststream {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = uint64_t{100} << 20;  // the reference reader's limit

class TensorReader {
 public:
  TensorReader(const std::string& name, const json& value, std::string_view where)
      : name_(name), value_(value), where_(where) {
    if (!value.is_object()) fail("is not described by a JSON object");
  }

  SourceTensor read(uint64_t data_start, uint64_t file_size, uint64_t& end) const {
    SourceTensor tensor{.name = name_, .dtype = dtype(), .shape = shape(), .file = 0, .offset = 0};
    uint64_t bytes = dtype_size(tensor.dtype);
    for (const int64_t extent : tensor.shape) {
      const auto factor = static_cast<uint64_t>(extent);
      if (factor != 0 && bytes > file_size / factor) fail("is larger than the file");
      bytes *= factor;
    }
    const auto [first, last] = offsets();
    if (first > last || last > file_size - data_start) {
      fail("reaches past the end of the file, which may be truncated; download it again");
    }
    if (last - first != bytes) fail("has a size that differs from its shape's");
    tensor.offset = data_start + first;
    end = data_start + last;
    return tensor;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(std::string(where_) + ": tensor \"" + name_ + "\" " + what);
  }

  const json& member(const char* key) const {
    const auto found = value_.find(key);
    if (found == value_.end()) fail(std::string("has no \"") + key + "\" in the header");
    return *found;
  }

  DType dtype() const {
    const json& value = member("dtype");
    const std::string name = value.is_string() ? value.get<std::string>() : value.dump();
    if (name == "F32") return DType::f32;
    if (name == "F16") return DType::f16;
    if (name == "BF16") return DType::bf16;
    fail("has the type " + name + "; F32, F16 and BF16 can be converted");
  }

  std::vector<uint64_t> counts(const char* key) const {
    const json& list = member(key);
    if (!list.is_array()) fail(std::string("has a \"") + key + "\" that is not a list");
    std::vector<uint64_t> values;
    for (const json& value : list) {
      if (!value.is_number_unsigned() ||
          value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        fail(std::string("has a \"") + key + "\" that does not hold sizes");
      }
      values.push_back(value.get<uint64_t>());
    }
    return values;
  }

  std::vector<int64_t> shape() const {
    const std::vector<uint64_t> values = counts("shape");
    return {values.begin(), values.end()};
  }

  std::pair<uint64_t, uint64_t> offsets() const {
    const std::vector<uint64_t> values = counts("data_offsets");
    if (values.size() != 2) fail("has \"data_offsets\" that are not a pair");
    return {values[0], values[1]};
  }

  const std::string& name_;
  const json& value_;
  std::string_view where_;
};

void add_file(Checkpoint& checkpoint, const fs::path& path) {
  InputFile file(path);
  const std::string where = path.string();
  uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes) {
    throw Error(where + ": is too short for a safetensors file; download it again");
  }
  file.read(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - sizeof header_bytes) {
    throw Error(where + ": is truncated or not a safetensors file; download it again");
  }
  std::string header(header_bytes, '\0');
  file.read(sizeof header_bytes, std::as_writable_bytes(std::span(header)));
  auto tensors =
      parse_safetensors_header(header, sizeof header_bytes + header_bytes, file.size(), where);
  const size_t number = checkpoint.add_file(std::move(file));
  for (SourceTensor& tensor : tensors) {
    tensor.file = number;
    checkpoint.add_tensor(std::move(tensor));
  }
}

// The shards that an index names, each once.
std::set<std::string> shards_of(const fs::path& index) {
  const std::string where = index.string();
  const json value = parse_json_object(read_small_file(index, kMaxHeaderBytes), where);
  const auto map = value.find("weight_map");
  if (map == value.end() || !map->is_object() || map->empty()) {
    throw Error(where + ": has no \"weight_map\" that names the files of the tensors");
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    // An index must not lead out of its folder.
    if (name.empty() || name == ".." || fs::path(name).filename() != name) {
      throw Error(where + ": tensor \"" + tensor + "\" is not in a file of this folder");
    }
    names.insert(name);
  }
  return names;
}

}  // namespace

std::vector<SourceTensor> parse_safetensors_header(std::string_view text, uint64_t data_start,
                                                   uint64_t file_size, std::string_view where) {
  if (data_start > file_size) throw Error(std::string(where) + ": is truncated; download it again");
  const json header = parse_json_object(text, std::string(where) + ": header");
  std::vector<SourceTensor> tensors;
  std::vector<std::array<uint64_t, 3>> extents;  // first byte, end, index of the tensor
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    uint64_t end = 0;
    tensors.push_back(TensorReader(name, value, where).read(data_start, file_size, end));
    if (end > tensors.back().offset) {
      extents.push_back({tensors.back().offset, end, tensors.size() - 1});
    }
  }
  std::ranges::sort(extents);
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i][0] < extents[i - 1][1]) {
      throw Error(std::string(where) + ": tensor \"" + tensors[extents[i][2]].name +
                  "\" overlaps tensor \"" + tensors[extents[i - 1][2]].name +
                  "\"; download the file again");
    }
  }
  return tensors;
}

Checkpoint open_safetensors_folder(const fs::path& folder) {
  Checkpoint checkpoint(folder.string());
  const fs::path index = folder / "model.safetensors.index.json";
  if (fs::exists(folder / "model.safetensors")) {
    add_file(checkpoint, folder / "model.safetensors");
  } else if (fs::exists(index)) {
    for (const std::string& name : shards_of(index)) {
      if (!fs::exists(folder / name)) {
        throw Error((folder / name).string() +
                    ": is missing, although model.safetensors.index.json names it; download it");
      }
      add_file(checkpoint, folder / name);
    }
  } else {
    std::set<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") files.insert(entry.path());
    }
    if (files.empty()) {
      throw Error(folder.string() +
                  ": holds no .safetensors files; download the weights in that format");
    }
    for (const fs::path& file : files) add_file(checkpoint, file);
  }
  return checkpoint;
}

}  // namespace faststream
