#include "engine/ranks.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <span>
#include <type_traits>
#include <utility>

#include "engine/cache_kinds.h"
#include "engine/device.h"
#include "engine/load_weights.h"
#include "engine/pipeline_executor.h"
#include "engine/ranked_executor.h"
#include "models/shares.h"
#include "ranks/local_link.h"
#include "ranks/message.h"
#include "support/error.h"
#include "support/hash.h"
#include "support/machine.h"

namespace faststream {
namespace {

using Bytes = RankLink::Bytes;

template <typename T>
std::span<const std::byte> bytes_of_value(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span(&value, 1));
}

template <typename T>
T value_of(std::span<const std::byte> bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value{};
  if (bytes.size() != sizeof value) throw Error("ranks are of different versions of the program");
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// What each rank says of itself.
struct Report {
  uint64_t device = 0;  // the same where memory is the same
  uint64_t free_bytes = 0;
  uint64_t weight_bytes = 0;
};

// What rank 0 then has all do.
struct Orders {
  RunnerLimits limits;
  DType sums = DType::f32;
};

// What a rank has of a step's logits, of ranks that reach them in memory, where to gather 8 MB of
// 32 rows takes 2.6 ms and the product of as many 130: for all steps but the largest, whose logits
// would take much memory.
constexpr int64_t kGatheredInMemory = int64_t{16} << 20;

RankPlace place_of(const RankLink& link, int32_t stages) {
  const int each = link.count() / stages;
  return {
      .index = link.rank() % each, .count = each, .stage = link.rank() / each, .stages = stages};
}

// What is to be known of each stage. Ranks whose devices are the same share what is free there.
std::vector<RankFigures> exchange_figures(RankLink& link, const ModelFiles& files,
                                          const ModelConfig& config, const RankPlace& place,
                                          const Backend& backend, const std::string& device) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const Report own{.device = stable_hash(std::string(host.data()) + ' ' + device),
                   .free_bytes = backend.free_memory(),
                   .weight_bytes = bytes_to_load(files, config, place)};
  const std::span<const std::byte> all = link.gather(bytes_of_value(own));
  std::vector<Report> reports(static_cast<size_t>(link.count()));
  std::memcpy(reports.data(), all.data(), all.size());
  std::vector<RankFigures> figures;
  for (int32_t stage = 0; stage < place.stages; ++stage) {
    const auto n = static_cast<size_t>(place.count);
    const auto of_stage = std::span(reports).subspan(static_cast<size_t>(stage) * n, n);
    RankFigures& own_figures = figures.emplace_back(RankFigures{.free_bytes = SIZE_MAX});
    for (const Report& report : of_stage) {
      const auto sharing =
          static_cast<uint64_t>(std::ranges::count(reports, report.device, &Report::device));
      own_figures.free_bytes =
          std::min<size_t>(own_figures.free_bytes, report.free_bytes / sharing);
      own_figures.weight_bytes = std::max<size_t>(own_figures.weight_bytes, report.weight_bytes);
    }
    own_figures.shares_memory =
        backend.takes_memory_on_use() &&
        std::ranges::count(of_stage, of_stage.front().device, &Report::device) == place.count;
  }
  return figures;
}

// of_stage: of those ranks that share a stage's layers.
std::unique_ptr<DeviceExecutor> load_share(RankLink& link, RankLink& of_stage,
                                           const ModelFiles& files, const ModelConfig& config,
                                           const RankPlace& place, Backend& backend,
                                           const Orders& orders,
                                           const std::function<void(size_t)>& progress) {
  if (place.count > 1) backend.join(of_stage, orders.sums);
  auto executor = std::make_unique<DeviceExecutor>(files, share_of(config, place), backend,
                                                   orders.limits, progress);
  backend.synchronize();
  link.gather({});  // all have loaded theirs
  return executor;
}

// The device as choose_backend() has it, without what differs between its names.
std::string memory_of(const Backend& backend, const std::string& device) {
  return backend.takes_memory_on_use() ? "host" : device;
}

// What ranks are to open: threads of a process the files that it has, a ModelFiles, others those of
// these paths.
struct Opening {
  int32_t stages = 1;
  int64_t n_predictors = 0;  // that are loaded, too: all that there are, or none
  uintptr_t files = 0;
  std::vector<std::string> paths = {};
};

template <typename SomeOpening, typename Visit>
requires std::is_same_v<std::remove_const_t<SomeOpening>, Opening>
void visit_members(SomeOpening& opening, Visit visit) {
  visit(opening.stages);
  visit(opening.n_predictors);
  visit(opening.files);
  visit(opening.paths);
}

Bytes describe_opening(const RankLink& link, const ModelFiles& files, const ModelConfig& config,
                       int32_t stages) {
  Opening opening{.stages = stages, .n_predictors = std::ssize(config.predictors)};
  const auto add = [&](const ModelFile& file) {
    opening.paths.push_back(std::filesystem::absolute(file.name()).string());
  };
  if (link.is_in_process()) {
    opening.files = std::bit_cast<uintptr_t>(&files);
  } else {
    add(files.model);
    for (const ModelFile& adapter : files.adapters) add(adapter);
  }
  return MessageWriter().put(opening).bytes();
}

// processes: null where the devices are those of one.
void check_stage_count(int32_t stages, const RankLink* processes, size_t devices) {
  const int ranks = processes != nullptr ? processes->count() : static_cast<int>(devices);
  if (stages > 0 && ranks % stages == 0) return;
  throw UsageError(
      "--pipeline " + std::to_string(stages) + ": " +
      (ranks == 1 ? "one process does" : std::to_string(ranks) + " ranks do") +
      " not make as many stages of equal size; " +
      (processes == nullptr ? "give as many devices (--gpus 2, or --device cpu,cpu), or " : "") +
      "start " + std::to_string(stages) + " processes (mpirun -n " + std::to_string(stages) +
      "), or a multiple");
}

// GPUs of a stage wait for each other within kernels. Where other ranks' do so on the same GPUs,
// each might wait for one that has no room.
void check_stage_devices(int32_t stages, const std::vector<std::string>& devices) {
  if (stages == 1 || std::ssize(devices) == stages || devices.front() == "cpu") return;
  const auto different = std::ssize(std::set(devices.begin(), devices.end()));
  if (different == 1 || different == std::ssize(devices)) return;
  throw UsageError("--pipeline " + std::to_string(stages) +
                   ": stages of several GPUs each share none; name each GPU once, or as many as "
                   "there are stages");
}

// What all ranks may hold: what those of the stage may that has least room, of the last rank of
// each, which has no less than others.
RunnerLimits limits_of_all(const ModelConfig& config, const RankPlace& own,
                           std::span<const RankFigures> figures,
                           const Ranks::ChooseLimits& choose_limits, const Backend& backend) {
  std::vector<ModelConfig> shares;
  for (int32_t stage = 0; stage < own.stages; ++stage) {
    RankPlace place = own;
    place.index = own.count - 1;
    place.stage = stage;
    shares.push_back(share_of(config, place));
  }
  const auto limits_of = [&](size_t stage) { return choose_limits(shares[stage], figures[stage]); };
  size_t least = 0;
  size_t last = 0;
  RunnerLimits limits = limits_of(0);
  for (size_t stage = 1; stage < shares.size(); ++stage) {
    const RunnerLimits own_limits = limits_of(last = stage);
    if (own_limits.n_pages >= limits.n_pages) continue;
    least = stage;
    limits = own_limits;
  }
  if (least != last) limits = limits_of(least);  // for who remembers the last ones
  int32_t states = std::numeric_limits<int32_t>::max();
  for (const ModelConfig& share : shares) {
    const KvType kv{backend.kv_dtype(config.weight_format), limits.kv};
    const int32_t n = n_states(share, kv, bounds_of(limits));
    if (n > 0) states = std::min(states, n);
  }
  if (states < std::numeric_limits<int32_t>::max()) limits.states = states;
  return limits;
}

// What ranks of a stage tell each other by: the link of all where there is one stage.
std::unique_ptr<RankLink> link_of_stage(RankLink& link, int32_t stages) {
  return stages > 1 ? link.divide(stages) : nullptr;
}

// The predictors in a rank's own file.
std::vector<ModelConfig> predictors_in(const ModelFile& file, int64_t count) {
  if (count == 0) return {};
  std::vector<ModelConfig> predictors = read_config(file).predictors;
  if (std::ssize(predictors) == count) return predictors;
  throw Error(file.name() + ": has " + std::to_string(predictors.size()) +
              " heads that predict further tokens, but that of process 0 has " +
              std::to_string(count) + "; give all processes the same file");
}

void follow_model(RankLink& link, const RankDevice& device, const ModelFiles& files,
                  const Opening& opening) {
  const int32_t stages = opening.stages;
  ModelConfig config = config_of_files(files);
  config.predictors = predictors_in(files.model, opening.n_predictors);
  const std::unique_ptr<RankLink> own_link = link_of_stage(link, stages);
  RankLink& of_stage = own_link ? *own_link : link;
  try {
    const std::unique_ptr<Backend> backend = choose_backend(device.device, device.threads, 0);
    const RankPlace place = place_of(link, stages);
    exchange_figures(link, files, config, place, *backend, memory_of(*backend, device.device));
    const auto orders = value_of<Orders>(link.listen());
    const auto executor =
        load_share(link, of_stage, files, config, place, *backend, orders, nullptr);
    stages > 1 ? follow_stage(*executor, link, of_stage) : follow(*executor, link);
    backend->synchronize();
  } catch (const std::exception& error) {
    of_stage.fail(error.what());
    throw;
  }
}

}  // namespace

