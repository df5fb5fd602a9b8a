#include "cli/chat/edited_line.h"

#include <algorithm>
#include <charconv>
#include <cwchar>

namespace faststream::cli {
namespace {

constexpr int kTab = 8;
constexpr std::string_view kReportBegin = "\x1b[";

int shown_columns(wchar_t character) {
  constexpr int kAsNumber = 8;  // \U+200b
  const int width = wcwidth(character);
  if (width >= 0) return width;
  return character < 0x20 || character == 0x7F ? 2 : kAsNumber;
}

bool is_report_digit(char c) { return ('0' <= c && c <= '9') || c == ';'; }

}  // namespace

CursorPlace place_after(std::wstring_view text, int columns) {
  CursorPlace place;
  const auto next_row = [&] { place = {.row = place.row + 1, .column = 0}; };
  for (const wchar_t character : text) {
    if (character == L'\n') {
      next_row();
      continue;
    }
    const int width = character == L'\t' ? kTab - place.column % kTab
                                         : std::min(shown_columns(character), columns);
    if (place.column + width > columns && character != L'\t') next_row();
    place.column += width;
    if (place.column >= columns) next_row();
  }
  return place;
}

int rows_above_cursor(std::wstring_view text, int before, int now, int column) {
  const CursorPlace anew = place_after(text, now);
  const CursorPlace cut = place_after(text, before);
  const bool may_be_anew = anew.column == column;
  const bool may_be_cut = std::min(cut.column, now - 1) == column;
  if (may_be_anew && may_be_cut) return std::min(anew.row, cut.row);
  return may_be_anew ? anew.row : may_be_cut ? cut.row : 0;
}

std::optional<int> take_cursor_report(std::string& sent) {
  for (size_t at = sent.find(kReportBegin); at != std::string::npos;
       at = sent.find(kReportBegin, at + 1)) {
    const char* first = sent.data() + at + kReportBegin.size();
    const char* last = sent.data() + sent.size();
    const char* end = std::find_if_not(first, last, is_report_digit);
    const char* column = std::find(first, end, ';');
    if (end == last || *end != 'R' || column == first || column == end) continue;
    int number = 0;
    const auto [rest, error] = std::from_chars(column + 1, end, number);
    if (error != std::errc() || rest != end || number < 1) continue;
    sent.erase(at, static_cast<size_t>(end + 1 - (sent.data() + at)));
    return number - 1;
  }
  return std::nullopt;
}

bool begins_cursor_report(std::string_view sent) {
  if (sent.size() < kReportBegin.size()) return !sent.empty() && kReportBegin.starts_with(sent);
  return sent.starts_with(kReportBegin) &&
         std::all_of(sent.begin() + kReportBegin.size(), sent.end(), is_report_digit);
}

}  // namespace faststream::cli
