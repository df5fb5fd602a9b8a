#include "convert/huggingface/safetensors.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"
#include "support/progress.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Half a million tensors have less; what is read takes up to twenty times the memory.
constexpr uint64_t kMaxHeaderBytes = uint64_t{32} << 20;

constexpr auto kMaxExtent = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

const ElementFormat* read_format(const JsonView& type) {
  const auto name = type.as<std::string>();
  if (const ElementFormat* format = find_element_format(name)) return format;
  type.fail("is " + in_quotes(name) + "; F32, F16 and BF16 can be converted");
}

// `view` is the tensor's entry in the header.
SourceTensor read_tensor(const std::string& name, const JsonView& view, uint64_t data_start,
                         uint64_t file_size) {
  SourceTensor tensor{.name = name,
                      .format = read_format(view.member("dtype")),
                      .shape = {},
                      .file = 0,
                      .offset = 0};
  uint64_t bytes = tensor.format->bytes(1);
  for (const uint64_t extent : view.member("shape").integers<uint64_t>(0, kMaxExtent)) {
    if (extent != 0 && bytes > file_size / extent)
      view.fail("is larger than the file; download it again");
    bytes *= extent;
    tensor.shape.push_back(static_cast<int64_t>(extent));
  }
  const JsonView place = view.member("data_offsets");
  const std::vector<uint64_t> offsets = place.integers<uint64_t>(0, kMaxExtent);
  if (offsets.size() != 2) place.fail("is not a pair");
  if (offsets[0] > offsets[1] || offsets[1] > file_size - data_start) {
    view.fail("reaches past the end of the file, which may be truncated; download it again");
  }
  if (offsets[1] - offsets[0] != bytes) view.fail("has a size that differs from its shape's");
  tensor.offset = data_start + offsets[0];
  return tensor;
}

}  // namespace

std::vector<SourceTensor> parse_safetensors_header(std::string_view text, uint64_t data_start,
                                                   uint64_t file_size, std::string_view where) {
  if (data_start > file_size) throw Error(std::string(where) + ": is truncated; download it again");
  const json header = parse_json_object(text, std::string(where) + ": header");
  std::vector<SourceTensor> tensors;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    const JsonView view(value, std::string(where) + ": tensor " + in_quotes(name));
    tensors.push_back(read_tensor(name, view, data_start, file_size));
  }
  refuse_overlaps(tensors, where);
  return tensors;
}

void add_safetensors_file(Checkpoint& checkpoint, const fs::path& path, SourceFiles& files,
                          const std::string& prefix) {
  InputFile file = files.open(path);
  const std::string where = path.string();
  uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes) {
    throw Error(where + ": is too short for a safetensors file; download it again");
  }
  file.read(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  if (header_bytes > file.size() - sizeof header_bytes) {
    throw Error(where + ": is truncated or not a safetensors file; download it again");
  }
  if (header_bytes > kMaxHeaderBytes) {
    throw Error(where + ": has a header of " + format_bytes(header_bytes) + ", where at most " +
                format_bytes(kMaxHeaderBytes) + " make sense; is this the right file?");
  }
  std::string header(header_bytes, '\0');
  file.read(sizeof header_bytes, std::as_writable_bytes(std::span(header)));
  auto tensors =
      parse_safetensors_header(header, sizeof header_bytes + header_bytes, file.size(), where);
  const size_t number = checkpoint.add_file(std::move(file));
  for (SourceTensor& tensor : tensors) {
    tensor.file = number;
    const std::string name = prefix + tensor.name;
    checkpoint.add_tensor(std::move(tensor), name);
  }
}

}  // namespace faststream::convert
