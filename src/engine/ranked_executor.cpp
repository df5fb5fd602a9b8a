#include "engine/ranked_executor.h"

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "ranks/message.h"

namespace faststream {

template <typename SomeBatch, typename Visit>
requires std::is_same_v<std::remove_const_t<SomeBatch>, Batch>
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

namespace {

enum class Command : int32_t { read_sources, forward, copy, end };

MessageWriter message(Command command) { return MessageWriter().put(command); }

Batch read_batch(MessageReader& reader) {
  Batch batch;
  reader.take(batch);
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
    link_.tell(message(Command::end).bytes());
  } catch (const std::exception&) {
    static_cast<void>(0);  // they have ended
  }
}

void RankedExecutor::read_sources(const Batch& batch) {
  link_.tell(message(Command::read_sources).put(batch).bytes());
  own_->read_sources(batch);
}

void RankedExecutor::forward(const Batch& batch) {
  link_.tell(message(Command::forward).put(batch).bytes());
  own_->forward(batch);
  begin_together(*own_, link_);
}

std::unique_ptr<Choices> RankedExecutor::choose(std::span<const SamplingRow> rules) {
  return own_->choose(rules);
}

std::vector<float> RankedExecutor::logits() { return own_->logits(); }

void RankedExecutor::copy(std::span<const std::vector<PageCopy>> copies) {
  MessageWriter writer = message(Command::copy).put(uint64_t{copies.size()});
  for (const std::vector<PageCopy>& of_cache : copies) writer.put(of_cache);
  link_.tell(writer.bytes());
  own_->copy(copies);
}

void follow(DeviceExecutor& executor, RankLink& link) {
  Batch batch;  // of the last step, which the device may still read
  while (true) {
    MessageReader reader(link.listen());
    switch (reader.take<Command>()) {
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
        executor.copy(reader.take<std::vector<std::vector<PageCopy>>>());
        break;
      }
      case Command::end:
        return;
    }
  }
}

}  // namespace faststream
