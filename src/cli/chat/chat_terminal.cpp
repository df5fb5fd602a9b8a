#include "cli/chat/chat_terminal.h"

#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "cli/chat/edited_line.h"
#include "cli/terminal_text.h"
#include "program/interrupt.h"
#include "program/output.h"
#include "support/error.h"
#include "support/io.h"
#include "support/utf8.h"

namespace faststream::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kHistoryLines = 1000;

// What terminals send around a pasted text once they are asked to (bracketed paste).
constexpr std::string_view kAskForMarks = "\x1b[?2004h";
constexpr std::string_view kStopMarks = "\x1b[?2004l";
constexpr std::string_view kPasteEnd = "\x1b[201~";

// What the user types is cyan, from the prompt on. The editor takes what is between two escapes for
// no columns.
constexpr char kPromptEscape = '\1';
constexpr const char* kColour = "\1\x1b[36m\1";
constexpr std::string_view kNoColour = "\x1b[0m";

constexpr std::string_view kPromptBeforeLine = "> ";
constexpr std::string_view kPromptBeforeMore = "... ";  // of a line that goes on with the last one

volatile std::sig_atomic_t continued = 0;  // after Ctrl-Z and fg
int changes = -1;                          // an event descriptor: they end a wait for keys

// For handlers of signals.
void tell_of_change() {
  const int error = errno;
  const uint64_t one = 1;
  static_cast<void>(!write(changes, &one, sizeof one));
  errno = error;
}

void tell_terminal(std::string_view sequence) {
  std::fwrite(sequence.data(), 1, sequence.size(), stdout);
  std::fflush(stdout);
}

// Whether the terminal's description, if there is one, says how attributes of text end.
bool knows_attributes(EditLine* editor) {
  const char* end = nullptr;
  return el_get(editor, EL_GETTC, "me", &end) == 0 && end != nullptr && *end != '\0';
}

// Whether an open file, read from its beginning, is a history that the editor wrote, or empty.
bool is_history(int fd) {
  constexpr std::string_view kFirstLine = "_HiStOrY_V2_\n";
  struct stat status = {};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  std::array<char, kFirstLine.size()> begin = {};
  const ssize_t n = read_at(fd, 0, std::as_writable_bytes(std::span(begin)));
  return status.st_size == 0 || (n > 0 && std::string_view(begin.data(), n) == kFirstLine);
}

// A pasted text as a message may have it: the editor would show other control characters, and a
// terminal obey them.
std::string clean_paste(std::string_view pasted) {
  std::string text;
  for (size_t i = 0; i < pasted.size(); ++i) {
    const auto byte = static_cast<unsigned char>(pasted[i]);
    if (byte == '\r') {
      if (i + 1 == pasted.size() || pasted[i + 1] != '\n') text += '\n';
    } else if ((byte >= 0x20 && byte != 0x7F) || byte == '\n' || byte == '\t') {
      text += pasted[i];
    }
  }
  return valid_utf8(std::move(text));
}

}  // namespace

struct TerminalLines::Impl {
  explicit Impl(fs::path history_file);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  // The editor calls back with itself as the only context.
  static Impl& of(EditLine* editor) {
    void* data = nullptr;
    el_get(editor, EL_CLIENTDATA, &data);
    return *static_cast<Impl*>(data);
  }

  int read_byte(char& byte);
  bool has_key();
  int read_character(wchar_t& character);
  unsigned char paste();
  void redraw_after_changes();
  [[nodiscard]] std::string_view prompt_text() const {
    return continues ? kPromptBeforeMore : kPromptBeforeLine;
  }
  std::optional<int> ask_for_column();
  int rows_above(int columns_before);
  void load_history();
  void save_history() const;

  fs::path history_path;
  bool remembered = false;  // something new
  std::unique_ptr<History, void (*)(History*)> history{history_init(), &history_end};
  std::unique_ptr<EditLine, void (*)(EditLine*)> editor{nullptr, &el_end};
  std::string prompt;  // what the editor shows before the line, for as long as it does
  bool marks_pastes = false;
  bool colours = false;
  bool continues = false;  // the line to edit goes on with the last one
  bool cancelled = false;  // Ctrl-C ended it
  winsize size = {};
  std::string typed;   // and not yet read by the editor
  int unanswered = 0;  // questions for the cursor's place
};

