// GGUF files: whatever the bytes, an Error or tensors that lie in the file, a configuration and a
// tokenizer.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "convert/gguf/gguf_family.h"
#include "convert/gguf/gguf_file.h"
#include "convert/tokenizers/gguf_tokenizer.h"
#include "fuzz/fuzz_target.h"
#include "support/error.h"
#include "text/sentencepiece_model.h"

namespace {

template <typename Action>
void expect_error_only(Action&& action) {
  try {
    action();
  } catch (const faststream::Error&) {  // the only way to say no
  }
}

}  // namespace

FUZZ_TARGET(gguf) {
  const auto read = [&](uint64_t offset, std::span<std::byte> out) {
    if (offset > size || out.size() > size - offset) std::abort();
    std::memcpy(out.data(), data + offset, out.size());
  };
  expect_error_only([&] {
    const faststream::convert::GgufHeader header =
        faststream::convert::parse_gguf(read, size, "fuzz");
    for (const faststream::convert::SourceTensor& tensor : header.tensors) {
      if (tensor.offset > size || tensor.bytes() > size - tensor.offset) std::abort();
    }
    expect_error_only([&] {
      static_cast<void>(faststream::convert::describe_gguf(
          header.metadata, faststream::convert::Checkpoint("fuzz")));
    });
    const faststream::convert::GgufTokenizer tokenizer =
        faststream::convert::tokenizer_from_gguf(header.metadata);
    if (tokenizer.description) return;
    faststream::parse_sentencepiece_model(std::as_bytes(std::span(tokenizer.sentencepiece)),
                                          "fuzz");
  });
}
