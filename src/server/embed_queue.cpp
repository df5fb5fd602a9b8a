#include "server/embed_queue.h"

#include <exception>
#include <iterator>
#include <utility>

#include "support/error.h"

namespace faststream::server {
namespace {

constexpr size_t kTextsAtOnce = 256;  // of several tasks

}  // namespace

EmbedQueue::EmbedQueue(Embedder embedder, size_t most_texts)
    : embedder_(std::move(embedder)),
      info_(embedder_.info()),
      most_texts_(most_texts),
      thread_([this] { work(); }) {}

EmbedQueue::~EmbedQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
  for (EmbedTask& task : tasks_) task.done({}, "the server ends");
}

bool EmbedQueue::add(EmbedTask task) {
  {
    const std::lock_guard lock(mutex_);
    if (n_texts_ > 0 && n_texts_ + task.texts.size() > most_texts_) return false;
    n_texts_ += task.texts.size();
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
  return true;
}

void EmbedQueue::work() {
  for (;;) {
    std::vector<EmbedTask> tasks;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (ending_) return;
      // Pairs are scored a query at a time.
      size_t n_texts = 0;
      do {
        n_texts += tasks_.front().texts.size();
        tasks.push_back(std::move(tasks_.front()));
        tasks_.pop_front();
      } while (!tasks.front().query && !tasks_.empty() && !tasks_.front().query &&
               n_texts + tasks_.front().texts.size() <= kTextsAtOnce);
    }
    compute(std::move(tasks));
  }
}

void EmbedQueue::compute(std::vector<EmbedTask> tasks) {
  std::vector<std::string> texts;
  size_t n_taken = 0;
  for (EmbedTask& task : tasks) {
    n_taken += task.texts.size();
    if (task.unwanted && *task.unwanted) task.texts.clear();
    texts.insert(texts.end(), task.texts.begin(), task.texts.end());
  }
  std::vector<TextVector> vectors;
  std::string error;
  try {
    if (!texts.empty()) {
      vectors = tasks.front().query ? embedder_.score(*tasks.front().query, texts)
                                    : embedder_.embed(texts);
    }
  } catch (const Error& failure) {
    error = failure.what();
  } catch (const std::exception&) {
    error = "there is not enough memory for these texts; give fewer";
  }
  n_texts_ -= n_taken;  // before anybody hears of it and sends more
  auto next = vectors.begin();
  for (EmbedTask& task : tasks) {
    std::vector<TextVector> own;
    if (error.empty()) {
      const auto end = next + static_cast<std::ptrdiff_t>(task.texts.size());
      own.assign(std::make_move_iterator(next), std::make_move_iterator(end));
      next = end;
    }
    task.done(std::move(own), error);
  }
}

}  // namespace faststream::server
