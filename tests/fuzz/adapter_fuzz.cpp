// Adapters: whatever adapter_config.json, a file's tensors and its bytes say, an Error or a model
// whose tensors can be read. An input is a line of adapter_config.json, a line that is the header
// of adapter_model.safetensors, and the bytes behind it.
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "convert/adapters/merge_adapter.h"
#include "convert/huggingface/safetensors.h"
#include "convert/weights/read_values.h"
#include "fuzz/fuzz_target.h"
#include "support/error.h"

namespace {

namespace fs = std::filesystem;
using namespace faststream;
using namespace faststream::convert;

void write(const fs::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  if (!file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()))) std::abort();
}

void write_safetensors(const fs::path& path, std::string_view header, std::string_view bytes) {
  const uint64_t size = header.size();
  std::array<char, sizeof size> length{};
  std::memcpy(length.data(), &size, sizeof size);
  write(path, std::string(length.data(), length.size()) + std::string(header) + std::string(bytes));
}

// A folder of this process, which goes when the process does.
class AdapterFolder {
 public:
  AdapterFolder()
      : path_(fs::temp_directory_path() / ("adapter_fuzz-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
    const nlohmann::json header = {
        {"a.weight", {{"dtype", "F32"}, {"shape", {4, 6}}, {"data_offsets", {0, 96}}}},
        {"a.bias", {{"dtype", "F32"}, {"shape", {4}}, {"data_offsets", {96, 112}}}},
        {"b.weight", {{"dtype", "BF16"}, {"shape", {4, 4}}, {"data_offsets", {112, 144}}}},
        {"c.all", {{"dtype", "BF16"}, {"shape", {2, 3, 5}}, {"data_offsets", {144, 204}}}},
        {"c.0.weight", {{"dtype", "BF16"}, {"shape", {4, 4}}, {"data_offsets", {204, 236}}}},
        {"c.1.weight", {{"dtype", "BF16"}, {"shape", {4, 4}}, {"data_offsets", {236, 268}}}}};
    write_safetensors(path_ / "model.safetensors", header.dump(), std::string(268, '\x3c'));
  }
  AdapterFolder(const AdapterFolder&) = delete;
  AdapterFolder& operator=(const AdapterFolder&) = delete;
  ~AdapterFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

FUZZ_TARGET(adapter) {
  static const AdapterFolder folder;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t first = text.find('\n');
  const size_t second = first == text.npos ? first : text.find('\n', first + 1);
  if (second == text.npos) return;
  write(folder.path() / "adapter_config.json", text.substr(0, first));
  write_safetensors(folder.path() / "adapter_model.safetensors",
                    text.substr(first + 1, second - first - 1), text.substr(second + 1));
  try {
    SourceFiles files;
    Checkpoint weights("fuzz");
    add_safetensors_file(weights, folder.path() / "model.safetensors", files, "");
    AdaptedModel model{.weights = weights, .own_files = 1};
    model.find = [&](const std::string& name) {
      return weights.find(name) != nullptr ? name : std::string();
    };
    model.experts = [](const std::string& module) -> std::vector<ExpertMatrices> {
      if (module != "c") return {};
      return {{.parameter = "all", .out = 3, .in = 5, .count = 2, .joined = "c.all"},
              {.parameter = "each",
               .out = 4,
               .in = 4,
               .count = 2,
               .of_experts = {{{"c.0.weight", 0, 4}}, {{"c.1.weight", 0, 4}}}}};
    };
    model.is_left_out = [](const std::string& name) { return name.starts_with("vision"); };
    model.is_shared = [](const std::string&) { return false; };
    model.is_transposed = [](const std::string& name) { return name == "b.weight"; };
    model.rows_of_whole = [](const std::string& name) { return name == "b.weight" ? 5 : 0; };
    Adapter adapter(folder.path(), weights, files);
    static_cast<void>(std::move(adapter).merge(model));
    if (weights.tensors().size() != 6) std::abort();
    std::vector<std::byte> raw;
    for (const auto& [name, tensor] : weights.tensors()) {
      std::vector<float> values(static_cast<size_t>(tensor.elements()));
      read_values(weights, tensor, 0, values, raw);
    }
  } catch (const Error&) {  // the only way to say no
  }
}
