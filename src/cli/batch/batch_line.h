// What a line of a batch's input asks for.
//
// An input is JSON lines when its first line that is not blank begins with "{", else plain text: a
// prompt a line. That line alone decides, so a damaged first JSON line is an error, not a prompt.
// In JSON lines an object with "custom_id" or "body" is of OpenAI's batch format, any other is of
// ours; both may mix. docs/batch.md lists the keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "api/request_body.h"
#include "engine/request.h"

namespace faststream::cli {

/// A longer line is an error.
constexpr size_t kMaxBatchLineBytes = 64 << 20;

/// Line `number` (from 1) of an input without UTF-8's byte order mark, which the first may have.
std::string_view without_byte_order_mark(std::string_view line, uint64_t number);

/// Whether a line has nothing but white space, and is passed over.
bool is_blank(std::string_view line);

enum class BatchFormat { text, json };

/// The format of an input, by its first line that is not blank. Throws Error, starting with
/// `input`, the input's name, when that is the start of what are no lines: of UTF-16, of a JSON
/// array, or of a JSON object that goes on in the next line.
BatchFormat recognize_batch_format(std::string_view line, std::string_view input);

struct BatchLine : api::ParsedRequest {
  nlohmann::json id;       ///< a string or a whole number; the line's number where it gives none
  std::string error = {};  ///< why the line makes no request; empty if it does
};

/// Parses line `number` (from 1), without its newline. The request is `defaults` with what the line
/// says instead. defaults.sampling.seed must be there: it is the run's seed, from which a line
/// without a seed gets line_seed(). What depends on the model is left to Engine::submit().
BatchLine parse_batch_line(std::string_view text, uint64_t number, BatchFormat format,
                           const Request& defaults);

/// Does a line's work and returns what is wrong with the line: what an Error says that `work`
/// throws, or that there is not enough memory; empty when all is well.
std::string line_error(const std::function<void()>& work);

/// The seed of a line: output number `line` of SplitMix64 (doi:10.1145/2714064.2660195) from
/// `run_seed`, its upper 53 bits so that every reader of JSON keeps it exactly.
uint64_t line_seed(uint64_t run_seed, uint64_t line);

}  // namespace faststream::cli
