// Products of sizes for which a GPU takes other tiles.
#include <array>
#include <functional>
#include <memory>
#include <string>

#include "unit/backend/backend_weights.h"

namespace faststream {
namespace {

struct Shape {
  int64_t rows;
  int64_t outputs;
  int64_t inputs;
};

class CudaProducts : public BackendTest {
 protected:
  /// Bit for bit: rows of a product of many, at its beginning, middle and end, are those of few.
  void check(WeightFormat format, const Shape& shape, bool gated) {
    compare(shape, product(format, shape, gated),
            std::string(format_name(format)) + (gated ? ", gated" : ""));
  }

  /// All rows, which are too many for that, are those of any fewer sequences' tokens in decode.
  void check_tokens(WeightFormat format, const Shape& shape, bool gated) {
    const auto multiply = product(format, shape, gated);
    decode(shape.rows);
    const HostTensor all = multiply(0, shape.rows);
    for (int64_t few = 1; few < shape.rows; ++few) {
      decode(few);
      const int64_t first = shape.rows - few;
      expect_equal(multiply(first, few), all.row_range(first, few),
                   std::string(format_name(format)) + (gated ? ", gated, " : ", ") +
                       std::to_string(shape.inputs) + " to " + std::to_string(shape.outputs) +
                       ", tokens: " + std::to_string(few));
    }
  }

  /// multiply(first row, number of rows), with biases.
  std::function<HostTensor(int64_t, int64_t)> product(WeightFormat format, const Shape& shape,
                                                      bool gated) {
    struct Operands {
      DeviceTensor x;
      DeviceWeight weight;
      DeviceTensor bias;
      HostTensor before;
    };
    const DType act = backend_->activation_dtype(format);
    const int64_t width = gated ? 2 * shape.outputs : shape.outputs;
    const auto operands = std::make_shared<const Operands>(Operands{
        .x{*backend_, random_tensor(random_, act, shape.rows, shape.inputs)},
        .weight{*backend_, random_weight(random_, format, width, shape.inputs)},
        .bias{*backend_, random_tensor(random_, DType::f32, 1, width)},
        .before{random_tensor(random_, gated ? act : DType::f32, shape.rows, shape.outputs)}});
    return [this, operands, gated](int64_t first, int64_t count) {
      const DeviceTensor out(*backend_, operands->before.row_range(first, count));
      Input input{.x = operands->x.matrix().row_range(first, count)};
      const Weight& weight = operands->weight.weight();
      const auto* biases = static_cast<const float*>(operands->bias.data());
      if (gated) {
        backend_->gated_linear(input, weight, biases, Activation::silu, out.matrix());
      } else {
        backend_->linear(input, weight, {.bias = biases, .output = OutputMode::add}, out.matrix());
      }
      return out.fetch();
    };
  }

  /// A step begins, of a token of each of so many sequences.
  void decode(int64_t sequences) {
    Batch batch;
    batch.page_table.assign(static_cast<size_t>(sequences), 0);
    batch.max_pages = 1;
    for (int64_t i = 0; i < sequences; ++i) batch.add_sequence(std::array{0}, 0);
    backend_->upload(batch);
  }

  /// The same of products with an activation, whose results are of x's type.
  void check_activation(WeightFormat format, const Shape& shape, Activation activation) {
    const DeviceTensor x(*backend_,
                         random_tensor(random_, stored_type(format), shape.rows, shape.inputs));
    const DeviceWeight weight(*backend_,
                              random_weight(random_, format, shape.outputs, shape.inputs));
    const DeviceTensor bias(*backend_, random_tensor(random_, DType::f32, 1, shape.outputs));
    const auto multiply = [&](int64_t first, int64_t count) {
      const DeviceTensor out(*backend_, HostTensor(stored_type(format), count, shape.outputs));
      Input input{.x = x.matrix().row_range(first, count)};
      backend_->linear(input, weight.weight(),
                       {.bias = static_cast<const float*>(bias.data()), .activation = activation},
                       out.matrix());
      return out.fetch();
    };
    compare(shape, multiply,
            std::string(format_name(format)) + ", activation " +
                std::to_string(static_cast<int>(activation)));
  }

  /// The same of logits, whose rows begin at multiples of four floats.
  void check_logits(WeightFormat format, const Shape& shape) {
    const int64_t padding = (4 - shape.outputs % 4) % 4;
    const DeviceTensor x(*backend_,
                         random_tensor(random_, stored_type(format), shape.rows, shape.inputs));
    const DeviceWeight weight(*backend_,
                              random_weight(random_, format, shape.outputs, shape.inputs));
    const auto multiply = [&](int64_t first, int64_t count) {
      const DeviceTensor out(*backend_, HostTensor(DType::f32, count, shape.outputs, padding));
      Input input{.x = x.matrix().row_range(first, count)};
      backend_->linear(input, weight.weight(), {}, out.matrix());
      return out.fetch();
    };
    compare(shape, multiply, std::string(format_name(format)) + ", logits");
  }

