// Schemas and the instances that fit them; tests/peers/grammar.py runs the suite of JSON Schema.
#include "text/rules/json_schema.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/error.h"
#include "text/rules/output_rule.h"
#include "text/rules/schema_document.h"
#include "unit/effort.h"

namespace faststream::rules {
namespace {

class Schema {
 public:
  explicit Schema(std::string_view text)
      : rule_(std::make_shared<const CompiledRule>(
            parse_json_schema(text),
            std::make_shared<const TokenTrie>(0, [](int32_t) { return std::string(); }))) {}
  [[nodiscard]] bool fits(std::string_view text) const {
    RuleMatcher matcher(rule_);
    return matcher.accept(text) && matcher.complete();
  }

  [[nodiscard]] bool goes_on(std::string_view text) const {
    return RuleMatcher(rule_).accept(text);
  }

 private:
  std::shared_ptr<const CompiledRule> rule_;
};

void expect_fits(std::string_view schema, const std::vector<std::string>& valid,
                 const std::vector<std::string>& invalid) {
  const Schema compiled(schema);
  for (const std::string& text : valid) EXPECT_TRUE(compiled.fits(text)) << schema << " " << text;
  for (const std::string& text : invalid) {
    EXPECT_FALSE(compiled.fits(text)) << schema << " " << text;
  }
}

std::string refusal(std::string_view schema) {
  try {
    static_cast<void>(Schema(schema));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(JsonSchema, AnyValueIsJson) {
  expect_fits("{}",
              {"null", "true", "-1.5e+3", "\"\\u00e9\\ud83d\\ude00\\n\"", "[]", "{}",
               "[1, {\"a\": []}]", "[\n  1,\n  2\n]"},
              {"", "nul", "01", "1.", "\"\n\"", "\"\\ud83d\"", "[1,]", "{\"a\"}", "{a:1}", "1 "});
}

TEST(JsonSchema, MembersComeInTheSchemasOrder) {
  expect_fits(
      R"({"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "boolean"},
          "m": {}}, "required": ["a"], "additionalProperties": false})",
      {R"({"a": true})", R"({"z": 1, "a": true})", R"({"z":1,"a":false,"m":null})"},
      {"{}", R"({"z": 1})", R"({"a": true, "z": 1})", R"({"a": true, "b": 1})", R"({"a": 1})",
       R"({"a": true, "a": true})"});
}

TEST(JsonSchema, OtherNamesAreNoneOfTheKnown) {
  expect_fits(
      R"({"properties": {"a": {"type": "integer"}}, "patternProperties": {"^s_":
                 {"type": "string"}}, "additionalProperties": {"type": "boolean"},
                 "type": "object"})",
      {R"({"a": 1, "b": true, "s_": "x"})", R"({"s_a": "", "s": false, "\"": true})"},
      {R"({"b": 1})", R"({"b": true, "a": true})", R"({"s_a": true})", R"({"\u0061": true})"});
}

TEST(JsonSchema, BoundsNumbers) {
  expect_fits(R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 205})",
              {"-12", "-9", "0", "7", "99", "204"}, {"-13", "205", "1000", "-012", "1.5", "00"});
  expect_fits(R"({"type": "number", "minimum": 0.25, "maximum": 1.5})",
              {"0.25", "0.3", "1", "1.0", "1.499", "1.50"}, {"0.2", "0", "1.51", "2", "-1"});
  expect_fits(R"({"type": "number", "exclusiveMinimum": -1})", {"-0.5", "0", "12.5"},
              {"-1", "-1.0", "-2"});
  expect_fits(R"({"type": "integer", "multipleOf": 7, "minimum": 10})", {"14", "70", "7007"},
              {"7", "15", "-14"});
  expect_fits(R"({"type": "number", "multipleOf": 0.01})", {"0.01", "4.35", "7", "1.500"},
              {"0.001", "1.234"});
}

