// The most float32 operations a second: independent multiply-adds in registers, and nothing else.
//
//     c++ -O3 -std=c++20 -pthread fma_peak.cc && ./a.out THREADS        prints operations a second of all threads
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr long kRounds = 2'000'000;
constexpr int kRepeats = 12;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Enough chains that none waits for its last result: two units of four cycles want eight.
__attribute__((target("avx512f"))) double run_avx512(float* out) {
  constexpr int kChains = 24;
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const double start = now();
  for (long round = 0; round < kRounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], a, b);
    asm volatile("");  // the rounds stay rounds
  }
  const double seconds = now() - start;
  for (int i = 1; i < kChains; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  _mm512_storeu_ps(out, sums[0]);
  return 2.0 * 16 * kChains * kRounds / seconds;
}

__attribute__((target("avx2,fma"))) double run_avx2(float* out) {
  constexpr int kChains = 12;
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  __m256 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const double start = now();
  for (long round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm256_fmadd_ps(sums[i], a, b);
    asm volatile("");
  }
  const double seconds = now() - start;
  for (int i = 1; i < kChains; ++i) sums[0] = _mm256_add_ps(sums[0], sums[i]);
  _mm256_storeu_ps(out, sums[0]);
  return 2.0 * 8 * kChains * kRounds / seconds;
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 1;
  const auto run = __builtin_cpu_supports("avx512f") ? run_avx512 : run_avx2;
  std::vector<double> best(threads);
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t) {
    team.emplace_back([&, t] {
      float out[16];
      for (int i = 0; i < kRepeats; ++i) best[t] = std::max(best[t], run(out));
    });
  }
  for (std::thread& thread : team) thread.join();
  double total = 0;
  for (const double rate : best) total += rate;
  std::printf("%.0f\n", total);
}
