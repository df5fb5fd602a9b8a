#include "engine/default_sampling.h"

#include <nlohmann/json.hpp>
#include <string>

#include "support/error.h"
#include "support/json.h"

namespace faststream {

SamplingParams sampling_from_json(const nlohmann::json& json, std::string_view where) {
  const JsonView view(json, where);
  view.allow_only({"temperature", "top_k", "top_p", "min_p", "repetition_penalty",
                   "presence_penalty", "frequency_penalty"});
  SamplingParams params;
  params.temperature = view.get("temperature", params.temperature);
  params.top_k = view.get("top_k", params.top_k);
  params.top_p = view.get("top_p", params.top_p);
  params.min_p = view.get("min_p", params.min_p);
  params.repetition_penalty = view.get("repetition_penalty", params.repetition_penalty);
  params.presence_penalty = view.get("presence_penalty", params.presence_penalty);
  params.frequency_penalty = view.get("frequency_penalty", params.frequency_penalty);
  try {
    validate(params, 0);
  } catch (const UsageError& error) {
    throw Error(std::string(where) + ": " + error.what());
  }
  return params;
}

SamplingParams default_sampling(const ModelFile& file) {
  const auto found = file.header().find("sampling");
  if (found == file.header().end()) return {};
  return sampling_from_json(*found, file.name() + ": sampling");
}

}  // namespace faststream
