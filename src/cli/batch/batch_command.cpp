// This thread reads lines, a few submit their requests, the engine's answers them, and another
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
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/batch/batch_line.h"
#include "cli/batch/batch_memory.h"
#include "cli/batch/batch_output.h"
#include "cli/batch/batch_part.h"
#include "cli/batch/batch_progress.h"
#include "cli/batch/batch_reader.h"
#include "cli/batch/batch_resume.h"
#include "cli/batch/batch_submitters.h"
#include "cli/batch/batch_window.h"
#include "cli/engine_stats.h"
#include "program/interrupt.h"
#include "program/open_file.h"
#include "program/output.h"
#include "support/error.h"
#include "support/machine.h"
#include "support/random_seed.h"

namespace faststream::cli {
namespace {

constexpr std::chrono::milliseconds kWriterPatience(100);
constexpr int kMaxSubmitters = 8;  // more than tokenize as fast as one thread reads
constexpr const char* kResumeAdvice = "the same command with --resume goes on from here";

// Lines in work: enough that slots stay busy while, in ordered mode, a long answer holds back the
// short ones after it.
WindowLimits window_limits(int32_t slots) {
  const auto n = static_cast<size_t>(slots);
  return {.lines = std::clamp<size_t>(32 * n, 256, 16384),
          .bytes = size_t{256} << 20,
          .busy_samples = 2 * n};
}

bool has_tools(const Request& request) {
  const auto* conversation = std::get_if<ChatPrompt>(&request.prompt);
  return conversation != nullptr && !conversation->tools.empty();
}

std::string hash_of(const LineReader::Line& line) {
  return line_hash(line.too_long ? "" : line.text);
}

BatchLine parse_line(const LineReader::Line& line, BatchFormat format, const Request& defaults) {
  if (line.too_long) {
    BatchLine none;
    none.id = line.number;
    none.error = "the line is longer than 64 MB, or than memory allows; split it";
    return none;
  }
  return parse_batch_line(line.text, line.number, format, defaults);
}

// Throws Error when the result of the line, which is there, is of another one. `asked`: with a seed
// where the command line gives one.
void check_done(const DoneLines& done, const LineReader::Line& line, BatchFormat format,
                const Request& asked) {
  Request defaults = asked;
  const bool seed_is_given = asked.sampling.seed.has_value();
  if (!seed_is_given) defaults.sampling.seed = 0;
  const BatchLine parsed = parse_line(line, format, defaults);
  done.check_same(line.number, parsed.id, hash_of(line),
                  seed_is_given ? parsed.request.sampling.seed : std::nullopt);
}

// The input, open, and the part of it that is to be answered.
class InputLines {
 public:
  InputLines(const std::string& path, const BatchPart& part)
      : name_(path == "-" ? "standard input" : path),
        fd_(path == "-" ? STDIN_FILENO : open_file(path, "--batch " + path, O_RDONLY)) {
    struct stat status = {};
    if (fstat(fd_.number, &status) != 0) {
      throw Error("--batch " + path + " cannot be opened: " + std::strerror(errno));
    }
    if (S_ISDIR(status.st_mode))
      throw Error(name_ + " is a folder; give --batch a file of prompts");
    if (S_ISREG(status.st_mode)) size_ = static_cast<uint64_t>(status.st_size);
    if (part.count == 1) return;
    if (!S_ISREG(status.st_mode)) {
      throw UsageError("--part is of a file, which " + name_ +
                       " is not; give --batch a file, or each process its own lines");
    }
    const off_t offset = lseek(fd(), 0, SEEK_CUR);
    const uint64_t size = size_ - std::min(size_, static_cast<uint64_t>(offset));
    begin_ = part.begin(size);
    end_ = part.end(size);
    size_ = end_ - begin_;
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int fd() const { return fd_.number; }
  // Bytes of the part, if it is a regular file; else 0.
  [[nodiscard]] uint64_t size() const { return size_; }
  // Whether a line belongs to the part that begins there, in bytes from where the input is read.
  [[nodiscard]] bool has_line_at(uint64_t begin) const { return begin >= begin_ && begin < end_; }

  // What can be known before the model is loaded. Throws Error when a file, from where it is read,
  // is not of a format that a batch can have, or is another one than `done` answers: true when it
  // is not. A pipe's text is looked at when it comes.
  [[nodiscard]] bool check(const DoneLines& done, const Request& asked) const {
    const off_t begin = lseek(fd(), 0, SEEK_CUR);
    if (size_ == 0 || begin < 0) return false;
    LineReader reader(fd(), name_, kMaxBatchLineBytes);
    std::optional<BatchFormat> format;
    uint64_t n_lines = 0;
    while (!format || n_lines < done.last_line()) {
      auto line = reader.next();
      if (!line) {
        done.check_end(n_lines);
        break;
      }
      n_lines = line->number;
      line->text = without_byte_order_mark(line->text, line->number);
      if (!line->too_long && is_blank(line->text)) {
        done.check_blank(line->number);
        continue;
      }
      if (!format) format = recognize_batch_format(line->text, name_);
      if (!has_line_at(line->begin)) done.check_other_part(line->number);
      if (done.contains(line->number)) check_done(done, *line, *format, asked);
    }
    lseek(fd(), begin, SEEK_SET);
    return true;
  }

 private:
  struct Descriptor {
    explicit Descriptor(int open) : number(open) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
      if (number != STDIN_FILENO) close(number);
    }
    int number;
  };