RunnerLimits runner_limits(const MemoryPlan& plan) {
  return {.n_pages = pages_for(plan.kv_tokens),
          .n_modest_pages = pages_for(plan.kept_tokens),
          .sequences = plan.slots,
          .batch = plan.limits,
          .kv = plan.kv};
}

std::vector<std::string> device_names(const std::string& devices) {
  std::vector<std::string> names;
  for (size_t at = 0; at <= devices.size();) {
    const size_t comma = std::min(devices.find(',', at), devices.size());
    std::string name = devices.substr(at, comma - at);
    const bool is_number = !name.empty() && name.find_first_not_of("0123456789") == name.npos;
    if (is_number && !names.empty() && names.back().starts_with("cuda")) name = "cuda:" + name;
    if (name.empty() && (comma < devices.size() || !names.empty())) {
      throw UsageError("--device " + devices + ": there is a comma without a device beside it");
    }
    names.push_back(std::move(name));
    at = comma + 1;
  }
  if (names.size() > kMostRanks) {
    throw UsageError("--device " + devices + ": a model runs on " + std::to_string(kMostRanks) +
                     " devices at most");
  }
  return names;
}

void follow_ranks(RankLink& link, const RankDevice& device) {
  try {
    while (true) {
      Bytes message = link.listen();
      if (message.empty()) return;
      const auto opening = MessageReader(std::move(message)).take<Opening>();
      if (link.is_in_process()) {
        const auto* files = std::bit_cast<const ModelFiles*>(opening.files);
        follow_model(link, device, *files, opening);
      } else {
        std::vector<ModelFile> files;
        for (const std::string& path : opening.paths) files.push_back(ModelFile::open(path));
        follow_model(link, device, {files.front(), std::span(files).subspan(1)}, opening);
      }
    }
  } catch (const std::exception& error) {
    link.fail(error.what());
    throw;
  }
}

