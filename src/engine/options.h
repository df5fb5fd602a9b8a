// What whoever loads a model can choose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace faststream {

class Backend;
class MessageLink;
class RankLink;

/// An adapter that runs beside a model.
struct AdapterOption {
  std::string name;  ///< that requests choose it by
  std::string path;  ///< of its file, made by faststream-convert --adapter-for
};

/// Of an Engine.
struct EngineOptions {
  /// "auto", "cpu", "cuda" or "cuda:N"; or several, which run the model together: "cuda:0,1",
  /// "cpu,cpu".
  std::string device = "auto";
  int32_t threads = 0;  ///< CPU threads; 0: all that the process may use
  /// To other processes that run the model together with this one, which is rank 0; or null. The
  /// engine must not outlive it.
  RankLink* link = nullptr;
  /// The model's layers are in so many parts, each on as many of its processes, or of several CPU
  /// devices: a step goes through one after the other, and other steps through the others
  /// meanwhile.
  int32_t stages = 1;
  /// So many of the model, each with its part of the devices, and of a CPU of its threads: requests
  /// go to the one that has least to do.
  int32_t replicas = 1;
  /// To other processes that have a replica each, of the same file (serve_replica()): requests go
  /// to these, too. The engine must not outlive them.
  std::vector<MessageLink*> replica_links = {};
  /// What ranks add up is of float32 throughout: slower, but texts depend less on their number.
  bool exact_sums = false;
  int64_t context = 0;  ///< tokens of prompt and answer; 0: the model's, or what memory allows
  int32_t slots = 0;    ///< sequences that run at once; 0: as device and memory allow
  /// At least as many slots as the beam search has that the model's makers recommend.
  bool slots_for_search = false;
  int64_t kv_tokens = 0;  ///< tokens of KV cache for all of them; 0: as memory allows
  /// "int8" or "fp8": layers that see the whole text keep keys and values in eight bits, with a
  /// scale for each token and head. Those with windows, latents, sinks, and all of models with an
  /// encoder stay as they are without: in 16 bits, or in the 32 of a model's f32 weights.
  std::string kv = {};
  size_t memory = 0;       ///< bytes of the device's for weights and cache; 0: what is free
  double memory_part = 1;  ///< of what is free, the part that may be taken; others get the rest
  /// Prompt tokens (4 or more) that a step takes beside running sequences at most; 0: only the
  /// time that the step takes limits them.
  int32_t chunk = 0;
  /// Beside the model: requests that say nothing have the first one.
  std::vector<AdapterOption> adapters = {};
  bool prefix_sharing = true;  ///< keep and share the KV cache of common prefixes
  /// Has several tokens of a text in a step where that is faster, which changes no text: "lookup"
  /// proposes what followed where the end of the text stood before, "draft=FILE" what another model
  /// of the same tokenizer draws, "mtp" what the model's own head does that predicts further
  /// tokens, on one device; "off" proposes nothing; "auto" is "lookup".
  std::string speculate = "auto";
  /// Propose all the same where that is slower: for tests.
  bool always_speculate = false;
  /// Takes the place of a model's device: for tests. May be empty.
  std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)> wrap_backend = {};
  /// For work of which nobody waits for a part: once no more requests wait than fill the slots
  /// twice, of equal ones those go first that may generate most, so that all end soonest; and
  /// steps with prompts may take a second.
  bool ends_together = false;
  /// A built-in chat template's name or a file (Jinja); empty: the model file's own.
  std::string chat_template = {};
  /// Called while weights are loaded, with bytes done and bytes in all. May be empty.
  std::function<void(size_t, size_t)> load_progress = {};
  /// Called now and then while a text is tokenized, on the caller's thread; what it throws ends
  /// that call. May be empty.
  std::function<void()> check_interrupted = {};
};

/// Of an Embedder.
struct EmbedderOptions {
  std::string device = "auto";  ///< "auto", "cpu", "cuda" or "cuda:N"
  int32_t threads = 0;          ///< CPU threads; 0: all that the process may use
  int64_t context = 0;          ///< tokens at which texts are cut; 0: the model's own
  /// Called while weights are loaded, with bytes done and bytes in all. May be empty.
  std::function<void(size_t, size_t)> load_progress = {};
  /// Called now and then in embed() and score(), while texts are tokenized by several threads at
  /// once; what it throws ends that call. May be empty.
  std::function<void()> check_interrupted = {};
};

}  // namespace faststream