  std::string name_;
  Descriptor fd_;
  uint64_t size_ = 0;
  uint64_t begin_ = 0;
  uint64_t end_ = UINT64_MAX;
};

class BatchRun {
 public:
  // `done_is_checked`: against the input.
  BatchRun(const BatchOptions& options, const Request& asked, const InputLines& input,
           BatchOutput& output, const DoneLines& done, bool done_is_checked, Engine& engine)
      : strict_(options.strict),
        has_stats_(options.stats),
        asked_(asked),
        defaults_(asked),
        input_(input),
        output_(output),
        done_(done),
        done_is_checked_(done_is_checked),
        engine_(engine),
        window_(
            std::make_shared<BatchWindow>(!options.unordered, window_limits(engine.info().slots))),
        progress_(options.output.empty() && isatty(STDOUT_FILENO) == 1),
        submitters_(std::min(available_threads(), kMaxSubmitters),
                    [this](uint64_t line, Request request) { submit(line, std::move(request)); }) {
    if (!defaults_.sampling.seed) defaults_.sampling.seed = random_seed();
    counts_.bytes_total = input.size();
  }

  void run();

 private:
  void feed();
  bool feed_line(const LineReader::Line& line, uint64_t bytes);
  void warn_of_unused(const Request& request);
  void tell_idle(uint64_t line, const std::vector<std::string>& idle);
  void submit(uint64_t line, Request request);
  std::string error_of_submitting(uint64_t line, Request request);
  void write_results();
  void write(const BatchItem& item);
  [[nodiscard]] bool can_resume() const;
  [[nodiscard]] Error with_advice(const std::string& cause) const;
  [[nodiscard]] BatchCounts counts_now() const;

