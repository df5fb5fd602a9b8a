#include "cli/embed/embed_command.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/batch/batch_output.h"
#include "cli/batch/batch_reader.h"
#include "program/input.h"
#include "program/interrupt.h"
#include "program/open_file.h"
#include "support/error.h"
#include "support/json.h"
#include "support/partial_file.h"
#include "support/progress.h"
#include "support/utf8.h"

namespace faststream::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTextBytes = size_t{64} << 20;
// Lines that are read before their vectors are computed: this many, or of so many bytes.
constexpr size_t kTextsAtOnce = 4096;
constexpr size_t kBytesAtOnce = size_t{16} << 20;

struct Line {
  nlohmann::json id;       // null where there is none
  std::string error = {};  // why it has no text
};

struct Texts {
  std::vector<Line> lines;
  std::vector<std::string> texts;  // of lines without an error, in their order
};

// Texts of lines, some at a time.
class TextLines {
 public:
  explicit TextLines(const std::string& path)
      : name_(path == "-" ? "standard input" : path),
        fd_(path == "-" ? STDIN_FILENO : open_file(path, name_, O_RDONLY)),
        reader_(fd_, name_, kMaxTextBytes) {}
  TextLines(const TextLines&) = delete;
  TextLines& operator=(const TextLines&) = delete;
  ~TextLines() {
    if (fd_ != STDIN_FILENO) close(fd_);
  }

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] const std::string& name() const { return name_; }

  // None at the end.
  Texts next() {
    Texts texts;
    size_t bytes = 0;
    // What a pipe has now, so that whoever writes a line and waits gets its vector.
    while (texts.lines.size() < kTextsAtOnce && bytes < kBytesAtOnce &&
           (texts.lines.empty() || reader_.has_more_now())) {
      const auto line = reader_.next();
      if (!line) break;
      bytes += line->text.size();
      std::string text(line->text);
      if (line->number == 1) text = faststream::without_byte_order_mark(std::move(text), name_);
      Line& read = texts.lines.emplace_back();
      try {
        if (line->too_long) throw Error("the line is longer than 64 MB; split it");
        texts.texts.push_back(text_of(std::move(text), read.id));
      } catch (const Error& error) {
        read.error = error.what();
      }
    }
    return texts;
  }

 private:
  // By our name or those that other programs give it.
  static JsonView text_member(const JsonView& members) {
    std::optional<JsonView> text;
    for (const char* key : {"text", "input", "prompt"}) {
      const auto found = members.find(key);
      if (found && text) throw Error("the line has two texts; leave one of them out");
      if (found) text = found;
    }
    if (!text) throw Error("\"text\" is missing; \"input\" and \"prompt\" may be its name, too");
    return *text;
  }

  static std::string text_of(std::string line, nlohmann::json& id) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.starts_with('{')) {
      if (!is_valid_utf8(line)) throw Error("the line is not UTF-8 text");
      return line;
    }
    const nlohmann::json object =
        parse_json_object(line, "the line", "a line is a text or such JSON");
    const JsonView members(object, "");
    if (const auto given = members.find("id")) {
      if (!given->value().is_string() && !given->value().is_number_integer()) {
        given->fail("is not a text or a whole number");
      }
      id = given->value();
    }
    return text_member(members).as<std::string>();
  }

  std::string name_;
  int fd_;
  LineReader reader_;
};

// The shortest digits that give the same float.
void append_number(std::string& text, float value) {
  char digits[32];
  const auto result = std::to_chars(std::begin(digits), std::end(digits), value);
  text.append(digits, result.ptr);
}

std::string json_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_line(size_t index, const Line& of, const EmbedderInfo& info,
                      std::span<const float> values) {
  std::string line = "{\"index\":" + std::to_string(index);
  if (!of.id.is_null()) line += ",\"id\":" + json_text(of.id);
  if (!of.error.empty()) return line + ",\"error\":" + json_text(of.error) + "}";
  if (info.scores && values.size() == 1) {
    line += ",\"score\":";
    append_number(line, values[0]);
    return line + "}";
  }
  line += info.scores ? ",\"scores\":[" : ",\"embedding\":[";
  for (const float value : values) {
    append_number(line, value);
    line += ',';
  }
  line.back() = ']';
  return line + "}";
}

// A NumPy file of version 1.0, little-endian [rows, columns] float32
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
std::string npy_file(std::span<const float> values, size_t columns) {
  static_assert(std::endian::native == std::endian::little);
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" +
                       std::to_string(values.size() / columns) + ", " + std::to_string(columns) +
                       "), }";
  constexpr size_t kBeforeHeader = 10;
  constexpr size_t kAlignment = 64;
  while ((kBeforeHeader + header.size() + 1) % kAlignment != 0) header += ' ';
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() % 256);
  file += static_cast<char>(header.size() / 256);
  file += header;
  file.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  return file;
}

