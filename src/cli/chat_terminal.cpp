#include "cli/chat_terminal.h"

#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "cli/interrupt.h"
#include "support/error.h"
#include "text/utf8.h"

namespace faststream {
namespace {

namespace fs = std::filesystem;

constexpr int kHistoryLines = 1000;

// What terminals send around a pasted text once they are asked to (bracketed paste).
constexpr std::string_view kAskForMarks = "\x1b[?2004h";
constexpr std::string_view kStopMarks = "\x1b[?2004l";
constexpr std::string_view kPasteEnd = "\x1b[201~";

volatile std::sig_atomic_t continued = 0;  // after Ctrl-Z and fg

// The editor needs to know that bytes are UTF-8, and how wide characters are.
void use_utf8() {
  const char* set = std::setlocale(LC_CTYPE, "");
  if (set == nullptr || std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) {
    (void)std::setlocale(LC_CTYPE, "C.UTF-8");
  }
}

void tell_terminal(std::string_view sequence) {
  std::fwrite(sequence.data(), 1, sequence.size(), stdout);
  std::fflush(stdout);
}

wchar_t decode(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return static_cast<wchar_t>(byte(0));
  auto code = static_cast<uint32_t>(byte(0) & (0x7FU >> character.size()));
  for (size_t i = 1; i < character.size(); ++i) code = code << 6U | (byte(i) & 0x3FU);
  return static_cast<wchar_t>(code);
}

}  // namespace

struct TerminalLines::Impl {
  using Editor = std::unique_ptr<EditLine, void (*)(EditLine*)>;
  using Lines = std::unique_ptr<History, void (*)(History*)>;

  fs::path history_path;
  Lines history{history_init(), &history_end};
  Editor editor{nullptr, &el_end};
  bool continues = false;
  bool cancelled = false;  // Ctrl-C ended the line
  winsize size = {};

  static Impl& of(EditLine* editor) {
    void* data = nullptr;
    el_get(editor, EL_CLIENTDATA, &data);
    return *static_cast<Impl*>(data);
  }

  void load_history() {
    HistEvent event = {};
    history(this->history.get(), &event, H_SETSIZE, kHistoryLines);
  }

  int read_byte(char& byte);
  int read_character(wchar_t& character);
  unsigned char paste();
  void redraw_if_needed();
};
}
