#include "engine/ranked_executor.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "support/error.h"

namespace faststream {
namespace {

using Bytes = RankLink::Bytes;

enum class Command : int32_t { read_sources, forward, copy, end };

// Messages are numbers and vectors of these, each preceded by its size. Whoever reads one is the
// same program.
class Writer {
 public:
  explicit Writer(Command command) { number(static_cast<int32_t>(command)); }

  void number(int32_t n) { append(&n, sizeof n); }
  template <typename T>
  void vector(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    number(static_cast<int32_t>(values.size()));
    append(values.data(), values.size() * sizeof(T));
  }
  [[nodiscard]] const Bytes& bytes() const { return bytes_; }

 private:
  void append(const void* data, size_t size) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + size);
  }

  Bytes bytes_;
};

class Reader {
 public:
  explicit Reader(Bytes bytes) : bytes_(std::move(bytes)) {}

  int32_t number() {
    int32_t n = 0;
    take(&n, sizeof n);
    return n;
  }
  template <typename T>
  void vector(std::vector<T>& values) {
    values.resize(static_cast<size_t>(number()));
    take(values.data(), values.size() * sizeof(T));
  }

 private:
  void take(void* to, size_t size) {
    if (size > bytes_.size() - at_) throw Error("a message between ranks is incomplete");
    if (size > 0) std::memcpy(to, bytes_.data() + at_, size);
    at_ += size;
  }

  Bytes bytes_;
  size_t at_ = 0;
};

// Calls visit(member) for all that a batch is made of.
template <typename SomeBatch, typename Visit>
void visit_members(SomeBatch& batch, Visit visit) {
  for (auto* values : {&batch.tokens, &batch.positions, &batch.sequence_of, &batch.query_start,
                       &batch.kv_len, &batch.rope_lengths, &batch.page_table, &batch.logit_rows,
                       &batch.segments, &batch.source_len, &batch.source_pages, &batch.state_from,
                       &batch.state_to, &batch.state_border}) {
    visit(*values);
  }
  for (auto* rows : {&batch.adapter_tokens, &batch.adapter_logits}) visit(*rows);
  for (auto* number : {&batch.max_pages, &batch.n_groups, &batch.max_source_pages}) visit(*number);
}

Bytes message(Command command, const Batch& batch) {
  Writer writer(command);
  visit_members(batch, [&](const auto& member) {
    if constexpr (std::is_same_v<decltype(member), const int32_t&>) {
      writer.number(member);
    } else {
      writer.vector(member);
    }
  });
  return writer.bytes();
}

Batch read_batch(Reader& reader) {
  Batch batch;
  visit_members(batch, [&](auto& member) {
    if constexpr (std::is_same_v<decltype(member), int32_t&>) {
      member = reader.number();
    } else {
      reader.vector(member);
    }
  });
  return batch;
}

// A device's step waits for those of all others. What else a thread may have to do with its device,
// as to allocate memory, can wait for the step, and keep the other threads from their devices: so
// all threads of a process have begun a step before one goes on.
void begin_together(DeviceExecutor& executor, RankLink& link) {
  executor.launch();
  if (link.is_in_process()) link.gather({});
}

}  // namespace

RankedExecutor::RankedExecutor(std::unique_ptr<DeviceExecutor> own, RankLink& link)
    : own_(std::move(own)), link_(link) {}

RankedExecutor::~RankedExecutor() {
  try {
    link_.tell(Writer(Command::end).bytes());
  } catch (const std::exception&) {
    static_cast<void>(0);  // they have ended
  }
}

void RankedExecutor::read_sources(const Batch& batch) {
  link_.tell(message(Command::read_sources, batch));
  own_->read_sources(batch);
}

void RankedExecutor::forward(const Batch& batch) {
  link_.tell(message(Command::forward, batch));
  own_->forward(batch);
  begin_together(*own_, link_);
}

std::unique_ptr<Choices> RankedExecutor::choose(std::span<const SamplingRow> rules) {
  return own_->choose(rules);
}

std::vector<float> RankedExecutor::logits() { return own_->logits(); }

void RankedExecutor::copy(std::span<const std::vector<PageCopy>> copies) {
  Writer writer(Command::copy);
  writer.number(static_cast<int32_t>(copies.size()));
  for (const std::vector<PageCopy>& of_cache : copies) writer.vector(of_cache);
  link_.tell(writer.bytes());
  own_->copy(copies);
}

void follow(DeviceExecutor& executor, RankLink& link) {
  Batch batch;  // of the last step, which the device may still read
  while (true) {
    Reader reader(link.listen());
    switch (static_cast<Command>(reader.number())) {
      case Command::read_sources:
        batch = read_batch(reader);
        executor.read_sources(batch);
        executor.launch();
        break;
      case Command::forward:
        batch = read_batch(reader);
        executor.forward(batch);
        begin_together(executor, link);
        break;
      case Command::copy: {
        std::vector<std::vector<PageCopy>> copies(static_cast<size_t>(reader.number()));
        for (std::vector<PageCopy>& of_cache : copies) reader.vector(of_cache);
        executor.copy(copies);
        break;
      }
      case Command::end:
        return;
    }
  }
}

}  // namespace faststream