// Where vectors go: lines as they come, or a NumPy file, which is there when it is whole.
class VectorOutput {
 public:
  VectorOutput(const EmbedTask& task, const EmbedderInfo& info)
      : info_(info), npy_(task.options.format == "npy"), path_(task.output) {
    if (npy_ && !path_.empty() && !fs::exists(path_)) {
      const PartialFile probe(path_, 0, false);  // says now what is wrong with the path
    } else {
      output_.emplace(path_, false, "give another file");
    }
  }

  void check_is_not(const TextLines& input) const {
    if (output_) output_->check_is_not(input.fd(), input.name());
  }

  void add(size_t index, const Line& line, std::span<const float> values) {
    if (!npy_) {
      output_->write_line(json_line(index, line, info_, values));
    } else if (line.error.empty()) {
      all_.insert(all_.end(), values.begin(), values.end());
    } else {
      throw Error("line " + std::to_string(index + 1) + ": " + line.error +
                  " (--format json writes the other lines' vectors)");
    }
  }

  void finish() {
    if (!npy_) return;
    const std::string file = npy_file(all_, static_cast<size_t>(info_.vector_size));
    if (!output_) return write_file(path_, file, false);
    try {
      output_->write(file);
    } catch (const Error&) {  // a part of it is no NumPy file
      if (output_->fd() != STDOUT_FILENO) {
        [[maybe_unused]] const int ignored = ftruncate(output_->fd(), 0);
      }
      throw;
    }
  }

 private:
  const EmbedderInfo& info_;
  bool npy_;
  std::string path_;
  std::optional<BatchOutput> output_;  // none: a file that is yet to be made
  std::vector<float> all_;
};

Embedder load(const EmbedTask& task) {
  ProgressBar bar("loading", ProgressBar::Unit::bytes, true);
  EmbedderOptions options = task.embedder;
  options.load_progress = [&](size_t done, size_t total) {
    check_interrupted();
    bar.update(done, total);
  };
  options.check_interrupted = check_interrupted;
  Embedder embedder(task.model, options);
  const EmbedderInfo& info = embedder.info();
  if (task.options.query && !(info.scores && info.pairs)) {
    throw Error(task.model + ": scores no pairs of texts; give a cross-encoder, or use --embed");
  }
  if (options.device == "auto" && !task.stats) {
    std::fprintf(stderr, "device: %s\n", info.device.c_str());
  }
  return embedder;
}

}  // namespace

void embed_command(const EmbedTask& task) {
  std::unique_ptr<TextLines> lines;
  if (!task.text) lines = std::make_unique<TextLines>(task.input);
  Embedder embedder = load(task);
  const EmbedderInfo& info = embedder.info();
  VectorOutput output(task, info);
  if (lines) output.check_is_not(*lines);

  const auto start = std::chrono::steady_clock::now();
  const std::optional<std::string>& query = task.options.query;
  size_t n_texts = 0;
  int64_t n_tokens = 0;
  size_t n_cut = 0;
  size_t n_failed = 0;
  const auto process = [&](Texts texts) {
    std::vector<TextVector> vectors =
        query ? embedder.score(*query, texts.texts) : embedder.embed(texts.texts);
    auto next = vectors.begin();
    for (Line& line : texts.lines) {
      TextVector vector;
      if (line.error.empty()) {
        vector = std::move(*next++);
        if (vector.values.empty()) line.error = "the text has no tokens; leave it out";
        if (task.text && !line.error.empty()) throw Error(line.error);
      }
      output.add(n_texts++, line, vector.values);
      n_tokens += vector.tokens;
      n_cut += vector.cut ? 1 : 0;
      n_failed += line.error.empty() ? 0 : 1;
    }
  };
  if (task.text) {
    process({.lines = {{}}, .texts = {*task.text}});
  } else {
    for (Texts texts = lines->next(); !texts.lines.empty(); texts = lines->next()) {
      process(std::move(texts));
    }
  }
  output.finish();

  if (n_failed > 0) {
    std::fprintf(stderr, "%zu of %zu lines have an \"error\" in place of a result\n", n_failed,
                 n_texts);
  }
  if (n_cut > 0) {
    std::fprintf(stderr, "%zu of %zu texts are longer than %lld tokens and were cut there\n", n_cut,
                 n_texts, static_cast<long long>(info.context));
  }
  if (!task.stats) return;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::fprintf(stderr, "device:     %s\n", info.device.c_str());
  std::fprintf(stderr, "load:       %.3f s\n", info.load_seconds);
  std::fprintf(stderr, "texts:      %zu, %lld tokens in %.3f s, %.1f texts/s, %.0f tokens/s\n",
               n_texts, static_cast<long long>(n_tokens), seconds,
               static_cast<double>(n_texts) / seconds, static_cast<double>(n_tokens) / seconds);
}

}  // namespace faststream::cli