TEST(JsonSchema, BoundsStringsAndLists) {
  expect_fits(R"({"type": "string", "minLength": 2, "maxLength": 3})",
              {R"("ab")", R"("é\n")", R"("\ud83d\ude00xy")"}, {R"("a")", R"("abcd")"});
  expect_fits(R"({"type": "string", "pattern": "^[a-c\"]+$", "maxLength": 3})",
              {R"("abc")", R"("\"")"}, {R"("abca")", R"("d")", R"("")"});
  expect_fits(R"({"type": "array", "prefixItems": [{"type": "integer"}], "items":
                 {"type": "boolean"}, "minItems": 1, "maxItems": 3})",
              {"[1]", "[1, true]", "[1,true,false]"},
              {"[]", "[true]", "[1,1]", "[1,true,true,true]"});
  expect_fits(R"({"type": "array", "contains": {"type": "integer"}})", {"[1]", "[\"a\", 2, null]"},
              {"[]", "[\"a\"]"});
}

TEST(JsonSchema, EnforcesFormats) {
  const std::vector<std::pair<std::string, std::pair<std::string, std::string>>> formats = {
      {"date", {"2024-02-29", "2023-02-29"}},
      {"date-time", {"1998-12-31T23:59:60Z", "1998-12-31 23:59:00Z"}},
      {"time", {"08:30:06.28+01:00", "24:00:00Z"}},
      {"duration", {"P1Y2M3DT4H", "PT"}},
      {"email", {"joe.b@example.com", "joe@"}},
      {"hostname", {"www.example.com", "-bad.com"}},
      {"ipv4", {"192.168.0.1", "256.0.0.1"}},
      {"ipv6", {"::ffff:1.2.3.4", "1::2::3"}},
      {"uuid", {"2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08aa9811eab4aa73b441d16380"}},
      {"uri", {"http://u@h:80/p?q#f", "//no.scheme"}},
      {"uri-reference", {"../a?b", "a b"}},
      {"iri", {"http://\u00e9.example/", "http://a b/"}},
      {"uri-template", {"/{+a,b:3}", "/{a"}},
      {"relative-json-pointer", {"1#", "01"}},
      {"byte", {"YWI=", "YWI"}},
      {"password", {"any", "a\n"}}};
  for (const auto& [format, texts] : formats) {
    expect_fits(R"({"type": "string", "format": ")" + format + "\"}", {"\"" + texts.first + "\""},
                {"\"" + texts.second + "\""});
  }
}

TEST(JsonSchema, FormatsHaveTheirOtherSpellings) {
  expect_fits(R"({"format": "time", "type": "string"})",
              {R"("23:59:60Z")", R"("15:59:60-08:00")", R"("01:29:60+01:30")"},
              {R"("22:59:60Z")", R"("15:59:60-07:00")", R"("23:29:60+01:30")"});
  expect_fits(R"({"format": "email", "type": "string"})",
              {R"s("\"joe \\\"b\"@example.com")s", R"s("a@[127.0.0.1]")s", R"s("a@[IPv6:::1]")s"},
              {R"s("joe b@example.com")s", R"s("a@[127.0.0.256]")s", R"s("a@127.0.0.1]")s"});
}

TEST(JsonSchema, CountsCharactersOfLongPatterns) {
  const std::string name(900, 'n');
  expect_fits(R"({"type": "string", "format": "email", "minLength": 8, "maxLength": 1000})",
              {R"("ab@c.def")", "\"" + name + "@b.example\""},
              {R"("a@c.def")", "\"" + name + name + "@b.example\""});
  // An end that must follow is kept room for.
  const Schema schema(R"({"type": "string", "pattern": "^(é|a)*xyz$", "maxLength": 2000})");
  std::string text = "\"";
  for (int i = 0; i < 1997; ++i) text += i % 2 == 0 ? "a" : "é";
  EXPECT_TRUE(schema.fits(text + "xyz\""));
  EXPECT_FALSE(schema.goes_on(text + "a"));
  EXPECT_TRUE(schema.goes_on(text + "x"));
}

TEST(JsonSchema, FindsAnyOfManyAnywhereInAString) {
  expect_fits(
      R"re({"pattern": "(trace|debug[2345]?|info|stats|notice|warning|error|critical|fatal|^alert|emerg$|verbose|panic|silent|quiet|never|always|maybe)"})re",
      {R"("x debug3 y")", R"("alert x")", R"("x emerg")", R"("infostats")", R"("maybe")"},
      {R"("x alert")", R"("emerg x")", R"("xyz")", R"("")", R"("may be")"});
  expect_fits(R"({"pattern": "\\p{L}"})", {R"("1é2")", R"("\t字")", R"("𝒜")"}, {R"("1€ ")"});
}