TerminalLines::Impl::Impl(fs::path history_file) : history_path(std::move(history_file)) {
  use_utf8();  // the editor needs to know how wide characters are
  editor.reset(el_init("faststream-run", stdin, stdout, stderr));
  if (!editor || !history) throw Error("the terminal cannot be set up for editing lines");
  EditLine* el = editor.get();
  el_set(el, EL_CLIENTDATA, this);
  el_set(el, EL_EDITOR, "emacs");
  el_set(
      el, EL_PROMPT_ESC,
      +[](EditLine* self) {
        Impl& chat = of(self);
        chat.prompt = (chat.colours ? kColour : "") + std::string(chat.prompt_text());
        return chat.prompt.data();
      },
      kPromptEscape);
  el_set(
      el, EL_GETCFN,
      +[](EditLine* self, wchar_t* character) { return of(self).read_character(*character); });
  el_set(el, EL_HIST, &::history, history.get());
  el_set(el, EL_SETTY, "-d", "-icrnl", "-inlcr", nullptr);  // paste() sees \r\n as it is

  marks_pastes = obeys_sequences();
  const char* no_colour = std::getenv("NO_COLOR");  // https://no-color.org
  colours =
      obeys_sequences() && knows_attributes(el) && (no_colour == nullptr || *no_colour == '\0');
  el_wset(  // el_set would copy the texts and never free them
      el, EL_ADDFN, L"faststream-paste", L"Insert a pasted text",
      +[](EditLine* self, int /*key*/) { return of(self).paste(); });
  el_set(el, EL_BIND, "\\e[200~", "faststream-paste", nullptr);
  el_source(el, nullptr);  // ~/.editrc

  HistEvent event = {};
  ::history(history.get(), &event, H_SETSIZE, kHistoryLines);
  ::history(history.get(), &event, H_SETUNIQUE, 1);
  load_history();

  if (changes < 0) changes = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (changes < 0) throw Error("no descriptor for what changes a terminal; close some files");
  struct sigaction action = {};
  action.sa_handler = [](int) {
    continued = 1;
    tell_of_change();
  };
  action.sa_flags = SA_RESTART;
  sigaction(SIGCONT, &action, nullptr);
  action.sa_handler = [](int) { tell_of_change(); };
  sigaction(SIGWINCH, &action, nullptr);
}

TerminalLines::Impl::~Impl() { save_history(); }

// 1: there is one; 0: the terminal has gone, or the user; -1: Ctrl-C or SIGTERM.
int TerminalLines::Impl::read_byte(char& byte) {
  for (;;) {
    if (interrupted()) return -1;
    uint64_t told = 0;  // before looking, so that none is missed
    static_cast<void>(!read(changes, &told, sizeof told));
    redraw_after_changes();
    if (!has_key()) {
      std::array<pollfd, 3> waiting = {
          {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
           {.fd = interrupt_descriptor(), .events = POLLIN, .revents = 0},
           {.fd = changes, .events = POLLIN, .revents = 0}}};
      if (poll(waiting.data(), waiting.size(), -1) < 0 || waiting[0].revents == 0) continue;
      char next = 0;
      const ssize_t n = read(STDIN_FILENO, &next, 1);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (n != 1) return 0;
      typed += next;
    }
    if (!has_key()) continue;
    byte = typed.front();
    typed.erase(0, 1);
    return 1;
  }
}

// Whether the first byte that was typed is a key's. Answers that the terminal gives too late are
// dropped; a byte that may begin one waits for the next, as the escape key does in the editor.
bool TerminalLines::Impl::has_key() {
  while (unanswered > 0 && take_cursor_report(typed)) --unanswered;
  return !typed.empty() && (unanswered == 0 || !begins_cursor_report(typed));
}

// What the editor reads with. After Ctrl-C it gets a return, which ends the line wherever it is.
int TerminalLines::Impl::read_character(wchar_t& character) {
  std::string bytes;
  int length = -1;  // not yet decided
  while (length < 0) {
    char byte = 0;
    const int outcome = read_byte(byte);
    if (outcome == 0) return 0;
    if (outcome < 0) {
      cancelled = true;
      character = L'\r';
      return 1;
    }
    bytes += byte;
    length = utf8_character(bytes);
  }
  if (length == 0 && bytes.size() > 1) {  // the last byte, such as a return, may begin another
    typed.insert(0, 1, bytes.back());
  }
  character = static_cast<wchar_t>(
      code_point(length == 0 ? kReplacementCharacter : std::string_view(bytes)));
  return 1;
}

