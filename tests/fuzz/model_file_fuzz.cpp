// Model files: whatever the bytes, the reader refuses them with an Error or gives tensors that lie
// in the file, and a description that is valid and plans tensors of possible sizes. Checksums are
// made right first, so that the fuzzer gets past them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "fuzz/fuzz_target.h"
#include "model_file/layout.h"
#include "model_file/model_file.h"
#include "models/config.h"
#include "models/tensor_plan.h"
#include "support/error.h"
#include "unit/model_file/model_file_helpers.h"

namespace {

// Inputs are short: what lies between the metadata and file_bytes (up to 64 kB) is made up here.
std::vector<std::byte> complete(const uint8_t* data, size_t size) {
  using faststream::layout::Head;
  const auto bytes = std::as_bytes(std::span(data, size));
  std::vector<std::byte> file(bytes.begin(), bytes.end());
  if (file.size() < sizeof(Head)) return file;
  const Head head = faststream::head_of(file);
  constexpr uint64_t kMaxFileBytes = uint64_t{64} << 10;
  if (head.file_bytes <= kMaxFileBytes && head.file_bytes > file.size()) {
    file.resize(head.file_bytes);
  }
  faststream::repair_checksums(file);
  return file;
}

void use(const faststream::ModelFile& file) {
  const std::byte* end = file.weights().bytes.data() + file.weights().bytes.size();
  for (const faststream::TensorInfo& tensor : file.tensors()) {
    const auto bytes = file.bytes(tensor);
    if (bytes.empty() || bytes.data() + bytes.size() > end) std::abort();
    if (file.find(tensor.name) != &tensor) std::abort();
  }
  const auto model = file.header().find("model");
  if (model == file.header().end()) return;
  const faststream::ModelConfig config = faststream::config_from_json(*model, "fuzz");
  constexpr int64_t kEnough = 8;  // layers are all alike
  if (config.n_layers() > kEnough) return;
  for (const faststream::TensorPlan& plan : faststream::tensor_plan(config)) {
    for (const int64_t extent : plan.shape) {
      if (extent < 1) std::abort();
    }
  }
}

}  // namespace

FUZZ_TARGET(model_file) {
  const std::vector<std::byte> bytes = complete(data, size);
  try {
    const faststream::ModelFile file = faststream::ModelFile::from_bytes(bytes, "fuzz");
    use(file);
    file.verify();
  } catch (const faststream::Error&) {  // the only way to say no
  }
}
