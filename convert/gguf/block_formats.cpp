// A block is a few scales and the packed numbers that they scale. All products here are exact in
// binary32 (half-precision scale: 11 bits; scale of a group: at most 7; number: at most 6), so that
// only the last subtraction rounds, and a compiler that fuses it changes nothing.
#include "convert/gguf/block_formats.h"

#include <array>
#include <bit>
#include <cstring>
#include <span>

namespace faststream::convert {
namespace {

template <typename T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

float half(const uint8_t* from) { return static_cast<float>(load<Float16>(from)); }
int low(uint8_t byte) { return byte & 0xF; }
int high(uint8_t byte) { return byte >> 4; }
int bit(const uint8_t* bits, int i) { return bits[i / 8] >> (i % 8) & 1; }

// Non-linear levels of four bits: of IQ4_NL and IQ4_XS, and twice those of FP4 (E2M1).
constexpr std::array<float, 16> kIq4Levels = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};
constexpr std::array<float, 16> kFp4Levels = {0, 1,  2,  3,  4,  6,  8,  12,
                                              0, -1, -2, -3, -4, -6, -8, -12};

// --- Blocks of 32: low four bits of bytes are elements 0 to 15, high ones 16 to 31 ---------------

struct Q40 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 18;
  static void decode(const uint8_t* in, float* out) {
    const float scale = half(in);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(low(in[2 + i]) - 8);
      out[i + 16] = scale * static_cast<float>(high(in[2 + i]) - 8);
    }
  }
};

struct Q41 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 20;
  static void decode(const uint8_t* in, float* out) {
    const float scale = half(in);
    const float least = half(in + 2);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(low(in[4 + i])) + least;
      out[i + 16] = scale * static_cast<float>(high(in[4 + i])) + least;
    }
  }
};

struct Q50 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 22;
  static void decode(const uint8_t* in, float* out) {
    const float scale = half(in);
    const uint8_t* fifth = in + 2;
    const uint8_t* bits = in + 6;
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>((low(bits[i]) | bit(fifth, i) << 4) - 16);
      out[i + 16] = scale * static_cast<float>((high(bits[i]) | bit(fifth, i + 16) << 4) - 16);
    }
  }
};

struct Q51 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 24;
  static void decode(const uint8_t* in, float* out) {
    const float scale = half(in);
    const float least = half(in + 2);
    const uint8_t* fifth = in + 4;
    const uint8_t* bits = in + 8;
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(low(bits[i]) | bit(fifth, i) << 4) + least;
      out[i + 16] = scale * static_cast<float>(high(bits[i]) | bit(fifth, i + 16) << 4) + least;
    }
  }
};

struct Q80 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 34;
  static void decode(const uint8_t* in, float* out) {
    const float scale = half(in);
    for (int i = 0; i < 32; ++i) {
      out[i] = static_cast<float>(static_cast<int8_t>(in[2 + i])) * scale;
    }
  }
};

struct Iq4Nl {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 18;
  static void decode(const uint8_t* in, float* out) {
    const float scale = half(in);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * kIq4Levels[static_cast<size_t>(low(in[2 + i]))];
      out[i + 16] = scale * kIq4Levels[static_cast<size_t>(high(in[2 + i]))];
    }
  }
};

struct Mxfp4 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 17;
  static void decode(const uint8_t* in, float* out) {
    // Half of 2^(exponent - 127), since the levels are doubled; the two smallest are subnormal.
    const uint32_t exponent = in[0];
    const float scale =
        std::bit_cast<float>(exponent < 2 ? 0x200000U << exponent : (exponent - 1) << 23);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * kFp4Levels[static_cast<size_t>(low(in[1 + i]))];
      out[i + 16] = scale * kFp4Levels[static_cast<size_t>(high(in[1 + i]))];
    }
  }
};

// --- Blocks of 256: groups of 16 or 32, whose scales are integers times the block's --------------

struct Q2K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 84;
  static void decode(const uint8_t* in, float* out) {
    const uint8_t* scales = in;  // low: the scale of a group of 16, high: of its minimum
    const uint8_t* bits = in + 16;
    const float scale = half(in + 80);
    const float minimum = half(in + 82);
    for (int i = 0; i < 256; ++i) {
      const int group = i / 16;
      const int level = bits[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
      out[i] = scale * static_cast<float>(low(scales[group])) * static_cast<float>(level) -
               minimum * static_cast<float>(high(scales[group]));
    }
  }
};

