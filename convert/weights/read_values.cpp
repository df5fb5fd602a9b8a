#include "convert/weights/read_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "convert/weights/elements.h"
#include "convert/weights/low_rank_update.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

// Of lines that become columns, at a time: two cache lines of each row.
constexpr int64_t kLinesTogether = 32;

using Raw = std::vector<std::byte>;

// Elements of a plain tensor as they lie in the file.
void read_elements(const Checkpoint& checkpoint, const SourceTensor& tensor, int64_t first,
                   std::span<float> out, Raw& raw) {
  const int64_t block = tensor.format->block_elements;
  const auto count = static_cast<int64_t>(out.size());
  const int64_t before = first % block;
  const int64_t whole = (before + count + block - 1) / block * block;
  raw.resize(tensor.format->bytes(whole));
  checkpoint.read(tensor, first - before, raw);
  if (whole == count) {
    tensor.format->decode(raw.data(), out);
  } else {  // out begins or ends within a block
    std::vector<float> values(static_cast<size_t>(whole));
    tensor.format->decode(raw.data(), values);
    std::copy_n(values.begin() + before, count, out.begin());
  }
}

// The numbers that take whole words together, and where each is: in one word or at the end of it
// and the beginning of the next.
class Unit {
 public:
  static constexpr int64_t kMost = 32;

  explicit Unit(const PackedNumbers& packed)
      : mask_((uint64_t{1} << packed.bits) - 1), values_(packed.values.data()) {
    const int64_t in_word = packed.word_bits / packed.bits;
    numbers_ = packed.across_words ? packed.word_bits : in_word;
    words_ = packed.across_words ? packed.bits : 1;
    for (int64_t i = 0; i < numbers_; ++i) {
      const int64_t bit = i * packed.bits;
      const auto to = packed.order.empty() ? static_cast<size_t>(i) : size_t{packed.order.at(i)};
      places_[to] = {bit / packed.word_bits, static_cast<int>(bit % packed.word_bits)};
    }
  }

  [[nodiscard]] int64_t numbers() const { return numbers_; }
  [[nodiscard]] int64_t words() const { return words_; }
  // That hold the first `count` numbers.
  [[nodiscard]] int64_t words_of(int64_t count) const {
    if (words_ == 1) return (count + numbers_ - 1) / numbers_;
    return (count * words_ + numbers_ - 1) / numbers_;
  }
  // Of number i; words: [words()], `stride` apart, with word_bits bits each.
  [[nodiscard]] float value(int64_t i, const uint32_t* words, int64_t stride, int word_bits) const {
    const Place& place = places_[static_cast<size_t>(i)];
    uint64_t bits = words[place.word * stride];
    if (place.word + 1 < words_) bits |= uint64_t{words[(place.word + 1) * stride]} << word_bits;
    return values_[(bits >> place.shift) & mask_];
  }

 private:
  struct Place {
    int64_t word = 0;
    int shift = 0;
  };

  uint64_t mask_;
  const float* values_;
  int64_t numbers_ = 0;
  int64_t words_ = 0;
  std::array<Place, kMost> places_ = {};
};

// Words [first, first + count) of a tensor, at `to`.
void read_words(const Checkpoint& checkpoint, const SourceTensor& tensor, int64_t first,
                int64_t count, Raw& raw, uint32_t* to) {
  const auto bytes = static_cast<uint64_t>(tensor.packed->word_bits / 8);
  raw.resize(static_cast<uint64_t>(count) * bytes);
  checkpoint.files()[tensor.file].read(tensor.offset + static_cast<uint64_t>(first) * bytes, raw);
  if (bytes == sizeof(uint32_t)) {
    std::memcpy(to, raw.data(), raw.size());
  } else {
    for (const std::byte byte : raw) *to++ = std::to_integer<uint32_t>(byte);
  }
}