TEST(JsonSchema, FindsClassesAnywhereAtOnce) {
  for (const char* pattern : {R"(\\S)", R"(\\d)", R"([A-Z])", R"(\\p{L})", R"(\\p{Lu})",
                              R"(\\p{Nd})", R"(\\w+@\\w+)", R"(^\\p{L}{1,100}$)"}) {
    EXPECT_EQ(refusal(R"({"type": "string", "pattern": ")" + std::string(pattern) + "\"}"), "");
  }
  expect_fits(R"({"pattern": "\\S"})", {R"(" x ")", R"("é")"}, {R"("  ")", R"("")"});
  expect_fits(R"({"pattern": "\\w+@\\w+"})", {R"("é a@b é")", R"("@a@c")"}, {R"("a@ b@")"});
  expect_fits(R"({"pattern": "ab|^c", "minLength": 3})", {R"("abé")", R"("cde")"},
              {R"("ab")", R"("dce")"});
}

TEST(JsonSchema, KeywordsHaveValuesOfTheirKinds) {
  for (const char* schema :
       {R"({"prefixItems": true})", R"({"items": {"prefixItems": 1}})",
        R"({"dependentSchemas": {"a": {"prefixItems": {}}}})", R"({"not": {"pattern": 1}})",
        R"({"if": {"pattern": []}, "then": {}})", R"({"minimum": "x"})",
        R"({"not": {"minimum": "x"}})", R"({"not": {"type": 5}})", R"({"required": {"a": "b"}})",
        R"({"not": {"required": 1}})", R"({"items": [{"prefixItems": {}}]})", R"({"not": []})",
        R"({"$ref": "#/x", "x": {"maxLength": "1"}})", R"({"properties": {"a": 1}})",
        R"({"enum": {"a": 1}})", R"({"dependentRequired": {"a": [1]}})"}) {
    EXPECT_NE(refusal(schema).find("the JSON schema's #"), std::string::npos)
        << schema << ": " << refusal(schema);
  }
  EXPECT_EQ(refusal(R"({"$none-of": 5, "$no-pattern": 5})"), "");
}

// Any value, among which there are schemas of any keywords.
SchemaJson random_value(std::mt19937& random, int depth) {
  static const std::vector<std::string> keywords = {"type",
                                                    "enum",
                                                    "const",
                                                    "minimum",
                                                    "exclusiveMaximum",
                                                    "multipleOf",
                                                    "minLength",
                                                    "maxLength",
                                                    "pattern",
                                                    "format",
                                                    "properties",
                                                    "required",
                                                    "patternProperties",
                                                    "additionalProperties",
                                                    "propertyNames",
                                                    "minProperties",
                                                    "maxProperties",
                                                    "items",
                                                    "prefixItems",
                                                    "minItems",
                                                    "maxItems",
                                                    "contains",
                                                    "minContains",
                                                    "maxContains",
                                                    "allOf",
                                                    "anyOf",
                                                    "oneOf",
                                                    "not",
                                                    "if",
                                                    "then",
                                                    "else",
                                                    "dependentRequired",
                                                    "dependentSchemas",
                                                    "dependencies",
                                                    "uniqueItems",
                                                    "unevaluatedItems",
                                                    "unevaluatedProperties",
                                                    "additionalItems",
                                                    "$ref",
                                                    "$anchor",
                                                    "$id",
                                                    "$defs",
                                                    "string",
                                                    "object"};
  const auto draw = [&random](size_t n) { return random() % n; };
  switch (depth > 3 ? draw(6) : draw(12)) {
    case 0:
      return draw(2) == 0;
    case 1:
      return static_cast<int>(draw(4)) - 1;
    case 2:
      return 0.5;
    case 3:
      return nullptr;
    case 4:
      return draw(2) == 0 ? "#" : "a";
    case 5:
      return keywords[keywords.size() - 1 - draw(2)];
    case 6: {
      SchemaJson list = SchemaJson::array();
      for (size_t n = draw(3); n > 0; --n) list.push_back(random_value(random, depth + 1));
      return list;
    }
    default: {
      SchemaJson schema = SchemaJson::object();
      for (size_t n = draw(4); n > 0; --n) {
        schema[keywords[draw(keywords.size())]] = random_value(random, depth + 1);
      }
      return schema;
    }
  }
}

