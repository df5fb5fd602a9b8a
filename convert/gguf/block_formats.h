// The element types of GGUF files (https://github.com/ggml-org/ggml, ggml-common.h): plain ones and
// those that share scales in blocks of 32 or 256.
#pragma once

#include <cstdint>
#include <string>

#include "convert/weights/elements.h"

namespace faststream::convert {

/// The format of ggml's type number `type`; null for one that cannot be converted. Decoded values
/// equal those of PyPI's gguf (gguf.quants.dequantize) to the last bit.
const ElementFormat* find_ggml_format(uint32_t type);

/// What ggml calls its type number `type`: "IQ2_XS"; "number 77" where this program knows no name.
std::string ggml_type_name(uint32_t type);

/// The names of the formats that can be converted, for messages: "F32, F16, ... and MXFP4".
std::string convertible_ggml_types();

}  // namespace faststream::convert
