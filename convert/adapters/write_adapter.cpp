// How an adapter's factors become those of a model file's matrices. What W is made of, b's rows and
// a's columns are made of, in the same ways: by parts (rows that are chosen and reordered, columns
// in another order, factors), by what balances W, and by rotations of heads.
#include "convert/adapters/write_adapter.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "convert/weights/read_values.h"
#include "convert/weights/tensor_factors.h"
#include "convert/weights/tensor_stream.h"
#include "engine/adapter_file.h"
#include "engine/load_weights.h"
#include "model_file/model_writer.h"
#include "models/adapter_plan.h"
#include "support/error.h"
#include "support/printable.h"
#include "support/progress.h"
#include "support/thread_pool.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;

// What is added to a tensor of the checkpoint, as it lies there: scale · left · right of each.
struct Change {
  std::vector<LowRankUpdate> updates;

  [[nodiscard]] int64_t rank() const {
    int64_t rank = 0;
    for (const LowRankUpdate& update : updates) rank += update.factors[0].right->matrix_rows();
    return rank;
  }
};
using Changes = std::map<std::string, Change, std::less<>>;

[[noreturn]] void refuse(const fs::path& adapter, const std::string& what) {
  throw Error(adapter.string() + ": changes " + what +
              ", which an adapter beside a model cannot do; merge it with --lora alone");
}

Change change_of(const SourceTensor& tensor, const fs::path& adapter) {
  Change change;
  for (const SourceTensor* at = &tensor; at->update; at = at->update->base.get()) {
    const LowRankUpdate& update = *at->update;
    if (update.magnitudes)
      refuse(adapter, "the magnitudes of " + in_quotes(tensor.name) + " (DoRA)");
    if (update.factors.size() != 1 || !update.factors[0].left) {
      refuse(adapter, in_quotes(tensor.name));
    }
    change.updates.push_back(update);
  }
  return change;
}

// Leaves the checkpoint's tensors as they are without adapters.
Changes take_changes(SourceModel& source, const fs::path& adapter) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : source.weights.tensors()) {
    if (tensor.update) names.push_back(name);
  }
  Changes changes;
  for (const std::string& name : names) {
    const SourceTensor changed = source.weights.take(name);
    changes[name] = change_of(changed, adapter);
    const SourceTensor* base = &changed;
    while (base->update) base = base->update->base.get();
    source.weights.add_tensor(*base, name);
  }
  return changes;
}

// The factors of one matrix of the model. Parts of it that come of one tensor share rows of a.
class MatrixChange {
 public:
  MatrixChange(const Checkpoint& weights, const Changes& changes, const TensorPlan& plan,
               std::span<const TensorPart> parts)
      : weights_(weights), changes_(changes), plan_(plan), parts_(parts) {
    for (const TensorPart& part : parts_) {
      const auto found = changes_.find(part.source);
      if (found == changes_.end() || first_rank_.contains(part.source)) continue;
      first_rank_[part.source] = own_rank_;
      own_rank_ += found->second.rank();
    }
  }

  /// Of a and b, zeros included; 0: the matrix is not changed.
  [[nodiscard]] int64_t rank() const {
    return (own_rank_ + kAdapterRankStep - 1) / kAdapterRankStep * kAdapterRankStep;
  }

  /// [rank, in]: a's rows, those of each tensor after those of another.
  [[nodiscard]] std::vector<TensorPart> parts_of_a() const {
    std::vector<TensorPart> all;
    std::set<std::string> seen;
    for (const TensorPart& part : parts_) {
      if (!first_rank_.contains(part.source) || !seen.insert(part.source).second) continue;
      for (const LowRankUpdate& update : changes_.find(part.source)->second.updates) {
        all.push_back(rows_of(rows_of_a(part, update), plan_.columns()));
        all.back().column_blocks = part.column_blocks;
      }
    }
    if (own_rank_ < rank()) all.push_back(zeros(rank() - own_rank_, plan_.columns()));
    return all;
  }

  /// [out, rank]: b's rows, chosen and reordered as W's.
  [[nodiscard]] std::vector<TensorPart> parts_of_b() const {
    std::vector<TensorPart> all;
    for (const TensorPart& part : parts_) {
      if (!first_rank_.contains(part.source)) {
        all.push_back(zeros(part_rows(part, plan_.columns()), rank()));
        continue;
      }
      TensorPart rows = rows_of(rows_of_b(part), rank());
      rows.first_row = part.first_row;
      rows.n_rows = part_rows(part, plan_.columns());
      rows.row_step = part.row_step;
      rows.pairs = part.pairs;
      rows.scale = part.scale;
      all.push_back(std::move(rows));
    }
    return all;
  }

