// T5, whose tensors have names of their own: "enc." and "dec.".
#pragma once

#include "convert/gguf/gguf_family.h"
#include "convert/gguf/gguf_source.h"

namespace faststream::convert {

/// T5 in both versions, Flan-T5, mT5 and UMT5: encoder and decoder.
GgufFamilyModel describe_gguf_t5(const GgufSource& source);
/// The encoder alone, which makes vectors.
GgufFamilyModel describe_gguf_t5_encoder(const GgufSource& source);

}  // namespace faststream::convert
