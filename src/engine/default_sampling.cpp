#include "engine/default_sampling.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/request_settings.h"
#include "support/json.h"

namespace faststream {

std::span<const std::string_view> recommended_keys() {
  static const std::vector<std::string_view> keys = [] {
    std::vector<std::string_view> all;
    for (const RequestSetting& setting : request_settings()) {
      if (setting.recommended) all.push_back(setting.key);
    }
    return all;
  }();
  return keys;
}

SamplingParams sampling_from_json(const nlohmann::json& json, std::string_view where) {
  const JsonView view(json, where);
  view.allow_only(recommended_keys());
  Request request;
  for (const std::string_view key : recommended_keys()) {
    if (const auto value = view.find(key)) find_request_setting(key)->read(*value, request);
  }
  return request.sampling;
}

SamplingParams default_sampling(const ModelFile& file) {
  const auto found = file.header().find("sampling");
  if (found == file.header().end()) return {};
  return sampling_from_json(*found, file.name() + ": sampling");
}

}  // namespace faststream
