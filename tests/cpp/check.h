// What a small C++ test needs: CHECK, and TEST functions that main() runs one after the other.
#pragma once

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cudaprefill::test {

inline std::vector<std::pair<const char*, void (*)()>>& tests() {
  static std::vector<std::pair<const char*, void (*)()>> registered;
  return registered;
}

inline bool add_test(const char* name, void (*body)()) {
  tests().emplace_back(name, body);
  return true;
}

inline void fail(const char* file, int line, const std::string& what) {
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

// What an exception of type E thrown by `body` says; fails if there is none.
template <typename E, typename Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  throw std::runtime_error("nothing was thrown");
}

inline int run_all() {
  int failed = 0;
  for (const auto& [name, body] : tests()) {
    try {
      body();
    } catch (const std::exception& error) {
      std::printf("FAILED %s\n  %s\n", name, error.what());
      ++failed;
    }
  }
  std::printf("%zu tests, %d failed\n", tests().size(), failed);
  return failed > 0;
}

}  // namespace cudaprefill::test

#define CHECK(condition)                                                         \
  do {                                                                           \
    if (!(condition)) ::cudaprefill::test::fail(__FILE__, __LINE__, #condition); \
  } while (false)

#define TEST(name)                                                                              \
  static void name();                                                                           \
  [[maybe_unused]] static const bool name##_added = ::cudaprefill::test::add_test(#name, name); \
  static void name()

int main() { return cudaprefill::test::run_all(); }
