// Architectures of which some layers, or all, keep a state: gated delta nets and state spaces.
#pragma once

#include "convert/gguf/gguf_family.h"
#include "convert/gguf/gguf_source.h"

namespace faststream::convert {

void adjust_qwen3next(const GgufSource& source, GgufFamilyModel& model);
/// Dense and with experts.
void adjust_qwen35(const GgufSource& source, GgufFamilyModel& model);
void adjust_kimi_linear(const GgufSource& source, GgufFamilyModel& model);
void adjust_bailingmoe3(const GgufSource& source, GgufFamilyModel& model);
/// Mamba and Falcon-Mamba.
void adjust_mamba(const GgufSource& source, GgufFamilyModel& model);
void adjust_jamba(const GgufSource& source, GgufFamilyModel& model);
void adjust_mamba2(const GgufSource& source, GgufFamilyModel& model);
/// Without state spaces; the second with windows.
void adjust_granite(const GgufSource& source, GgufFamilyModel& model);
void adjust_granite_swa(const GgufSource& source, GgufFamilyModel& model);
void adjust_granitehybrid(const GgufSource& source, GgufFamilyModel& model);
/// Attention and a state space side by side.
void adjust_falcon_h1(const GgufSource& source, GgufFamilyModel& model);
/// Lightning attention.
void adjust_minimax_01(const GgufSource& source, GgufFamilyModel& model);
/// Dense and with experts.
void adjust_nemotron_h(const GgufSource& source, GgufFamilyModel& model);

}  // namespace faststream::convert
