// Usage: consumer MODEL PROMPT. Prints the greedy continuation.
#include <faststream/engine/engine.h>

#include <iostream>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    faststream::Engine engine(argv[1], {.device = "cpu"});
    faststream::Request request{.prompt = argv[2], .max_tokens = 20, .sampling = {.temperature = 0}};
    engine.generate(request, [](std::string_view text) {
      std::cout << text << std::flush;
      return true;
    });
    std::cout << '\n';
  } catch (const faststream::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