// Lines [first, first + n), of each the numbers [begin, begin + count), as `out` [n, count].
struct Lines {
  int64_t first = 0;
  int64_t n = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

void read_along_line(const Checkpoint& checkpoint, const SourceTensor& tensor, const Lines& lines,
                     float* out, Raw& raw) {
  const PackedNumbers& packed = *tensor.packed;
  const Unit unit(packed);
  std::vector<uint32_t> words;
  for (int64_t line = lines.first; line < lines.first + lines.n; ++line, out += lines.count) {
    // A line that begins within a word has numbers of the line before in front of it.
    const int64_t bit = line * packed.pitch;
    const int64_t begin = bit % packed.word_bits / packed.bits + lines.begin;
    const int64_t first = begin / unit.numbers();
    int64_t place = begin % unit.numbers();
    words.assign(static_cast<size_t>((place + lines.count + unit.numbers() - 1) / unit.numbers() *
                                     unit.words()),
                 0);
    read_words(checkpoint, tensor, bit / packed.word_bits + first * unit.words(),
               unit.words_of(place + lines.count), raw, words.data());
    const uint32_t* at = words.data();
    for (int64_t i = 0; i < lines.count; ++i) {
      out[i] = unit.value(place, at, 1, packed.word_bits);
      if (++place == unit.numbers()) {
        place = 0;
        at += unit.words();
      }
    }
  }
}

void read_along_lines(const Checkpoint& checkpoint, const SourceTensor& tensor, const Lines& lines,
                      float* out, Raw& raw) {
  const PackedNumbers& packed = *tensor.packed;
  const Unit unit(packed);
  const int64_t pitch = packed.pitch / packed.word_bits;
  std::vector<uint32_t> words(static_cast<size_t>(unit.words() * lines.count));
  const int64_t end = lines.first + lines.n;
  for (int64_t line = lines.first; line < end;) {
    const int64_t of_unit = line / unit.numbers();
    const int64_t first = of_unit * unit.numbers();
    const int64_t stop = std::min(end, first + unit.numbers());
    for (int64_t word = 0; word < unit.words_of(stop - first); ++word) {
      read_words(checkpoint, tensor, (of_unit * unit.words() + word) * pitch + lines.begin,
                 lines.count, raw, &words[static_cast<size_t>(word * lines.count)]);
    }
    for (; line < stop; ++line, out += lines.count) {
      for (int64_t i = 0; i < lines.count; ++i) {
        out[i] =
            unit.value(line - first, &words[static_cast<size_t>(i)], lines.count, packed.word_bits);
      }
    }
  }
}

void read_along_distant_lines(const Checkpoint& checkpoint, const SourceTensor& tensor,
                              const Lines& lines, float* out, Raw& raw) {
  const PackedNumbers& packed = *tensor.packed;
  const Unit unit(packed);
  const int64_t pitch = packed.pitch / packed.word_bits;
  const int64_t n_lines =
      tensor.elements() / (tensor.transposed ? tensor.matrix_rows() : tensor.columns());
  const int64_t apart = n_lines / unit.numbers();
  std::vector<uint32_t> words(static_cast<size_t>(lines.count));
  for (int64_t line = lines.first; line < lines.first + lines.n; ++line, out += lines.count) {
    read_words(checkpoint, tensor, line % apart * pitch + lines.begin, lines.count, raw,
               words.data());
    for (int64_t i = 0; i < lines.count; ++i) {
      out[i] = unit.value(line / apart, &words[static_cast<size_t>(i)], 1, packed.word_bits);
    }
  }
}

void read_packed_lines(const Checkpoint& checkpoint, const SourceTensor& tensor, const Lines& lines,
                       float* out, Raw& raw) {
  switch (tensor.packed->along) {
    case PackedNumbers::Along::line:
      return read_along_line(checkpoint, tensor, lines, out, raw);
    case PackedNumbers::Along::lines:
      return read_along_lines(checkpoint, tensor, lines, out, raw);
    case PackedNumbers::Along::distant_lines:
      return read_along_distant_lines(checkpoint, tensor, lines, out, raw);
  }
}

// `length`: numbers of a line.
void read_lines(const Checkpoint& checkpoint, const SourceTensor& tensor, int64_t length,
                const Lines& lines, float* out, Raw& raw) {
  if (tensor.packed) return read_packed_lines(checkpoint, tensor, lines, out, raw);
  if (tensor.step > 1) {
    std::vector<float> elements(static_cast<size_t>((lines.count - 1) * tensor.step + 1));
    for (int64_t line = lines.first; line < lines.first + lines.n; ++line) {
      read_elements(checkpoint, tensor, (line * length + lines.begin) * tensor.step, elements, raw);
      for (auto at = elements.begin();; at += tensor.step) {
        *out++ = *at;
        if (elements.end() - at <= tensor.step) break;
      }
    }
    return;
  }
  if (lines.count == length) {
    read_elements(checkpoint, tensor, lines.first * length,
                  {out, static_cast<size_t>(lines.n * length)}, raw);
    return;
  }
  for (int64_t line = 0; line < lines.n; ++line) {
    read_elements(checkpoint, tensor, (lines.first + line) * length + lines.begin,
                  {out + line * lines.count, static_cast<size_t>(lines.count)}, raw);
  }
}

void read_numbers(const Checkpoint& checkpoint, const SourceTensor& tensor,
                  const MatrixBlock& block, std::span<float> out, Raw& raw) {
  if (!tensor.transposed) {
    return read_lines(checkpoint, tensor, tensor.columns(),
                      {block.first_row, block.rows, block.first_column, block.columns}, out.data(),
                      raw);
  }
  std::vector<float> tile(static_cast<size_t>(kLinesTogether * block.rows));
  const int64_t end = block.first_column + block.columns;
  for (int64_t column = block.first_column; column < end;) {
    // To a multiple, so that words of several lines are read once.
    const int64_t n = std::min((column / kLinesTogether + 1) * kLinesTogether, end) - column;
    read_lines(checkpoint, tensor, tensor.matrix_rows(), {column, n, block.first_row, block.rows},
               tile.data(), raw);
    float* to = out.data() + (column - block.first_column);
    for (int64_t row = 0; row < block.rows; ++row, to += block.columns) {
      for (int64_t i = 0; i < n; ++i) to[i] = tile[static_cast<size_t>(i * block.rows + row)];
    }
    column += n;
  }
}

void round_to_ternary(float factor, std::span<float> values) {
  for (float& value : values) {
    value = std::rint(std::clamp(value * factor, -1.0F, 1.0F)) / factor;
  }
}

// The block of columns that each column of [first, first + count) belongs to.
std::vector<int64_t> groups_of(const Checkpoint& checkpoint, const BlockScaling& scaling,
                               int64_t first, int64_t count, Raw& raw) {
  std::vector<int64_t> groups(static_cast<size_t>(count));
  if (scaling.groups == nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      groups[static_cast<size_t>(i)] = (first + i) / scaling.columns;
    }
    return groups;
  }
  const int64_t n_groups = scaling.scales->columns();
  raw.resize(static_cast<size_t>(count) * sizeof(int32_t));
  checkpoint.read(*scaling.groups, first, raw);
  for (size_t i = 0; i < groups.size(); ++i) {
    int32_t group = 0;
    std::memcpy(&group, raw.data() + i * sizeof group, sizeof group);
    if (group < 0 || group >= n_groups) {
      throw Error(checkpoint.files()[scaling.groups->file].path().string() + ": tensor " +
                  in_quotes(scaling.groups->name) + " names group " + std::to_string(group) +
                  " of " + std::to_string(n_groups) + "; download the file again");
    }
    groups[i] = group;
  }
  return groups;
}

