// Headers of safetensors files: whatever the bytes, an Error or tensors that lie in the file. The
// first two bytes of an input are the size of the byte buffer behind the header.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "convert/huggingface/safetensors.h"
#include "fuzz/fuzz_target.h"
#include "support/error.h"

FUZZ_TARGET(safetensors) {
  if (size < 2) return;
  const uint64_t buffer = data[0] + 256U * data[1];
  const std::string_view header(reinterpret_cast<const char*>(data) + 2, size - 2);
  const uint64_t start = sizeof(uint64_t) + header.size();
  try {
    for (const faststream::convert::SourceTensor& tensor :
         faststream::convert::parse_safetensors_header(header, start, start + buffer, "fuzz")) {
      if (tensor.offset < start || tensor.offset + tensor.bytes() > start + buffer) std::abort();
    }
  } catch (const faststream::Error&) {  // the only way to say no
  }
}
