// Speed of a tokenizer.json, and its results for tests/peers/tokenizers_random.py.
//
//   tokenizer-bench FOLDER TEXT     how fast TEXT, a file, is encoded and decoded by one thread
//   tokenizer-bench FOLDER          reads lines of JSON strings; for each writes a line of JSON:
//                                   "ids" with special tokens found, "plain" as a user's text,
//                                   "text" decoded, "streamed" the same token by token
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "convert/source_files.h"
#include "convert/tokenizers/tokenizer_json.h"
#include "support/error.h"
#include "text/tokenizer.h"
#include "text/tokenizer/compiled_tokenizer.h"

namespace {

using faststream::Tokenizer;

/// The shortest of five runs of this thread, in milliseconds.
template <typename Run>
double fastest(Run&& run) {
  double best = 1e30;
  for (int i = 0; i < 5; ++i) {
    timespec begin{};
    timespec end{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    run();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    best = std::min(best, static_cast<double>(end.tv_sec - begin.tv_sec) * 1e3 +
                              static_cast<double>(end.tv_nsec - begin.tv_nsec) * 1e-6);
  }
  return best;
}

void measure(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  const double encoding = fastest([&] { ids = tokenizer.encode(text, false); });
  const double decoding = fastest([&] { static_cast<void>(tokenizer.decode(ids)); });
  const double megabytes = static_cast<double>(text.size()) * 1e-6;
  std::printf("%zu bytes, %zu tokens: encoded at %.1f MB/s (%.3f ms), decoded at %.1f MB/s\n",
              text.size(), ids.size(), megabytes / encoding * 1e3, encoding,
              megabytes / decoding * 1e3);
}

void answer_lines(const Tokenizer& tokenizer) {
  for (std::string line; std::getline(std::cin, line);) {
    const auto text = nlohmann::json::parse(line).get<std::string>();
    const faststream::Stretch stretch{.text = text, .from_template = true};
    const std::vector<int32_t> ids = tokenizer.encode_stretches(std::span(&stretch, 1));
    faststream::Detokenizer detokenizer(tokenizer, true);
    std::string streamed;
    for (const int32_t id : ids) streamed += detokenizer.push(id);
    streamed += detokenizer.finish();
    const nlohmann::json answer = {{"ids", ids},
                                   {"plain", tokenizer.encode(text)},
                                   {"text", tokenizer.decode(ids)},
                                   {"streamed", streamed}};
    std::cout << answer.dump() << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2 && argc != 3) throw faststream::Error("usage: tokenizer-bench FOLDER [TEXT]");
    faststream::convert::SourceFiles files;
    std::optional<faststream::convert::HfTokenizer> read;
    const auto path = std::filesystem::path(argv[1]) / "tokenizer.json";
    const double reading =
        fastest([&] { read = faststream::convert::read_tokenizer_json(path, files); });
    const std::string tables = faststream::compile_tokenizer(read->description, argv[1]);
    const auto bytes = std::as_bytes(std::span(tables));
    const auto tokenizer = faststream::make_compiled_tokenizer(bytes, read->config, argv[1]);
    if (argc == 2) {
      answer_lines(*tokenizer);
      return 0;
    }
    const double opening = fastest([&] {
      static_cast<void>(faststream::make_compiled_tokenizer(bytes, read->config, argv[1]));
    });
    std::printf("tokenizer.json read in %.0f ms; tables of %.1f MB opened in %.3f ms\n", reading,
                static_cast<double>(tables.size()) * 1e-6, opening);
    std::ifstream file(argv[2], std::ios::binary);
    measure(*tokenizer, std::string(std::istreambuf_iterator<char>(file), {}));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
