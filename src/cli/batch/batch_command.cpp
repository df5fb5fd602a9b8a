// Three threads: this one reads lines and submits requests, the engine's answers them, and a third
// makes records of the results and writes them. A window of lines in work stands between them.
#include "cli/batch/batch_command.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/batch/batch_line.h"
#include "cli/batch/batch_output.h"
#include "cli/batch/batch_progress.h"
#include "cli/batch/batch_reader.h"
#include "cli/batch/batch_resume.h"
#include "cli/batch/batch_window.h"
#include "support/error.h"
#include "support/random_seed.h"

namespace faststream {
namespace {

constexpr std::chrono::milliseconds kWriterPatience(100);

// Lines in work. Enough that slots stay busy while, in ordered mode, a long answer holds back the
// short ones after it; the engine keeps the token ids of each, and its result until it is written.
size_t window_lines(int32_t slots) {
  return std::clamp<size_t>(32 * static_cast<size_t>(slots), 256, 16384);
}
constexpr size_t kWindowBytes = size_t{256} << 20;

// The input, open.
class Input {
 public:
  explicit Input(const std::string& path) : name_(path == "-" ? "standard input" : path) {
    if (path != "-") fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) throw Error("--batch " + path + " cannot be opened: " + std::strerror(errno));
    struct stat status = {};
    if (fstat(fd_, &status) != 0 || S_ISDIR(status.st_mode)) {
      if (fd_ != STDIN_FILENO) close(fd_);
      throw Error("--batch " + path + " is a folder; give a file of prompts");
    }
    if (S_ISREG(status.st_mode)) size_ = static_cast<uint64_t>(status.st_size);
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;
  ~Input() {
    if (fd_ != STDIN_FILENO) close(fd_);
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int fd() const { return fd_; }
  // Bytes, if it is a regular file; else 0.
  [[nodiscard]] uint64_t size() const { return size_; }

 private:
  std::string name_;
  int fd_ = STDIN_FILENO;
  uint64_t size_ = 0;
};

class BatchRun {
 public:
  BatchRun(const BatchOptions& options, const Request& defaults, const Input& input,
           BatchOutput& output, const DoneLines& done, Engine& engine)
      : strict_(options.strict),
        defaults_(defaults),
        input_(input),
        output_(output),
        done_(done),
        engine_(engine),
        window_(std::make_shared<BatchWindow>(!options.unordered, window_lines(engine.info().slots),
                                              kWindowBytes)) {
    if (!defaults_.sampling.seed) defaults_.sampling.seed = random_seed();
    counts_.bytes_total = input.size();
  }

  void run();

 private:
  void feed();
  bool feed_line(const LineReader::Line& line, uint64_t bytes);
  std::string submit(uint64_t line, Request request);
  void write_results();
  void write(const BatchItem& item);
  [[nodiscard]] BatchCounts counts_now() const;