Ranks::Ranks(const std::string& devices, int32_t threads, RankLink* processes, int32_t stages)
    : link_(processes), stages_(stages) {
  const std::vector<std::string> names = device_names(devices);
  check_stage_count(stages, processes, names.size());
  check_stage_devices(stages, names);
  if (names.size() == 1) {
    devices_.push_back({.device = devices, .threads = threads});
  } else if (processes == nullptr) {
    start_threads(names, threads);
  } else {
    throw UsageError("--device " + devices +
                     ": each process has one device where several run the model together");
  }
}

void Ranks::start_threads(const std::vector<std::string>& devices, int32_t threads) {
  links_ = make_local_links(static_cast<int>(devices.size()));
  link_ = links_.front().get();
  const auto on_host = static_cast<int32_t>(std::ranges::count(devices, "cpu"));
  if (threads == 0) threads = available_threads();
  for (const std::string& device : devices) {
    if (device == "auto" || (device == "cpu") != (on_host > 0)) {
      throw UsageError("--device: several devices are all GPUs, such as cuda:0,1, or all cpu");
    }
    const int32_t each = on_host > 0 ? std::max(1, threads / on_host) : threads;
    devices_.push_back({.device = device, .threads = each});
  }
  // A kernel that is loaded when it is first used waits for those that run, with all threads behind
  // it, while these wait for another rank's: all are to be loaded at first (PeerSums).
  if (on_host == 0) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  for (size_t rank = 1; rank < devices.size(); ++rank) {
    threads_.emplace_back([this, rank] {
      try {
        follow_ranks(*links_[rank], devices_[rank]);
      } catch (const std::exception&) {
        static_cast<void>(rank);  // rank 0 has heard of it
      }
    });
  }
}

