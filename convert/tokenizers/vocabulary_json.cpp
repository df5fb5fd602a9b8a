#include "convert/tokenizers/vocabulary_json.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "support/error.h"
#include "support/printable.h"

namespace faststream::convert {

std::vector<std::string> read_vocabulary_json(const std::filesystem::path& path,
                                              SourceFiles& files) {
  const nlohmann::json texts = files.read_json(path);
  std::vector<std::string> by_id(texts.size());
  for (const auto& [text, id] : texts.items()) {
    const auto n = static_cast<int64_t>(by_id.size());
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= n ||
        text.empty() || !by_id[id.get<size_t>()].empty()) {
      throw Error(path.string() + ": gives the token " + in_quotes(text) +
                  " no id of its own below the number of tokens, " + std::to_string(n));
    }
    by_id[id.get<size_t>()] = text;
  }
  return by_id;
}

}  // namespace faststream::convert
