// What a conversion would do.
#pragma once

#include <iosfwd>

#include "convert/pipeline.h"

namespace faststream::convert {

/// Opens the checkpoint of `options` and prints its family, sizes, types, tokenizer, chat template
/// and the size of the model file that convert_checkpoint() would write; output, threads and
/// progress of `options` have no meaning. Throws what convert_checkpoint() would throw before it
/// writes.
void check_checkpoint(const ConvertOptions& options, std::ostream& out);

}  // namespace faststream::convert
