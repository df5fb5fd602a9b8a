// The patterns are those of the models' own tokenizer.json. Where llama.cpp's differ, they say the
// same without what its engine lacks ((?i:...), \p{Lu}, possessive quantifiers).
#include "convert/tokenizers/pretokenizers.h"

#include <array>
#include <nlohmann/json.hpp>
#include <string>

namespace faststream::convert {
namespace {

using nlohmann::json;

template <size_t n>
using Patterns = std::array<std::string_view, n>;

constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseek3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200kWords =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kKana = R"([一-龥぀-ゟ゠-ヿ]+)";
// Groups of three digits from the right, in time linear in the digits.
constexpr std::string_view kThousands =
    R"((?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})++(?!\p{N}))|\p{N}{3})";

constexpr Patterns<1> kGpt2 = {kGpt2Words};
constexpr Patterns<2> kDigitsGpt2 = {R"(\p{N})", kGpt2Words};
constexpr Patterns<1> kLlama3 = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Patterns<1> kJais2 = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S))"
    R"(|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})"};
constexpr Patterns<1> kQwen2 = {kQwen2Words};
constexpr Patterns<2> kLaguna = {R"([^\n]+|[\n]+)", kQwen2Words};
constexpr Patterns<1> kQwen35 = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Patterns<1> kUfakzeka = {
    R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Patterns<1> kSeedCoder = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Patterns<1> kBailing = {
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*)"
    R"(|\s*[\r\n]|\s+(?!\S)|\s+)"};
constexpr Patterns<1> kExaoneMoe = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)"};
constexpr Patterns<2> kMinicpm5 = {
    R"(\p{N}{1,3})",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Patterns<1> kTekken = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Patterns<1> kO200k = {kO200kWords};
constexpr Patterns<2> kTinyAya = {R"(\d{1,3}(?=(?:\d{3})*\b))", kO200kWords};
constexpr Patterns<2> kYoutu = {
    R"([가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr Patterns<1> kKimiK2 = {
    R"(\p{Han}+)"
    R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*)"
    R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+)"
    R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
// Its second pattern: letters that have an upper and a lower case.
constexpr Patterns<6> kDeepseekLlm = {
    R"([\r\n])",
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF})"
    R"(\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F})"
    R"(\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481})"
    R"(\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD})"
    R"(\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77})"
    R"(\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45})"
    R"(\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D})"
    R"(\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC})"
    R"(\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"
    R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06})"
    R"(\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F})"
    R"(\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2})"
    R"(\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+)",
    R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)",
    R"(\s+$)",
    R"([一-龥ࠀ-一가-퟿]+)",
    R"(\p{N}+)"};
constexpr Patterns<5> kDeepseekCoder = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                                        R"([一-龥ࠀ-一가-퟿]+)", R"(\p{N})"};
constexpr Patterns<3> kDeepseek3 = {R"(\p{N}{1,3})", kKana, kDeepseek3Words};
constexpr Patterns<4> kSpark = {
    R"(\p{N}{1,3})", kKana,
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)",
    R"(\p{N})"};
constexpr Patterns<4> kAfmoe = {
    R"(\p{N}+)", kThousands,
    R"([一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+)",
    kDeepseek3Words};
constexpr Patterns<2> kSuperBpe = {R"(\p{N}+)", kThousands};
constexpr Patterns<3> kFalcon = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2Words, R"([0-9][0-9][0-9])"};
constexpr Patterns<4> kDefault = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Words, R"(\p{N}+)",
                                  R"([0-9][0-9][0-9])"};
constexpr Patterns<1> kBloom = {R"( ?[^(\s|.,!?…。，、।۔،)]+)"};
constexpr Patterns<2> kViking = {R"( ?[^(\s|.,!?…。，、।۔،)]+)", R"(\p{N})"};
constexpr Patterns<6> kChameleon = {
    R"(<sentinel:[0-9]+>)",    R"((IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z)",
    R"(([\t\n]|    |  ))",     R"(\p{N})",
    R"([\p{P}!-/:-@\[-`{-~])", kGpt2Words};
constexpr Patterns<1> kLineRuns = {R"([^\n]+|[\n]+)"};

struct Named {
  std::string_view name;
  Pretokenizer pretokenizer;
};

using enum Pretokenizer::Spelling;