 private:
  static TensorPart rows_of(std::vector<float> values, int64_t width) {
    TensorPart part;
    part.shape = {static_cast<int64_t>(values.size()) / width, width};
    part.values = std::make_shared<const std::vector<float>>(std::move(values));
    return part;
  }
  static TensorPart zeros(int64_t rows, int64_t width) {
    TensorPart part;
    part.shape = {rows, width};
    return part;
  }

  // Of a matrix as the model has it, not as it lies in the checkpoint.
  [[nodiscard]] std::vector<float> read(const SourceTensor& factor, bool transposed) const {
    const int64_t rows = factor.matrix_rows();
    const int64_t columns = factor.columns();
    std::vector<float> values(static_cast<size_t>(rows * columns));
    std::vector<std::byte> raw;
    read_block(weights_, factor, {0, rows, 0, columns}, values, raw);
    if (!transposed) return values;
    std::vector<float> turned(values.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        turned[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
      }
    }
    return turned;
  }

  [[nodiscard]] std::vector<float> rows_of_a(const TensorPart& part,
                                             const LowRankUpdate& update) const {
    const LowRankFactors& factors = update.factors[0];
    return read(part.transposed ? *factors.left : *factors.right, part.transposed);
  }

  // Of all rows of the checkpoint's tensor, with the columns of its own ranks alone not zero.
  [[nodiscard]] std::vector<float> rows_of_b(const TensorPart& part) const {
    std::vector<float> all;
    int64_t first = first_rank_.at(part.source);
    for (const LowRankUpdate& update : changes_.find(part.source)->second.updates) {
      const LowRankFactors& factors = update.factors[0];
      const int64_t own = factors.right->matrix_rows();
      const std::vector<float> values =
          read(part.transposed ? *factors.right : *factors.left, part.transposed);
      const int64_t rows = static_cast<int64_t>(values.size()) / own;
      all.resize(static_cast<size_t>(rows * rank()), 0.0F);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t k = 0; k < own; ++k) {
          all[static_cast<size_t>(r * rank() + first + k)] =
              update.scale * values[static_cast<size_t>(r * own + k)];
        }
      }
      first += own;
    }
    return all;
  }

  const Checkpoint& weights_;
  const Changes& changes_;
  const TensorPlan& plan_;
  std::span<const TensorPart> parts_;
  std::map<std::string, int64_t, std::less<>> first_rank_;  // of changed tensors of the checkpoint
  int64_t own_rank_ = 0;
};

// Whether rows of the part are the checkpoint's, in whatever order and however scaled.
bool keeps_rows(const TensorPart& part) {
  return part.projection.inputs == 0 && !part.plus && part.add == 0 && !part.unit_rows &&
         !part.log_of_opposite && part.first_input == 0;
}

bool changes_any(const Changes& changes, const TensorPart& part) {
  bool found = false;
  for_each_summand(part, [&](const TensorPart& each) {
    found = found || changes.contains(each.source) || changes.contains(each.projection.matrix);
  });
  return found;
}

// The work between a checkpoint with adapters and their file.
class AdapterWriter {
 public:
  AdapterWriter(const ConvertOptions& options, const fs::path& model)
      : options_(options),
        model_(ModelFile::open(model)),
        config_(without_predictors(read_config(model_))),
        plans_(tensor_plan(config_)),
        source_(open_source_model(options.checkpoint, options.tokenizer, options.adapters)),
        changes_(take_changes(source_, adapter())),
        pool_(options.threads) {}

  AdapterReport write() {
    check_source();
    const AdapterRanks ranks = find_ranks();
    std::vector<TensorSpec> specs;
    for (const TensorPlan& plan : adapter_plan(config_, ranks)) {
      specs.push_back({plan.name, plan.stored_as(), plan.stored_shape()});
    }
    if (options_.before_output) options_.before_output();
    ModelWriter writer(options_.output,
                       {{"adapter", adapter_to_json(model_)},
                        {"provenance", provenance_of(source_, options_.checkpoint)}},
                       specs, options_.force);
    convert(ranks, writer);
    for (const InputFile& file : source_.weights.files()) file.refuse_changed();
    writer.finish();
    return {options_.output, writer.file_size(), ranks.size(), source_.adapters};
  }

 private:
  // For messages: of several the last one.
  [[nodiscard]] const fs::path& adapter() const { return options_.adapters.back(); }

  void check_source() const {
    source_.files.refuse_as_output(options_.output);
    if (config_.encoder || config_.output.none) {
      throw Error(model_.name() + ": has an encoder, beside which no adapter runs; merge it with " +
                  "--lora alone");
    }
    for (const MergedAdapter& merged : source_.adapters) {
      if (merged.replaced > 0) {
        refuse(adapter(), std::to_string(merged.replaced) +
                              (merged.replaced == 1 ? " tensor" : " tensors") +
                              " by others (modules_to_save, bias)");
      }
    }
    for (const TensorPlan& plan : plans_) {
      if (plan.role != TensorRole::scales) check_tensor(source_, plan);
    }
  }