TEST(JsonSchema, AnythingEndsInAGrammarOrASentence) {
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    const std::string schema = random_value(random, 0).dump();
    try {
      static_cast<void>(parse_json_schema(schema));
    } catch (const Error&) {  // a sentence
    } catch (const std::exception& error) {
      FAIL() << schema << ": " << error.what();
    }
  }
}

TEST(JsonSchema, FollowsReferences) {
  expect_fits(R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties":
                 {"next": {"anyOf": [{"$ref": "#node"}, {"type": "null"}]}}, "required": ["next"],
                 "additionalProperties": false, "$anchor": "node"}}})",
              {R"({"next": {"next": null}})"}, {"null", R"({"next": {}})"});
}

TEST(JsonSchema, ResolvesReferencesAgainstTheirResource) {
  expect_fits(R"({"$id": "http://a.example/root", "$ref": "other/b", "$defs": {
                 "x": {"$id": "other/b", "type": "array", "items": {"$ref": "#/$defs/y"},
                       "$defs": {"y": {"$anchor": "z", "type": "integer"}}},
                 "w": {"$ref": "http://a.example/other/../other/b#z"}}})",
              {"[]", "[1]"}, {"1", "[\"a\"]"});
  expect_fits(R"({"$defs": {"n": {"$dynamicAnchor": "node", "type": "object", "properties":
                 {"next": {"$dynamicRef": "#node"}}, "additionalProperties": false}},
                 "$ref": "#node"})",
              {"{}", R"({"next": {"next": {}}})"}, {R"({"next": 1})", "1"});
  // Until draft 7 what is beside a reference says nothing, nor does its name.
  expect_fits(R"({"$schema": "http://json-schema.org/draft-07/schema#", "items":
                 {"$ref": "#/definitions/a%25b", "$id": "http://elsewhere/", "maximum": 3},
                 "definitions": {"a%b": {"type": "integer"}}})",
              {"[5]"}, {"[\"a\"]"});
}

TEST(JsonSchema, SaysWhatIsNot) {
  expect_fits(R"({"type": "number", "not": {"type": "integer"}})", {"1.5", "-0.25"},
              {"1", "2.0", "1e3"});
  expect_fits(R"({"type": "integer", "multipleOf": 2, "allOf": [{"multipleOf": 3}],
                  "not": {"multipleOf": 4}, "minimum": 0})",
              {"6", "18", "30"}, {"12", "8", "9", "3"});
  expect_fits(R"({"type": "number", "not": {"enum": [1, 0, 2.5]}})", {"1.5", "10", "2.51"},
              {"1", "1.0", "0", "-0", "2.50"});
  expect_fits(R"({"type": "array", "not": {"items": {"type": "integer"}}})",
              {"[\"a\"]", "[1, null, 2]"}, {"[]", "[1, 2]"});
  expect_fits(R"({"type": "array", "not": {"const": [1, 2]}})", {"[]", "[1]", "[1, 3]", "[1,2,3]"},
              {"[1, 2]"});
  expect_fits(R"({"type": "object", "not": {"patternProperties": {"^a": {"type": "string"}}}})",
              {R"({"a": 1})", R"({"b": 1, "ab": null})"}, {"{}", R"({"a": "x"})", R"({"b": 1})"});
  expect_fits(R"({"type": "object", "properties": {"k": {}}, "not": {"additionalProperties":
                  {"type": "null"}, "properties": {"k": {}}}})",
              {R"({"x": 1})", R"({"k": 1, "x": null, "y": 2})"},
              {"{}", R"({"k": 1})", R"({"x": null})"});
  expect_fits(R"({"type": "object", "not": {"anyOf": [{"propertyNames": {"maxLength": 1}},
                  {"propertyNames": {"not": {"const": "b"}}}]}})",
              {R"({"cc": 2, "b": 1})", R"({"b": 0, "cc": 2, "b": 1})"},
              {R"({"b": 1})", R"({"cc": 2})"});
  expect_fits(R"({"not": {"oneOf": [{"minimum": 3}, {"maximum": 5}]}, "type": "number"})",
              {"3", "4.5", "5"}, {"2", "6"});
  expect_fits(R"({"not": {"if": {"type": "string"}, "then": {"maxLength": 1}, "else":
                  {"type": "null"}}})",
              {"\"ab\"", "1", "[]"}, {"\"a\"", "null"});
  expect_fits(R"({"type": "string", "not": {"format": "ipv4"}, "maxLength": 7})",
              {"\"1.2.3\"", "\"\""}, {"\"1.2.3.4\""});
  // A schema that is what it is not, one level deeper.
  expect_fits(R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "not": {"contains":
                  {"$ref": "#/$defs/a"}}}}})",
              {"[]", "[1]", "[[[]]]"}, {"[[]]", "[1, []]", "null"});
}