  /// multiply(first row, number of rows) of all rows, and of few: ten, or one of at most ten.
  template <typename Multiply>
  static void compare(const Shape& shape, const Multiply& multiply, const std::string& what) {
    const int64_t few = shape.rows > 10 ? 10 : 1;
    const HostTensor all = multiply(0, shape.rows);
    for (const int64_t first : {int64_t{0}, shape.rows / 2, shape.rows - few}) {
      expect_equal(multiply(first, few), all.row_range(first, few),
                   what + ", " + std::to_string(shape.inputs) + " to " +
                       std::to_string(shape.outputs) + ", rows from " + std::to_string(first) +
                       " of " + std::to_string(shape.rows));
    }
  }
};

// Of 64, 96 and so on up to 256 rows, with and without cut ones, those of 64 and 128 in INT8 also
// with inputs that two blocks divide (tiling.h chooses).
TEST_P(CudaProducts, TilesOfEverySizeHaveTheRowsOfFew) {
  for (const Shape& shape :
       {Shape{40, 272, 8192}, Shape{40, 6160, 1040}, Shape{100, 3216, 272}, Shape{100, 2064, 4096},
        Shape{330, 3216, 272}, Shape{640, 1040, 14336}, Shape{1100, 2064, 4096},
        Shape{190, 16400, 272}, Shape{220, 16400, 272}, Shape{250, 16400, 272}}) {
    check(WeightFormat::int8, shape, false);
  }
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f16}) {
    for (const Shape& shape : {Shape{200, 3216, 272}, Shape{1100, 272, 1040},
                               Shape{1100, 2064, 1040}, Shape{1100, 3216, 272}}) {
      check(format, shape, false);
    }
  }
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::bf16, WeightFormat::f16}) {
    for (const Shape& shape :
         {Shape{120, 3224, 272}, Shape{200, 3224, 272}, Shape{80, 8200, 272}, Shape{190, 8200, 272},
          Shape{300, 14344, 272}, Shape{407, 14344, 272}, Shape{1100, 1032, 4096}}) {
      check(format, shape, true);
    }
  }
}

TEST_P(CudaProducts, FinishedProductsHaveTheRowsOfFew) {
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f16}) {
    for (const Shape& shape : {Shape{40, 3216, 272}, Shape{150, 3217, 272}, Shape{700, 520, 512},
                               Shape{1100, 1032, 4096}}) {
      check(format, shape, false);
    }
    for (const Activation activation :
         {Activation::none, Activation::silu, Activation::gelu, Activation::gelu_tanh,
          Activation::relu, Activation::relu_squared}) {
      for (const Shape& shape : {Shape{40, 2048, 512}, Shape{600, 2056, 512}}) {
        check_activation(format, shape, activation);
      }
    }
  }
}

TEST_P(CudaProducts, LogitsOfAnyVocabularyHaveTheRowsOfFew) {
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f16}) {
    for (const Shape& shape : {Shape{20, 3217, 272}, Shape{40, 32003, 512}, Shape{150, 3217, 272},
                               Shape{150, 3218, 4096}, Shape{300, 1031, 1040},
                               Shape{700, 3219, 512}, Shape{1100, 1031, 512}}) {
      check_logits(format, shape);
    }
  }
}

// One row may be multiplied by the kernel that runs a step (kernels/cuda/step_kernel/): of inputs
// that are no whole chunks, by blocks that have no tile, one, and more than they have warps.
TEST_P(CudaProducts, OneRowHasTheBitsOfARowOfSeveral) {
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::bf16, WeightFormat::f16}) {
    for (const Shape& shape : {Shape{3, 4, 32}, Shape{3, 20, 288}, Shape{3, 36, 544},
                               Shape{3, 2064, 1056}, Shape{3, 132, 14336}, Shape{3, 6148, 4096},
                               Shape{3, 19012, 608}, Shape{3, 100, 272}, Shape{3, 30, 64}}) {
      for (const bool gated : {false, true}) check(format, shape, gated);
    }
  }
}

// The rows of several sequences' tokens may be, too: whole ones, or parts of inputs for which there
// is no room.
TEST_P(CudaProducts, RowsOfTokensHaveTheBitsOfARowOfSeveral) {
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::bf16}) {
    for (const Shape& shape :
         {Shape{9, 4, 32}, Shape{9, 36, 544}, Shape{9, 2064, 1056}, Shape{9, 516, 14336},
          Shape{9, 132, 11008}, Shape{9, 1044, 8192}, Shape{9, 260, 16384}, Shape{9, 132, 9280},
          Shape{9, 6148, 4096}, Shape{9, 19012, 608}}) {
      for (const bool gated : {false, true}) check_tokens(format, shape, gated);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaProducts, ::testing::Values("cuda"));

}  // namespace
}  // namespace faststream
