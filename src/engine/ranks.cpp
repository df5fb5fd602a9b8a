#include "engine/ranks.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <type_traits>
#include <utility>

#include "engine/device.h"
#include "engine/load_weights.h"
#include "engine/ranked_executor.h"
#include "models/shares.h"
#include "ranks/local_link.h"
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

RankPlace place_of(const RankLink& link) { return {link.rank(), link.count()}; }

// Ranks whose devices are the same share what is free there.
RankFigures exchange_figures(RankLink& link, const ModelFiles& files, const ModelConfig& config,
                             const Backend& backend, const std::string& device) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const Report own{.device = stable_hash(std::string(host.data()) + ' ' + device),
                   .free_bytes = backend.free_memory(),
                   .weight_bytes = bytes_to_load(files, config, place_of(link))};
  const std::span<const std::byte> all = link.gather(bytes_of_value(own));
  std::vector<Report> reports(static_cast<size_t>(link.count()));
  std::memcpy(reports.data(), all.data(), all.size());
  RankFigures figures{.free_bytes = SIZE_MAX, .shares_memory = backend.takes_memory_on_use()};
  for (const Report& report : reports) {
    const auto sharing =
        static_cast<uint64_t>(std::ranges::count(reports, report.device, &Report::device));
    figures.free_bytes = std::min<size_t>(figures.free_bytes, report.free_bytes / sharing);
    figures.weight_bytes = std::max<size_t>(figures.weight_bytes, report.weight_bytes);
    if (sharing < reports.size()) figures.shares_memory = false;
  }
  return figures;
}

std::unique_ptr<DeviceExecutor> load_share(RankLink& link, const ModelFiles& files,
                                           const ModelConfig& config, Backend& backend,
                                           const Orders& orders,
                                           const std::function<void(size_t)>& progress) {
  backend.join(link, orders.sums);
  auto executor = std::make_unique<DeviceExecutor>(files, share_of(config, place_of(link)), backend,
                                                   orders.limits, progress);
  backend.synchronize();
  link.gather({});  // all have loaded theirs
  return executor;
}

// The device as choose_backend() has it, without what differs between its names.
std::string memory_of(const Backend& backend, const std::string& device) {
  return backend.takes_memory_on_use() ? "host" : device;
}

// What threads of a process share.
struct SharedFiles {
  const ModelFiles* files = nullptr;
};

// Which files rank 0 opens: of threads of a process these themselves, else their paths, each behind
// which there is a NUL.
Bytes name_files(const RankLink& link, const ModelFiles& files) {
  const SharedFiles shared{&files};
  std::string paths;
  const auto add = [&paths](const ModelFile& file) {
    paths += std::filesystem::absolute(file.name()).string() + '\0';
  };
  add(files.model);
  for (const ModelFile& adapter : files.adapters) add(adapter);
  const std::span<const std::byte> names =
      link.is_in_process() ? bytes_of_value(shared) : std::as_bytes(std::span(paths));
  return {names.begin(), names.end()};
}

std::vector<ModelFile> open_files(std::span<const std::byte> paths) {
  std::vector<ModelFile> files;
  for (const std::byte* at = paths.data(); at < paths.data() + paths.size();) {
    const std::string path(reinterpret_cast<const char*>(at));
    files.push_back(ModelFile::open(path));
    at += path.size() + 1;
  }
  return files;
}

void follow_model(RankLink& link, const RankDevice& device, const ModelFiles& files) {
  const ModelConfig config = config_of_files(files);
  const std::unique_ptr<Backend> backend = choose_backend(device.device, device.threads, 0);
  exchange_figures(link, files, config, *backend, memory_of(*backend, device.device));
  const auto orders = value_of<Orders>(link.listen());
  const auto executor = load_share(link, files, config, *backend, orders, nullptr);
  follow(*executor, link);
  backend->synchronize();
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
      const Bytes message = link.listen();
      if (message.empty()) return;
      if (link.is_in_process()) {
        follow_model(link, device, *value_of<SharedFiles>(message).files);
      } else {
        const std::vector<ModelFile> files = open_files(message);
        follow_model(link, device, {files.front(), std::span(files).subspan(1)});
      }
    }
  } catch (const std::exception& error) {
    link.fail(error.what());
    throw;
  }
}

Ranks::Ranks(const std::string& devices, int32_t threads, RankLink* processes) : link_(processes) {
  const std::vector<std::string> names = device_names(devices);
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

RankPlace Ranks::place() const { return link_ == nullptr ? RankPlace{} : place_of(*link_); }

std::string Ranks::describe(const Backend& backend) const {
  if (link_ == nullptr) return backend.description();
  return backend.description() + ", " + std::to_string(link_->count()) + " ranks";
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
  link_->tell(name_files(*link_, files));
  const RankFigures figures =
      exchange_figures(*link_, files, config, backend, memory_of(backend, device().device));
  const DType activations = backend.activation_dtype(config.weight_format);
  const int last = link_->count() - 1;
  Orders orders{.limits = choose_limits(share_of(config, {last, link_->count()}), figures)};
  if (figures.shares_memory) orders.limits.gathered_bytes = kGatheredInMemory;
  // Terms of float16 might be out of its range, which those of the stream are not.
  if (!exact && activations != DType::f32) orders.sums = DType::bf16;
  link_->tell(bytes_of_value(orders));
  return std::make_unique<RankedExecutor>(
      load_share(*link_, files, config, backend, orders, progress), *link_);
}

}  // namespace faststream