TEST(JsonSchema, CountsWhatListsContain) {
  expect_fits(R"({"type": "array", "contains": {"type": "integer"}, "minContains": 1,
                  "maxContains": 2, "maxItems": 4})",
              {"[1]", "[null, 1, 2, null]"}, {"[]", "[null]", "[1, 2, 3]", "[1,null,null,null,1]"});
  expect_fits(R"({"type": "array", "allOf": [{"contains": {"minimum": 5}}, {"contains":
                  {"maximum": 3}}], "items": {"type": "integer"}, "prefixItems": [{"const": 4}]})",
              {"[4, 3, 5]", "[4, 5, 4, 3]"}, {"[4]", "[4, 5]", "[3, 5]", "[4, 3, 3]"});
  expect_fits(R"({"contains": {"type": "null"}, "minContains": 0, "maxContains": 0})",
              {"[]", "[1]", "null"}, {"[null]", "[1, null]"});
}

TEST(JsonSchema, KeepsFewItemsUnique) {
  expect_fits(R"({"type": "array", "items": {"enum": ["a", 1, 1.0, {"b": 2}]}, "uniqueItems": true,
                  "minItems": 1})",
              {R"(["a"])", R"([1, {"b": 2}, "a"])"}, {"[]", "[1, 1]", R"(["a", 1, "a"])"});
  expect_fits(R"({"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items":
                  {"type": "boolean"}, "uniqueItems": true})",
              {"[]", "[true, null, false]"}, {"[true, null, true]", "[null]"});
  expect_fits(R"({"enum": [[1, 2], [1, 1.0]], "uniqueItems": true})", {"[1, 2]"}, {"[1, 1]"});
}

TEST(JsonSchema, SeesWhatAlternativesEvaluate) {
  expect_fits(R"({"type": "object", "properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}],
                  "anyOf": [{"properties": {"c": {"const": 1}}, "required": ["c"]}, {"properties":
                  {"d": {"const": 1}}, "required": ["d"]}], "unevaluatedProperties": false})",
              {R"({"a": 0, "b": 0, "c": 1})", R"({"c": 1, "d": 1})"},
              {R"({"a": 0})", R"({"c": 1, "d": 2})", R"({"c": 1, "x": 1})"});
  expect_fits(R"({"type": "object", "if": {"properties": {"k": {"const": "x"}}, "required": ["k"]},
                  "then": {"properties": {"v": {}}}, "unevaluatedProperties": {"type": "null"}})",
              {R"({"k": "x", "v": 1})", R"({"v": null})", R"({"k": null})"},
              {R"({"v": 1})", R"({"k": "y"})"});
  expect_fits(R"({"type": "array", "prefixItems": [{}], "contains": {"type": "string"},
                  "unevaluatedItems": false})",
              {"[1, \"a\"]", "[\"a\"]"}, {"[1, 2, \"a\"]", "[1]"});
  // What another schema says of a member is not evaluated here.
  expect_fits(R"({"type": "object", "allOf": [{"properties": {"a": {}}}, {"unevaluatedProperties":
                  false}]})",
              {"{}"}, {R"({"a": 1})"});
}