constexpr Named kNamed[] = {
    {"default", {kDefault}},
    {"llama3", {kLlama3, byte_level, true, true}},
    {"llama-v3", {kLlama3, byte_level, true, true}},
    {"llama-bpe", {kLlama3, byte_level, true, true}},
    {"falcon3", {kLlama3, byte_level, true, true}},
    {"falcon-h1", {kLlama3, byte_level, true, true}},
    {"pixtral", {kLlama3, byte_level, true, true}},
    {"midm-2.0", {kLlama3, byte_level, true, true}},
    {"lfm2", {kLlama3, byte_level, true, true}},
    {"jina-v5-nano", {kLlama3, byte_level, true, true}},
    {"dbrx", {kLlama3}},
    {"smaug-bpe", {kLlama3}},
    {"chatglm-bpe", {kLlama3}},
    {"glm4", {kLlama3, byte_level, true}},
    {"glm5", {kLlama3, byte_level, true}},
    {"jais-2", {kJais2}},
    {"minicpm5", {kMinicpm5, byte_level, true}},
    {"tekken", {kTekken, byte_level, true, true}},
    {"deepseek-llm", {kDeepseekLlm}},
    {"deepseek-coder", {kDeepseekCoder}},
    {"deepseek-v3", {kDeepseek3}},
    {"hunyuan-dense", {kDeepseek3}},
    {"joyai-llm", {kDeepseek3}},
    {"hy_v4", {kDeepseek3}},
    {"spark2_5", {kSpark}},
    {"afmoe", {kAfmoe}},
    {"youtu", {kYoutu, byte_level, true}},
    {"falcon", {kFalcon}},
    {"gpt-2", {kGpt2}},
    {"phi-2", {kGpt2}},
    {"jina-es", {kGpt2}},
    {"jina-de", {kGpt2}},
    {"jina-v1-en", {kGpt2, byte_level, false, false, true}},
    {"jina-v2-es", {kGpt2}},
    {"jina-v2-de", {kGpt2}},
    {"jina-v2-code", {kGpt2, byte_level, false, false, true}},
    {"roberta-bpe", {kGpt2, byte_level, false, false, true}},
    {"gigachat", {kGpt2}},
    {"a.x-4.0", {kGpt2}},
    {"mellum", {kGpt2}},
    {"modern-bert", {kGpt2}},
    {"exaone4", {kGpt2}},
    {"mpt", {kGpt2}},
    {"olmo", {kGpt2}},
    {"jais", {kGpt2}},
    {"trillion", {kGpt2}},
    {"granite-docling", {kGpt2}},
    {"starcoder", {kDigitsGpt2}},
    {"refact", {kDigitsGpt2}},
    {"command-r", {kDigitsGpt2}},
    {"smollm", {kDigitsGpt2}},
    {"codeshell", {kDigitsGpt2}},
    {"exaone", {kDigitsGpt2}},
    {"minerva-7b", {kDigitsGpt2}},
    {"mellum2", {kDigitsGpt2}},
    {"exaone-moe", {kExaoneMoe}},
    {"qwen2", {kQwen2}},
    {"deepseek-r1-qwen", {kQwen2}},
    {"kormo", {kQwen2}},
    {"f2llmv2", {kQwen2}},
    {"megrez", {kQwen2}},
    {"stablelm2", {kQwen2}},
    {"hunyuan", {kQwen2}},
    {"solar-open", {kQwen2}},
    {"grok-2", {kQwen2}},
    {"laguna", {kLaguna}},
    {"qwen35", {kQwen35}},
    {"ufakzeka", {kUfakzeka}},
    {"seed-coder", {kSeedCoder}},
    {"bailingmoe", {kBailing}},
    {"bailingmoe2", {kBailing}},
    {"llada-moe", {kBailing}},
    {"gpt-4o", {kO200k}},
    {"llama4", {kO200k}},
    {"kanana2", {kO200k}},
    {"talkie", {kO200k}},
    {"minimax-m2", {kO200k}},
    {"granite-embed-multi-97m", {kO200k, byte_level, true}},
    {"tiny_aya", {kTinyAya}},
    {"cohere2moe", {kTinyAya}},
    {"kimi-k2", {kKimiK2}},
    {"superbpe", {kSuperBpe}},
    {"poro-chat", {kBloom}},
    {"bloom", {kBloom}},
    {"gpt3-finnish", {kBloom}},
    {"viking", {kViking}},
    {"chameleon", {kChameleon, byte_level, false, true}},
    {"gemma4", {kLineRuns, text, false, true}},
    {"granite-embed-multi-311m", {kLineRuns, text, false, true}},
    {"sarvam-moe", {kLineRuns, text}},
    {"whitespace", {{}, words}},
};

json split(std::string_view pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

json sequence(const char* members, json parts) {
  return {{"type", "Sequence"}, {members, std::move(parts)}};
}

json byte_level_part() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", false}};
}

}  // namespace

const Pretokenizer* find_pretokenizer(std::string_view name) {
  for (const Named& named : kNamed) {
    if (named.name == name) return &named.pretokenizer;
  }
  return nullptr;
}

json bpe_pipeline(const Pretokenizer& pretokenizer) {
  json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", pretokenizer.spelling == Pretokenizer::Spelling::text},
                {"ignore_merges", pretokenizer.ignore_merges}};
  json normalizer;
  json parts = json::array();
  for (const std::string_view pattern : pretokenizer.patterns) parts.push_back(split(pattern));
  json decoder;
  switch (pretokenizer.spelling) {
    case Pretokenizer::Spelling::byte_level:
      parts.push_back(byte_level_part());
      decoder = byte_level_part();
      break;
    case Pretokenizer::Spelling::text:
      normalizer = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
      decoder = sequence("decoders",
                         {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                          {{"type", "ByteFallback"}},
                          {{"type", "Fuse"}}});
      break;
    case Pretokenizer::Spelling::words:
      parts.push_back({{"type", "WhitespaceSplit"}});
      break;
  }
  return {{"normalizer", std::move(normalizer)},
          {"pre_tokenizer", sequence("pretokenizers", std::move(parts))},
          {"post_processor", nullptr},
          {"decoder", std::move(decoder)},
          {"model", std::move(model)}};
}

}  // namespace faststream::convert
