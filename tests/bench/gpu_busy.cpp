// How busy a program keeps the GPU: a library that CUDA loads into any program.
//
//   CUDA_INJECTION64_PATH=build/release-sm90/tests/libgpu-busy.so faststream-run ...
//
// At the program's end it prints to stderr the time from the first to the last piece of GPU work
// (kernels, copies, fills), the share of it in which at least one was running, how long the pauses
// between them were, and which kernels ran longest. CUPTI's activity records, "CUPTI Activity API"
// in the CUDA documentation.
#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr size_t kBufferBytes = 8 << 20;
constexpr size_t kNamesShown = 25;
constexpr int kNameColumns = 110;

struct Work {
  size_t n = 0;
  uint64_t ns = 0;
};

struct Record {
  std::mutex mutex;
  std::map<std::string, Work> by_kernel;             // by mangled name
  std::vector<std::pair<uint64_t, uint64_t>> spans;  // begin and end of each piece of work, ns
  size_t dropped = 0;
};

Record& record() {
  static auto* all = new Record;  // lives as long as CUPTI's own threads
  return *all;
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = kBufferBytes;
  *max_records = 0;  // as many as fit
}

template <typename Activity>
std::pair<uint64_t, uint64_t> span_of(const CUpti_Activity* activity) {
  const auto* work = reinterpret_cast<const Activity*>(activity);
  return {work->start, work->end};
}

void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t /*bytes*/,
                          size_t valid) {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  CUpti_Activity* activity = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &activity) == CUPTI_SUCCESS) {
    if (activity->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      all.spans.push_back(span_of<CUpti_ActivityKernel9>(activity));
      Work& work = all.by_kernel[reinterpret_cast<const CUpti_ActivityKernel9*>(activity)->name];
      ++work.n;
      work.ns += all.spans.back().second - all.spans.back().first;
    } else if (activity->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      all.spans.push_back(span_of<CUpti_ActivityMemcpy5>(activity));
    } else if (activity->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      all.spans.push_back(span_of<CUpti_ActivityMemset4>(activity));
    }
  }
  size_t dropped = 0;
  cuptiActivityGetNumDroppedRecords(context, stream, &dropped);
  all.dropped += dropped;
  std::free(buffer);
}

// Pauses shorter than a number of microseconds, and not shorter than the number before.
struct Pauses {
  double shorter_than;
  size_t n = 0;
  uint64_t ns = 0;
};

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = text != nullptr ? text : name;
  std::free(text);
  return result;
}

void report_kernels(const std::map<std::string, Work>& by_kernel) {
  std::vector<std::pair<std::string, Work>> kernels(by_kernel.begin(), by_kernel.end());
  std::sort(kernels.begin(), kernels.end(),
            [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
  kernels.resize(std::min(kernels.size(), kNamesShown));
  for (const auto& [name, work] : kernels) {
    std::fprintf(stderr, "  %9.3f ms, %8zu times %9.2f us  %.*s\n",
                 static_cast<double>(work.ns) * 1e-6, work.n,
                 static_cast<double>(work.ns) * 1e-3 / static_cast<double>(work.n), kNameColumns,
                 demangled(name).c_str());
  }
}

void report() {
  cuptiActivityFlushAll(1);
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  if (all.spans.empty()) return;
  std::sort(all.spans.begin(), all.spans.end());
  uint64_t busy = 0;
  uint64_t end = all.spans.front().first;
  std::array<Pauses, 6> pauses = {{{2}, {5}, {20}, {100}, {500}, {1e12}}};
  for (const auto& [first, last] : all.spans) {
    busy += last > end ? last - std::max(first, end) : 0;
    if (first > end) {
      const uint64_t ns = first - end;
      const auto kind = std::find_if(pauses.begin(), pauses.end(), [ns](const Pauses& p) {
        return static_cast<double>(ns) < 1000 * p.shorter_than;
      });
      ++kind->n;
      kind->ns += ns;
    }
    end = std::max(end, last);
  }
  const auto seconds = [](uint64_t ns) { return static_cast<double>(ns) * 1e-9; };
  const uint64_t all_time = end - all.spans.front().first;
  std::fprintf(stderr, "GPU busy %.3f s of %.3f s (%.2f%%), %zu pieces of work, %zu not recorded\n",
               seconds(busy), seconds(all_time),
               100 * static_cast<double>(busy) / static_cast<double>(all_time), all.spans.size(),
               all.dropped);
  for (const Pauses& kind : pauses) {
    std::fprintf(stderr, "  pauses under %5.0g us: %9zu, %8.3f s\n", kind.shorter_than, kind.n,
                 seconds(kind.ns));
  }
  report_kernels(all.by_kernel);
}

}  // namespace

extern "C" int InitializeInjection() {
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    if (cuptiActivityEnable(kind) != CUPTI_SUCCESS) return 0;
  }
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  std::atexit(report);
  return 1;
}
