// What --stats says of an engine, whatever it was asked.
#pragma once

#include "engine/engine.h"

namespace faststream::cli {

/// Prints to standard error where it runs, and how long it took to load.
void print_device(const EngineInfo& info);
/// How many steps it took, and what became of proposed tokens, where there were some.
void print_steps(const EngineStats& stats);
void print_memory(const EngineInfo& info);

}  // namespace faststream::cli
