#include "convert/adapters/task_adapters.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "convert/adapters/factors.h"
#include "support/error.h"
#include "support/name_list.h"
#include "support/printable.h"
#include "support/shape_text.h"

namespace faststream::convert {
namespace {

constexpr std::string_view kParametrizations = ".parametrizations.weight.";
constexpr std::string_view kOriginal = "original";
constexpr int64_t kMostTasks = 1024;
constexpr int64_t kMostRank = 1 << 16;

// Modules whose weights have adapters beside them.
std::vector<std::string> parametrized_modules(const Checkpoint& weights) {
  const std::string ending = std::string(kParametrizations) + std::string(kOriginal);
  std::vector<std::string> modules;
  for (const auto& [name, tensor] : weights.tensors()) {
    if (name.ends_with(ending)) modules.push_back(name.substr(0, name.size() - ending.size()));
  }
  return modules;
}

// Which of the checkpoint's tasks it is; none: kNoTask.
std::optional<int64_t> number_of_task(const std::vector<std::string>& tasks, std::string_view task,
                                      const JsonView& config) {
  std::string names;
  for (const std::string& name : tasks) add_name(names, printable(name));
  add_name(names, kNoTask);
  if (task.empty()) {
    config.fail(
        "\"lora_adaptations\" says that there are adapters for tasks; choose one with "
        "--task: " +
        names);
  }
  const auto found = std::ranges::find(tasks, task);
  if (found != tasks.end()) return found - tasks.begin();
  if (task == kNoTask) return std::nullopt;
  config.fail("\"lora_adaptations\" has no task " + in_quotes(task) + "; --task can be " + names);
}

// The adapters of one task.
class TaskMerger {
 public:
  TaskMerger(const JsonView& config, int64_t n_tasks, int64_t task, Checkpoint& weights)
      : rank_(config.member("lora_rank").as<int64_t>(1, kMostRank)),
        scale_(static_cast<float>(config.get("lora_alpha", 1.0) / static_cast<double>(rank_))),
        n_tasks_(n_tasks),
        task_(task),
        weights_(weights) {
    if (!std::isfinite(scale_)) config.member("lora_alpha").fail("is not a finite number");
  }

  [[nodiscard]] int64_t rank() const { return rank_; }

  void change(SourceTensor& weight, const SourceTensor& a, const SourceTensor& b) const {
    if (weight.shape.size() != 2) {
      refuse_factor(weights_, weight, "is no matrix, although adapters are beside it");
    }
    require_values(weights_, weight);
    const int64_t rows = weight.shape[0];
    const int64_t columns = weight.shape[1];
    LowRankUpdate update{.base = std::make_shared<const SourceTensor>(weight), .scale = scale_};
    if (has_shape(a, rank_, columns) && has_shape(b, rows, rank_)) {
      update.factors = {{of_task(b, rows, rank_), of_task(a, rank_, columns)}};
    } else if (has_shape(a, rows, rank_) && has_shape(b, rank_, columns)) {  // an embedding's
      update.factors = {{of_task(a, rows, rank_), of_task(b, rank_, columns)}};
    } else {
      refuse_factor(weights_, a,
                    "with the shape " + shape_text(a.shape) + " and its counterpart with " +
                        shape_text(b.shape) + " are no adapters of rank " + std::to_string(rank_) +
                        " for " + std::to_string(n_tasks_) + " tasks beside a matrix " +
                        shape_text(weight.shape));
    }
    weight.update = std::make_shared<const LowRankUpdate>(std::move(update));
  }

 private:
  [[nodiscard]] bool has_shape(const SourceTensor& factor, int64_t rows, int64_t columns) const {
    return factor.shape == std::vector{n_tasks_, rows, columns};
  }

  [[nodiscard]] std::shared_ptr<const SourceTensor> of_task(const SourceTensor& factor,
                                                            int64_t rows, int64_t columns) const {
    if (factor.transposed || factor.packed || factor.format->block_elements != 1) {
      refuse_factor(weights_, factor, "does not lie row by row; save it as safetensors");
    }
    auto part = lines_of(factor, task_ * rows * columns, rows, columns);
    require_finite(weights_, *part);
    return part;
  }

  int64_t rank_;
  float scale_;
  int64_t n_tasks_;
  int64_t task_;
  const Checkpoint& weights_;
};

std::optional<SourceTensor> take_if_there(Checkpoint& weights, const std::string& name) {
  if (weights.find(name) == nullptr) return std::nullopt;
  return weights.take(name);
}

// The texts that stand before those of each task.
std::string instruction_of(const JsonView& config, const std::string& task) {
  const auto all = config.find("task_instructions");
  return all ? all->get<std::string>(task, "") : "";
}

}  // namespace

MergedTask merge_task(const JsonView& config, std::string_view task, Checkpoint& weights) {
  const std::vector<std::string> modules = parametrized_modules(weights);
  if (modules.empty()) {
    if (task.empty() || task == kNoTask) return {};
    throw Error(weights.name() + ": has no adapters for tasks; leave out --task");
  }
  std::vector<std::string> tasks;
  for (const JsonView& name : config.member("lora_adaptations").elements()) {
    tasks.push_back(name.as<std::string>());
  }
  if (tasks.size() > kMostTasks) config.member("lora_adaptations").fail("has too many tasks");
  const std::optional<int64_t> number = number_of_task(tasks, task, config);
  std::optional<TaskMerger> merger;
  if (number) merger.emplace(config, static_cast<int64_t>(tasks.size()), *number, weights);
  MergedTask merged;
  size_t changed = 0;
  for (const std::string& module : modules) {
    const std::string parts = module + std::string(kParametrizations);
    SourceTensor weight = weights.take(parts + std::string(kOriginal));
    const auto a = take_if_there(weights, parts + "0.lora_A");
    const auto b = take_if_there(weights, parts + "0.lora_B");
    if (!a || !b) {
      refuse_factor(weights, weight, "has no \"0.lora_A\" and \"0.lora_B\" beside it");
    }
    if (merger) {
      merger->change(weight, *a, *b);
      ++changed;
    }
    weights.add_tensor(std::move(weight), module + ".weight");
  }
  if (merger) {
    merged.adapter = MergedAdapter{.name = std::string(task),
                                   .changed = changed,
                                   .least_rank = merger->rank(),
                                   .most_rank = merger->rank()};
    merged.instruction = instruction_of(config, std::string(task));
  }
  return merged;
}

}  // namespace faststream::convert