TEST(JsonSchema, MergesWhatHoldsAtOnce) {
  expect_fits(R"({"allOf": [{"type": ["integer", "string"]}, {"minimum": 3}], "maximum": 5})",
              {"3", "5", "\"x\""}, {"2", "6", "null", "3.5"});
  expect_fits(R"({"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}}, "required":
                 ["k"]}, {"type": "object", "properties": {"k": {"const": "b"}}, "required":
                 ["k"]}]})",
              {R"({"k": "a"})", R"({"k": "b"})"}, {"{}", R"({"k": "c"})"});
  expect_fits(R"({"oneOf": [{"type": ["number", "string"]}, {"enum": ["a", "b"]}]})",
              {"1", "\"c\"", "1.5"}, {"\"a\"", "\"b\"", "null"});
  expect_fits(R"({"enum": [1, "a", {"b": [2]}, null], "type": ["object", "string"]})",
              {"\"a\"", R"({"b": [2]})"}, {"1", "null"});
  expect_fits(R"({"type": "string", "not": {"enum": ["a", "b"]}})", {"\"\"", "\"ab\""},
              {"\"a\"", "\"b\"", "1"});
  expect_fits(R"({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "if":
                 {"properties": {"a": {"const": "x"}}, "required": ["a"]}, "then": {"required":
                 ["b"]}, "additionalProperties": false})",
              {R"({"a": "x", "b": 2})", "{}", R"({"b": 1})", R"({"a": "y"})"}, {R"({"a": "x"})"});
  expect_fits(R"({"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired":
                 {"a": ["b"]}, "maxProperties": 2})",
              {"{}", R"({"b": 1})", R"({"a": 1, "b": 2})", R"({"b": 1, "c": 2})"},
              {R"({"a": 1})", R"({"a": 1, "b": 2, "c": 3})"});
}

TEST(JsonSchema, NamesWhatItRefuses) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {R"({"$dynamicRef": "#x"})", "$dynamicRef"},
      {R"({"$dynamicRef": "#x", "$dynamicAnchor": "x", "$defs": {"a": {"$dynamicAnchor": "x"}}})",
       "several"},
      {R"({"$id": "http://a/b", "items": {"$ref": "c"}})", "\"c\", which is not in this document"},
      {R"({"not": {"uniqueItems": true}})", "\"not\" or \"if\" of \"uniqueItems\""},
      {R"({"not": {"x": 1, "divisibleBy": 2}})", "divisibleBy"},
      {R"({"contains": {"type": "null"}, "maxContains": 30000})", "contains"},
      {R"({"$ref": "http://other/schema"})", "$ref"},
      {R"({"$ref": "#/nowhere"})", "$ref"},
      {R"({"uniqueItems": true})", "uniqueItems"},
      {R"({"properties": {"a": {"format": "regex"}}})", "#/properties/a has the \"format\""},
      {R"({"properties": {"a": {"not": {"format": "x"}}}})", "has the \"format\" \"x\""},
      {R"s({"pattern": "(?=a)"})s", "looks ahead"},
      {R"({"type": "text"})", "type"},
      {R"({"minLength": -1})", "minLength"},
      {R"({"oneOf": [{"pattern": "a"}, {"unevaluatedItems": {"type": "null"}}]})", "oneOf"},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", "unsatisfiable"},
      {R"({"type": "object", "properties": {"a": false}, "required": ["a"]})", "unsatisfiable"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
       "unsatisfiable"},
      {"false", "unsatisfiable"},
      {"[1", "JSON"},
      {"3", "no object"},
      {std::string(kMaxSchemaBytes + 1, ' '), "bytes"},
      {R"({"type": "string", "pattern": "(a|b)*a(a|b){20}"})", "states"},
      {R"s({"type": "string", "pattern": "\\p{L}.{10}\\p{L}"})s", "work"},
      {R"s({"type": "string", "pattern": "((a{1000}){1000}){1000}"})s", "states"}};
  for (const auto& [schema, reason] : refused) {
    EXPECT_NE(refusal(schema).find(reason), std::string::npos)
        << schema.substr(0, 80) << ": " << refusal(schema);
  }
}

TEST(JsonSchema, BoundsHostileOnes) {
  // Chains of references, and alternatives of alternatives.
  std::string chain = R"({"$ref": "#/$defs/0", "$defs": {)";
  for (int i = 0; i < 5000; ++i) {
    chain += "\"" + std::to_string(i) + R"(": {"items": {"$ref": "#/$defs/)" +
             std::to_string(i + 1) + "\"}},";
  }
  EXPECT_NE(refusal(chain + R"("5000": {}}})").find("too deep"), std::string::npos);
  if (kSanitized) return;  // takes seconds as it is
  std::string product = R"({"allOf": [)";
  for (int i = 0; i < 20; ++i) {
    const std::string name = "p" + std::to_string(i);
    product += std::string(i > 0 ? "," : "") + R"({"anyOf": [{"required": [")" + name +
               R"("]}, {"properties": {")" + name + R"(x": {"type": "null"}}}]})";
  }
  EXPECT_NE(refusal(product + "]}").find("too much work"), std::string::npos);
  // Conditions of which each asks for another value are few, since one of them holds.
  std::string conditions = R"({"type": "object", "allOf": [)";
  for (int i = 0; i < 15; ++i) {
    const std::string n = std::to_string(i);
    conditions += std::string(i > 0 ? "," : "") + R"({"if": {"properties": {"k": {"const": )" + n +
                  R"(}}, "required": ["k"]}, "then": {"required": ["v)" + n + R"("]}})";
  }
  EXPECT_EQ(refusal(conditions + "]}"), "");
}