  [[nodiscard]] AdapterRanks find_ranks() const {
    AdapterRanks ranks;
    std::set<std::string> used;
    for (const TensorPlan& plan : plans_) {
      if (plan.role == TensorRole::scales) continue;
      const std::vector<TensorPart>& parts = source_.parts.at(plan.id);
      const auto is_changed = [&](const TensorPart& part) { return changes_any(changes_, part); };
      if (std::ranges::none_of(parts, is_changed)) continue;
      if (!takes_adapter(plan) || !std::ranges::all_of(parts, keeps_rows)) {
        refuse(adapter(), in_quotes(plan.name));
      }
      const int64_t rank = MatrixChange(source_.weights, changes_, plan, parts).rank();
      if (rank > kMostAdapterRank) {
        refuse(adapter(), in_quotes(plan.name) + " by a rank of " + std::to_string(rank));
      }
      ranks[plan.name] = rank;
      for (const TensorPart& part : parts) used.insert(part.source);
    }
    // As an output matrix that the model has no more than as its embedding.
    for (const auto& [name, change] : changes_) {
      if (!used.contains(name)) refuse(adapter(), in_quotes(name));
    }
    return ranks;
  }

  // Tensors in the order of the model's file, as what balances them comes in that.
  void convert(const AdapterRanks& ranks, ModelWriter& writer) {
    const auto on_block = [this](uint64_t) {
      if (options_.check_interrupted) options_.check_interrupted();
    };
    TensorStream stream(
        source_.weights, [&](std::span<const std::byte> bytes) { writer.append(bytes); }, pool_);
    TensorFactors factors(config_, plans_, source_, stream, on_block);
    std::map<TensorId, TensorPlan> planned;
    for (TensorPlan& plan : adapter_plan(config_, ranks)) planned[plan.id] = std::move(plan);
    for (size_t n = 0; n < plans_.size(); ++n) {
      const TensorPlan& plan = plans_[n];
      if (plan.role == TensorRole::scales) continue;
      const TensorStream::Factors of_matrix = factors.take(n);
      if (plan.role == TensorRole::norm) require_same(plan, of_matrix);
      if (!ranks.contains(plan.name)) continue;
      const MatrixChange change(source_.weights, changes_, plan, source_.parts.at(plan.id));
      TensorId id = plan.id;
      id.adapter = 1;
      id.member = TensorMember::adapter_a;
      stream.add(planned.at(id), change.parts_of_a(), {.rows = {}, .columns = of_matrix.columns},
                 nullptr, on_block);
      id.member = TensorMember::adapter_b;
      stream.add(planned.at(id), change.parts_of_b(), {.rows = of_matrix.rows, .columns = {}},
                 nullptr, on_block);
    }
    stream.flush();
  }

  // Norms, which take what balances the matrices that read them, are the checkpoint's own: so are
  // these matrices, and balanced as here.
  void require_same(const TensorPlan& plan, const TensorStream::Factors& factors) {
    std::vector<std::byte> made;
    TensorStream stream(
        source_.weights,
        [&](std::span<const std::byte> bytes) {
          made.insert(made.end(), bytes.begin(), bytes.end());
        },
        pool_);
    stream.add(plan, source_.parts.at(plan.id), factors, nullptr, [](uint64_t) {});
    stream.flush();
    const auto known =
        model_.bytes(model_.require(plan.name, plan.stored_as(), plan.stored_shape()));
    if (std::ranges::equal(made, known)) return;
    throw Error(model_.name() + ": was made of another checkpoint than " +
                options_.checkpoint.string() + ", as \"" + plan.name +
                "\" differs; give the one that it was made of, or convert that again");
  }

  const ConvertOptions& options_;
  ModelFile model_;
  ModelConfig config_;
  std::vector<TensorPlan> plans_;
  SourceModel source_;
  Changes changes_;
  ThreadPool pool_;
};

}  // namespace

AdapterReport write_adapter(const ConvertOptions& options, const fs::path& model) {
  check_output(options);
  return AdapterWriter(options, model).write();
}

void print_report(const AdapterReport& report, std::ostream& out) {
  out << "wrote " << printable(report.output.string()) << ": " << format_bytes(report.file_bytes)
      << ", changes " << report.n_matrices
      << (report.n_matrices == 1 ? " matrix of the model\n" : " matrices of the model\n");
  for (const MergedAdapter& adapter : report.adapters) out << to_text(adapter) << '\n';
}

}  // namespace faststream::convert
