// Files that torch.save() wrote, or did not: whatever the bytes, an Error or tensors that lie in
// the file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "convert/pytorch/pytorch_file.h"
#include "fuzz/fuzz_target.h"
#include "support/error.h"

FUZZ_TARGET(pytorch_file) {
  const auto read = [&](uint64_t offset, std::span<std::byte> out) {
    if (offset > size || out.size() > size - offset) std::abort();
    if (!out.empty()) std::memcpy(out.data(), data + offset, out.size());
  };
  try {
    for (const faststream::convert::SourceTensor& tensor :
         faststream::convert::parse_pytorch_file(read, size, "fuzz")) {
      if (tensor.offset > size || tensor.bytes() > size - tensor.offset) std::abort();
    }
  } catch (const faststream::Error&) {  // the only way to say no
  }
}
