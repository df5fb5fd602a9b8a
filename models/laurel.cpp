#include "models/laurel.h"

namespace faststream {

void augment(const Pass& pass, const LaurelWeights& weights, const Input& input, Stream& stream) {
  if (!weights) return;
  Input read = input;
  const Matrix low = pass.rows_in(pass.memory.laurel, weights.in.weight.rows);
  pass.backend.linear(read, weights.in.weight, {}, low);
  stream.add({}, [&](OutputMode output, const Matrix& out) {
    pass.backend.norm(input.x, {}, output, out);
  });
  stream.add({.before = {}, .after = weights.norm, .stream = {}},
             LastProduct{pass, {.x = low}, weights.out});
  stream.scale(weights.factor);
}

}  // namespace faststream
