// Processes that mpirun has started, on one machine or several: ranks of a model, or of several
// replicas of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/rank_link.h"
#include "ranks/message_link.h"

namespace faststream {

/// A process's ends. Of replicas, which have as many processes each, the first process of the first
/// one is process 0.
struct ProcessLinks {
  std::unique_ptr<RankLink> all = {};    ///< of all processes
  std::unique_ptr<RankLink> ranks = {};  ///< of this replica's; null: it has one, or there are none
  /// Of process 0: to the first process of each other replica.
  std::vector<std::unique_ptr<MessageLink>> replicas = {};
  std::unique_ptr<MessageLink> lead = {};  ///< of those: to process 0; null: it is none of them
};

/// This process's ends; nothing where it was started alone. There are no replicas where the
/// processes do not make so many. Once a process, and all together. Throws Error where there are
/// several, but the program was built without MPI.
std::optional<ProcessLinks> make_process_links(int replicas);

/// Which of the ranks on its machine that say the same a rank is, and how many there are. All ranks
/// ask together.
struct LocalPlace {
  int index = 0;
  int count = 1;
};
LocalPlace place_on_machine(RankLink& link, const std::string& what = "");

}  // namespace faststream
