#include "convert/gguf/gguf_source.h"

#include <cmath>

#include "models/config.h"
#include "support/error.h"

namespace faststream::convert {

std::string GgufSource::key(std::string_view name) const {
  return architecture_ + "." + std::string(name);
}

void GgufSource::fail(std::string_view name, const std::string& what) const {
  metadata_.fail(key(name), what);
}

int64_t GgufSource::count(std::string_view name, int64_t most) const {
  return in_range(name, metadata_.integer(key(name)), most);
}

int64_t GgufSource::count(std::string_view name, int64_t most, int64_t otherwise) const {
  return in_range(name, metadata_.find_integer(key(name)).value_or(otherwise), most);
}

std::vector<int64_t> GgufSource::counts(std::string_view name, int64_t layers, int64_t most) const {
  const auto found = metadata_.values().find(key(name));
  if (found == metadata_.values().end() || found->second.type != GgufType::array) {
    return std::vector<int64_t>(static_cast<size_t>(layers), count(name, most));
  }
  std::vector<int64_t> counts;
  for (const int32_t value : metadata_.integers(key(name))) {
    counts.push_back(in_range(name, value, most));
  }
  if (counts.size() == static_cast<size_t>(layers)) return counts;
  fail(name, "has " + std::to_string(counts.size()) + " entries for " + std::to_string(layers) +
                 " layers");
}

int64_t GgufSource::in_range(std::string_view name, int64_t value, int64_t most) const {
  if (value >= 1 && value <= most) return value;
  fail(name, "is " + std::to_string(value) + ", outside 1 to " + std::to_string(most));
}

double GgufSource::number(std::string_view name, double otherwise) const {
  const double value = metadata_.find_number(key(name)).value_or(otherwise);
  if (!std::isfinite(value)) fail(name, "is not finite");
  return value;
}

int64_t GgufSource::n_layers() const { return count("block_count", kMaxLayers); }

int64_t GgufSource::n_predicting_layers() const {
  constexpr std::string_view kName = "nextn_predict_layers";
  const int64_t value = metadata_.find_integer(key(kName)).value_or(0);
  if (value < 0 || value >= n_layers()) fail(kName, "must be less than the number of layers");
  return value;
}

std::vector<int64_t> GgufSource::of_layers(std::string_view name) const {
  const auto size = static_cast<size_t>(n_layers());
  const auto found = metadata_.values().find(key(name));
  if (found == metadata_.values().end() || found->second.type != GgufType::array) {
    return std::vector<int64_t>(size, metadata_.integer(key(name)));
  }
  const std::vector<int32_t> each = metadata_.integers(key(name));
  if (each.size() != size) {
    fail(name,
         "has " + std::to_string(each.size()) + " numbers for " + std::to_string(size) + " layers");
  }
  return {each.begin(), each.end()};
}

std::vector<bool> GgufSource::windowed_layers(int64_t n_layers, int64_t otherwise,
                                              FullLayer full) const {
  constexpr std::string_view kName = "attention.sliding_window_pattern";
  const auto found = metadata_.values().find(key(kName));
  if (found != metadata_.values().end() && found->second.type == GgufType::array) {
    std::vector<bool> windowed = metadata_.booleans(key(kName));
    if (windowed.size() >= static_cast<size_t>(n_layers)) return windowed;
    fail(kName, "has " + std::to_string(windowed.size()) + " entries for " +
                    std::to_string(n_layers) + " layers");
  }
  const int64_t pattern = count(kName, kMaxLayers, otherwise);
  std::vector<bool> windowed;
  const int64_t before = full == FullLayer::last ? 1 : 0;
  for (int64_t n = 0; n < n_layers; ++n) windowed.push_back((n + before) % pattern != 0);
  return windowed;
}

const SourceTensor* GgufSource::find_in_layer(int64_t n, std::string_view name) const {
  return weights_.find("blk." + std::to_string(n) + "." + std::string(name));
}

const SourceTensor* GgufSource::find_in_layers(std::string_view name) const {
  const int64_t count = n_layers();
  for (int64_t n = 0; n < count; ++n) {
    const SourceTensor* tensor = find_in_layer(n, name);
    if (tensor != nullptr) return tensor;
  }
  return nullptr;
}

bool GgufSource::layer_has(int64_t n, std::string_view name) const {
  return find_in_layer(n, name) != nullptr;
}

bool GgufSource::a_layer_has(std::string_view name) const {
  return find_in_layers(name) != nullptr;
}

std::vector<int64_t> GgufSource::shape_in_layer(std::string_view name) const {
  const SourceTensor* tensor = find_in_layers(name);
  return tensor == nullptr ? std::vector<int64_t>{} : tensor->shape;
}

std::optional<std::vector<float>> GgufSource::vector(std::string_view name, int64_t size) const {
  const SourceTensor* found = weights_.find(name);
  if (found == nullptr) return std::nullopt;
  std::vector<int64_t> shape = found->shape;
  std::erase(shape, 1);
  shape =
      shape == std::vector{size} || (shape.empty() && size == 1) ? found->shape : std::vector{size};
  const SourceTensor& tensor = weights_.require(name, shape);
  std::vector<std::byte> raw(tensor.bytes());
  weights_.read(tensor, 0, raw);
  std::vector<float> values(static_cast<size_t>(size));
  tensor.format->decode(raw.data(), values);
  for (const float value : values) {
    if (value > 0 && std::isfinite(value)) continue;
    throw Error(metadata_.where() + ": tensor \"" + std::string(name) +
                "\" has a factor that is not a number above 0");
  }
  return values;
}

}  // namespace faststream::convert
