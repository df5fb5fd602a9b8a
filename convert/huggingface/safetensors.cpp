#include "convert/huggingface/safetensors.h"

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
#include "support/printable.h"
#include "support/progress.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Half a million tensors have less; what is read takes up to twenty times the memory.
constexpr uint64_t kMaxHeaderBytes = uint64_t{32} << 20;

constexpr auto kMaxExtent = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

// Types of masks, positions and packed numbers. A checkpoint may hold them, but a model must not
// need them.
constexpr std::array<ElementFormat, 12> kOtherFormats = {{{"BOOL", 1, 1},
                                                          {"U8", 1, 1},
                                                          {"I8", 1, 1},
                                                          {"F8_E4M3", 1, 1},
                                                          {"F8_E5M2", 1, 1},
                                                          {"F8_E8M0", 1, 1},
                                                          {"I16", 1, 2},
                                                          {"U16", 1, 2},
                                                          {"I32", 1, 4},
                                                          {"U32", 1, 4},
                                                          {"I64", 1, 8},
                                                          {"U64", 1, 8}}};

const ElementFormat* read_format(const JsonView& type) {
  const auto name = type.as<std::string>();
  for (const ElementFormat* format : {&kF32Format, &kF16Format, &kBf16Format, &kF64Format}) {
    if (name == format->name) return format;
  }
  for (const ElementFormat& format : kOtherFormats) {
    if (name == format.name) return &format;
  }
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

void add_file(Checkpoint& checkpoint, const fs::path& path, SourceFiles& files,
              const std::string& prefix = "") {
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

// The shards that an index names, each once.
std::set<std::string> shards_of(const fs::path& index, SourceFiles& files) {
  const std::string where = index.string();
  const json value = files.read_json(index);
  const JsonView map = JsonView(value, where).member("weight_map");
  if (!map.value().is_object() || map.value().empty()) {
    map.fail("does not name the files of the tensors");
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map.value().items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    // An index must not lead out of its folder.
    if (name.empty() || name == ".." || fs::path(name).filename() != name) {
      throw Error(where + ": tensor " + in_quotes(tensor) + " is not in a file of this folder");
    }
    names.insert(name);
  }
  return names;
}

// PyTorch's own files are programs that unpickle; only PyTorch should read them.
[[noreturn]] void refuse_without_weights(const fs::path& folder) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!fs::exists(folder / name)) continue;
    throw Error((folder / name).string() +
                ": weights in PyTorch's own format are not read; save them as safetensors with "
                "python -c \"from transformers import AutoModelForCausalLM as M; "
                "M.from_pretrained('" +
                printable(folder.string()) + "', dtype='auto').save_pretrained('OUT')\"");
  }
  throw Error(folder.string() +
              ": holds no .safetensors files; download the weights in that format");
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
  add_file(checkpoint, path, files, prefix);
}

Checkpoint open_safetensors_folder(const fs::path& folder, SourceFiles& files) {
  Checkpoint checkpoint(folder.string());
  const fs::path index = folder / "model.safetensors.index.json";
  if (fs::exists(folder / "model.safetensors")) {
    add_file(checkpoint, folder / "model.safetensors", files);
  } else if (fs::exists(index)) {
    for (const std::string& name : shards_of(index, files)) {
      if (!fs::exists(folder / name)) {
        throw Error((folder / name).string() +
                    ": is missing, although model.safetensors.index.json names it; download it");
      }
      add_file(checkpoint, folder / name, files);
    }
  } else {
    std::set<fs::path> paths;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") paths.insert(entry.path());
    }
    if (paths.empty()) refuse_without_weights(folder);
    for (const fs::path& path : paths) add_file(checkpoint, path, files);
  }
  return checkpoint;
}

}  // namespace faststream::convert
