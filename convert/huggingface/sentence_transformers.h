// What sentence-transformers' files say beside a model's own: how its hidden states become vectors.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "convert/families/family.h"
#include "convert/source_files.h"
#include "models/config.h"

namespace faststream::convert {

/// The pooling that sentence-transformers' "pooling_mode" calls so: "mean", "cls", ...; none for
/// any other name.
std::optional<Pooling> pooling_named(std::string_view name);

/// What a 1_Pooling/config.json says. Throws Error, starting with `where`, when it asks for several
/// ways at once or for an unknown one.
Pooling pooling_from_json(const nlohmann::json& config, std::string_view where);

/// Where `folder` has a modules.json, gives the model the pooling, dense layers and normalization
/// that it lists, with the dense layers' tensors, and takes its output matrix away; a classifier
/// that it lists alone keeps its own. Scores of a classifier are of texts up to the length that the
/// tokenizer has. Else nothing changes. Throws Error, naming the file, when one is missing, unsound
/// or asks for something else.
void read_sentence_modules(const std::filesystem::path& folder, SourceFiles& files,
                           FamilyModel& model, Checkpoint& weights);

}  // namespace faststream::convert
