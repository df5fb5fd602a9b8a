#include "support/json.h"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

using nlohmann::json;

/// What parse_json() says of a text that it refuses.
std::string refusal(const std::string& text) {
  return error_of([&] { (void)parse_json(text, "x.json"); });
}

/// Seconds of this thread's own time, which others on the machine do not lengthen.
template <typename Action>
double processor_seconds(Action&& action) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double start = now();
  action();
  return now() - start;
}

TEST(ParseJson, AgreesWithTheLibraryOnSoundTexts) {
  for (const char* text :
       {"null", "true", " -7 ", "18446744073709551615", "-9223372036854775808", "1.5e3", "\"a\"",
        "\"\\u00e4\\ud83d\\ude42\\u0000\"", "[]", "{}", "[[],{},[1,[2,{\"a\":[3]}],4]]",
        R"({"a":{"b":[1,2,{"c":null}],"d":{}},"e":"f"})", R"({"a":[1],"b":2,"c":{"a":3}})",
        R"([{"role":"user","content":"x"},{"role":"user","content":"y"}])", "\xEF\xBB\xBF[1]"}) {
    EXPECT_EQ(parse_json(text, "x.json"), json::parse(text)) << text;
  }
}

TEST(ParseJson, RefusesAMemberThatIsThereTwiceUnlessTheLastCounts) {
  const char* text = R"({"a": 1, "b": [{"c": 2, "c": 3}]})";
  EXPECT_TRUE(says(refusal(text), "x.json: ", "the member \"c\" is there twice", "; "));
  EXPECT_EQ(parse_json(text, "x.json", "", RepeatedMembers::last_counts), json::parse(text));
}

TEST(ParseJson, TakesPythonsNumbersWhereItWroteTheText) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto parse = [](const char* text) { return parse_python_json_object(text, "x.json"); };
  for (
      const char* text :
      {R"({"limit": [0.0, Infinity], "least": -Infinity, "none": NaN, "text": "a \"Infinity, NaN"})",
       R"({"limit": [0.0, {"__float__": "Infinity"}], "least": {"__float__": "-Infinity"},
            "none": {"__float__": "NaN"}, "text": "a \"Infinity, NaN"})"}) {
    const json value = parse(text);
    EXPECT_EQ(value.at("limit"), json({0.0, kInfinity})) << text;
    EXPECT_EQ(value.at("least"), -kInfinity) << text;
    EXPECT_TRUE(std::isnan(value.at("none").get<double>())) << text;
    EXPECT_EQ(value.at("text"), "a \"Infinity, NaN") << text;
  }
  for (const char* text :
       {R"({"__float__": "Infinite"})", R"({"__float__": 1})", R"({"__float__": "NaN", "a": 1})"}) {
    EXPECT_EQ(parse(text), json::parse(text)) << text;
  }
  EXPECT_EQ(parse(R"({"a": 1, "a": 2})"), json({{"a", 2}}));
  for (const char* text :
       {R"({"a": Infinit})", R"({"a": xNaN})", R"({"a": -NaN})", "NaN", "[NaN]"}) {
    EXPECT_TRUE(says(error_of([&] { (void)parse(text); }), "x.json: ")) << text;
  }
}

TEST(ParseJson, RefusesOtherTextsInOneSentence) {
  for (const char* text : {"", " ", "{", "[1,]", "{\"a\"}", "{\"a\":}", "[1] 2", "nul", "\"a",
                           "\"\xFF\"", "\"\x01\"", "{a:1}", "NaN", "01", "[1}"}) {
    EXPECT_TRUE(says(refusal(text), "x.json: ", "not valid JSON (at byte ", "; ")) << text;
  }
  EXPECT_EQ(refusal("{\"a\": nul}"),
            "x.json: not valid JSON (at byte 10); the file is damaged or of another kind");
  EXPECT_TRUE(says(refusal("[1e999]"), "x.json", "out of range"));
  EXPECT_TRUE(says(error_of([] { (void)parse_json_object("[]", "x.json"); }), "x.json", "object"));
}

