// The golden checkpoints that make_golden.py and make_families.py made, for tests.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/error.h"

namespace faststream {

/// One variant: a small checkpoint folder and what Transformers computes from it.
struct GoldenData {
  std::string name;
  std::filesystem::path folder;     ///< config.json, *.safetensors
  std::filesystem::path tokenizer;  ///< tokenizer.model
  int64_t vocab = 0;
  std::vector<int32_t> tokens;  ///< the prompt
  std::vector<float> logits;    ///< [tokens, vocab]
  std::vector<int32_t> greedy;  ///< the greedy continuation; empty for most variants
};

/// The folder with the variants: golden/ in the folder that the variable FASTSTREAM_TEST_DATA
/// names, by default tests/, for a program started in the project's root.
inline std::filesystem::path golden_root() {
  const char* tests = std::getenv("FASTSTREAM_TEST_DATA");
  return std::filesystem::path(tests != nullptr ? tests : "tests") / "golden";
}

/// A file of little-endian numbers (our machines' order). Throws Error when it is missing or is no
/// whole number of elements.
template <typename T>
std::vector<T> read_numbers(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw Error(path.string() + ": cannot be opened; run tests/golden/make_golden.py.");
  const auto size = static_cast<size_t>(file.tellg());
  if (size % sizeof(T) != 0) throw Error(path.string() + ": ends in the middle of a number.");
  std::vector<T> values(size / sizeof(T));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(size));
  if (!file) throw Error(path.string() + ": cannot be read.");
  return values;
}

/// Names of the variants that a folder's manifest lists, in its order.
inline std::vector<std::string> golden_variants(const std::string& folder = "") {
  std::ifstream file(golden_root() / folder / "manifest.json");
  const nlohmann::json manifest = nlohmann::json::parse(file);
  std::vector<std::string> names;
  for (const auto& variant : manifest.at("variants")) {
    names.push_back(folder + variant.at("name").get<std::string>());
  }
  return names;
}

/// Llamas and their tokenizers, then small models of all families, which share one tokenizer.
inline std::vector<std::string> all_golden_variants() {
  std::vector<std::string> names = golden_variants();
  for (std::string& name : golden_variants("families/")) names.push_back(std::move(name));
  return names;
}

/// Loads a variant. Throws Error when its files are missing or do not fit together.
inline GoldenData load_golden(const std::string& name) {
  GoldenData data;
  data.name = name;
  data.folder = golden_root() / name;
  data.tokenizer = data.folder / "tokenizer.model";
  if (!std::filesystem::exists(data.tokenizer)) {
    data.tokenizer = golden_root() / "gqa" / "tokenizer.model";
  }
  data.tokens = read_numbers<int32_t>(data.folder / "tokens.i32");
  data.logits = read_numbers<float>(data.folder / "logits.f32");
  if (std::filesystem::exists(data.folder / "greedy.i32")) {
    data.greedy = read_numbers<int32_t>(data.folder / "greedy.i32");
  }
  data.vocab = static_cast<int64_t>(data.logits.size() / data.tokens.size());
  if (data.logits.size() != data.tokens.size() * static_cast<size_t>(data.vocab)) {
    throw Error(data.folder.string() + ": logits.f32 is not [tokens, vocab].");
  }
  return data;
}

}  // namespace faststream
