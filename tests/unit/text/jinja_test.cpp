#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "support/error.h"
#include "text/jinja/template.h"
#include "unit/effort.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

using jinja::Dict;
using jinja::Template;
using jinja::Text;
using jinja::Value;

std::string rendered(std::string_view source, const Dict& variables = {}) {
  try {
    return Template(source, "t").render(variables, {}).bytes();
  } catch (const Error& error) {
    return std::string("error: ") + error.what();
  }
}

std::string numbered(std::string_view before, std::string_view after, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all.append(before).append(std::to_string(i)).append(after);
  return all;
}

TEST(Jinja, SaysInWhichLineWhatIsWrong) {
  EXPECT_EQ(rendered("a\n\n{{ foo.bar }}"), "error: t, line 3: \"foo\" is undefined");
  EXPECT_EQ(rendered("{% if x %}\n\n"),
            "error: t, line 2: the template ends where {% endif %} is expected");
  EXPECT_EQ(rendered("{{ {}.a.b }}"), "error: t, line 1: a dict has no attribute \"a\"");
  EXPECT_EQ(rendered("{{ 1 + 'a' }}"),
            "error: t, line 1: \"+\" is not possible between int and str");
  EXPECT_EQ(rendered("{% include 'x' %}"),
            "error: t, line 1: the tag \"include\" is not supported");
  EXPECT_EQ(rendered("{{ x | nope }}"), "error: t, line 1: there is no filter named \"nope\"");
  EXPECT_EQ(rendered("{{ [1].append(2) }}"),
            "error: t, line 1: a template cannot change its data, with the list's \"append\"");
  EXPECT_EQ(rendered("{{ raise_exception('Only this.') }}"),
            "error: t refuses the conversation: Only this.");
}

TEST(Jinja, NamesWhatItHasNotOfJinjasAndPythonsOwn) {
  EXPECT_EQ(rendered("{{ 'x' | wordwrap }}"),
            "error: t, line 1: the filter \"wordwrap\" is not supported");
  EXPECT_EQ(rendered("{{ 'x' is upper }}"),
            "error: t, line 1: the test \"upper\" is not supported");
  EXPECT_EQ(rendered("{{ 'x'.zfill(3) }}"),
            "error: t, line 1: str's method \"zfill\" is not supported");
  EXPECT_EQ(rendered("{{ '%d' % 5 }}"),
            "error: t, line 1: \"%\" of a str, a format, is not supported; join texts with \"~\"");
  EXPECT_EQ(rendered("{{ '{:>5}'.format(1) }}"),
            "error: t, line 1: the format {:>5} is more than a number or a name, which is not "
            "supported");
  EXPECT_EQ(rendered("{{ '{a.b}'.format(a=1) }}"),
            "error: t, line 1: the format {a.b} is more than a number or a name, which is not "
            "supported");
  EXPECT_EQ(rendered("{{ '{3} {'.format(1) }}"),
            "error: t, line 1: a format needs more values than it is given");
  EXPECT_EQ(rendered("{{ '{} {'.format(1) }}"), "error: t, line 1: a format has a single brace");
}