Ranks::~Ranks() {
  if (threads_.empty()) return;
  try {
    link_->tell({});
  } catch (const std::exception&) {
    static_cast<void>(0);  // they have ended
  }
  threads_.clear();
}

RankPlace Ranks::place() const {
  if (link_ == nullptr) return {};
  return place_of(*link_, stages_);
}

std::string Ranks::describe(const Backend& backend) const {
  if (link_ == nullptr) return backend.description();
  const std::string ranks =
      backend.description() + ", " + std::to_string(link_->count()) + " ranks";
  return stages_ == 1 ? ranks : ranks + " in " + std::to_string(stages_) + " stages";
}

std::unique_ptr<Executor> Ranks::load(const ModelFiles& files, const ModelConfig& config,
                                      Backend& backend, bool exact,
                                      const ChooseLimits& choose_limits,
                                      const std::function<void(size_t)>& progress) {
  if (link_ == nullptr) {
    const RankFigures figures{.free_bytes = backend.free_memory(),
                              .weight_bytes = bytes_to_load(files, config)};
    return std::make_unique<DeviceExecutor>(files, config, backend, choose_limits(config, figures),
                                            progress);
  }
  static_cast<void>(stages_of(config, stages_));  // refused before others hear of it
  link_->tell(describe_opening(*link_, files, config, stages_));
  stage_link_ = link_of_stage(*link_, stages_);
  RankLink& of_stage = stage_link_ ? *stage_link_ : *link_;
  const RankPlace own = place_of(*link_, stages_);
  const std::vector<RankFigures> figures =
      exchange_figures(*link_, files, config, own, backend, memory_of(backend, device().device));
  Orders orders{.limits = limits_of_all(config, own, figures, choose_limits, backend)};
  if (figures.front().shares_memory) orders.limits.gathered_bytes = kGatheredInMemory;
  // Terms of float16 might be out of its range, which those of the stream are not.
  const DType activations = backend.activation_dtype(config.weight_format);
  if (!exact && activations != DType::f32) orders.sums = DType::bf16;
  link_->tell(bytes_of_value(orders));
  auto executor = load_share(*link_, of_stage, files, config, own, backend, orders, progress);
  if (stages_ == 1) return std::make_unique<RankedExecutor>(std::move(executor), *link_);
  RankPlace of_all_layers = own;
  of_all_layers.stage = 0;
  of_all_layers.stages = 1;
  return std::make_unique<PipelineExecutor>(std::move(executor), share_of(config, of_all_layers),
                                            *link_, of_stage);
}

}  // namespace faststream