// Else what a schema costs would depend on where its parts are in memory.
// Each part has its place, each reference the place that it leads to, and both their URI.
TEST(JsonSchema, TakesNoMemoryForLongNamesOverAndOver) {
  const std::string name(200'000, 'a');
  std::string parts = "{";
  std::string references = "{";
  for (int i = 0; i < 300; ++i) {
    const std::string key = (i == 0 ? "\"p" : ",\"p") + std::to_string(i);
    parts += key + "\":{}";
    references += key + R"(":{"$ref":"#to"})";
  }
  parts += '}';
  references += '}';
  for (const std::string& schema :
       {R"({"properties":{")" + name + R"(":{"properties":)" + parts + "}}}",
        R"({"$id":"https://a/)" + name + R"(","properties":)" + parts + "}",
        R"({"$defs":{")" + name + R"(":{"$anchor":"to"}},"properties":)" + references + "}"}) {
    EXPECT_NE(refusal(schema).find("long names"), std::string::npos) << schema.substr(0, 40);
  }
}

TEST(JsonSchema, ShowsOfLongNamesTheStart) {
  const std::string name(10'000, 'a');
  for (const std::string& schema : {R"({"properties":{")" + name + R"(":5}})",
                                    R"({"properties":{")" + name + R"(":{"minLength":"x"}}})",
                                    R"({"properties":{")" + name + R"(":{"disallow":"any"}}})",
                                    R"({"type":"string","format":")" + name + "\"}"}) {
    const std::string sentence = refusal(schema);
    EXPECT_NE(sentence.find("aaa..."), std::string::npos) << sentence.substr(0, 400);
    EXPECT_LT(sentence.size(), 400U) << schema.substr(0, 40);
  }
}

TEST(SchemaDocument, OrdersPartsOfWhatIsMade) {
  SchemaDocument document(R"({"properties": {"a": true, "b": {}}})");
  const SchemaJson& first = document.keep(
      SchemaJson::parse(R"({"allOf": [true, {"not": {}}, false], "enum": [1, [2]]})"));
  const SchemaJson& second = document.keep(SchemaJson::parse(R"({"items": true})"));
  const SchemaJson& parts = first.at("allOf");
  size_t before = document.position(document.root().at("properties").at("b"));
  for (const SchemaJson* part : {&first, &parts, &parts[0], &parts[1], &parts[1].at("not"),
                                 &parts[2], &second, &second.at("items")}) {
    EXPECT_GT(document.position(*part), before) << *part;
    before = document.position(*part);
  }
  EXPECT_EQ(document.place(parts[1]), "#");
}

}  // namespace
}  // namespace faststream::rules
