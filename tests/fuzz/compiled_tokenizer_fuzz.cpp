// Hostile tables of a tokenizer: an Error, or use without reading outside of them.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fuzz/fuzz_target.h"
#include "support/error.h"
#include "text/tokenizer.h"
#include "text/tokenizer/compiled_tokenizer.h"

FUZZ_TARGET(compiled_tokenizer) {
  const std::vector<std::byte> tables(reinterpret_cast<const std::byte*>(data),
                                      reinterpret_cast<const std::byte*>(data) + size);
  try {
    const auto tokenizer = faststream::make_compiled_tokenizer(tables, {}, "fuzz");
    const faststream::Stretch text{
        .text = "<s> Hello hello\xC3\xA9  [CLS] 12 \xFF\xE2\x96\x81the</s>", .from_template = true};
    std::vector<int32_t> ids = tokenizer->encode_stretches(std::span(&text, 1));
    for (int32_t id = -1; id < 40; ++id) ids.push_back(id);
    static_cast<void>(tokenizer->encode(text.text));
    static_cast<void>(tokenizer->decode(ids));
    static_cast<void>(tokenizer->find_token("hello"));
    static_cast<void>(tokenizer->min_tokens(text.text, faststream::kCountAll));
  } catch (const faststream::Error&) {  // the only way to say no
  }
}
