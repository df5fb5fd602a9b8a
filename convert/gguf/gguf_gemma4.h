// Gemma 3n and 4 in GGUF files, whose layers differ in more than their windows.
#pragma once

#include "convert/gguf/gguf_family.h"
#include "convert/gguf/gguf_source.h"

namespace faststream::convert {

void adjust_gemma3n(const GgufSource& source, GgufFamilyModel& model);
void adjust_gemma4(const GgufSource& source, GgufFamilyModel& model);

}  // namespace faststream::convert