  const bool strict_;
  Request defaults_;
  const Input& input_;
  BatchOutput& output_;
  const DoneLines& done_;
  Engine& engine_;
  std::shared_ptr<BatchWindow> window_;  // the engine's callbacks may outlive the run
  std::optional<BatchFormat> format_;
  std::string bad_line_;  // with --strict, what is wrong with the line that ended the run
  std::atomic<uint64_t> done_before_ = 0;
  std::atomic<uint64_t> bytes_passed_ = 0;
  BatchCounts counts_;  // the writer's
  BatchProgress progress_;
};

void BatchRun::run() {
  std::future<void> writer = std::async(std::launch::async, [this] { write_results(); });
  std::exception_ptr failure;
  try {
    feed();
    window_->close();
    window_->wait_until_empty();
  } catch (...) {
    failure = std::current_exception();
    window_->abandon();
  }
  try {
    writer.get();
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  progress_.erase();
  std::fprintf(stderr, "%s (seed %llu)\n", batch_summary(counts_now(), progress_.seconds()).c_str(),
               static_cast<unsigned long long>(*defaults_.sampling.seed));
  if (failure) std::rethrow_exception(failure);
  if (const std::string reason = window_->reason(); !reason.empty()) throw Error(reason);
  if (!bad_line_.empty()) throw Error(bad_line_);
}

// Has all lines answered that are not done, up to the end or, with --strict, the first bad one.
void BatchRun::feed() {
  LineReader reader(input_.fd(), input_.name(), kMaxBatchLineBytes);
  uint64_t position = 0;
  uint64_t n_lines = 0;
  while (const auto line = reader.next()) {
    const uint64_t bytes = reader.position() - std::exchange(position, reader.position());
    n_lines = line->number;
    if (!line->too_long && is_blank(line->text)) {
      done_.check_blank(line->number);
      bytes_passed_ += bytes;
      continue;
    }
    if (!format_) format_ = recognize_batch_format(line->text);
    if (!feed_line(*line, bytes)) return;
  }
  done_.check_end(n_lines);
}

// False when no more lines are wanted.
bool BatchRun::feed_line(const LineReader::Line& line, uint64_t bytes) {
  BatchLine parsed;
  if (line.too_long) {
    parsed.error = "the line is longer than 64 MB; split it";
  } else {
    parsed = parse_batch_line(line.text, line.number, *format_, defaults_);
  }
  if (done_.contains(line.number)) {
    done_.check_id(line.number, parsed.id);
    ++done_before_;
    bytes_passed_ += bytes;
    return true;
  }
  const Request& request = parsed.request;
  if (!window_->add({.head = {.id = std::move(parsed.id),
                              .line = line.number,
                              .n = request.n,
                              .logprobs = request.logprobs >= 0},
                     .bytes = bytes})) {
    return false;
  }
  if (parsed.error.empty()) parsed.error = submit(line.number, std::move(parsed.request));
  if (parsed.error.empty()) return true;
  if (strict_) {
    window_->withdraw(line.number);
    bad_line_ = input_.name() + ": line " + std::to_string(line.number) + ": " + parsed.error;
    return false;
  }
  window_->finish(line.number, std::move(parsed.error));
  return true;
}

// Returns what is wrong with the request, or nothing.
std::string BatchRun::submit(uint64_t line, Request request) {
  // An error is the device's, not the line's: it is no result, and ends the run.
  const auto on_finish = [window = window_, line](Result result, const std::string& error) {
    if (error.empty()) {
      window->finish(line, std::move(result));
    } else {
      window->abandon("line " + std::to_string(line) + " could not be answered: " + error);
    }
  };
  try {
    engine_.submit(std::move(request), {.on_delta = {}, .on_finish = on_finish});
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// The writer's thread.
void BatchRun::write_results() {
  try {
    while (!window_->exhausted()) {
      if (const auto item = window_->take(kWriterPatience)) write(*item);
      if (progress_.due()) progress_.draw(counts_now());
    }
  } catch (...) {
    window_->abandon();
    throw;
  }
}

void BatchRun::write(const BatchItem& item) {
  if (item.result) {
    output_.write_line(result_record(item.head, *item.result,
                                     [this](int32_t token) { return engine_.token_text(token); }));
  } else {
    output_.write_line(error_record(item.head, item.error));
    ++counts_.failed;
  }
  ++counts_.lines;
  counts_.bytes += item.bytes;
}

BatchCounts BatchRun::counts_now() const {
  BatchCounts counts = counts_;
  counts.done_before = done_before_;
  counts.bytes_passed = bytes_passed_;
  counts.tokens = static_cast<uint64_t>(engine_.stats().generated_tokens);
  return counts;
}

}  // namespace

void batch_command(const BatchOptions& options, const Request& defaults,
                   const std::function<Engine()>& load) {
  const Input input(options.input);
  BatchOutput output(options.output, options.resume);
  DoneLines done;
  if (options.resume) {
    done = DoneLines(output.fd(), output.name());
    output.truncate(done.whole_bytes());
  }
  Engine engine = load();
  BatchRun(options, defaults, input, output, done, engine).run();
}

}  // namespace faststream
