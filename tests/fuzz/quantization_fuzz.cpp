// Checkpoints that are quantized already: whatever config.json, a file's tensors and its bytes say,
// an Error or tensors that can be read. An input is a line of config.json, a line that is the
// header of a safetensors file, and the bytes behind it.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/huggingface/safetensors.h"
#include "convert/quantized/quantization.h"
#include "convert/weights/read_values.h"
#include "fuzz/fuzz_target.h"
#include "support/error.h"
#include "support/json.h"

namespace {

using namespace faststream;
using namespace faststream::convert;

// A file in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("fuzz", 0)) {
    if (fd_ < 0 || ::write(fd_, bytes.data(), bytes.size()) < 0) std::abort();
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(fd_); }

  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

void read_all(const Checkpoint& checkpoint) {
  constexpr int64_t kEnough = 4096;
  std::vector<std::byte> raw;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (!tensor.has_values()) continue;
    const int64_t elements = tensor.elements();
    if (elements == 0) continue;
    std::vector<float> values(static_cast<size_t>(std::min(elements, kEnough)));
    try {
      read_values(checkpoint, tensor, 0, values, raw);
      read_values(checkpoint, tensor, elements - static_cast<int64_t>(values.size()), values, raw);
    } catch (const Error& error) {
      // What was joined lies in the file.
      if (std::string_view(error.what()).find("ends too early") != std::string_view::npos) {
        std::abort();
      }
    }
  }
}

}  // namespace

FUZZ_TARGET(quantization) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t first = text.find('\n');
  const size_t second = first == text.npos ? first : text.find('\n', first + 1);
  if (second == text.npos) return;
  const std::string_view header = text.substr(first + 1, second - first - 1);
  try {
    const nlohmann::json config = parse_json_object(text.substr(0, first), "fuzz");
    // Offsets count from the header's end.
    auto tensors = parse_safetensors_header(header, second + 1, size, "fuzz");
    const MemoryFile file(text);
    SourceFiles files;
    Checkpoint checkpoint("fuzz");
    checkpoint.add_file(files.open(file.path()));
    for (SourceTensor& tensor : tensors) checkpoint.add_tensor(std::move(tensor));
    join_quantized(JsonView(config, "fuzz"), checkpoint);
    read_all(checkpoint);
  } catch (const Error&) {  // the only way to say no
  }
}