TEST(ParseJson, LimitsNestingOfEveryKind) {
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}")}) {
    const auto nested = [&, open = open, close = close](size_t depth) {
      return repeat(open, depth) + "1" + repeat(close, depth);
    };
    EXPECT_EQ(refusal(nested(64)), "");
    EXPECT_TRUE(says(refusal(nested(65)), "x.json", "nested more than 64 deep"));
    // Does not wait for what follows, nor recurse.
    EXPECT_TRUE(says(refusal(repeat(open, 1'000'000)), "x.json", "nested more than 64 deep"));
  }
  EXPECT_EQ(refusal("[" + repeat("[],", 1000) + "[]]"), "");  // wide is not deep
}

// json::parse() with a callback looks through all earlier siblings at the end of each object:
// 300,000 of them took 81 s.
TEST(ParseJson, TakesTimeInProportionToTheLength) {
  constexpr double kManyTimesEnough = 15;  // for a slow machine with sanitizers
  constexpr size_t kObjects = 300'000;
  std::string members;
  for (int i = 0; i < 50'000; ++i) members += "\"tensor." + std::to_string(i) + "\":{\"a\":[]},";
  const double seconds = processor_seconds([&] {
    EXPECT_EQ(parse_json("[" + repeat("{},", kObjects) + "1]", "x").size(), kObjects + 1);
    EXPECT_EQ(parse_json("{" + members + "\"z\":1}", "x").size(), 50'001U);
  });
  EXPECT_LT(seconds, kManyTimesEnough);
}

#ifndef FASTSTREAM_SANITIZED  // whose own memory is unlimited
// The library's destructor asks for memory itself, and ended the program.
TEST(ParseJson, ThrowsWhereTheMemoryDoesNotSuffice) {
  const std::string text = "{\"a\":[" + repeat("[],", 2'000'000) + "[]]}";  // takes 130 MB
  const auto parse_with_little_memory = [&text] {
    constexpr size_t kMemory = 24U << 20;
    constexpr size_t kChunk = 64U << 10;
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + kMemory;
    const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
    // Takes what earlier tests left free, too.
    std::vector<std::unique_ptr<char[]>> taken(size_t{1} << 20);
    setrlimit(RLIMIT_AS, &limit);
    size_t n = 0;
    try {
      for (; n < taken.size(); ++n) taken[n].reset(new char[kChunk]);
    } catch (const std::bad_alloc&) {
      for (size_t left = kMemory; n > 0 && left > 0; left -= kChunk) taken[--n].reset();
    }
    try {
      (void)parse_json_object(text, "x.json");
    } catch (const std::bad_alloc&) {
      _exit(7);
    }
    _exit(0);
  };
  EXPECT_EXIT(parse_with_little_memory(), testing::ExitedWithCode(7), "");
}
#endif

const json& example() {
  static const json value = json::parse(R"({
    "name": "m", "layers": 32, "eps": 1e-5, "tied": true, "nothing": null, "big": 9223372036854775808,
    "ids": [1, 2, 70000], "rope": {"theta": 10000, "type": 7}, "list": [{"role": "user"}, 5]})");
  return value;
}

TEST(JsonView, ReadsMembersByType) {
  const JsonView view(example(), "x.json");
  EXPECT_EQ(view.get<std::string>("name"), "m");
  EXPECT_EQ(view.get<int64_t>("layers"), 32);
  EXPECT_EQ(view.get<uint64_t>("big"), uint64_t{1} << 63);
  EXPECT_EQ(view.get<double>("eps"), 1e-5);
  EXPECT_EQ(view.get<float>("layers"), 32.0F);
  EXPECT_TRUE(view.get<bool>("tied"));
  EXPECT_EQ(view.member("rope").get<double>("theta"), 10000);
  EXPECT_EQ(view.member("ids").integers<int32_t>(0, 70000), (std::vector<int32_t>{1, 2, 70000}));
  EXPECT_EQ(view.member("list").elements().at(0).get<std::string>("role"), "user");
}

TEST(JsonView, TakesAbsentAndNullMembersAsOptionalOnes) {
  const JsonView view(example(), "x.json");
  for (const char* key : {"absent", "nothing"}) {
    EXPECT_FALSE(view.find(key).has_value()) << key;
    EXPECT_EQ(view.get<int32_t>(key, 5), 5) << key;
  }
  EXPECT_TRUE(view.has("nothing"));
  EXPECT_FALSE(view.has("absent"));
  EXPECT_EQ(view.get<int64_t>("layers", 5), 32);
}

TEST(JsonView, SaysWhereWhatAndWhatWasExpected) {
  const JsonView view(example(), "x.json", "copy it again");
  const auto refused = [](auto&& read) { return error_of([&] { (void)read(); }); };
  EXPECT_EQ(refused([&] { return view.get<bool>("absent"); }),
            "x.json: \"absent\" is missing; copy it again");
  EXPECT_EQ(refused([&] { return view.get<bool>("layers"); }),
            "x.json: \"layers\" is not true or false; copy it again");
  EXPECT_EQ(refused([&] { return view.get<int64_t>("nothing"); }),
            "x.json: \"nothing\" is missing; copy it again");
  EXPECT_EQ(refused([&] { return view.get<int64_t>("eps", 1); }),
            "x.json: \"eps\" is not a whole number; copy it again");
  EXPECT_EQ(refused([&] { return view.get<int64_t>("big"); }),
            "x.json: \"big\" is not a whole number from -9223372036854775808 to "
            "9223372036854775807; copy it again");
  EXPECT_EQ(refused([&] { return view.get<double>("name"); }),
            "x.json: \"name\" is not a number; copy it again");
  EXPECT_EQ(refused([&] { return view.member("rope").get<std::string>("type"); }),
            "x.json: \"rope.type\" is not a string; copy it again");
  EXPECT_EQ(refused([&] { return view.member("layers").as<int32_t>(1, 31); }),
            "x.json: \"layers\" is not a whole number from 1 to 31; copy it again");
  EXPECT_EQ(refused([&] { return view.member("ids").integers<int32_t>(0, 69999); }),
            "x.json: \"ids[2]\" is not a whole number from 0 to 69999; copy it again");
  EXPECT_EQ(refused([&] { return view.member("list").elements().at(1).get<bool>("a"); }),
            "x.json: \"list[1]\" is not a JSON object; copy it again");
  EXPECT_EQ(refused([&] { return view.member("rope").elements(); }),
            "x.json: \"rope\" is not a list; copy it again");
  const JsonView rope(example().at("rope"), "x.json");
  EXPECT_EQ(error_of([&] { rope.allow_only({"theta"}); }),
            "x.json: \"type\" is unknown; remove it or correct its name");
  EXPECT_EQ(error_of([&] { rope.allow_only({"theta", "type"}); }), "");
  EXPECT_EQ(error_of([&] { (void)JsonView(example(), "").get<bool>("name"); }),
            "\"name\" is not true or false");
}

TEST(JsonView, SaysTheSameOfAnotherValueInItsPlace) {
  const auto object = json::parse(R"({"rope":{"theta":1}})");
  const auto other = json::parse(R"({"theta":"x"})");
  const JsonView view = JsonView(object, "x.json", "copy it again").member("rope");
  EXPECT_EQ(error_of([&] { (void)view.with(other).get<double>("theta"); }),
            "x.json: \"rope.theta\" is not a number; copy it again");
}

TEST(JsonView, ConvertsNothing) {
  for (const char* text :
       {"\"1\"", "1.0", "true", "null", "[1]", "-1", "2147483648", "1e3", "18446744073709551615"}) {
    const json value = json::parse(text);
    const int32_t most = std::numeric_limits<int32_t>::max();
    EXPECT_NE(error_of([&] { (void)JsonView(value, "x").as<int32_t>(0, most); }), "") << text;
  }
  const json made = 7;  // in memory, a signed number
  EXPECT_EQ(JsonView(made, "x").as<uint64_t>(), 7U);
  EXPECT_NE(error_of([] { (void)JsonView(json(1e39), "x").as<float>(); }), "");
}

}  // namespace
}  // namespace faststream