// Makes values of the numbers of a block of a tensor that has matrices of `matrix_rows` rows.
void scale(const Checkpoint& checkpoint, const BlockScaling& scaling, int64_t matrix_rows,
           const MatrixBlock& block, std::span<float> numbers, Raw& raw) {
  const int64_t in_column = (matrix_rows + scaling.rows - 1) / scaling.rows;  // blocks of a matrix
  const auto row_of = [&](int64_t row) {                                      // of scales
    return row / matrix_rows * in_column + row % matrix_rows / scaling.rows;
  };
  const std::vector<int64_t> groups =
      groups_of(checkpoint, scaling, block.first_column, block.columns, raw);
  const auto [least, most] = std::ranges::minmax(groups);
  const int64_t first_row = row_of(block.first_row);
  const MatrixBlock of_scales{first_row, row_of(block.first_row + block.rows - 1) + 1 - first_row,
                              least, most + 1 - least};
  std::vector<float> scales(static_cast<size_t>(of_scales.rows * of_scales.columns));
  std::vector<float> zeros(scales.size());
  read_block(checkpoint, *scaling.scales, of_scales, scales, raw);
  if (scaling.zeros) read_block(checkpoint, *scaling.zeros, of_scales, zeros, raw);
  float* to = numbers.data();
  for (int64_t row = block.first_row; row < block.first_row + block.rows; ++row) {
    const auto begin = static_cast<size_t>((row_of(row) - first_row) * of_scales.columns - least);
    for (const int64_t group : groups) {
      const size_t at = begin + static_cast<size_t>(group);
      const float number = *to - zeros[at];
      *to++ = scaling.divides ? number / scales[at] : number * scales[at];
    }
  }
  if (scaling.factor != 1 || scaling.addend != 0) {
    for (float& value : numbers) value = value * scaling.factor + scaling.addend;
  }
}

}  // namespace