unsigned char TerminalLines::Impl::paste() {
  constexpr size_t kMaxBytes = 16 << 20;
  std::string pasted;
  while (!pasted.ends_with(kPasteEnd)) {
    char byte = 0;
    if (read_byte(byte) != 1) return CC_REFRESH;  // the next read tells the editor
    if (pasted.size() == kMaxBytes) pasted.erase(0, kMaxBytes / 2);
    pasted += byte;
  }
  pasted.resize(pasted.size() - kPasteEnd.size());
  return el_insertstr(editor.get(), clean_paste(pasted).c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

// What the editor does not see itself: another size, or a terminal that the shell had meanwhile.
void TerminalLines::Impl::redraw_after_changes() {
  winsize now = {};
  const bool resized = ioctl(STDOUT_FILENO, TIOCGWINSZ, &now) == 0 && size.ws_col != 0 &&
                       (now.ws_col != size.ws_col || now.ws_row != size.ws_row);
  const int columns_before = std::exchange(size, now).ws_col;
  if (!resized && continued == 0) return;
  const bool was_continued = continued != 0;
  if (was_continued) {
    continued = 0;
    el_wset(editor.get(), EL_PREP_TERM, 0);
    el_wset(editor.get(), EL_PREP_TERM, 1);
    if (marks_pastes) tell_terminal(kAskForMarks);
  }
  // The line is drawn anew, over the old one; in a terminal that the shell had, where it is.
  const int rows = resized && !was_continued ? rows_above(columns_before) : 0;
  if (rows > 0) tell_terminal("\x1b[" + std::to_string(rows) + 'A');
  tell_terminal("\r\x1b[J");
  el_resize(editor.get());
  el_wset(editor.get(), EL_REFRESH);
}

// In which the terminal says that its cursor is, from 0, if it does. One that has left a few
// questions without an answer is asked no more.
std::optional<int> TerminalLines::Impl::ask_for_column() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPatience(500);
  constexpr size_t kMostTyped = 1 << 16;  // meanwhile
  constexpr int kMostUnanswered = 3;
  if (unanswered == kMostUnanswered) return std::nullopt;
  tell_terminal("\x1b[6n");
  ++unanswered;
  std::optional<int> column;  // the first answers may be late ones, to earlier questions
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (!interrupted() && typed.size() < kMostTyped) {
    if (const std::optional<int> said = take_cursor_report(typed)) {
      column = said;
      if (--unanswered == 0) break;
      continue;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) break;
    pollfd waiting = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, static_cast<int>(left.count())) <= 0) continue;
    std::array<char, 256> bytes = {};
    const ssize_t n = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) break;
    if (n > 0) typed.append(bytes.data(), static_cast<size_t>(n));
  }
  return column;
}

// Rows of the edited line above the cursor in a terminal that had so many columns before.
int TerminalLines::Impl::rows_above(int columns_before) {
  if (!obeys_sequences() || size.ws_col < 2 || columns_before < 2) return 0;
  const std::optional<int> column = ask_for_column();
  if (!column) return 0;
  const LineInfoW* line = el_wline(editor.get());
  std::wstring text(prompt_text().begin(), prompt_text().end());
  text.append(line->buffer, line->cursor);
  return rows_above_cursor(text, columns_before, size.ws_col, *column);
}

// A file that is no history stays as it is.
void TerminalLines::Impl::load_history() {
  if (history_path.empty()) return;
  const int fd = open(history_path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return;
  const bool sound = is_history(fd);
  close(fd);
  if (sound) {
    HistEvent event = {};
    ::history(history.get(), &event, H_LOAD, history_path.c_str());
  } else {
    print_notice(history_path.string() +
                 " is no history of a chat: it is left alone, and lines are not kept\n");
    history_path.clear();
  }
}

void TerminalLines::Impl::save_history() const {
  if (history_path.empty() || !remembered) return;
  std::error_code ignored;
  fs::create_directories(history_path.parent_path(), ignored);
  const int fd = open(history_path.c_str(), O_RDWR | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const bool writable = is_history(fd) && fchmod(fd, 0600) == 0 && ftruncate(fd, 0) == 0;
  std::FILE* file = writable ? fdopen(fd, "w") : nullptr;
  if (file == nullptr) {
    close(fd);
    return;
  }
  HistEvent event = {};
  ::history(history.get(), &event, H_SAVE_FP, file);
  std::fclose(file);
}

std::filesystem::path chat_history_path() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder;
  if (state != nullptr && fs::path(state).is_absolute()) {  // as the XDG specification has it
    folder = state;
  } else if (home != nullptr && *home != '\0') {
    folder = fs::path(home) / ".local" / "state";
  } else {
    return {};
  }
  return folder / "faststream" / "history";
}

TerminalLines::TerminalLines(fs::path history)
    : impl_(std::make_unique<Impl>(std::move(history))) {}

TerminalLines::~TerminalLines() = default;

LineSource::Event TerminalLines::next(bool continues, std::string& line) {
  Impl& self = *impl_;
  self.continues = continues;
  self.cancelled = false;
  continued = 0;
  if (self.marks_pastes) tell_terminal(kAskForMarks);
  int count = 0;
  const char* text = el_gets(self.editor.get(), &count);
  if (self.marks_pastes) tell_terminal(kStopMarks);
  if (self.colours) tell_terminal(kNoColour);
  if (self.cancelled) return Event::interrupted;
  if (text == nullptr || count <= 0) {
    tell_terminal("\n");  // the shell's prompt begins a line
    return Event::end;
  }
  line = text;
  while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
  return Event::line;
}

void TerminalLines::remember(const std::string& text) {
  HistEvent event = {};
  ::history(impl_->history.get(), &event, H_ENTER, text.c_str());
  impl_->remembered = true;
}

}  // namespace faststream::cli
