#include "convert/calibration/imatrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "convert/gguf/gguf_file.h"
#include "convert/source_files.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

using Read = std::function<void(uint64_t, std::span<std::byte>)>;

constexpr std::string_view kSumsEnding = ".in_sum2";
constexpr std::string_view kCountsEnding = ".counts";
constexpr uint32_t kMostNameBytes = 65535;

[[noreturn]] void refuse_imatrix(std::string_view where, const std::string& what) {
  throw Error(std::string(where) + ": " + what);
}

void check_values(const ImportanceEntry& entry, std::string_view where, const std::string& name) {
  for (const auto* values : {&entry.mean_squares, &entry.counts}) {
    for (const float value : *values) {
      if (std::isfinite(value) && value >= 0) continue;
      refuse_imatrix(where, "the importance of " + in_quotes(name) +
                                " has a value that is negative or not finite; the file is damaged");
    }
  }
}

std::vector<float> read_floats(const Read& read, const SourceTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  read(tensor.offset, std::as_writable_bytes(std::span(values)));
  return values;
}

// Sums of squares [parts, columns] and counts [parts, 1].
ImportanceEntries parse_gguf_form(const Read& read, uint64_t size, std::string_view where) {
  const GgufHeader header = parse_gguf(read, size, where);
  if (header.metadata.find_text("general.type") != "imatrix") {
    refuse_imatrix(
        where, "is a GGUF file, but no importance matrix; give a file that llama-imatrix wrote");
  }
  std::map<std::string_view, const SourceTensor*> tensors;
  for (const SourceTensor& tensor : header.tensors) tensors[tensor.name] = &tensor;
  ImportanceEntries entries;
  for (const auto& [name, sums] : tensors) {
    if (!name.ends_with(kSumsEnding)) continue;
    const std::string of(name.substr(0, name.size() - kSumsEnding.size()));
    const auto counts = tensors.find(of + std::string(kCountsEnding));
    if (counts == tensors.end()) {
      refuse_imatrix(where, "has no counts for " + in_quotes(of) + "; the file is damaged");
    }
    if (sums->format != &kF32Format || counts->second->format != &kF32Format) {
      refuse_imatrix(where, "the importance of " + in_quotes(of) + " is not of type F32");
    }
    const int64_t columns = sums->shape.back();
    const int64_t parts = sums->elements() / columns;
    if (counts->second->elements() != parts) {
      refuse_imatrix(where, "has " + std::to_string(counts->second->elements()) + " counts for " +
                                std::to_string(parts) + " parts of " + in_quotes(of) +
                                "; the file is damaged");
    }
    ImportanceEntry entry{read_floats(read, *sums), read_floats(read, *counts->second)};
    for (size_t i = 0; i < entry.mean_squares.size(); ++i) {
      const float count = entry.counts[i / static_cast<size_t>(columns)];
      entry.mean_squares[i] = count > 0 ? entry.mean_squares[i] / count : 0;
    }
    check_values(entry, where, of);
    entries.emplace(of, std::move(entry));
  }
  return entries;
}

// Takes numbers from the front of a file.
class OlderFormReader {
 public:
  OlderFormReader(const Read& read, uint64_t size, std::string_view where)
      : read_(read), size_(size), where_(where) {}

  [[nodiscard]] uint64_t left() const { return size_ - at_; }
  void take(std::span<std::byte> out) {
    if (out.size() > left()) fail_unsound();
    read_(at_, out);
    at_ += out.size();
  }
  // From 1 to `most`.
  uint32_t count(uint64_t most) {
    int32_t value = 0;
    take(std::as_writable_bytes(std::span(&value, 1)));
    if (value < 1 || static_cast<uint64_t>(value) > most) fail_unsound();
    return static_cast<uint32_t>(value);
  }
  [[noreturn]] void fail_unsound() const {
    refuse_imatrix(where_, "is no importance matrix that llama-imatrix wrote, or damaged");
  }

 private:
  const Read& read_;
  uint64_t size_;
  std::string_view where_;
  uint64_t at_ = 0;
};

// A count of entries; of each a name, a count of calls and as many values, means times the calls.
// What the text was may follow.
ImportanceEntries parse_older_form(const Read& read, uint64_t size, std::string_view where) {
  constexpr uint64_t kLeastEntry = 4 + 1 + 4 + 4 + 4;
  OlderFormReader in(read, size, where);
  ImportanceEntries entries;
  for (uint32_t left = in.count(size / kLeastEntry); left > 0; --left) {
    std::string name(in.count(kMostNameBytes), '\0');
    in.take(std::as_writable_bytes(std::span(name)));
    const auto calls = static_cast<float>(in.count(uint64_t{1} << 31));
    ImportanceEntry entry;
    entry.mean_squares.resize(in.count(in.left() / sizeof(float)));
    in.take(std::as_writable_bytes(std::span(entry.mean_squares)));
    for (float& value : entry.mean_squares) value /= calls;
    entry.counts = {calls};
    check_values(entry, where, name);
    if (!entries.emplace(name, std::move(entry)).second) {
      refuse_imatrix(where, "names " + in_quotes(name) + " twice; the file is damaged");
    }
  }
  return entries;
}

