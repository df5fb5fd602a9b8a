// Architectures whose layers have routed experts.
#pragma once

#include "convert/gguf/gguf_family.h"
#include "convert/gguf/gguf_source.h"

namespace faststream::convert {

/// What the metadata may leave to the architecture.
struct RouterDefaults {
  Router::Score score = Router::Score::sigmoid;
  bool normalized = true;
};

/// Routers as the metadata describe them.
void set_routers(const GgufSource& source, GgufFamilyModel& model, const RouterDefaults& defaults);

/// Nothing but the usual routers: sigmoids, whose weights are normalized if nothing else is said.
void adjust_routed(const GgufSource& source, GgufFamilyModel& model);

void adjust_minimax_m2(const GgufSource& source, GgufFamilyModel& model);
void adjust_ernie4_5_moe(const GgufSource& source, GgufFamilyModel& model);
void adjust_bailingmoe(const GgufSource& source, GgufFamilyModel& model);
void adjust_exaone_moe(const GgufSource& source, GgufFamilyModel& model);
void adjust_afmoe(const GgufSource& source, GgufFamilyModel& model);
void adjust_hunyuan_moe(const GgufSource& source, GgufFamilyModel& model);
void adjust_llama4(const GgufSource& source, GgufFamilyModel& model);
void adjust_cohere2moe(const GgufSource& source, GgufFamilyModel& model);
void adjust_mimo2(const GgufSource& source, GgufFamilyModel& model);
void adjust_laguna(const GgufSource& source, GgufFamilyModel& model);
void adjust_step35(const GgufSource& source, GgufFamilyModel& model);
void adjust_mellum(const GgufSource& source, GgufFamilyModel& model);

}  // namespace faststream::convert