// Each within a second, however it tries.
TEST(Jinja, EndsWhatDoesNotEndByItself) {
  const std::vector<std::string> sources = {
      "{{ 'a' * 10**9 }}",
      "{{ 'a' * 10**18 }}",
      "{{ [[0] * 1000] * 10**9 }}",
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{% for i in range(10**12) %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set n = namespace(x='ab') %}{% for i in range(100) %}{% set n.x = n.x * 2 %}{% endfor %}",
      "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}{% endfor %}",
      "{% set n = namespace(x=[]) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor "
      "%}{{ n.x }}",
      "{% set n = namespace(x=[]) %}{% set m = namespace(x=[]) %}{% for i in range(90) %}"
      "{% set n.x = [n.x, n.x] %}{% set m.x = [m.x, m.x] %}{% endfor %}{{ n.x == m.x }}",
      "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
      "{% set n = namespace() %}{% set n.x = {'a': n} %}{{ n.x | tojson }}",
      "{{ 'a\nb' | indent(10**12) }}",
      "{{ 2 ** 64 }}",
      "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
      "{{ ('a' * 10**7).replace('', 'bcd' * 10) }}",
      "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{{ ['a'] | map('map', 'map', 'map') | list | string * 10**9 }}",
      "{% set s = 'ab' * 10**6 %}{% for i in range(100000) %}{{ s[1] }}{{ s | length }}{% endfor "
      "%}",
      "{% set s = range(100000) | list %}{% for i in range(100000) %}{{ -1 in s }}{% endfor %}",
      "{{ 'a' | replace('a', 'b', 10**30) }}",
      "{% set s = 'a' * 10**7 %}{% set t = s[1:] + 'b' %}{% set s = s[1:] + 'a' %}"
      "{% for i in range(100000) %}{{ s == t }}{{ s in [t] }}{% endfor %}",
      "{% set s = 'a' * 10**7 %}{% for i in range(100000) %}{{ {'a': 1}.get(s) }}{% endfor %}",
      "{% set s = 'a' * 10**7 %}{% for i in range(100000) %}{{ '{}'.format(s) }}{% endfor %}",
      "{% set s = ' ' * 10**7 %}{% for i in range(100000) %}{{ s | trim }}{% endfor %}",
      "{{ ('a' * 10**6).find('a' * 500000 + 'b') }}",
      "{{ ('a' * 500000 + 'b') in 'a' * 10**6 }}",
      "{{ ('a' * 10**6).split('a' * 500000 + 'b') }}",
      "{{ ('a' * 10**6).replace('a' * 500000 + 'b', '') }}",
      "{{ ('a' * 10**6).count('a' * 500000 + 'b') }}",
      "{{ range(0, 10**18, 1) }}",
      repeat("{% if 1 %}", 5000),
      "{{ " + repeat("(", 5000),
      "{{ " + repeat("[", 100000),
      "{{ " + repeat("not ", 100000) + "1 }}",
      "{{ " + repeat("-", 100000) + "1 }}",
      "{{ 1" + repeat(" + 1", 10000) + " }}",
      "{{ a" + repeat(".b", 10000) + " }}",
      "{{ a" + repeat("|upper", 10000) + " }}",
      "{{ " + repeat("1 if 1 else ", 10000) + "1 }}",
      "{% set " + repeat("(", 10000),
      std::string((1 << 20) + 1, ' '),
      "{{ {" + numbered("", ": 1,", 70000) + "} }}",
      numbered("{% set a", " = 1 %}", 50000),
      "{% macro f(" + numbered("a", "=1, ", 60000) + "b=1) %}{% endmacro %}{{ f() }}"};
  for (size_t i = 0; i < sources.size(); i += kSanitized ? 3 : 1) {
    const std::string& source = sources[i];
    const auto begin = std::chrono::steady_clock::now();
    const std::string text = rendered(source);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_TRUE(text.starts_with("error: t")) << source.substr(0, 80) << "\n" << text.substr(0, 80);
    if (kSanitized) continue;
    EXPECT_LT(seconds.count(), 5) << source.substr(0, 80);  // far below one where nothing else runs
  }
}

TEST(Jinja, KeepsTheOriginOfEachByte) {
  Dict variables;
  variables.set(Value(std::string_view("x")), Value(Text("user", 7)));
  const auto origins = [&](std::string_view source) {
    const Text text = Template(source, "t").render(variables, {});
    std::string shown;
    for (size_t i = 0; i < text.size(); ++i) shown += text.origin_at(i) == 7 ? 'u' : '.';
    return shown;
  };
  EXPECT_EQ(origins("a{{ x }}b"), ".uuuu.");
  EXPECT_EQ(origins("{{ x[1:3] ~ '-' ~ x | upper }}"), "uu.uuuu");
  EXPECT_EQ(origins("{{ x.replace('se', 'SE') }}"), "u..u");
  EXPECT_EQ(origins("{{ '{}, {}'.format(x, 5) }}{{ [x] | tojson }}"), "uuuu.....uuuu..");
  EXPECT_EQ(origins("{{ x.split('s') | join('+') }}{{ [x] }}"), "u.uu..uuuu..");
}

TEST(Jinja, IsRenderedByManyThreadsAtOnce) {
  const Template program(
      "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}"
      "{% for i in range(50) %}{{ f(i) }}{% endfor %}",
      "t");
  const std::string expected = program.render({}, {}).bytes();
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (std::string& text : texts) {
    threads.emplace_back([&program, &text] { text = program.render({}, {}).bytes(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, expected);
}

}  // namespace
}  // namespace faststream