  const bool strict_;
  const bool has_stats_;
  const Request asked_;  // without a seed where none is given
  Request defaults_;     // with one
  const InputLines& input_;
  BatchOutput& output_;
  const DoneLines& done_;
  const bool done_is_checked_;
  Engine& engine_;
  std::shared_ptr<BatchWindow> window_;  // the engine's callbacks may outlive the run
  std::optional<BatchFormat> format_;
  bool warned_ = false;
  std::set<std::string> told_;  // that it has no effect
  std::string bad_line_;        // with --strict, what is wrong with the line that ended the run
  std::atomic<uint64_t> done_before_ = 0;
  std::atomic<uint64_t> bytes_passed_ = 0;
  BatchCounts counts_;  // the writer's
  BatchProgress progress_;
  BatchSubmitters submitters_;  // last: they use all others
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
  const BatchCounts counts = counts_now();
  if (!failure || interrupted() || counts.lines > 0) {
    std::fprintf(stderr, "%s (seed %llu)\n",
                 batch_summary(counts, progress_.seconds(), failure != nullptr).c_str(),
                 static_cast<unsigned long long>(*defaults_.sampling.seed));
  }
  if (has_stats_) {
    print_device(engine_.info());
    print_steps(engine_.stats());
    print_memory(engine_.info());
  }
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const Interrupted&) {
    if (can_resume()) print_notice(std::string(kResumeAdvice) + '\n');
    throw;
  } catch (const std::bad_alloc&) {
    throw with_advice("out of memory; shorter lines or fewer --slots need less");
  }
  if (const std::string reason = window_->reason(); !reason.empty()) throw with_advice(reason);
  if (!bad_line_.empty()) throw Error(bad_line_);
}

// Whether the output has something to go on from.
bool BatchRun::can_resume() const { return output_.is_file() && counts_.lines + done_before_ > 0; }

// Of what ended the run and is no fault of its lines.
Error BatchRun::with_advice(const std::string& cause) const {
  return Error(can_resume() ? cause + "; " + kResumeAdvice : cause);
}

// Has all lines answered that are not done, up to the end or, with --strict, the first bad one.
void BatchRun::feed() {
  LineReader reader(input_.fd(), input_.name(), kMaxBatchLineBytes);
  uint64_t n_lines = 0;
  while (auto line = reader.next()) {
    const bool is_ours = input_.has_line_at(line->begin);
    const uint64_t bytes = reader.position() - line->begin;
    n_lines = line->number;
    line->text = without_byte_order_mark(line->text, line->number);
    if (!line->too_long && is_blank(line->text)) {
      done_.check_blank(line->number);
      if (is_ours) bytes_passed_ += bytes;
      continue;
    }
    if (!format_) format_ = recognize_batch_format(line->text, input_.name());
    if (!is_ours) {
      done_.check_other_part(line->number);
      continue;
    }
    if (!feed_line(*line, bytes)) return;
  }
  done_.check_end(n_lines);
}

// False when no more lines are wanted.
bool BatchRun::feed_line(const LineReader::Line& line, uint64_t bytes) {
  if (done_.contains(line.number)) {
    if (!done_is_checked_) check_done(done_, line, *format_, asked_);
    ++done_before_;
    bytes_passed_ += bytes;
    return true;
  }
  BatchLine parsed = parse_line(line, *format_, defaults_);
  const Request& request = parsed.request;
  if (!window_->add({.head = {.id = std::move(parsed.id),
                              .line = line.number,
                              .line_hash = hash_of(line),
                              .n = request.n,
                              .scores = request.search.beams > 1,
                              .logprobs = request.logprobs >= 0,
                              .has_tools = has_tools(request),
                              .show_special = request.show_special},
                     .bytes = bytes,
                     .samples = samples_of(request),
                     .memory = bytes_in_work(request, engine_.info().context)})) {
    return false;
  }
  warn_of_unused(request);
  tell_idle(line.number, parsed.idle);
  if (!strict_) {
    if (parsed.error.empty()) {
      submitters_.add(line.number, std::move(parsed.request));
    } else {
      window_->finish(line.number, std::move(parsed.error));
    }
    return true;
  }
  if (parsed.error.empty()) {  // at once: the next line is read only after a good one
    parsed.error = error_of_submitting(line.number, std::move(parsed.request));
  }
  if (parsed.error.empty()) return true;
  window_->withdraw(line.number);
  bad_line_ = input_.name() + ": line " + std::to_string(line.number) + ": " + parsed.error;
  return false;
}

// Once a run.
void BatchRun::warn_of_unused(const Request& request) {
  const auto* conversation = std::get_if<ChatPrompt>(&request.prompt);
  if (conversation == nullptr || warned_ || !engine_.can_chat()) return;
  if (conversation->documents.empty() || engine_.chat_template_mentions("documents")) return;
  print_notice(
      "the chat template does not look at documents, which some lines have: the model will not see "
      "them\n");
  warned_ = true;
}

// Each thing once a run.
void BatchRun::tell_idle(uint64_t line, const std::vector<std::string>& idle) {
  for (const std::string& what : idle) {
    if (!told_.insert(what).second) continue;
    print_notice("line " + std::to_string(line) + ": " + what + "; this is told once\n");
  }
}

void BatchRun::submit(uint64_t line, Request request) {
  try {
    std::string error = error_of_submitting(line, std::move(request));
    if (!error.empty()) window_->finish(line, std::move(error));
  } catch (const Interrupted&) {  // as the thread is soon that waits for this line
  } catch (const std::exception& error) {
    window_->abandon("line " + std::to_string(line) + " could not be submitted: " + error.what());
  }
}

// What is wrong with the request, or nothing.
std::string BatchRun::error_of_submitting(uint64_t line, Request request) {
  // An error is the device's, not the line's: it is no result, and ends the run.
  const auto on_finish = [window = window_, line](Result result, const std::string& error) {
    if (error.empty()) {
      window->finish(line, std::move(result));
    } else {
      window->abandon("line " + std::to_string(line) + " could not be answered: " + error);
    }
  };
  return line_error(
      [&] { engine_.submit(std::move(request), {.on_delta = {}, .on_finish = on_finish}); });
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
  const auto text_of = [this](std::span<const int32_t> tokens) {
    return engine_.detokenize(tokens);
  };
  std::string record;
  std::string error = item.error;
  if (item.result) {
    error = line_error([&] { record = result_record(item.head, *item.result, text_of); });
  }
  if (!error.empty()) {
    record = error_record(item.head, error);
    ++counts_.failed;
  }
  try {
    output_.write_line(std::move(record));
  } catch (const Error& failure) {
    throw with_advice(failure.what());
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

// Throws Error where what is in the output was begun with something else.
void check_origin(const BatchOutput& output, const BatchOrigin& now) {
  BatchOrigin former;
  if (BatchOrigin::from_json(output.note(), former)) {
    return check_same_origin(former, now, output.name());
  }
  print_notice(output.name() +
               " does not tell which model and options it was begun with (copies and some file "
               "systems do not): be sure that they are these\n");
}

}  // namespace

void batch_command(const BatchOptions& options, const std::function<BatchOrigin()>& find_origin,
                   const Request& asked, const std::function<LoadedEngine()>& load) {
  const InputLines input(options.input, options.part);
  BatchOutput output(options.output, options.resume);
  output.check_is_not(input.fd(), input.name());
  DoneLines done;
  if (options.resume) done = DoneLines(output.fd(), output.name());
  const bool done_is_checked = input.check(done, asked);
  const BatchOrigin origin = find_origin();
  if (done.size() > 0) check_origin(output, origin);
  LoadedEngine model = load();
  if (options.resume) output.truncate(done.whole_bytes());
  if (done.size() == 0) output.keep_note(origin.to_json());
  BatchRun(options, model.prototype, input, output, done, done_is_checked, model.engine).run();
}

}  // namespace faststream::cli
