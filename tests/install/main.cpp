// Includes and links the installed library.
#include <iostream>

#include "support/error.h"

int main() {
  try {
    throw faststream::UsageError("The installed library can be used.");
  } catch (const faststream::Error& error) {
    std::cout << error.what() << "\n";
  }
}
