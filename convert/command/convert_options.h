// The command line of faststream-convert.
#pragma once

#include <string>
#include <vector>

#include "convert/pipeline.h"

namespace CLI {
class App;
}

namespace faststream::convert {

struct ConvertCommandOptions {
  std::string checkpoint;
  std::string output;                 ///< -o
  std::string dtype;                  ///< the weights'; empty: the checkpoint's own
  int activation_bits = 0;            ///< 0: 8
  std::string tokenizer;              ///< a file instead of the checkpoint's own
  std::string calibrate;              ///< a text that the model is run over
  std::vector<std::string> adapters;  ///< --lora: folders
  std::string task;                   ///< of the checkpoint's own adapters
  std::string eagle;                  ///< the folder of a head that predicts further tokens
  std::string adapter_for;            ///< the model file that they are to run beside
  std::string imatrix;                ///< llama.cpp's file of what that would measure
  std::string device = "auto";        ///< with calibrate
  std::string check;    ///< say what converting this checkpoint would do, instead of doing it
  std::string show;     ///< print what is in this model file, instead of converting
  std::string verify;   ///< check this model file, instead of converting
  std::string pooling;  ///< of an encoder whose checkpoint names none
  std::string keep;     ///< tensors of other formats
  bool normalize = false;
  bool keep_output = false;
  bool no_mtp = false;
  bool force = false;
  bool quiet = false;
  int threads = 0;  ///< 0: all
};

/// What decides the contents of the model file that comes of a checkpoint, but for what is to be
/// measured.
ConvertOptions conversion_of(const std::string& checkpoint, const ConvertCommandOptions& options);

/// Measures with the model what options.calibrate asks for, if it does, for conversion.statistics.
/// Throws as calibrate() does, and Error when the text cannot be read.
void add_statistics(const ConvertCommandOptions& options, ConvertOptions& conversion);

/// Adds the options to `app`, bound to `options`, with help that teaches.
void add_convert_options(CLI::App& app, ConvertCommandOptions& options);

}  // namespace faststream::convert
