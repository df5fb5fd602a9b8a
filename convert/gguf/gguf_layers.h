// What layers of several architectures have in common: windows, and rotations beside these.
#pragma once

#include <cstdint>
#include <vector>

#include "convert/gguf/gguf_family.h"
#include "convert/gguf/gguf_source.h"

namespace faststream::convert {

/// "attention.sliding_window"; 0, for none, where it is absent.
int64_t window_of(const GgufSource& source);

/// Gives that window, if there is one, to the layers that have one.
void set_windows(const GgufSource& source, GgufFamilyModel& model,
                 const std::vector<bool>& windowed);

/// The same of those that GgufSource::windowed_layers() says.
void set_windows(const GgufSource& source, GgufFamilyModel& model, int64_t pattern);

/// Gives layers with a window a rotation of their own, without rules: by "rope.freq_base_swa", or
/// else by theta, of "rope.dimension_count_swa" elements, or else as many as in other layers.
void set_plain_rope_of_windows(const GgufSource& source, GgufFamilyModel& model, double theta);

/// Has layers without a window rotate nothing.
void rotate_windows_alone(ModelConfig& model);

}  // namespace faststream::convert
