// The man pages and the shell completion say what the programs' own help says, and links of pages
// lead somewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/random_model.h"
#include "cli/chat/chat_settings.h"
#include "cli/run_program.h"
#include "cli/stories.h"
#include "text/chat_template.h"

namespace faststream {
namespace {

using bench::shape_names;
using cli::chat_name;
using cli::chat_settings;
using Words = std::set<std::string>;

constexpr std::array<const char*, 4> kPrograms = {"faststream-run", "faststream-convert",
                                                  "faststream-serve", "faststream-bench"};

std::filesystem::path source_folder() {
  const char* tests = std::getenv("FASTSTREAM_TEST_DATA");
  if (tests == nullptr) throw std::runtime_error("FASTSTREAM_TEST_DATA is not set");
  return std::filesystem::absolute(tests).lexically_normal() / "..";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Everything in `text` that is `group` of a match of `pattern`.
Words matches(const std::string& text, const std::string& pattern, size_t group) {
  const std::regex regex(pattern);
  Words words;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) {
    words.insert(match->str(group));
  }
  return words;
}

// "-m, --model FILE" names -m and --model.
Words option_names(const std::string& heading) {
  return matches(heading, "(^|[ ,])(--?[a-zA-Z][a-z0-9-]*)", 2);
}

// An option of --help by one of its names, long where it has one.
struct HelpOption {
  std::string name;
  std::string default_value;  // as --help shows it, or empty
};

std::string help_of(const std::string& program) {
  const ProgramResult result = run_program({program, "--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  return result.out;
}

// Lines such as "  -t,--threads N              CPU threads [all]".
std::vector<std::string> help_headings(const std::string& program) {
  std::vector<std::string> headings;
  for (const std::string& line : lines_of(help_of(program))) {
    if (line.starts_with("  -")) headings.push_back(line.substr(2));
  }
  return headings;
}

Words help_names(const std::string& program) {
  Words names;
  for (const std::string& heading : help_headings(program)) {
    names.merge(option_names(heading.substr(0, heading.find(' '))));
  }
  return names;
}

// Options that have a default there: "--temp FLOAT=0.8", "--prompt INT=[256] ...", or, since CLI11
// 2.4, "--temp FLOAT [0.8]", "--prompt INT [[256]] ...".
std::vector<HelpOption> help_defaults(const std::string& program) {
  const std::regex pattern(
      R"(^(?:-\w,)?(--[a-z0-9-]+) [^ =]+(?:=| \[)\[?([a-z0-9.]+)\]{0,2}( |$))");
  std::vector<HelpOption> options;
  for (const std::string& heading : help_headings(program)) {
    std::smatch match;
    if (std::regex_search(heading, match, pattern)) options.push_back({match[1], match[2]});
  }
  return options;
}

// A man page without font changes and with plain dashes, by lines.
std::vector<std::string> man_page(const std::string& program) {
  std::string text = read_file(source_folder() / "docs/man" / (program + ".1"));
  text = std::regex_replace(text, std::regex(R"(\\f[BIR])"), "");
  return lines_of(std::regex_replace(text, std::regex(R"(\\-)"), "-"));
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// What the section OPTIONS says about each option, on one line and without macros.
std::map<std::string, std::string> man_options(const std::string& program) {
  const std::regex macro(R"(^\.[A-Z]+ ?)");
  std::map<std::string, std::string> descriptions;
  Words described;
  bool in_options = false;
  std::string before;
  for (const std::string& line : man_page(program)) {
    if (line.starts_with(".SH")) in_options = line == ".SH OPTIONS";
    if (!in_options) continue;
    if (before == ".TP" && line.starts_with("-")) {
      described = option_names(line);
      for (const std::string& name : described) {
        EXPECT_FALSE(descriptions.contains(name)) << name << " is described twice";
        descriptions[name] = "";
      }
    } else {
      for (const std::string& name : described) {
        descriptions[name] += std::regex_replace(line, macro, "") + " ";
      }
    }
    before = line;
  }
  return descriptions;
}

std::string quoted(const std::string& text) {
  return "'" + std::regex_replace(text, std::regex("'"), "'\\''") + "'";
}

// Runs a script in a shell, such as "zsh -f", without anybody's settings; returns what it prints,
// errors too.
std::vector<std::string> run_shell(const std::string& shell, const std::string& script) {
  const auto path = scratch_folder() / "script.sh";
  std::ofstream(path) << script;
  const std::string command = "env -u BASH_ENV " + shell + " " + quoted(path.string()) + " 2>&1";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> output(popen(command.c_str(), "r"),
                                                               &pclose);
  if (!output) throw std::runtime_error("cannot start " + shell);
  std::string text;
  char block[4096];
  size_t count = 0;
  while ((count = std::fread(block, 1, sizeof block, output.get())) > 0) text.append(block, count);
  return lines_of(text);
}

const std::string kFiles = "(files)";  // stands for Readline's completion of file names

// The beginning of a script that asks the completion for Bash.
std::string completion_script() {
  return "set -u\nsource " +
         quoted((source_folder() / "scripts/completion/faststream.bash").string()) +
         "\ncompopt() { [[ $2 != default ]] || echo " + quoted(kFiles) +
         "; }  # Bash's own works only while it completes\n";
}

// What the completion offers for the last word of a command line; the words as Bash splits them.
Words completions(const std::vector<std::string>& words) {
  std::string script = completion_script() + "COMP_WORDS=(";
  for (const std::string& word : words) script += quoted(word) + " ";
  script += ")\nCOMP_CWORD=" + std::to_string(words.size() - 1) + "\nCOMPREPLY=()\n";
  script += "[[ $(complete -p " + words.front() + ") =~ -F\\ ([^ ]+) ]] || exit 1\n";
  script += "\"${BASH_REMATCH[1]}\" " + words.front() + " " + quoted(words.back()) + " " +
            quoted(words.at(words.size() - 2)) + "\n";
  script += "for word in \"${COMPREPLY[@]}\"; do printf '%s\\n' \"$word\"; done\n";
  const std::vector<std::string> offered = run_shell("bash", script);
  Words unique(offered.begin(), offered.end());
  EXPECT_EQ(unique.size(), offered.size()) << "a word is offered twice";
  return unique;
}

// The words that only one of two sets has, as a test shows them; empty for equal sets.
std::string difference(const Words& ours, const Words& theirs) {
  std::string text;
  for (const std::string& word : ours) {
    if (!theirs.contains(word)) text += "only in the first: " + word + "\n";
  }
  for (const std::string& word : theirs) {
    if (!ours.contains(word)) text += "only in the second: " + word + "\n";
  }
  return text;
}

template <typename Names>
Words as_words(const Names& names) {
  return Words(names.begin(), names.end());
}

Words with_files(Words words) {
  words.insert(kFiles);
  return words;
}

const Words kDtypes = {"f32",   "f16", "bf16",     "int8",     "int4",     "fp8",
                       "mxfp4", "nf4", "int4-g32", "int4-g64", "int4-g128"};

// The places in a page of Markdown that a link can name, as GitHub makes them of headings.
Words anchors_of(const std::filesystem::path& page) {
  Words anchors;
  bool is_code = false;
  for (const std::string& line : lines_of(read_file(page))) {
    if (line.starts_with("```")) is_code = !is_code;
    if (is_code || !line.starts_with("#")) continue;
    std::string anchor;
    for (const char c : line.substr(line.find_first_not_of("# "))) {
      const auto letter = static_cast<unsigned char>(c);
      if (c == ' ') anchor += '-';
      if (std::isalnum(letter) != 0 || c == '-' || c == '_') {
        anchor += static_cast<char>(std::tolower(letter));
      }
    }
    anchors.insert(anchor);
  }
  return anchors;
}

std::vector<std::filesystem::path> pages_of_documentation() {
  const std::filesystem::path root = source_folder();
  std::vector<std::filesystem::path> pages = {root / "README.md", root / "CHANGELOG.md",
                                              root / "demo/README.md",
                                              root / "tests/bench/RESULTS.md"};
  for (const auto& entry : std::filesystem::directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  }
  return pages;
}

TEST(Documentation, LinksLeadToPlacesThatThereAre) {
  size_t n_anchors = 0;
  for (const std::filesystem::path& page : pages_of_documentation()) {
    for (const std::string& line : lines_of(read_file(page))) {
      if (line.find("](") == std::string::npos) continue;  // most, and quicker so
      for (const std::string& link : matches(line, R"(\]\(([^)\s]+)\))", 1)) {
        if (link.find(':') != std::string::npos) continue;  // of the web
        const size_t end = std::min(link.find('#'), link.size());
        const std::filesystem::path to = end == 0 ? page : page.parent_path() / link.substr(0, end);
        ASSERT_TRUE(std::filesystem::exists(to)) << page << ": " << link;
        if (end == link.size()) continue;
        EXPECT_TRUE(anchors_of(to).contains(link.substr(end + 1))) << page << ": " << link;
        ++n_anchors;
      }
    }
  }
  EXPECT_GE(n_anchors, 10U);
}

TEST(Documentation, ManPagesDescribeTheOptionsOfTheHelp) {
  for (const std::string program : kPrograms) {
    SCOPED_TRACE(program);
    Words described;
    for (const auto& [name, description] : man_options(program)) described.insert(name);
    EXPECT_EQ(difference(described, help_names(program)), "");
  }
}

TEST(Documentation, ManPagesMentionNoOtherOptions) {
  for (const std::string program : kPrograms) {
    SCOPED_TRACE(program);
    const Words known = help_names(program);
    for (const std::string& name :
         matches(joined(man_page(program)), "(^|[^a-zA-Z0-9-])(--[a-z][a-z0-9-]*)", 2)) {
      EXPECT_TRUE(known.contains(name)) << name;
    }
  }
}

TEST(Documentation, ManPagesHaveTheDefaultsOfTheHelp) {
  for (const std::string program : kPrograms) {
    SCOPED_TRACE(program);
    const std::map<std::string, std::string> described = man_options(program);
    for (const HelpOption& option : help_defaults(program)) {
      const std::string& text = described.at(option.name);
      const bool found = text.find("Default: " + option.default_value + ". ") != text.npos ||
                         text.find("Default: " + option.default_value + " . ") != text.npos;
      EXPECT_TRUE(found) << option.name << " is " << option.default_value << " by default; "
                         << text;
    }
  }
  EXPECT_GE(help_defaults("faststream-run").size(), 8U);
  EXPECT_GE(help_defaults("faststream-bench").size(), 6U);
}

TEST(Documentation, ManPagesNameAllValues) {
  const auto has_words = [](const std::string& program, const std::string& option,
                            const Words& values) {
    const std::string text = man_options(program).at(option);
    const Words found = matches(text, "[a-z0-9]([a-z0-9.-]*[a-z0-9])?", 0);
    for (const std::string& value : values) {
      EXPECT_TRUE(found.contains(value)) << program << " " << option << " " << value;
    }
  };
  has_words("faststream-run", "--chat-template", as_words(ChatTemplate::names()));
  has_words("faststream-bench", "--shape", as_words(shape_names()));
  has_words("faststream-bench", "--dtype", kDtypes);
  has_words("faststream-convert", "--dtype", kDtypes);

  const std::string page = joined(man_page("faststream-run"));
  for (const RequestSetting* setting : chat_settings()) {
    const std::string name = chat_name(*setting);
    EXPECT_TRUE(std::regex_search(page, std::regex("\n\\.BR? " + name + "[ \n]"))) << name;
  }
}

TEST(Documentation, ManPageOfTheRunnerDescribesTheCommandsOfTheChat) {
  if (stories_folder().empty()) GTEST_SKIP() << "no stories260K";
  const ProgramResult help = run_program(
      {"faststream-run", "-m", stories_model(), "--chat", "--chat-template", "plain"}, "/help\n");
  ASSERT_EQ(help.exit_code, 0) << help.err;
  const Words commands = matches("\n" + help.err, "\n(/[a-z]+)", 1);
  EXPECT_TRUE(commands.contains("/quit")) << help.err;
  EXPECT_EQ(matches(joined(man_page("faststream-run")), "\n\\.TP\n(/[a-z]+)", 1), commands);
}

TEST(Documentation, CompletionOffersTheOptionsOfTheHelp) {
  for (const std::string program : kPrograms) {
    SCOPED_TRACE(program);
    EXPECT_EQ(difference(completions({program, "-"}), help_names(program)), "");
  }
}

TEST(Documentation, CompletionOffersOptionsThatBeginAsTyped) {
  EXPECT_EQ(completions({"faststream-run", "--ch"}),
            (Words{"--chat", "--chat-template", "--chunk"}));
  EXPECT_EQ(completions({"faststream-run", "-m", "a.bin", "--temp"}),
            (Words{"--temp", "--template-arg"}));
  EXPECT_EQ(completions({"faststream-bench", "--se"}), (Words{"--sequences"}));
  EXPECT_EQ(completions({"faststream-convert", "--keep"}), (Words{"--keep", "--keep-output"}));
  EXPECT_EQ(completions({"faststream-run", "--nothing"}), Words{});
  EXPECT_EQ(difference(completions({"faststream-run", ""}), help_names("faststream-run")), "");
}

TEST(Documentation, CompletionOffersTheValuesOfAnOption) {
  EXPECT_EQ(completions({"faststream-run", "--device", ""}), (Words{"auto", "cpu", "cuda"}));
  EXPECT_EQ(completions({"faststream-bench", "--device", "c"}), (Words{"cpu", "cuda"}));
  EXPECT_EQ(completions({"faststream-convert", "--dtype", ""}), kDtypes);
  EXPECT_EQ(completions({"faststream-bench", "--dtype", ""}), kDtypes);
  EXPECT_EQ(completions({"faststream-run", "--early-stopping", ""}),
            (Words{"true", "false", "never"}));
  EXPECT_EQ(completions({"faststream-bench", "--shape", ""}), as_words(shape_names()));
  EXPECT_EQ(completions({"faststream-run", "--chat-template", ""}),
            with_files(as_words(ChatTemplate::names())));
  EXPECT_EQ(completions({"faststream-run", "--seed", ""}), Words{});
}

TEST(Documentation, CompletionUnderstandsEqualsSignsAndColons) {
  EXPECT_EQ(completions({"faststream-run", "--device", "=", "cp"}), (Words{"cpu"}));
  EXPECT_EQ(completions({"faststream-run", "--device", "="}), (Words{"auto", "cpu", "cuda"}));
  EXPECT_EQ(completions({"faststream-run", "--device", "cuda", ":", ""}), Words{});
  EXPECT_EQ(completions({"faststream-run", "--logit-bias", "29", "=", "-"}), Words{});
  EXPECT_EQ(completions({"faststream-run", "--model", "=", "a"}), (Words{kFiles}));
  EXPECT_EQ(completions({"faststream-run", "--speculate", "draft", "="}), (Words{kFiles}));
  EXPECT_EQ(completions({"faststream-run", "--adapter", "=", "x", "=", "a"}), (Words{kFiles}));
  EXPECT_EQ(completions({"faststream-serve", "-m", "x", "=", "a"}), (Words{kFiles}));
  EXPECT_EQ(completions({"faststream-run", "="}), Words{});
}

TEST(Documentation, CompletionOffersNoOptionsWhereAValueIsDue) {
  const std::regex pattern("^(?:-\\w,)?(--[a-z0-9-]+) ([A-Z]+)(?![a-z])");  // --batch FILE
  for (const std::string program : kPrograms) {
    std::string script = completion_script() + "COMP_CWORD=2\n";
    for (const std::string& heading : help_headings(program)) {
      std::smatch option;
      if (!std::regex_search(heading, option, pattern)) continue;
      const std::string name = option[1];
      script += "COMP_WORDS=(" + program + " " + name + " '')\n";
      script += "offered=$(_faststream " + program + "; echo \"${COMPREPLY[*]-}\")\n";
      script += "[[ $offered != *--help* ]] || echo 'options as values of " + name + "'\n";
      if (!Words{"FILE", "DIR", "PATH", "MODEL"}.contains(option[2])) continue;
      script += "[[ $offered == *" + quoted(kFiles) + "* ]] || echo 'no files of " + name + "'\n";
    }
    EXPECT_EQ(joined(run_shell("bash", script)), "") << program;
  }
}

// Programs and completions as they are installed: those of Fish and Zsh ask that of Bash.
class InstalledCompletion : public testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path completions = root_ / "share/bash-completion/completions";
    std::filesystem::create_directories(root_ / "bin");
    std::filesystem::create_directories(completions);
    for (const std::string program : kPrograms) {
      const std::filesystem::path path = root_ / "bin" / program;
      std::ofstream(path) << "#!/bin/sh\nexec " << quoted(programs_folder() + "/" + program)
                          << " \"$@\"\n";
      std::filesystem::permissions(path, std::filesystem::perms::owner_all);
      std::filesystem::copy_file(source("faststream.bash"), completions / program,
                                 std::filesystem::copy_options::overwrite_existing);
    }
  }
  static std::string source(const std::string& name) {
    return (source_folder() / "scripts/completion" / name).string();
  }
  static bool has(const std::string& shell) {
    return run_shell("sh", "command -v " + shell).size() == 1;
  }
  // What a shell offers, with what it says of it behind a tab.
  [[nodiscard]] Words offers(const std::string& shell, const std::string& script) const {
    const std::string path = "env PATH=" + quoted((root_ / "bin").string()) +
                             ":/usr/bin:/bin HOME=" + quoted(root_.string()) + " ";
    return as_words(run_shell(path + shell, script));
  }
  [[nodiscard]] Words of_fish(const std::string& line) const {
    return offers("fish --no-config",
                  "source " + quoted(source("faststream.fish")) + "; complete -C " + quoted(line));
  }
  // Its own functions work only while it completes. Words are as they are typed.
  [[nodiscard]] Words of_zsh(const std::vector<std::string>& words) const {
    std::string script =
        "tab=$'\\t'\n_describe() {\n"
        "  local offered='*'; [[ $1 != -o ]] || { offered='-*'; shift }  # all that it offers "
        "then\n"
        "  for word in \"${(@P)2}\"; do [[ $word != ${~offered} ]] || print -r -- ${word/:/$tab}; "
        "done\n"
        "}\n"
        "_files() { print -r -- \"$behind(files)\" }\ncompset() { behind=$2 }\nzmodload "
        "zsh/parameter\n"
        "words=(";
    for (const std::string& word : words) script += quoted(word) + " ";
    return offers("zsh -f", script + ")\nCURRENT=$#words PREFIX=$words[-1]\n() { source " +
                                quoted(source("faststream.zsh")) + " }\n");
  }

  // A script that has no completion where a program's would be; nothing may run it.
  [[nodiscard]] std::string typed_wrapper() const {
    const std::filesystem::path path = root_ / "faststream-run";
    std::ofstream(path) << "echo it runs\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return typed_root_ + "/faststream-run";
  }

  const std::filesystem::path root_ = scratch_folder() / "installed here";
  const std::string typed_root_ = (scratch_folder() / "installed\\ here").string();
};

const std::string kSeedHelp =
    "--seed\tSeed of the random draws; the same seed gives the same text [random]";

TEST_F(InstalledCompletion, OfFishOffersThatOfBashWithWhatTheHelpSays) {
  if (!has("fish")) GTEST_SKIP() << "fish is not installed";
  EXPECT_EQ(of_fish("faststream-run --seed"), (Words{kSeedHelp}));
  EXPECT_EQ(of_fish("faststream-run -m a.bin --device "), (Words{"auto", "cpu", "cuda"}));
  EXPECT_EQ(of_fish("faststream-bench --device=c"), (Words{"--device=cpu", "--device=cuda"}));
  std::ofstream(root_ / "a'b.bin") << "";
  const std::string file = (root_ / "a'b.bin").string();
  for (const std::string& typed : {typed_root_, "\"" + root_.string()}) {
    EXPECT_EQ(of_fish("faststream-serve -m " + typed + "/a"), (Words{file}));
    EXPECT_EQ(of_fish("faststream-serve --model=" + typed + "/a"), (Words{"--model=" + file}));
    EXPECT_EQ(of_fish("faststream-serve -m x=" + typed + "/a"), (Words{"x=" + file}));
    EXPECT_EQ(of_fish("faststream-convert " + typed + "/a"), (Words{file}));
  }
  EXPECT_EQ(of_fish("faststream-convert ~/a"), (Words{"~/a'b.bin"}));
  EXPECT_EQ(of_fish("~/bin/faststream-run --seed"), (Words{kSeedHelp}));
  EXPECT_EQ(of_fish("nowhere/faststream-run --seed"), Words{});
  EXPECT_EQ(of_fish(typed_wrapper() + " --seed"), Words{});
}

TEST_F(InstalledCompletion, OfZshOffersThatOfBashWithWhatTheHelpSays) {
  if (!has("zsh")) GTEST_SKIP() << "zsh is not installed";
  EXPECT_EQ(of_zsh({"faststream-run", "--seed"}), (Words{kSeedHelp}));
  EXPECT_EQ(of_zsh({typed_root_ + "/bin/faststream-run", "--seed"}), (Words{kSeedHelp}));
  EXPECT_EQ(of_zsh({"~/bin/faststream-run", "--seed"}), (Words{kSeedHelp}));
  EXPECT_EQ(of_zsh({"faststream-run", "--device", "c"}), (Words{"cpu\t", "cuda\t"}));
  EXPECT_EQ(of_zsh({"faststream-bench", "--device=c"}),
            (Words{"--device=cpu\t", "--device=cuda\t"}));
  EXPECT_EQ(of_zsh({"faststream-run", "--speculate", "d"}), (Words{"draft=\t"}));
  EXPECT_EQ(of_zsh({"faststream-run", "--speculate", "draft=a"}), (Words{"draft=" + kFiles}));
  EXPECT_EQ(of_zsh({"faststream-serve", "--model=a"}), (Words{"--model=" + kFiles}));
  EXPECT_EQ(of_zsh({"faststream-serve", "--model=x=a"}), (Words{"--model=x=" + kFiles}));
  EXPECT_EQ(of_zsh({"faststream-run", "-m", "x=a"}), (Words{kFiles}));
  EXPECT_EQ(of_zsh({"faststream-convert", ""}), (Words{kFiles}));
  EXPECT_EQ(of_zsh({typed_wrapper(), "--seed"}), Words{});
}

TEST_F(InstalledCompletion, SaysOfEachOptionWhatTheHelpSays) {
  for (const std::string program : kPrograms) {
    const std::string path = (root_ / "bin" / program).string();
    Words said;
    for (const std::string& line : run_shell(
             "bash", "bash " + quoted(source("faststream.bash")) + " " + quoted(path) + " -")) {
      const size_t tab = line.find('\t');
      ASSERT_NE(tab, std::string::npos) << line;
      EXPECT_GT(line.size(), tab + 1) << "nothing is said of " << line;
      said.insert(line.substr(0, tab));
    }
    EXPECT_EQ(difference(said, help_names(program)), "");
  }
}

TEST(Documentation, CompletionOffersFilesElsewhere) {
  EXPECT_EQ(completions({"faststream-run", "-m", ""}), (Words{kFiles}));
  EXPECT_EQ(completions({"faststream-run", "--batch", "-"}), (Words{kFiles}));
  EXPECT_EQ(completions({"faststream-bench", "--model", "a"}), (Words{kFiles}));
  EXPECT_EQ(completions({"faststream-convert", ""}), (Words{kFiles}));
  EXPECT_EQ(completions({"faststream-convert", "--force", "a"}), (Words{kFiles}));
}

}  // namespace
}  // namespace faststream
