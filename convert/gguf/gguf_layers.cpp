#include "convert/gguf/gguf_layers.h"

#include <utility>

#include "convert/families/family.h"

namespace faststream::convert {

int64_t window_of(const GgufSource& source) {
  return source.metadata().find_integer(source.key("attention.sliding_window")).value_or(0);
}

void set_windows(const GgufSource& source, GgufFamilyModel& model,
                 const std::vector<bool>& windowed) {
  const int64_t window = window_of(source);
  if (window <= 0) return;
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (!windowed[static_cast<size_t>(n)]) return;
    layer.name = "windowed";
    layer.attention().window = window;
  });
}

void set_windows(const GgufSource& source, GgufFamilyModel& model, int64_t pattern) {
  set_windows(source, model, source.windowed_layers(model.config.n_layers(), pattern));
}

void set_plain_rope_of_windows(const GgufSource& source, GgufFamilyModel& model, double theta) {
  constexpr std::string_view kName = "rope.freq_base_swa";
  const double own = source.number(kName, theta);
  if (own <= 0) source.fail(kName, "is not above 0");
  ModelConfig& config = model.config;
  RopeConfig rope;
  rope.name = "windowed";
  const int64_t head_dim = config.layer_kinds[0].attention().head_dim;
  const int64_t rotated =
      source.count("rope.dimension_count_swa", head_dim, config.ropes[0].dims());
  rope.frequencies = plain_frequencies(own, rotated);
  for (LayerConfig& layer : config.layer_kinds) {
    if (layer.attention().window > 0) layer.attention().rope = config.ropes.size();
  }
  config.ropes.push_back(std::move(rope));
}

void rotate_windows_alone(ModelConfig& model) {
  for (LayerConfig& layer : model.layer_kinds) {
    if (layer.attention().window == 0) layer.attention().rope.reset();
  }
}

}  // namespace faststream::convert
