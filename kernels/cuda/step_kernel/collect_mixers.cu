// Which attention, convolutions and recurrences become instructions.
#include "kernels/cuda/step_kernel/step_kernel.h"

#include <algorithm>

#include "kernels/cuda/attention/attention_decode_mma.cuh"
#include "kernels/cuda/attention/score_rule.cuh"
#include "kernels/cuda/recurrent/recur_token.h"
#include "kernels/cuda/step_kernel/shared_memory.cuh"

namespace faststream {

namespace {

// Takes what an earlier layer of the step does with the token's key and value, before they can be
// read from their page. False where that differs from what happens to queries.
bool take_keys(const AttendInstruction& earlier, AttendInstruction& a) {
  const HeadTransform& of_keys = earlier.transform;
  HeadTransform& transform = a.transform;
  if (transform.norm != of_keys.norm || transform.eps != of_keys.eps ||
      transform.norm_after_rotation != of_keys.norm_after_rotation ||
      a.cos_sin != earlier.cos_sin || a.rotated_dims != earlier.rotated_dims) {
    return false;
  }
  transform.k_weight = of_keys.k_weight;
  transform.k_bias = of_keys.k_bias;
  transform.v_weight = of_keys.v_weight;
  a.keys = earlier.keys;
  a.values = earlier.values;
  return true;
}

}  // namespace

bool StepKernel::attention(const BatchView& batch, const AttentionArguments& arguments,
                           const HeadTransform& transform, const Matrix& cos_sin, bool appends) {
  const KvLayer& kv = arguments.kv;
  const int32_t tokens = batch.n_tokens;
  // Several have a sequence each, so that none reads what another one brings to a page.
  const bool fits = tokens == 1 || (batch.max_query_len == 1 && batch.n_sequences == tokens &&
                                    cos_sin.stride == cos_sin.cols && appends &&
                                    kv.head_dim <= kMaxTokenHead && transform.v_weight == nullptr);
  if (instructions_.empty() || tokens != tokens_ || !fits || kv.dtype != DType::bf16 ||
      kv.v_head_dim != kv.head_dim) {
    return false;
  }
  const int64_t q_dim = int64_t{arguments.n_heads} * kv.head_dim;
  const int64_t kept = appends ? kv.k_dim() + kv.v_dim() : 0;
  const int64_t stride = arguments.q.stride;
  const Span qkv = span_of(arguments.q.data, (tokens - 1) * stride + q_dim + kept, kv.dtype);
  const Span out = span_of(arguments.out);
  make_way({qkv}, out);
  AttendInstruction a;
  a.appends = appends;
  a.transform = transform;
  a.rotated_dims = static_cast<int32_t>(cos_sin.cols);
  if (!appends) {
    const auto earlier = std::find_if(
        instructions_.begin(), instructions_.end(), [&](const Instruction& instruction) {
          return instruction.kind == Instruction::Kind::attend && instruction.attend.appends &&
                 instruction.attend.attention.kv.k == kv.k;
        });
    a.cos_sin = static_cast<const float*>(cos_sin.data);
    if (earlier != instructions_.end() && !take_keys(earlier->attend, a)) return false;
  }
  a.attention = arguments;
  a.group = arguments.n_heads / kv.n_kv_heads;
  a.queries = row_of(qkv);
  if (appends) {
    const auto bytes = static_cast<int64_t>(dtype_size(kv.dtype));
    a.keys = {a.queries.offset + q_dim * bytes, a.queries.awaited};
    a.values = {a.keys.offset + kv.k_dim() * bytes, a.queries.awaited};
  }
  a.result = result_at(out);
  a.cos_sin = static_cast<const float*>(cos_sin.data);
  a.tokens = tokens;
  write_over_held(kMaxInputBytes);
  a.splits.count = max_splits(a.attention.rule, batch);
  // As few heads as blocks allow: a head does not depend on its tile's others.
  a.tile_heads = 1;
  const auto items = [&] {
    return a.splits.count * kv.n_kv_heads * ceil_div(a.group, a.tile_heads) * tokens;
  };
  while (a.tile_heads < std::min(a.group, kDecodeHeads) && items() > multiprocessors_) {
    a.tile_heads *= 2;
  }
  a.splits.head_tiles = ceil_div(a.group, a.tile_heads);
  a.head_tiles = kv.n_kv_heads * a.splits.head_tiles;
  if (a.splits.count > 1) {
    const auto floats =
        int64_t{tokens} * arguments.n_heads * a.splits.count * (2 + int64_t{kv.head_dim});
    a.partials = {.offset = reserve(static_cast<size_t>(floats) * sizeof(float)), .awaited = true};
  }
  a.kv_len = batch.max_kv_len;
  a.first_token = first_split_token(a.attention, a.kv_len);
  a.part_tokens = split_tokens(a.attention, a.kv_len - a.first_token);
  a.parts = tokens == 1 ? ceil_div(a.kv_len - a.first_token, a.part_tokens) : a.splits.count;
  instructions_.emplace_back(a);
  head_dim_ = std::max(head_dim_, kv.head_dim);
  varied_ = varied_ || !is_unvaried(arguments.rule) || arguments.rule.window_in_blocks;
  return true;
}

bool StepKernel::convolve(const BatchView& batch, const Matrix& x, const Convolution& convolution,
                          const StateLayer& states, const Matrix& out) {
  const bool types = x.dtype == DType::bf16 && out.dtype == x.dtype;
  constexpr size_t kPair = 2 * sizeof(float);
  const bool in_pairs = x.cols % 2 == 0 && begins_at(x.data, sizeof(uint32_t)) &&
                        begins_at(out.data, sizeof(uint32_t)) && states.stride % 2 == 0 &&
                        begins_at(states.data, kPair) && begins_at(convolution.weight, kPair) &&
                        begins_at(convolution.bias, kPair);
  const Span input = span_of(x.data, x.cols, x.dtype);
  const Span result = span_of(out.data, out.cols, out.dtype);
  if (instructions_.empty() || batch.n_tokens != 1 || !types || !in_pairs ||
      convolution.taps > kMaxTaps || result.bytes > kMaxRowBytes) {
    return false;
  }
  make_way({input}, result);
  ConvolveInstruction c;
  c.x = row_of(input);
  c.convolution = convolution;
  c.state = {states, batch.state_from, batch.state_to};
  c.channels = static_cast<int32_t>(x.cols);
  c.result = result_at(result);
  c.out = out.data;
  instructions_.emplace_back(c);
  return true;
}

bool StepKernel::recur(const RecurArguments& arguments) {
  const Recurrence& r = arguments.recurrence;
  const auto [batch, q, k, v, gates, recurrence, states, out] = arguments;
  bool in_words = r.key_dim % 2 == 0 && begins_at(gates.data, sizeof(float));
  for (const Matrix* m : {&q, &k, &v, &out}) {
    in_words = in_words && m->dtype == DType::bf16 && begins_at(m->data, sizeof(uint32_t));
  }
  const Span result = span_of(out.data, out.cols, out.dtype);
  const bool decays_alike = !r.by_channel && r.steps != nullptr;
  if (instructions_.empty() || batch.n_tokens != 1 || !in_words || !decays_alike ||
      !recur_token_fits(r, states) || token_parts(r) * token_keys_of_part(r) > kMaxStateKeys ||
      result.bytes > kMaxRowBytes) {
    return false;
  }
  const auto span = [](const Matrix& m) { return span_of(m.data, m.cols, m.dtype); };
  make_way({span(q), span(k), span(v), span(gates)}, result);
  RecurInstruction instruction;
  instruction.q = row_of(span(q));
  instruction.k = row_of(span(k));
  instruction.v = row_of(span(v));
  instruction.gates = row_of(span(gates));
  instruction.recurrence = r;
  instruction.state = {states, batch.state_from, batch.state_to};
  instruction.pieces = ceil_div(r.value_dim, kWarp);
  instruction.heads_of_key = r.n_heads / r.n_key_heads;
  instruction.parts_of_warp = token_parts(r) / step_kernel::kConsumers;
  instruction.keys_of_part = token_keys_of_part(r);
  instruction.result = result_at(result);
  instruction.out = out.data;
  write_over_held(kMaxInputBytes);
  instructions_.emplace_back(instruction);
  return true;
}

}  // namespace faststream