struct Q3K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 110;
  static void decode(const uint8_t* in, float* out) {
    const uint8_t* third = in;  // bit i / 32 of byte i % 32; not set: 4 less
    const uint8_t* bits = in + 32;
    const uint8_t* packed = in + 96;
    const float scale = half(in + 108);
    std::array<float, 16> scales;  // of groups of 16: four bits in bytes 0 to 7, two in 8 to 11
    for (int group = 0; group < 16; ++group) {
      const uint8_t byte = packed[group % 8];
      const int top = packed[8 + group % 4] >> (group / 4 * 2) & 3;
      const int value = ((group < 8 ? low(byte) : high(byte)) | top << 4) - 32;
      scales[static_cast<size_t>(group)] = scale * static_cast<float>(value);
    }
    for (int i = 0; i < 256; ++i) {
      const int level = bits[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
      const int offset = (third[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4;
      out[i] = scales[static_cast<size_t>(i / 16)] * static_cast<float>(level - offset);
    }
  }
};

// Scale and minimum of the eight groups of 32 of Q4_K and Q5_K: six bits each, in twelve bytes.
struct GroupScales {
  std::array<float, 8> scale;
  std::array<float, 8> minimum;

  explicit GroupScales(const uint8_t* in) {
    const float block_scale = half(in);
    const float block_minimum = half(in + 2);
    const uint8_t* packed = in + 4;
    for (int i = 0; i < 4; ++i) {
      const auto group = static_cast<size_t>(i);
      const uint8_t first = packed[i];
      const uint8_t second = packed[4 + i];
      const uint8_t rest = packed[8 + i];
      scale[group] = block_scale * static_cast<float>(first & 0x3F);
      minimum[group] = block_minimum * static_cast<float>(second & 0x3F);
      scale[group + 4] = block_scale * static_cast<float>(low(rest) | (first >> 2 & 0x30));
      minimum[group + 4] = block_minimum * static_cast<float>(high(rest) | (second >> 2 & 0x30));
    }
  }
};

struct Q4K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 144;
  static void decode(const uint8_t* in, float* out) {
    const GroupScales groups(in);
    const uint8_t* bits = in + 16;
    for (int i = 0; i < 256; ++i) {
      const auto group = static_cast<size_t>(i / 32);
      const int level = bits[i / 64 * 32 + i % 32] >> (group % 2 * 4) & 0xF;
      out[i] = groups.scale[group] * static_cast<float>(level) - groups.minimum[group];
    }
  }
};

struct Q5K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 176;
  static void decode(const uint8_t* in, float* out) {
    const GroupScales groups(in);
    const uint8_t* fifth = in + 16;  // bit i / 32 of byte i % 32
    const uint8_t* bits = in + 48;
    for (int i = 0; i < 256; ++i) {
      const auto group = static_cast<size_t>(i / 32);
      const int level =
          (bits[i / 64 * 32 + i % 32] >> (group % 2 * 4) & 0xF) | (fifth[i % 32] >> group & 1) << 4;
      out[i] = groups.scale[group] * static_cast<float>(level) - groups.minimum[group];
    }
  }
};

struct Q6K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 210;
  static void decode(const uint8_t* in, float* out) {
    const uint8_t* bits = in;          // four bits
    const uint8_t* top = in + 128;     // and two
    const uint8_t* scales = in + 192;  // signed, of groups of 16
    const float scale = half(in + 208);
    for (int i = 0; i < 256; ++i) {
      const int in_half = i % 128;
      const int four = bits[i / 128 * 64 + in_half % 64] >> (in_half / 64 * 4) & 0xF;
      const int two = top[i / 128 * 32 + in_half % 32] >> (in_half / 32 * 2) & 3;
      out[i] = scale * static_cast<float>(static_cast<int8_t>(scales[i / 16])) *
               static_cast<float>((four | two << 4) - 32);
    }
  }
};

struct Iq4Xs {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 136;
  static void decode(const uint8_t* in, float* out) {
    const float scale = half(in);
    const auto top = load<uint16_t>(in + 2);  // two bits of each group's scale
    const uint8_t* packed = in + 4;           // and four
    const uint8_t* bits = in + 8;
    for (int group = 0; group < 8; ++group) {
      const int value = (packed[group / 2] >> (group % 2 * 4) & 0xF) | (top >> (2 * group) & 3)
                                                                           << 4;
      const float group_scale = scale * static_cast<float>(value - 32);
      for (int i = 0; i < 16; ++i) {
        const uint8_t byte = bits[group * 16 + i];
        out[group * 32 + i] = group_scale * kIq4Levels[static_cast<size_t>(low(byte))];
        out[group * 32 + i + 16] = group_scale * kIq4Levels[static_cast<size_t>(high(byte))];
      }
    }
  }
};

