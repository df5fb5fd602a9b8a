#include "convert/huggingface/weight_files.h"

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "convert/huggingface/safetensors.h"
#include "convert/pytorch/pytorch_file.h"
#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct WeightFiles {
  std::string_view file;
  std::string_view index;
  void (*add)(Checkpoint& checkpoint, const fs::path& path, SourceFiles& files,
              const std::string& prefix);
};

constexpr WeightFiles kSafetensors = {"model.safetensors", "model.safetensors.index.json",
                                      add_safetensors_file};
constexpr WeightFiles kPytorch = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                  add_pytorch_file};

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

// Whether there are such files.
bool add_files_of(const WeightFiles& format, const fs::path& folder, SourceFiles& files,
                  const std::string& prefix, Checkpoint& checkpoint) {
  if (fs::exists(folder / format.file)) {
    format.add(checkpoint, folder / format.file, files, prefix);
    return true;
  }
  if (!fs::exists(folder / format.index)) return false;
  for (const std::string& name : shards_of(folder / format.index, files)) {
    if (!fs::exists(folder / name)) {
      throw Error((folder / name).string() + ": is missing, although " + std::string(format.index) +
                  " names it; download it");
    }
    format.add(checkpoint, folder / name, files, prefix);
  }
  return true;
}

}  // namespace

void add_weight_files(const fs::path& folder, SourceFiles& files, const std::string& prefix,
                      Checkpoint& checkpoint) {
  if (add_files_of(kSafetensors, folder, files, prefix, checkpoint)) return;
  std::set<fs::path> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") paths.insert(entry.path());
  }
  for (const fs::path& path : paths) add_safetensors_file(checkpoint, path, files, prefix);
  if (!paths.empty() || add_files_of(kPytorch, folder, files, prefix, checkpoint)) return;
  throw Error(folder.string() +
              ": holds neither .safetensors files nor pytorch_model.bin; download the weights in "
              "one of these formats");
}

Checkpoint open_weight_files(const fs::path& folder, SourceFiles& files) {
  Checkpoint checkpoint(folder.string());
  add_weight_files(folder, files, "", checkpoint);
  return checkpoint;
}

void add_weight_file(Checkpoint& checkpoint, const fs::path& folder, SourceFiles& files,
                     const std::string& prefix) {
  const bool has_other =
      !fs::exists(folder / kSafetensors.file) && fs::exists(folder / kPytorch.file);
  const WeightFiles& format = has_other ? kPytorch : kSafetensors;
  format.add(checkpoint, folder / format.file, files, prefix);
}

}  // namespace faststream::convert
