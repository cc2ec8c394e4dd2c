#include "csrc/cpu/parallel.h"

#include "csrc/cpu/thread_team.h"

namespace cudaprefill::cpu {

void run_parallel_for(int64_t count, int64_t grain, void (*body)(int64_t begin, int64_t end, const void* context),
                      const void* context) {
  struct Pieces {
    int64_t count, num_pieces;
    void (*body)(int64_t begin, int64_t end, const void* context);
    const void* context;
  };
  const Pieces pieces{count, std::min(num_threads(), (count + grain - 1) / grain), body, context};
  run_items(
      pieces.num_pieces,
      [](int64_t piece, const void* of) {
        const Pieces& pieces = *static_cast<const Pieces*>(of);
        pieces.body(piece * pieces.count / pieces.num_pieces, (piece + 1) * pieces.count / pieces.num_pieces,
                    pieces.context);
      },
      &pieces);
}

void run_parallel_items(int64_t count, void (*body)(int64_t item, const void* context), const void* context) {
  run_items(count, body, context);
}

}  // namespace cudaprefill::cpu
