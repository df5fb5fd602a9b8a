// Texts that tokenizers get wrong, the same in every run.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace faststream {

/// What text is made of: words, spaces of all kinds, scripts, emoji, and bytes that are no UTF-8.
inline std::vector<std::string> text_fragments() {
  std::vector<std::string> fragments = {
      "a",
      "the",
      "Hello",
      "world",
      "don't",
      "once upon a time",
      "1234567890",
      "3.14",
      "e",
      "X",
      "int main(void) { return 0; }",
      "https://example.org/?q=1&r=%20#top",
      "snake_case",
      "A.B.C.",
      "<s>",
      "</s>",
      "<unk>",
      "<0x0A>",
      "[INST]",
      "\xE2\x96\x81",
      "\xE2\x96\x81the",
      // Spaces: single, doubled, tabs, line ends, no-break, em, ideographic, zero width, BOM.
      " ",
      "  ",
      "     ",
      "\t",
      "\n",
      "\n\n",
      "\r\n",
      "\r",
      "\v",
      "\f",
      "\xC2\xA0",
      "\xE2\x80\x83",
      "\xE3\x80\x80",
      "\xE2\x80\x8B",
      "\xEF\xBB\xBF",
      "\xE2\x80\xA8",
      "\xC2\x85",
      // Emoji: plain, skin tone, family joined by ZWJ, flag, keycap.
      "\xF0\x9F\x98\x80",
      "\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD",
      "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7",
      "\xF0\x9F\x87\xA8\xF0\x9F\x87\xAD",
      "1\xEF\xB8\x8F\xE2\x83\xA3",
      // Scripts: German, Greek, Cyrillic, Chinese, Japanese, Korean, Thai, Hindi, Hebrew, Arabic.
      "Gr\xC3\xBC\xC3\x9F Gott",
      "\xCE\xBB\xCF\x8C\xCE\xB3\xCE\xBF\xCF\x82",
      "\xD0\xBF\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82",
      "\xE4\xBD\xA0\xE5\xA5\xBD",
      "\xE4\xB8\x96\xE7\x95\x8C",
      "\xE3\x81\x93\xE3\x82\x93\xE3\x81\xAB\xE3\x81\xA1\xE3\x81\xAF",
      "\xED\x95\x9C\xEA\xB5\xAD\xEC\x96\xB4",
      "\xE0\xB8\xAA\xE0\xB8\xA7\xE0\xB8\xB1\xE0\xB8\xAA",
      "\xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D\xE0\xA4\xA4\xE0\xA5\x87",
      "\xD7\xA9\xD7\x9C\xD7\x95\xD7\x9D",
      "\xE2\x80\xAB\xD9\x85\xD8\xB1\xD8\xAD\xD8\xA8\xD8\xA7\xE2\x80\xAC",
      // Combining marks: decomposed, piled up, alone; rare planes; private use; noncharacter;
      // U+FFFD.
      "e\xCC\x81",
      "a\xCC\x81\xCC\xA7\xCD\x93\xCC\x88",
      "\xCC\x81",
      "\xF0\xA0\x80\x80",
      "\xF0\x9D\x94\x98",
      "\xEE\x80\x80",
      "\xEF\xBF\xBE",
      "\xEF\xBF\xBD",
      "\xF4\x8F\xBF\xBF",
      // No UTF-8: continuation alone, cut short, overlong, surrogate, above U+10FFFF, FE and FF.
      "\x80",
      "\xBF\xBF",
      "\xC3",
      "\xE2\x82",
      "\xF0\x9F\x98",
      "\xC0\xAF",
      "\xC1\xBF",
      "\xE0\x80\xAF",
      "\xF0\x80\x80\xAF",
      "\xED\xA0\x80",
      "\xED\xA0\xBD\xED\xB8\x80",
      "\xF4\x90\x80\x80",
      "\xF5\x80\x80\x80",
      "\xFE",
      "\xFF",
      "\xE2(\xA1",
      "\xF0(\x8C\xBC",
  };
  for (char c = 0; c < 0x20; ++c) fragments.emplace_back(1, c);  // control characters and NUL
  fragments.emplace_back("\x7F");
  return fragments;
}

/// `count` fragments in random order, with spaces between some.
inline std::string random_text(std::mt19937& random, size_t count) {
  static const std::vector<std::string> fragments = text_fragments();
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += fragments[random() % fragments.size()];
    if (random() % 3 == 0) text += ' ';
  }
  return text;
}

/// At least 500 texts: nothing, each fragment alone and between letters, long runs, random mixtures
/// and two of 100 kB.
inline std::vector<std::string> text_samples() {
  std::vector<std::string> samples = {"", std::string(1000, 'a'), std::string(1000, ' '),
                                      std::string(300, '\n'), std::string(200, '\xF0')};
  for (const std::string& fragment : text_fragments()) {
    samples.push_back(fragment);
    samples.push_back(" " + fragment + " ");
    samples.push_back("x" + fragment + "y");
  }
  std::mt19937 random(20);
  for (size_t i = 0; i < 300; ++i) samples.push_back(random_text(random, 1 + random() % 20));
  std::string words;
  while (words.size() < 100'000) {
    for (size_t length = 1 + random() % 9; length > 0; --length) {
      words += static_cast<char>('a' + random() % 26);
    }
    words += random() % 12 == 0 ? ".\n" : " ";
  }
  samples.push_back(words);
  std::string mixture;
  while (mixture.size() < 100'000) mixture += random_text(random, 100);
  samples.push_back(mixture);
  return samples;
}

}  // namespace faststream
