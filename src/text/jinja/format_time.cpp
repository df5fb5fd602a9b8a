#include <array>
#include <cstdio>

#include "support/printable.h"
#include "text/jinja/failure.h"
#include "text/jinja/library.h"

namespace faststream::jinja {
namespace {

constexpr std::array<std::string_view, 7> kDays = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                   "Thursday", "Friday", "Saturday"};
constexpr std::array<std::string_view, 12> kMonths = {
    "January", "February", "March",     "April",   "May",      "June",
    "July",    "August",   "September", "October", "November", "December"};

bool is_leap(int year) { return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0; }

// 1 to 366.
int day_of_year(const LocalTime& time) {
  constexpr std::array<int, 12> kBefore = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
  return kBefore[static_cast<size_t>(time.month - 1)] + time.day +
         (time.month > 2 && is_leap(time.year) ? 1 : 0);
}

// 0 is Sunday (Sakamoto's method).
int weekday(const LocalTime& time) {
  constexpr std::array<int, 12> kShift = {0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4};
  const int year = time.year - (time.month < 3 ? 1 : 0);
  return (year + year / 4 - year / 100 + year / 400 + kShift[static_cast<size_t>(time.month - 1)] +
          time.day) %
         7;
}

std::string number(int value, int width, bool zeros = true) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), zeros ? "%0*d" : "%*d", width, value);
  return text.data();
}

std::string directive(const LocalTime& time, char name) {
  const std::string_view day = kDays[static_cast<size_t>(weekday(time))];
  const std::string_view month = kMonths[static_cast<size_t>(time.month - 1)];
  const int hour12 = time.hour % 12 == 0 ? 12 : time.hour % 12;
  switch (name) {
    case 'a':
      return std::string(day.substr(0, 3));
    case 'A':
      return std::string(day);
    case 'b':
    case 'h':
      return std::string(month.substr(0, 3));
    case 'B':
      return std::string(month);
    case 'c':
      return format_time(time, "%a %b %e %H:%M:%S %Y");
    case 'C':
      return number(time.year / 100, 2);
    case 'd':
      return number(time.day, 2);
    case 'D':
    case 'x':
      return format_time(time, "%m/%d/%y");
    case 'e':
      return number(time.day, 2, false);
    case 'f':
      return "000000";
    case 'F':
      return format_time(time, "%Y-%m-%d");
    case 'H':
      return number(time.hour, 2);
    case 'I':
      return number(hour12, 2);
    case 'j':
      return number(day_of_year(time), 3);
    case 'k':
      return number(time.hour, 2, false);
    case 'l':
      return number(hour12, 2, false);
    case 'm':
      return number(time.month, 2);
    case 'M':
      return number(time.minute, 2);
    case 'n':
      return "\n";
    case 'p':
      return time.hour < 12 ? "AM" : "PM";
    case 'R':
      return format_time(time, "%H:%M");
    case 'S':
      return number(time.second, 2);
    case 't':
      return "\t";
    case 'T':
    case 'X':
      return format_time(time, "%H:%M:%S");
    case 'u':
      return number(weekday(time) == 0 ? 7 : weekday(time), 1);
    case 'U':
      return number((day_of_year(time) + 6 - weekday(time)) / 7, 2);
    case 'w':
      return number(weekday(time), 1);
    case 'W':
      return number((day_of_year(time) + 6 - (weekday(time) + 6) % 7) / 7, 2);
    case 'y':
      return number(time.year % 100, 2);
    case 'Y':
      return number(time.year, 1);
    case 'z':
    case 'Z':
      return "";  // a time without a zone
    case '%':
      return "%";
    default:
      throw Failure("strftime_now does not know " + in_quotes(std::string("%") + name));
  }
}

}  // namespace

std::string format_time(const LocalTime& time, std::string_view format) {
  std::string text;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      text += format[i];
      continue;
    }
    ++i;
    if (format[i] == '-' && i + 1 < format.size()) {  // without zeros or spaces before it
      const std::string padded = directive(time, format[++i]);
      const size_t first = padded.find_first_not_of("0 ");
      text += first == std::string::npos ? padded.substr(padded.size() - 1) : padded.substr(first);
    } else {
      text += directive(time, format[i]);
    }
  }
  return text;
}

}  // namespace faststream::jinja
