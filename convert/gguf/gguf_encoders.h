// Encoders, and what makes vectors or scores of any model's hidden states.
#pragma once

#include "convert/gguf/gguf_family.h"
#include "convert/gguf/gguf_source.h"

namespace faststream::convert {

/// BERT, RoBERTa, XLM-RoBERTa and DistilBERT, which tensors tell apart.
void adjust_bert(const GgufSource& source, GgufFamilyModel& model);
void adjust_nomic_bert(const GgufSource& source, GgufFamilyModel& model);
void adjust_jina_bert_v2(const GgufSource& source, GgufFamilyModel& model);
void adjust_modern_bert(const GgufSource& source, GgufFamilyModel& model);
/// Llama whose tokens see each other.
void adjust_neo_bert(const GgufSource& source, GgufFamilyModel& model);
void adjust_eurobert(const GgufSource& source, GgufFamilyModel& model);
/// Gemma 3 whose tokens see each other.
void adjust_gemma_embedding(const GgufSource& source, GgufFamilyModel& model);

/// Has the model make vectors where "pooling_type" says so, and scores where there is a classifier;
/// an encoder of which nothing says so is left without either. Whether vectors have length 1,
/// metadata do not say. Throws Error when what is asked for is not known.
void set_pooling(const GgufSource& source, GgufFamilyModel& model);

}  // namespace faststream::convert
