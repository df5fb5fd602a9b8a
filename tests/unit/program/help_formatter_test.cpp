#include "program/help_formatter.h"

#include <gtest/gtest.h>

#include <memory>

namespace faststream {
namespace {

TEST(HelpFormatter, PutsWordsIntoLines) {
  EXPECT_EQ(in_lines("", 10), "");
  EXPECT_EQ(in_lines("one two three four", 9), "one two\nthree\nfour");
  EXPECT_EQ(in_lines("one\ntwo  three", 100), "one two three");
  EXPECT_EQ(in_lines("a longer-than-that b", 5), "a\nlonger-than-that\nb");
}

TEST(HelpFormatter, SaysWhatAnOptionNeedsAndNotWhatItExcludes) {
  CLI::App app("", "program");
  app.formatter(std::make_shared<HelpFormatter>());
  std::string value;
  CLI::Option* first = app.add_option("--first", value, "The first");
  CLI::Option* second = app.add_option("--second", value, "The second");
  app.add_option("--third", value, "The third")->excludes(first)->needs(second);
  const std::string help = app.help();
  EXPECT_NE(help.find("--third TEXT Needs: --second"), std::string::npos) << help;
  EXPECT_EQ(help.find("Excludes"), std::string::npos) << help;
}

}  // namespace
}  // namespace faststream