// What llama.cpp's gguf-py (constants.py) calls the tensors that a matrix joins: all of one have
// the same inputs.
std::vector<std::string_view> names_of(TensorKind kind) {
  using enum TensorKind;
  switch (kind) {
    case attention_qkv:
      return {"attn_q", "attn_k", "attn_v", "attn_qkv"};
    case attention_out:
      return {"attn_output"};
    case latent_q_down:
      return {"attn_q_a"};
    case latent_q:
      return {"attn_q_b", "attn_q"};
    case latent_kv:
      return {"attn_kv_a_mqa"};
    case latent_k:
      return {"attn_k_b"};
    case latent_v:
      return {"attn_v_b"};
    case ffn_gate_up:
    case ffn_up:
      return {"ffn_up", "ffn_gate"};
    case ffn_down:
      return {"ffn_down"};
    case experts_gate_up:
    case experts_up:
      return {"ffn_up_exps", "ffn_gate_exps", "ffn_gate_up_exps"};
    case experts_down:
      return {"ffn_down_exps"};
    case shared_gate_up:
    case shared_up:
      return {"ffn_up_shexp", "ffn_gate_shexp"};
    case shared_down:
      return {"ffn_down_shexp"};
    default:
      return {};
  }
}

struct NamedEntry {
  std::string name;
  const TensorPart* part = nullptr;  // of the model, whose columns stand as it says; or null
};

std::vector<NamedEntry> names_of(const TensorPlan& plan, const SourceModel& source) {
  std::vector<NamedEntry> names;
  if (const auto parts = source.parts.find(plan.id); parts != source.parts.end()) {
    for (const TensorPart& part : parts->second) names.push_back({part.source, &part});
  }
  for (const std::string_view name : names_of(plan.id.kind)) {
    names.push_back({"blk." + std::to_string(plan.id.n) + '.' + std::string(name) + ".weight"});
  }
  if (plan.id.kind == TensorKind::output) {
    names.push_back({"output.weight"});
    names.push_back({"token_embd.weight"});
  }
  return names;
}

// Values of columns in the order of the model file.
std::vector<float> in_order(std::span<const float> values, const TensorPart* part) {
  if (part == nullptr || part->column_blocks.empty()) return {values.begin(), values.end()};
  const size_t block = values.size() / part->column_blocks.size();
  std::vector<float> ordered;
  for (const int64_t from : part->column_blocks) {
    const auto those = values.subspan(static_cast<size_t>(from) * block, block);
    ordered.insert(ordered.end(), those.begin(), those.end());
  }
  return ordered;
}

void take(const ImportanceEntry& entry, const NamedEntry& named, const TensorPlan& plan,
          std::string_view where, ActivationStatistics& statistics) {
  const auto columns = static_cast<size_t>(plan.columns());
  const auto parts = static_cast<size_t>(ActivationStatistics::parts_of(plan));
  const size_t given = entry.mean_squares.size() / columns;
  if (entry.mean_squares.size() % columns != 0 || (given != 1 && given != parts)) {
    refuse_imatrix(where, "has " + std::to_string(entry.mean_squares.size()) + " values for " +
                              in_quotes(named.name) + ", where the model has " +
                              std::to_string(columns) + " columns" +
                              (parts > 1 ? " in each of " + std::to_string(parts) + " parts" : "") +
                              "; it is of another model");
  }
  for (size_t p = 0; p < parts; ++p) {
    const size_t from = given == 1 ? 0 : p;
    const float count = entry.counts[entry.counts.size() == given ? from : 0];
    if (count == 0) continue;
    const auto values = std::span(entry.mean_squares).subspan(from * columns, columns);
    statistics.set(plan.id, static_cast<int64_t>(p),
                   {.count = count, .mean_squares = in_order(values, named.part)});
  }
}

}  // namespace

ImportanceEntries parse_imatrix(const Read& read, uint64_t size, std::string_view where) {
  std::array<char, 4> magic{};
  if (size >= magic.size()) read(0, std::as_writable_bytes(std::span(magic)));
  constexpr std::array<char, 4> kGguf = {'G', 'G', 'U', 'F'};
  return magic == kGguf ? parse_gguf_form(read, size, where) : parse_older_form(read, size, where);
}

ActivationStatistics read_imatrix(const std::filesystem::path& path, const SourceModel& source,
                                  std::span<const TensorPlan> wanted) {
  SourceFiles files;
  const InputFile file = files.open(path);
  const std::string where = path.string();
  const ImportanceEntries entries =
      parse_imatrix([&](uint64_t offset, std::span<std::byte> out) { file.read(offset, out); },
                    file.size(), where);
  ActivationStatistics statistics;
  for (const TensorPlan& plan : wanted) {
    if (plan.id.of_encoder) continue;
    for (const NamedEntry& named : names_of(plan, source)) {
      const auto entry = entries.find(named.name);
      if (entry == entries.end()) continue;
      take(entry->second, named, plan, where, statistics);
      break;
    }
  }
  if (statistics.all().empty()) {
    refuse_imatrix(where, "names none of the model's matrices; it is of another model");
  }
  return statistics;
}

}  // namespace faststream::convert
