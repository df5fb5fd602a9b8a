// Lines of a batch's input: whatever the bytes, a request or an error, and a record that tells it
// in one line of JSON with the line's id.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/batch/batch_line.h"
#include "cli/batch/batch_record.h"
#include "fuzz/fuzz_target.h"
#include "support/error.h"

namespace {

void check(const faststream::cli::BatchLine& line, uint64_t number) {
  const bool known = line.id.is_string() || line.id.is_number_integer();
  if (!known && (line.error.empty() || !line.id.is_null())) std::abort();
  if (line.error.empty() && !line.request.sampling.seed) std::abort();

  const faststream::cli::RecordHead head{.id = line.id, .line = number};
  const std::string record = faststream::cli::error_record(head, line.error);
  if (record.find('\n') != std::string::npos) std::abort();
  const nlohmann::json read = nlohmann::json::parse(record);
  if (read.value("id", nlohmann::json()) != line.id || read.at("line") != number) std::abort();
}

}  // namespace

FUZZ_TARGET(batch_line) {
  constexpr uint64_t kNumber = 7;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  faststream::Request defaults;
  defaults.sampling.seed = 1;
  try {
    const faststream::cli::BatchFormat format =
        faststream::cli::recognize_batch_format(text, "input");
    check(faststream::cli::parse_batch_line(text, kNumber, format, defaults), kNumber);
  } catch (const faststream::Error& error) {  // no lines
    if (std::string_view(error.what()).empty()) std::abort();
  }
  check(faststream::cli::parse_batch_line(text, kNumber, faststream::cli::BatchFormat::json,
                                          defaults),
        kNumber);
  static_cast<void>(faststream::cli::is_blank(text));
}
