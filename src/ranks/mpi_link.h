// Ranks that are processes which mpirun has started, on one machine or several.
#pragma once

#include <memory>

#include "backend/rank_link.h"

namespace faststream {

/// This process's end; null where it was started alone. Once a process. Throws Error where there
/// are several, but the program was built without MPI.
std::unique_ptr<RankLink> make_process_link();

/// Which of the ranks on its machine a rank is, and how many there are. All ranks ask together.
struct LocalPlace {
  int index = 0;
  int count = 1;
};
LocalPlace place_on_machine(RankLink& link);

}  // namespace faststream