template <typename Block>
void decode_blocks(const std::byte* in, std::span<float> out) {
  const auto* block = reinterpret_cast<const uint8_t*>(in);
  for (size_t first = 0; first < out.size(); first += Block::kElements) {
    Block::decode(block, out.data() + first);
    block += Block::kBytes;
  }
}

template <typename Block>
constexpr ElementFormat format_of(std::string_view name) {
  return {name, Block::kElements, Block::kBytes, DType::bf16, decode_blocks<Block>};
}

constexpr ElementFormat kQ40 = format_of<Q40>("Q4_0");
constexpr ElementFormat kQ41 = format_of<Q41>("Q4_1");
constexpr ElementFormat kQ50 = format_of<Q50>("Q5_0");
constexpr ElementFormat kQ51 = format_of<Q51>("Q5_1");
constexpr ElementFormat kQ80 = format_of<Q80>("Q8_0");
constexpr ElementFormat kQ2K = format_of<Q2K>("Q2_K");
constexpr ElementFormat kQ3K = format_of<Q3K>("Q3_K");
constexpr ElementFormat kQ4K = format_of<Q4K>("Q4_K");
constexpr ElementFormat kQ5K = format_of<Q5K>("Q5_K");
constexpr ElementFormat kQ6K = format_of<Q6K>("Q6_K");
constexpr ElementFormat kIq4Nl = format_of<Iq4Nl>("IQ4_NL");
constexpr ElementFormat kIq4Xs = format_of<Iq4Xs>("IQ4_XS");
constexpr ElementFormat kMxfp4 = format_of<Mxfp4>("MXFP4");

struct NumberedFormat {
  uint32_t type;
  const ElementFormat* format;
};

// Numbers of enum ggml_type.
constexpr std::array<NumberedFormat, 17> kFormats = {{{0, &kF32Format},
                                                      {1, &kF16Format},
                                                      {30, &kBf16Format},
                                                      {28, &kF64Format},
                                                      {2, &kQ40},
                                                      {3, &kQ41},
                                                      {6, &kQ50},
                                                      {7, &kQ51},
                                                      {8, &kQ80},
                                                      {10, &kQ2K},
                                                      {11, &kQ3K},
                                                      {12, &kQ4K},
                                                      {13, &kQ5K},
                                                      {14, &kQ6K},
                                                      {20, &kIq4Nl},
                                                      {23, &kIq4Xs},
                                                      {39, &kMxfp4}}};

struct NumberedName {
  uint32_t type;
  std::string_view name;
};

constexpr std::array<NumberedName, 18> kOtherNames = {{{9, "Q8_1"},
                                                       {15, "Q8_K"},
                                                       {16, "IQ2_XXS"},
                                                       {17, "IQ2_XS"},
                                                       {18, "IQ3_XXS"},
                                                       {19, "IQ1_S"},
                                                       {21, "IQ3_S"},
                                                       {22, "IQ2_S"},
                                                       {24, "I8"},
                                                       {25, "I16"},
                                                       {26, "I32"},
                                                       {27, "I64"},
                                                       {29, "IQ1_M"},
                                                       {34, "TQ1_0"},
                                                       {35, "TQ2_0"},
                                                       {40, "NVFP4"},
                                                       {41, "Q1_0"},
                                                       {42, "Q2_0"}}};

}  // namespace

const ElementFormat* find_ggml_format(uint32_t type) {
  for (const NumberedFormat& entry : kFormats) {
    if (entry.type == type) return entry.format;
  }
  return nullptr;
}

std::string ggml_type_name(uint32_t type) {
  if (const ElementFormat* format = find_ggml_format(type)) return std::string(format->name);
  for (const NumberedName& entry : kOtherNames) {
    if (entry.type == type) return std::string(entry.name);
  }
  return "number " + std::to_string(type);
}

std::string convertible_ggml_types() {
  std::string names;
  for (const NumberedFormat& entry : kFormats) {
    if (&entry == &kFormats.back()) {
      names += " and ";
    } else if (!names.empty()) {
      names += ", ";
    }
    names += entry.format->name;
  }
  return names;
}

}  // namespace faststream::convert
