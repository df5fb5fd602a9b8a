// A checkpoint as a model file.
#pragma once

#include "convert/pipeline.h"
#include "model_file/model_file.h"

namespace faststream {

/// Also over a file that is there.
inline ModelFile converted_by(convert::ConvertOptions options) {
  options.force = true;
  options.threads = 2;
  convert::convert_checkpoint(options);
  return ModelFile::open(options.output);
}

}  // namespace faststream