void read_block(const Checkpoint& checkpoint, const SourceTensor& tensor, const MatrixBlock& block,
                std::span<float> out, std::vector<std::byte>& raw) {
  if (out.empty()) return;
  if (tensor.update) return read_updated_block(checkpoint, tensor, block, out, raw);
  read_numbers(checkpoint, tensor, block, out, raw);
  if (tensor.ternary > 0) round_to_ternary(tensor.ternary, out);
  if (!tensor.scaling) return;
  if (tensor.scaling->rows > 0) {
    return scale(checkpoint, *tensor.scaling, tensor.matrix_rows(), block, out, raw);
  }
  for (int64_t row = 0; row < block.rows; ++row) {
    BlockScaling in_line = *tensor.scaling;
    in_line.rows = 1;
    const int64_t first = (block.first_row + row) * tensor.columns() + block.first_column;
    scale(checkpoint, in_line, 1, {0, 1, first, block.columns},
          out.subspan(static_cast<size_t>(row * block.columns), static_cast<size_t>(block.columns)),
          raw);
  }
}

void read_values(const Checkpoint& checkpoint, const SourceTensor& tensor, int64_t first,
                 std::span<float> out, std::vector<std::byte>& raw) {
  const int64_t width = tensor.columns();
  while (!out.empty()) {  // the rest of a row, whole rows, the beginning of another
    const auto left = static_cast<int64_t>(out.size());
    MatrixBlock block{first / width, 1, first % width, std::min(left, width - first % width)};
    if (block.first_column == 0 && left >= width) block.rows = left / width;
    const auto count = static_cast<size_t>(block.rows * block.columns);
    read_block(checkpoint, tensor, block, out.first(count), raw);
    out = out.subspan(count);
    first += static_cast<int64_t>(count);
  }
}

bool same_values(const Checkpoint& checkpoint, const SourceTensor& a, const SourceTensor& b) {
  if (a.format != b.format || a.shape != b.shape || !a.has_values()) return false;
  constexpr int64_t kPiece = int64_t{1} << 18;
  const int64_t rows = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, a.columns()));
  std::vector<float> of_a;
  std::vector<float> of_b;
  std::vector<std::byte> raw;
  const int64_t elements = a.elements();
  for (int64_t at = 0; at < elements; at += rows * a.columns()) {
    const auto count = static_cast<size_t>(std::min(rows * a.columns(), elements - at));
    of_a.resize(count);
    of_b.resize(count);
    read_values(checkpoint, a, at, of_a, raw);
    read_values(checkpoint, b, at, of_b, raw);
    if (std::memcmp(of_a.data(), of_b.data(), count * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace faststream::convert
